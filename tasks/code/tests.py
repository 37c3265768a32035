"""Tests of a program as data: what `Prompt.gold` holds for code, checked and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.code.convert import convert_asserts
from tasks.code.extract import LANGUAGES
from tasks.code.outputs import Checker, parse_checker
from tasks.code.parsing import parse_python
from tasks.code.returned import THROUGH, EqualityRules
from tasks.errors import TaskError
from tasks.sandbox.values import decode

# `==` is exact in Python; programs that add in another order shall agree all the same.
_ASSERTS_TOLERANCE = 1e-9


@dataclass(frozen=True)
class CallCase:
    """One call and its result.

    Attributes:
        args: positional arguments, as in `tasks.sandbox.values`; `{"$expr": source}` is evaluated beside the program.
        kwargs: keyword arguments, likewise.
        expected: the right result, likewise.
        through: what is applied to the result before comparing, outside the sandbox (a name in
            `tasks.code.returned.THROUGH`).
        tolerance: of floats in this case, relative and absolute; None leaves it to the tests.
        within: absolute tolerance in this case, beside a relative one if there is a `tolerance`.
        others: further right results.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    expected: Any
    through: str = ""
    tolerance: float | None = None
    within: float | None = None
    others: tuple[Any, ...] = ()


@dataclass(frozen=True)
class CallTests:
    """Calls of one function, compared outside."""

    entry_point: str
    cases: tuple[CallCase, ...]
    prelude: str
    setup: str
    comparison: EqualityRules


@dataclass(frozen=True)
class StdinTests:
    """A whole program, run once per (standard input, expected output).

    Attributes:
        cases: input and output.
        checker: how outputs are compared.
        language: one of `tasks.code.extract.LANGUAGES`.
    """

    cases: tuple[tuple[str, str], ...]
    checker: Checker
    language: str = "python"


@dataclass(frozen=True)
class AssertTests:
    """Asserts, test functions or `unittest` classes, run in a process of their own on what the program answers."""

    code: str
    entry_point: str
    prelude: str
    setup: str


Tests = CallTests | StdinTests | AssertTests


def parse_tests(gold: Any) -> Tests:
    """Read the tests of a prompt.

    `{"kind": "call", "entry_point", "cases": [{"args", "kwargs"?, "expected", "through"?, "tolerance"?,
    "within"?, "or"?}]}`,
    `{"kind": "stdin", "cases": [{"stdin", "stdout"}], "checker"?, "language"?}` (see `tasks.code.outputs`) or
    `{"kind": "asserts", "code", "entry_point"?}`; all may have `prelude` (source that runs before the program), `setup`
    (source that runs after it), `tolerance` (of floats, relative and absolute) and `from_asserts` (compare as Python's
    `==` does, see `tasks.code.returned`).

    Asserts that say no more than what calls return are read as calls.

    Raises:
        TaskError: not tests; the message names what is wrong.
    """
    if not isinstance(gold, Mapping):
        raise TaskError(f"tests must be an object with a kind, not {_short(gold)}")
    kind = gold.get("kind")
    try:
        if kind == "call":
            return _call_tests(gold)
        if kind == "stdin":
            cases = tuple((_text(case["stdin"], "stdin"), _text(case["stdout"], "stdout")) for case in _cases(gold))
            checker = parse_checker(gold.get("checker", "lines"), _comparison(gold))
            return StdinTests(cases, checker, _language(gold.get("language", "python")))
        if kind == "asserts":
            return _assert_tests(gold)
    except KeyError as error:
        raise TaskError(f"tests of kind {kind} lack {error}") from error
    raise TaskError(f"unknown kind of tests {_short(kind)}: use call, stdin or asserts")


def _assert_tests(gold: Mapping[str, Any]) -> Tests:
    tests = AssertTests(_python(gold["code"], "code"), *_optional(gold, "entry_point", "prelude", "setup"))
    converted = convert_asserts(tests.code, tests.entry_point, tests.prelude, tests.setup)
    return tests if converted is None else _call_tests(converted)


def _call_tests(gold: Mapping[str, Any]) -> CallTests:
    cases = tuple(_call_case(case) for case in _cases(gold))
    entry_point = _python(gold["entry_point"], "entry_point")
    prelude, setup = _optional(gold, "prelude", "setup")
    return CallTests(entry_point, cases, prelude, setup, _comparison(gold))


def _call_case(case: Mapping[str, Any]) -> CallCase:
    args, kwargs = case.get("args", []), case.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, Mapping):
        raise TaskError(f"args must be a list and kwargs an object, not {_short(args)} and {_short(kwargs)}")
    through = case.get("through", "")
    if through and through not in THROUGH:
        raise TaskError(f"unknown through {_short(through)}: use one of {', '.join(THROUGH)}")
    others = (case["or"],) if "or" in case else ()
    for expected in (case["expected"], *others):
        try:
            decode(expected)
        except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            raise TaskError(f"the expected value {_short(expected)} cannot be read: {error}") from error
    return CallCase(
        args,
        dict(kwargs),
        case["expected"],
        through,
        _optional_number(case, "tolerance"),
        _optional_number(case, "within"),
        others,
    )


def _cases(gold: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cases = gold["cases"]
    if not isinstance(cases, list) or not cases or not all(isinstance(case, Mapping) for case in cases):
        raise TaskError(f"cases must be a list of at least one object, not {_short(cases)}")
    return cases


def _comparison(gold: Mapping[str, Any]) -> EqualityRules:
    tolerance = _optional_number(gold, "tolerance")
    from_asserts = bool(gold.get("from_asserts", False))
    usual = _ASSERTS_TOLERANCE if from_asserts else EqualityRules.tolerance
    return EqualityRules(
        usual if tolerance is None else tolerance, tolerance, tuples_are_lists=not from_asserts, as_asserts=from_asserts
    )


def _optional_number(written: Mapping[str, Any], name: str) -> float | None:
    number = written.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
        raise TaskError(f"{name} must be a number, not {_short(number)}")
    return number


def _language(value: Any) -> str:
    if value not in LANGUAGES:
        raise TaskError(f"unknown language {_short(value)}: use {', '.join(LANGUAGES)}")
    return str(value)


def _optional(gold: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(_python(gold.get(name) or "", name) for name in names)


def _python(value: Any, name: str) -> str:
    """Source that compiles, so that a program is not blamed for it."""
    try:
        parse_python(_text(value, name))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{name} {_short(value)} is no Python: {error}") from error
    return str(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TaskError(f"{name} must be text, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
