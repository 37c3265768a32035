"""Units of measurement: their names, and how many base units one of them is, exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

Dimension = tuple[tuple[str, int], ...]
"""Exponents of base units, sorted by name: `(("m", 1), ("s", -1))`."""

_MOST_POWER = 6
# Symbol → (size, base units, names, takes prefixes).
_TABLE: tuple[tuple[str, str, str, str, bool], ...] = (
    ("m", "1", "m", "meter metre", True),
    ("inch", "254/10000", "m", "in inches", False),
    ("ft", "3048/10000", "m", "foot feet", False),
    ("yd", "9144/10000", "m", "yard", False),
    ("mi", "1609344/1000", "m", "mile", False),
    ("g", "1", "g", "gram gramme", True),
    ("t", "1000000", "g", "tonne", False),
    ("oz", "28349523125/1000000000", "g", "ounce", False),
    ("lb", "45359237/100000", "g", "lbs pound", False),
    ("s", "1", "s", "sec second", True),
    ("min", "60", "s", "minute", False),
    ("h", "3600", "s", "hr hour", False),
    ("day", "86400", "s", "", False),
    ("week", "604800", "s", "", False),
    ("month", "1", "month", "", False),
    ("yr", "12", "month", "year", False),
    ("A", "1", "A", "amp ampere", True),
    ("K", "1", "K", "kelvin", True),
    ("mol", "1", "mol", "mole", True),
    ("cd", "1", "cd", "candela", True),
    ("L", "1/1000", "m3", "l liter litre", True),
    ("gal", "3785411784/1000000000000", "m3", "gallon", False),
    ("qt", "946352946/1000000000000", "m3", "quart", False),
    ("pt", "473176473/1000000000000", "m3", "pint", False),
    ("cup", "2365882365/10000000000000", "m3", "", False),
    ("Hz", "1", "s-1", "hertz", True),
    ("N", "1000", "g m s-2", "newton", True),
    ("Pa", "1000", "g m-1 s-2", "pascal", True),
    ("J", "1000", "g m2 s-2", "joule", True),
    ("cal", "4184", "g m2 s-2", "calorie", True),
    ("eV", "1602176634/10000000000000000000000000", "g m2 s-2", "", True),
    ("W", "1000", "g m2 s-3", "watt", True),
    ("C", "1", "A s", "coulomb", True),
    ("V", "1000", "g m2 s-3 A-1", "volt", True),
    ("ohm", "1000", "g m2 s-3 A-2", "Omega", True),
    ("F", "1/1000", "g-1 m-2 s4 A2", "farad", True),
    ("T", "1000", "g s-2 A-1", "tesla", True),
    ("Wb", "1000", "g m2 s-2 A-1", "weber", True),
    ("H", "1000", "g m2 s-2 A-2", "henry", True),
    ("bit", "1", "bit", "", True),
    ("byte", "8", "bit", "", True),
    ("rpm", "1/60", "s-1", "", False),
    ("mph", "1609344/3600000", "m s-1", "", False),
    ("kph", "10/36", "m s-1", "kmh", False),
    ("acre", "40468564224/10000000", "m2", "", False),
    ("ha", "10000", "m2", "hectare", False),
    ("cent", "1", "dollar", "", False),
    ("dollar", "100", "dollar", "usd buck", False),
    ("euro", "1", "euro", "", False),
    ("pounds", "1", "sterling", "", False),
    ("yen", "1", "yen", "yuan", False),
    ("celsius", "1", "celsius", "", False),
    ("fahrenheit", "1", "fahrenheit", "", False),
    ("unit", "1", "", "", False),
    ("radian", "1", "", "rad", False),
)
_PREFIXES = {
    "n": "1/1000000000", "u": "1/1000000", "μ": "1/1000000", "m": "1/1000", "c": "1/100", "d": "1/10", "k": "1000",
    "M": "1000000", "G": "1000000000", "T": "1000000000000",
}  # fmt: skip
_LONG_PREFIXES = {
    "nano": "n", "micro": "u", "milli": "m", "centi": "c", "deci": "d", "kilo": "k", "mega": "M", "giga": "G",
    "tera": "T",
}  # fmt: skip
MONEY = {"$": ("dollar", Fraction(100)), "euro": ("euro", Fraction(1)), "pounds": ("sterling", Fraction(1)),
         "yen": ("yen", Fraction(1)), "texteuro": ("euro", Fraction(1))}  # fmt: skip
"""Signs of money: base unit and size."""

_Unit = tuple[Fraction, dict[str, int]]


def _base(text: str) -> dict[str, int]:
    found = re.findall(r"([a-zA-Z]+)(-?\d+)?", text)
    return {name: int(power or 1) for name, power in found}


def _names() -> dict[str, _Unit]:
    names: dict[str, _Unit] = {}
    for symbol, size, base, others, prefixed in _TABLE:
        for name in (symbol, *others.split()):
            unit = (Fraction(size), _base(base))
            names.setdefault(name, unit)
            if len(name) > 2:
                names.setdefault(f"{name}s", unit)
            if not prefixed:
                continue
            for prefix, factor in _PREFIXES.items() if len(name) <= 3 or name == "Omega" else ():
                names.setdefault(f"{prefix}{name}", (unit[0] * Fraction(factor), unit[1]))
            for prefix, short in _LONG_PREFIXES.items() if len(name) > 2 else ():
                names.setdefault(f"{prefix}{name}", (unit[0] * Fraction(_PREFIXES[short]), unit[1]))
                names.setdefault(f"{prefix}{name}s", names[f"{prefix}{name}"])
    return names


_NAMES = _names()
_ATOM = re.compile(r"([A-Za-zμ]+)\.?(?: ?\^ ?(-?\d))?")
_SQUARE = re.compile(r"\b(square|sq|cubic|cu)\.? ([A-Za-z]+)")


def is_unit(name: str) -> bool:
    """True for the name of one unit."""
    return name in _NAMES or (len(name) > 2 and name.lower() in _NAMES)


@lru_cache(maxsize=4096)
def measure(text: str) -> tuple[Dimension, Fraction] | None:
    """The dimension and size of a unit such as `km/h`, `square inches` or `kg m s^-2`; None for what is no unit."""
    text = _SQUARE.sub(lambda found: f"{found[2]}^{2 if found[1][0] == 's' else 3}", text.strip())
    text = re.sub(r"\bper\b", "/", text)
    size, dimension, sign = Fraction(1), dict[str, int](), 1
    pieces = re.split(r"([/*·. ]+)", text)
    for place, piece in enumerate(pieces):
        if place % 2:
            slashes = piece.count("/")
            if slashes > 1 or (slashes and not place):
                return None
            sign = -1 if slashes else sign
            continue
        if not piece and place == 0 and len(pieces) > 1:
            continue
        found = _ATOM.fullmatch(piece)
        if not found or not is_unit(found[1]):
            return None
        unit = _NAMES.get(found[1]) or _NAMES[found[1].lower()]
        power = sign * int(found[2] or 1)
        if abs(power) > _MOST_POWER:
            return None
        size *= unit[0] ** power
        for base, exponent in unit[1].items():
            dimension[base] = dimension.get(base, 0) + power * exponent
    return tuple(sorted((base, power) for base, power in dimension.items() if power)), size
