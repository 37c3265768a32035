"""Supervised fine-tuning: steps on examples by a trainer that can be lost, from checkpoint to checkpoint."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moe.checkpoint.folder import CheckpointPolicy, check, finished_checkpoints, read_state
from moe.errors import MoeError, printable
from moe.sequences import TrainingSequence
from scalelab.run.config import Run
from scalelab.signals import first_asks
from scalelab.start.traces import Examples
from scalelab.store.publication import CheckpointNames
from scalelab.watch.progress import Progress

SUMMARY = "sft.json"
"""File beside the weights that tells how they were made."""

HeldOutLosses = list[tuple[int, float]]
"""(step, loss on the held-out traces in nats per token of their completions)."""


class Tuner(Protocol):
    """A trainer for supervised fine-tuning. Where it can be lost, its methods raise `TrainerLostError`."""

    def begin(self, path: Path | None) -> None:
        """Be ready to train, from a checkpoint or from the initial weights."""

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        """Start an optimiser step, and return a function that waits for its loss."""

    def logprobs(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        """Compute the log-probability of every token of the sequences."""

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take a checkpoint."""

    def save_hf(self, folder: Path) -> None:
        """Write the weights into a Hugging Face folder."""

    def restart(self) -> None:
        """Put another trainer in the place of a lost one."""

    def close(self) -> None:
        """Give devices and memory back."""


StartTuner = Callable[[Run], Tuner]

Retry = Callable[[Callable[[], None], Callable[[], None]], None]
"""Function of (attempt, replace): makes the attempt; while it loses the trainer, replaces that and tries again."""


def once(attempt: Callable[[], None], replace: Callable[[], None]) -> None:
    """Make one attempt, with a trainer in this process: if that is lost, so is the process."""
    attempt()


class LocalTuner:
    """Tuner whose trainer is in this process."""

    def __init__(self, run: Run) -> None:
        import tempfile

        from moe.train.trainer import Trainer

        self._folder = tempfile.TemporaryDirectory(prefix="scalelab-sft-")
        meeting = f"file://{self._folder.name}/meet"
        self._trainer = Trainer(run.model.to_hf(), run.tuner_setup, rendezvous=meeting, weights=run.sft.pretrained)

    def begin(self, path: Path | None) -> None:
        """Go on from a checkpoint, or from the initial weights."""
        if path is not None:
            self._trainer.load(path)

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        """Take an optimiser step."""
        result = self._trainer.train_step(sequences, loss, lr)
        return lambda: result.loss

    def logprobs(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        """Compute log-probabilities."""
        return self._trainer.logprobs(sequences)

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take a checkpoint."""
        self._trainer.save(path, dict(state))

    def save_hf(self, folder: Path) -> None:
        """Write the weights into a Hugging Face folder."""
        self._trainer.save_hf(folder)

    def restart(self) -> None:
        """Fail: if this trainer is lost, so is the process."""
        raise AssertionError("unreachable: this process is the trainer")

    def close(self) -> None:
        """Give the memory back."""
        self._trainer.close()
        self._folder.cleanup()


@dataclass(frozen=True)
class Saved:
    """Checkpoints of a fine-tuning.

    Attributes:
        names: gives them their names; None takes none.
        run: what is fine-tuned.
        key: name of the base model that is to come of it; checkpoints of another are not gone on from.
    """

    names: CheckpointNames | None
    run: Run
    key: str

    def newest(self, say: Callable[[str], None]) -> tuple[Path | None, int, HeldOutLosses]:
        """Find the newest whole checkpoint, its number of steps and the losses until then; (None, 0, []) if none is.

        Args:
            say: takes a line for people about each that is damaged.
        """
        for path in reversed(finished_checkpoints(self.names.root) if self.names is not None else []):
            try:
                check(path, self.run.model.to_hf())
                state = read_state(path)
            except (MoeError, OSError) as error:
                say(f"SFT: a checkpoint cannot be used: {printable(error)}")
                continue
            if state.get("model") == self.key and isinstance(steps := state.get("steps"), int):
                return path, steps, [(int(step), float(loss)) for step, loss in state.get("held_out_loss", [])]
        return None, 0, []

    def stopping(self) -> AbstractContextManager[threading.Event]:
        """Set an event at the first signal to stop, where there is a checkpoint to take before the end."""
        return nullcontext(threading.Event()) if self.names is None else first_asks()

    def take(self, model: Tuner, steps: int, losses: HeldOutLosses) -> None:
        """Take a checkpoint after this many steps; one of another model that has its name is set aside.

        Raises:
            FencedError: another process has taken the run over.
        """
        if self.names is not None:
            self.names.root.mkdir(parents=True, exist_ok=True)
            self.names.forget()  # what a lost trainer had begun
            path = self.names.begin(steps, CheckpointPolicy())
            model.save(path, {"model": self.key, "steps": steps, "held_out_loss": losses})
            self.names.publish(instead=True)


def make(
    run: Run,
    examples: Examples,
    folder: Path,
    progress: Progress,
    tuner: StartTuner,
    saved: Saved,
    retry: Retry,
    facts: Mapping[str, Any],
) -> None:
    """Fine-tune a model and write it into a folder, with a summary of what it learnt from.

    Args:
        run: the run; its trainer starts from `SFT.pretrained`, a folder, or from initial weights where that is None.
        examples: what it learns from.
        folder: holds the tokenizer already.
        progress: takes lines for people.
        tuner: starts a trainer.
        saved: the checkpoints of this fine-tuning.
        retry: calls a part again with a new trainer after one is lost.
        facts: of the examples, for the summary.
    """
    progress.say(f"SFT: {run.sft.steps} steps of {run.sft.traces_per_step} traces; starting the trainer")
    with closing(tuner(run)) as model:

        def attempt() -> None:
            losses = _fine_tune(run, examples, model, progress, saved)
            model.save_hf(folder)
            summary = {"steps": run.sft.steps, "traces": dict(facts), "held_out_loss": losses}
            (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")

        retry(attempt, model.restart)


def _fine_tune(run: Run, examples: Examples, model: Tuner, progress: Progress, saved: Saved) -> HeldOutLosses:
    """Train from the newest checkpoint on; the next batch is made while the trainer works on the last.

    Raises:
        KeyboardInterrupt: a signal asked to stop; a checkpoint of the steps that were taken is on the disk.
    """
    sft, began, held_out = run.sft, time.monotonic(), examples.held_out()
    pending: Callable[[], float] | None = None
    loss = math.nan
    path, first, losses = saved.newest(progress.say)
    model.begin(path)
    if path is not None:
        progress.say(f"SFT: going on from step {first}")

    def measure(step: int) -> None:
        if held_out:
            losses.append((step, held_out_loss(held_out, model.logprobs(held_out))))
            progress.say(f"SFT: step {step}, loss on {len(held_out)} held-out traces {losses[-1][1]:.4f}")

    def save(step: int, stop: bool) -> None:
        saved.take(model, step, losses)
        if stop:
            progress.say(f"SFT: asked to stop, and saved at step {step}, from where it goes on")
            raise KeyboardInterrupt

    if first == 0:
        measure(0)
    with progress.work("SFT", sft.steps, "steps") as advance, saved.stopping() as asked:
        for step in range(first, sft.steps):
            batch = examples.step(step)
            if pending is not None:
                loss = pending()
                advance(step, f"loss {loss:.3f}")
                stop, due = asked.is_set(), step % sft.checkpoint_every == 0
                if due:
                    measure(step)
                if due or stop:
                    save(step, stop)
            pending = model.start_step(batch, cross_entropy, learning_rate(step, sft.steps, sft.learning_rate))
        if pending is not None:
            progress.say(f"SFT: done in {time.monotonic() - began:.0f} s, loss {pending():.3f}")
            measure(sft.steps)
        if asked.is_set():
            save(sft.steps, stop=True)
    return losses


def held_out_loss(sequences: list[TrainingSequence], logprobs: list[np.ndarray]) -> float:
    """Mean negative log-likelihood in nats of the sequences' weighted tokens: −Σ_t w_t · log π(y_t | y_<t)."""
    return -sum(float(one.extras["weights"] @ found) for one, found in zip(sequences, logprobs, strict=True))


def cross_entropy(logprobs_T: Any, entropy_T: Any, extras: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """−Σ_t w_t · log π(y_t | y_<t): the SFT loss in nats per answer token, as a plain sum over tokens."""
    return -(extras["weights"] * logprobs_T).sum(), {}


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first 5 % of the steps, then a cosine from `peak` down to a tenth of it."""
    warmup = max(1, round(0.05 * steps))
    if step < warmup:
        return peak * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - warmup)
    return peak * (0.55 + 0.45 * math.cos(math.pi * along))
