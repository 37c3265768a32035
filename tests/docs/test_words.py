"""One name, one thing: no public class name stands for two (docs/words.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED = {
    "Trainer": "the port of the loop, and the trainer in moe that two worlds put behind it",
    "Journal": "the port of the loop, and what writes the lines",
    "Step": "the port of the loop, and what the work on rollouts makes of a batch",
}
"""Names that stand for two classes, and why."""

SHARED_ALIASES = {
    "Model": "the formula of a curve, and the architectures of a policy",
    "Record": "a line of a run's files, wherever it is written or read",
    "Role": "generator or trainer; and one rank of either that is rehearsed",
    "Row": "a line of a table of evaluations, and the mapping that a data set's row is",
}
"""Names that stand for two things of which one is a type alias, and why."""

SHARED_FUNCTIONS = frozenset(
    [
        "main",
        "run",
        "load",
        "install",
        "check",
        "parse",
        "build",
        "choose",
        "prepare",
        "describe",
        "decide",
        "differences",
        "rates",
        "rehearse",
        "subject",
        "walk",
        "clean",
        "digest",
        "join",
        "leave",
        "receive",
        "stage",
        "answers",
        "attend",
        "ended",
        "engine_config",
        "last_line",
        "nearest",
        "read_metadata",
        "read_text",
        "replaced",
        "sample",
        "service",
        "this_machine",
        "words",
        "write_report",
    ]
)
"""Verbs and nouns that several modules have each a function of; no other name may become one of these."""

ALIAS = re.compile(r"[A-Z][a-z]\w*")


def classes(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Public classes, each with its file."""
    for file in files(packages):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(file.relative_to(ROOT))


def aliases(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names of types that a module gives by an assignment, each with its file."""
    for file in files(packages):
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and ALIAS.fullmatch(target.id):
                    yield target.id, str(file.relative_to(ROOT))


def files(packages: Sequence[str]) -> list[Path]:
    return [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]


def doubled(definitions: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, file in definitions:
        found[name].append(file)
    return {name: where for name, where in found.items() if len(where) > 1}


def test_no_public_class_name_stands_for_two_things() -> None:
    found = doubled(classes(("scalelab", "moe", "tasks", "tools")))
    assert found.keys() - SHARED.keys() == set(), {name: found[name] for name in found.keys() - SHARED.keys()}
    assert SHARED.keys() <= found.keys(), "a name of the list is defined once: take it out"


def test_no_name_of_a_type_stands_for_two_things() -> None:
    packages = ("scalelab", "moe", "tasks")
    found = doubled([*classes(packages), *aliases(packages)])
    allowed = SHARED.keys() | SHARED_ALIASES.keys()
    assert found.keys() - allowed == set(), {name: found[name] for name in found.keys() - allowed}
    assert allowed <= found.keys(), "a name of the list is defined once: take it out"


def functions(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Public functions of modules, each with its file; subcommands have the same two each."""
    for file in files(packages):
        for node in ast.parse(file.read_text()).body if "commands" not in file.parts else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node.name, str(file.relative_to(ROOT))


def test_no_public_function_name_stands_for_two_things() -> None:
    found = doubled(functions(("scalelab", "moe", "tasks")))
    assert found.keys() - SHARED_FUNCTIONS == set(), {name: found[name] for name in found.keys() - SHARED_FUNCTIONS}


RETIRED = {
    "alone|evaluate_alone|alone_on": "what is meant: idle, reserved, own_ray, single_rank",
    r"[Pp]retend\w*|PRETEND\w*": "simulated",
    "Asked": "HeldOutPrompt (evaluations), EvaluationRequest",
    "Spent": "EvaluationPoint",
    "[Ss]tanding": "run_status",
    "[Bb]oard": "TensorBoardWriter",
    "[Kk]eeper": "checkpoint_store, refresher",
}
"""Private words that a name of the code had (a pattern), and the field's word that took its place."""


def identifiers(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names that code gives to modules, classes, functions, arguments, variables and attributes, each with its file."""
    for file in files(packages):
        where = str(file.relative_to(ROOT))
        yield file.stem, where
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield node.name, where
                case ast.arg():
                    yield node.arg, where
                case ast.Name(ctx=ast.Store()):
                    yield node.id, where
                case ast.Attribute(ctx=ast.Store()):
                    yield node.attr, where


def test_no_name_is_a_private_word_where_the_field_has_one() -> None:
    retired = re.compile("|".join(f"(?P<w{n}>{pattern})" for n, pattern in enumerate(RETIRED)))
    better = list(RETIRED.values())
    wrong = {
        f"{where}: {name} → {better[int(match.lastgroup[1:])]}"  # type: ignore[index]
        for name, where in identifiers(("scalelab", "moe", "tasks", "tools", "tests"))
        if (match := retired.fullmatch(name.strip("_")))
    }
    assert not wrong, wrong
