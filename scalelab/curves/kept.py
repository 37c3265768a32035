"""Analyses kept on disk by the content of their points, for commands that read many runs again and again.

What an entry gives is to the bit what `analyse` gives, and a damaged entry is computed and written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves.analysis import Analysis, Rate, analyse, analyse_all
from scalelab.curves.checks import BackTest, Options, Outlier
from scalelab.curves.draws import CurveDraws
from scalelab.curves.fitting.density import Change
from scalelab.curves.fitting.joint import Fit, FitError
from scalelab.curves.fitting.models import POWER, SIGMOID
from scalelab.curves.fitting.noise import Prior
from scalelab.curves.fitting.posterior import Draws
from scalelab.curves.fitting.shapes import OTHERS
from scalelab.kept import key_of, write_entry
from scalelab.packed import Packing
from scalelab.reading.curve import Curve

MOST_ENTRIES = 1000
"""Kept analyses, of about 300 KB each, above which the oldest quarter is removed."""


def analyse_kept(
    curves: Sequence[Curve], options: Options, folder: Path
) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Analyses and refusals as `analyse_all` gives them, from the folder where they are kept."""
    return analyse_all(curves, options, partial(_one, folder=folder))


def _one(item: Curve, options: Options | None, folder: Path) -> Analysis:
    bare = replace(item, places={})  # where a run lies on the axes of a law does not move its fit
    path = folder / f"{key_of('analysis', *_content(bare), options)}.draws"
    try:
        found = ENTRIES.value(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        found = None
    if isinstance(found, Analysis):
        placed = replace(found, fit=replace(found.fit, curve=replace(found.fit.curve, places=item.places)))
        vars(placed).update(_numbers(found))
        return placed
    if isinstance(found, str):
        raise FitError(found)
    try:
        made = analyse(item, options)
    except FitError as error:
        write_entry(path, ENTRIES.entry(str(error)), MOST_ENTRIES)
        raise
    write_entry(path, ENTRIES.entry(made), MOST_ENTRIES)
    return made


def _content(item: Curve) -> list[object]:
    """All that a curve holds, as `key_of` takes it."""
    parts: list[object] = []
    for name in (field.name for field in fields(item)):
        value = getattr(item, name)
        members = sorted(value.items()) if isinstance(value, Mapping) else [(name, value)]
        for key, member in members:
            parts += [key, member.tobytes() if isinstance(member, np.ndarray) else member]
    return parts


def _numbers(item: Analysis) -> dict[str, Any]:
    """Cached properties of an analysis, which every comparison asks for."""
    names = () if item.curves is None else ("params", "seen", "farthest", "_rates")
    return {name: getattr(item, name) for name in names}


ENTRIES = Packing(
    *(Analysis, BackTest, Change, Curve, CurveDraws, Draws, Fit, Outlier, Prior, Rate),
    named={model.name: model for model in (SIGMOID, POWER, *OTHERS)},
    beside={Analysis: _numbers},
)
