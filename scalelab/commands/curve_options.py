"""Options shared by `fit`, `forecast`, `compare` and `report`: sources, window, method."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scalelab.errors import LabError

if TYPE_CHECKING:
    from scalelab.curves import Analysis, Curve, Options


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that name the sources."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="run folders, folders of runs, or files")
    add_reading_arguments(parser)
    parser.add_argument("--pool", metavar="NAME", help="treat the sources as seeds of one run with this name")


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for reading sources."""
    parser.add_argument("--task", action="append", metavar="T", help="only this task; repeat for more")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="which column or tag of the source is compute, pass_rate, task, run, seed, n, stderr, epoch, …",
    )
    parser.add_argument("--compute-scale", type=float, default=1.0, metavar="X", help="hours per unit of compute read")
    parser.add_argument(
        "--rate-range",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        metavar=("LOW", "HIGH"),
        help="what the source calls a pass rate of 0 and of 1: 0 100 for percentages, -1 1 for such rewards",
    )
    parser.add_argument(
        "--unit", help="unit of compute, where the source does not say it or --compute-scale changes it"
    )


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
    parser.add_argument("--level", type=float, default=0.8, metavar="P", help="probability of intervals (default 0.8)")
    parser.add_argument(
        "--intervals",
        default="posterior",
        choices=("posterior", "profile", "block", "parametric"),
        help="posterior (default), profile likelihood, block or parametric bootstrap",
    )
    parser.add_argument("--sigmoid-only", action="store_true", help="do not widen intervals by other shapes of curve")
    parser.add_argument("--no-prior", action="store_true", help="fit the points without a prior")


def read_curves(args: argparse.Namespace) -> list[Curve]:
    """Read the curves that the arguments ask for."""
    from scalelab.curves import pool, read_sources

    columns = column_names(args)
    curves = read_sources(
        args.sources, columns, compute_scale=args.compute_scale, unit=args.unit, rate_range=tuple(args.rate_range)
    )
    if args.task:
        present = list(dict.fromkeys(item.task for item in curves))
        missing = [task for task in args.task if task not in present]
        if missing:
            raise LabError(
                f"no task {missing[0]!r} in the sources; there are: {', '.join(filter(None, present)) or 'none'}"
            )
        curves = [item for item in curves if item.task in args.task]
    return pool(curves, args.pool) if args.pool else curves


def column_names(args: argparse.Namespace) -> dict[str, str]:
    """Map our names of columns to the sources' names, as `--column` gives them."""
    return dict(_mapping(item) for item in args.column)


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
        interval=args.intervals,
        prior=None if args.no_prior else DEFAULT,
        shapes=not args.sigmoid_only,
    )


def curve_cells(analysis: Analysis) -> tuple[str, str]:
    """Run and task, the first cells of every table."""
    return analysis.fit.curve.run, analysis.fit.curve.task or "–"


def back_test_cell(analysis: Analysis) -> str:
    """Mean of the budget's second half: forecast from the first half, and measured."""
    test = analysis.backtest
    if test is None:
        return "–"
    low, high = test.interval
    return f"{test.forecast:.3f} [{low:.3f}, {high:.3f}], came {test.measured:.3f}{'' if test.inside else ': missed'}"


def print_remarks(analyses: list[Analysis], refused: list[dict[str, str]]) -> None:
    """Print whose hours are counted if no real device spent them; then warnings and refusals, once each."""
    curves = [item.fit.curve for item in analyses]
    pretended = [curve for curve in curves if curve.pretended]
    for counted in dict.fromkeys(curve.counted_in for curve in pretended):
        runs = ", ".join(dict.fromkeys(curve.run for curve in pretended if curve.counted_in == counted))
        print(f"\nCompute is in {counted}, on a simulated clock{'' if pretended == curves else f': {runs}'}.")
    lines = [f"{item.fit.curve.name}: {warning}" for item in analyses for warning in item.warnings]
    lines += [f"refused: {item['reason']}" for item in refused]
    if lines:
        print()
    for line in lines:
        print(f"! {line}")


def _mapping(item: str) -> tuple[str, Any]:
    ours, equals, theirs = item.partition("=")
    if not equals or not ours or not theirs:
        raise LabError(f"--column {item}: write it as OURS=THEIRS, such as --column pass_rate=eval/accuracy")
    return ours.strip(), theirs.strip()
