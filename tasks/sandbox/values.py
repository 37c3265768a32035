"""Python values as JSON, and back, without losing their types.

Plain JSON stays what it is. What JSON cannot say is an object with one key: `{"$tuple": […]}`, `{"$set": […]}`,
`{"$frozenset": […]}`, `{"$dict": [[key, value], …]}`, `{"$float": "nan"}`, `{"$int": "0x…"}`,
`{"$complex": [re, im]}`, `{"$bytes": "hex"}`, `{"$bytearray": "hex"}`, `{"$fraction": [numerator, denominator]}`,
`{"$decimal": "0.30"}`, `{"$deque": […]}`, `{"$datetime": "2020-01-01T05:00:00"}`, `{"$date": …}`, `{"$time": …}`,
`{"$timedelta": [days, seconds, microseconds]}`, `{"$named": [[name, …], […]]}` of a named tuple. A value that is no
data is described by `{"$other": {…}}`, with `tasks.sandbox.objects`.
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
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
        ValueError, TypeError, ArithmeticError: a tagged object with the wrong content.
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


def _write_tuple(value: tuple[Any, ...], other: Other) -> Any:
    items = [encode(item, other) for item in tuple.__iter__(value)]
    names = getattr(type(value), "_fields", None)
    if isinstance(names, tuple) and len(names) == len(items) and all(type(name) is str for name in names):
        return {"$named": [list(names), items]}
    return {"$tuple": items}


def _write_span(value: datetime.timedelta, _: Other) -> Any:
    span = datetime.timedelta
    parts = (span.days.__get__(value), span.seconds.__get__(value), span.microseconds.__get__(value))
    return {"$timedelta": [int(part) for part in parts]}


_WRITERS: tuple[tuple[type, Callable[[Any, Other], Any]], ...] = (
    (str, lambda value, _: str.__str__(value)),
    (int, _write_int),
    (float, _write_float),
    (list, lambda value, other: [encode(item, other) for item in list.__iter__(value)]),
    (tuple, _write_tuple),
    (dict, _write_dict),
    (set, lambda value, other: {"$set": [encode(item, other) for item in set.__iter__(value)]}),
    (frozenset, lambda value, other: {"$frozenset": [encode(item, other) for item in frozenset.__iter__(value)]}),
    (complex, lambda value, _: {"$complex": [encode(value.real), encode(value.imag)]}),
    (bytes, lambda value, _: {"$bytes": bytes.hex(value)}),
    (bytearray, lambda value, _: {"$bytearray": bytearray.hex(value)}),
    (Decimal, lambda value, _: {"$decimal": Decimal.__str__(value)}),
    (Fraction, lambda value, _: {"$fraction": [encode(value.numerator), encode(value.denominator)]}),
    (deque, lambda value, other: {"$deque": [encode(item, other) for item in deque.__iter__(value)]}),
    (datetime.datetime, lambda value, _: {"$datetime": datetime.datetime.isoformat(value)}),
    (datetime.date, lambda value, _: {"$date": datetime.date.isoformat(value)}),
    (datetime.time, lambda value, _: {"$time": datetime.time.isoformat(value)}),
    (datetime.timedelta, _write_span),
)


def _read_fraction(numerator: int, denominator: int) -> Fraction:
    # To reduce it takes the square of its length.
    if max(numerator.bit_length(), denominator.bit_length()) > _LONG_INT_BITS:
        raise ValueError("a fraction of so many digits is not read")
    return Fraction(numerator, denominator)


_READERS: dict[str, Callable[[Any, Special], Any]] = {
    "$tuple": lambda content, special: tuple(decode(item, special) for item in content),
    "$set": lambda content, special: {decode(item, special) for item in content},
    "$frozenset": lambda content, special: frozenset(decode(item, special) for item in content),
    "$dict": lambda content, special: {decode(key, special): decode(item, special) for key, item in content},
    "$float": lambda content, _: float(content),
    "$int": lambda content, _: int(content, 16),
    "$complex": lambda content, _: complex(*map(decode, content)),
    "$bytes": lambda content, _: bytes.fromhex(content),
    "$bytearray": lambda content, _: bytearray.fromhex(content),
    "$decimal": lambda content, _: Decimal(content),
    "$fraction": lambda content, _: _read_fraction(*map(decode, content)),
    "$deque": lambda content, special: deque(decode(item, special) for item in content),
    "$datetime": lambda content, _: datetime.datetime.fromisoformat(content),
    "$date": lambda content, _: datetime.date.fromisoformat(content),
    "$time": lambda content, _: datetime.time.fromisoformat(content),
    "$timedelta": lambda content, _: datetime.timedelta(*content),
    "$named": lambda content, special: tuple(decode(item, special) for item in content[1]),
}
