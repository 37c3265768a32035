"""Other shapes than the sigmoid: their definitions, and the intervals that allow for them."""

from __future__ import annotations

import numpy as np
import pytest

from scalelab.curves import Options, analyse, curve, forecast
from scalelab.curves.analysis import back_test
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.fitting.shapes import OTHERS, Rise, burr, widen
from tests.helpers.curve_points import rate, run_points


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: model.name)
def test_every_rise_makes_half_of_its_gain_at_c_mid_and_its_inverse_undoes_it(model: Rise) -> None:
    shape_S, u_N = np.array([0.3, 0.7]), np.linspace(-6, 8, 57)
    rise_N = model.features(shape_S, u_N)[:, 1]
    assert (np.diff(rise_N) >= 0).all()
    assert rise_N[0] < 0.1
    theta_P = np.array([0.2, 0.8, *shape_S])
    for share in (0.1, 0.5, 0.85):
        u = float(model.inverse(theta_P, 0.2 + 0.6 * share))
        assert model.features(shape_S, np.array([u]))[0, 1] == pytest.approx(share, abs=1e-3)
    if model.kind != "two rises":
        half, after = model.features(shape_S, np.array([0.7, 0.7 + 1e-4]))[:, 1]
        assert half == pytest.approx(0.5)
        assert (after - half) / 1e-4 == pytest.approx(np.exp(0.3) / 4, rel=1e-3)


def test_the_burr_rise_with_tail_one_is_the_sigmoid() -> None:
    shape_S, u_N = np.array([0.4, -0.2]), np.linspace(-5, 5, 21)
    burr_NL = Rise("burr", "x", burr(1.0)).features(shape_S, u_N)
    np.testing.assert_allclose(burr_NL, SIGMOID.features(shape_S, u_N), atol=1e-12)


def gompertz(compute, R0=0.2, A=0.7, b=4.0, speed=6.0):
    return R0 + (A - R0) * (np.exp(-b * np.exp(-speed * np.asarray(compute))) - np.exp(-b)) / (1 - np.exp(-b))


def test_a_curve_that_is_no_sigmoid_is_noticed_and_its_forecast_holds() -> None:
    compute = np.arange(41) / 40
    noise = np.random.default_rng(1).normal(0, 0.003, 41)
    found = analyse(curve(compute, gompertz(compute) + noise, np.full(41, 0.003)))
    assert found.shapes is not None
    assert found.shapes.probability[0] < 0.2
    assert any("favour another shape" in warning for warning in found.warnings)
    (one,) = forecast(found, [4.0])
    assert one.curve_interval[0] <= 0.7 <= one.curve_interval[1]


@pytest.mark.slow
def test_intervals_of_other_shapes_hold_more_often_than_the_sigmoids_alone() -> None:
    compute, wide, alone = np.arange(21) / 20, [], []
    for seed in range(14):
        rng = np.random.default_rng(seed)
        b, speed = rng.uniform(2, 6), rng.uniform(4, 9)
        points = gompertz(compute, b=b, speed=speed) + rng.normal(0, 0.006, 21)
        found = analyse(curve(compute, points, np.full(21, 0.006)))
        (one,) = forecast(found, [4.0])
        low, high = np.quantile(found.draws.value([4.0])[:, 0], [0.1, 0.9])
        wide.append(one.curve_interval[0] <= 0.7 <= one.curve_interval[1])
        alone.append(low <= 0.7 <= high)
    assert np.mean(wide) >= 0.6
    assert np.mean(wide) > np.mean(alone) + 0.15


def test_the_centre_of_a_forecast_stays_the_sigmoids() -> None:
    item = curve(*run_points(25, noise=0.008), np.full(26, 0.008))
    both, alone = analyse(item), analyse(item, Options(shapes=False))
    for wider, narrower in zip(forecast(both, [2.0, 6.0]), forecast(alone, [2.0, 6.0])):
        assert wider.value == narrower.value
        assert wider.curve_interval[0] <= wider.value <= wider.curve_interval[1]
    assert alone.shapes is None


def test_intervals_are_stretched_about_the_sigmoids_median() -> None:
    draws_MC = np.random.default_rng(0).normal(0.5, 0.01, (4000, 1))
    low, high = widen(draws_MC, draws_MC, 0.8)
    wide_low, wide_high = widen(draws_MC, draws_MC, 0.8, stretch=2.0)
    middle = np.median(draws_MC)
    assert wide_high - middle == pytest.approx(2 * (high - middle))
    assert middle - wide_low == pytest.approx(2 * (middle - low))


@pytest.mark.slow
def test_the_back_tests_statement_holds_as_often_as_it_says() -> None:
    inside = []
    for seed in range(40):
        item = curve(*run_points(24, noise=0.008, seed=seed, C_mid=0.15), np.full(25, 0.008))
        test = back_test(item, Options(shapes=False))
        assert test is not None
        assert 0 <= test.percentile <= 1
        inside.append(test.inside)
    assert 0.65 <= np.mean(inside) <= 0.98


def test_a_curve_that_jumps_after_half_of_the_budget_widens_what_lies_beyond() -> None:
    compute = np.arange(41) / 40
    points = rate(compute, A=0.6, C_mid=0.1) + np.where(compute > 0.5, 0.08, 0.0)
    found = analyse(curve(compute, points + np.random.default_rng(0).normal(0, 0.004, 41), np.full(41, 0.004)))
    assert found.backtest is not None
    assert not found.backtest.inside
    assert found.shapes is not None
    assert found.shapes.stretch > 1.5
