"""Find how many seeds and evaluations tell two recipes apart, and the smallest difference that a plan can detect.

At the end stands what evaluations leave of a run's number, and the settings of `Evaluation` that leave as much with the
fewest completions: few samples early, more at the end. With --training-completions it names the cheapest study: seeds,
evaluations, samples and, with --prompt-spread, prompts chosen together.

SOURCE: pilot runs, or the runs of a sweep that is over. The spread between seeds, the curve, its drift and the length
of a run are then taken from them; seeds and evaluations are those of --seeds and --evaluations. Without SOURCE, give
--seed-spread. More evaluations shrink the error of one run only; more seeds also shrink the error that comes from the
spread between seeds. The power is that of `scalelab compare`: such runs are simulated, fitted and judged as it does.
With --of B or C_mid a difference is a share (0.2 for 20 %), and --seed-spread the standard deviation of the logarithm.

Examples:
  scalelab design --seed-spread 0.0125 --difference 0.02
  scalelab design runs/recipes --task math --difference 0.02 --recipes 9
  scalelab design runs/recipes --of C_mid --difference 0.2
  scalelab design --seed-spread 0.0125 --training-completions 30000 --prompt-spread 0.1
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_json
from scalelab.commands.compare import add_calibrate, calibration_json, check_calibration, print_calibration
from scalelab.commands.curve_options import add_reading_arguments, reading_from
from scalelab.commands.output import print_json, print_table
from scalelab.defaults import MARGIN
from scalelab.errors import LabError
from scalelab.numbers import percent

if TYPE_CHECKING:
    from scalelab.curves.calibrate import Calibration
    from scalelab.curves.cheapest import Study
    from scalelab.curves.design import Plan, Quantity

OF: dict[str, Quantity] = {"value": "value", "A": "A", "B": "log_B", "C_mid": "log_C_mid"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="pilot runs, several seeds of each")
    add_reading_arguments(parser)
    unless = "(default %(default)s)"
    parser.add_argument("--difference", type=float, default=MARGIN, metavar="D", help=f"difference to detect {unless}")
    parser.add_argument(
        "--of", default="value", choices=tuple(OF), help="what differs: the pass rate at the end (value), A, B or C_mid"
    )
    parser.add_argument("--power", type=float, default=0.8, metavar="P", help=f"probability to detect it {unless}")
    parser.add_argument(
        "--certainty", type=float, default=0.95, metavar="P", help=f"least to call a run better {unless}"
    )
    parser.add_argument("--seed-spread", type=float, metavar="S", help="standard deviation between runs of one recipe")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], metavar="N", help="seeds per recipe"
    )
    parser.add_argument("--evaluations", type=int, nargs="+", default=[25, 75], metavar="N", help="evaluations per run")
    parser.add_argument("--prompts", type=int, default=1000, metavar="N", help=f"prompts per evaluation {unless}")
    parser.add_argument("--samples", type=int, default=16, metavar="K", help=f"completions per prompt {unless}")
    parser.add_argument(
        "--early-samples", type=int, metavar="K", help="completions per prompt until --full-from (default: --samples)"
    )
    parser.add_argument(
        "--full-from", type=float, default=0.6, metavar="P", help=f"part of the budget with all --samples {unless}"
    )
    parser.add_argument("--drift", type=float, metavar="S", help="standard deviation of a run's drift (default 0.004)")
    parser.add_argument("--known", action="store_true", help="the spread is known: compare will be given --seed-spread")
    parser.add_argument("--recipes", type=int, default=2, metavar="N", help="recipes to compare, with the baseline")
    parser.add_argument(
        "--training-completions",
        type=int,
        metavar="N",
        help="completions that a run trains on: name the cheapest study",
    )
    parser.add_argument(
        "--prompt-spread",
        type=float,
        default=0.0,
        metavar="S",
        help="standard deviation between prompts of the difference of two recipes, for verdicts about new prompts "
        "(default 0: about these prompts)",
    )
    parser.add_argument("--budget", type=float, metavar="X", help="compute per run, in units of C_mid (default 4)")
    add_calibrate(
        parser,
        "simulate the sweep with the first of --evaluations and the seeds that it takes (or the most of --seeds), N "
        "verdicts of scalelab compare --margin D for each difference (default 60): how often each word is wrong",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the power of each design."""
    from scalelab.curves.cheapest import cheapest
    from scalelab.curves.design import designs, seeds_for

    _check(args)
    training, share = args.training_completions, args.of in ("B", "C_mid")
    difference = math.log1p(args.difference) if share else args.difference
    answers, swept = [], {}
    for task, plan in _plans(args).items():
        found = designs(plan, difference, args.seeds, args.evaluations, args.certainty)
        needed = seeds_for(replace(plan, evaluations=args.evaluations[0]), difference, args.power, args.certainty)
        swept[task] = replace(plan, evaluations=args.evaluations[0], seeds=needed or max(args.seeds))
        study = None if training is None else cheapest(plan, difference, training, args.power, args.certainty)
        told = [
            (one, chance, least if least is None or not share else math.expm1(least)) for one, chance, least in found
        ]
        if args.json:
            answers.append(_answer(args, task, plan, told, needed, study))
        else:
            _print(args, task, plan, told, needed, study)
    calibration = None if args.calibrate is None else _words(swept, args)
    if args.json:
        print_json({"tasks": answers} | calibration_json(calibration))
    elif calibration is not None:
        print_calibration(calibration)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("power", "certainty"):
        if not 0.5 < getattr(args, name) < 1:
            raise LabError(f"a {name} of {getattr(args, name):g} makes no sense: give one between 0.5 and 1")
    training = args.training_completions
    if training is not None and training < 1:
        raise LabError(f"a run that trains on {training} completions is none: give 1 or more")
    if not 0 < args.difference < 1:
        raise LabError(
            f"a difference of {args.difference:g} makes no sense: give one of pass rates, such as 0.02, or a share of "
            "B or C_mid, such as 0.2"
        )
    if args.calibrate is not None:
        check_calibration(args.calibrate)
        if args.of != "value":
            raise LabError("--calibrate counts words on pass rates: leave --of out")
        if not 0.75 < args.certainty <= 0.9995:
            raise LabError(f"--calibrate has no words for a certainty of {args.certainty:g}: give one above 0.75")


def _answer(
    args: argparse.Namespace,
    task: str,
    plan: Plan,
    told: Sequence[tuple[Plan, float, float | None]],
    needed: int | None,
    study: Study | None,
) -> dict[str, Any]:
    """A task's entry of `--json`."""
    from scalelab.curves.design import run_error
    from scalelab.curves.sparing import expected_error, sparing

    rows = [
        vars(one) | {"power": chance, "smallest_difference": least, "unfitted": run_error(one).unfitted}
        for one, chance, least in told
    ]
    spared = [
        {"settings": vars(one), "completions": int(one.completions_N.sum()), "error": expected_error(one, plan.of)}
        for each in args.evaluations
        for one in (replace(plan, evaluations=each), sparing(replace(plan, evaluations=each)))
    ]
    answer = {"task": task, "difference": args.difference, "seeds_needed": needed, "designs": rows}
    answer["evaluations"] = spared
    if args.training_completions is not None:
        answer["cheapest"] = study and {**vars(study), "plan": vars(study.plan)}
    return answer


def _print(
    args: argparse.Namespace,
    task: str,
    plan: Plan,
    told: Sequence[tuple[Plan, float, float | None]],
    needed: int | None,
    study: Study | None,
) -> None:
    """Print a task's designs."""
    from scalelab.curves.design import run_error

    what = f"{args.difference:g} in {args.of}, seeds spread by {plan.spread:.3g}, {plan.recipes} recipes"
    print(f"{task or 'all'}: {what}, evaluations of {plan.prompts:,} prompts with {plan.samples} samples")
    none = "none below a factor of 10" if args.of in ("B", "C_mid") else "none below 0.5"
    print_table(
        [
            [str(one.seeds), str(one.evaluations), percent(chance), none if least is None else f"{least:.3f}"]
            for one, chance, least in told
        ],
        ["seeds of each", "evaluations", f"finds {args.difference:g}", "smallest found with 80 %"],
    )
    count = f"{needed} seeds of each recipe" if needed else "more than 100 seeds of each recipe"
    known = "which is told the spread" if plan.known else "which learns the spread from these seeds"
    print(f"It takes {count} to find it with {args.power:.0%} by scalelab compare, {known}.")
    least = min([args.difference, *(least for *_, least in told if least is not None)])
    if args.of == "value" and least < MARGIN:
        print(
            f"To find less than {MARGIN:g}, give compare that as --margin: by the default {MARGIN:g} it may say equal."
        )
    for points, lost in sorted({one.evaluations: run_error(one).unfitted for one, _, _ in told}.items()):
        if lost:
            print(f"Of the runs simulated with {points} evaluations {lost:.0%} carried no fit, and do not count.")
    for each in args.evaluations:
        print(_spared(replace(plan, evaluations=each), args.of))
    if args.training_completions is not None:
        first = replace(plan, evaluations=args.evaluations[0], seeds=needed) if needed else None
        print(_cheapest(study, first, args.training_completions, f"{args.difference:g}"))
    print()


def _words(plans: dict[str, Plan], args: argparse.Namespace) -> Calibration:
    """Error rates of the words that `scalelab compare` will say of a sweep."""
    from scalelab.curves.calibrate import calibrate, planned

    error = 2 * (1 - args.certainty)  # compare errs on either side with half of it
    settings = [planned(plan, task, args.difference, error) for task, plan in plans.items()]
    return calibrate(settings, args.calibrate)


def _spared(plan: Plan, of: str) -> str:
    """Error that a run's evaluations leave, and the settings that leave as much with the fewest completions."""
    from scalelab.curves.sparing import expected_error, sparing

    other = sparing(plan)
    count, fewer = int(plan.completions_N.sum()), int(other.completions_N.sum())
    what = "the pass rate at the end" if of == "value" else of if of == "A" else f"the logarithm of {of}"
    left = f"±{expected_error(plan, plan.of):.4f} of {what}"
    told = f"{plan.evaluations} evaluations make {count:,} completions and leave {left}"
    if other is plan:
        return f"{told}; no other numbers of samples leave as little with fewer."
    then: Quantity = "value" if of == "A" else "A"
    beside = "the pass rate at the end" if of == "A" else "A"
    before, after = (expected_error(one, then) for one in (plan, other))
    return (
        f"{told}. {fewer:,} ({fewer / count:.0%}) leave as little: Evaluation.early_samples = {other.early_samples}, "
        f"samples = {other.samples}, full_from = {other.full_from:g}; then {beside} has ±{after:.4f} in place of "
        f"±{before:.4f}."
    )


def _cheapest(study: Study | None, other: Plan | None, training: int, difference: str) -> str:
    """The cheapest study in a sentence, beside what the plan costs with the seeds that it takes."""
    from scalelab.curves.cheapest import cost

    if study is None:
        return f"No study of up to 100 seeds of each recipe finds {difference}, whatever its evaluations."
    plan = study.plan
    early = plan.samples if plan.early_samples is None else plan.early_samples
    full = f", full_from = {plan.full_from:g}" if early < plan.samples else ""
    beside = f"; {cost(other, training):,} with {other.seeds} seeds and all samples of above" if other else ""
    return (
        f"The cheapest study that finds {difference}: {plan.seeds} seeds of each recipe, {plan.evaluations} "
        f"evaluations of {plan.prompts:,} prompts, Evaluation.early_samples = {early}, samples = {plan.samples}{full}. "
        f"It makes {study.completions:,} completions, training included{beside}, and finds it with "
        f"{percent(study.power)}."
    )


def _plans(args: argparse.Namespace) -> dict[str, Plan]:
    """Plans by task, from pilot runs if there are any."""
    import numpy as np

    from scalelab.curves import analyse_all, compare, pool_seeds
    from scalelab.curves.design import LOGARITHM, Plan
    from scalelab.reading import read_with

    as_given = ("prompts", "samples", "early_samples", "full_from", "recipes", "known", "prompt_spread")
    given = {name: getattr(args, name) for name in as_given}
    given["of"] = OF[args.of]
    if args.drift is not None:
        given["drift"] = args.drift
    if args.budget is not None:
        given["budget"] = args.budget
    if not args.sources:
        if args.seed_spread is None:
            raise LabError("nothing says how much seeds differ: name pilot runs, or give --seed-spread")
        return {"": Plan(spread=args.seed_spread, **given)}
    curves, _ = pool_seeds(read_with(args.sources, reading_from(args)))
    analyses = [item for item in analyse_all(curves)[0] if not item.falls]
    if not analyses:
        raise LabError("none of the pilot runs carries a fit that rises: give --seed-spread instead of them")
    plans = {}
    known = args.seed_spread if args.of in ("value", "A") else None
    for one in compare(analyses, run_spread=known):
        if not one.measured:
            raise LabError("the pilot runs have one seed each, which says nothing of their spread: give --seed-spread")
        fit = one.entries[0].analysis.fit
        R0, A, B, C_mid = one.entries[0].analysis.params.values()
        given["budget"] = args.budget or fit.window[1] / C_mid
        if args.drift is None:
            drifts = [entry.analysis.draws().sigmoid.drift_M.mean() for entry in one.entries]
            given["drift"] = float(np.median(drifts))
        spread = one.spread[0] * (1.0 if args.of in ("value", "A") else LOGARITHM)
        spread = spread if args.seed_spread is None else args.seed_spread
        plans[one.task] = Plan(spread=spread, R0=R0, A=min(max(A, R0 + 0.01), 1.0), B=B, **given)
    return plans
