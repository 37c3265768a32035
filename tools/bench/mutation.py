"""Mutation testing: the share of small mistakes in a room that its tests notice.

    python tools/bench/mutation.py [ROOM...] --count 100 --seed 1 [--seconds 120] [--jobs 2]

Draws files by their number of lines, changes one place of each in a copy of the tree, and runs the test files that
import the changed module or call its subcommand, without those that are marked slow; a module that no test names has
the tests of its room. Before that all of them have to pass without a change. What is not noticed is printed as a
difference, to be read: some changes mean nothing. Tests that do not end are counted by themselves: an endless loop, or
a busy machine. `make nightly` calls it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Literal

from mutants import mutants

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("curves", "reading", "commands", "plan", "view", "recipe", "schedule", "store")
NONE_SELECTED = 5
"""Exit code of pytest."""

Outcome = Literal["failed", "passed", "timed out"]
WORDS: dict[Outcome, str] = {"failed": "noticed", "passed": "NOT NOTICED", "timed out": "timed out"}
"""Names of mistakes, by how their tests end."""


@dataclass(frozen=True)
class Mistake:
    """A file with one mistake, and the tests that should notice it."""

    file: str
    text: str
    tests: tuple[str, ...]


def tests_of(file: str) -> tuple[str, ...]:
    """Test files that import a module, or call it as a subcommand; those of its room if there are none."""
    module = file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    called = rf"|\[\"{name}\"" if package == "scalelab.commands" else ""
    named = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b{called}")
    found = [one for one in sorted((ROOT / "tests").rglob("test_*.py")) if named.search(one.read_text())]
    room = ROOT / "tests" / file.split("/")[1]
    return tuple(str(one.relative_to(ROOT)) for one in found or [room if room.is_dir() else ROOT / "tests/curves"])


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


def outcome(tests: Sequence[str], tree: Path, seconds: float) -> Outcome:
    """Run the tests of a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    # A change of the file within a second, to one of the same size, would leave Python its compiled form of before.
    path = os.pathsep.join(str(tree / part) for part in ("", "tools", "tools/bench"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        for which in (["-m", "not slow"], []):  # all, where all are slow
            code = subprocess.run([*command, *which], cwd=tree, env=environment, capture_output=True, timeout=seconds)
            if code.returncode != NONE_SELECTED:
                break
    except subprocess.TimeoutExpired:
        return "timed out"
    return "failed" if code.returncode else "passed"


def seen(mistake: Mistake, tree: Path, seconds: float) -> Outcome:
    """Run the tests with the change in a tree that is otherwise right."""
    file = tree / mistake.file
    right = file.read_text()
    file.write_text(mistake.text)
    try:
        return outcome(mistake.tests, tree, seconds)
    finally:
        file.write_text(right)


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
    changes = sample(args.rooms, args.count, args.seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as threads:
        trees: Queue[Path] = Queue()
        for number in range(args.jobs):
            tree = Path(folder, str(number))
            subprocess.run(["git", "worktree", "add", "-q", "--detach", tree], cwd=ROOT, check=True)
            trees.put(tree)

        def in_a_tree(what: Callable[[Path], Outcome]) -> Outcome:
            tree = trees.get_nowait()  # there are as many as threads
            try:
                return what(tree)
            finally:
                trees.put(tree)

        def look(mistake: Mistake) -> Outcome:
            found = in_a_tree(lambda tree: seen(mistake, tree, args.seconds))
            print(f"{WORDS[found]}: {mistake.file}", flush=True)
            if found == "passed":
                print(f"{difference(mistake)}\n  by {' '.join(mistake.tests)}", flush=True)
            return found

        try:
            tests = list(dict.fromkeys(mistake.tests for mistake in changes))
            right = threads.map(lambda one: in_a_tree(lambda tree: outcome(one, tree, args.seconds)), tests)
            for one, found in zip(tests, right, strict=True):
                if found == "failed":  # nothing that they say of a mistake would be about it
                    sys.exit(f"{' '.join(one)}: they fail without any mistake; mend them first")
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
    sys.exit(outcomes.count("passed") > (1 - args.least) * len(outcomes))


def report(outcomes: Sequence[Outcome]) -> str:
    """The numbers of mistakes that were noticed, that were not, and whose tests did not end."""
    return ", ".join(f"{outcomes.count(one)} {word.lower()}" for one, word in WORDS.items())


if __name__ == "__main__":
    main()
