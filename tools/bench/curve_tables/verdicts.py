"""Shares of right and wrong verdicts of `scalelab compare`, by simulating through `compare` itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from curve_tables.common import markdown
from scalelab.curves.calibrate import SimulatedDesign, calibrate

DESIGN = SimulatedDesign(
    compute_N=tuple((np.arange(26) / 25 * 4).tolist()),
    stderr=0.009,
    R0=0.3,
    A=0.6,
    B=1.7,
    C_mid=1.0,
    seeds=2,
    spread=0.0125,
    drift=0.004,
    margin=0.02,
    error=0.1,
)
"""Two recipes as docs/study has them: 25 evaluations up to four C_mid, seeds that spread by 0.0125."""


def verdicts_section(pairs: int) -> str:
    """Words by seeds and true difference."""
    rows = []
    for seeds in (1, 2, 4, 8):
        for line in calibrate(replace(DESIGN, seeds=seeds), pairs, (0.0, 0.01, 0.02)):
            rows.append([seeds, *line.cells()])
    header = ["seeds of each", "true difference", "better", "worse", "equal", "cannot tell", "wrong", "interval holds"]
    return markdown(header, rows)
