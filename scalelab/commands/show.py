"""Print every setting of an experiment, and where its value comes from: a file and a line in it, --set, or default.

All members of a family are shown. --set changes EXPERIMENT, not the one that --diff compares it with.

Examples:
  scalelab show quickstart --set OptimizerConfig.lr=1e-4
  scalelab show leave_one_out --diff scalerl_8b
  scalelab show quickstart --diff runs/quickstart/config.gin
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.commands.output import print_json, print_table
from scalelab.experiment import Resolved, SettingDifference, load, resolve, resolve_experiment
from scalelab.numbers import counted
from scalelab.terminal import plain_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser)
    parser.add_argument("--diff", metavar="OTHER", help="print only what differs from this experiment")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Resolve an experiment, and print its settings or the differences."""
    other = resolve(args.diff) if args.diff else None
    shown = [resolve_experiment(name, member, args.sets) for name, member in load(args.experiment).items()]
    objects = [_differences_json(item, other, args.diff) if other else _json(item) for item in shown]
    if args.json:
        print_json(objects[0] if len(objects) == 1 else {"experiments": objects})
        return
    if fork := _fork(args.experiment):
        print(fork)
    for number, item in enumerate(shown):
        if number:
            print()
        if other:
            _print_differences(item, other, args.diff)
        else:
            print(item.config_gin(origins=True), end="")
            for statement in item.unused:
                value = item.text(statement.value)
                if statement.decided_by:
                    print(f"# not used: {statement.key} = {value}, {statement.origin}: {statement.decided_by} decided")
                else:
                    print(f"# without effect: {statement.key}, {statement.origin}")


def _fork(spec: str) -> str:
    """A line on the parent of a branch, whose `config.gin` is shown; empty for all else."""
    path = Path(spec)
    if path.name != "config.gin":
        return ""
    from scalelab.reading.run_folder import shown_manifest  # curves take as long to import as all else

    fork = shown_manifest(path.parent).get("from")
    if not isinstance(fork, dict):
        return ""
    parent, step = plain_line(str(fork.get("run"))), plain_line(str(fork.get("step")))
    return f"# a branch: goes on from step {step} of {parent}; --diff {parent}/config.gin shows what it changed"


def _print_differences(resolved: Resolved, other: Resolved, label: str) -> None:
    differences = resolved.differences(other)
    print(f"# {resolved.name}: {resolved.description}")
    if not differences:
        print(f"the same as {label}")
        return
    rows = [(d.path, d.value or "-", d.origin or "-", d.other_value or "-", d.other_origin or "-") for d in differences]
    print_table(rows, (counted(len(rows), "difference"), resolved.name, "from", label, "from"))


def _json(resolved: Resolved) -> dict[str, Any]:
    values = resolved.bindings
    bindings = [
        {"key": key, "path": path, "value": values[key], "origin": setting.origin}
        for key, path, setting in resolved.settings()
    ]
    unused = [
        {"key": one.key, "origin": one.origin} | ({"decided_by": one.decided_by} if one.decided_by else {})
        for one in resolved.unused
    ]
    return {
        "name": resolved.name,
        "description": resolved.description,
        "bindings": bindings,
        "without_effect": unused,
    }


def _differences_json(resolved: Resolved, other: Resolved, label: str) -> dict[str, Any]:
    differences: list[SettingDifference] = resolved.differences(other)
    return {"name": resolved.name, "other": label, "differences": [vars(d) for d in differences]}
