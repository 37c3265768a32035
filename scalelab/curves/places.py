"""Places on scaling axes: the value of each axis there, and the curves that its runs leave possible.

θ = (logit R0, logit A, ln B, ln C_mid). Axes of arrays: `_D` draws of one run, `_M` equally likely curves, `_J` the
four parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.models import SIGMOID, logistic, value
from scalelab.errors import LabError


@dataclass(frozen=True)
class Place:
    """One place on the axes, with the curves that its runs leave possible.

    Attributes:
        name: of the run.
        at: value on every axis.
        theta_DJ: equally likely θ.
        log_prior_D: logarithm of the density of the prior behind them, up to a constant.
        end: largest compute evaluated.
    """

    name: str
    at: Mapping[str, float]
    theta_DJ: Array
    log_prior_D: Array
    end: float = float("nan")


def unplaced(item: Analysis) -> str:
    """Reason for which a fitted run has no place in a law; empty if it has one."""
    return f"{item.fit.curve.name} forgets, and laws are of curves that rise: leave it out" if item.falls else ""


def place_of(item: Analysis, at: Mapping[str, float]) -> Place:
    """The place of a fitted run, given its value on every axis.

    Raises:
        LabError: the fit is not a joint one of a sigmoid with its posterior, or it falls.
    """
    draws = item.draws().sigmoid
    if draws.model is not SIGMOID:
        raise LabError("laws are of sigmoids with their posterior: use --method joint")
    if reason := unplaced(item):
        raise LabError(reason)
    R0_D, A_D, B_D, C_mid_D = SIGMOID.readable(draws.theta_MP, draws.log_reference).T
    theta_DJ = np.stack([_logit(R0_D), _logit(A_D), np.log(B_D), np.log(C_mid_D)], axis=1)
    slope_D = np.log(np.clip(A_D * (1 - A_D), 1e-4, None)) + np.log(np.clip(R0_D * (1 - R0_D), 1e-4, None))
    log_prior_D = slope_D  # flat in R0 and A: in their logits, the density is their slope
    if item.fit.prior is not None:
        u_end = float(np.log(item.fit.window[1]) - draws.log_reference)
        mean_S, deviation_S = item.fit.prior.shape(SIGMOID, u_end)
        log_prior_D = log_prior_D - 0.5 * (((draws.theta_MP[:, 2:] - mean_S) / deviation_S) ** 2).sum(1)
    return Place(item.fit.curve.run, dict(at), theta_DJ, log_prior_D, item.fit.window[1])


def rates(parameters_MJ: Array, compute: float) -> Array:
    """Pass rate `[M]` at some compute of curves given by R0, A, B, C_mid."""
    R0_M, A_M, B_M, C_mid_M = parameters_MJ.T
    theta_MP = np.stack([R0_M, np.maximum(A_M, R0_M), np.log(B_M), np.log(C_mid_M)], axis=1)
    return value(SIGMOID, theta_MP, np.array([np.log(compute)]))[:, 0]


def readable(theta_MJ: Array) -> Array:
    """R0, A, B, C_mid of θ."""
    return np.concatenate([logistic(theta_MJ[..., :2]), np.exp(theta_MJ[..., 2:])], axis=-1)


def _logit(share: Array | float) -> Array:
    kept = np.clip(share, 1e-4, 1 - 1e-4)
    result: Array = np.log(kept / (1 - kept))
    return result
