"""Runs held against each other prompt by prompt: branches from the fork on, and runs whose curves carry no comparison.

Two branches share their trunk, their seed and the prompts that they are evaluated on, so that the difference of their
rates is far better known than either rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from scalelab.curves.compare import LATE, MEASURED_FROM
from scalelab.curves.prompts import PromptDifference, difference_by_prompt
from scalelab.defaults import ERROR, LEVEL
from scalelab.errors import LabError
from scalelab.guarded import inside
from scalelab.numbers import compact
from scalelab.parquet import take_rows
from scalelab.reading.branches import trunk_points
from scalelab.reading.curve import Curve
from scalelab.store.manifest import ROLLOUTS, completions_name

COLUMNS = ("task", "prompt_id", "reward")
"""Columns that a file of completions must have."""


@dataclass(frozen=True)
class PairedDifference:
    """A run less another: a branch less the run that it went on from, say.

    Attributes:
        found: the difference; None where completions are missing.
        step: of the fork, the last evaluation that both share; None for runs that share none.
        at: compute at which they are compared.
        unit: of compute.
        evaluations: fewest of any run that were used.
        most: most of any run.
        missing: what kept the pair from being compared; empty if nothing did.
    """

    found: PromptDifference | None
    step: float | None
    at: float
    unit: str
    evaluations: int = 0
    most: int = 0
    missing: str = ""

    def text(self) -> str:
        """The difference in a sentence."""
        if self.found is None:
            return self.missing
        number = str(self.most) if self.evaluations == self.most else f"{self.evaluations} to {self.most}"
        last = "the last evaluation" if self.most == 1 else f"the last {number} evaluations"
        since = "without a fit of both" if self.step is None else f"from the fork at step {self.step:g} on"
        return f"{since}, {last} up to {compact(self.at)} {self.unit}: {self.found.text()}"


def compare_paired(
    curves: Sequence[Curve],
    compared: Mapping[str, Collection[str]],
    margin: float,
    error: float = ERROR,
    level: float = LEVEL,
    baseline: str | None = None,
) -> list[PairedDifference]:
    """Hold runs against each other prompt by prompt where their curves alone would say less than is known.

    A branch is held against the first run that it has a trunk in common with. Other run folders are held against the
    baseline, unless the curves of both are compared.

    Args:
        curves: each task of a recipe once; metrics other than the mean reward are left out.
        compared: task → runs whose curves are compared.
        margin: difference below which two runs are equal.
        error: probability of a wrong verdict.
        level: probability of intervals.
        baseline: run that the others are held against; None, and where a task lacks it, takes the first.
    """
    pairs: list[tuple[Curve, Curve, float | None]] = []
    for task in dict.fromkeys(item.task for item in curves if not _is_metric(item)):
        family = sorted((item for item in curves if item.task == task), key=lambda item: item.run != baseline)
        for index, item in enumerate(family):
            trunk = next((other for other in family[:index] if trunk_points(item, [other]).any()), None)
            if trunk is not None:
                shared_N = trunk_points(item, [trunk])
                pairs.append((item, trunk, float(item.other_N["step"][shared_N].max())))
            elif (
                index
                and not {item.run, family[0].run} <= set(compared.get(task, ()))
                and _are_folders(item, *family[:1])
            ):
                pairs.append((item, family[0], None))
    return [_held(item, other, step, margin, error / len(pairs), level) for item, other, step in pairs]


def _are_folders(*curves: Curve) -> bool:
    return all(Path(path).is_dir() for item in curves for path in item.source.split(", "))


def _is_metric(item: Curve) -> bool:
    return item.measure not in ("pass rate", "mean reward") or "step" not in item.other_N


def _held(item: Curve, other: Curve, step: float | None, margin: float, error: float, level: float) -> PairedDifference:
    at = float(min(item.compute_N.max(), other.compute_N.max()))
    try:
        sides, counts = [], []
        for one in (item, other):
            late = _late(one, -1.0 if step is None else step, at)
            sides.append({path: _by_prompt(Path(path), one.task, steps) for path, steps in late.items()})
            counts += [len(steps) for steps in late.values()]
        found = difference_by_prompt((item.task, item.run, other.run), (sides[0], sides[1]), margin, error, level)
    except LabError as problem:
        return PairedDifference(
            None, step, at, item.unit, missing=f"{item.run} and {other.run} are not held together: {problem}"
        )
    return PairedDifference(found, step, at, item.unit, min(counts), max(counts))


def _late(item: Curve, fork: float, at: float) -> dict[str, list[int]]:
    """Folder of each seed → steps of its last evaluations after the fork and up to some compute.

    Raises:
        LabError: a seed has none.
    """
    folders = item.source.split(", ")  # of pooled runs in the order of their seeds
    if len(folders) != len(item.seeds):
        raise LabError(f"{item.run} is no run folder")
    after_N = (item.other_N["step"] > fork) & (item.compute_N <= 1.001 * at) & (item.compute_N >= MEASURED_FROM * at)
    found = {}
    for seed, folder in enumerate(folders):
        late = np.flatnonzero(after_N & (item.seed_N == seed))[-LATE:]
        if not late.size:
            own = "" if fork < 0 else f" after the fork at step {fork:g}"
            raise LabError(
                f"{folder} has no evaluation of {item.task}{own} in the last quarter before {compact(at)} {item.unit}"
            )
        found[folder] = item.other_N["step"][late].astype(int).tolist()
    return found


def _by_prompt(folder: Path, task: str, steps: Sequence[int]) -> dict[str, float]:
    """Prompt → mean reward over some evaluations of a run.

    Raises:
        LabError: their completions are no longer there.
    """
    rewards: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for prompt, reward in _rewards(folder, task, step):
            rewards[prompt].append(reward)
    return {prompt: float(np.mean(found)) for prompt, found in rewards.items()}


def _rewards(folder: Path, task: str, step: int) -> list[tuple[str, float]]:
    """Prompt and reward of each completion of an evaluation, NaN where the verifier failed.

    Raises:
        LabError: they are not there, or cannot be read.
    """
    own, kept = completions_name(step), folder / ROLLOUTS
    for name in sorted(path.name for pattern in (own, f"{own}_*") for path in kept.glob(f"{pattern}.parquet")):
        path = inside(folder, f"{ROLLOUTS}/{name}")
        columns = take_rows(path, None, [*COLUMNS, "outcome"]) if path is not None else {}
        rows = zip(*(columns.get(column, ()) for column in COLUMNS), columns.get("outcome", repeat(None)))
        graded = [(of, prompt, float("nan") if outcome == "error" else reward) for of, prompt, reward, outcome in rows]
        found = [(str(prompt), reward) for of, prompt, reward in graded if of == task and reward is not None]
        if not all(isinstance(reward, int | float) for _, reward in found):
            raise LabError(f"rollouts/{name} of {folder} has rewards that are no numbers")
        if found:
            return found
    raise LabError(f"the completions of step {step} of {folder} are no longer there (Retention)")
