"""Check whether the whole loop can run on this machine; the exit code is 0 only if it can.

Without options, packages are judged by their versions, which takes seconds. --imports also imports every engine and
asks torch for GPUs and kernels, which takes a minute or more.

Examples:
  scalelab doctor
  scalelab doctor --imports --json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from scalelab.commands.arguments import add_json
from scalelab.commands.output import print_json
from scalelab.doctor import checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where runs would be written")
    parser.add_argument("--imports", action="store_true", help="also import every engine")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print each check when it is done, with a fix below those that fail; 1 if any fails."""
    found = []
    for check in checks(args.out, args.imports):
        found.append(check)
        if not args.json:
            print(f"{'ok' if check.ok else 'FAIL':<5} {check.name:<18} {check.detail}", flush=True)
            if check.fix:
                print(f"{'':<5} {'':<18} → {check.fix}", flush=True)
    if args.json:
        print_json({"checks": [asdict(check) for check in found]})
    return 0 if all(check.ok for check in found) else 1
