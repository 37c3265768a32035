"""Code shared by the tables: the paper's runs, its curve, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]


def sigmoid(compute: np.ndarray, R0: float, A: float, B: float, C_mid: float) -> np.ndarray:
    """ScaleRL Eq. 1, written out once more, independently of the package."""
    with np.errstate(divide="ignore"):
        return R0 + (A - R0) / (1 + np.exp(-B * np.log(compute / C_mid)))


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
