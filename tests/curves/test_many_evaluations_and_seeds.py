"""Several seeds, thousands of evaluations: the posterior against dense algebra, coverage in small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from scalelab.curves import Curve, curve, fit_curve
from scalelab.curves.checks import Options, back_test
from scalelab.curves.fitting.density import FAINT, LOG_SCALES_K, Density
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.fitting.noise import DEFAULT, log_spread_prior
from scalelab.curves.fitting.posterior import posterior
from tests.helpers.curve_points import rate, run_points
from tests.helpers.dense_noise import covariance, hypotheses


def seeds_of(
    count: int, spread: float, rng: np.random.Generator, points: int = 20, noise: float = 0.006, **truth: float
) -> tuple[Curve, float]:
    """A recipe whose seeds' A differ, and an evaluation of yet another seed at twice the compute."""
    compute = np.append(np.arange(points + 1) / points, 2.0)
    rows = [
        rate(compute, A=0.7 + spread * rng.standard_normal(), **truth) + rng.normal(0, noise, points + 2)
        for _ in range(count + 1)
    ]
    item = curve(
        np.tile(compute[:-1], count),
        np.concatenate([row[:-1] for row in rows[:count]]),
        np.full(count * (points + 1), noise),
        seed=np.repeat(range(count), points + 1).tolist(),
    )
    return item, float(rows[-1][-1])


def test_offsets_integrate_out_as_in_dense_algebra() -> None:
    item, _ = seeds_of(3, 0.02, np.random.default_rng(0), points=8)
    fit = fit_curve(item)
    density = Density(fit, DEFAULT)
    shape_S = fit.theta_P[2:]
    cells = density.evaluate(shape_S[None])
    features_NL = SIGMOID.features(shape_S, density.u_N)
    sigma_N, rate_N = fit.sigma_N / np.sqrt(fit.weight_N), fit.curve.pass_rate_N
    slow, means = [], []
    spread_T, log_prior = density.spread_T, density.log_prior_TK
    noises = hypotheses(several_seeds=True)
    for index, noise in enumerate(noises):
        dense_NN = covariance(noise, fit.curve.compute_N, sigma_N, fit.curve.seed_N, features_NL[:, 1])
        inverse_NN = np.linalg.inv(dense_NN)
        gram_LL = features_NL.T @ inverse_NN @ features_NL + FAINT * np.eye(2)
        mean_L = np.linalg.solve(gram_LL, features_NL.T @ inverse_NN @ rate_N)
        squares = rate_N @ inverse_NN @ rate_N - mean_L @ gram_LL @ mean_L
        constant = -0.5 * (np.linalg.slogdet(dense_NN)[1] + np.linalg.slogdet(gram_LL)[1])
        drift_weight = np.log(0.65) if noise.drift == 0 else np.log(0.35 / 12)
        at = index % len(spread_T)
        log_K = constant + drift_weight - (len(rate_N) - 2) * LOG_SCALES_K - 0.5 * squares * np.exp(-2 * LOG_SCALES_K)
        deviation_KL = np.exp(LOG_SCALES_K)[:, None] * np.sqrt(np.diag(np.linalg.inv(gram_LL)))
        inside_K = np.log(norm.cdf(1, mean_L, deviation_KL) - norm.cdf(0, mean_L, deviation_KL)).sum(1)
        slow.append(log_K + log_prior[at] + inside_K)
        means.append(mean_L)
    at_X = cells.h_X * len(spread_T) + cells.t_X
    assert len(set(at_X.tolist())) == len(at_X) > 30
    seen = np.isfinite(cells.log_XK)
    gap = (cells.log_XK - np.array(slow)[at_X])[seen]
    assert np.ptp(gap) < 2e-5
    np.testing.assert_allclose(cells.mean_XL, np.array(means)[at_X], atol=1e-7)
    left_out = np.array(slow)
    left_out[at_X] = np.where(seen, -np.inf, left_out[at_X])
    assert np.logaddexp.reduce(left_out, axis=None) < np.logaddexp.reduce(np.array(slow), axis=None) - 9


def test_what_is_believed_of_the_spread_is_believed_of_it_as_a_pass_rate() -> None:
    item, _ = seeds_of(2, 0.02, np.random.default_rng(0))
    density = Density(fit_curve(item), None)
    spread_TK = density.spread_T[:, None] * np.exp(LOG_SCALES_K)
    slow = log_spread_prior(spread_TK)
    np.testing.assert_allclose(np.diff(density.log_prior_TK, axis=0), np.diff(slow, axis=0), atol=1e-9)


def test_the_noise_scale_is_that_within_a_seed() -> None:
    rng = np.random.default_rng(3)
    for spread in (0.0, 0.03, 0.08):
        item, _ = seeds_of(3, spread, rng)
        assert fit_curve(item).scale == pytest.approx(1, abs=0.3)


def test_the_curve_of_a_recipe_is_that_of_its_mean_seed_however_many_points_each_has() -> None:
    compute = np.arange(41) / 40
    often, rarely = rate(compute, A=0.6), rate(compute[::8], A=0.8)
    item = curve(np.concatenate([compute, compute[::8]]), np.concatenate([often, rarely]), seed=["a"] * 41 + ["b"] * 6)
    assert fit_curve(item).parameters["A"] == pytest.approx(0.7, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "spread"), [(2, 0.03), (4, 0.0125), (4, 0.03)])
def test_intervals_of_several_seeds_hold_whatever_their_spread(count: int, spread: float) -> None:
    rng = np.random.default_rng(5)
    held = []
    for _ in range(25):
        item, _ = seeds_of(count, spread, rng)
        low, high = np.quantile(posterior(fit_curve(item), DEFAULT, size=2000).parameters()["A"], [0.1, 0.9])
        held.append(low <= 0.7 <= high)
    assert 0.64 <= np.mean(held) <= 0.96


@pytest.mark.slow
def test_the_spread_of_seeds_is_learnt_however_large() -> None:
    rng = np.random.default_rng(8)
    for spread in (0.01, 0.03, 0.06):
        learnt = [
            np.median(posterior(fit_curve(seeds_of(4, spread, rng)[0]), DEFAULT, size=1000).spread_M) for _ in range(8)
        ]
        assert 0.5 < np.median(learnt) / spread < 1.7, spread


@pytest.mark.slow
@pytest.mark.parametrize("points", [300, 1000, 6000])
def test_an_interval_of_an_evaluation_is_of_one_and_not_of_merged_ones(points: int) -> None:
    held = []
    for seed in range(8):
        compute, rates = run_points(points, noise=0.02, seed=seed)
        fit = fit_curve(curve(compute, rates, np.full(points + 1, 0.02)))
        later = rate([1.5] * 40) + np.random.default_rng(seed).normal(0, 0.02, 40)
        low, high = np.quantile(posterior(fit, DEFAULT, size=1000).evaluation([1.5])[:, 0], [0.1, 0.9])
        held.append(((later >= low) & (later <= high)).mean())
    assert 0.74 < np.mean(held) < 0.86


def test_the_back_test_of_thousands_of_evaluations_is_of_single_ones() -> None:
    compute, rates = run_points(3000, noise=0.02, seed=1)
    test = back_test(curve(compute, rates, np.full(3001, 0.02)), Options())
    assert test is not None
    assert test.n_scored == 1500
    assert 0.74 < test.covered < 0.86
