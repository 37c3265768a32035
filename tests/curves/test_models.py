"""The two curves: derivatives against differences, inverses, limits; and the batched solver against SciPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear

from scalelab.curves import curve
from scalelab.curves.fitting.models import LOG_ZERO, POWER, SIGMOID, Model, jacobian, log_compute, value
from scalelab.curves.fitting.problem import influence, make_problem, minimise, solve, solve_box
from tests.helpers.curve_points import run_points

U_N = np.linspace(-2.5, 2.5, 9)

sigmoids = st.tuples(st.floats(0, 0.5), st.floats(0.5, 1), st.floats(-1, 1.5), st.floats(-2, 2)).map(np.array)
powers = st.tuples(st.floats(0.3, 1), st.floats(0.01, 0.5), st.floats(-2, 1)).map(np.array)
curves = st.one_of(sigmoids.map(lambda theta: (SIGMOID, theta)), powers.map(lambda theta: (POWER, theta)))


def differences(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a vector function of a vector, `[out, in]`."""
    columns = [(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))]
    return np.stack(columns, axis=-1)


@given(curves)
def test_jacobian_is_the_derivative(case: tuple[Model, np.ndarray]) -> None:
    model, theta = case
    slow = differences(lambda t: value(model, t, U_N), theta)
    np.testing.assert_allclose(jacobian(model, theta, U_N), slow, atol=2e-6, rtol=1e-5)


@given(curves, st.floats(0.01, 0.99))
def test_inverse_undoes_the_curve(case: tuple[Model, np.ndarray], share: float) -> None:
    model, theta = case
    at = -2 + 4 * share
    rate = float(value(model, theta, np.array([at]))[0])
    ends = value(model, theta, np.array([at - 1e-3, at + 1e-3]))
    if ends[1] - ends[0] > 1e-9:
        assert float(model.inverse(theta, rate)) == pytest.approx(at, abs=1e-3)


def test_inverse_of_what_is_never_or_always_reached() -> None:
    theta_BP = np.array([[0.2, 0.6, 0.5, 0.0]])
    assert SIGMOID.inverse(theta_BP, 0.7)[0] == np.inf
    assert SIGMOID.inverse(theta_BP, 0.1)[0] == LOG_ZERO
    assert POWER.inverse(np.array([[0.6, 0.1, 0.0]]), 0.7)[0] == np.inf


@given(sigmoids)
def test_sigmoid_is_r0_at_zero_and_a_at_infinity(theta: np.ndarray) -> None:
    u = log_compute([0.0, 1e300], 1.0)
    np.testing.assert_allclose(value(SIGMOID, theta, u), theta[:2], atol=1e-12)
    middle = value(SIGMOID, theta, theta[3:4])
    np.testing.assert_allclose(middle, theta[:2].mean(), atol=1e-12)


def test_sigmoid_tends_to_the_power_law() -> None:
    R0, A, B, C_mid = 0.4, 0.65, 1.7, 9000.0
    compute = np.array([1e6, 3e6])
    sigmoid = value(SIGMOID, np.array([R0, A, np.log(B), np.log(C_mid)]), np.log(compute))
    power = value(POWER, np.array([A, (A - R0) * C_mid**B, np.log(B)]), np.log(compute))
    np.testing.assert_allclose(A - sigmoid, A - power, rtol=1e-2)


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_batched_solver_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth_BP = np.stack(
        [rng.uniform(0.1, 0.4, 5), rng.uniform(0.6, 0.9, 5), rng.uniform(0, 1, 5), rng.uniform(-1, 1, 5)], 1
    )
    rate_BN = value(SIGMOID, truth_BP, U_N) + rng.normal(0, 0.01, (5, len(U_N)))
    lower, upper = np.array([0, 0, -1.5, -4.0]), np.array([1, 1, 2.5, 4.0])

    solution = minimise(
        lambda theta_BP, at_B: (value(SIGMOID, theta_BP, U_N) - rate_BN[at_B], jacobian(SIGMOID, theta_BP, U_N)),
        truth_BP, lower, upper,
    )  # fmt: skip
    for theta_P, cost, rate_N, start_P in zip(solution.theta_BP, solution.cost_B, rate_BN, truth_BP):
        slow = least_squares(lambda t, r=rate_N: value(SIGMOID, t, U_N) - r, start_P, bounds=(lower, upper), xtol=1e-12)
        assert cost <= slow.cost * (1 + 1e-6) + 1e-12
        assert (theta_P >= lower).all()
        assert (theta_P <= upper).all()


def test_a_parameter_with_equal_bounds_stays_there() -> None:
    theta = np.array([[0.2, 0.7, 0.5, 0.0]])
    rate_N = value(SIGMOID, theta[0], U_N)
    low, high = np.array([0.3, 0, -2, -3.0]), np.array([0.3, 1, 2, 3.0])
    solution = minimise(lambda t, _: (value(SIGMOID, t, U_N) - rate_N, jacobian(SIGMOID, t, U_N)), theta, low, high)
    assert solution.theta_BP[0, 0] == 0.3


@given(st.lists(st.floats(-2, 2), min_size=6, max_size=6), st.integers(0, 1000))
def test_two_coefficients_in_a_box_agree_with_scipy(entries: list[float], seed: int) -> None:
    design = np.array(entries).reshape(3, 2) + 0.1 * np.random.default_rng(seed).standard_normal((3, 2))
    target = np.random.default_rng(seed + 1).uniform(-1, 2, 3)
    low, high = np.zeros(2), np.ones(2)
    fast = solve_box((design.T @ design)[None], (design.T @ target)[None], low, high)[0]
    slow = lsq_linear(design, target, (low, high)).x
    assert np.sum((design @ fast - target) ** 2) <= np.sum((design @ slow - target) ** 2) + 1e-8


@given(st.floats(-100, 100), st.floats(0.5, 10))
def test_an_outlier_counts_as_much_as_a_point_at_the_cutoff(residual: float, cutoff: float) -> None:
    weighted = abs(residual) * np.sqrt(influence(np.array([residual]), cutoff))[0]
    assert weighted == pytest.approx(min(abs(residual), cutoff))


@pytest.mark.parametrize("r0", [None, 0.2])
@pytest.mark.parametrize("stated", [None, 0.02, 0.005])
def test_without_a_prior_the_noise_is_the_scatter_over_points_beyond_the_parameters(
    stated: float | None, r0: float | None
) -> None:
    compute, points = run_points(8, noise=0.02)
    errors = None if stated is None else np.full(len(points), stated)
    problem, _ = make_problem(curve(compute, points, errors), SIGMOID, r0, None)
    theta_P, scale, _ = solve(problem)
    squares = float(((points - value(SIGMOID, theta_P, problem.u_N)) ** 2).sum())
    spare = len(points) - (4 if r0 is None else 3)
    assert scale * (stated or 1) == pytest.approx((squares / spare) ** 0.5)
