"""Colours and symbols of runs: never the same pair twice, and told apart by every kind of eye.

The first eight colours are those of Okabe and Ito, *Color Universal Design* (2008), darkened where they would not read
on white; they are followed by darker and lighter shades of them. Each run also has a symbol and a dash, so that colour
is never the only code.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3db8", "#5c5c5c")
"""Blue, vermilion, green, pink, ochre, sky, violet, grey."""

SYMBOLS = ("circle", "rect", "triangle", "diamond", "pin", "arrow", "roundRect")
"""Symbols as ECharts names them."""

DASHES = ("solid", "dashed", "dotted")

MARKERS = {
    "circle": "o",
    "rect": "s",
    "triangle": "^",
    "diamond": "D",
    "pin": "v",
    "arrow": "P",
    "roundRect": "X",
}
"""The same symbols as matplotlib names them."""


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


def colors(names: Sequence[str]) -> dict[str, str]:
    """A colour for each distinct name, in order of appearance."""
    distinct = list(dict.fromkeys(names))
    return {name: code["color"] for name, code in zip(distinct, codes(len(distinct)))}


def _shade(color: str, round: int) -> str:
    """A colour made darker, lighter, still darker, …: another for every round."""
    if round == 0:
        return color
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)))
    step = (round + 1) // 2
    if round % 2:
        lightness *= 0.62**step
    else:
        lightness += (1 - lightness) * (1 - 0.72**step)
    red, green, blue = colorsys.hls_to_rgb((hue + 0.013 * round) % 1.0, lightness, saturation)
    return "#" + "".join(f"{round_(part):02x}" for part in (red, green, blue))


def round_(part: float) -> int:
    """A colour's part in 0–255."""
    return max(0, min(255, int(part * 255 + 0.5)))
