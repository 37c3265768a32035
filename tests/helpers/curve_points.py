"""Points on known curves, for the tests of fits and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


def rate(compute: ArrayLike, R0: float = 0.2, A: float = 0.7, B: float = 1.6, C_mid: float = 0.25) -> np.ndarray:
    compute = np.asarray(compute, float)
    return R0 + (A - R0) / (1 + (C_mid / np.maximum(compute, 1e-60)) ** B)


def run_points(n: int = 20, noise: float = 0.0, seed: int = 0, **parameters: float) -> tuple[np.ndarray, np.ndarray]:
    """Step 0 and `n` evaluations up to compute 1."""
    compute = np.arange(n + 1) / n
    points = rate(compute, **parameters) + noise * np.random.default_rng(seed).standard_normal(n + 1)
    return compute, np.clip(points, 0, 1)


def table(
    path: Path,
    n: int = 20,
    noise: float = 0.005,
    seed: int = 0,
    tasks: tuple[str, ...] = ("math", "code"),
    **parameters: float,
) -> str:
    lines = ["gpu_hours,pass_rate,task,n"]
    for index, task in enumerate(tasks):
        compute, points = run_points(n, noise=noise, seed=seed + index, **parameters)
        lines += [f"{c * 1000},{p},{task},2000" for c, p in zip(compute, points)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
