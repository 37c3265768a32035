"""Real curves with their last half held back: how far forecasts of it are off, beside simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import curve_fit

from curve_tables.common import ROOT, markdown, sigmoid
from scalelab.curves import Curve, FitError, Options, analyse, read_sources
from scalelab.errors import LabError

Forecaster = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(compute and pass rates of the first half, later compute) → pass rates there."""


def last_value(compute: np.ndarray, rate: np.ndarray, later: np.ndarray) -> np.ndarray:
    return np.full(len(later), rate[-1])


def log_line(compute: np.ndarray, rate: np.ndarray, later: np.ndarray) -> np.ndarray:
    """A straight line in log compute, step 0 left out."""
    rising = compute > 0
    slope, start = np.polyfit(np.log(compute[rising]), rate[rising], 1)
    return np.clip(start + slope * np.log(later), 0, 1)


def least_squares(compute: np.ndarray, rate: np.ndarray, later: np.ndarray) -> np.ndarray:
    """The sigmoid by SciPy's `curve_fit`, from three starts."""
    end, best = compute.max(), None
    for share in (0.15, 0.5, 1.5):
        try:
            found, _ = curve_fit(
                sigmoid,
                np.maximum(compute, 1e-9 * end),
                rate,
                (rate[0], rate.max(), 1.5, share * end),
                bounds=([0, 0, 0.2, 1e-3 * end], [1, 1, 8, 50 * end]),
                max_nfev=400,
            )
        except (RuntimeError, ValueError):
            continue
        squares = float(((sigmoid(np.maximum(compute, 1e-9 * end), *found) - rate) ** 2).sum())
        if best is None or squares < best[0]:
            best = squares, found
    return last_value(compute, rate, later) if best is None else sigmoid(later, *best[1])


def power_law(compute: np.ndarray, rate: np.ndarray, later: np.ndarray) -> np.ndarray:
    """A − D / C^B by `curve_fit`, step 0 left out."""
    rising = compute > 0
    end = compute.max()
    try:
        found, _ = curve_fit(
            lambda C, A, D, B: A - D * (C / end) ** -B,
            compute[rising],
            rate[rising],
            (rate.max() + 0.05, 0.05, 0.5),
            bounds=([0, 0, 0.01], [1, 10, 8]),
            max_nfev=400,
        )
    except (RuntimeError, ValueError):
        return last_value(compute, rate, later)
    A, D, B = found
    return np.clip(A - D * (later / end) ** -B, 0, 1)


OTHERS: dict[str, Forecaster] = {
    "last value": last_value,
    "`curve_fit`": least_squares,
    "power law": power_law,
    "line in log C": log_line,
}


def held_back(item: Curve) -> dict[str, float] | None:
    """Mean absolute error of every forecast of the last half, and its share inside our 80 %; None without a fit."""
    half = 0.5 * float(item.compute_N.max())
    first, later = item.select(item.compute_N <= half), item.select(item.compute_N > half)
    try:
        found = analyse(first, Options(checks=False))
    except FitError:
        return None
    middle = np.median(found.draws().value(later.compute_N), axis=0)
    low, high = found.evaluation_interval(later.compute_N)
    made = {name: make(first.compute_N, first.pass_rate_N, later.compute_N) for name, make in OTHERS.items()}
    errors = {name: float(np.abs(values - later.pass_rate_N).mean()) for name, values in made.items()}
    inside = float(((later.pass_rate_N >= low) & (later.pass_rate_N <= high)).mean())
    return {"scalelab": float(np.abs(middle - later.pass_rate_N).mean()), **errors, "inside": inside}


def holdback_section(logs: Path | None = None) -> str:
    """Errors over the committed runs of the study, by task, and over the files of a folder."""
    runs = [item for folder in sorted((ROOT / "docs/study/runs").glob("*/seed_*")) for item in read_sources([folder])]
    groups: dict[str, Sequence[Curve]] = {
        f"study, {task}": [item for item in runs if item.task == task] for task in ("math", "code")
    }
    if logs is not None:
        groups[logs.name] = [item for file in sorted(logs.glob("real_*.csv")) for item in _read(file)]
    rows = []
    for name, items in groups.items():
        found = [one for one in map(held_back, items) if one is not None]
        names = [key for key in found[0] if key != "inside"]
        cells = [
            f"{np.mean([one[key] for one in found]):.4f} / {np.median([one[key] for one in found]):.4f}"
            for key in names
        ]
        rows.append([name, f"{len(found)} of {len(items)}", *cells, f"{np.mean([one['inside'] for one in found]):.0%}"])
    return markdown(["curves", "fitted", "scalelab", *OTHERS, "evaluations inside 80 %"], rows)


def _read(file: Path) -> list[Curve]:
    try:
        return read_sources([file])
    except LabError:
        return []
