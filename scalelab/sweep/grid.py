"""A family made on the command line: `--sweep CLASS.FIELD=a,b,c`, one run per value, or per combination of several."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from scalelab.errors import LabError

_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    name: str
    """Name of its folder, such as `lr=1e-4,k=4`."""
    sets: tuple[str, ...]
    """Bindings of the combination for `--set`."""


def grid(sweeps: Sequence[str]) -> list[Point]:
    """Combine the values of several settings.

    Args:
        sweeps: texts such as `OptimizerConfig.lr=1e-4,3e-4`; commas within brackets and quotes do not separate.

    Returns:
        Every combination, the last setting changing first; one point without a name if there are no settings.

    Raises:
        LabError: a text has no values, or two values of one setting make the same folder.
    """
    settings = [_values(text) for text in sweeps]
    points = []
    for values in itertools.product(*settings):
        name = ",".join(f"{key.rpartition('.')[2]}={re.sub(r'[^A-Za-z0-9_.+-]+', '_', value)}" for key, value in values)
        points.append(Point(name, tuple(f"{key}={value}" for key, value in values)))
    names = [point.name for point in points]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LabError(f"--sweep has two runs called {twice}: leave one of them out")
    return points


def _values(text: str) -> list[tuple[str, str]]:
    key, equals, listed = (part.strip() for part in text.partition("="))
    values, depth, quote = [""], 0, ""
    for char in listed:
        if quote or char in "'\"":
            quote = "" if char == quote else quote or char
        depth += 0 if quote else _BRACKETS.get(char, 0)
        if char == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += char
    if not equals or "." not in key or not all(value.strip() for value in values):
        raise LabError(f"--sweep {text}: write it as CLASS.FIELD=VALUE,VALUE, such as OptimizerConfig.lr=1e-4,3e-4")
    return [(key, value.strip()) for value in values]
