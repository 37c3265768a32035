"""Completions that a run keeps on its disk, and the deletion of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.checkpoint.folder import CheckpointPolicy
from moe.durable import sync
from scalelab.store.manifest import ROLLOUTS, step_of_rollouts


@dataclass(frozen=True, config=CHECKED)
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
        return set(steps) if self.keep_last is None else CheckpointPolicy(self.keep_last, self.keep_every).kept(steps)

    def too_old(self, sizes: Mapping[int, int]) -> list[int]:
        """The training steps whose completions exceed the limit: the oldest, but never the newest.

        Args:
            sizes: bytes of the file of each step.
        """
        if self.train_gib is None:
            return []
        ordered, total, gone = sorted(sizes), sum(sizes.values()), []
        for step in ordered[:-1]:
            if total <= self.train_gib * 2**30:
                break
            total -= sizes[step]
            gone.append(step)
        return gone


def prune_completions(
    folder: Path, kept: Retention, steps: Sequence[int], allowed: Callable[[], None] = lambda: None
) -> None:
    """Delete the completions in a run's folder that its rule does not keep.

    Args:
        folder: the run's.
        kept: the rule.
        steps: those whose evaluations have lines: a file without one counts for nothing.
        allowed: called before each deletion; raises where another process has taken the run over.
    """
    old = set(steps) - kept.kept(steps)
    files = (folder / ROLLOUTS).glob("step_*.parquet")
    gone = [path for path in files if step_of_rollouts(f"{ROLLOUTS}/{path.name}") in old]
    for path in gone:
        allowed()
        path.unlink()
    if gone:
        sync(folder / ROLLOUTS)


def prune_training(folder: Path, kept: Retention, allowed: Callable[[], None] = lambda: None) -> None:
    """Delete the oldest completions of training steps in a run's folder, as far as they exceed their limit.

    Args:
        folder: the run's.
        kept: the rule.
        allowed: called before each deletion; raises where another process has taken the run over.
    """
    if kept.train_gib is None:
        return
    present = (folder / ROLLOUTS).glob("train_*.parquet")
    files = {step: path for path in present if (step := step_of_rollouts(f"{ROLLOUTS}/{path.name}")) is not None}
    for step in kept.too_old({step: path.stat().st_size for step, path in files.items()}):
        allowed()
        files[step].unlink()
