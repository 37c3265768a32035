"""Forecast, with intervals, the pass rate at given compute, the compute that a pass rate takes, and whether to extend.

An evaluation at that compute falls inside its interval with the probability --level; "curve" is the interval of the
curve itself, without the noise of one evaluation. SOURCE as for `scalelab fit`; works while a run goes on.

Example:  scalelab forecast runs/long --at 50000 100000 --target 0.65
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.arguments import add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_price,
    add_source_arguments,
    analysed,
    back_test_cell,
    curve_cells,
    fit_options,
    pricing,
    print_prices,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_filled, print_json, print_table
from scalelab.defaults import WORTHWHILE
from scalelab.numbers import compact, percent, with_interval

if TYPE_CHECKING:
    from scalelab.curves import Analysis
    from scalelab.curves.forecast import Extension, Forecast, Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    add_price(parser)
    parser.add_argument(
        "--at", type=float, nargs="+", action="extend", default=[], metavar="C", help="compute to forecast at"
    )
    parser.add_argument(
        "--target",
        type=float,
        nargs="+",
        action="extend",
        default=[],
        metavar="R",
        help="pass rates to reach, or to fall to where the task forgets",
    )
    parser.add_argument(
        "--worthwhile",
        type=float,
        default=WORTHWHILE,
        metavar="GAIN",
        help="gain in pass rate that would justify doubling the budget (default %(default)s)",
    )
    parser.add_argument("--method", default="joint", choices=("joint", "power"), help="how to fit")
    add_fit_arguments(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the forecasts: .png, .svg or .pdf")
    parser.add_argument("--wide", action="store_true", help="what each target's chance means, gain per hour, back-test")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Forecast and print; 1 if a curve was refused."""
    from scalelab.curves import compute_for, extend_or_stop, forecast

    curves = read_curves(args, price := pricing(args))
    analyses, refused = analysed(curves, fit_options(args, args.method))
    forecasts = [(item, value) for item in analyses for value in forecast(item, args.at)] if args.at else []
    targets = [(item, compute_for(item, target)) for item in analyses for target in args.target]
    extensions = [(item, extend_or_stop(item, args.worthwhile)) for item in analyses]
    if args.plot:
        from scalelab.report.plots import plot_fits

        plot_fits(curves, analyses, args.plot, until=max(args.at, default=None))
    if args.json:
        _print_json(forecasts, targets, extensions, analyses, refused)
    else:
        _print_tables(forecasts, targets, extensions, args.wide)
        print_prices(price)
        print_remarks(analyses, refused)
    return int(bool(refused))


def _print_json(
    forecasts: list[tuple[Analysis, Forecast]],
    targets: list[tuple[Analysis, Target]],
    extensions: list[tuple[Analysis, Extension]],
    analyses: list[Analysis],
    refused: list[dict[str, str]],
) -> None:
    from scalelab.curves.forecast import entry

    print_json(
        {
            "forecasts": [entry(item) | vars(value) | {"level": item.level} for item, value in forecasts],
            "targets": [entry(item) | vars(value) | {"level": item.level} for item, value in targets],
            "extend": [entry(item) | vars(value) | {"level": item.level} for item, value in extensions],
            "fits": [item.as_json() for item in analyses],
            "refused": refused,
        }
    )


def _print_tables(
    forecasts: list[tuple[Analysis, Forecast]],
    targets: list[tuple[Analysis, Target]],
    extensions: list[tuple[Analysis, Extension]],
    wide: bool,
) -> None:
    """Print the advice in sentences, then tables of 80 columns, or `wide` ones."""
    for item, advice in extensions:
        print_filled(_advice(item, advice, wide))
    if forecasts:
        unit = forecasts[0][0].fit.curve.counted_in
        rows = [
            [*curve_cells(item), compact(one.at), with_interval(one.value, one.interval), with_interval(*_curve(one))]
            for item, one in forecasts
        ]
        print()
        print_table(rows, ["run", "task", f"at ({unit})", f"an evaluation, {forecasts[0][0].level:.0%}", "the curve"])
    if targets:
        rows = []
        for item, goal in targets:
            compute = "–" if goal.compute is None else with_interval(goal.compute, goal.interval)
            reading = [goal.reading] if wide else []
            target = f"{'down to ' * item.falls}{goal.target:g}"
            rows.append([*curve_cells(item), target, compute, percent(goal.probability), *reading])
        print()
        print_table(rows, ["run", "task", "target", "compute", "reached at all", *(["reading"] if wide else [])])
    if wide:
        print("\nBack-test: mean of the second half, as the first half forecast it and as it was measured.")
        print_table([[*curve_cells(item), back_test_cell(item)] for item, _ in extensions])


def _advice(item: Analysis, advice: Extension, wide: bool) -> str:
    """Advice in a sentence."""
    word = {"extend": "worth it", "stop": "not worth it"}.get(advice.reading.partition(":")[0])
    judged = f"that is {word}" if word else "it is unclear whether that is worth it"
    chance = f"{percent(advice.probability_worthwhile)} that it adds {advice.worthwhile:g} or more"
    rate = f" Now {advice.gain_per_hour:.2g} per {item.fit.curve.unit.removesuffix('s')}." if wide else ""
    forgets = f"{item.fall_text()}; " if item.falls else ""
    return f"{item.fit.curve.name}: {forgets}twice the compute would {advice.text}; {judged} ({chance}).{rate}"


def _curve(one: Forecast) -> tuple[float, tuple[float, float]]:
    return one.value, one.curve_interval
