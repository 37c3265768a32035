"""First lines of docstrings are imperatives or noun phrases, as docs/words.md asks."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from scalelab.cli import COMMANDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("experiments", "moe", "scalelab", "tasks", "tests", "tools")
CLAUSE = re.compile(
    r"(What|Whatever|Whether|How|Which|Whose|Who|Whom|Where|When|While|Why|Of|That|Those|These|If|As|Nothing)\b"
    r"|(The same|Undo that)\b"
)
"""Openings of a clause, or of a line that only its neighbour explains."""


def first_lines(source: str) -> Iterator[tuple[int, str]]:
    """The line number and first line of every docstring of a module's text, those below assignments included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text.partition("\n")[0]
            for before, after in pairwise(node.body):
                below = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
                )
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(below, str):
                    yield after.lineno, below.strip().partition("\n")[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_opens_with_a_clause(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in first_lines(file.read_text(encoding="utf-8"))
        if CLAUSE.match(line)
    ]
    assert not found, "begin with an imperative or a noun phrase (True if … for a bool):\n" + "\n".join(found)


def test_a_clause_is_found_and_a_noun_phrase_is_not() -> None:
    module = '"""Whose row it is."""\nMOST = 3\n"""What is kept."""\ndef rows():\n    """Rows of a group."""\n'
    assert [bool(CLAUSE.match(line)) for _, line in first_lines(module)] == [True, True, False]


def test_help_of_a_subcommand_opens_with_an_imperative() -> None:
    files = [ROOT / "scalelab" / "commands" / f"{name}{'_' * keyword.iskeyword(name)}.py" for name in COMMANDS]
    openings = [re.findall(r"\w+", ast.get_docstring(ast.parse(file.read_text())) or "-")[0] for file in files]
    assert [word for word in openings if word.endswith("s")] == [], "Run, not Runs"


ARGUMENT = re.compile(r"^( *)(\w+)(?:, (\w+))*: ")


def documented(text: str) -> list[str]:
    """Names in the section `Args:` of a docstring."""
    lines = text.partition("Args:\n")[2].splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    names: list[str] = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            break  # another section
        if (found := ARGUMENT.match(line)) and len(found[1]) == indent:
            names += re.findall(r"\w+", line.partition(":")[0])
    return names


def accepted(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str] | None:
    """Names of a function's parameters, or of what makes an object of a class; None if a base class says."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        fields = {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        return accepted(made[0]) if made else fields or None
    given = node.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return {one.arg for one in every if one is not None}


def unknown(source: str) -> Iterator[str]:
    """Arguments that a docstring documents and nothing takes, as NAME.ARGUMENT."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names, taken = documented(ast.get_docstring(node) or ""), accepted(node)
            yield from (f"{node.name}.{name}" for name in names if taken is not None and name not in taken)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_argument_is_documented_that_there_is_not(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert [(file.name, one) for file in files for one in unknown(file.read_text(encoding="utf-8"))] == []


def test_an_argument_that_there_is_not_is_found_in_functions_and_classes() -> None:
    doc = '"""Do it.\n\n    Args:\n        size: of it.\n        colour: of it.\n\n    Returns:\n        x: y.\n    """'
    function = f"def paint(size):\n    {doc}\n"
    kind = f"class Wall:\n    {doc}\n\n    def __init__(self, size): ...\n"
    assert [*unknown(function), *unknown(kind)] == ["paint.colour", "Wall.colour"]
