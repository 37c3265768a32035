"""Points on known curves, for the tests of fits and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def rate(compute, R0=0.2, A=0.7, B=1.6, C_mid=0.25):
    compute = np.asarray(compute, float)
    return R0 + (A - R0) / (1 + (C_mid / np.maximum(compute, 1e-60)) ** B)


def run_points(n=20, noise=0.0, seed=0, **parameters):
    """Step 0 and `n` evaluations up to compute 1."""
    compute = np.arange(n + 1) / n
    points = rate(compute, **parameters) + noise * np.random.default_rng(seed).standard_normal(n + 1)
    return compute, np.clip(points, 0, 1)


def table(path: Path, n: int = 20, noise: float = 0.005, seed: int = 0, tasks=("math", "code"), **parameters) -> str:
    lines = ["gpu_hours,pass_rate,task,n"]
    for index, task in enumerate(tasks):
        compute, points = run_points(n, noise=noise, seed=seed + index, **parameters)
        lines += [f"{c * 1000},{p},{task},2000" for c, p in zip(compute, points)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
