"""Claims about a difference by its draws: better, worse or equal, and the error that each risks.

Axes: `_M` draws.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.comparison import ComparisonVerdict

SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


def share_above(gap_M: Array) -> float:
    """Probability that a difference is above zero: never 0 or 1, since it is a share of draws."""
    above = np.count_nonzero(gap_M > 0) + 0.5 * np.count_nonzero(gap_M == 0)
    return float((above + 0.5) / (len(gap_M) + 1))


def share_above_sorted(gap_M: Array, level: float) -> float:
    """Probability that a difference is above a level, of draws in rising order: what `share_above` gives."""
    to, beyond = (int(np.searchsorted(gap_M, level, side=side)) for side in SIDES)
    return float((len(gap_M) - beyond + 0.5 * (beyond - to) + 0.5) / (len(gap_M) + 1))


def claim_of(gap_M: Array, margin: float) -> tuple[ComparisonVerdict, float]:
    """The claim that draws of a difference speak for most, and the two-sided error that the claim risks."""
    return claim_of_sorted(np.sort(gap_M), margin)


def claim_of_sorted(gap_M: Array, margin: float) -> tuple[ComparisonVerdict, float]:
    """The claim and its error, as `claim_of`, of draws in rising order.

    No difference can make both claims wrong: `better` and `worse` err where it is zero or of the other sign, `equal`
    where it is beyond the margin. So the smaller of the two errors needs no correction for having looked at both.
    """
    above = share_above_sorted(gap_M, 0.0)
    of_order = 2 * min(above, 1 - above)
    of_equality = 2 * max(share_above_sorted(gap_M, margin), 1 - share_above_sorted(gap_M, -margin))
    if of_order <= of_equality:
        return ("better" if above > 0.5 else "worse"), of_order
    return "equal", of_equality
