"""One set of draws behind every sentence: nothing that is printed about a curve contradicts anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curve_tables.contradictions import of_comparison, of_fit
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.curves import Analysis, FitError, Options, analyse, compare, curve, pool_seeds, read_sources
from scalelab.curves.fitting.density import Change, Density
from scalelab.curves.fitting.joint import fit_curve
from scalelab.curves.fitting.noise import DEFAULT
from tests.helpers.curve_points import run_points

ROOT = Path(__file__).parents[2]
QUICK = Options(checks=False)

logs = st.fixed_dictionaries(
    {
        "points": st.integers(5, 30),
        "noise": st.sampled_from([0.002, 0.01, 0.04]),
        "seed": st.integers(0, 10_000),
        "A": st.floats(0.4, 1.0),
        "B": st.floats(0.5, 5.0),
        "C_mid": st.floats(0.03, 2.0),
        "late": st.sampled_from([0.0, 0.0, 0.15, -0.2]),
        "known": st.booleans(),
    }
)


def read(log: dict[str, Any], run: str) -> Analysis | None:
    """The analysis of a random log; None where it carries no curve."""
    compute, points = run_points(log["points"], log["noise"], log["seed"], A=log["A"], B=log["B"], C_mid=log["C_mid"])
    points = np.clip(points + log["late"] * (compute > 0.6), 0, 1)
    stderr = np.full(len(points), log["noise"]) if log["known"] else None
    try:
        return analyse(curve(compute, points, stderr, run=run), QUICK)
    except FitError:
        return None


@settings(max_examples=12, deadline=None)
@given(logs, logs)
def test_random_logs_contradict_nothing(first: dict, second: dict) -> None:
    found = [item for item in (read(first, "a"), read(second, "b")) if item is not None]
    for item in found:
        assert of_fit(item) == []
    if len(found) == 2:
        for at in (None, 3.0):
            assert of_comparison(compare(found, at=at)[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_committed_run_contradicts_itself(every: int) -> None:
    curves = pool_seeds(
        read_sources([ROOT / "docs" / "study" / "runs", *(ROOT / "docs" / "quickstart").glob("seed?")])
    )[0]
    hours = [item for item in curves if item.unit == "GPU-hours"]
    analyses = [analyse(item, QUICK) for item in curves[::every]]
    wrong = [f"{item.fit.curve.name}: {text}" for item in analyses for text in of_fit(item)]
    alike = [item for item in analyses if item.fit.curve.unit == "GPU-hours"]
    wrong += [text for one in compare(alike) for text in of_comparison(one)]
    assert len(hours) > 80
    assert wrong == []


def test_a_contradiction_would_be_found() -> None:
    """The check itself: an analysis whose interval, and one whose curves, were tampered with."""
    from dataclasses import replace

    found = analyse(curve(*run_points(20, 0.01), np.full(21, 0.01)), QUICK)
    moved = replace(found, intervals=found.intervals | {"A": (0.0, 0.1)})
    assert any("lies outside of" in text for text in of_fit(moved))
    [one] = compare([found, analyse(curve(*run_points(20, 0.01, seed=5), np.full(21, 0.01), run="b"), QUICK)])
    swapped = replace(one, entries=one.entries[::-1])
    assert of_comparison(swapped) == ["the ranking is not that of the rates beside it"]


def test_the_same_points_give_the_same_draws() -> None:
    item = curve(*run_points(15, 0.01), np.full(16, 0.01))
    one, other = (analyse(item, QUICK).draws().value([0.5, 2.0]) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_a_late_change_integrates_out_as_in_dense_algebra() -> None:
    """Evidence and height of a change, for given noise, against the dense covariance with κ² h hᵀ in it."""
    compute, points = run_points(14, 0.01, seed=2)
    fit = fit_curve(curve(compute, points, np.full(15, 0.01)))
    change = Change(float(np.log(0.7) - fit.log_reference), 16.0)
    density = Density(fit, DEFAULT, change=change)
    cells = density.evaluate(fit.theta_P[None, 2:])
    plain = (cells.h_X == 0) & (cells.t_X == 0)
    sigma_N = fit.sigma_N / np.sqrt(fit.weight_N)
    feature_N = 1 / (1 + (0.7 / np.maximum(compute, 1e-9)) ** 16.0)
    features_NL = fit.model.features(fit.theta_P[2:], density.u_N)
    dense_NN = np.diag(sigma_N**2) + 0.1**2 * np.outer(feature_N, feature_N)
    gram_LL = features_NL.T @ np.linalg.solve(dense_NN, features_NL) + 0.01 * np.eye(2)
    mean_L = np.linalg.solve(gram_LL, features_NL.T @ np.linalg.solve(dense_NN, points))
    np.testing.assert_allclose(cells.mean_XL[plain][0], mean_L, atol=1e-6)
    assert cells.change_XQ is not None
    by_first, by_second, by_rate, own = cells.change_XQ[plain][0]
    white = feature_N / sigma_N**2
    np.testing.assert_allclose([by_first, by_second], white @ features_NL, rtol=1e-9)
    np.testing.assert_allclose([by_rate, own], [white @ points, white @ feature_N], rtol=1e-9)


def test_a_random_walk_grows_with_the_root_of_compute_and_other_noise_does_not() -> None:
    draws = analyse(curve(*run_points(40, 0.01), np.full(41, 0.01)), QUICK).draws().sigmoid
    assert draws.walk_M is not None
    white_M = np.sqrt(np.maximum(draws.noise_M**2 - draws.drift_M**2, 0))
    slow_M = np.where(draws.walk_M, np.hypot(white_M, 2 * draws.drift_M), draws.noise_M)
    assert draws.walk_M.any()
    np.testing.assert_allclose(draws.noise([4.0])[:, 0], slow_M, rtol=1e-9)
    np.testing.assert_allclose(draws.noise([1.0])[:, 0], draws.noise_M, rtol=1e-9)
