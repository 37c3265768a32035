"""Find runs that can be stopped early: their forecasts cannot reach the best of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalelab.curves import analyse_all, compare, read_sources
from scalelab.curves.analysis import Analysis

CHANCE = 0.05
"""A run whose chance to be above the leader at the end is below this, on every task, cannot win."""

SHARE = 0.25
"""Part of the leader's compute that a run has to have spent before anything is said about it."""


def cannot_win(run: Path, others: Sequence[Path]) -> str | None:
    """Name the run that this one has lost to on every task; None if there is none.

    The curve of every task is fitted to each run's evaluations so far. At the largest compute that any of the others
    has reached, the others' best median is the leader's; the run has lost a task if its own curve lies above the
    leader's there with less than `CHANCE`, the spread between runs of one recipe allowed for as in `scalelab compare`.
    It cannot win once it has lost every task, having spent at least `SHARE` of that compute. A run with a curve that
    cannot be fitted (too few points, no rise yet) goes on: there is no forecast to stop it by.

    Args:
        run: the run's folder.
        others: folders of the others; those without evaluations are passed over.

    Returns:
        The reason, in one line; None if it may win.
    """
    measured = [folder for folder in (run, *others) if _measured(folder)]
    if run not in measured or len(measured) < 2:
        return None
    analyses, refused = analyse_all(read_sources(measured))
    if any(one["source"] == str(run) for one in refused):
        return None
    own = [item for item in analyses if item.fit.curve.source == str(run)]
    lost = [
        _lost(item, [r for r in analyses if r not in own and r.fit.curve.task == item.fit.curve.task]) for item in own
    ]
    return "; ".join(lost) if all(lost) else None


def _measured(folder: Path) -> bool:
    evals = folder / "evals.jsonl"
    return evals.is_file() and evals.stat().st_size > 0


def _lost(item: Analysis, rivals: Sequence[Analysis]) -> str:
    """Describe in words how a run lost one task; "" if it did not."""
    at = max((rival.fit.window[1] for rival in rivals), default=0.0)
    if not rivals or item.fit.window[1] < SHARE * at:
        return ""
    [comparison] = compare([item, *rivals], at=at)
    entries = {entry.run: entry for entry in comparison.entries}
    own = entries.pop(item.fit.curve.run)
    leader = max(entries.values(), key=lambda entry: entry.rate[0])
    chance = own.beats[leader.run]
    if chance >= CHANCE:
        return ""
    task, unit = item.fit.curve.task or "the pass rate", item.fit.curve.unit
    return f"{task} passes {leader.run} ({leader.rate[0]:.3f} at {at:.3g} {unit}) with {chance:.0%}"
