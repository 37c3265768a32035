"""The curves that the points leave possible: equally likely draws, behind every printed number.

A draw is a whole curve over compute: a shape (the sigmoid, another rise, growth without end, a late change), its
parameters, and the noise of one evaluation about it. Rates, gains, crossings, compute to a target, bands and
asymptotes are all read from the same draws, so that no two of them can contradict each other.

Axes: `_M` draws, `_C` points of compute, `_T` targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.fitting.density import CHANGE_SIZE, WIDE_SIZE, Change, Density, seed_noises
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import LOG_ZERO
from scalelab.curves.fitting.noise import Prior, SeedNoise
from scalelab.curves.fitting.posterior import Draws, best_cells, find_mass
from scalelab.curves.fitting.shapes import CHANGES, OTHERS, SIGMOID_ODDS, ChangeKind, Rise

SIZE = 4000
"""Draws of all shapes together."""

FAR = 1000.0
"""Multiple of the window's end up to which a curve with a late change is searched for a pass rate."""

UNLIKELY = 5.5
"""Log odds below the best shape's by which a shape is not drawn from: it would have a few of the draws."""

HOPELESS = 3.0
"""Log odds below the sigmoid's by which a late change is not looked at any closer."""


@dataclass(frozen=True)
class CurveDraws:
    """Equally likely curves of one recipe on one task.

    Attributes:
        parts: draws of each shape, in number as its probability.
        names: of all shapes, the sigmoid first.
        probability: of each, given the points.
        sigmoid: draws given that the curve is a sigmoid (or the one shape that was fitted).
        start: smallest compute after step 0 that was fitted.
        end: largest.
    """

    parts: tuple[Draws, ...]
    names: tuple[str, ...]
    probability: tuple[float, ...]
    sigmoid: Draws
    start: float
    end: float

    @property
    def falls(self) -> bool:
        """True for curves that fall from R0 to a floor A."""
        return self.sigmoid.falls

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __repr__(self) -> str:
        most = sorted(zip(self.probability, self.names), reverse=True)[:3]
        return f"CurveDraws({len(self)}: {', '.join(f'{name} {share:.0%}' for share, name in most)}, …)"

    def take(self, index_M: np.ndarray) -> CurveDraws:
        """Some of the draws, by index; their order is that of the parts."""
        index_M, first, parts = np.sort(index_M), 0, []
        for part in self.parts:
            inside = index_M[(index_M >= first) & (index_M < first + len(part))] - first
            first += len(part)
            if len(inside):
                parts.append(part.take(inside))
        return CurveDraws(tuple(parts), self.names, self.probability, self.sigmoid, self.start, self.end)

    def value(self, compute: Sequence[float] | Array) -> Array:
        """Pass rate of every curve at some compute, `[M, C]`."""
        return np.concatenate([part.value(compute) for part in self.parts])

    def evaluation(self, compute: Sequence[float] | Array) -> Array:
        """An evaluation of every curve at some compute, `[M, C]`: with drift, sampling noise and a seed of its own."""
        return np.concatenate([part.evaluation(compute) for part in self.parts])

    def rise(self, compute: Sequence[float] | Array) -> Array:
        """Share of the way to A made, `[M, C]`."""
        return np.concatenate([part.rise(compute) for part in self.parts])

    def limit(self) -> Array:
        """Pass rate that every curve tends to, `[M]`; 1 for growth without end, 0 for such a fall."""
        return np.concatenate([_limit(part) for part in self.parts])

    def reached(self, rate: float) -> Array:
        """Compute at which every curve is first at or beyond a pass rate, `[M]`: 0 from the start, infinite for never.

        Beyond is above, and below for curves that fall: they fall to it.
        """
        result: Array = self.reached_each([rate])[:, 0]
        return result

    def reached_each(self, rates: Sequence[float] | Array) -> Array:
        """Compute at which every curve is first at or beyond each of several pass rates, `[M, T]`; see `reached`."""
        rates = np.asarray(rates, float)
        return np.concatenate([_reached(part, rates, self.start, self.end) for part in self.parts])

    def column(self, name: str) -> Array:
        """One of `spread_M`, `noise_M`, `drift_M` of all draws."""
        return np.concatenate([getattr(part, name) for part in self.parts])

    @property
    def endless(self) -> float:
        """Probability of growth without end, or of a fall without a floor."""
        ends = {rise.name for rise in OTHERS if not rise.ends}
        return float(sum(share for name, share in zip(self.names, self.probability) if name in ends))

    @property
    def changed(self) -> float:
        """Probability of a late change: a second rise or a fall."""
        kinds = {kind.name for kind in CHANGES}
        return float(sum(share for name, share in zip(self.names, self.probability) if name in kinds))


def one_shape(draws: Draws, fit: Fit) -> CurveDraws:
    """The draws of a fit for which no other shape is thought of."""
    return CurveDraws((draws,), (draws.model.name,), (1.0,), draws, *fit.window)


def all_shapes(fit: Fit, prior: Prior | None, sigmoid: Draws, seed: int = 0) -> CurveDraws:
    """Draws of all shapes by their probability.

    Args:
        fit: a joint sigmoid fit.
        prior: beliefs about steepness, midpoint and scale, the same for all shapes.
        sigmoid: the sigmoid's posterior.
        seed: of the random numbers.
    """
    noises = seed_noises(fit)
    masses = [(rise.name, rise.odds, Density(fit, prior, rise, coarse=True, noises=noises)) for rise in OTHERS]
    for kind, change, rescaled in _changes(fit, prior, noises):
        masses.append((kind.name, kind.odds, Density(rescaled, prior, None, coarse=True, change=change)))
    found = [(name, odds, find_mass(density, quick=True)) for name, odds, density in masses]
    best = max([np.log(SIGMOID_ODDS) + sigmoid.log_evidence, *(np.log(o) + mass.log_evidence for _, o, mass in found)])
    names, log_F, weighed = [sigmoid.model.name], [np.log(SIGMOID_ODDS) + sigmoid.log_evidence], []
    for name, odds, mass in found:
        names.append(name)
        likely = np.log(odds) + mass.log_evidence > best - UNLIKELY
        each = mass.weigh(np.random.default_rng(seed)) if likely else None
        weighed.append(each)
        log_F.append(np.log(odds) + (mass.log_evidence if each is None else each.log_evidence))
    probability_F = np.exp(log_F - np.logaddexp.reduce(log_F))
    count_F = np.rint(probability_F * SIZE).astype(int).tolist()
    parts = [sigmoid.head(count_F[0])] if count_F[0] else []
    for each, count in zip(weighed, count_F[1:]):
        if each is not None and count:
            parts.append(each.draw(count, np.random.default_rng([seed, len(parts)])))
    return CurveDraws(tuple(parts), tuple(names), tuple(probability_F.tolist()), sigmoid, *fit.window)


def _changes(fit: Fit, prior: Prior | None, noises: Sequence[SeedNoise]) -> list[tuple[ChangeKind, Change, Fit]]:
    """Late changes that are not hopeless by the best sigmoids, each with the fit at the noise scale that it leaves."""
    plain = Density(fit, prior, coarse=True, noises=noises, search=True)
    cells_GS = best_cells(plain)
    base, base_scale = (float(found[0]) for found in plain.found(cells_GS))
    log_end = float(np.log(fit.window[1])) - fit.log_reference
    each = [Change(log_end + float(np.log(kind.share)), kind.steep) for kind in CHANGES]
    u_G1, steep_G1 = (np.repeat(numbers, len(cells_GS))[:, None] for numbers in zip(*((c.u, c.steep) for c in each)))
    together = Density(fit, prior, None, True, noises, Change(u_G1, steep_G1), search=True)
    log_evidence, log_scale = together.found(np.tile(cells_GS, (len(each), 1)), len(each))
    kept = []
    for at, (kind, change) in enumerate(zip(CHANGES, each)):
        if np.log(kind.odds / SIGMOID_ODDS * WIDE_SIZE / CHANGE_SIZE) + log_evidence[at] - base > -HOPELESS:
            factor = float(np.exp(min(log_scale[at] - base_scale, 0.0)))
            kept.append((kind, change, replace(fit, scale=factor * fit.scale, sigma_N=factor * fit.sigma_N)))
    return kept


def _limit(part: Draws) -> Array:
    if part.falls:
        return 1 - _limit(part.mirrored())
    if isinstance(part.model, Rise) and not part.model.ends:
        return np.ones(len(part))
    A_M = part.theta_MP[:, part.model.linear.index("A")]
    return np.clip(A_M if part.height_M is None else A_M + part.height_M, 0, 1)


def _reached(part: Draws, rates: Array, start: float, end: float) -> Array:
    if part.falls:
        return _reached(part.mirrored(), 1 - rates, start, end)
    if part.change is None:
        u_MT = np.stack([part.model.inverse(part.theta_MP, rate) for rate in rates], axis=1)
        compute_MT = np.where(u_MT <= LOG_ZERO, 0.0, np.exp(np.minimum(u_MT + part.log_reference, 700)))
        return np.where(np.isinf(u_MT), np.inf, compute_MT)
    compute_C = np.concatenate([[0.0], np.geomspace(start / 10, FAR * end, 240)])
    highest_MC = np.maximum.accumulate(part.value(compute_C), axis=1)
    log_C = np.log(np.maximum(compute_C, start / 20))
    return np.exp([np.interp(rates, highest_C, log_C, left=-np.inf, right=np.inf) for highest_C in highest_MC])
