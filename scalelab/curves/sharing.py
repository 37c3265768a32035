"""Joint fits of several curves that share parameters, and a test whether the points support that.

The tasks of one run may rise in parallel (one B, as tasks trained by one policy might), or the members of a family of
runs (batch size, generation length) may share what their axis does not touch. Both fits are made; a likelihood-ratio
test and two information criteria say which the points support.

Axes: `_J` curves, `_N` all points, `_P` the parameters of one curve, `_F` the free parameters of the joint fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalelab.curves.data import same_unit
from scalelab.curves.fitting.intervals import correlation_factor
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import SIGMOID, Array
from scalelab.curves.fitting.problem import Problem, make_problem, minimise
from scalelab.errors import LabError

SharingVerdict = Literal["shared", "separate", "undecided"]


@dataclass(frozen=True)
class JointFit:
    """Curves fitted together.

    Attributes:
        members: the separate fits.
        shared: names of the shared parameters; empty for separate fits without a prior.
        theta_JP: parameter vectors.
        stderr_JP: standard errors of R0, A, B, C_mid, by linearisation.
        log_reference: logarithm of the compute that all vectors are relative to.
        deviance: sum of squared standardised residuals, deflated for correlation between neighbours.
        free: number of free parameters.
        n_points: number of points.
    """

    members: tuple[Fit, ...]
    shared: tuple[str, ...]
    theta_JP: Array
    stderr_JP: Array
    log_reference: float
    deviance: float
    free: int
    n_points: int

    @property
    def aic(self) -> float:
        """Akaike's criterion with the small-sample correction."""
        return self.deviance + 2 * self.free * self.n_points / max(self.n_points - self.free - 1, 1)

    @property
    def bic(self) -> float:
        """Schwarz's criterion."""
        return self.deviance + self.free * float(np.log(self.n_points))

    def rows(self) -> list[tuple[str, str, dict[str, float], dict[str, float]]]:
        """Run, task, parameters and standard errors of every curve."""
        parameters_JP = SIGMOID.readable(self.theta_JP, self.log_reference)
        names = SIGMOID.parameters
        return [
            (fit.curve.run, fit.curve.task, dict(zip(names, values)), dict(zip(names, errors)))
            for fit, values, errors in zip(self.members, parameters_JP.tolist(), self.stderr_JP.tolist())
        ]


@dataclass(frozen=True)
class SharingTest:
    """Test of whether curves share parameters.

    Attributes:
        over: what the curves are: `tasks` or `runs`.
        name: the run or the task that they have in common.
        together: the fit with shared parameters.
        apart: the fit without.
        ratio: likelihood-ratio statistic (difference of the deviances).
        df: parameters saved by sharing.
        p_value: of the statistic by Fisher's F, the noise scale being estimated.
        supported: `shared` if test and both criteria agree on it, `separate` likewise, else `undecided`.
    """

    over: str
    name: str
    together: JointFit
    apart: JointFit
    ratio: float
    df: int
    p_value: float
    supported: SharingVerdict

    def as_json(self) -> dict[str, Any]:
        """The entry of `--json`."""
        return {
            "over": self.over,
            "name": self.name,
            "shared": list(self.together.shared),
            "likelihood_ratio": self.ratio,
            "df": self.df,
            "p_value": self.p_value,
            "aic": {"shared": self.together.aic, "separate": self.apart.aic},
            "bic": {"shared": self.together.bic, "separate": self.apart.bic},
            "supported": self.supported,
            "fits": {"shared": _entries(self.together), "separate": _entries(self.apart)},
        }


def sharing_test(
    fits: Sequence[Fit], shared: Sequence[str] = ("B",), over: str = "tasks", name: str = ""
) -> SharingTest:
    """Fit curves with and without shared parameters, and say which the points support.

    Args:
        fits: joint sigmoid fits of at least two curves.
        shared: what to share, of R0, A, B, C_mid.
        over: what the curves are, for the reader.
        name: what they have in common, for the reader.

    Raises:
        LabError: fewer than two sigmoid fits, unknown names, or different units of compute.
    """
    from scipy.special import fdtrc

    apart, together = fit_together(fits, ()), fit_together(fits, shared)
    df = apart.free - together.free
    ratio = max(together.deviance - apart.deviance, 0.0)
    spare = max(apart.n_points - apart.free, 1)
    p_value = float(fdtrc(df, spare, ratio / df)) if df > 0 else 1.0
    votes = (p_value > 0.05, together.aic <= apart.aic, together.bic <= apart.bic)
    supported: SharingVerdict = "shared" if all(votes) else "separate" if not any(votes) else "undecided"
    return SharingTest(over, name, together, apart, ratio, df, p_value, supported)


def fit_together(fits: Sequence[Fit], shared: Sequence[str]) -> JointFit:
    """Fit curves at once with some parameters in common, without a prior.

    Each curve keeps the noise scale and the outlier weights of its own fit, so that the deviances of different
    choices compare.
    """
    problems, log_reference = _pose_all(fits, shared)
    index_JP, free = _layout(len(fits), shared, [fit.fixed_r0 is not None for fit in fits])
    weight_J = [np.sqrt(fit.weight_N) / fit.sigma_N for fit in fits]
    sigma = [1 / weight_N for weight_N in weight_J]
    start_BF, lower_F, upper_F = _starts(fits, problems, index_JP, free, log_reference)

    def residuals(theta_BF: Array, _: np.ndarray) -> tuple[Array, Array]:
        parts, slopes = [], []
        for problem, index_P, sigma_N in zip(problems, index_JP, sigma):
            residual_BN, jacobian_BNP = problem.residuals(theta_BF[:, index_P], problem.rate_N[None], sigma_N)
            spread_PF = np.eye(free)[index_P]
            parts.append(residual_BN)
            slopes.append(jacobian_BNP @ spread_PF)
        return np.concatenate(parts, axis=1), np.concatenate(slopes, axis=1)

    solution = minimise(residuals, start_BF, lower_F, upper_F, max_steps=200)
    theta_F = solution.theta_BP[solution.cost_B.argmin()]
    residual_BN, jacobian_BNF = residuals(theta_F[None], np.arange(1))
    factor = float(np.mean([correlation_factor(fit) for fit in fits]))
    movable_F = (theta_F > lower_F) & (theta_F < upper_F)
    variance_F = np.zeros(free)
    information = jacobian_BNF[0][:, movable_F].T @ jacobian_BNF[0][:, movable_F]
    variance_F[movable_F] = np.diag(np.linalg.pinv(information)) * factor
    theta_JP = theta_F[index_JP]
    slope_JP = SIGMOID.readable(theta_JP, log_reference) ** np.array([0, 0, 1, 1])
    return JointFit(
        members=tuple(fits),
        shared=tuple(shared),
        theta_JP=theta_JP,
        stderr_JP=np.sqrt(np.maximum(variance_F[index_JP], 0)) * slope_JP,
        log_reference=log_reference,
        deviance=float((residual_BN**2).sum()) / factor,
        free=int((lower_F < upper_F).sum()),
        n_points=residual_BN.shape[1],
    )


def _pose_all(fits: Sequence[Fit], shared: Sequence[str]) -> tuple[list[Problem], float]:
    """The problems of all curves at one reference compute."""
    unknown = [name for name in shared if name not in SIGMOID.parameters]
    if unknown:
        raise LabError(f"cannot share {unknown[0]!r}: there are {', '.join(SIGMOID.parameters)}")
    if len(fits) < 2:
        raise LabError("a joint fit needs at least two curves")
    if any(fit.model is not SIGMOID for fit in fits):
        raise LabError("joint fits are of sigmoids: use --method joint")
    same_unit([fit.curve for fit in fits])
    log_reference = float(np.mean([fit.log_reference for fit in fits]))
    problems = [make_problem(fit.curve, SIGMOID, fit.fixed_r0, None, float(np.exp(log_reference)))[0] for fit in fits]
    return problems, log_reference


def _layout(count: int, shared: Sequence[str], fixed: Sequence[bool]) -> tuple[np.ndarray, int]:
    """Index of each curve's parameters among the free ones, `[J, P]`, and their number; a given R0 is not shared."""
    index_JP, free = np.zeros((count, 4), int), 0
    for column, name in enumerate(SIGMOID.parameters):
        if name in shared and not (name == "R0" and any(fixed)):
            index_JP[:, column] = free
            free += 1
        else:
            index_JP[:, column] = free + np.arange(count)
            free += count
    return index_JP, free


def _starts(
    fits: Sequence[Fit], problems: Sequence[Problem], index_JP: np.ndarray, free: int, log_reference: float
) -> tuple[Array, Array, Array]:
    """Starts `[B, F]`: the separate fits with what is shared averaged, or taken from each curve in turn."""
    theta_JP = np.stack([fit.theta_P + np.array([0, 0, 0, fit.log_reference - log_reference]) for fit in fits])
    mean_F, lower_F, upper_F = np.zeros(free), np.full(free, -np.inf), np.full(free, np.inf)
    for slot in range(free):
        members = index_JP == slot
        mean_F[slot] = theta_JP[members].mean()
        lower_F[slot] = max(problem.lower_P[column] for problem, column in _members(problems, members))
        upper_F[slot] = min(problem.upper_P[column] for problem, column in _members(problems, members))
    starts = [mean_F]
    for curve in range(len(fits)):
        start_F = mean_F.copy()
        start_F[index_JP[curve]] = theta_JP[curve]
        starts.append(start_F)
    return np.stack(starts), lower_F, upper_F


def _members(problems: Sequence[Problem], members_JP: np.ndarray) -> list[tuple[Problem, int]]:
    return [(problems[curve], int(column)) for curve, column in np.argwhere(members_JP)]


def _entries(joint: JointFit) -> list[dict[str, Any]]:
    return [{"run": run, "task": task, **values, "stderr": errors} for run, task, values, errors in joint.rows()]
