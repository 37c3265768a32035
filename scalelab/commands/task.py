"""Try a task of your own before a run does: what it asks, and how its rewards behave.

TARGET is a file with tasks (every task class in it, and every task that it makes), a class such as `my_task.Reverse`,
or an experiment. Its prompts are drawn twice. Its rewards grade perfect, empty, wrong and odd answers in processes of
their own, again in fresh ones, and again after each other: a reward that depends on chance, keeps something from one
answer to the next, changes a gold, hangs, raises or is no number is named. The exit code is 1 if one is.

Examples:
  scalelab task check my_task.py
  scalelab task check my_task.Reverse --set my_task.Reverse.letters=7
  scalelab task check my_experiment.py --prompts 20 --json
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import textwrap
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from scalelab.commands.arguments import add_json, add_sets
from scalelab.commands.output import print_json, print_table
from scalelab.errors import LabError
from scalelab.terminal import plain_line
from tasks.check import Finding, check_task
from tasks.errors import TaskError
from tasks.task import Task, require_task

WIDTH = 80
"""Columns of the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=["check"], help="check: try prompts and rewards")
    parser.add_argument("target", metavar="TARGET", help="a file, a class (my_task.Reverse), or an experiment")
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="training prompts that are tried (8)")
    add_sets(parser, "a field of a class, such as my_task.Reverse.letters=7; may be repeated")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check all tasks, and print what was found."""
    if args.prompts < 2:
        raise LabError(f"--prompts {args.prompts}: give 2 or more")
    results: dict[str, list[Finding]] = {}
    for task in _tasks(args.target, args.sets):
        results[task.name] = check_task(task, args.prompts, _say)
        if not args.json:
            _print(task, results[task.name])
    if args.json:
        print_json({name: [asdict(one) for one in findings] for name, findings in results.items()})
    return 1 if any(not one.ok for findings in results.values() for one in findings) else 0


def _say(text: str) -> None:
    print(plain_line(text), file=sys.stderr, flush=True)


def _tasks(target: str, sets: list[str]) -> list[Task]:
    from scalelab.experiment.single_tasks import is_class_name, single_tasks

    path = Path(target)
    if path.suffix == ".py" and not path.is_file():
        raise LabError(f"there is no file {target}")
    if path.suffix == ".py":
        return _of_file(path, sets)
    if path.suffix not in (".py", ".gin") and is_class_name(target):
        return single_tasks([target], sets)
    return _of_experiment(target, sets)


def _of_experiment(target: str, sets: list[str]) -> list[Task]:
    """The tasks of an experiment, or of a family's first member."""
    from scalelab.experiment import load, resolve_experiment

    name, member = next(iter(load(target).items()))
    return list(resolve_experiment(name, member, sets).run.tasks)


def _of_file(path: Path, sets: list[str]) -> list[Task]:
    """The tasks of a file: those that it makes, and one of every class that needs no more."""
    from scalelab.experiment import Experiment
    from scalelab.experiment.imports import import_user_code
    from scalelab.experiment.single_tasks import single_tasks

    folder = path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = import_user_code(lambda: importlib.import_module(path.stem), path)
    if isinstance(getattr(module, "experiment", None), Experiment) or hasattr(module, "experiments"):
        return _of_experiment(str(path), sets)
    made: list[Task] = []
    for value in vars(module).values():
        if not isinstance(value, type):
            with suppress(TaskError):
                require_task(value)
                made.append(value)
    classes = []
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == path.stem and not inspect.isabstract(value):
            with suppress(TaskError):
                require_task(value)
                classes.append(f"{path.stem}.{name}")
    if not made and not classes:
        raise LabError(
            f"{path} has no task: extend RewardTask or FileTask of scalelab.own, or write task = FunctionTask(…)"
        )
    return [*made, *(task for name in classes for task in single_tasks([name], sets, folder))]


def _print(task: Task, findings: list[Finding]) -> None:
    print(f"task {plain_line(task.name)}")
    wide = max(len(one.what) for one in findings)
    rows = [["" if one.ok else "!", one.what, _cut(one.found, WIDTH - wide - 6)] for one in findings]
    print_table(rows)
    wrong = [one for one in findings if not one.ok]
    print(f"{len(wrong)} of {len(findings)} lines are wrong (!)\n" if wrong else "all is well\n")
    for one in wrong:
        if len(one.found) > WIDTH - wide - 6:
            print(textwrap.fill(f"{one.what}: {plain_line(one.found)}", WIDTH))


def _cut(text: str, width: int) -> str:
    text = plain_line(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"
