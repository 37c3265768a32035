"""Options shared by `fit`, `forecast`, `compare` and `report`: sources, window, method."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.output import print_filled, print_table
from scalelab.defaults import LEVEL
from scalelab.errors import LabError

if TYPE_CHECKING:
    from scalelab.commands.pricing import Pricing
    from scalelab.curves import Analysis, Curve, Options
    from scalelab.reading import Reading


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that name the sources."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="run folders, folders of runs, or files")
    add_reading_arguments(parser)
    parser.add_argument("--pool", metavar="NAME", help="treat the sources as seeds of one run with this name")


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for reading sources; `reading_from` makes settings of them."""
    parser.add_argument("--task", action="append", metavar="T", help="only this task; repeat for more")
    parser.add_argument(
        "--mapping", type=Path, metavar="FILE", help="settings that `scalelab read --save` wrote; options come first"
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="which column or tag of the source is compute, pass_rate, task, run, seed, n, stderr, epoch, …",
    )
    parser.add_argument("--compute-scale", type=float, metavar="X", help="hours per unit of compute read")
    parser.add_argument("--compute-start", type=float, metavar="C", help="compute spent before RL began: taken off")
    parser.add_argument(
        "--rate-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="what the source calls a pass rate of 0 and of 1: 0 100 for percentages, -1 1 for such rewards",
    )
    parser.add_argument(
        "--unit", help="unit of compute, where the source does not say it or --compute-scale changes it"
    )
    parser.add_argument(
        "--hours-of",
        metavar="DEVICE[,NAME=RATE...]",
        help="count all compute in hours of this device, such as h100; others by the data sheets, or by RATE for a "
        "device or a run",
    )
    parser.add_argument(
        "--mean", metavar="TASK[=WEIGHT],...", help="also the weighted mean of these tasks, as one task"
    )
    parser.add_argument(
        "--repeats",
        choices=("later", "mean"),
        help="of several values at one compute take the later, or their mean (default: only where a run was resumed)",
    )


def reading_from(args: argparse.Namespace) -> Reading:
    """Settings for reading sources, from a saved mapping and the options."""
    from scalelab.reading import Reading, load_reading
    from scalelab.reading.settings import parse_hours, parse_mean

    found = load_reading(args.mapping) if args.mapping else Reading()
    device, rates = parse_hours(args.hours_of) if args.hours_of else (found.hours_of, dict(found.device_rates))
    given = {
        "compute_scale": args.compute_scale,
        "unit": args.unit,
        "rate_range": tuple(args.rate_range) if args.rate_range else None,
        "tasks": tuple(args.task) if args.task else None,
        "mean": parse_mean(args.mean) if args.mean else None,
        "repeats": args.repeats,
        "start": args.compute_start,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    columns = {**found.columns, **dict(map(column_of, args.column))}
    return replace(found, columns=columns, hours_of=device, device_rates=rates, **chosen)


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for fitting."""
    parser.add_argument(
        "--since",
        type=float,
        metavar="C",
        help="fit from this compute on (default: the run's window, or after one epoch)",
    )
    parser.add_argument("--until", type=float, metavar="C", help="fit up to this compute (default: the run's window)")
    parser.add_argument(
        "--r0", type=float, metavar="R", help="hold R0 at R; by default step 0 measures it, or it is free"
    )
    parser.add_argument(
        "--level", type=float, default=LEVEL, metavar="P", help="probability of intervals (default %(default)s)"
    )
    parser.add_argument("--sigmoid-only", action="store_true", help="do not widen intervals by other shapes of curve")
    parser.add_argument("--no-prior", action="store_true", help="fit the points without a prior")


def add_spread(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say what runs of one recipe differ by."""
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


def read_curves(args: argparse.Namespace, price: Pricing | None = None, one_unit: bool = True) -> list[Curve]:
    """Read the curves that the arguments ask for, over what their steps cost elsewhere if `price` is given.

    Raises:
        LabError: a source cannot be read, or not all count compute in one unit where `one_unit` asks for that.
    """
    from scalelab.curves import pool
    from scalelab.reading import read_with
    from scalelab.reading.curve import same_unit
    from scalelab.reading.settings import refuse_unknown_tasks

    reading = reading_from(args)
    curves = read_with(args.sources, replace(reading, tasks=(), metrics=reading.tasks), price)
    refuse_unknown_tasks(reading.tasks, [item.task for item in curves])
    curves = [item for item in curves if not reading.tasks or item.task in reading.tasks]
    if one_unit or args.pool:
        same_unit(curves)
    return pool(curves, args.pool) if args.pool else curves


def pilot_runs(args: argparse.Namespace, options: Options) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Fits of the runs of `--spread-from`, and the curves among them that carry none.

    Raises:
        LabError: a source cannot be read, or none carries a fit.
    """
    from scalelab.curves import pool_seeds, read_sources

    pilots, unfit = analysed(pool_seeds(read_sources(args.spread_from))[0], options)
    if args.spread_from and not pilots:
        raise LabError(f"--spread-from: none of its runs carries a fit ({unfit[0]['reason']})")
    return pilots, unfit


def add_price(parser: argparse.ArgumentParser) -> None:
    """Declare `--price`."""
    parser.add_argument(
        "--price",
        metavar="DEVICE|RATES",
        help="count what the runs' steps cost on another cluster: a device such as h100, or a file of measured rates",
    )


def pricing(args: argparse.Namespace) -> Pricing | None:
    """The prices that `--price` asks for."""
    if not args.price:
        return None
    from scalelab.commands.pricing import Pricing

    return Pricing(args.price)


def print_prices(price: Pricing | None) -> None:
    """Print what runs learn for each step beside the steps that an hour makes, here and there."""
    if price is not None:
        print()
        print_table(price.rows(), price.header())


def fit_options(args: argparse.Namespace, method: str = "joint") -> Options:
    """The fit's options from the arguments."""
    from scalelab.curves import Options
    from scalelab.curves.fitting.noise import DEFAULT

    return Options(
        method=method,  # type: ignore[arg-type]  # Options checks it
        since=args.since,
        until=args.until,
        r0=args.r0,
        level=args.level,
        prior=None if args.no_prior else DEFAULT,
        shapes=not args.sigmoid_only,
    )


def analysed(curves: Sequence[Curve], options: Options) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Analyses, and the curves that were refused with reasons; points seen before are read from the user's cache."""
    from scalelab.curves.kept import analyse_kept
    from scalelab.kept import user_folder

    return analyse_kept(curves, options, user_folder())


def curve_cells(analysis: Analysis) -> tuple[str, str]:
    """Run and task, the first cells of every table."""
    return analysis.fit.curve.run, analysis.fit.curve.task or "–"


def back_test_cell(analysis: Analysis) -> str:
    """Mean of the budget's second half: forecast from the first half, and measured."""
    test = analysis.backtest
    if test is None:
        return "–"
    low, high = test.interval
    return (
        f"{test.forecast:.3f} [{low:.3f}, {high:.3f}], measured {test.measured:.3f}{'' if test.inside else ': missed'}"
    )


def print_remarks(analyses: list[Analysis], refused: list[dict[str, str]]) -> None:
    """Print whose hours are counted if no real device spent them; then warnings and refusals, once each."""
    curves = [item.fit.curve for item in analyses]
    simulated = [curve for curve in curves if curve.simulated]
    for counted in dict.fromkeys(curve.counted_in for curve in simulated):
        runs = ", ".join(dict.fromkeys(curve.run for curve in simulated if curve.counted_in == counted))
        print(f"\nCompute is in {counted}, on a simulated clock{'' if simulated == curves else f': {runs}'}.")
    lines = [f"{item.fit.curve.name}: {warning}" for item in analyses for warning in item.warnings]
    lines += [f"refused: {item['reason']}" for item in refused]
    if lines:
        print()
    for line in lines:
        print_filled(f"! {line}", "  ")


def column_of(item: str) -> tuple[str, str]:
    """Our name of a column, and the source's, of one `--column`."""
    ours, equals, theirs = item.partition("=")
    if not equals or not ours or not theirs:
        raise LabError(f"--column {item}: write it as OURS=THEIRS, such as --column pass_rate=eval/accuracy")
    return ours.strip(), theirs.strip()
