"""Rank runs per task: by A, and where A ties by B at the common A (ScaleRL §3.2).

A ties within 0.02 (--tie margin, the paper's rule) or where intervals overlap (--tie overlap). The first SOURCE is the
baseline. The verdict on each run against it is about the pass rate at the largest compute that all runs have spent, or
at --at: "ahead" and "behind" from a probability of 90 % on, else "cannot tell". The spread between runs of one recipe
is estimated from all recipes that have several seeds. Recipes that share seeds are compared seed by seed. All
differences are shrunk towards zero, because the largest of many is too large by chance. "Compute to R" is what a run
needs for a pass rate (--reach), as a multiple of what the baseline needs. Run folders that differ in their seed alone
are pooled.

Example:  scalelab compare runs/scalerl runs/no_fp32_head --at 16000 --plot efficiency.png
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.arguments import Once, add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_source_arguments,
    fit_options,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_json, print_table
from scalelab.errors import LabError
from scalelab.numbers import percent, with_interval

if TYPE_CHECKING:
    from scalelab.curves.compare import Comparison, Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    parser.add_argument("--tie", default="margin", choices=("margin", "overlap"), help="rule by which two A are equal")
    parser.add_argument("--margin", type=float, default=0.02, metavar="D", help="margin of --tie margin (default 0.02)")
    parser.add_argument(
        "--at", type=float, action=Once, metavar="C", help="compute at which win probabilities are taken"
    )
    parser.add_argument(
        "--reach",
        type=float,
        action=Once,
        metavar="R",
        help="pass rate to which compute is counted (default: the middle of the highest start and the lowest end)",
    )
    parser.add_argument(
        "--seed-spread",
        type=float,
        metavar="S",
        help="standard deviation between runs of one recipe, if it is known (default: estimated from all seeds)",
    )
    parser.add_argument(
        "--spread-from",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="SOURCE",
        help="runs of the same kind with several seeds, to estimate the spread from",
    )
    add_fit_arguments(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="efficiency plot F(R) = C^B: .png, .svg or .pdf")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and print; 1 if a curve was refused."""
    from scalelab.curves import analyse_all, compare, pool_seeds, read_sources
    from scalelab.curves.compare import entry_summary

    given = read_curves(args)
    curves, pooled = pool_seeds(given)
    if len({item.run for item in curves}) < 2:
        if pooled:
            runs = ", ".join(dict.fromkeys(item.run for item in given))
            raise LabError(
                f"{runs} are seeds of one recipe, not rivals: fit them together with scalelab fit --pool NAME"
            )
        raise LabError(f"one run only ({curves[0].run}): give at least two to compare")
    analyses, refused = analyse_all(curves, fit_options(args))
    pilots, unfit = analyse_all(pool_seeds(read_sources(args.spread_from))[0], fit_options(args))
    if args.spread_from and not pilots:
        raise LabError(f"--spread-from: none of its runs carries a fit ({unfit[0]['reason']})")
    refused += unfit
    comparisons = compare(
        analyses,
        tie=args.tie,
        margin=args.margin,
        at=args.at,
        reach=args.reach,
        run_spread=args.seed_spread,
        spread_from=pilots,
    )
    if args.plot:
        from scalelab.report.plots import plot_efficiency

        plot_efficiency(comparisons, args.plot)
    if args.json:
        print_json(
            {
                "tasks": {one.task: [entry_summary(entry) for entry in one.entries] for one in comparisons},
                "at": {one.task: one.at for one in comparisons},
                "reach": {one.task: one.reach for one in comparisons},
                "crossings": {one.task: [vars(item) for item in one.crossings] for one in comparisons},
                "notes": {one.task: list(one.notes) for one in comparisons},
                "spread": {
                    one.task: {"median": one.spread[0], "interval": one.spread[1], "measured": one.measured}
                    for one in comparisons
                },
                "pooled": pooled,
                "refused": refused,
            }
        )
        return int(bool(refused))
    print_comparisons(comparisons, curves[0].run, pooled)
    print_remarks(analyses, refused)
    return int(bool(refused))


def print_comparisons(comparisons: list[Comparison], baseline: str, pooled: list[str]) -> None:
    """Print the ranking of each task, and the runs that were pooled.

    Args:
        comparisons: one per task.
        baseline: name of the run that all others are compared with.
        pooled: a line for each recipe whose seeds were pooled.
    """
    for one in comparisons:
        _print_comparison(one, baseline)
    for line in pooled:
        print(line)


def _gap(entry: Entry, other: str) -> tuple[float, tuple[float, float]]:
    found = entry.differences[other]
    return found.median, found.interval


def _reaches(entry: Entry, reach: float) -> bool:
    """True if a run's curve starts below a pass rate and ends above it."""
    found = entry.analysis.fit.parameters
    return found["R0"] < reach < found["A"]


def _times(entry: Entry, reference: Entry, reach: float) -> str:
    """Compute to reach a pass rate, as a multiple of another run's; none where one of them does not get there."""

    if not (_reaches(entry, reach) and _reaches(reference, reach)):
        return "–"
    found = entry.differences[reference.run]
    low, high = found.log_reach_interval
    return "×" + with_interval(math.exp(found.log_reach), (math.exp(low), math.exp(high)))


def _verdict(entry: Entry, other: str) -> str:
    """The verdict on a run against another: its probability, and how that depends on the seeds' spread."""

    found = entry.differences[other]
    holds = ""
    if found.holds_to_spread:
        when = "sure if" if found.verdict == "cannot tell" else "as long as"
        holds = f", {when} seeds differ by no more than {found.holds_to_spread:.2g}"
    return f"{found.verdict} ({percent(found.probability)} above{holds})"


def _print_comparison(one: Comparison, baseline: str) -> None:

    unit = one.entries[0].analysis.fit.curve.unit
    reference = next((entry for entry in one.entries if entry.run == baseline), one.entries[0])
    base = reference.analysis.fit.parameters["A"]
    rows = []
    for entry in one.entries:
        fit, found = entry.analysis.fit, entry.analysis.intervals
        rows.append(
            [
                str(entry.rank),
                entry.run,
                with_interval(fit.parameters["A"], found["A"]),
                "" if entry is reference else f"{fit.parameters['A'] - base:+.3f}",
                with_interval(fit.parameters["B"], found["B"]),
                f"{entry.common_A:.3f}" if entry.tied_with else "–",
                with_interval(entry.B_at_common_A, entry.B_interval) if entry.tied_with else "–",
                with_interval(fit.parameters["C_mid"], found["C_mid"]),
                with_interval(*entry.rate),
                "" if entry is reference else with_interval(*_gap(entry, reference.run)),
                "" if entry is reference else _times(entry, reference, one.reach),
                "" if entry is reference else _verdict(entry, reference.run),
            ]
        )
    print(f"{one.task or 'all'}: by A, then by B at the common A\n")
    at, gap = f"at {one.at:,g}", f"less {reference.run}" + (", by seed" if one.shared else "")
    print_table(
        rows,
        [
            "rank",
            "run",
            "A",
            "ΔA",
            "B",
            "common A",
            "B there",
            "C_mid",
            at,
            gap,
            f"compute to {one.reach:.2f}",
            "verdict",
        ],
    )
    print()
    for item in one.crossings:
        if len(one.entries) > 3 and baseline not in (item.first, item.second):
            continue  # of many runs only the baseline's are of interest; --json has all
        if item.compute is not None and item.interval is not None:
            where = with_interval(item.compute, item.interval)
            print(
                f"{item.first} and {item.second} cross at {where} {unit} (probability {percent(item.probability)}); "
                f"{item.leader_before} is ahead before"
            )
    beyond = [entry.run for entry in one.entries if not _reaches(entry, one.reach)]
    if beyond:
        print(f"{', '.join(beyond)}: the fitted curve does not pass {one.reach:g}, so there is no compute to it")
    for note in one.notes:
        print(note)
    print()
