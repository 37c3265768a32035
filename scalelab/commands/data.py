"""Check a data set before it teaches: which rows no answer can match, and which say nothing.

SOURCE is a JSON, JSON lines or Parquet file, or a data set of docs/tasks.md (--data for a folder with its file). Every
row is read. Then each gold is graded in several spellings, with a digit, sign, bound or unit changed, and against
guesses; of programs the reference, the empty and a constant program run against the tests. The result is kept in the
cache folder, by content. A run reads the rows, and sets those aside that cannot teach, also by the kept result if there
is one (MathDataset.keep = True keeps them; MathDataset.thorough = True has the run do all that is done here).

Examples:
  scalelab data check problems.jsonl
  scalelab data check problems.parquet --problem question --answer final_answer --out clean.jsonl
  scalelab data check leetcode --data data --quick
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moe.durable import made_whole
from scalelab.commands.arguments import add_json, check_out
from scalelab.commands.output import print_json, print_table
from scalelab.errors import LabError
from scalelab.terminal import plain_text
from tasks.data.check import Checked, quick
from tasks.data.datasets import CodeDataset, MathDataset, dataset_task
from tasks.data.formats import ANSWERS, TESTS
from tasks.data.hub import SOURCES
from tasks.data.loading import SetAside
from tasks.data.rows import RowError, numbered_rows

# Row numbers that a line of the table shows, and characters of a reason.
SHOWN = 8
WIDTH = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=["check"], help="check: find the rows that cannot teach")
    parser.add_argument("source", metavar="SOURCE", help="a file, or the name of a data set")
    parser.add_argument("--data", metavar="FOLDER", help="folder with the data set's file; default is the hub")
    parser.add_argument("--kind", choices=["math", "code"], help="what a file holds; default: by its columns")
    parser.add_argument("--problem", default="", metavar="COLUMN", help="column of the problem in a file")
    parser.add_argument("--answer", default="", metavar="COLUMN", help="column of the answer in a file (math)")
    parser.add_argument("--tests", default="", metavar="COLUMN", help="column of the tests in a file (code)")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="modules that programs may import (code)")
    parser.add_argument("--quick", action="store_true", help="read the rows, and grade nothing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows of a file that can teach, JSON lines")
    parser.add_argument("--keep", action="store_true", help="write all that can be read to --out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Check, print what was found, and write the rows that can teach."""
    task = _task(args)
    if args.out is not None:
        check_out(args.out)
        if not task.file:
            raise LabError(f"--out writes the rows of a file; {args.source} is a data set")
        if args.out.exists() and args.out.samefile(task.file):
            raise LabError(f"--out {args.out} is the file that is checked: name another")
    loaded = task.loaded()
    unfit = quick(loaded.items, task.kind)
    found = None if args.quick else task.checked()
    aside = sorted([*loaded.set_aside, *unfit, *(found.unfit if found else [])], key=lambda one: one.row)
    keys = {task.key(item) for _, item in loaded.items}
    facts = _Facts(args.source, task.kind, len(loaded.items) + len(loaded.set_aside), loaded.columns, aside)
    if args.out is not None:
        unread = {one.row for one in (loaded.set_aside if args.keep else aside)}
        _write(Path(task.file), args.out, unread)
    if args.json:
        print_json(asdict(facts) | {"copies": len(loaded.items) - len(keys), "thorough": found and asdict(found)})
    else:
        _print(facts, len(loaded.items) - len(keys), found)


@dataclass(frozen=True)
class _Facts:
    source: str
    kind: str
    rows: int
    columns: dict[str, int]
    set_aside: list[SetAside]


def _task(args: argparse.Namespace) -> MathDataset | CodeDataset:
    """The data set, of the class for its kind."""
    if args.workers < 1:
        raise LabError(f"--workers is {args.workers}: give at least 1")
    if args.source in SOURCES:
        named = [f"--{name}" for name in ("kind", "problem", "answer", "tests") if getattr(args, name)]
        if named:
            raise LabError(f"{' '.join(named)} is for files; {args.source} is a data set")
        settings: dict[str, Any] = {"folder": args.data, "workers": args.workers}
        if args.packages and SOURCES[args.source].kind == "code":
            settings["packages"] = tuple(args.packages)
        return dataset_task(args.source, **settings)
    path = Path(args.source)
    if not path.is_file():
        raise LabError(
            f"{args.source} is neither a file nor a data set: `scalelab data check` takes {', '.join(SOURCES)}"
        )
    kind = args.kind or _kind(path, args)
    if kind == "math":
        return MathDataset(file=str(path), problem=args.problem, answer=args.answer, workers=args.workers)
    packages = tuple(args.packages or ())
    return CodeDataset(file=str(path), problem=args.problem, tests=args.tests, workers=args.workers, packages=packages)


def _kind(path: Path, args: argparse.Namespace) -> str:
    """The kind of a file, by the columns of its first row that can be read."""
    if bool(args.answer) != bool(args.tests):
        return "math" if args.answer else "code"
    row = next((row for _, row in numbered_rows(path) if not isinstance(row, RowError)), {})
    code = [name for name in (*TESTS, "public_tests") if row.get(name) is not None]
    answers = [name for name in (*ANSWERS, "solution") if row.get(name) is not None]
    if (code and not answers) or (code and answers == ["solution"]):
        return "code"
    if answers and not code:
        return "math"
    has = ", ".join(map(str, row)) or "no row that can be read"
    raise LabError(f"{path} does not tell if it holds math or code (columns: {has[:200]}): say --kind")


def _write(source: Path, out: Path, without: set[int]) -> None:
    with made_whole(out) as partial, open(partial, "w", encoding="utf-8") as file:
        for number, row in numbered_rows(source):
            if number not in without and not isinstance(row, RowError):
                file.write(json.dumps(row, default=str) + "\n")


def _print(facts: _Facts, copies: int, found: Checked | None) -> None:
    columns = ", ".join(f"{place} ({count})" for place, count in facts.columns.items() if place)
    print(f"{plain_text(facts.source)}: {facts.rows} rows of {facts.kind}" + (f"; {columns}" if columns else ""))
    rows = {one.row for one in facts.set_aside}
    print(f"{facts.rows - len(rows)} rows can teach, {len(rows)} cannot; {copies} are copies of another")
    reasons: dict[str, list[SetAside]] = {}
    for one in facts.set_aside:
        reasons.setdefault(one.reason.partition(":")[0], []).append(one)
    table = []
    for reason, ones in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        shown = ", ".join(str(one.row) for one in ones[:SHOWN]) + (", …" if len(ones) > SHOWN else "")
        table.append([str(len(ones)), _cut(reason), shown, _cut(ones[0].reason.partition(": ")[2])])
    if table:
        print()
        print_table(table, ["rows", "why", "numbers", "the first"])
    if found is None:
        print("\nNothing was graded (--quick).")
    elif facts.kind == "code":
        slowest = f"; the slowest took {found.slowest[0]:.2f} s, row {found.slowest[1]}" if found.references else ""
        print(f"\n{found.references} of {found.rows} rows have a reference that ran{slowest}.")


def _cut(text: str) -> str:
    text = plain_text(text)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
