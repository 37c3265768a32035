"""Assumptions of a plan from what a run measured: speed of training and decoding, length of completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from scalelab.errors import LabError
from scalelab.hardware import Device
from scalelab.plan.lengths import Moments, lengths_of
from scalelab.plan.placement import placement
from scalelab.plan.speed import Assumptions, decoding, training_seconds
from scalelab.run.config import Run
from scalelab.schedule.schedule import PipelineRL
from scalelab.store.pace import FEWEST, SETTLED


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Measured speeds of a run, beside the assumed ones.

    Attributes:
        assumed: the assumptions under which the plan's speeds are the measured ones.
        steps: first and last step that were read.
        training: measured seconds of a step's training, by the assumed.
        decoding: measured seconds of a token of an engine, by the assumed; None where no engine's time is known.
        mean_length: tokens of a completion.
    """

    assumed: Assumptions
    steps: tuple[int, int]
    training: float
    decoding: float | None
    mean_length: float

    def line(self, name: str) -> str:
        """A sentence for people."""
        decodes = "" if self.decoding is None else f", decoding {self.decoding:.2f} ×"
        return (
            f"measured in steps {self.steps[0]} to {self.steps[1]} of {name}: training takes {self.training:.2f} × "
            f"the assumed time{decodes}, a completion has {self.mean_length:,.0f} tokens"
        )


def measured_speeds(
    run: Run, records: Sequence[Mapping[str, Any]], device: Device, assumed: Assumptions
) -> MeasuredSpeeds:
    """Fit the assumptions to the steps of a run.

    The training's efficiency follows from the median of seconds by token; that of decoding from the tokens that engines
    made while they did not stand idle, between the first and the last step. All kinds of an engine's time change by one
    factor, since a run measures only their sum.

    Args:
        run: the run's configuration.
        records: lines of its `metrics.jsonl`.
        device: what it ran on.
        assumed: the assumptions to replace.

    Raises:
        LabError: the run has too few steps, or lines without times.
    """
    try:
        steps = sorted({int(one["step"]): one for one in records}.items())[SETTLED:]
        read = [one for _, one in steps]
        completions = [sum(task["completions"] for task in one["tasks"].values()) for one in read]
        made = [
            sum(task["completions"] * task["mean_length"] for task in one["tasks"].values() if task["completions"])
            for one in read
        ]
        seconds = [float(one["seconds"]["step"]) for one in read]
        tokens = [float(one["tokens"]) for one in read]
        ends = [(float(one["time"]), float(one["generator_idle_seconds"])) for one in read]
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise LabError(f"the run's steps lack what a plan reads ({problem})") from None
    if len(read) < FEWEST or not all(count > 0 for count in (*completions, *tokens, *seconds)):
        raise LabError(
            f"a plan like a run needs {FEWEST} steps behind the first {SETTLED}, and it has {len(read)}: wait for more"
        )
    mean = sum(made) / sum(completions)
    known = replace(assumed, prompt=round(sum(tokens) / sum(completions) - mean))
    known = _with_mean(run, known, mean)
    length = lengths_of(run, known.sigma, known.median).moments()
    train = _training(run, device, known, length, median(s / t for s, t in zip(seconds, tokens)))
    decodes = _decoding(run, device, known, length, sum(made[1:]), ends[0], ends[-1])
    known = replace(known, mfu=known.mfu / train, expert_mfu=known.expert_mfu / train, exchange=known.exchange / train)
    if decodes is not None:
        known = replace(
            known,
            bandwidth=known.bandwidth / decodes,
            decode_mfu=known.decode_mfu / decodes,
            iteration=known.iteration * decodes,
            chunked=known.chunked * decodes,
            link=known.link * decodes,
        )
    return MeasuredSpeeds(known, (steps[0][0], steps[-1][0]), train, decodes, mean)


def _with_mean(run: Run, assumed: Assumptions, mean: float) -> Assumptions:
    """The median at which completions have this mean, by bisection; the nearest where none has it."""
    low, high = 1e-4, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        shorter = lengths_of(run, assumed.sigma, middle).moments().mean < mean
        low, high = (middle, high) if shorter else (low, middle)
    return replace(assumed, median=(low + high) / 2)


def _training(run: Run, device: Device, assumed: Assumptions, length: Moments, by_token: float) -> float:
    """Measured time of a trained token by the plan's."""
    place, completions = placement(run), run.recipe.completions_per_step
    planned = training_seconds(
        run.model.to_hf(), place.trainer, place.trainers, completions, length, device, replace(assumed, dropped=0.0)
    )
    return by_token / (planned / (completions * (length.mean + assumed.prompt)))


def _decoding(
    run: Run,
    device: Device,
    assumed: Assumptions,
    length: Moments,
    made: float,
    start: tuple[float, float],
    end: tuple[float, float],
) -> float | None:
    """Measured time of an engine's token by the plan's; None if all of the time is idle."""
    place = placement(run)
    busy = (end[0] - start[0]) * place.engines - (end[1] - start[1])
    if busy <= 0 or made <= 0:
        return None
    ahead = run.schedule.k + 1 if isinstance(run.schedule, PipelineRL) else 1
    most = run.recipe.completions_per_step * ahead / place.engines
    planned = decoding(run.model.to_hf(), place.generator, most, length, device, assumed)
    return busy / made * planned.tokens_per_second
