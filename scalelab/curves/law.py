"""Laws across scaling axes: A, B and C_mid as functions of batch, length, active parameters or mixture.

Each place on the axes (a batch of 768 and completions of 14k tokens, say) has a curve of its own. Its parameters are
taken to be linear in the logarithms of the axes, with a deviation of its own:

    θ[s, j] = α[j] + Σ_a β[j, a] x[s, a] + δ[s, j],      δ[s, j] ~ N(0, τ[j]²)

for θ = (logit R0, logit A, ln B, ln C_mid), j one of the four, x the logarithm of the axis relative to the mean of the
places. All curves and the law are fitted jointly, in the two stages of Lunn, Barrett, Sweeting & Thompson (2013): every
run is fitted alone, and its draws, freed of the prior they were made with, are then drawn again in proportion to what
the law of all other places makes of them. α, β and τ are sampled in turns with them. So a run that has not bent yet
borrows from the others, and a place that was not run has a forecast with an interval.

Axes of arrays: `_M` chains (equally likely draws), `_S` places, `_J` the four parameters, `_A` axes with the constant
before them, `_T` sizes of τ and of slopes, `_D` draws of one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.analysis import Analysis
from scalelab.curves.fitting.intervals import Interval, check_level, equal_tailed
from scalelab.curves.fitting.models import SIGMOID, logistic
from scalelab.curves.places import Place, place_of, rates, readable
from scalelab.defaults import LEVEL
from scalelab.errors import LabError
from scalelab.reading.curve import same_unit

CHAINS, ROUNDS, TRIES = 400, 30, 48
"""Chains run side by side, rounds of each before its state is kept, and draws of a run considered in each round."""

FEW_ROUNDS, FEW_TRIES = 6, 16
"""Rounds and draws of chains that begin where those of one place more have ended, which is close by."""

GRID = np.linspace(-2.5, 3.5, 16), np.linspace(-1, 3, 5)
"""Sizes of τ and of slopes considered, in standard deviations of their logarithms from the median."""


@dataclass(frozen=True)
class Beliefs:
    """Prior beliefs about a law, for θ = (logit R0, logit A, ln B, ln C_mid).

    Attributes:
        slope: standard deviation of β, for an axis that grows e-fold (or by one, where it is linear). With A near 0.6,
            0.3 in its logit is 0.07 in A; Table 1 of ScaleRL has 0.12 to 0.6 in the logit, 0.03 to 0.2 in ln B and 1
            to 1.8 in ln C_mid.
        deviation: median of τ. 0.06 in the logit of A is about 0.015 in A: what seeds differ by.
        log_deviation: standard deviation of ln τ.
        log_slope: standard deviation of the logarithm of a factor on `slope`: effects may be much larger.
    """

    slope: tuple[float, float, float, float] = (0.2, 0.3, 0.2, 1.0)
    deviation: tuple[float, float, float, float] = (0.05, 0.06, 0.12, 0.25)
    log_deviation: float = 0.8
    log_slope: float = 0.8


BELIEFS = Beliefs()


@dataclass(frozen=True)
class PlaceForecast:
    """The curve of a place, run or not, that the law forecasts.

    Attributes:
        at: value on every axis.
        parameters: median of R0, A, B, C_mid.
        intervals: of each.
        value: median of the pass rate at the compute that was asked for.
        interval: of that pass rate.
    """

    at: Mapping[str, float]
    parameters: dict[str, float]
    intervals: dict[str, Interval]
    value: float
    interval: Interval


@dataclass(frozen=True)
class Left:
    """One place left out, and how the law of the others forecast it.

    Attributes:
        name: of its run.
        forecast: what the law of the others says of it.
        parameters: median of its own fit.
        value: median of its own curve at the compute of the forecast.
        inside: whether the law's interval holds the own median, by `R0`, `A`, `B`, `C_mid` and `value`.
        unvaried: axes on which the others do not differ, so that their effect is not known but by belief.
    """

    name: str
    forecast: PlaceForecast
    parameters: dict[str, float]
    value: float
    inside: dict[str, bool]
    unvaried: tuple[str, ...]


@dataclass(frozen=True)
class Law:
    """Curves of several places and the law that joins them.

    Attributes:
        places: the runs.
        axes: names of the axes.
        linear: axes that enter as they are; the others by their logarithm.
        level: probability of intervals.
        centre_A: mean of the transformed axes over the places.
        weight_MAJ: α (first) and β.
        deviation_MJ: τ.
        theta_MSJ: θ of the places.
        log_prior_MS: log density of each under the prior that its run was fitted with.
    """

    places: tuple[Place, ...]
    axes: tuple[str, ...]
    linear: frozenset[str]
    level: float
    centre_A: Array
    weight_MAJ: Array
    deviation_MJ: Array
    theta_MSJ: Array
    log_prior_MS: Array

    def slopes(self) -> dict[str, dict[str, tuple[float, Interval]]]:
        """Effect of each axis on A, B and C_mid: median and interval.

        For A, the change of A per doubling of the axis (of a linear axis: from 0 to 1) at the mean of the places; for
        B and C_mid, the factor per doubling.
        """
        found: dict[str, dict[str, tuple[float, Interval]]] = {}
        for index, axis in enumerate(self.axes):
            step = 1.0 if axis in self.linear else float(np.log(2))
            base_MJ, moved_MJ = self.weight_MAJ[:, 0], self.weight_MAJ[:, 0] + step * self.weight_MAJ[:, 1 + index]
            effects = {
                "A": logistic(moved_MJ[:, 1]) - logistic(base_MJ[:, 1]),
                "B": np.exp(moved_MJ[:, 2] - base_MJ[:, 2]),
                "C_mid": np.exp(moved_MJ[:, 3] - base_MJ[:, 3]),
            }
            found[axis] = {
                name: (float(np.median(drawn_M)), equal_tailed(drawn_M, self.level))
                for name, drawn_M in effects.items()
            }
        return found

    def theta(self, at: Mapping[str, float], seed: int = 1, own: bool = True) -> Array:
        """θ of a place, `[M, J]`: that of its run if exactly one has it, else the law's and a deviation of its own.

        Args:
            at: the place.
            seed: of the deviation.
            own: False to take the law's even where a run has the place.
        """
        runs = [
            index for index, one in enumerate(self.places) if all(one.at[axis] == at.get(axis) for axis in self.axes)
        ]
        if own and len(runs) == 1:
            return self.theta_MSJ[:, runs[0]]
        x_A = np.concatenate([[1.0], _transformed(at, self.axes, self.linear) - self.centre_A])
        noise_MJ = np.random.default_rng(seed).standard_normal(self.deviation_MJ.shape)
        result: Array = np.einsum("a,maj->mj", x_A, self.weight_MAJ) + self.deviation_MJ * noise_MJ
        return result

    def forecast(self, at: Mapping[str, float], compute: float, own: bool = True) -> PlaceForecast:
        """Parameters of a place, run or not, and its pass rate at some compute, each with an interval.

        Args:
            at: the place.
            compute: where the pass rate is taken.
            own: False to forecast by the law even where a run has the place.

        Raises:
            LabError: an axis is missing or has no such value, or the compute is not positive.
        """
        check_compute(compute)
        drawn_MJ = readable(self.theta(at, own=own))
        value_M = rates(drawn_MJ, compute)
        names = SIGMOID.parameters
        return PlaceForecast(
            at=dict(at),
            parameters=dict(zip(names, np.median(drawn_MJ, axis=0).tolist())),
            intervals={name: equal_tailed(drawn_M, self.level) for name, drawn_M in zip(names, drawn_MJ.T)},
            value=float(np.median(value_M)),
            interval=equal_tailed(value_M, self.level),
        )


def fit_law(
    places: Sequence[Place],
    axes: Sequence[str],
    *,
    linear: Sequence[str] = (),
    level: float = LEVEL,
    seed: int = 0,
) -> Law:
    """Fit the curves of all places and their law jointly.

    Args:
        places: at least two runs.
        axes: what the law is a function of; the places must differ on each.
        linear: axes that enter as they are, such as a share; the others by their logarithm.
        level: probability of intervals.
        seed: of the random numbers.

    Raises:
        LabError: too few places, an axis on which they do not differ, or a value that has no logarithm.
    """
    check_level(level)
    for axis in axes:
        if len({place.at.get(axis) for place in places}) < 2:
            raise LabError(f"all runs have the same {axis}, so its effect cannot be learnt: leave the axis out")
    if not axes:
        raise LabError("a law needs an axis on which the runs differ: give --axis")
    return _sample(places, tuple(axes), frozenset(linear), level, seed)


def law_of(items: Sequence[Analysis], axes: Sequence[str], *, linear: Sequence[str] = (), level: float = LEVEL) -> Law:
    """Fit the law of fitted runs of one task, by the places that their curves name (`Curve.places`)."""
    same_unit([item.fit.curve for item in items])
    places = [place_of(item, {axis: item.fit.curve.places.get(axis, np.nan) for axis in axes}) for item in items]
    return fit_law(places, axes, linear=linear, level=level)


def leave_one_out(law: Law, compute: float) -> list[Left]:
    """Leave out one place at a time, and compare what the law of the others forecasts with its own fit.

    Args:
        law: of at least three places.
        compute: where pass rates are compared.

    Raises:
        LabError: fewer than three places.
    """
    check_compute(compute)
    if len(law.places) < 3:
        raise LabError("leaving one run out needs at least three")
    found = []
    for index, left in enumerate(law.places):
        others = [place for place in law.places if place is not left]
        unvaried = tuple(axis for axis in law.axes if len({place.at[axis] for place in others}) < 2)
        states = np.delete(law.theta_MSJ, index, 1), np.delete(law.log_prior_MS, index, 1)
        less = _sample(others, law.axes, law.linear, law.level, index, states)
        forecast = less.forecast(left.at, compute, own=False)
        drawn_DJ = readable(left.theta_DJ)
        own = dict(zip(SIGMOID.parameters, np.median(drawn_DJ, axis=0).tolist()))
        own_value = float(np.median(rates(drawn_DJ, compute)))
        inside = {name: low <= own[name] <= high for name, (low, high) in forecast.intervals.items()}
        inside["value"] = forecast.interval[0] <= own_value <= forecast.interval[1]
        found.append(Left(left.name, forecast, own, own_value, inside, unvaried))
    return found


def _transformed(at: Mapping[str, float], axes: Sequence[str], linear: frozenset[str]) -> Array:
    """Values on the axes as they enter the law."""
    for axis in axes:
        number = at.get(axis, np.nan)
        if not np.isfinite(number):
            raise LabError(f"no value of {axis}: give one for every axis, such as batch=2048")
        if axis not in linear and not number > 0:
            raise LabError(f"{axis} {number:g} has no logarithm: give a positive number, or --linear {axis}")
    return np.array([at[axis] if axis in linear else np.log(at[axis]) for axis in axes])


def _sample(
    places: Sequence[Place],
    axes: tuple[str, ...],
    linear: frozenset[str],
    level: float,
    seed: int,
    states: tuple[Array, Array] | None = None,
) -> Law:
    """Draw from the joint posterior of the places and their law, all chains side by side.

    Args:
        places: the runs.
        axes: what the law is a function of.
        linear: axes that enter as they are.
        level: probability of intervals.
        seed: of the random numbers.
        states: θ `[M, S, J]` and its log prior `[M, S]` to begin with, close to where the chains will end; None begins
            with any draws of the runs.
    """
    rng = np.random.default_rng(seed)
    x_SA = np.array([_transformed(place.at, axes, linear) for place in places])
    centre_A = x_SA.mean(0)
    x_SA = np.concatenate([np.ones((len(places), 1)), x_SA - centre_A], axis=1)
    if states is None:
        first_SM = [rng.integers(len(place.theta_DJ), size=CHAINS) for place in places]
        theta_MSJ = np.stack([place.theta_DJ[first_M] for place, first_M in zip(places, first_SM)], axis=1)
        prior_MS = np.stack([place.log_prior_D[first_M] for place, first_M in zip(places, first_SM)], axis=1)
    else:
        theta_MSJ, prior_MS = states
    rounds, tries = (ROUNDS, TRIES) if states is None else (FEW_ROUNDS, FEW_TRIES)
    for _ in range(rounds):
        deviation_MJ, weight_MAJ = _draw_law(theta_MSJ, x_SA, rng)
        mean_MSJ = np.einsum("sa,maj->msj", x_SA, weight_MAJ)
        for at, place in enumerate(places):
            pool_MX = rng.integers(len(place.theta_DJ), size=(CHAINS, tries))
            pool_MXJ = np.concatenate([theta_MSJ[:, None, at], place.theta_DJ.take(pool_MX, axis=0)], axis=1)
            log_prior_MX = np.concatenate([prior_MS[:, at, None], place.log_prior_D.take(pool_MX)], axis=1)
            apart_MXJ = pool_MXJ - mean_MSJ[:, None, at]
            apart_MXJ *= (1 / deviation_MJ)[:, None]
            behind_MX = 0.5 * np.einsum("mxj,mxj->mx", apart_MXJ, apart_MXJ) + log_prior_MX
            # The first of exponential clocks to ring, each as fast as its draw is likely.
            behind_MX -= behind_MX.min(1, keepdims=True)
            np.exp(np.minimum(behind_MX, 600, out=behind_MX), out=behind_MX)
            behind_MX *= rng.standard_exponential(behind_MX.shape)
            chosen_M = behind_MX.argmin(1)
            theta_MSJ[:, at] = pool_MXJ[np.arange(CHAINS), chosen_M]
            prior_MS[:, at] = log_prior_MX[np.arange(CHAINS), chosen_M]
    deviation_MJ, weight_MAJ = _draw_law(theta_MSJ, x_SA, rng)
    return Law(tuple(places), axes, linear, level, centre_A, weight_MAJ, deviation_MJ, theta_MSJ, prior_MS)


def _draw_law(theta_MSJ: Array, x_SA: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """τ `[M, J]`, with α and β integrated out, and then α and β `[M, A, J]`, given the places' θ.

    Bayesian linear regression (Gelman et al. 2013, §14.2): with precision P = XᵀX/τ² + S⁻¹ and S the prior covariance,
    the evidence of τ and S is −n ln τ − ½ ln|S| − ½ ln|P| − ½ (yᵀy/τ² − bᵀP⁻¹b), b = Xᵀy/τ², up to a constant. Their
    sizes are on a grid, `_T` its cells.
    """
    log_size, log_slope = (part.ravel() for part in np.meshgrid(*GRID, indexing="ij"))
    size_TJ = np.exp(log_size * BELIEFS.log_deviation)[:, None] * np.array(BELIEFS.deviation)
    slope_TJ = np.exp(log_slope * BELIEFS.log_slope)[:, None] * np.array(BELIEFS.slope)
    centre_MJ = theta_MSJ.mean(1)
    y_MSJ = theta_MSJ - centre_MJ[:, None]
    gram_AA = x_SA.T @ x_SA
    slope_TJA = np.repeat(slope_TJ[..., None], x_SA.shape[1], axis=-1)
    slope_TJA[..., 0] = 10.0  # the constant may be anything
    precision_TJAA = gram_AA / size_TJ[..., None, None] ** 2 + slope_TJA[..., None] ** -2.0 * np.eye(x_SA.shape[1])
    inverse_TJAA = np.linalg.inv(precision_TJAA)
    moment_MAJ = np.einsum("sa,msj->maj", x_SA, y_MSJ)
    explained_MTJ = np.einsum("maj,tjab,mbj->mtj", moment_MAJ, inverse_TJAA, moment_MAJ) / size_TJ**4
    squares_MTJ = (y_MSJ**2).sum(1)[:, None] / size_TJ**2
    log_TJ = -len(x_SA) * np.log(size_TJ) - 0.5 * np.linalg.slogdet(precision_TJAA)[1]
    log_TJ -= np.log(slope_TJA).sum(-1) + 0.5 * (log_size**2 + log_slope**2)[:, None]
    log_MTJ = log_TJ - 0.5 * (squares_MTJ - explained_MTJ)
    chosen_MJ = (log_MTJ + rng.gumbel(size=log_MTJ.shape)).argmax(1)
    column_J = np.arange(4)
    deviation_MJ = size_TJ[chosen_MJ, column_J]
    inverse_MJAA = inverse_TJAA[chosen_MJ, column_J]
    mean_MJA = np.einsum("mjab,mbj->mja", inverse_MJAA, moment_MAJ) / deviation_MJ[..., None] ** 2
    root_MJAA = np.linalg.cholesky(inverse_MJAA)
    weight_MJA = mean_MJA + np.einsum("mjab,mjb->mja", root_MJAA, rng.standard_normal(mean_MJA.shape))
    weight_MJA[..., 0] += centre_MJ
    return deviation_MJ, np.swapaxes(weight_MJA, 1, 2)


def check_compute(compute: float) -> None:
    """Refuse a compute that is not a positive number."""
    if not (np.isfinite(compute) and compute > 0):
        raise LabError(f"cannot forecast at a compute of {compute:g}: give a positive number")
