"""Python values as JSON, and back, without losing their types.

Plain JSON stays what it is. What JSON cannot say is an object with one key: `{"$tuple": […]}`, `{"$set": […]}`,
`{"$frozenset": […]}`, `{"$dict": [[key, value], …]}`, `{"$float": "nan"}`, `{"$int": "0x…"}`,
`{"$complex": [re, im]}`, `{"$bytes": "hex"}`. A value that is no data is described by `{"$other": {…}}`, with
`tasks.sandbox.objects`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

# `int()` refuses longer decimal strings (sys.set_int_max_str_digits); hexadecimal has no limit and costs linear time.
_LONG_INT_BITS = 8192

Special = Mapping[str, Callable[[Any], Any]]
"""Tags of one's own, such as `$expr`, and what makes a value of their content."""


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Write a value as JSON.

    Subclasses become what they extend (`defaultdict` a dict, `IntEnum` an int), read through the base class's own
    methods so that what a submission overrides is not asked. A NumPy scalar is the number that it holds.

    Args:
        value: the value.
        other: writes what is no data; None refuses it.

    Raises:
        TypeError: a value that is not data.
        RecursionError: nested too deeply, or containing itself.
    """
    if value is None or value is True or value is False:
        return value
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value, other)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), other)
    if other is not None:
        return other(value)
    raise TypeError(f"a {type(value).__name__} is not plain data")


def decode(written: Any, special: Special | None = None) -> Any:
    """Read the value that `encode` wrote.

    Args:
        written: what `json.loads` returned.
        special: further tags; an object with another tag of one key is a plain dict.

    Raises:
        ValueError, TypeError: a tagged object with the wrong content.
    """
    special = special or {}
    if isinstance(written, list):
        return [decode(item, special) for item in written]
    if not isinstance(written, dict):
        return written
    if len(written) == 1:
        tag, content = next(iter(written.items()))
        if tag in special:
            return special[tag](content)
        if tag in _READERS:
            return _READERS[tag](content, special)
    return {key: decode(item, special) for key, item in written.items()}


Other = Callable[[Any], Any] | None


def _write_int(value: int, _: Other) -> Any:
    plain = int.__index__(value)
    return plain if plain.bit_length() < _LONG_INT_BITS else {"$int": hex(plain)}


def _write_float(value: float, _: Other) -> Any:
    plain = float.__float__(value)
    return plain if math.isfinite(plain) else {"$float": repr(plain)}


def _write_dict(value: dict[Any, Any], other: Other) -> Any:
    items = list(dict.items(value))
    plain = all(type(key) is str for key, _ in items)
    if plain and not (len(items) == 1 and items[0][0].startswith("$")):
        return {key: encode(item, other) for key, item in items}
    return {"$dict": [[encode(key, other), encode(item, other)] for key, item in items]}


_WRITERS: tuple[tuple[type, Callable[[Any, Other], Any]], ...] = (
    (str, lambda value, _: str.__str__(value)),
    (int, _write_int),
    (float, _write_float),
    (list, lambda value, other: [encode(item, other) for item in list.__iter__(value)]),
    (tuple, lambda value, other: {"$tuple": [encode(item, other) for item in tuple.__iter__(value)]}),
    (dict, _write_dict),
    (set, lambda value, other: {"$set": [encode(item, other) for item in set.__iter__(value)]}),
    (frozenset, lambda value, other: {"$frozenset": [encode(item, other) for item in frozenset.__iter__(value)]}),
    (complex, lambda value, _: {"$complex": [encode(value.real), encode(value.imag)]}),
    (bytes, lambda value, _: {"$bytes": bytes.hex(value)}),
)

_READERS: dict[str, Callable[[Any, Special], Any]] = {
    "$tuple": lambda content, special: tuple(decode(item, special) for item in content),
    "$set": lambda content, special: {decode(item, special) for item in content},
    "$frozenset": lambda content, special: frozenset(decode(item, special) for item in content),
    "$dict": lambda content, special: {decode(key, special): decode(item, special) for key, item in content},
    "$float": lambda content, _: float(content),
    "$int": lambda content, _: int(content, 16),
    "$complex": lambda content, _: complex(*map(decode, content)),
    "$bytes": lambda content, _: bytes.fromhex(content),
}
