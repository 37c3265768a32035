"""Rank runs per task by the pass rate at the largest compute that all have spent, and say which are better.

The first SOURCE is the baseline, and of one table the first run by name; --baseline names another. "measured" is the
mean of the last evaluations there, "curve" the fitted curve with its interval; --at compares at another compute. The
verdict on each run is one of: better, worse, equal (within --margin), unstable (it falls, and nothing else can be said)
or cannot tell. All verdicts of a table together are wrong with a probability of --error at most; --calibrate simulates
runs like these through this command and prints how often each word is wrong. The spread between runs of one recipe is
estimated from all recipes that have several seeds. Branches of one run are compared prompt by prompt from the fork on,
and so are runs whose curves carry no fit; with --by-prompt, tables of completions.
--reach R adds "compute to R", what a run needs for that pass rate as a multiple of what the baseline needs; --wide adds
it, too, and A, B and C_mid; A is an extrapolation, in brackets where other shapes than the sigmoid may go beyond it.
Run folders that differ in their seed alone are pooled.

Example:  scalelab compare runs/scalerl runs/no_fp32_head --at 16000 --plot efficiency.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import Once, add_json
from scalelab.commands.curve_options import (
    add_fit_arguments,
    add_price,
    add_source_arguments,
    add_spread,
    analysed,
    column_of,
    fit_options,
    pilot_runs,
    pricing,
    print_prices,
    print_remarks,
    read_curves,
)
from scalelab.commands.output import print_filled, print_json, print_table
from scalelab.defaults import ERROR, MARGIN
from scalelab.errors import LabError
from scalelab.numbers import counted, percent, with_interval

if TYPE_CHECKING:
    from scalelab.curves import Analysis, Curve, Options
    from scalelab.curves.calibrate import Calibration
    from scalelab.curves.comparison import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    add_price(parser)
    parser.add_argument("--tie", default="margin", choices=("margin", "overlap"), help="rule by which two A are equal")
    parser.add_argument(
        "--margin", type=float, default=MARGIN, metavar="D", help="pass rates closer than this are equal (%(default)s)"
    )
    parser.add_argument(
        "--at", type=float, action=Once, metavar="C", help="compute at which win probabilities are taken"
    )
    parser.add_argument("--baseline", metavar="RUN", help="run that the others are compared with (default: the first)")
    parser.add_argument("--wide", action="store_true", help="all columns: curve, compute to R, A, B, C_mid")
    parser.add_argument(
        "--error", type=float, default=ERROR, metavar="P", help="probability of a wrong verdict (%(default)s)"
    )
    add_calibrate(
        parser,
        "simulate comparisons like this one, N verdicts for each difference (default 60): how often each word, and any "
        "of them, is wrong",
    )
    parser.add_argument(
        "--reach",
        type=float,
        action=Once,
        metavar="R",
        help="pass rate to which compute is counted (default: the middle of the highest start and the lowest end)",
    )
    add_spread(parser)
    parser.add_argument(
        "--by-prompt",
        nargs="?",
        const="mean",
        metavar="METRIC",
        help="SOURCES are tables of completions (run, prompt, outcome; perhaps seed, task, compute, answer): compare "
        "prompt by prompt by mean (default), pass@K or majority",
    )
    add_fit_arguments(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="efficiency plot F(R) = C^B: .png, .svg or .pdf")
    add_json(parser)


def add_calibrate(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare --calibrate."""
    parser.add_argument("--calibrate", type=int, nargs="?", const=60, metavar="N", help=what)


def run(args: argparse.Namespace) -> int:
    """Compare and print; 1 if a curve was refused."""
    from scalelab.curves import compare, pool_seeds
    from scalelab.curves.paired import compare_paired

    if args.by_prompt:
        return _by_prompt(args)
    given = read_curves(args, price := pricing(args))
    curves, pooled = pool_seeds(given)
    _refuse_single(given, curves)
    options = replace(fit_options(args), checks=False)  # of one curve's forecasts, which scalelab fit makes
    analyses, refused = analysed(curves, options)
    pilots, unfit = pilot_runs(args, options)
    refused += unfit
    asked = {
        "tie": args.tie,
        "margin": args.margin,
        "at": args.at,
        "reach": args.reach,
        "run_spread": args.seed_spread,
        "spread_from": pilots,
        "error": args.error,
        "baseline": _baseline(args.baseline, curves),
    }
    comparisons = compare(analyses, **asked)
    held = {one.task: [entry.run for entry in one.entries] for one in comparisons if len(one.entries) > 1}
    pairs = compare_paired(curves, held, args.margin, args.error, args.level, args.baseline)
    bands = _price_bands(curves, options, comparisons, asked) if price else {}
    calibration = None
    if args.calibrate is not None:
        calibration = _calibration(comparisons, args.calibrate, args.seed_spread, pilots)
    if args.plot:
        from scalelab.report.plots import plot_efficiency

        plot_efficiency(comparisons, args.plot)
    if args.json:
        print_json(
            {
                **_facts(comparisons),
                "paired": [vars(one) | {"found": one.found and vars(one.found)} for one in pairs],
                "price_bands": bands,
                **calibration_json(calibration),
                "pooled": pooled,
                "refused": refused,
            }
        )
        return int(bool(refused))
    print_comparisons(comparisons, pooled, args.wide, reach=args.reach is not None)
    for pair in pairs:
        print_filled(pair.text() + ".")
    if calibration is not None:
        print_calibration(calibration)
    print_prices(price)
    for task, words in bands.items():
        said = "; ".join(f"{run}: {', '.join(each.values())}" for run, each in words.items())
        print_filled(f"{task or 'all'}, with steps {', '.join(PRICES)} as dear beside the baseline's: {said}.")
    print_remarks(analyses, refused)
    return int(bool(refused))


def _baseline(asked: str | None, curves: Sequence[Curve]) -> str:
    """The run that the others are held against: the first, unless one is asked for.

    Raises:
        LabError: no run has that name.
    """
    runs = list(dict.fromkeys(item.run for item in curves))
    if asked is not None and asked not in runs:
        raise LabError(f"--baseline: no run {asked!r:.80} in the sources, which have {', '.join(runs[:8])}")
    return asked or runs[0]


def _refuse_single(given: Sequence[Curve], pooled: Sequence[Curve]) -> None:
    """Refuse curves of which nothing is left to compare when seeds are pooled."""
    if len({item.run for item in pooled}) > 1:
        return
    runs = list(dict.fromkeys(item.run for item in given))
    if len(runs) > 1:
        raise LabError(
            f"{', '.join(runs)} are seeds of one recipe, not rivals: fit them together with scalelab fit --pool NAME"
        )
    raise LabError(f"one run only ({runs[0]}): give at least two to compare")


def _facts(comparisons: list[Comparison]) -> dict[str, Any]:
    """Facts of each task for `--json`."""
    from scalelab.curves.comparison import entry_summary

    return {
        "tasks": {
            one.task: [entry_summary(entry, one.entries, one.verdicts, one.baseline) for entry in one.entries]
            for one in comparisons
        },
        "at": {one.task: one.at for one in comparisons},
        "reach": {one.task: one.reach for one in comparisons},
        "crossings": {one.task: [vars(item) for item in one.crossings] for one in comparisons},
        "notes": {one.task: list(one.notes) for one in comparisons},
        "spread": {
            one.task: {"median": one.spread[0], "interval": one.spread[1], "measured": one.measured}
            for one in comparisons
        },
        "rows": {one.task: [vars(row) for row in one.rows()] for one in comparisons},
    }


PRICES = {"0.8 times": 0.8, "as": 1.0, "1.25 times": 1.25}
"""Prices of a step beside the baseline's over which a verdict by compute is looked at: a simulated one may be off."""


def _price_bands(
    curves: Sequence[Curve], options: Options, comparisons: Sequence[Comparison], asked: dict[str, Any]
) -> dict[str, dict[str, dict[str, str]]]:
    """Task → run → price → verdict, over a band of prices of all runs but the baseline."""
    from scalelab.curves import compare

    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, factor in PRICES.items():
        scaled = [
            item if item.run == asked["baseline"] else replace(item, compute_N=factor * item.compute_N)
            for item in curves
        ]
        one_price = comparisons if factor == 1 else compare(analysed(scaled, options)[0], **asked)
        for one in one_price:
            for run, word in one.verdicts.items():
                found.setdefault(one.task, {}).setdefault(run, {})[name] = word
    return found


BY_PROMPT = ("task", "column", "margin", "error", "level", "json")
"""Options that `--by-prompt` takes; the others are about curves, which it does not fit."""


def _refuse_others(args: argparse.Namespace) -> None:
    """Refuse options that `--by-prompt` would have to leave unused.

    Raises:
        LabError: some have another value than their default.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    usual = vars(parser.parse_args(["-"]))
    others = [name for name in usual if name not in (*BY_PROMPT, "sources", "by_prompt")]
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(args, name) != usual[name]]
    if given:
        taken = ", ".join(f"--{name}" for name in BY_PROMPT)
        raise LabError(f"{', '.join(given)} cannot go with --by-prompt, which takes {taken}")


def _by_prompt(args: argparse.Namespace) -> int:
    """Compare tables of completions prompt by prompt."""
    from scalelab.curves.prompts import compare_prompts

    _refuse_others(args)
    found, uncompared = compare_prompts(
        args.sources,
        args.by_prompt,
        args.margin,
        args.error,
        args.level,
        tasks=args.task or (),
        columns=dict(map(column_of, args.column)),
    )
    if args.json:
        print_json({"by_prompt": [vars(one) for one in found], "metric": args.by_prompt, "uncompared": uncompared})
    else:
        for one in found:
            print_filled(one.text() + ".")
        for task, only in uncompared.items():
            print_filled(f"{task or 'all'}: {only} alone has completions of it, so nothing is held against it.")
    return 0


def print_comparisons(
    comparisons: list[Comparison], pooled: list[str], wide: bool = False, reach: bool = False
) -> None:
    """Print a sentence and a table for each task, and the runs that were pooled.

    Args:
        comparisons: one per task.
        pooled: a line for each recipe whose seeds were pooled.
        wide: all columns in place of those that fit a narrow terminal.
        reach: with these, the compute to the pass rate that was asked for.
    """
    for one in comparisons:
        if len(one.entries) > 1:  # a task that a single run has a fit of is compared with nothing
            _print_comparison(one, wide, reach)
    for line in pooled:
        print(line)


def _print_comparison(one: Comparison, wide: bool, reach: bool) -> None:
    from scalelab.curves.comparison_table import COLUMNS

    unit = one.reference.analysis.fit.curve.unit
    print_filled(one.sentence())
    print()
    if wide:
        print_table([row.cells() for row in one.rows()], one.header())
    else:
        more = [index for index, column in enumerate(COLUMNS) if reach and column.key == "compute_factor"]
        rows = [row.short_cells() + [row.cells()[index] for index in more] for row in one.rows()]
        print_table(rows, one.short_header() + [one.header()[index] for index in more])
    print()
    of_many = len(one.entries) > 3  # of many runs only the baseline's are of interest; --json has all
    for item in one.crossings.told(one.baseline if of_many else None):
        assert item.compute is not None
        assert item.interval is not None
        print_filled(
            f"{item.first} and {item.second} cross at {with_interval(item.compute, item.interval)} {unit} (probability "
            f"{percent(item.probability)}); {item.leader_before} is ahead before"
        )
    for note in one.notes:
        print_filled(note)
    print()


def _calibration(
    comparisons: list[Comparison], pairs: int, spread: float | None, pilots: Sequence[Analysis]
) -> Calibration:
    from scalelab.curves.calibrate import calibrate, like

    check_calibration(pairs)
    held = [one for one in comparisons if len(one.entries) > 1]
    if not held:
        raise LabError("no task has two curves with fits, so there are no words to count: leave --calibrate out")
    return calibrate([like(one, spread) for one in held], pairs, spread_from=pilots)


def check_calibration(verdicts: int) -> None:
    """Refuse to count words by a few.

    Raises:
        LabError: there are fewer than 10.
    """
    if verdicts < 10:
        raise LabError(f"{verdicts} simulated verdicts say nothing of rates: give at least 10")


def calibration_json(found: Calibration | None) -> dict[str, Any]:
    """The error rates of words, in the output of `--json`."""
    if found is None:
        return {"calibration": {}}
    together = {name: getattr(found, name) for name in ("families", "recipes", "any_wrong")}
    rates = {task: [vars(line) for line in lines] for task, lines in found.rates.items()}
    return {"calibration": rates, "calibration_together": together}


def print_calibration(found: Calibration) -> None:
    """Print how often each word is said of simulated recipes, by their true difference from the baseline."""
    for task, lines in found.rates.items():
        first = lines[0]
        print(
            f"{task or 'all'}: {first.pairs} simulated verdicts for each difference, {counted(first.seeds, 'seed')} of "
            f"each, {first.evaluations} evaluations, seeds spread by {first.spread:.3g}; "
            f"error of verdicts {first.error:g}"
        )
        header = ["true difference", "better", "worse", "equal", "cannot tell", "wrong", "interval holds"]
        print_table([line.cells() for line in lines], header)
        print()
    print_filled(found.sentence())
