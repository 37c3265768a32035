"""Code shared by the tables: the paper's runs, its curve, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
DENSE = ROOT / "tools" / "data" / "scalerl_dense.csv"
PAPER_R0 = 0.402
SAMPLES = 16_000
"""The paper's evaluation: 1,000 prompts × 16."""

TABLE_1 = {
    "ScaleRL 8B": (2542, 1.92, 0.610),
    "32k generation length": (11272, 1.89, 0.645),
    "8 generations per prompt": (2542, 2.44, 0.585),
    "24 generations per prompt": (3054, 2.22, 0.590),
    "32 generations per prompt": (2936, 2.07, 0.595),
    "Scout 17Bx16": (4242, 1.65, 0.710),
    "batch 512": (2818, 1.77, 0.605),
    "batch 2048": (10909, 1.70, 0.645),
    "math+code: math": (2896, 2.05, 0.595),
    "math+code: code": (1675, 1.09, 0.615),
}
"""ScaleRL Table 1: run → (C_mid, B, A)."""


def sigmoid(compute: np.ndarray, R0: float, A: float, B: float, C_mid: float) -> np.ndarray:
    """ScaleRL Eq. 1, written out once more, independently of the package."""
    with np.errstate(divide="ignore"):
        return R0 + (A - R0) / (1 + np.exp(-B * np.log(compute / C_mid)))


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
