"""Seconds of a placed run's optimiser steps, with evaluations and without."""

from __future__ import annotations

from typing import Any

from scalelab.hardware import Device
from scalelab.plan.driver import driver_seconds
from scalelab.plan.evaluations import EvaluationCost
from scalelab.plan.lengths import Moments
from scalelab.plan.placement import Placement
from scalelab.plan.prompts import verify_seconds
from scalelab.plan.speed import Assumptions, Decoding, decoding, host_step_seconds, publication, training_seconds
from scalelab.plan.waits import first_group_tokens, longest_seconds, round_seconds
from scalelab.run.config import Run
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy

SLOWED = 0.6
"""Part of what the longest completions lose to an evaluation that the steps lose: they catch up on the rest. Fitted to
the simulator."""


class StepTime:
    """Seconds of the steps of a placed run; in PipelineRL the slowest side sets the pace, in rounds they add up.

    Args:
        run: the run.
        place: who runs where.
        hf: Hugging Face configuration of its model.
        length: moments of its completions' lengths.
        device: of the cluster.
        assumed: shares of the device's peaks, and the like.
    """

    def __init__(
        self, run: Run, place: Placement, hf: dict[str, Any], length: Moments, device: Device, assumed: Assumptions
    ) -> None:
        recipe, schedule = run.recipe, run.schedule
        self._run, self._place, self._hf = run, place, hf
        self._length, self._device, self._assumed = length, device, assumed
        self._pipeline = isinstance(schedule, PipelineRL)
        self._round = schedule.k if isinstance(schedule, PPOOffPolicy) else 1
        self._ahead = schedule.k + 1 if isinstance(schedule, PipelineRL) else self._round
        self.completions = recipe.completions_per_step
        """Completions of a step."""
        self.started = self.completions * self._ahead / place.engines
        """Completions that the schedule has for an engine."""
        self.engine = decoding(hf, place.generator, self.started, length, device, assumed)
        """An engine in steady state."""
        self._train = training_seconds(hf, place.trainer, place.trainers, self.completions, length, device, assumed)
        self._train += host_step_seconds(hf, place.trainer, place.trainers, assumed)
        engines, way = (place.engines, place.generator.tensor_parallel), run.cluster.publication
        self._weights = publication(hf, place.generator.dtype, place.trainers, engines, device, assumed, way)
        self._longest = recipe.max_tokens
        prompts = recipe.prompts_per_step * self._round
        self._first_group = 0.0 if self._pipeline else first_group_tokens(run, assumed, prompts)
        self._graded = verify_seconds(run, place.verifiers)

    def seconds(
        self, evaluated: float = 0.0, checkpoint: float = 0.0, engines: int | None = None, aside: bool = False
    ) -> dict[str, float]:
        """Seconds of a step by part, as in `RunPlan.seconds`.

        Args:
            evaluated: completions of evaluations for each step.
            checkpoint: seconds of copies for checkpoints for each step.
            engines: that generate for training; None for all.
            aside: other engines make the evaluations' completions.
        """
        engines, made = engines or self._place.engines, 0.0 if aside else evaluated
        token = self._length.mean / (engines * self.engine.tokens_per_second)
        on_cluster = self._device.gpu and self._run.virtual is None
        drive = driver_seconds(self.completions + evaluated) if on_cluster else 0.0
        verify, publish = (self.completions + evaluated) * self._graded, self._weights.total
        if self._pipeline:  # weights are under way while both sides work
            generate = (self.completions + made) * token
            sides = self._train + checkpoint + self._weights.standstill, generate + self._weights.pause
            others = self.completions * self._ahead * self._length.mean / self._longest
            slowest = longest_seconds(self._decode, self._longest, others / engines, self._train + publish)
            # from the weights that it begins with to the end of the step that trains on it
            hold = (slowest + self._train + publish) / self._ahead
            step = max(sum(sides) if self._place.shared else max(sides), hold, verify, drive)
        else:
            quarter, each = self._decoding(self.engine.sequences / 4), self.completions * self._ahead / engines
            generate = round_seconds(self.engine, quarter, each, self._length) / self._ahead + made * token
            hold = self._longest * self._decode(1) / self._round
            graded_after = self._first_group * self.engine.seconds / self._round  # verifiers wait for a whole group
            step = self._train + checkpoint + publish / self._round
            step += max(generate, hold, graded_after + verify, drive)
        parts = {"train": self._train, "checkpoint": checkpoint, "generate": generate, "verify": verify}
        parts["standstill"] = self._weights.standstill / (1 if self._pipeline else self._round)
        return parts | {"publish": publish, "hold": hold, "step": step}

    def evaluated(self, due: float, checkpoint: float, one: EvaluationCost) -> float:
        """Completions of evaluations for each step: what falls due while an evaluation runs is made after it.

        Args:
            due: those that fall due for each step.
            checkpoint: seconds of copies for checkpoints for each step.
            one: the evaluation.
        """
        aside = one.engines < self._place.engines
        others = self._place.engines - one.engines if aside else None
        return min(due, one.completions * self.seconds(0.0, checkpoint, others, aside)["step"] / one.seconds)

    def with_evaluations(self, evaluated: float, checkpoint: float, one: EvaluationCost) -> dict[str, float]:
        """Seconds of a mean step by part; `evaluations` is what they add to it.

        Args:
            evaluated: completions of evaluations for each step.
            checkpoint: seconds of copies for checkpoints for each step.
            one: the evaluation.
        """
        seconds, step = self.seconds(evaluated, checkpoint), self.seconds(0.0, checkpoint)["step"]
        if one.engines < self._place.engines:  # the others have the steps meanwhile, and all engines those between
            beside = self.seconds(evaluated, checkpoint, self._place.engines - one.engines, aside=True)
            between = self.seconds(evaluated, checkpoint, aside=True)
            share = min(1.0, evaluated * one.seconds / one.completions / beside["step"])
            seconds = {name: share * beside[name] + (1 - share) * between[name] for name in between}
            if self._pipeline:  # the longest of the completions for training that those engines still have take longer
                slowed = (self._longest * one.token_seconds + self._train + self._weights.total) / self._ahead
                each = SLOWED * self._ahead * max(0.0, slowed - beside["step"])
                seconds["step"] += each * evaluated / one.completions
        elif self._pipeline:  # engines keep their weights until it is over, and the trainer is k steps ahead by then
            stands = max(0.0, one.seconds - (self._ahead - 1) * step)
            seconds["step"] = max(seconds["step"], step + stands * evaluated / max(one.completions, 1))
        return seconds | {"evaluations": seconds["step"] - step}

    def _decoding(self, sequences: float) -> Decoding:
        return decoding(self._hf, self._place.generator, sequences, self._length, self._device, self._assumed)

    def _decode(self, sequences: float) -> float:
        return self._decoding(sequences).seconds
