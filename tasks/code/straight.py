"""Straight-line functions of one whole number, such as the miniature's, computed without running a program.

A process that is forked, confined and ended costs 3 ms of a processor; with 4 it was a third of a run of the study; the
arithmetic costs 30 µs. A source is taken only if all of its lines have the form below, letter for letter. It is read as
text and never compiled, so all that it can do is arithmetic on small numbers. Whatever else a program says, and one
that would raise an error, is for the sandbox.
"""

from __future__ import annotations

import json
import operator
import re
from keyword import iskeyword

from tasks.sandbox.job import Job, Result

_NAME = r"[a-z]\w*"
_VALUE = rf"{_NAME}|0|[1-9][0-9]{{0,8}}"
_HEAD = re.compile(rf"def ({_NAME})\(({_NAME})\):", re.ASCII)
_TERM = rf"(?P<left>{_VALUE})(?: ?(?P<sign>[-+*%]) ?(?P<right>{_VALUE}))?|-(?P<negated>{_VALUE})"
_STATEMENT = re.compile(rf"(?P<indent> +)(?:return |(?P<name>{_NAME}) ?= ?)(?:{_TERM})", re.ASCII)
_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod}
_LONGEST = 2000
_LARGEST = 2**63

_Statement = tuple[str | None, str, str, str]
"""The name that is set, None to return; and what it gets: left value, sign and right value. An empty value is 0."""


def computed(job: Job) -> Result | None:
    """The sandbox's result of a job, if it can be computed here; else None."""
    if job.kind != "call" or job.prelude or job.setup or len(job.code) > _LONGEST:
        return None
    read = _read(job.code, job.entry_point)
    if read is None:
        return None
    values = []
    for entry_point, arguments, keywords in json.loads(job.calls):
        plain = not entry_point and not keywords and [type(argument) for argument in arguments] == [int]
        value = _value(*read, arguments[0]) if plain else None
        if value is None:
            return None
        values.append(value)
    return Result("exited", 0, 0.0, "".join(f'["value", {value}]\n' for value in values).encode(), b"")


def _read(code: str, entry_point: str) -> tuple[str, list[_Statement]] | None:
    """The parameter and the statements of a straight-line function of this name, with nothing beside it."""
    head, *lines = code.rstrip(" \n").split("\n")
    named = _HEAD.fullmatch(head)
    if named is None or named[1] != entry_point or iskeyword(named[1]) or iskeyword(named[2]):
        return None
    statements: list[_Statement] = []
    indents = set()
    for line in lines:
        found = _STATEMENT.fullmatch(line)
        if found is None or iskeyword(found["name"] or ""):
            return None
        indents.add(found["indent"])
        if found["negated"]:
            statements.append((found["name"], "", "-", found["negated"]))
        else:
            statements.append((found["name"], found["left"], found["sign"] or "+", found["right"] or ""))
    returns = [number for number, (name, *_) in enumerate(statements, 1) if name is None]
    return (named[2], statements) if len(indents) == 1 and returns == [len(statements)] else None


def _value(parameter: str, statements: list[_Statement], argument: int) -> int | None:
    """The function's value for an argument; None where it would fail, or a number is not small."""
    known, value = {"": 0, parameter: argument}, 0
    for name, left, sign, right in statements:
        a, b = (int(one) if one[:1].isdigit() else known.get(one) for one in (left, right))
        if a is None or b is None or (sign == "%" and b == 0):
            return None
        value = _SIGNS[sign](a, b)
        if abs(value) >= _LARGEST:
            return None
        if name is not None:
            known[name] = value
    return value
