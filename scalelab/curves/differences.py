"""Differences between recipes by their joint draws, each computed when it is asked for.

Axes: `_M` joint draws, `_Q` quantities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.claims import claim_of_sorted, share_above_sorted
from scalelab.curves.comparison import MIRROR, ComparisonSettings, ComparisonVerdict, Difference
from scalelab.curves.fitting.intervals import quantiles_of_sorted, tails_of


@dataclass(frozen=True)
class ComparedNumbers:
    """Numbers of one recipe that are compared, `[M]` each: functions of the same joint draws.

    Attributes:
        reaches: `ComparedRun.reaches`; the others are the `QUANTITIES`.
    """

    value: Array
    A: Array
    log_B: Array
    log_C_mid: Array
    log_reach: Array
    reaches: float


QUANTITIES = ("value", "A", "log_B", "log_C_mid", "log_reach")


class Pairs:
    """Differences of every recipe to every other, not yet said to be unstable; one way is the mirror of the other.

    Each is computed when it is asked for: of 43 recipes a table has the differences to one, a fortieth of all.
    """

    def __init__(
        self, numbers: Mapping[str, ComparedNumbers], measured: Mapping[str, float], asked: ComparisonSettings
    ) -> None:
        self._place = {run: place for place, run in enumerate(numbers)}
        self._stacked = {run: np.stack([getattr(own, name) for name in QUANTITIES]) for run, own in numbers.items()}
        self._measured, self._asked = measured, asked
        self._found: dict[tuple[str, str], Difference] = {}

    def difference(self, run: str, other: str) -> Difference:
        """One recipe less another."""
        if self._place[run] > self._place[other]:
            return _mirrored(self.difference(other, run))
        if (run, other) not in self._found:
            # in order, all that follows is looked up
            sorted_QM = np.sort(self._stacked[run] - self._stacked[other], axis=1)
            measured = self._measured[run] - self._measured[other]
            self._found[run, other] = _difference(sorted_QM, measured, self._asked)
        return self._found[run, other]


class ToOthers(Mapping[str, Difference]):
    """Differences of one recipe to the others, by their run."""

    def __init__(self, difference: Callable[[str], Difference], others: Sequence[str]) -> None:
        self._difference, self._others = difference, others
        self._found: dict[str, Difference] = {}

    def __getitem__(self, other: str) -> Difference:
        if other not in self._others:
            raise KeyError(other)
        if other not in self._found:
            self._found[other] = self._difference(other)
        return self._found[other]

    def __iter__(self) -> Iterator[str]:
        return iter(self._others)

    def __len__(self) -> int:
        return len(self._others)


def _difference(sorted_QM: Array, measured: float, asked: ComparisonSettings) -> Difference:
    low, high = tails_of(asked.level)
    ends_TQ = quantiles_of_sorted(sorted_QM, [low, 0.5, high]).tolist()
    low_Q, middle_Q, high_Q = (dict(zip(QUANTITIES, each)) for each in ends_TQ)
    value_M, A_M = sorted_QM[:2]
    claim, wrong = claim_of_sorted(value_M, asked.margin)
    low, high = quantiles_of_sorted(value_M, tails_of(1 - asked.error)).tolist()
    ends = {name: (low_Q[name], high_Q[name]) for name in QUANTITIES}
    return Difference(
        median=middle_Q["value"],
        interval=ends["value"],
        probability=share_above_sorted(value_M, 0.0),
        verdict=verdict_word(claim, wrong <= asked.error, False),
        bound=max(-low, high),
        measured=measured,
        holds_to_spread=None,
        A=middle_Q["A"],
        A_interval=ends["A"],
        A_probability=share_above_sorted(A_M, 0.0),
        log_B=middle_Q["log_B"],
        log_B_interval=ends["log_B"],
        log_C_mid=middle_Q["log_C_mid"],
        log_C_mid_interval=ends["log_C_mid"],
        log_reach=middle_Q["log_reach"],
        log_reach_interval=ends["log_reach"],
        wrong=wrong,
        claim=claim,
    )


def _mirrored(one: Difference) -> Difference:
    """The difference the other way round."""
    turned = {name: -getattr(one, name) for name in ("median", "measured", "A", "log_B", "log_C_mid", "log_reach")} | {
        name: (-getattr(one, name)[1], -getattr(one, name)[0])
        for name in ("interval", "A_interval", "log_B_interval", "log_C_mid_interval", "log_reach_interval")
    }
    return replace(
        one,
        **turned,
        probability=1 - one.probability,
        A_probability=1 - one.A_probability,
        verdict=MIRROR.get(one.verdict, one.verdict),
        claim=MIRROR.get(one.claim, one.claim),
    )


def verdict_word(claim: ComparisonVerdict, sure: bool, unstable: bool) -> ComparisonVerdict:
    """The verdict: recipes of which one falls are not called equal."""
    if sure and not (unstable and claim == "equal"):
        return claim
    return "unstable" if unstable else "cannot tell"
