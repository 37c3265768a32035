"""The points of curves as the page has them, with every x-axis that the run's files can give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.curves import Curve

AXES: Mapping[str, tuple[str, float]] = {
    "step": ("step", 1.0),
    "completions": ("completions", 1.0),
    "tokens": ("tokens", 1.0),
    "flops": ("flops", 1.0),
    "hours": ("wall_seconds", 1 / 3600),
}
"""x-axis beside compute → the number of a point that it shows and its factor, in the order of the page's menu."""

BESIDE = {"truncated": "truncated", "length": "mean_length", "errors": "outcomes/error"}
"""Name on the page of what else a point has → the number of a point."""


def curve_points(curve: Curve) -> list[dict[str, Any]]:
    """The points that the fit of a curve sees, one entry for each of its seeds.

    Returns:
        `{"task", "seed", "unit", "x": {axis: [values or None]}, "y", "stderr", "truncated", "length", "errors"}`.
    """
    entries = []
    for seed in range(len(curve.seeds)):
        mine = curve.select(np.flatnonzero(curve.seed_N == seed))
        x = {"compute": mine.compute_N.tolist()}
        for axis, (name, factor) in AXES.items():
            if name in mine.other_N and np.isfinite(mine.other_N[name]).any():
                x[axis] = _listed(mine.other_N[name] * factor)
        stderr = [None] * len(mine) if mine.stderr_N is None else mine.stderr_N.tolist()
        entry = {
            "task": curve.task,
            "seed": curve.seeds[seed],
            "unit": curve.counted_in,
            "x": x,
            "y": mine.pass_rate_N.tolist(),
            "stderr": stderr,
        }
        missing = np.full(len(mine), np.nan)
        entry |= {ours: _listed(mine.other_N.get(name, missing)) for ours, name in BESIDE.items()}
        entries.append(entry)
    return entries


def _listed(values_N: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values_N]
