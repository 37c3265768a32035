"""The paper's own fit, faithfully, to compare with (ScaleRL A.4): a grid over A and C_mid, SciPy's `curve_fit` for B.

Slow, without uncertainty, blind to standard errors, and its grid of C_mid is in the paper's GPU-hours. Use it to
reproduce published numbers; use the joint fit for anything else.
"""

from __future__ import annotations

import warnings

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.joint import Fit, FitError, refuse_flat, refuse_unfit, select_window
from scalelab.curves.fitting.models import SIGMOID
from scalelab.reading.curve import Curve

ASYMPTOTES = np.linspace(0.450, 0.800, 71)
"""A ∈ {0.450, 0.455, …, 0.800}."""

MIDPOINTS = np.linspace(100, 40_000, 100)
"""C_mid in GPU-hours."""


def fit_paper(item: Curve, *, since: float | None = None, until: float | None = None, r0: float | None = None) -> Fit:
    """Fit B for every pair of A and C_mid on the grid, and keep the pair with the smallest sum of squares.

    Args:
        item: the evaluations of one task.
        since: start of the window.
        until: end of the window.
        r0: R0, which the method takes as known; None takes the mean of the step-0 evaluations.

    Raises:
        FitError: too few points, R0 unknown, points that do not rise, or no pair could be fitted.
    """
    from scipy.optimize import OptimizeWarning, curve_fit

    points, rule = select_window(item, since, until)
    start_N = points.compute_N == 0
    if r0 is None and not start_N.any():
        raise FitError(f"{points.name}: the paper's method needs R0: give --r0, or a step-0 evaluation")
    r0 = float(points.pass_rate_N[start_N].mean()) if r0 is None else r0
    points = points.select(~start_N)
    refuse_unfit(points, SIGMOID, r0)
    best, best_rss = None, np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        for A in ASYMPTOTES:
            for C_mid in MIDPOINTS:

                def sigmoid(compute_N: Array, B: float, A: float = A, C_mid: float = C_mid) -> Array:
                    return r0 + (A - r0) / (1 + (C_mid / compute_N) ** B)

                try:
                    (B,), _ = curve_fit(sigmoid, points.compute_N, points.pass_rate_N, p0=[1.0])
                except RuntimeError:  # no convergence for this pair
                    continue
                rss = float(((points.pass_rate_N - sigmoid(points.compute_N, B)) ** 2).sum())
                if rss < best_rss and B > 0:
                    best, best_rss = (float(A), float(B), float(C_mid)), rss
    if best is None:
        raise FitError(f"{points.name}: no pair on the paper's grid could be fitted")
    fit = _as_fit(points, r0, best, best_rss, rule)
    refuse_flat(fit)
    return fit


def _as_fit(points: Curve, r0: float, best: tuple[float, float, float], rss: float, rule: str) -> Fit:
    A, B, C_mid = best
    warned = [
        f"{name} sits on the edge of the paper's grid"
        for name, at, grid in (("A", A, ASYMPTOTES), ("C_mid", C_mid, MIDPOINTS))
        if at in (grid[0], grid[-1])
    ]
    scale = float(np.sqrt(rss / max(len(points) - 3, 1)))
    return Fit(
        curve=points,
        model=SIGMOID,
        method="paper",
        theta_P=np.array([r0, A, np.log(B), np.log(C_mid)]),
        log_reference=0.0,
        fixed_r0=r0,
        sigma_N=np.full(len(points), scale),
        weight_N=np.ones(len(points)),
        offset_N=np.zeros(len(points)),
        scale=scale,
        window=(float(points.compute_N.min()), float(points.compute_N.max())),
        prior=None,
        window_rule=rule,
        warnings=(*points.notes, *warned),
    )
