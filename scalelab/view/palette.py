"""Colours and symbols of runs: never the same pair twice, and told apart by every kind of eye.

The first three colours are of Okabe and Ito, *Color Universal Design* (2008); the other five were searched for so that
the eight lie far apart for eyes without one kind of cone, too, and read on white. Darker and lighter shades of them
follow. Each run also has a symbol and a dash, so that colour is never the only code.
"""

from __future__ import annotations

import colorsys
from typing import Any

HUES = ("#0072b2", "#d55e00", "#009e73", "#c2649a", "#6826ed", "#682808", "#4d4d4d", "#5a165a")
"""Blue, vermilion, green, pink, violet, brown, grey, plum: any two differ by ΔE 16 and more for every kind of eye."""

SYMBOLS = ("circle", "square", "triangle", "diamond", "down", "plus", "star", "left", "right", "cross", "hexagon")
"""The page draws them by these names (`core.js`), figures by `MARKERS`."""

DASHES = ("solid", "dashed", "dotted", "dashdot")
"""Eleven symbols and a dash for every eight colours: among 32 runs no two have the same pair of them."""

MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "star": "*",
    "left": "<",
    "right": ">",
    "cross": "X",
    "hexagon": "h",
}
"""Matplotlib's names of the symbols."""


def codes(count: int) -> list[dict[str, Any]]:
    """Colour, symbol and dash of each of `count` runs: `{"color", "symbol", "dash"}`."""
    return [
        {
            "color": _shade(HUES[index % len(HUES)], index // len(HUES)),
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "dash": DASHES[index // len(HUES) % len(DASHES)],
        }
        for index in range(count)
    ]


def _shade(color: str, turn: int) -> str:
    """A colour made darker, lighter, still darker, …: another for every turn."""
    if turn == 0:
        return color
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)))
    step = (turn + 1) // 2
    if turn % 2:
        lightness *= 0.62**step
    else:
        lightness += (1 - lightness) * (1 - 0.72**step)
    red, green, blue = colorsys.hls_to_rgb((hue + 0.013 * turn) % 1.0, lightness, saturation)
    return "#" + "".join(f"{_byte(part):02x}" for part in (red, green, blue))


def _byte(part: float) -> int:
    """A part of a colour, from 0–1 to 0–255."""
    return max(0, min(255, int(part * 255 + 0.5)))
