"""Fit R0, A, B and C_mid per task with intervals, back-test half of the budget, and test whether tasks share B.

SOURCE is a run folder; a CSV, JSONL or Parquet file with columns compute (or gpu_hours, core_hours) and pass_rate, and
optionally task, run, seed, n (samples behind the mean) or stderr; TensorBoard events; or a W&B export (CSV).

Methods: joint (the default) fits all parameters of the sigmoid at once, weighted and robust; paper is ScaleRL's grid;
power is the power law A − D/C^B.

Examples:
  scalelab fit runs/quickstart --json
  scalelab fit points.csv --since 1500 --until 50000 --r0 0.402 --plot fit.png
  scalelab fit tb/ --column 'pass_rate=eval/*/accuracy' --column compute=step --compute-scale 13.5 --unit GPU-hours
  scalelab fit batch512.csv batch2048.csv --share R0 B
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.arguments import add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_source_arguments,
    back_test_cell,
    curve_cells,
    fit_options,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_json, print_table
from scalelab.errors import LabError
from scalelab.numbers import with_error, with_interval

if TYPE_CHECKING:
    from scalelab.curves import Analysis
    from scalelab.curves.sharing import SharingTest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    parser.add_argument("--method", default="joint", choices=("joint", "paper", "power"), help="how to fit")
    add_fit_arguments(parser)
    parser.add_argument(
        "--share",
        nargs="+",
        metavar="NAME",
        choices=("R0", "A", "B", "C_mid"),
        help="also fit the runs of each task together with these parameters in common",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the fits: .png, .svg or .pdf")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit and print; 1 if a curve was refused."""
    from scalelab.curves import analyse_all

    curves = read_curves(args)
    if args.share and args.method != "joint":
        raise LabError(f"--share needs --method joint: there are no joint fits by the {args.method} method")
    if args.share and len({item.run for item in curves}) < 2:
        without = " or leave out --pool" if args.pool else ""
        raise LabError(f"--share compares runs, and there is one only: give at least two{without}")
    analyses, refused = analyse_all(curves, fit_options(args, args.method))
    tests = _sharing(analyses, args.share) if args.method == "joint" else []
    if args.plot:
        from scalelab.report.plots import plot_fits

        plot_fits(curves, analyses, args.plot)
    if args.json:
        joint = {"tests": [test.as_json() for test in tests]} if tests else None
        print_json({"fits": [item.as_json() for item in analyses], "joint": joint, "refused": refused})
        return int(bool(refused))
    print_fits(analyses, refused, tests)
    return int(bool(refused))


def print_fits(
    analyses: list[Analysis], refused: list[dict[str, str]], tests: Sequence[SharingTest] | None = None
) -> None:
    """Print fitted curves as a table, tests of shared parameters, and remarks.

    Args:
        analyses: the fitted curves.
        refused: the curves that could not be fitted, with reasons.
        tests: by default, whether the tasks of each run share B.
    """
    if analyses:
        _print_table(analyses)
    for test in _sharing(analyses, None) if tests is None else tests:
        _print_test(test)
    print_remarks(analyses, refused)


def _sharing(analyses: list[Analysis], share: list[str] | None) -> list[SharingTest]:
    """Test if the tasks of each run share B; with --share, if the runs of each task share the named parameters."""
    from scalelab.curves import sharing_test

    fits = [item.fit for item in analyses]
    tests = []
    for run_name in dict.fromkeys(fit.curve.run for fit in fits):
        members = [fit for fit in fits if fit.curve.run == run_name]
        if len(members) > 1:
            tests.append(sharing_test(members, ("B",), "tasks", run_name))
    if share:
        for task in dict.fromkeys(fit.curve.task for fit in fits):
            members = [fit for fit in fits if fit.curve.task == task]
            if len(members) > 1:
                tests.append(sharing_test(members, share, "runs", task or "all runs"))
    return tests


def _print_table(analyses: list[Analysis]) -> None:

    names = analyses[0].fit.model.parameters
    rows = []
    for item in analyses:
        fit = item.fit
        cells = [
            with_interval(fit.parameters[name], item.intervals[name])
            if name in item.intervals
            else with_error(fit.parameters[name], fit.stderr[name])
            for name in names
        ]
        window = f"{fit.window[0]:.4g}–{fit.window[1]:.4g} {fit.curve.unit}"
        rows.append([*curve_cells(item), *cells, str(len(fit.curve)), window, back_test_cell(item)])
    print_table(rows, ["run", "task", *names, "points", "window", "half-budget back-test"])
    if analyses[0].draws:
        print(f"\n[…] {analyses[0].level:.0%} intervals, {analyses[0].intervals_by}.", end=" ")
        print("Back-test: mean of the second half, as the first half forecast it and as it came.")
    else:
        print("\nThe paper's method gives neither intervals nor forecasts; the joint one does.")
    for rule in dict.fromkeys(item.fit.window_rule for item in analyses):
        print(f"Window: {rule}.")


def _print_test(test: SharingTest) -> None:
    from scalelab.curves.fitting.models import SIGMOID

    names = ", ".join(test.together.shared)
    print(
        f"\n{test.over} of {test.name}, {names} shared or separate: the points support {test.supported.upper()} "
        f"(likelihood ratio p = {test.p_value:.2g}; shared minus separate: AIC "
        f"{test.together.aic - test.apart.aic:+.1f}, BIC {test.together.bic - test.apart.bic:+.1f})"
    )
    columns = SIGMOID.parameters
    header = ["run", "task", *(f"{name}{' (shared)' if name in test.together.shared else ''}" for name in columns)]
    rows = [
        [run, task or "–", *(with_error(values[name], errors[name]) for name in columns)]
        for run, task, values, errors in test.together.rows()
    ]
    print_table(rows, header)
