"""Find runs that can be stopped early: by their forecast they are not the best of their sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalelab.curves import Options, analyse_all, pool_seeds
from scalelab.curves.analysis import Analysis
from scalelab.curves.stopping import losers
from scalelab.defaults import STOP_ERROR
from scalelab.numbers import percent
from scalelab.reading import Reading, read_with


def cannot_win(
    run: Path, others: Sequence[Path], *, at: float | None = None, recipes: int | None = None, error: float = STOP_ERROR
) -> str | None:
    """Give the reason why a run cannot be the best of its sweep, if it cannot in any task.

    The curve of every task is fitted to each recipe's evaluations so far, runs that differ in their seed alone
    together. A recipe has lost a task once it has spent a quarter of the compute `at` and the probability that its
    curve is the highest there is so low that, over all looks at the whole sweep, the best is ended with a chance of
    `error` at most (`scalelab.curves.stopping`). A run with a curve that cannot be fitted (too few points, or
    flat so far) or falls goes on: there is no forecast of its rise to stop it by.

    Args:
        run: the run's folder.
        others: folders of the others; those without evaluations are passed over.
        at: compute at which recipes are compared, such as the run's budget; None takes the largest that any of the
            others has reached.
        recipes: how many recipes the sweep has; None counts every folder as one.
        error: bound on the chance that the best is ended.

    Returns:
        The reason, in one line; None if it may win.
    """
    evaluated = [folder for folder in (run, *others) if _is_evaluated(folder)]
    if run not in evaluated or len(evaluated) < 2:
        return None
    curves, _ = pool_seeds(read_with(evaluated, Reading({"compute": "compute"})))  # the axis of budgets
    analyses, refused = analyse_all(curves, Options(checks=False))
    if any(_holds(one["source"], run) for one in refused):
        return None
    own = [item for item in analyses if _holds(item.fit.curve.source, run)]
    if any(item.falls for item in own):
        return None
    count = len(others) + 1 if recipes is None else recipes
    lost = [_lost(item, [one for one in analyses if one not in own], at, count, error) for item in own]
    return "; ".join(lost) if all(lost) else None


def _is_evaluated(folder: Path) -> bool:
    evals = folder / "evals.jsonl"
    return evals.is_file() and evals.stat().st_size > 0


def _holds(source: str, run: Path) -> bool:
    """True if a curve's source, or one of its sources, is this run."""
    return str(run) in source.split(", ")


def _lost(item: Analysis, others: Sequence[Analysis], at: float | None, recipes: int, error: float) -> str:
    """Say in words how a run lost one task; "" if it did not."""
    task, unit = item.fit.curve.task, item.fit.curve.unit
    rivals = [other for other in others if other.fit.curve.task == task]
    if not rivals:
        return ""
    at = max(rival.fit.window[1] for rival in rivals) if at is None else at
    found = losers([item, *rivals], at, max(recipes, len(rivals) + 1), error)
    if item.fit.curve.run not in found:
        return ""
    found_rates = {rival.fit.curve.run: float(np.median(rival.draws().value([at]))) for rival in rivals}
    best, rate = max(found_rates.items(), key=lambda pair: pair[1])
    chance = found[item.fit.curve.run]
    return f"{task or 'the pass rate'} is best in it with {percent(chance)} ({best} {rate:.3f} at {at:.3g} {unit})"
