"""Compare what a program printed with what was expected, outside the program's process.

Checkers: `lines` compares line by line and word by word; `words` ignores where lines end; `any_order` takes the lines
in any order; `{"code": source}` is Python that defines `check(stdin, expected, output)` and runs in the sandbox.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tasks.code.returned import EqualityRules
from tasks.errors import TaskError

CHECKERS = ("lines", "words", "any_order")

# Contests take these words in any case.
_ANY_CASE = {"yes", "no", "possible", "impossible", "true", "false"}
# Longer words are no numbers that anybody means to print, and converting them takes long.
_LONGEST_NUMBER = 400


@dataclass(frozen=True)
class Checker:
    """Rules for comparing outputs.

    Attributes:
        kind: one of `CHECKERS`; empty with `code`.
        comparison: tolerance of numbers.
        code: source of a checker program, which runs in the sandbox.
    """

    kind: str
    comparison: EqualityRules
    code: str = ""

    def same(self, expected: str, actual: str) -> bool:
        """True if two outputs agree.

        Space around words and empty lines do not count, nor the case of yes and no. Numbers agree within the tolerance
        where the expected one is written with a point or an exponent.
        """
        mine, theirs = _lines(expected), _lines(actual)
        if self.kind == "words":
            mine, theirs = [list(chain(*mine))], [list(chain(*theirs))]
        if len(mine) != len(theirs):
            return False
        if self.kind == "any_order":
            return self._same_in_any_order(mine, theirs)
        return all(map(self._same_line, mine, theirs))

    def _same_in_any_order(self, expected: list[list[str]], actual: list[list[str]]) -> bool:
        """Equal lines cancel out; what is left is compared in order, so that this stays n log n."""
        mine, theirs = (Counter(map(tuple, lines)) for lines in (expected, actual))
        left, other = sorted((mine - theirs).elements()), sorted((theirs - mine).elements())
        return all(map(self._same_line, map(list, left), map(list, other)))

    def _same_line(self, expected: list[str], actual: list[str]) -> bool:
        return len(expected) == len(actual) and all(map(self._same_word, expected, actual))

    def _same_word(self, expected: str, actual: str) -> bool:
        if expected == actual:
            return True
        if expected.lower() in _ANY_CASE:
            return expected.lower() == actual.lower()
        if not any(mark in expected for mark in ".eE"):
            return False
        mine, theirs = _number(expected), _number(actual)
        return mine is not None and theirs is not None and self.comparison.close(mine, theirs, expected)


def parse_checker(written: Any, comparison: EqualityRules) -> Checker:
    """Read the `checker` of tests.

    Raises:
        TaskError: it is neither the name of one nor source of one.
    """
    if isinstance(written, Mapping) and set(written) == {"code"} and isinstance(written["code"], str):
        return Checker("", comparison, written["code"])
    if written not in CHECKERS:
        raise TaskError(f'unknown checker {str(written)[:60]}: use {", ".join(CHECKERS)}, or {{"code": source}}')
    return Checker(written, comparison)


def _lines(output: str) -> list[list[str]]:
    return [words for line in output.split("\n") if (words := line.split())]


def _number(word: str) -> float | None:
    # Spelt-out digits only: `float` would also take "infinity", "1_000" and digits of other scripts.
    if len(word) > _LONGEST_NUMBER or not set(word) <= set("0123456789+-.eE"):
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
