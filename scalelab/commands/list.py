"""Every name works wherever an EXPERIMENT is asked for. A family runs as a whole, or one member as FAMILY/MEMBER.

Examples:
  scalelab list
  scalelab list recipes        # the members of a family
"""

from __future__ import annotations

import argparse
import sys

from scalelab.commands.arguments import add_json
from scalelab.commands.output import print_cut, print_json
from scalelab.errors import LabError
from scalelab.experiment import Listed, listing

FIRST = "quickstart"
"""The experiment that a newcomer is to see first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="list the members of this family alone")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print all experiments; 1 if an experiment's file could not be read."""
    found, broken = listing()
    if args.family is not None:
        found = [entry for entry in found if entry.name.partition("/")[0] == args.family]
        if not found:
            raise LabError(f"there is no experiment or family {args.family!r}: `scalelab list` shows them all")
    if args.json:
        entries = [{"name": e.name, "description": e.description, "file": str(e.file)} for e in found]
        print_json({"experiments": entries, "broken": [str(error) for error in broken]})
    elif args.family is not None:
        _print_lines([(entry.name, entry.description) for entry in found])
    else:
        _print_groups(found)
    for error in broken:
        print(f"scalelab: {error}", file=sys.stderr)
    return 1 if broken else 0


def _print_groups(found: list[Listed]) -> None:
    """Print single experiments, then a line per family."""
    single = sorted((e for e in found if "/" not in e.name), key=lambda e: (e.name != FIRST, e.name))
    families: dict[str, list[str]] = {}
    for entry in found:
        family, slash, member = entry.name.partition("/")
        if slash:
            families.setdefault(family, []).append(member)
    print("Experiments")
    _print_lines([(entry.name, entry.description) for entry in single])
    if families:
        print("\nFamilies (`scalelab list FAMILY` describes the members)")
        _print_lines([(name, f"{len(members)}: {', '.join(members)}") for name, members in families.items()])


def _print_lines(rows: list[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print_cut(f"  {name:<{width}}  {text}")
