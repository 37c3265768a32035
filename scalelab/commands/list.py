"""List the experiments, and the runs in `runs/`.

Each name can stand for EXPERIMENT. A family runs as a whole, or one member as FAMILY/MEMBER. Runs are shown with their
status, their steps and the last pass rate of each task; seeds of one recipe stand together.

Examples:
  scalelab list
  scalelab list recipes                    # the members of a family
  scalelab list my_family.py
  scalelab list --runs docs/first_study/runs     # the runs of another folder
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scalelab.commands.arguments import add_json
from scalelab.commands.output import print_filled, print_json
from scalelab.errors import LabError
from scalelab.experiment import Listed, listing, load
from scalelab.terminal import plain_text, shell_path

RUNS = Path("runs")
"""Folder of `scalelab run`'s runs."""

FIRST = "quickstart"
"""The experiment at the top of the list."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="list the members of this family, or file, alone")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help=f"list the runs of this folder; default {RUNS}/")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print all experiments; 1 if an experiment's file could not be read."""
    found, broken = listing() if not _is_file(args.family) else (_of_file(args.family), [])
    folder = args.runs or RUNS
    runs = _runs(folder) if args.family is None and (args.runs or folder.is_dir()) else []
    if args.family is not None and not _is_file(args.family):
        found = [entry for entry in found if entry.name.partition("/")[0] == args.family]
        if not found:
            raise LabError(f"there is no experiment or family {args.family!r}: `scalelab list` shows them all")
    if args.json:
        entries = [{"name": e.name, "description": e.description, "file": str(e.file)} for e in found]
        print_json({"experiments": entries, "broken": [str(error) for error in broken], "runs": runs})
    elif args.family is not None:
        _print_lines([(entry.name, entry.description) for entry in found])
    else:
        _print_groups(found)
        if runs:
            print(f"\nRuns in {folder}/ (`scalelab view {shell_path(folder)}` shows them)")
            _print_lines([(plain_text(group["group"]), _words(group)) for group in runs])
    for error in broken:
        print(f"scalelab: {error}", file=sys.stderr)
    return 1 if broken else 0


def _is_file(family: str | None) -> bool:
    return family is not None and family.endswith(".py")


def _of_file(file: str) -> list[Listed]:
    """The experiments of a file by the names that `scalelab run` takes."""
    return [
        Listed(f"{file}/{name.partition('/')[2]}".rstrip("/"), member.description, Path(file))
        for name, member in load(file).items()
    ]


def _print_groups(found: list[Listed]) -> None:
    """Print single experiments, then a line per family."""
    single = sorted((e for e in found if "/" not in e.name), key=lambda e: (e.name != FIRST, e.name))
    families: dict[str, list[str]] = {}
    for entry in found:
        family, slash, member = entry.name.partition("/")
        if slash:
            families.setdefault(family, []).append(member)
    start = f"Begin with `scalelab run {FIRST}`." if single and single[0].name == FIRST else ""
    print(f"{len(single)} experiments and {len(families)} families of them. {start}".rstrip())
    print("\nExperiments")
    _print_lines([(entry.name, entry.description) for entry in single])
    if families:
        print("\nFamilies (`scalelab list FAMILY` describes the members)")
        _print_lines([(name, f"{len(members)}: {', '.join(members)}") for name, members in families.items()])


def _runs(folder: Path) -> list[dict[str, Any]]:
    """The recipes that have runs below a folder, in order of name.

    Returns:
        `{"group", "experiment", "paths", "status": {status: runs}, "steps": [of each run], "pass_rate": {task: mean},
        "pass_rates": {task: [of each run]}}`.
    """
    from scalelab.reading import Reading
    from scalelab.view.discover import find_runs  # these import NumPy and SciPy, which a list without runs can spare
    from scalelab.view.run import ViewedRun

    groups: dict[str, list[dict[str, Any]]] = {}
    for member in find_runs([folder]):
        if member.folder:
            run = ViewedRun(member, Reading())
            run.update()
            groups.setdefault(member.group, []).append(run.summary() | {"path": str(member.path)})
    return [_group(name, runs) for name, runs in sorted(groups.items())]


def _group(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    tasks = dict.fromkeys(task for run in runs for task in run["last"])
    rates = {task: [run["last"][task][0] for run in runs if task in run["last"]] for task in tasks}
    statuses = [run["status"] for run in runs]
    return {
        "group": name,
        "experiment": runs[0]["experiment"],
        "paths": [run["path"] for run in runs],
        "status": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "steps": [run["step"] for run in runs],
        "pass_rate": {task: sum(values) / len(values) for task, values in rates.items()},
        "pass_rates": rates,
    }


def _words(group: dict[str, Any]) -> str:
    """A line about a recipe: its seeds, how far they are, and the mean, or range, of their last evaluations."""
    several = len(group["paths"]) > 1
    statuses = [f"{count} {status}" if several else status for status, count in group["status"].items()]
    steps = [step for step in group["steps"] if step is not None]
    span = f"{min(steps):.0f}" + (f"–{max(steps):.0f}" if min(steps) < max(steps) else "") if steps else "no"
    level = len(set(steps)) < 2  # the mean of runs that are not equally far is that of no policy
    rates = [
        f"{plain_text(task)} {f'{mean:.3f}' if level else _range(group['pass_rates'][task])}".strip()
        for task, mean in group["pass_rate"].items()
    ]
    return ", ".join(["; ".join(statuses), f"{span} steps", *rates])


def _range(rates: list[float]) -> str:
    low, high = f"{min(rates):.3f}", f"{max(rates):.3f}"
    return low if low == high else f"{low}–{high}"


def _print_lines(rows: list[tuple[str, str]]) -> None:
    """Print names with texts beside them; on a terminal a text goes on below its beginning."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print_filled(f"  {name:<{width}}  {text}", " " * (width + 4))
