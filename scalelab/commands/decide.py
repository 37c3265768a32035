"""Decide what to do with further compute: which recipe, go on or stop, another seed or another setting.

The page is read from the same draws as `scalelab compare` and `forecast`. The worth of a step is the pass rate that it
is expected to add to what one ends with, over all tasks alike (--task for one of them). Where no step is expected to
add --worthwhile, another setting is proposed.

Example:  scalelab decide runs/scalerl runs/no_fp32_head --budget 40
"""

from __future__ import annotations

import argparse

from scalelab.commands.arguments import add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_source_arguments,
    add_spread,
    analysed,
    fit_options,
    pilot_runs,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_filled, print_json
from scalelab.defaults import WORTHWHILE
from scalelab.errors import LabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    parser.add_argument(
        "--budget",
        type=float,
        required=True,
        metavar="H",
        help="compute that is left to spend, in the unit that the curves count in (tokens for run folders on cores)",
    )
    parser.add_argument(
        "--worthwhile",
        type=float,
        default=WORTHWHILE,
        metavar="GAIN",
        help="least gain in pass rate that counts (%(default)s)",
    )
    add_spread(parser)
    add_fit_arguments(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Decide and print; 1 if a curve was refused."""
    from scalelab.curves import decide, pool_seeds

    curves, pooled = pool_seeds(read_curves(args))
    analyses, refused = analysed(curves, options := fit_options(args))
    if not analyses:
        raise LabError(f"none of the runs carries a fit ({refused[0]['reason']})")
    pilots, unfit = pilot_runs(args, options)
    refused += unfit
    found = decide(analyses, args.budget, args.worthwhile, args.seed_spread, pilots)
    if args.json:
        print_json(found.as_json() | {"pooled": pooled, "refused": refused})
        return int(bool(refused))
    for line in (*found.text(), *pooled):
        print_filled(line)
    print_remarks(analyses, refused)
    return int(bool(refused))
