"""Dates, times of day and ratios in answers."""

from __future__ import annotations

import re

_MONTHS = "january february march april may june july august september october november december"
_MONTH = "|".join(f"{name}|{name[:3]}" for name in _MONTHS.split(" "))
_DATES = (
    re.compile(rf"(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?P<year>\d{{4}}))?"),
    re.compile(rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})(?:,? (?P<year>\d{{4}}))?"),
)
_TIME = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?: ?(?P<half>[ap])\.? ?m\.?)?")
_RATIO = re.compile(r"(\d+) ?(?::| to ) ?(\d+)")


def same_moment(gold: str, answer: str) -> bool | None:
    """True if two normalised answers are the same date or time of day; None if they are neither.

    A year, or a.m. and p.m., may be left out on one side.
    """
    gold, answer = _plain(gold), _plain(answer)
    for read in (_date, _time):
        mine, theirs = read(gold), read(answer)
        if mine and theirs:
            return all(one == other or None in (one, other) for one, other in zip(mine, theirs))
        if read is _time and (mine or theirs) and not (":" in gold and ":" in answer):
            return _ratio(gold) is not None and _ratio(gold) == _ratio(answer)
    mine_ratio = _ratio(gold)
    return True if mine_ratio and mine_ratio == _ratio(answer) else None


def _plain(answer: str) -> str:
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", answer).lower().split())


def _date(text: str) -> tuple[str | None, ...] | None:
    for pattern in _DATES:
        if match := pattern.fullmatch(text):
            return match["month"][:3], str(int(match["day"])), match["year"]
    return None


def _time(text: str) -> tuple[str | None, ...] | None:
    match = _TIME.fullmatch(text)
    return match and (str(int(match["hour"])), match["minute"], match["half"])


def _ratio(text: str) -> tuple[int, int] | None:
    match = _RATIO.fullmatch(text) if len(text) < 40 else None
    return match and (int(match[1]), int(match[2]))
