"""Units of measurement: what a unit is called, and how many of its dimension's base unit it is, exactly."""

from __future__ import annotations

from fractions import Fraction

# Dimension → {unit: (its size in the dimension's first unit, other names)}.
_TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "length": {
        "m": ("1", "meter metre"),
        "mm": ("1/1000", "millimeter millimetre"),
        "cm": ("1/100", "centimeter centimetre"),
        "dm": ("1/10", "decimeter decimetre"),
        "km": ("1000", "kilometer kilometre"),
        "inch": ("254/10000", "in inches"),
        "foot": ("3048/10000", "ft feet"),
        "yard": ("9144/10000", "yd"),
        "mile": ("1609344/1000", "mi"),
    },
    "mass": {
        "g": ("1", "gram"),
        "mg": ("1/1000", "milligram"),
        "kg": ("1000", "kilogram"),
        "ounce": ("28349523125/1000000000", "oz"),
        "pound": ("45359237/100000", "lb"),
    },
    "time": {
        "s": ("1", "second sec"),
        "minute": ("60", "min"),
        "hour": ("3600", "h hr"),
        "day": ("86400", ""),
        "week": ("604800", ""),
    },
    "calendar": {"month": ("1", ""), "year": ("12", "yr")},
    "volume": {"l": ("1", "liter litre"), "ml": ("1/1000", "milliliter millilitre"), "cl": ("1/100", "")},
    "money": {"cent": ("1", ""), "dollar": ("100", "")},
    "euro": {"euro": ("1", "")},
    "angle": {"^\\circ": ("1", "degree")},
    "speed": {"km/h": ("1", "kph kmh"), "mph": ("1609344/1000000", ""), "m/s": ("36/10", "")},
}
_POWERS = {"length": 3}


def _names() -> dict[str, tuple[str, Fraction]]:
    names: dict[str, tuple[str, Fraction]] = {}
    for dimension, units in _TABLE.items():
        for unit, (size, others) in units.items():
            for name in (unit, *others.split()):
                for power in range(1, _POWERS.get(dimension, 1) + 1):
                    shown = "" if power == 1 else f"^{power}"
                    measure = (f"{dimension}{shown}", Fraction(size) ** power)
                    names[f"{name}{shown}"] = measure
                    if len(name) > 2:
                        names[f"{name}s{shown}"] = measure
    return names


_NAMES = _names()
NAMES = sorted({name.partition("^")[0] for name in _NAMES if name[0].isalpha()}, key=len, reverse=True)
"""Every name of a unit, longest first."""


def measure(unit: str) -> tuple[str, Fraction] | None:
    """The dimension of a unit and its size there; None for a word that is no unit of measurement, such as `apples`."""
    return _NAMES.get(unit)
