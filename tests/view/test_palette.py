"""Colours and symbols: never the same twice, and told apart by eyes that see fewer colours."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from scalelab.view.palette import MARKERS, SYMBOLS, codes

# Linear RGB as people without one kind of cone see it (Machado, Oliveira and Fernandes 2009, severity 1).
SEEN: dict[str, Any] = {
    "all cones": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    "no long": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    "no middle": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881],
    "no short": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900],
}


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it (D65)."""
    rgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(seen @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.array([v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / [0.9505, 1.0, 1.089]])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_no_colour_comes_twice() -> None:
    assert len({code["color"] for code in codes(56)}) == 56


def test_without_any_colour_no_two_of_32_are_alike() -> None:
    assert len({(code["symbol"], code["dash"]) for code in codes(32)}) == 32


@pytest.mark.parametrize("eye", SEEN)
def test_the_first_eight_differ_for_every_kind_of_eye(eye: str) -> None:
    """ΔE (CIE 1976) of 16 and more between any two, besides their symbols."""
    seen = [lab(code["color"], np.reshape(SEEN[eye], (3, 3))) for code in codes(8)]
    for first, second in combinations(range(8), 2):
        assert float(np.linalg.norm(seen[first] - seen[second])) >= 16, (first, second)


def test_colours_read_on_white() -> None:
    """Contrast of 3 and more for the first sixteen (WCAG 1.4.11)."""
    for code in codes(16):
        rgb = np.array([int(code["color"][at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        contrast = 1.05 / (float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05)
        assert contrast >= 3, (code, contrast)


def test_figures_know_every_symbol() -> None:
    assert set(MARKERS) == set(SYMBOLS)
