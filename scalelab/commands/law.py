"""Fit A, B and C_mid as functions of batch, length and other axes, forecast places not run, and propose the next run.

An axis is one of:
  a column of the source that has one value in all rows of a run;
  a number of a run's configuration: `batch`, `length`, `generations`, `active` and `parameters` (counted from the
  model's shape), `share_TASK` of the mixture, or any bound number, such as `OptimizerConfig.lr`;
  a column of the table of --places.
Axes enter by their logarithm, those of --linear (shares) as they are. Every run is left out once, and forecast from the
others.

Examples:
  scalelab law runs/axes --axis batch --at 50000 --predict batch=4096
  scalelab law runs.csv --axis batch --axis active --places places.csv --at 1e5 --budget 40000
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import Once, add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_source_arguments,
    analysed,
    fit_options,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_json, print_table
from scalelab.errors import LabError
from scalelab.numbers import with_interval

if TYPE_CHECKING:
    from scalelab.curves.design import Proposal
    from scalelab.curves.law import Law, Left, PlaceForecast


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    parser.add_argument("--axis", action="append", required=True, metavar="NAME", help="what runs differ in; repeat")
    parser.add_argument("--linear", action="append", default=[], metavar="NAME", help="an axis without logarithm")
    parser.add_argument("--places", type=Path, metavar="FILE", help="table of runs: column run, and one for each axis")
    parser.add_argument(
        "--at", type=float, action=Once, metavar="C", help="compute of forecasts (default: the largest spent)"
    )
    parser.add_argument(
        "--predict", action="append", default=[], metavar="NAME=X,…", help="a place to forecast; repeat for more"
    )
    parser.add_argument("--budget", type=float, metavar="C", help="compute to spend on further runs, divided here")
    parser.add_argument(
        "--per-run", type=float, metavar="C", help="compute of each of them (default: as the runs so far)"
    )
    add_fit_arguments(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit the law of every task and print it; 1 if a curve was refused."""
    from dataclasses import replace

    from scalelab.curves import pool_seeds
    from scalelab.curves.forecast import entry
    from scalelab.curves.law import law_of, leave_one_out
    from scalelab.curves.places import unplaced
    from scalelab.reading.branches import counted_once
    from scalelab.reading.sources import read_places

    _check_axes(args.axis, args.linear)
    curves, pooled = pool_seeds(read_curves(args))
    curves = counted_once(curves)
    if args.places:
        places = read_places(args.places)
        curves = [replace(item, places={**item.places, **places.get(item.run, {})}) for item in curves]
    for item in curves:
        _check_places(item.places, args.axis, item.run)
    if args.at is not None and not 0 < args.at < math.inf:
        raise LabError(f"cannot forecast at a compute of {args.at:g}: give a positive number")
    for name, spent in (("--budget", args.budget), ("--per-run", args.per_run)):
        if spent is not None and not 0 < spent < math.inf:
            raise LabError(f"{name} {spent:g} cannot be spent: give a positive number")
    predicted = [_place(text, args.axis, args.linear) for text in args.predict]
    options = replace(fit_options(args), checks=False)  # of one curve's forecasts, which scalelab fit makes
    analyses, refused = analysed(curves, options)
    refused += [entry(item) | {"reason": reason} for item in analyses if (reason := unplaced(item))]
    analyses = [item for item in analyses if not unplaced(item)]
    answers: dict[str, Any] = {}
    for task in dict.fromkeys(item.fit.curve.task for item in analyses):
        members = [item for item in analyses if item.fit.curve.task == task]
        law = law_of(members, args.axis, linear=args.linear, level=args.level)
        at = args.at if args.at is not None else max(place.end for place in law.places)
        unit = members[0].fit.curve.unit
        left = leave_one_out(law, at) if len(law.places) > 2 else []
        forecasts = [law.forecast(place, at) for place in predicted]
        proposals, none = ([], "") if args.budget is None else _proposed(law, predicted, at, unit, args)
        if args.json:
            answers[task] = _as_json(law, at, left, forecasts, proposals)
            answers[task] |= {"clock": members[0].fit.curve.clock, "no_next": none}
        else:
            _print(task, law, at, unit, left, forecasts, proposals, none)
    if args.json:
        print_json({"tasks": answers, "pooled": pooled, "refused": refused})
    else:
        for line in pooled:
            print(line)
        print_remarks(analyses, refused)
    return int(bool(refused))


def _proposed(
    law: Law, predicted: list[dict[str, float]], at: float, unit: str, args: argparse.Namespace
) -> tuple[list[Proposal], str]:
    """The runs that the budget goes to; where there are none, the reason."""
    from scalelab.curves.design import allocate, cost_of_run, grid_of

    candidates = grid_of(law.places, law.axes)
    candidates += [place for place in predicted if place not in candidates]
    found = allocate(law, candidates, at, args.budget, args.per_run)
    cost = cost_of_run(law) if args.per_run is None else args.per_run
    if found:
        return found, ""
    if cost > args.budget:
        return [], f"the budget pays for no run: one takes {cost:,.6g} {unit} (--per-run)"
    return [], "no further run within the budget is likely to change which place is chosen"


def _check_axes(axes: list[str], linear: list[str]) -> None:
    twice = [axis for axis in axes if axes.count(axis) > 1]
    if twice:
        raise LabError(f"--axis {twice[0]} is given twice: name every axis once")
    other = [axis for axis in linear if axis not in axes]
    if other:
        raise LabError(f"--linear {other[0]}: it is no axis; the axes are {', '.join(axes)}")


def _check_places(places: Any, axes: list[str], run: str) -> None:
    missing = [axis for axis in axes if axis not in places]
    if missing:
        known = ", ".join(sorted(places)[:12]) or "none"
        raise LabError(f"{run}: no {missing[0]} is known of it (known: {known}); give it by --places FILE")


def _place(text: str, axes: list[str], linear: list[str]) -> dict[str, float]:
    """The place that `batch=2048,length=14000` names."""
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise LabError(f"--predict {text}: write it as NAME=X,NAME=X, such as batch=2048,length=14000") from None
    wrong = sorted(set(found) ^ set(axes))
    if wrong:
        raise LabError(f"--predict {text}: it names {', '.join(found)}, the axes are {', '.join(axes)}")
    for axis, value in found.items():
        if not math.isfinite(value) or (value <= 0 and axis not in linear):
            raise LabError(f"--predict {text}: {axis} {value:g} has no logarithm: give a positive number, or --linear")
    return found


def _print(
    task: str,
    law: Law,
    at: float,
    unit: str,
    left: list[Left],
    forecasts: list[PlaceForecast],
    proposals: list[Proposal],
    none: str,
) -> None:
    from scalelab.curves.design import label

    print(f"{task or 'all'}: {len(law.places)} runs\n")
    rows = []
    for axis, effects in law.slopes().items():
        step = "from 0 to 1" if axis in law.linear else "doubled"
        rows.append([f"{axis} {step}", *(with_interval(*effects[name]) for name in ("A", "B", "C_mid"))])
    print_table(rows, ["axis", "A, added", "B, factor", "C_mid, factor"])
    header = ["A", "B", "C_mid", f"at {at:,g} {unit}"]
    if left:
        print("\nEach run left out and forecast from the others; its own fit in brackets behind:\n")
        print_table([_left_row(one) for one in left], ["run", *header])
        for one in left:
            if one.unvaried:
                print(f"without {one.name} no runs differ in {', '.join(one.unvaried)}: that forecast rests on belief")
    if forecasts:
        print()
        print_table([[label(one.at), *_cells(one)] for one in forecasts], ["place", *header])
    if proposals or none:
        print()
        for index, proposal in enumerate(proposals):
            what = f"{label(proposal.at)}, {proposal.spends:,.6g} {unit}"
            print(f"{'then' if index else 'next run'}: {what}, because {proposal.reason}")
        if none:
            print(none)
    print()


def _cells(one: PlaceForecast) -> list[str]:

    cells = [with_interval(one.parameters[name], one.intervals[name]) for name in ("A", "B", "C_mid")]
    return [*cells, with_interval(one.value, one.interval)]


def _left_row(one: Left) -> list[str]:
    own = [*(f"{one.parameters[name]:.3g}" for name in ("A", "B", "C_mid")), f"{one.value:.3f}"]
    held = [one.inside[name] for name in ("A", "B", "C_mid", "value")]
    cells = [
        f"{cell} ({text}{'' if inside else ', missed'})" for cell, text, inside in zip(_cells(one.forecast), own, held)
    ]
    return [one.name, *cells]


def _as_json(
    law: Law, at: float, left: list[Left], forecasts: list[PlaceForecast], proposals: list[Proposal]
) -> dict[str, Any]:
    return {
        "axes": list(law.axes),
        "linear": sorted(law.linear),
        "at": at,
        "level": law.level,
        "slopes": law.slopes(),
        "runs": {place.name: dict(place.at) for place in law.places},
        "left_out": [vars(one) | {"forecast": vars(one.forecast)} for one in left],
        "forecasts": [vars(one) for one in forecasts],
        "next": [vars(one) for one in proposals],
    }
