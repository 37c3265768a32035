"""Find the rows of a data set that cannot teach: no answer passes, or answers pass that say nothing.

`quick` reads the rows alone, before every run. `thorough` has the verifiers grade each gold in several spellings,
mutants of it and guesses, and runs each reference, the empty and a constant program against its tests.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tasks.cache import cache_folder
from tasks.code.tests import AssertTests, CallTests, StdinTests, Tests, parse_tests
from tasks.data.formats import Item
from tasks.data.loading import SetAside
from tasks.errors import TaskError
from tasks.sandbox.counting import assertions
from tasks.sandbox.values import decode
from tasks.task import Verifier
from tasks.types import Prompt

Numbered = Sequence[tuple[int, Item]]
"""Problems with the numbers of their rows."""

BATCH = 64
"""Rows that are graded at once."""
LONGEST_PROBLEM = 100_000
"""Characters of the longest problem that anybody asks."""

_PROOF = re.compile(r"\b(prove|show)\s+that\b|\bprove\b[^.]*\.\s*$|证明", re.IGNORECASE)
_NO_GOLD = re.compile(
    r"\s*(see\s+(the\s+)?(solution|proof|above|below|figure)|proof\b|proven?\b|q\.?e\.?d|omitted\b|left to|"
    r"answers? (may )?var(y|ies)|true by|证明|略|见解)",
    re.IGNORECASE,
)
_PARTS = re.compile(r"(?:^|[\s$;,])\(?(?:a|i|1)\)\s.*?[\s$;,.]\(?(?:b|ii|2)\)\s", re.DOTALL)
_FIGURE = re.compile(
    r"!\[[^\]]*\]\(|<img\b|\\includegraphics|\b(?:figure|diagram|picture) (?:below|above|shown)|如图", re.I
)
_DRAWN = "[asy]"  # a picture as text, as MATH has them

# Nobody's answer, in forms that verifiers have taken for one.
_GUESSES = ("1=2", "I=-91827.3", "\\gamma+1", "x \\approx 91827.3", "\\frac10", "\\text{see solution}")
_SPELLINGS = {
    "in a box": "So it is $\\boxed{{{}}}$.",
    "in a box with spaces": "\\[\n\\boxed{{ {} }}\n\\]",
    "after 'final answer'": "**Final Answer:** ${}$",
    "in an answer tag": "<answer>{}</answer>",
}
_BOUNDS = (("\\leq", "<"), ("\\geq", ">"), ("\\le ", "< "), ("\\ge ", "> "), ("<", ">"), ("[", "("))
_UNITS = (("km", "mm"), ("cm", "m"), ("hours", "minutes"), ("minutes", "seconds"), ("kg", "g"), ("dollars", "cents"))
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\d?frac\{\d+\}\{\d+\}")

_LONGEST_CONSTANT = 10_000
_CONSTANTS = ("None", "0", "True", "[]", "''")


def quick(rows: Numbered, kind: str) -> list[SetAside]:
    """The rows that cannot teach by what stands in them.

    Args:
        rows: problems with the numbers of their rows.
        kind: `math` or `code`.
    """
    found = [SetAside(number, reason) for number, item in rows if (reason := _long(item) or _READ[kind](item))]
    return sorted(found + _conflicts(rows, {one.row for one in found}), key=lambda one: one.row)


def _long(item: Item) -> str:
    if len(item.problem) > LONGEST_PROBLEM:
        return f"too long: a problem of {len(item.problem):,} characters"
    return ""


def _conflicts(rows: Numbered, without: set[int]) -> list[SetAside]:
    """Copies of one problem that have different golds: which is right, nobody knows."""
    copies: dict[str, list[tuple[int, Item]]] = {}
    for number, item in rows:
        if number not in without:
            copies.setdefault(" ".join(item.problem.casefold().split()), []).append((number, item))
    found = []
    for same in copies.values():
        if _differ([item.gold for _, item in same]):
            others = ", ".join(str(number) for number, _ in same[:5])
            found += [
                SetAside(number, f"conflict: copies of one problem with different golds (rows {others})")
                for number, _ in same
            ]
    return found


def _differ(golds: Sequence[Any]) -> bool:
    """True if two golds are not surely the same; 1/2 and 0.5 are."""
    from tasks.math.equality import decide

    first, *others = {str(gold): gold for gold in golds}.values()
    return any(not (isinstance(one, str) and isinstance(first, str) and decide(first, one)) for one in others)


def _read_math(item: Item) -> str:
    from tasks.math.read import MAX_ANSWER, read

    gold = str(item.gold)
    if len(gold) > MAX_ANSWER:
        return f"too long: no answer of more than {MAX_ANSWER} characters is read"
    if _depths(gold):
        return "unbalanced: no answer in a box can be its braces"
    if _NO_GOLD.match(gold):
        return "no answer: the gold is words about a solution"
    if _PROOF.search(item.problem) and not re.search(r"\d|\\", gold):
        return "proof: nothing that can be compared"
    if _PARTS.search(item.problem) and _PARTS.search(f" {gold} "):
        return "several parts: one answer cannot be read as all"
    if _FIGURE.search(item.problem) and _DRAWN not in item.problem:
        return "figure: the problem shows a picture that is not in its text"
    return "" if read(gold).is_readable else f"unreadable: no other spelling passes for {gold[:60]}"


def _depths(text: str) -> bool:
    """True if the braces of a text do not match."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return True
    return depth != 0


def _read_code(item: Item) -> str:
    try:
        tests = parse_tests(item.gold)
    except TaskError as error:
        return f"unreadable tests: {error}"
    match tests:
        case AssertTests() if not assertions(tests.code):
            return "no assertion: its tests pass every program"
        case CallTests(cases=cases) if (
            len(cases) > 1 and len({repr((case.expected, case.through)) for case in cases}) == 1
        ):
            return "constant: every case expects the same"
        case StdinTests(cases=cases) if not any(stdout.split() for _, stdout in cases):
            return "no output: an empty program passes"
    return ""


_READ: Mapping[str, Callable[[Item], str]] = {"math": _read_math, "code": _read_code}


def thorough(rows: Numbered, kind: str, verifier: Verifier) -> Iterator[tuple[int, str, float]]:
    """Grade what must pass and what must fail, row by row.

    Args:
        rows: problems with the numbers of their rows.
        kind: `math` or `code`.
        verifier: a verifier that takes a completion without `</think>` as a whole.

    Yields:
        The row's number, the reason why it cannot teach or an empty text, and the seconds that its reference took.
    """
    trials = _math_trials if kind == "math" else _code_trials
    for first in range(0, len(rows), BATCH):
        some = rows[first : first + BATCH]
        made = [(number, item, trial) for number, item in some for trial in trials(item)]
        prompts = {number: Prompt(f"check/{number}", "check", "", item.gold) for number, item in some}
        verdicts = verifier.verify([(prompts[number], completion) for number, _, (_, _, completion) in made])
        reasons: dict[int, str] = {}
        seconds: dict[int, float] = {}
        for (number, _, (must_pass, name, _)), verdict in zip(made, verdicts, strict=True):
            if must_pass:
                seconds[number] = max(seconds.get(number, 0.0), verdict.seconds)
            if must_pass and verdict.outcome != "passed":
                reasons.setdefault(number, f"{name} does not pass ({verdict.outcome}: {verdict.detail[:80]})")
            elif not must_pass and verdict.outcome == "passed":
                reasons.setdefault(number, f"{name} passes")
            elif verdict.outcome == "error":
                reasons.setdefault(number, f"no verdict: {verdict.detail[:80]}")
        yield from ((number, reasons.get(number, ""), seconds.get(number, 0.0)) for number, _ in some)


@dataclass(frozen=True)
class Checked:
    """Result of a thorough check.

    Attributes:
        unfit: rows that cannot teach, and why.
        rows: rows that were checked.
        references: rows whose reference ran, of code.
        slowest: the longest that a reference took, in seconds, and its row.
    """

    unfit: list[SetAside]
    rows: int
    references: int
    slowest: tuple[float, int]


def checked(rows: Numbered, kind: str, make: Callable[[], Verifier], origin: Mapping[str, Any]) -> Checked:
    """Check rows thoroughly, once for each content of data set and verifiers.

    Args:
        rows: problems with the numbers of their rows.
        kind: `math` or `code`.
        make: makes a verifier that takes a completion without `</think>` as a whole.
        origin: what the rows were read from, with a digest or commit.
    """
    if (known := known_check(kind, origin)) is not None:
        return known
    path = _cached(kind, origin)
    unfit, references, slowest = [], 0, (0.0, 0)
    with closing(make()) as verifier:
        for number, reason, seconds in thorough(rows, kind, verifier):
            references += seconds > 0 and kind == "code"
            slowest = max(slowest, (seconds, number))
            unfit += [SetAside(number, reason)] if reason else []
    found = Checked(unfit, len(rows), references, slowest)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    told = {"unfit": [[one.row, one.reason] for one in unfit], "rows": len(rows), "references": references}
    partial.write_text(json.dumps(told | {"slowest": slowest}))
    os.replace(partial, path)
    return found


def known_check(kind: str, origin: Mapping[str, Any]) -> Checked | None:
    """The result of an earlier `checked` with this content, and this version of the verifiers; None without one."""
    try:
        known = json.loads(_cached(kind, origin).read_text())
    except FileNotFoundError:
        return None
    unfit = [SetAside(*one) for one in known["unfit"]]
    return Checked(unfit, known["rows"], known["references"], tuple(known["slowest"]))


def _cached(kind: str, origin: Mapping[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps([origin, kind, _sources()], sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "checks" / f"{key}.json"


@cache
def _sources() -> str:
    """A digest of the verifiers' own code: another version may grade in another way."""
    whole = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


Trial = tuple[bool, str, str]
"""A completion that must pass or must fail: which of the two, what it is, and its text."""


def _math_trials(item: Item) -> Iterator[Trial]:
    gold = str(item.gold).strip()
    bare = gold[1:-1].strip() if gold.startswith("$") and gold.endswith("$") and gold.count("$") == 2 else gold
    for name, spelling in _SPELLINGS.items():
        if "$" not in bare or "{}$" not in spelling:
            yield True, f"itself: the gold {name}", spelling.format(bare)
    for mutant in math_mutants(bare):
        yield False, f"mutant: {mutant[:60]} for {bare[:60]}", f"\\boxed{{{mutant}}}"
    for guess in _GUESSES:
        if guess != bare:
            yield False, f"guess: {guess}", f"\\boxed{{{guess}}}"


def math_mutants(gold: str) -> list[str]:
    """Answers that are almost a gold, and wrong: a digit, the sign, a bound or the unit is another."""
    made = []
    if digits := re.search(r"\d+", gold):
        place = digits.end() - 1
        made.append(f"{gold[:place]}{(int(gold[place]) + 3) % 10}{gold[place + 1 :]}")
    if _NUMBER.fullmatch(gold) and re.search(r"[1-9]", gold):
        made.append(gold[1:] if gold.startswith("-") else f"-{gold}")
    for changes in (_BOUNDS, _UNITS):
        changed = [
            gold.replace(old, new, 1) for old, new in changes if old in gold and not (old == "[" and "]" not in gold)
        ]
        made += changed[:1]
    return made


def _code_trials(item: Item) -> Iterator[Trial]:
    tests = parse_tests(item.gold)
    if item.reference.strip():
        yield True, "reference: the set's own program", _fenced(item.reference)
    yield False, "empty: a program that does nothing", _fenced("pass")
    for value in (*_CONSTANTS, *_first_expected(tests)):
        why = "one case" if not isinstance(tests, AssertTests) and len(tests.cases) == 1 else "constant"
        yield False, f"{why}: a program that always gives {value[:40]}", _fenced(_constant(tests, value))


def _fenced(program: str) -> str:
    return program if "```" in program else f"```python\n{program}\n```"


def _first_expected(tests: Tests) -> list[str]:
    """The expected value of the first case, as Python."""
    if isinstance(tests, StdinTests):
        return [repr(tests.cases[0][1])]
    if isinstance(tests, CallTests):
        value = repr(decode(tests.cases[0].expected))
        return [value] if len(value) < _LONGEST_CONSTANT else []
    return []


def _constant(tests: Tests, value: str) -> str:
    """A program that gives a value whatever it is asked."""
    if isinstance(tests, StdinTests):
        return f"print({value}, end='')"
    names = _names(tests)
    anything = f"def anything(*_, **__): return {value}\n"
    maker = (
        "class Anything:\n    def __init__(self, *_, **__): pass\n    def __getattr__(self, name): return anything\n"
    )
    made = [f"{name} = Anything" if name[:1].isupper() else f"{name} = anything" for name in names]
    return "inf = float('inf')\nnan = float('nan')\n" + anything + maker + "\n".join(made)


def _names(tests: CallTests | AssertTests) -> list[str]:
    """Names that a program has to define for its tests, and perhaps a few more."""
    entry = re.match(r"[A-Za-z_]\w*", tests.entry_point)
    names = {entry[0]} if entry else set[str]()
    if isinstance(tests, AssertTests):
        for node in ast.walk(ast.parse(tests.code)):
            match node:
                case ast.ImportFrom(_, aliases):
                    names |= {alias.name for alias in aliases if alias.name != "*"}
                case ast.Call(ast.Name(name)):
                    names.add(name)
    return sorted(names - {"anything", "Anything"})
