"""Analyses kept on disk by the content of their points, for commands that read many runs again and again.

An entry is a line of JSON and the numbers of all arrays, one after the other; only names of classes listed here are
made from it. What it gives is to the bit what `analyse` gives, and a damaged entry is computed and written anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from scalelab.curves.analysis import Analysis, Rate, analyse, analyse_all
from scalelab.curves.checks import BackTest, Options, Outlier
from scalelab.curves.draws import CurveDraws
from scalelab.curves.fitting.density import Change
from scalelab.curves.fitting.joint import Fit, FitError
from scalelab.curves.fitting.models import POWER, SIGMOID, Model, PowerLaw, Sigmoid
from scalelab.curves.fitting.noise import Prior
from scalelab.curves.fitting.posterior import Draws
from scalelab.curves.fitting.shapes import OTHERS
from scalelab.kept import key_of, write_entry
from scalelab.reading.curve import Curve

MOST_ENTRIES = 1000
"""Kept analyses, of about 300 KB each, above which the oldest quarter is removed."""

CLASSES: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (Analysis, BackTest, Change, Curve, CurveDraws, Draws, Fit, Outlier, Prior, Rate)
}
NUMBERS = ("params", "seen", "farthest", "_rates")
"""Cached properties of an analysis that are kept with it: every comparison asks for them."""

MODELS: dict[str, Model] = {model.name: model for model in (SIGMOID, POWER, *OTHERS)}
DTYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}


def analyse_kept(
    curves: Sequence[Curve], options: Options, folder: Path
) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Analyses and refusals as `analyse_all` gives them, from the folder where they are kept."""
    return analyse_all(curves, options, partial(_one, folder=folder))


def _one(item: Curve, options: Options | None, folder: Path) -> Analysis:
    bare = replace(item, places={})  # where a run lies on the axes of a law does not move its fit
    path = folder / f"{key_of('analysis', *_content(bare), options)}.draws"
    try:
        found = entry_value(path.read_bytes())
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
        write_entry(path, entry_bytes(str(error)), MOST_ENTRIES)
        raise
    write_entry(path, entry_bytes(made), MOST_ENTRIES)
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


def entry_bytes(value: Any) -> bytes:
    """An analysis, or the reason of a refusal, as bytes with their digest in front."""
    arrays: list[bytes] = []
    body = json.dumps(_packed(value, arrays)).encode() + b"\n" + b"".join(arrays)
    return hashlib.sha256(body).digest() + body


def entry_value(content: bytes) -> Any:
    """The value that `entry_bytes` was given.

    Raises:
        ValueError: the content is damaged.
    """
    body = content[32:]
    if hashlib.sha256(body).digest() != content[:32]:
        raise ValueError("damaged")
    head, _, numbers = body.partition(b"\n")
    return _unpacked(json.loads(head), numbers, [0])


def _numbers(item: Analysis) -> dict[str, Any]:
    return {} if item.curves is None else {name: getattr(item, name) for name in NUMBERS}


def _packed(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind
        arrays.append(np.ascontiguousarray(value, DTYPES[kind]).tobytes())
        return ["array", kind, list(value.shape)]
    if isinstance(value, (Sigmoid, PowerLaw)):
        return ["model", value.name]
    if is_dataclass(value):
        kept = {field.name: _packed(getattr(value, field.name), arrays) for field in fields(value)}
        beside = _packed(_numbers(value), arrays) if isinstance(value, Analysis) else ["dict", []]
        return ["object", type(value).__name__, kept, beside]
    if isinstance(value, (tuple, list)):
        return ["tuple", [_packed(member, arrays) for member in value]]
    if isinstance(value, Mapping):
        return ["dict", [[key, _packed(member, arrays)] for key, member in value.items()]]
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(packed: Any, numbers: bytes, at: list[int]) -> Any:
    """The value, its arrays taken from `numbers` in the order in which they were packed."""
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed
    if kind == "array":
        dtype, count = np.dtype(DTYPES[rest[0]]), int(np.prod(rest[1], dtype=int))
        found = np.frombuffer(numbers, dtype, count, at[0]).reshape(rest[1])
        at[0] += count * dtype.itemsize
        return found
    if kind == "model":
        return MODELS[rest[0]]
    if kind == "object":
        made = CLASSES[rest[0]](**{name: _unpacked(member, numbers, at) for name, member in rest[1].items()})
        beside = _unpacked(rest[2], numbers, at)
        vars(made).update(
            {name: MappingProxyType(one) if isinstance(one, dict) else one for name, one in beside.items()}
        )
        return made
    members = [(key, _unpacked(member, numbers, at)) for key, member in rest[0]] if kind == "dict" else None
    return tuple(_unpacked(member, numbers, at) for member in rest[0]) if members is None else dict(members)
