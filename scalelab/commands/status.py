"""Show what a run does now: its step, what it waits for, what every actor does and for how long, and who is slow.

For a run that has ended, show how it ended. Only files are read, so any machine that sees the folder can be used.

Example:  scalelab status runs/quickstart
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_json
from scalelab.defaults import LEAST_FREE
from scalelab.terminal import plain_line, shell_path

if TYPE_CHECKING:
    from scalelab.plan.measured import MeasuredSpeeds
    from scalelab.store.run_status import RunStatus

FAULTS = 5
"""Number of faults that are shown, the last ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, such as runs/quickstart")
    parser.add_argument("--wide", action="store_true", help="the weights and the process of every actor, too")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the state of a run by its files."""
    from scalelab.commands.output import print_filled, print_json
    from scalelab.jsonl import plain
    from scalelab.store.run_status import run_status

    found = run_status(args.run)
    speeds = _speeds(args.run, found)
    if args.json:
        head = {"run": found.run, "state": found.state, "reason": found.reason, "age": found.age}
        rates = speeds and {"training": speeds.training, "decoding": speeds.decoding, "mean_length": speeds.mean_length}
        pace = {"pace": found.pace and asdict(found.pace), "measured": rates}
        print_json(plain(head | _facts(found) | pace))
        return 0
    for line in _told(found, speeds):
        print_filled(plain_line(line), "  ")
    _print_actors(found, args.wide)
    return 0


def _facts(found: RunStatus) -> dict[str, Any]:
    names = ("doing", "node", "pid", "step", "steps", "compute", "unit", "evaluation", "waits", "actors", "stragglers")
    return {name: found.status.get(name) for name in names} | {"faults": found.faults}


def _speeds(run: Path, found: RunStatus) -> MeasuredSpeeds | None:
    """Speeds that a run measured beside its plan's; None before it has the steps for them, or if it has no plan."""
    from scalelab.commands.plan import measured_of
    from scalelab.errors import LabError

    if found.pace is None or found.pace.planned is None:
        return None
    try:
        return measured_of(run)
    except LabError:  # a run of an earlier version, whose pace can be told all the same
        return None


def _told(found: RunStatus, speeds: MeasuredSpeeds | None) -> list[str]:
    """The lines above the table."""
    from scalelab.store.run_status import GOING

    status, age = found.status, "" if found.age is None else f", {_ago(found.age)} ago"
    lines = [f"{found.run}: {found.state}"]
    if found.state in GOING and "doing" in status:
        lines[0] += f": {status['doing']} (process {status.get('pid')} on {status.get('node')}{age})"
    elif found.reason:
        lines[0] += f": {found.reason}"
    command = f"`scalelab run {shell_path(found.run)} --resume` goes on with it"
    if found.state == "interrupted":
        lines.append(command)
    if found.state == "gone":
        free = shutil.disk_usage(found.run).free
        full = f", and its disk has {free / 2**30:.1f} GiB free, which may have ended it: free some; {command}"
        lines.append(f"its process is not there any more{full if free < LEAST_FREE else f': {command}'}")
    if found.state == "silent":
        perhaps = "" if found.age is not None else f", and no file says whether its process is there; if not, {command}"
        lines.append(f"it has written no line for {_ago(found.quiet)}{perhaps}")
    if isinstance(step := status.get("step"), int):
        spent = status.get("compute")
        cost = f", {spent:.4f} {status.get('unit', 'units of compute')}" if isinstance(spent, int | float) else ""
        most = status.get("steps")
        lines.append(f"step {step}{f' of {most}' if isinstance(most, int) else ''}{cost}")
    if found.simulated and found.state in ("interrupted", "gone"):
        lines.append("it goes on from its last checkpoint that was due, and undoes the steps behind that")
    elif found.pace is not None:
        lines += found.pace.lines(str(status.get("unit", "units of compute")))
    if speeds is not None:
        lines.append(speeds.line("this run"))
    if found.state in ("running", "silent"):
        waits = status.get("waits")
        lines += [f"waits for {what}" for what in waits] if isinstance(waits, list) else []
        held_up = status.get("stragglers")
        lines += [f"held up: {who}" for who in held_up] if isinstance(held_up, list) else []
    lost = [fault for fault in found.faults if fault.get("event") == "lost"]
    if lost:
        lines.append(f"{len(lost)} faults; the last:")
        lines += [
            f"  {_clock(fault.get('time'))} {fault.get('name')}: {fault.get('error')}" for fault in lost[-FAULTS:]
        ]
    return lines


def _print_actors(found: RunStatus, wide: bool) -> None:
    """Print the actors' last reported work, unless the run ended in order."""
    from scalelab.commands.output import print_table
    from scalelab.store.run_status import GOING

    actors = found.status.get("actors")
    if found.state not in GOING or not isinstance(actors, list):
        return
    rows = []
    for actor in (one for one in actors if isinstance(one, dict)):
        cells = (
            actor.get("name"),
            actor.get("doing"),
            _ago(actor.get("seconds")),
            _ago(actor.get("silent")),
            actor.get("version", "–"),
            f"{actor.get('node', '–')}:{actor.get('pid', '–')}",
        )
        rows.append([plain_line(str(cell)) for cell in cells][: None if wide else 4])
    if rows:
        print()
        print_table(rows, ("actor", "doing", "for", "heard", "weights", "process")[: len(rows[0])])


def _ago(seconds: Any) -> str:
    from scalelab.watch.progress import duration

    return duration(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else "–"


def _clock(moment: Any) -> str:
    """A moment as date and time of the day; – for what is no time."""
    if not isinstance(moment, int | float) or not 0 <= moment < 1e11:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
