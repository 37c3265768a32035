"""Intervals and forecasts: against brute force, and the invariants that any honest interval has."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from scalelab.curves import (
    Analysis,
    Fit,
    Options,
    analyse,
    analyse_all,
    compute_for,
    curve,
    extend_or_stop,
    fit,
    fit_curve,
    forecast,
    read_sources,
)
from scalelab.curves.checks import back_test
from scalelab.curves.fitting.density import LOG_SCALES_K
from scalelab.curves.fitting.intervals import intervals, middles
from scalelab.curves.fitting.models import SIGMOID, value
from scalelab.curves.fitting.noise import DEFAULT
from scalelab.curves.fitting.posterior import _cut_normal, posterior, systematic
from scalelab.errors import LabError
from tests.helpers.curve_points import rate, run_points
from tests.helpers.dense_noise import covariance, hypotheses


def brute_force_posterior(fit: Fit, size: int = 80_000) -> tuple[np.ndarray, np.ndarray]:
    """Draws of A and weights: parameters drawn from a wide box, every noise hypothesis and scale summed over."""
    rng = np.random.default_rng(1)
    u_N = np.log(np.maximum(fit.curve.compute_N, 1e-300)) - fit.log_reference
    u_N[0] = -1e3
    low, high = np.array([0.0, 0.45, np.log(0.5), -2.5]), np.array([0.45, 1.0, np.log(6), 2.5])
    theta_MP = low + (high - low) * rng.random((size, 4))
    residual_MN = fit.curve.pass_rate_N - value(SIGMOID, theta_MP, u_N)
    total_M = np.full(size, -np.inf)
    for noise in hypotheses(several_seeds=False):
        whole = covariance(noise, fit.curve.compute_N, fit.sigma_N, fit.curve.seed_N, np.ones(len(u_N)))
        squares_M = np.einsum("mn,nk,mk->m", residual_MN, np.linalg.inv(whole), residual_MN, optimize=True)
        for log_scale in LOG_SCALES_K:
            log_M = -0.5 * squares_M * np.exp(-2 * log_scale) - 0.5 * np.linalg.slogdet(whole)[1] - len(u_N) * log_scale
            log_M += noise.log_weight + DEFAULT.log_scale(log_scale + np.log(fit.scale), fit.relative, known=True)
            total_M = np.logaddexp(total_M, log_M)
    mean_S, deviation_S = DEFAULT.shape(SIGMOID, float(u_N.max()))
    total_M -= 0.5 * (((theta_MP[:, 2:] - mean_S) / deviation_S) ** 2).sum(1)
    weight_M = np.exp(total_M - total_M.max())
    return theta_MP, weight_M / weight_M.sum()


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, at: Sequence[float]) -> np.ndarray:
    order = np.argsort(values)
    return np.interp(at, np.cumsum(weights[order]), values[order])


def test_posterior_agrees_with_brute_force() -> None:
    compute, points = run_points(9, noise=0.03, seed=3)
    fit = fit_curve(curve(compute, points, np.full(10, 0.03)))
    drawn = posterior(fit, DEFAULT, size=8000).parameters()
    theta_MP, weight_M = brute_force_posterior(fit)
    assert 1 / (weight_M**2).sum() > 300, "the brute force is too thin to compare with"
    at = [0.1, 0.5, 0.9]
    slow_A = weighted_quantiles(theta_MP[:, 1], weight_M, at)
    slow_B = weighted_quantiles(np.exp(theta_MP[:, 2]), weight_M, at)
    np.testing.assert_allclose(np.quantile(drawn["A"], at), slow_A, atol=0.08 * (slow_A[2] - slow_A[0]) + 0.005)
    np.testing.assert_allclose(np.quantile(drawn["B"], at), slow_B, atol=0.10 * (slow_B[2] - slow_B[0]))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=12).filter(any), st.integers(1, 60), st.integers(0, 99))
def test_every_index_is_drawn_as_often_as_its_weight_says_to_less_than_one(
    weight: list[float], size: int, seed: int
) -> None:
    drawn = systematic(np.array(weight), size, np.random.default_rng(seed))
    due = size * np.array(weight) / sum(weight)
    assert len(drawn) == size
    assert (np.abs(np.bincount(drawn, minlength=len(weight)) - due) < 1 + 1e-9).all()


@given(st.floats(-0.5, 1.5), st.floats(0.3, 3), st.floats(0.2, 1), st.integers(1, 40), st.integers(0, 99))
def test_each_equal_part_of_a_cut_normal_has_one_draw(
    mean: float, deviation: float, upper: float, size: int, seed: int
) -> None:
    drawn = np.sort(_cut_normal(np.full(size, mean), np.full(size, deviation), upper, np.random.default_rng(seed)))
    low, high = (norm.cdf((end - mean) / deviation) for end in (0, upper))
    part = (norm.cdf((drawn - mean) / deviation) - low) / (high - low) * size - np.arange(size)
    assert (part > -1e-6).all()
    assert (part < 1 + 1e-6).all()


def test_an_interval_holds_the_estimate_and_grows_with_its_level() -> None:
    compute, points = run_points(25, noise=0.01, seed=1)
    fit = fit_curve(curve(compute, points, np.full(26, 0.01)))
    draws = posterior(fit, DEFAULT)
    found = [intervals(fit, draws, level) for level in (0.5, 0.8, 0.95)]
    for name in ("A", "B", "C_mid"):
        ends = np.array([each[name] for each in found])
        assert (np.diff(ends[:, 0]) <= 1e-9).all()
        assert (np.diff(ends[:, 1]) >= -1e-9).all()
        assert ends[0, 0] <= middles(fit, draws)[name] <= ends[0, 1]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.floats(0.1, 1.0))
def test_forecasts_rise_with_compute_and_stay_rates(seed: int, C_mid: float) -> None:
    compute, points = run_points(15, noise=0.01, seed=seed, C_mid=C_mid)
    analysis = analyse(curve(compute, points, np.full(16, 0.01)))
    found = forecast(analysis, [0.5, 1, 2, 5, 50])
    values = [one.value for one in found]
    if analysis.draws().changed < 0.05:  # a late fall is no rise
        assert values == sorted(values)
    for one in found:
        low, high = one.interval
        assert 0 <= low <= one.curve_interval[0] + 0.02
        assert one.curve_interval[0] <= one.value <= one.curve_interval[1]
        assert high <= 1


@settings(max_examples=5, deadline=None)
@given(st.floats(0.08, 0.6), st.floats(0.9, 2.5))
def test_intervals_shrink_with_more_evaluations_and_with_more_samples(C_mid: float, B: float) -> None:
    def width(n: int, stderr: float) -> float:
        item = curve(*run_points(n, C_mid=C_mid, B=B), np.full(n + 1, stderr))
        low, high = np.quantile(posterior(fit_curve(item), DEFAULT).parameters()["A"], [0.1, 0.9])
        return float(high - low)

    assert width(60, 0.01) < width(15, 0.01)
    assert width(20, 0.004) < width(20, 0.016)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.floats(1e-4, 1e6))
def test_intervals_do_not_depend_on_the_unit_of_compute(scale: float) -> None:
    compute, points = run_points(15, noise=0.01)
    here, there = (analyse(curve(c, points, np.full(16, 0.01))) for c in (compute, compute * scale))
    assert there.intervals["A"] == pytest.approx(here.intervals["A"], abs=0.01)
    assert there.intervals["C_mid"] == pytest.approx(np.array(here.intervals["C_mid"]) * scale, rel=0.05)
    needed = compute_for(here, 0.6).compute
    assert needed is not None
    assert compute_for(there, 0.6).compute == pytest.approx(scale * needed, rel=0.02)


def test_one_refused_curve_does_not_stop_the_others() -> None:
    good, bad = curve(*run_points(10), task="good"), curve(range(9), [0.5] * 9, task="bad")
    analyses, refused = analyse_all([bad, good])
    assert [item.fit.curve.task for item in analyses] == ["good"]
    assert refused[0]["task"] == "bad"
    assert "constant" in refused[0]["reason"]


def test_the_same_points_give_the_same_answer() -> None:
    item = curve(*run_points(15, noise=0.01))
    assert analyse(item).as_json() == analyse(item).as_json()


@pytest.mark.slow
def test_seeds_that_differ_widen_the_interval_of_their_mean() -> None:
    compute = np.arange(21) / 20
    rng = np.random.default_rng(1)

    def pooled(spread: float) -> Analysis:
        rows = [rate(compute, A=0.7 + spread * step) + rng.normal(0, 0.003, 21) for step in (-1, 0, 1)]
        seeds = np.repeat([0, 1, 2], 21).tolist()
        return analyse(curve(np.tile(compute, 3), np.concatenate(rows), np.full(63, 0.003), seed=seeds))

    alike, apart = pooled(0.0), pooled(0.02)
    widths = [np.ptp(each.intervals["A"]) for each in (alike, apart)]
    assert widths[1] > 1.5 * widths[0]
    assert np.median(apart.draws().sigmoid.spread_M) > np.median(alike.draws().sigmoid.spread_M)
    assert apart.intervals["A"][0] < 0.7 < apart.intervals["A"][1]


def test_a_seed_without_points_in_the_window_is_no_seed_of_the_fit() -> None:
    compute, points = run_points(12, noise=0.004)
    seeds = np.where(compute < 0.2, "stopped", "went on").tolist()
    fit = fit_curve(curve(compute, points, seed=seeds), since=0.3, r0=0.2)
    assert fit.curve.seeds == ("went on",)
    assert len(posterior(fit, DEFAULT, size=20)) == 20


def test_the_prior_is_shown_when_it_drives_the_answer_and_can_be_switched_off() -> None:
    (published,) = read_sources([Path(__file__).parents[2] / "tools/data/scalerl_dense.csv"])
    early = analyse(published, Options(since=1500, until=16_000))
    assert any("prior drives" in warning for warning in early.warnings)
    assert set(early.without_prior) == {"R0", "A", "B", "C_mid"}
    without_prior = analyse(published, Options(since=1500, until=16_000, prior=None))
    assert without_prior.without_prior == {}
    assert not any("prior" in warning for warning in without_prior.warnings)
    late = analyse(curve(*run_points(40, noise=0.004, C_mid=0.1), np.full(41, 0.004)))
    assert not any("prior" in warning for warning in late.warnings)
    exact = analyse(curve(*run_points(20)))
    assert not any("prior" in warning for warning in exact.warnings)


def test_targets_within_beyond_and_behind() -> None:
    analysis = analyse(curve(*run_points(40, noise=0.003, C_mid=0.1), np.full(41, 0.003)))
    within = compute_for(analysis, 0.65)
    expected = 0.1 * ((0.7 - 0.2) / (0.65 - 0.2) - 1) ** (-1 / 1.6)
    assert within.compute == pytest.approx(expected, rel=0.1)
    low, high = within.interval
    assert within.compute is not None
    assert low is not None
    assert high is not None
    assert low < within.compute < high
    beyond = compute_for(analysis, 0.9)
    assert beyond.compute is None
    assert beyond.reading.startswith("not reachable: the curve stays below it with")
    assert compute_for(analysis, 0.3).reading == "reached already"


def test_extend_while_it_rises_and_stop_when_it_does_not() -> None:
    early = extend_or_stop(analyse(curve(*run_points(20, noise=0.003, C_mid=0.8), np.full(21, 0.003))))
    late = extend_or_stop(analyse(curve(*run_points(40, noise=0.003, C_mid=0.03), np.full(41, 0.003))))
    assert early.reading.startswith("extend")
    assert late.reading.startswith("stop")
    assert early.gain_per_hour > late.gain_per_hour > 0


def test_back_test_scores_the_second_half_with_a_fit_of_the_first() -> None:
    item = curve(*run_points(40, noise=0.004, C_mid=0.15), np.full(41, 0.004))
    test = back_test(item, Options())
    assert test is not None
    assert (test.until, test.n_scored) == (0.5, 20)
    assert test.measured == pytest.approx(item.pass_rate_N[-20:].mean())
    assert test.mean_abs_error < 0.02
    assert back_test(curve(*run_points(5)), Options()) is None


def test_a_back_tests_interval_holds_pass_rates_only() -> None:
    compute = np.arange(26) / 25
    test = back_test(curve(compute, np.where(compute < 0.25, 0.0, 1.0)), Options())
    assert test is not None
    assert 0 <= test.interval[0] <= test.interval[1] <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: forecast(a, [-1.0]), "give positive numbers"),
        (lambda a: compute_for(a, 1.2), "no pass rate"),
        (lambda a: Options(level=1.5), "no probability"),
        (lambda a: Options(since=5, until=1), "empty"),
        (lambda a: Options(method="guess"), "unknown method"),  # type: ignore[arg-type]  # no method
    ],
)
def test_questions_without_sense_are_refused(call: Callable[[Analysis], object], message: str) -> None:
    analysis = analyse(curve(*run_points(12, noise=0.01)))
    with pytest.raises(LabError, match=message):
        call(analysis)


@pytest.mark.slow
def test_intervals_cover_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    covered = []
    for seed in range(40):
        truth = {"R0": rng.uniform(0.05, 0.4), "A": rng.uniform(0.55, 0.9), "C_mid": rng.uniform(0.08, 0.6)}
        compute, points = run_points(int(rng.integers(15, 60)), noise=0.008, seed=seed, **truth)
        fit = fit_curve(curve(compute, points, np.full(len(compute), 0.008)))
        low, high = intervals(fit, posterior(fit, fit.prior), 0.8)["A"]
        covered.append(low <= truth["A"] <= high)
    assert 0.65 <= np.mean(covered) <= 0.98


def test_fit_answers_in_the_words_of_the_trade() -> None:
    import scalelab.curves.analysis as module

    assert doctest.testmod(module).failed == 0
    compute, points = run_points(15, noise=0.01)
    found = fit({"compute": compute, "pass_rate": points, "stderr": np.full(16, 0.01)}, level=0.9)
    assert found.params == fit(compute, points, np.full(16, 0.01)).params
    assert found.conf_int()["A"][0] < found.params["A"] < found.conf_int()["A"][1]
    (row,) = found.predict(2.0)
    (one,) = forecast(found, [2.0])
    assert (row["value"], row["low"], row["high"]) == (one.value, *one.interval)
    assert "90%" in found.summary()
    with pytest.raises(LabError, match="no pass_rate to fit"):
        fit({"compute": [1, 2, 3]})
