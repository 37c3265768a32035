"""Trainer and graders with given durations on a simulated clock; the virtual world adds the real work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic

from scalelab.run.ports import CompletionT, PromptT, ResultT, StepT, VerdictT, WeightsT
from scalelab.run.settings import Rates
from scalelab.virtual.clock import sleep_until, ticks, virtual_loop


class SimulatedTrainer(Generic[StepT, ResultT, WeightsT]):
    """The trainer's port on a simulated clock: calls take given durations, one after the other.

    Args:
        rates: how long things take.
        units: copies of the model, which share a step's tokens evenly.
        tokens: counts what a step trains on.
        work: does what a step does, and returns its result; called when the step begins.
        weights: copies the weights of a version; called when a publication begins.
    """

    def __init__(
        self,
        rates: Rates,
        units: int,
        tokens: Callable[[StepT], float],
        work: Callable[[StepT], ResultT],
        weights: Callable[[int], WeightsT],
    ) -> None:
        self.rates, self.units = rates, units
        self._tokens, self._work, self._weights = tokens, work, weights
        self._free_at = 0

    @property
    def busy(self) -> bool:
        """True while a step or a publication is under way."""
        return self._free_at > virtual_loop().now

    @property
    def busy_before(self) -> bool:
        """True if a step or a publication was under way in the time that has just passed."""
        return self._free_at >= virtual_loop().now

    def step_ticks(self, tokens: float) -> int:
        """Duration of a step on so many tokens, in ticks."""
        return ticks(self.rates.train_step_seconds + tokens * self.rates.train_token_seconds / self.units)

    async def step(self, step: StepT) -> ResultT:
        """Take an optimiser step."""
        end = self._reserve(self.step_ticks(self._tokens(step)))
        result = self._work(step)
        await sleep_until(end, "an optimiser step")
        return result

    def publish(self, version: int) -> Awaitable[WeightsT]:
        """Lay the weights out for the engines; the next step waits for it."""
        end, weights = self._reserve(ticks(self.rates.export_seconds)), self._weights(version)
        return self._published(end, weights)

    async def _published(self, end: int, weights: WeightsT) -> WeightsT:
        await sleep_until(end, "weights to be laid out")
        return weights

    def _reserve(self, duration: int) -> int:
        self._free_at = max(self._free_at, virtual_loop().now) + duration
        return self._free_at

    def forget(self) -> None:
        """Drop calls under way."""
        self._free_at = 0


class SimulatedGraders(Generic[PromptT, CompletionT, VerdictT]):
    """The graders' port on a simulated clock: verdicts come a fixed time after a group's last token.

    Args:
        rates: `verify_seconds`, and `host_seconds` per completion on a host that grades one after the other.
        start: begins to grade in real time; what it returns gives the verdicts when they are due.
        driver_seconds: per completion in the driver, which handles one after the other before it is graded.
    """

    def __init__(
        self,
        rates: Rates,
        start: Callable[[PromptT, Sequence[CompletionT]], Callable[[], list[VerdictT]]],
        driver_seconds: float = 0.0,
    ) -> None:
        self._start = start
        self._verify, self._host = ticks(rates.verify_seconds), ticks(rates.host_seconds)
        self._driver = ticks(driver_seconds)
        self._host_free = self._driver_free = 0
        self.outstanding = 0

    @property
    def room(self) -> int:
        """Unlimited room: graders never make anyone wait."""
        return 1

    @property
    def counts(self) -> Mapping[str, int]:
        """Zeros: graders are never lost."""
        return {"restarts": 0, "retried": 0, "errors": 0}

    @property
    def busy(self) -> bool:
        """True if the host has work."""
        return self._host_free > virtual_loop().now

    def forget(self) -> None:
        """Drop grading under way."""
        self._host_free = self._driver_free = 0

    async def grade(self, prompt: PromptT, completions: Sequence[CompletionT]) -> list[VerdictT]:
        """Grade completions of one prompt."""
        verdicts = self._start(prompt, completions)
        due = virtual_loop().now
        if self._driver:
            self._driver_free = due = max(due, self._driver_free) + self._driver * len(completions)
        if self._host:
            self._host_free = due = max(due, self._host_free) + self._host * len(completions)
        self.outstanding += len(completions)
        try:
            if due + self._verify > virtual_loop().now:
                await sleep_until(due + self._verify, "verdicts")
        finally:
            self.outstanding -= len(completions)
        return verdicts()

    async def serve(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()
