"""Mutation testing: the share of small mistakes in a room that its tests notice.

    python tools/bench/mutation.py [ROOM...] --count 100 --seed 1 [--seconds 120] [--jobs 2]

Draws files by their number of lines, changes one place of each in a copy of the tree, and runs the texts of what
commands print that run the changed file, then the test files that import its module or, from anywhere, a name that it
defines, or call its subcommand, those that are marked slow last; a module that no test names has the tests of its room.
Tests that fail without a change, too, judge nothing. What is not noticed is printed as a difference, to be read: some
changes mean nothing. Tests that do not end are counted by themselves: an endless loop, or a busy machine. `make
nightly` calls it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Literal

from mutants import mutants

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("curves", "reading", "commands", "plan", "view", "recipe", "schedule", "store")
PRINTED = "tests/commands/test_approved.py"
"""Tests of what commands print: those are asked whose commands run the changed file."""

ALWAYS = ("options", "settings")
"""Subjects of theirs that read what modules define, and run none."""

NONE_SELECTED = 5
"""Exit code of pytest."""

SLOWER = 8
"""Multiple of the time that slow tests have."""

Outcome = Literal["failed", "passed", "timed out", "failed before"]
WORDS: dict[Outcome, str] = {
    "failed": "noticed",
    "passed": "NOT NOTICED",
    "timed out": "timed out",
    "failed before": "not judged",
}
"""Names of mistakes, by how their tests end."""


@dataclass(frozen=True)
class Mistake:
    """A file with one mistake, and the tests that should notice it."""

    file: str
    text: str
    tests: tuple[str, ...]
    printed: tuple[str, ...] = ()
    """Tests that hold what its commands print against texts; they are run first."""


def tests_of(file: str) -> tuple[str, ...]:
    """Test files that import a module or a name that it defines, or call it; those of its room if there are none."""
    module = file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    called = rf"|\[\"{name}\"" if package == "scalelab.commands" else ""
    named = re.compile(rf"\b{re.escape(module)}\b{called}")
    texts = {one: one.read_text() for one in sorted((ROOT / "tests").rglob("test_*.py"))}
    found = [one for one, text in texts.items() if named.search(text) or module in defining(text)]
    room = ROOT / "tests" / file.split("/")[1]
    return tuple(str(one.relative_to(ROOT)) for one in found or [room if room.is_dir() else ROOT / "tests/curves"])


@cache
def defining(text: str) -> frozenset[str]:
    """Modules that define what a text imports by name, wherever it imports it from."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    return frozenset(_definer(str(node.module), one.name) for node in nodes for one in node.names)


@cache
def _definer(module: str, name: str) -> str:
    """The module that defines a name which a module offers; the name's own, if it is a module."""
    base = ROOT / module.replace(".", "/")
    if (base / f"{name}.py").exists():
        return f"{module}.{name}"
    source = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    for node in ast.parse(source.read_text()).body if source.exists() else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                if name == (one.asname or one.name):
                    return _definer(node.module, one.name)
    return module


def subjects_run() -> dict[str, list[str]]:
    """Files that each subject of the printed texts runs."""
    asked = [sys.executable, "-m", "tests.helpers.approved", "--runs"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def printed_by(file: str, subjects: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The tests of the printed texts that a change of a file may reach, those of the fewest files first."""
    reached = [one for one in sorted(subjects, key=lambda one: len(subjects[one])) if file in subjects[one]]
    test = f"{PRINTED}::test_what_is_printed_is_what_was_approved"
    return tuple(f"{test}[{one}]" for one in dict.fromkeys((*ALWAYS, *reached)))


def sample(rooms: Sequence[str], count: int, seed: int) -> list[Mistake]:
    """Mistakes at random places of the rooms' files, each file drawn by its length."""
    rng = random.Random(seed)
    files = [file for room in rooms for file in sorted((ROOT / "scalelab" / room).rglob("*.py"))]
    lengths = [len(file.read_text().splitlines()) for file in files]
    changes: list[Mistake] = []
    while len(changes) < count:
        file = rng.choices(files, lengths)[0]
        where = str(file.relative_to(ROOT))
        changes += [
            Mistake(where, text, tests_of(where)) for text in mutants(file.read_text(), 1, rng.random(), operators=True)
        ]
    return changes


def outcome(tests: Sequence[str], tree: Path, seconds: float, which: str) -> Outcome:
    """Run those tests of a tree that a pytest expression of marks selects; none is as good as all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", which, *tests]
    # A change of the file within a second, to one of the same size, would leave Python its compiled form of before.
    path = os.pathsep.join(str(tree / part) for part in ("", "tools", "tools/bench"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        code = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return "timed out"
    return "passed" if code in (0, NONE_SELECTED) else "failed"


def seen(mistake: Mistake, tree: Path, seconds: float, right: dict[tuple[str, ...], Outcome]) -> Outcome:
    """Run the tests with the change in a tree that is otherwise right: the printed texts, quick tests, then slow ones.

    Args:
        mistake: the change.
        tree: where to run them.
        seconds: for the quick ones.
        right: how tests ended without a change, as far as that is known; what is not, is tried and put there.
    """
    file = tree / mistake.file
    unchanged = file.read_text()
    others = tuple(one for one in mistake.tests if one != PRINTED)
    stages = (
        (mistake.printed, "not nightly", SLOWER),
        (others, "not slow and not nightly", 1),
        (others, "slow and not nightly", SLOWER),
    )
    for tests, which, times in (stage for stage in stages if stage[0]):
        file.write_text(mistake.text)
        try:
            found = outcome(tests, tree, times * seconds, which)
        finally:
            file.write_text(unchanged)
        key = (which, *tests)
        if found == "failed" and key not in right:
            right[key] = outcome(tests, tree, times * seconds, which)
        if found == "failed" and right[key] != "passed":
            print(f"some fail without any mistake, mend them: pytest -m '{which}' {' '.join(tests)}", flush=True)
            return "failed before"
        if found != "passed":
            return found
    return "passed"


def difference(mistake: Mistake) -> str:
    """The lines that a change changes, without the file's formatting."""
    before = ast.unparse(ast.parse((ROOT / mistake.file).read_text())).splitlines()
    lines = difflib.unified_diff(before, mistake.text.splitlines(), mistake.file, mistake.file, lineterm="", n=1)
    return "\n".join(list(lines)[2:])


def main() -> None:
    """Print every mistake that is not noticed, then the share of those that are, room by room."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=ROOMS, metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="for the tests of one mistake")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.0, help="share to be noticed, else the exit code is 1")
    args = parser.parse_args()
    subjects = subjects_run()
    drawn = sample(args.rooms, args.count, args.seed)
    changes = [replace(one, printed=printed_by(one.file, subjects)) for one in drawn]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as threads:
        trees: Queue[Path] = Queue()
        for number in range(args.jobs):
            tree = Path(folder, str(number))
            subprocess.run(["git", "worktree", "add", "-q", "--detach", tree], cwd=ROOT, check=True)
            trees.put(tree)

        right: dict[tuple[str, ...], Outcome] = {}

        def look(mistake: Mistake) -> Outcome:
            tree = trees.get_nowait()  # there are as many as threads
            try:
                found = seen(mistake, tree, args.seconds, right)
            finally:
                trees.put(tree)
            print(f"{WORDS[found]}: {mistake.file}", flush=True)
            if found == "passed":
                print(f"{difference(mistake)}\n  by {' '.join(mistake.tests)}", flush=True)
            return found

        try:
            outcomes = list(threads.map(look, changes))
        finally:
            for number in range(args.jobs):
                subprocess.run(
                    ["git", "worktree", "remove", "--force", Path(folder, str(number))], cwd=ROOT, check=True
                )
    rooms = [mistake.file.split("/")[1] for mistake in changes]
    for room in args.rooms:
        print(f"{room}: {report([one for one, its in zip(outcomes, rooms, strict=True) if its == room])}")
    print(f"all: {report(outcomes)}")
    judged = len(outcomes) - outcomes.count("failed before")
    sys.exit(outcomes.count("passed") > (1 - args.least) * judged)


def report(outcomes: Sequence[Outcome]) -> str:
    """The numbers of mistakes that were noticed, that were not, whose tests did not end, and that none judged."""
    return ", ".join(f"{outcomes.count(one)} {word.lower()}" for one, word in WORDS.items())


if __name__ == "__main__":
    main()
