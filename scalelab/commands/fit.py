"""Fit each task's curve: its pass rate at the compute reached, at 2 and 4 times as much, and R0, A, B and C_mid.

Rates are averaged over shapes of curve; A, B and C_mid are those of a sigmoid, with A in brackets where other shapes
may go beyond it. Half of the budget is back-tested, and the tasks of a run are tested for being parallel: the ratio of
their B lies within --parallel-margin. A task that falls forgets: its curve falls from R0 to A, a floor.

SOURCE is a run folder; a CSV, JSONL or Parquet file with columns compute (or gpu_hours, core_hours) and pass_rate, and
optionally task, run, seed, n (samples behind the mean) or stderr; TensorBoard events; or a W&B export (CSV).

Methods: joint (the default) fits all parameters of the sigmoid at once, weighted and robust; paper is ScaleRL's grid;
power is the power law A − D/C^B.

Examples:
  scalelab fit runs/quickstart --json
  scalelab fit points.csv --since 1500 --until 50000 --r0 0.402 --plot fit.png
  scalelab fit tb/ --column 'pass_rate=eval/*/accuracy' --column compute=step --compute-scale 13.5 --unit GPU-hours
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
from scalelab.defaults import PARALLEL_MARGIN
from scalelab.numbers import asymptote, compact, with_interval

if TYPE_CHECKING:
    from scalelab.curves import Analysis
    from scalelab.curves.parallel import Parallel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    add_price(parser)
    parser.add_argument("--method", default="joint", choices=("joint", "paper", "power"), help="how to fit")
    add_fit_arguments(parser)
    parser.add_argument(
        "--parallel-margin",
        type=float,
        default=PARALLEL_MARGIN,
        metavar="X",
        help="ratio of B up to which tasks are parallel (%(default)s)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the fits: .png, .svg or .pdf")
    parser.add_argument("--wide", action="store_true", help="all columns: four times as much, R0, points, back-test")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit and print; 1 if a curve was refused."""
    from scalelab.curves import parallel

    curves = read_curves(args, price := pricing(args), one_unit=args.plot is not None)
    analyses, refused = analysed(curves, fit_options(args, args.method))
    pairs = parallel(analyses, args.parallel_margin)
    if args.plot:
        from scalelab.report.plots import plot_fits

        plot_fits(curves, analyses, args.plot)
    if args.json:
        fits = [item.as_json() for item in analyses]
        print_json({"fits": fits, "joint": None, "parallel": [one.as_json() for one in pairs], "refused": refused})
        return int(bool(refused))
    print_fits(analyses, refused, pairs, args.wide)
    print_prices(price)
    return int(bool(refused))


def print_fits(
    analyses: list[Analysis],
    refused: list[dict[str, str]],
    pairs: Sequence[Parallel] | None = None,
    wide: bool = False,
) -> None:
    """Print fitted curves as a table for each unit of compute, whether tasks are parallel, and remarks.

    Args:
        analyses: the fitted curves.
        refused: the curves that could not be fitted, with reasons.
        pairs: pairs of tasks; None looks at those of each run.
        wide: all columns in place of those that fit a narrow terminal.
    """
    from scalelab.curves import parallel

    for number, unit in enumerate(dict.fromkeys(item.fit.curve.counted_in for item in analyses)):
        print("\n" * bool(number), end="")
        _print_table([item for item in analyses if item.fit.curve.counted_in == unit], wide)
    pairs = parallel(analyses) if pairs is None else pairs
    if pairs:
        print()
        for pair in pairs:
            print_filled(pair.text())
    print_remarks(analyses, refused)


def _print_table(analyses: list[Analysis], wide: bool) -> None:
    """Print curves that share a unit."""
    with_draws = [item for item in analyses if item.curves]
    if with_draws:
        shown = slice(None) if wide else slice(2)
        header = ["run", "task", "compute", "reached", "with twice the compute", "with four times"]
        rows = []
        for item in with_draws:
            rates = item.rates()
            cells = [with_interval(rate.value, rate.interval) for rate in rates[shown]]
            rows.append([*curve_cells(item), compact(rates[0].compute), *cells])
        print_table(rows, header[: len(rows[0])])
        print()
    names = [name for name in analyses[0].fit.model.parameters if wide or name != "R0"]
    rows = []
    for item in analyses:
        fit = item.fit
        window = f"{compact(fit.window[0])}–{compact(fit.window[1])} {fit.curve.unit}"
        cells = [_parameter(item, name) for name in names]
        more = [str(len(fit.curve)), window, back_test_cell(item)] if wide else []
        rows.append([*curve_cells(item), *cells, *more])
    print_table(rows, ["run", "task", *names, *(["points", "window", "half-budget back-test"] if wide else [])])
    if with_draws:
        unit = with_draws[0].fit.curve.counted_in
        said = "Compute as in the log" if unit == "compute" else f"Compute in {unit}"
        print(f"\n{said}; […] {analyses[0].level:.0%} intervals.")
        if wide:
            print("Back-test: mean of the second half, as the first half forecast it and as it was measured.")
        for item in with_draws:
            if item.fit.model.name == "sigmoid":
                print_filled(f"{item.fit.curve.name}: {item.asymptote_text()}.")
    else:
        print("\nThe paper's method gives neither intervals nor forecasts; the joint one does.")
    for rule in dict.fromkeys(item.fit.window_rule for item in analyses):
        print_filled(f"Window: {rule}.")


def _parameter(item: Analysis, name: str) -> str:
    """A parameter with its interval, if it has one; A in brackets where it is no limit."""
    stands = item.stands if name == "A" and name in item.intervals else None
    return asymptote(item.params[name], item.intervals.get(name), stands)
