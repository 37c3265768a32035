"""Upper bound on the bytes that a run writes, checked before it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from moe.checkpoint.size import checkpoint_bytes
from moe.model.size import BYTES, parameters
from scalelab.defaults import LEAST_FREE
from scalelab.errors import LabError
from scalelab.run.config import Run
from scalelab.run.evaluation_sets import ReadySet

# Bytes as runs were seen to write them, rounded up.
_PER_LINE = 8_192  # a step in metrics.jsonl and TensorBoard
_PER_TOKEN_TEXT = 18  # a token of a completion in a Parquet file: text, id, log-probs and mark
_PER_ROW = 64  # all else of a completion there
_PER_TOKEN_WAITING = 9  # token, log-prob and mark of a rollout that waits: 4 + 4 + 1


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


def disk_needed(run: Run, step_hours: float | None) -> Disk:
    """Upper bound on a run's bytes, from the longest completions allowed.

    Args:
        run: the run.
        step_hours: device-hours that a step takes at least; None if nobody knows, and the run may take all of
            `Budget.steps`.
    """
    recipe = run.recipe
    steps = run.budget.steps_within(step_hours)
    taken = {*run.checkpoint_cadence.steps(steps, step_hours)} - {0}
    copies = len(run.checkpoints.kept(taken)) + 1
    per_completion = recipe.max_tokens * _PER_TOKEN_WAITING
    group_rows = recipe.completions_per_step
    longest = {one.name: one.max_tokens * _PER_TOKEN_TEXT + _PER_ROW for one in run.sets}
    evaluated = sum(_most_kept(run, one, steps) * one.planned * longest[one.name] for one in run.sets)
    per_row, kept = recipe.max_tokens * _PER_TOKEN_TEXT + _PER_ROW, run.retention
    trained = steps // kept.train_every * group_rows * per_row if kept.train_every else 0
    if kept.train_gib is not None:  # the newest step's come on top until the oldest are deleted
        trained = min(trained, int(kept.train_gib * 2**30) + group_rows * per_row)
    return Disk(
        checkpoints=copies * checkpoint_bytes(run.model.to_hf(), run.trainer.dtype),
        waiting=copies * group_rows * per_completion,
        completions=evaluated + trained,
        lines=steps * (_PER_LINE + 16 * recipe.prompts_per_step),
    )


def _most_kept(run: Run, one: ReadySet, steps: int) -> int:
    """Most evaluations of a set whose completions stay, of those that may take place in so many steps."""
    kept, most = run.retention, one.cadence.most(run.budget.hours)
    if most is None:
        return len(kept.kept(run.evaluation.steps(steps)) & {*one.cadence.steps(steps, None)})
    return most if kept.keep_last is None or kept.keep_every is not None else min(most, kept.keep_last)


def check_disk(path: Path, run: Run, step_hours: float | None) -> None:
    """Refuse to start or resume if the disk cannot hold the run.

    Args:
        path: the run's folder, which need not be there yet.
        run: the run.
        step_hours: as in `disk_needed`.

    Raises:
        LabError: naming what takes how much.
    """
    needed = disk_needed(run, step_hours)
    there = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
    parent, free = _free(path)
    if free >= max(LEAST_FREE, needed.total - there):
        return
    unknown = ""
    if step_hours is None and run.budget.hours is not None:
        unknown = f" in all {run.budget.steps:,} of Budget.steps, as nobody knows how many Budget.hours pays for"
    gib = {name: f"{size / 2**30:.1f}" for name, size in vars(needed).items()}
    elsewhere = "move the run to a larger disk" if there else "give another --out"
    raise LabError(
        f"{parent} has {free / 2**30:.1f} GiB free, and this run writes up to {needed.total / 2**30:.1f} GiB{unknown} "
        f"and needs 1 GiB in any case: {gib['checkpoints']} of checkpoints (CheckpointPolicy.keep_last, .keep_every), "
        f"{gib['waiting']} of rollouts beside them, {gib['completions']} of completions "
        f"(Retention.keep_last, .keep_every, .train_every, .train_gib), {gib['lines']} of lines; free some, keep less, "
        f"or {elsewhere}"
    )


def check_fine_tuning_disk(path: Path, run: Run) -> None:
    """Refuse to fine-tune if the disk cannot hold a checkpoint, the one that replaces it, and the model.

    Args:
        path: the model's folder, which need not be there yet.
        run: the run whose fine-tuning it is.

    Raises:
        LabError: naming what takes how much.
    """
    hf_config = run.model.to_hf()
    checkpoint = checkpoint_bytes(hf_config, run.tuner_setup.dtype)
    model = BYTES["bfloat16"] * parameters(hf_config).total
    parent, free = _free(path)
    if free < max(LEAST_FREE, 2 * checkpoint + model):
        raise LabError(
            f"{parent} has {free / 2**30:.1f} GiB free, and the fine-tuning writes up to "
            f"{(2 * checkpoint + model) / 2**30:.1f} GiB and needs 1 GiB in any case: two checkpoints of "
            f"{checkpoint / 2**30:.1f} and the model; free some, or give another --out"
        )


def check_copy_disk(target: Path, folder: Path) -> None:
    """Refuse to write a model's weights again, into the cache, where the disk cannot hold them.

    Args:
        target: the folder to write, which need not be there yet.
        folder: with the weights.

    Raises:
        LabError: naming what they take.
    """
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    parent, free = _free(target)
    if free < max(LEAST_FREE, size):
        raise LabError(
            f"{parent} has {free / 2**30:.1f} GiB free, and the text model of {folder} takes up to "
            f"{size / 2**30:.1f} GiB there: free some, or set SCALELAB_CACHE to a folder of a larger disk"
        )


def _free(path: Path) -> tuple[Path, int]:
    """The nearest folder of a path that is there, and the bytes that are free in it."""
    while not path.exists():
        path = path.parent
    return path, shutil.disk_usage(path).free
