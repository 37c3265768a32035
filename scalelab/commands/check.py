"""Check a run by its files: every step is there once, every group belongs to one step, compute never falls,
evaluations are whole and agree with their completions, and checkpoints are as they were written.

The exit code is 1 if anything is wrong. You can check a run while it goes on.

Example:  scalelab check runs/quickstart
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalelab.commands.arguments import add_json
from scalelab.numbers import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, such as runs/quickstart")
    fast = "compare sizes only, hash and read nothing large"
    parser.add_argument("--fast", action="store_true", help=fast)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Audit a run and print the findings."""
    from scalelab.commands.output import print_json
    from scalelab.store.audit import audit

    found = audit(args.run, contents=not args.fast)
    if args.json:
        print_json(found.record())
        return 0 if found.ok else 1
    for problem in found.problems:
        print(f"wrong: {problem}")
    for note in found.notes:
        print(f"note:  {note}")
    counts = (
        f"{counted(found.steps, 'step')}, {counted(found.groups, 'group')}, "
        f"{counted(found.evaluations, 'evaluation')}, {counted(found.checkpoints, 'checkpoint')}"
    )
    verdict = "the books balance" if found.ok else f"{counted(len(found.problems), 'thing')} wrong"
    print(f"{found.run} ({found.status}): {counts}: {verdict}")
    return 0 if found.ok else 1
