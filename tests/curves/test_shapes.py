"""Other shapes than the sigmoid: their definitions, and the intervals that allow for them."""

from __future__ import annotations

import numpy as np
import pytest

from scalelab.curves import Options, analyse, curve, forecast
from scalelab.curves.checks import back_test
from scalelab.curves.fitting.models import SIGMOID
from scalelab.curves.fitting.noise import THIN, SeedNoise, drift_kernel, drifts
from scalelab.curves.fitting.shapes import OTHERS, Rise, burr
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
    if not model.name.startswith("two rises"):
        half, after = model.features(shape_S, np.array([0.7, 0.7 + 1e-4]))[:, 1]
        assert half == pytest.approx(0.5)
        assert (after - half) / 1e-4 == pytest.approx(np.exp(0.3) / 4, rel=1e-3)


def test_the_burr_rise_with_tail_one_is_the_sigmoid() -> None:
    shape_S, u_N = np.array([0.4, -0.2]), np.linspace(-5, 5, 21)
    burr_NL = Rise("burr", 1.0, burr(1.0)).features(shape_S, u_N)
    np.testing.assert_allclose(burr_NL, SIGMOID.features(shape_S, u_N), atol=1e-12)


def gompertz(compute: np.ndarray, R0: float = 0.2, A: float = 0.7, b: float = 4.0, speed: float = 6.0) -> np.ndarray:
    return R0 + (A - R0) * (np.exp(-b * np.exp(-speed * np.asarray(compute))) - np.exp(-b)) / (1 - np.exp(-b))


def test_a_curve_that_is_no_sigmoid_is_noticed_and_its_forecast_holds() -> None:
    compute = np.arange(41) / 40
    noise = np.random.default_rng(1).normal(0, 0.003, 41)
    found = analyse(curve(compute, gompertz(compute) + noise, np.full(41, 0.003)))
    assert found.draws().probability[0] < 0.2
    assert any("favour another shape" in warning for warning in found.warnings)
    (one,) = forecast(found, [4.0])
    assert one.curve_interval[0] <= 0.7 <= one.curve_interval[1]


@pytest.mark.slow
def test_intervals_of_other_shapes_hold_more_often_than_the_sigmoids_alone() -> None:
    compute, wide, sigmoid_only = np.arange(21) / 20, [], []
    for seed in range(14):
        rng = np.random.default_rng(seed)
        b, speed = rng.uniform(2, 6), rng.uniform(4, 9)
        points = gompertz(compute, b=b, speed=speed) + rng.normal(0, 0.006, 21)
        found = analyse(curve(compute, points, np.full(21, 0.006)))
        (one,) = forecast(found, [4.0])
        low, high = np.quantile(found.draws().sigmoid.value([4.0])[:, 0], [0.1, 0.9])
        wide.append(one.curve_interval[0] <= 0.7 <= one.curve_interval[1])
        sigmoid_only.append(low <= 0.7 <= high)
    assert np.mean(wide) >= 0.6
    assert np.mean(wide) > np.mean(sigmoid_only) + 0.15


def test_growth_without_end_is_a_line_in_log_compute_and_its_forecast_holds() -> None:
    compute, rng = np.arange(41) / 40, np.random.default_rng(3)
    truth = lambda C: 0.2 + 0.1 * np.log1p(20 * np.asarray(C))  # noqa: E731
    found = analyse(curve(compute, truth(compute) + rng.normal(0, 0.004, 41), np.full(41, 0.004)))
    assert found.draws().endless > 0.3
    for one in forecast(found, [2.0, 4.0]):
        low, high = one.curve_interval
        assert low - 0.005 <= truth(one.at) <= high + 0.005
    assert not found.stands
    (far,) = forecast(found, [100.0])
    by = f"{far.value - found.params['A']:.3f} beyond A"
    said = f"curves of all shapes come to {far.value:.3f} within 100 times the compute, {by}"
    assert said in found.asymptote_text()


@pytest.mark.parametrize(("height", "at"), [(0.15, 0.75), (-0.2, 0.7)])
def test_a_late_change_is_found_and_kept(height: float, at: float) -> None:
    compute, rng = np.arange(41) / 40, np.random.default_rng(5)
    step = height / (1 + (at / np.maximum(compute, 1e-9)) ** 16)
    found = analyse(curve(compute, rate(compute, C_mid=0.08) + step + rng.normal(0, 0.006, 41), np.full(41, 0.006)))
    assert found.draws().changed > 0.5
    end = float(rate([2.0], C_mid=0.08)[0]) + height
    low, high = (float(ends[0]) for ends in found.value_interval([2.0]))
    assert low - 0.01 <= end <= high + 0.01


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


@pytest.mark.parametrize("thin", [False, True])
def test_inner_products_are_those_of_the_inverse_covariance(thin: bool) -> None:
    rng = np.random.default_rng(0)
    compute_N, sigma_N = np.arange(1.0, 13.0), rng.uniform(0.01, 0.03, 12)
    noise = SeedNoise(compute_N, sigma_N, 0.02, 12.0)
    many_GN, others_GN, one_N = rng.random((5, 12)), rng.random((5, 12)), rng.random(12)
    found = noise.products([(many_GN, one_N), (one_N, many_GN), (many_GN, others_GN), (one_N, one_N)], thin)
    kinds = [kind for at, kind in enumerate(drifts()) if not thin or at in THIN]
    for at, (size, length, _) in enumerate(kinds):
        kernel_NN = drift_kernel(compute_N, length, 12.0)
        inverse_NN = np.linalg.inv(np.diag(sigma_N**2) + (size * 0.02) ** 2 * kernel_NN)
        wanted = [many_GN @ inverse_NN @ one_N] * 2
        wanted += [((many_GN @ inverse_NN) * others_GN).sum(1), np.array(one_N @ inverse_NN @ one_N)]
        for products, expected in zip(found, wanted):
            np.testing.assert_allclose(products[..., at], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
