"""Monitor a run's health step by step; limits that are passed raise alarms, and an alarm can stop the run.

RL runs rarely break with an error. They drift: completions run into the length limit (runs destabilise when 10–15 %
are cut, ScaleRL §3.2), the generators' and the trainer's log-probs part, a verifier fails and blames the policy. The
numbers for it are in every line of `metrics.jsonl`; `Watch` holds each against its limit, says once when it is passed
and once when it is over.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import Any, Literal, get_args

Level = Literal["warning", "alarm", "over"]

Name = Literal[
    "truncated",
    "skipped",
    "grad_norm",
    "gap",
    "entropy",
    "ratio_clipped",
    "verifier_error",
    "verifier_timeout",
    "router",
    "trainer_starved",
    "generator_starved",
]

ADVICE: dict[Name, str] = {
    "truncated": "runs destabilise at 10 %: interrupt earlier, or raise Recipe.max_tokens",
    "skipped": "the gradient was not finite and the step was left out: look at ratio_max and grad_norm, lower the lr",
    "grad_norm": "the gradient explodes: lower OptimizerConfig.lr, or look for a broken batch in rollouts/",
    "gap": "generators and trainer disagree on the same weights: check Recipe.fp32_head and both sides' dtype",
    "entropy": "the policy has almost stopped exploring: its pass rate will not rise much further",
    "ratio_clipped": "many importance ratios are cut off: lower PipelineRL.k or the lr",
    "verifier_error": "the verifier fails, which says nothing about the policy",
    "verifier_timeout": "answers run out of time: the deadline is too short, or the policy learned to stall",
    "router": "few experts take most tokens: set TrainerConfig.balance to about 0.01",
    "trainer_starved": "the trainer waits for completions: give more devices to the generators",
    "generator_starved": "the generators stand idle: give more devices to the trainer, or raise PipelineRL.k",
}
"""Advice for each alarm."""

GRADIENTS_BEFORE = 10
"""Steps from which on a gradient norm is compared with those of earlier steps."""


@dataclass(frozen=True)
class Monitors:
    """Limits of a healthy run; a limit of None is not watched.

    Shares are means over the last `window` steps. Raises ValueError for limits that no run could keep.
    """

    window: int = 10
    """Optimiser steps averaged over, so that one odd batch is no alarm."""

    truncated_warning: float | None = 0.05
    """Share of a task's completions cut at the length limit that is worth a warning (ScaleRL stays below it)."""

    truncated: float | None = 0.10
    """Share of a task's completions cut at the length limit from which runs destabilise (ScaleRL §3.2)."""

    skipped: bool = True
    """True if a step skipped for a gradient that is not finite raises an alarm."""

    grad_norm: float | None = 30.0
    """Gradient norm, as a multiple of the median of the last 50 steps."""

    gap: float | None = 0.1
    """Mean |log π_train − log π_gen| (nats) on tokens of the very same weights."""

    entropy: float | None = 0.005
    """Mean entropy of a token (nats) below which the policy explores no more."""

    ratio_clipped: float | None = 0.3
    """Share of tokens whose importance ratio the loss cuts off."""

    verifier_error: float | None = 0.02
    """Share of a task's completions that the verifier failed to grade."""

    verifier_timeout: float | None = 0.10
    """Share of a task's completions whose grading ran out of time."""

    router: float | None = 0.75
    """Tokens of the busiest expert over the mean, as a share of what it would be if it took all."""

    starved: float | None = 0.95
    """Share of the time that the trainer waits for a batch, or that the generators stand idle."""

    stop_on: tuple[Name, ...] = ()
    """Alarms after which the run writes a checkpoint and stops, to be looked at and resumed."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"Monitors.window is {self.window}: it counts steps, give 1 or more")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not value > 0:
                raise ValueError(f"Monitors.{field.name} is {value}: give a positive limit, or None not to watch it")
        unknown = set(self.stop_on) - set(get_args(Name))
        if unknown:
            raise ValueError(f"Monitors.stop_on names {min(unknown)!r}: there are {', '.join(get_args(Name))}")


@dataclass(frozen=True)
class Alarm:
    """A limit that was passed, or is kept again.

    Attributes:
        step: optimiser step at which it was seen.
        name: what is watched.
        level: `warning`, `alarm`, or `over` once the limit is kept again.
        subject: the task it is about, or "".
        value: the number that was compared with the limit.
        limit: what it was held against.
        cause: the commonest cause in one line, or "".
    """

    step: int
    name: Name
    level: Level
    subject: str
    value: float
    limit: float
    cause: str = ""

    @property
    def line(self) -> str:
        """The alarm in one line for a reader."""
        what = " ".join(filter(None, [self.subject, self.name.replace("_", " ")]))
        if self.level == "over":
            return f"step {self.step}: {what} is back at {self.value:.3g} (limit {self.limit:.3g})"
        why = f": {self.cause}" if self.cause else ""
        passed = f"{self.value:.3g} (limit {self.limit:.3g})"
        return f"{self.level} at step {self.step}: {what} is {passed}: {self.advice}{why}"

    @property
    def advice(self) -> str:
        """Advice for the user."""
        return ADVICE[self.name]

    def record(self) -> dict[str, Any]:
        """One line of `alarms.jsonl`."""
        return asdict(self) | {"message": self.line}


@dataclass(frozen=True)
class WatchedNumber:
    """One watched number: `warning` and `limit` are passed from above, or from below if `low`."""

    name: Name
    value: float
    limit: float
    subject: str = ""
    warning: float | None = None
    low: bool = False
    cause: str = ""

    @property
    def level(self) -> Level:
        """Level of the value: `alarm`, `warning`, or `over` when it is within both."""
        for bound, level in ((self.limit, "alarm"), (self.warning, "warning")):
            if bound is not None and (self.value < bound if self.low else self.value > bound):
                return level  # type: ignore[return-value]
        return "over"


class Watch:
    """Compare every step's record with the limits.

    Args:
        limits: what to watch.
        generators: engines of the run.
        experts: of each layer that has any; 0 for a dense model.
    """

    def __init__(self, limits: Monitors, generators: int = 1, experts: int = 0) -> None:
        self.limits, self._generators, self._experts = limits, generators, experts
        self._recent: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=limits.window))
        self._gradients: deque[float] = deque(maxlen=50)
        self._levels: dict[tuple[Name, str], Level] = {}
        self._before: tuple[float, float] | None = None

    def step(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Alarms that change with this step: limits newly passed, and limits kept again.

        Args:
            record: a line of `metrics.jsonl`.
        """
        alarms = []
        for reading in self._readings(record):
            key = (reading.name, reading.subject)
            level, before = reading.level, self._levels.get(key, "over")
            if level != before:
                self._levels[key] = level
                limit = reading.warning if level == "warning" and reading.warning is not None else reading.limit
                value, cause = reading.value, reading.cause
                alarms.append(Alarm(record["step"], reading.name, level, reading.subject, value, limit, cause))
        return alarms

    def must_stop(self, alarms: list[Alarm]) -> Alarm | None:
        """The alarm that stops the run, if one of these does."""
        return next((one for one in alarms if one.level == "alarm" and one.name in self.limits.stop_on), None)

    def _readings(self, record: Mapping[str, Any]) -> Iterator[WatchedNumber]:
        yield from self._of_tasks(record["tasks"])
        yield from self._of_training(record)
        yield from self._of_waiting(record)

    def _of_tasks(self, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[WatchedNumber]:
        limits = self.limits
        for task, facts in tasks.items():
            if limits.truncated is not None:
                share = self._mean(f"truncated {task}", facts["truncated"])
                yield WatchedNumber("truncated", share, limits.truncated, task, warning=limits.truncated_warning)
            for name, outcome, limit in (
                ("verifier_error", "error", limits.verifier_error),
                ("verifier_timeout", "timeout", limits.verifier_timeout),
            ):
                if limit is not None:
                    share = self._mean(f"{name} {task}", facts["outcomes"].get(outcome, 0) / facts["completions"])
                    cause = facts.get("error", "") if outcome == "error" else ""
                    yield WatchedNumber(name, share, limit, task, cause=cause)  # type: ignore[arg-type]

    def _of_training(self, record: Mapping[str, Any]) -> Iterator[WatchedNumber]:
        limits = self.limits
        if limits.skipped:
            yield WatchedNumber("skipped", float(record["skipped"]), 0.5)
        norm = record.get("grad_norm")
        if norm is not None and math.isfinite(norm):
            if limits.grad_norm is not None and len(self._gradients) >= GRADIENTS_BEFORE:
                yield WatchedNumber("grad_norm", norm, limits.grad_norm * median(self._gradients))
            if norm:  # a step whose groups agree has no gradient, and is no measure for others
                self._gradients.append(norm)
        for name, key, limit, low in (
            ("gap", "same_version_gap_mean", limits.gap, False),
            ("entropy", "entropy", limits.entropy, True),
            ("ratio_clipped", "ratio_clipped", limits.ratio_clipped, False),
        ):
            value = record.get(key)
            if limit is not None and value is not None:
                yield WatchedNumber(name, self._mean(name, value), limit, low=low)  # type: ignore[arg-type]
        imbalance = record.get("router", {}).get("moe_imbalance_max")
        if limits.router is not None and imbalance is not None and self._experts:
            yield WatchedNumber("router", self._mean("router", imbalance), limits.router * self._experts)

    def _of_waiting(self, record: Mapping[str, Any]) -> Iterator[WatchedNumber]:
        limit, seconds = self.limits.starved, record["seconds"]
        if limit is None:
            return
        total = sum(seconds.values())
        if total > 0:
            share = self._mean("trainer_starved", seconds["wait"] / total)
            if self._full("trainer_starved"):
                yield WatchedNumber("trainer_starved", share, limit)
        now, idle = record["time"], record["generator_idle_seconds"]
        then, before = self._before or (now, idle)
        self._before = (now, idle)
        if now > then and idle >= before:  # a restarted generator counts from zero again
            share = self._mean("generator_starved", (idle - before) / (now - then) / self._generators)
            if self._full("generator_starved"):
                yield WatchedNumber("generator_starved", share, limit)

    def _mean(self, name: str, value: float) -> float:
        self._recent[name].append(value)
        return fmean(self._recent[name])

    def _full(self, name: str) -> bool:
        """True if the window is full: the first steps of a run always wait."""
        return len(self._recent[name]) == self.limits.window
