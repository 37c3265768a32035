"""Read the completions of a run in the terminal: prompt, thinking, answer and verdict, a page at a time.

With --vs, list the prompts whose pass rate changed between two evaluations of the run, or between two runs on the same
prompts.

Example:  scalelab rollouts runs/quickstart --step 100 --failed
          scalelab rollouts runs/quickstart --step 100 --vs 90 --task code
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.commands.arguments import add_json
from scalelab.commands.output import print_json
from scalelab.errors import LabError
from scalelab.terminal import plain_text
from scalelab.view.rollouts import Filter, Rollouts
from tasks.thinking import THINK_CLOSE
from tasks.types import OUTCOMES

WIDTH = 100
CHOICES = (*OUTCOMES, "truncated", "interrupted")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--step", type=int, metavar="N", help="evaluation at this step (default: the last)")
    parser.add_argument("--task", metavar="T", help="only this task")
    parser.add_argument("--failed", action="store_true", help="only those that did not pass")
    parser.add_argument("--outcome", choices=CHOICES, help="only those with this outcome or flag")
    parser.add_argument("--prompt", metavar="ID", help="one prompt, at every evaluation unless --step names one")
    parser.add_argument("--search", metavar="TEXT", help="only those that hold this text")
    parser.add_argument("--vs", metavar="STEP|RUN", help="which prompts changed since another step, or in another run")
    parser.add_argument("--limit", type=int, default=5, metavar="N", help="how many to print (default %(default)s)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the chosen completions."""
    if args.limit < 1:
        raise LabError(f"--limit {args.limit}: give 1 or more")
    rollouts = _open(args.run)
    step = args.step if args.step is not None or args.prompt else _steps(rollouts)[-1]
    _check(rollouts, args, step)
    if args.vs is not None:
        return _changes(args, rollouts, step if step is not None else _steps(rollouts)[-1])
    wanted = Filter(
        step=step,
        task=args.task,
        outcome="not passed" if args.failed else args.outcome,
        prompt=args.prompt,
        text=args.search,
    )
    found = rollouts.rows(wanted, limit=args.limit)
    records = rollouts.full([row["id"] for row in found["rows"]])
    if args.json:
        print_json({"run": str(args.run), "total": found["total"], "outcomes": found["outcomes"], "rollouts": records})
        return 0
    for record in records:
        _print(record)
    counts = ", ".join(f"{count} {plain_text(outcome)}" for outcome, count in found["outcomes"].items())
    print(f"{len(records)} of {found['total']} completions ({counts or 'none'}).")
    return 0


def _open(path: Path) -> Rollouts:
    """Open the completions of a run folder.

    Raises:
        LabError: there are none.
    """
    if not path.is_dir():
        raise LabError(f"{path}: no such run folder")
    rollouts = Rollouts(path)
    if not rollouts.steps():
        reason = rollouts.problems[0] if rollouts.problems else "no rollouts/step_*.parquet in it"
        raise LabError(f"{path}: {reason}")
    return rollouts


def _steps(rollouts: Rollouts) -> list[int]:
    """Steps of the evaluations; of training if no evaluation was kept."""
    entries = rollouts.steps()
    return [entry["step"] for entry in entries if entry["kind"] == "step"] or [entry["step"] for entry in entries]


def _check(rollouts: Rollouts, args: argparse.Namespace, step: int | None) -> None:
    """Refuse a step or a task that the run does not have."""
    entries = rollouts.steps()
    steps = [entry["step"] for entry in entries]
    if step is not None and step not in steps:
        near = min(steps, key=lambda other: abs(other - step))
        raise LabError(f"{args.run} kept no completions of step {step}; the nearest step is {near}")
    tasks = sorted({task for entry in entries for task in entry["tasks"]})
    if args.task is not None and args.task not in tasks:
        raise LabError(f"{args.run} has no task {args.task!r}; there are: {', '.join(map(plain_text, tasks))}")


def _print(record: Mapping[str, Any]) -> None:
    """Print one completion."""
    passed = record.get("outcome") == "passed"
    sign = _color("✓", "32") if passed else _color("✗", "31")
    flags = "".join(f", {flag}" for flag in ("truncated", "interrupted") if record.get(flag))
    tokens = f"{record['tokens']:,.0f} tokens" if record.get("tokens") is not None else "tokens unknown"
    kind = "evaluation at" if record["kind"] == "step" else record["kind"]
    print(_color("─" * WIDTH, "2"))
    print(
        f"{sign} {plain_text(record.get('outcome', '?'))}  {plain_text(record.get('task', ''))} · "
        f"{kind} step {record['step']} · {tokens}{flags} · prompt {plain_text(record.get('prompt_id', ''))}"
    )
    completion = str(record.get("completion") or "")
    thinking, closed, answer = completion.partition(THINK_CLOSE)
    _part("prompt", record.get("prompt"))
    if closed:
        _part("thinking", thinking)
    _part("answer" if closed else "completion", answer if closed else thinking)
    if record.get("gold"):
        _part("expected", record["gold"])
    _part("verdict", record.get("detail") or "the verifier gave no detail")
    print()


def _part(name: str, text: object) -> None:
    """A titled, indented block of text."""
    print(_color(name, "1"))
    print(textwrap.indent(plain_text(text or "(empty)", lines=True).strip("\n"), "  "))


def _changes(args: argparse.Namespace, rollouts: Rollouts, step: int) -> int:
    """Print which prompts pass more or less often than at another step, or in another run."""
    if args.vs.isdecimal() and len(args.vs) < 12:
        other, other_step, name = rollouts, int(args.vs), f"step {args.vs}"
    else:
        other, name = _open(Path(args.vs)), args.vs
        steps = _steps(other)
        other_step = step if step in steps else steps[-1]
    _check(other, argparse.Namespace(run=Path(args.vs) if other is not rollouts else args.run, task=None), other_step)
    before, after = (_passes(kept, at, args.task) for kept, at in ((other, other_step), (rollouts, step)))
    shared = [key for key in after if key in before]
    change = {key: after[key][0] / after[key][1] - before[key][0] / before[key][1] for key in shared}
    order = sorted((key for key in shared if change[key]), key=lambda key: (change[key] > 0, -abs(change[key]), key))
    rows: list[dict[str, Any]] = [
        {"task": task, "prompt_id": prompt, "before": before[task, prompt][:2], "after": after[task, prompt][:2]}
        | {"prompt": after[task, prompt][2]}
        for task, prompt in order
    ]
    if args.json:
        print_json({"run": str(args.run), "step": step, "vs": args.vs, "shared": len(shared), "changed": rows})
        return 0
    fell = sum(change[key] < 0 for key in order)
    for row in rows[: args.limit]:
        counts = " → ".join(f"{passed}/{n}" for passed, n in (row["before"], row["after"]))
        sign = _color("▼", "31") if row["after"][0] * row["before"][1] < row["before"][0] * row["after"][1] else "▲"
        print(f"{sign} {counts}  {plain_text(row['task'])}  {plain_text(row['prompt'])[:WIDTH]}")
        print(_color(f"    --prompt '{plain_text(row['prompt_id'])}'", "2"))
    print(
        f"{fell} prompts pass less often at step {step} than {'at' if other is rollouts else 'in'} {plain_text(name)}, "
        f"{len(order) - fell} more often, {len(shared) - len(order)} as often."
    )
    return 0


def _passes(rollouts: Rollouts, step: int, task: str | None) -> dict[tuple[str, str], tuple[int, int, str]]:
    """Passes, completions and the text of every prompt of an evaluation."""
    found: dict[tuple[str, str], tuple[int, int, str]] = {}
    for row in rollouts.rows(Filter(step=step, task=task), limit=1_000_000)["rows"]:
        key = (row.get("task", ""), row.get("prompt_id", ""))
        passed, n, _ = found.get(key, (0, 0, ""))
        found[key] = (passed + (row.get("outcome") == "passed"), n + 1, row["prompt"])
    return found


def _color(text: str, code: str) -> str:
    """Colour text on a terminal, unless `NO_COLOR` is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{code}m{text}\033[0m"
