"""Dates and times of day in answers."""

from __future__ import annotations

import calendar
import re

from tasks.math.nodes import Moment

_MONTHS = [name.lower() for name in calendar.month_name[1:]]
_MONTH = "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
_DATES = (
    re.compile(rf"(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?P<year>\d{{4}}))?"),
    re.compile(rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})(?:,? (?P<year>\d{{4}}))?"),
)
_TIME = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?P<second>:[0-5]\d)?(?: ?(?P<half>[ap])\.? ?m\.?)?")
_HOUR = re.compile(r"(?P<hour>\d{1,2}) ?(?P<half>[ap])\.? ?m\.?")


def moment(text: str) -> Moment | None:
    """A date (month, day, year) or a time of day (hour, minute, second, half of the day), if a text is one."""
    plain = " ".join(text.lower().split()).removesuffix(".") if len(text) < 60 else ""
    for pattern in _DATES:
        if match := pattern.fullmatch(plain):
            return Moment("date", (match["month"][:3], str(int(match["day"])), match["year"]))
    if match := _TIME.fullmatch(plain):
        return _time(int(match["hour"]), match["minute"], match["second"] or ":00", match["half"])
    if match := _HOUR.fullmatch(plain):
        return _time(int(match["hour"]), "00", ":00", match["half"])
    return None


def _time(hour: int, minute: str, second: str, half: str | None) -> Moment | None:
    """A time of day by the clock of twelve hours; one by that of twenty-four tells the half of the day itself."""
    if hour > 24 or (half and not 1 <= hour <= 12):
        return None
    if not half and (hour > 12 or hour == 0):
        half = "a" if hour in (0, 24) else "p"
    return Moment("time", (str(hour % 12), minute, second, half))


def same_moment(one: Moment, other: Moment) -> bool:
    """True if two dates or times agree; a year, or a.m. and p.m., may be left out on one side."""
    if one.kind != other.kind:
        return False
    return all(mine == theirs or None in (mine, theirs) for mine, theirs in zip(one.fields, other.fields))
