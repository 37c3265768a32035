"""Files that a run keeps on its disk, and their size, checked before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as checked

from moe.checked import CHECKED
from moe.durable import sync
from moe.model.size import parameters
from scalelab.errors import LabError

if TYPE_CHECKING:
    from scalelab.run.config import Run

ROLLOUTS = "rollouts"
_LEAST = 2**30
"""Bytes that a run needs however small it is: models in caches, logs, reports."""

# Bytes as runs were seen to write them, rounded up.
_PER_LINE = 8_192  # a step in metrics.jsonl and TensorBoard
_PER_TOKEN_TEXT = 18  # a token of a completion in a Parquet file: text, id, log-probs and mark
_PER_ROW = 64  # all else of a completion there
_PER_TOKEN_WAITING = 9  # token, log-prob and mark of a rollout that waits: 4 + 4 + 1
_PER_PARAMETER_TRAINED = 12  # fp32 weight and two moments of Adam


@checked(frozen=True, config=CHECKED)
class Retention:
    """Rule for which completions stay on disk, and the place of a second copy of the newest checkpoint."""

    keep_last: PositiveInt | None = None
    """Number of the newest evaluations whose completions stay; None keeps all."""

    keep_every: PositiveInt | None = None
    """Evaluations whose step is a multiple of this keep their completions, too; None keeps no others."""

    train_every: PositiveInt | None = None
    """Keep the completions that every n-th optimiser step trains on, with the trainer's log-probability of each
    token; None keeps none."""

    train_gib: PositiveFloat | None = None
    """Most GiB of completions that training steps leave on disk: beyond it the oldest are deleted, down to the newest
    step's; None sets no limit."""

    copy_to: str | None = None
    """A folder, best on another disk, that gets a second copy of the newest checkpoint with all that a run needs to go
    on from it; None makes none."""

    def kept(self, steps: Iterable[int]) -> set[int]:
        """The evaluated steps whose completions stay."""
        ordered = sorted(steps)
        if self.keep_last is None:
            return set(ordered)
        forever = {step for step in ordered if self.keep_every and step % self.keep_every == 0}
        return forever | set(ordered[-self.keep_last :])


def prune_completions(folder: Path, kept: Retention) -> None:
    """Delete the completions in a run's folder that its rule does not keep."""
    files = {int(path.stem.removeprefix("step_")): path for path in (folder / ROLLOUTS).glob("step_*.parquet")}
    gone = files.keys() - kept.kept(files)
    for step in gone:
        files[step].unlink()
    if gone:
        sync(folder / ROLLOUTS)


def prune_training(folder: Path, kept: Retention) -> None:
    """Delete the oldest completions of training steps in a run's folder, as far as they exceed their limit."""
    if kept.train_gib is None:
        return
    files = sorted((folder / ROLLOUTS).glob("train_*.parquet"), key=lambda path: int(path.stem.removeprefix("train_")))
    total = sum(path.stat().st_size for path in files)
    for path in files[:-1]:
        if total <= kept.train_gib * 2**30:
            break
        total -= path.stat().st_size
        path.unlink()


@dataclass(frozen=True)
class Disk:
    """Upper bounds on the bytes that a run will have written at its end.

    Attributes:
        checkpoints: those that stay, and one that is being written.
        waiting: finished rollouts that no step has trained on, beside each checkpoint.
        completions: those of the evaluations and training steps that are kept.
        lines: metrics, evaluations and TensorBoard.
    """

    checkpoints: int
    waiting: int
    completions: int
    lines: int

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return self.checkpoints + self.waiting + self.completions + self.lines


def disk_needed(run: Run) -> Disk:
    """Upper bound on a run's bytes, from the longest completions allowed.

    A run that `Budget.hours` ends is counted as if it ended after its first evaluation, since nobody knows its steps.
    """
    recipe = run.recipe
    steps = run.budget.steps if run.budget.hours is None else min(run.budget.steps, run.evaluation.every)
    taken = {step for step in range(run.checkpoint_every, steps + 1, run.checkpoint_every)} | {steps}
    copies = len(run.checkpoints.kept(taken)) + 1
    weights = 2 if run.trainer.dtype == "bfloat16" else 4
    per_completion = recipe.max_tokens * _PER_TOKEN_WAITING
    evaluated = {*range(0, steps + 1, run.evaluation.every), steps}
    rows = len(run.tasks) * run.evaluation.prompts * run.evaluation.samples
    group_rows = recipe.prompts_per_step * recipe.generations_per_prompt
    per_row, kept = recipe.max_tokens * _PER_TOKEN_TEXT + _PER_ROW, run.retention
    trained = steps // kept.train_every * group_rows * per_row if kept.train_every else 0
    if kept.train_gib is not None:  # the newest step's come on top until the oldest are deleted
        trained = min(trained, int(kept.train_gib * 2**30) + group_rows * per_row)
    return Disk(
        checkpoints=copies * parameters(run.model.to_hf()).total * (weights + _PER_PARAMETER_TRAINED),
        waiting=copies * group_rows * per_completion,
        completions=len(kept.kept(evaluated)) * rows * per_row + trained,
        lines=steps * (_PER_LINE + 16 * recipe.prompts_per_step),
    )


def check_disk(path: Path, run: Run) -> None:
    """Refuse to start or resume if the disk cannot hold the run.

    Args:
        path: the run's folder, which need not be there yet.
        run: the run.

    Raises:
        LabError: naming what takes how much.
    """
    needed = disk_needed(run)
    there = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
    parent = path
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free >= max(_LEAST, needed.total - there):
        return
    gib = {name: f"{size / 2**30:.1f}" for name, size in vars(needed).items()}
    raise LabError(
        f"{parent} has {free / 2**30:.1f} GiB free, and this run writes up to {needed.total / 2**30:.1f} GiB and needs "
        f"1 GiB in any case: {gib['checkpoints']} of checkpoints (CheckpointPolicy.keep_last, .keep_every), "
        f"{gib['waiting']} of rollouts beside them, {gib['completions']} of completions "
        f"(Retention.keep_last, .keep_every, .train_every, .train_gib), {gib['lines']} of lines; free some, keep less, "
        "or give another --out"
    )
