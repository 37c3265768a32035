"""Grade with a reward function of one's own, in a process that ends if the function takes too long."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tasks.bounded.pool import Answer, BoundedPool, Service
from tasks.bounded.worker import reason
from tasks.errors import TaskError
from tasks.thinking import answer_part
from tasks.types import Outcome, Prompt, Verdict, verdict

Reward = float | Mapping[str, float]
"""A reward from 0 to 1, or named parts of one, each from 0 to 1."""


class Rewarding(Protocol):
    """Requirements on a task that `RewardVerifier` grades: plain picklable configuration."""

    @property
    def name(self) -> str:
        """The task's name."""
        ...

    @property
    def has_thinking(self) -> bool:
        """True if only the text after `</think>` is graded."""
        ...

    @property
    def weights(self) -> Mapping[str, float] | None:
        """Weight of each part; None gives all the same."""
        ...

    @property
    def pass_at(self) -> float:
        """The reward from which a completion counts as passed."""
        ...

    @property
    def reward_seconds(self) -> float:
        """Processor time of one reward; if it sleeps, ten times that."""
        ...

    @property
    def workers(self) -> int:
        """Completions graded at the same time."""
        ...

    def reward(self, prompt: Prompt, answer: str) -> Reward | Awaitable[Reward]:
        """The reward of an answer; `async` where it waits for a server."""
        ...


class PooledVerifier(ABC):
    """A verifier that asks worker processes about every completion with an answer; see `tasks.task.Verifier`.

    Args:
        has_thinking: whether only the text after `</think>` is an answer.
        workers: completions graded at the same time.
    """

    def __init__(self, has_thinking: bool, workers: int) -> None:
        """Prepare a verifier; its processes start with the first completion."""
        self._has_thinking, self._count = has_thinking, workers
        self._lock = threading.Lock()
        self._pool: BoundedPool | None = None

    @abstractmethod
    def _service(self) -> Service:
        """Settings of a worker."""

    @abstractmethod
    def _request(self, prompt: Prompt, answer: str) -> dict[str, Any]:
        """The question for a worker."""

    @abstractmethod
    def _verdict(self, answer: Answer) -> Verdict:
        """The verdict by a worker's answer."""

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """One verdict per (prompt, completion), in order.

        Raises:
            TaskError: the workers cannot be started: the task's module fails to import there, say.
        """
        answers = [answer_part(text, whole_if_unclosed=not self._has_thinking) for _, text in items]
        requests = [self._request(prompt, answer) for (prompt, _), answer in zip(items, answers) if answer is not None]
        given = iter(self._answers(requests) if requests else [])
        unanswered = verdict("failed", detail="no answer: the thinking does not end")
        return [unanswered if answer is None else self._verdict(next(given)) for answer in answers]

    def _answers(self, requests: list[dict[str, Any]]) -> list[Answer]:
        """An answer to each question."""
        return self._workers().answer(requests)

    def close(self) -> None:
        """End the worker processes."""
        with self._lock:
            if self._pool:
                self._pool.close()

    def _workers(self) -> BoundedPool:
        with self._lock:
            if self._pool is None:
                self._pool = BoundedPool(self._service(), self._count)
            return self._pool


class RewardVerifier(PooledVerifier):
    """Verdicts by a task's reward function, which runs in worker processes.

    A function that raises, returns no reward, or waits too long for a server makes an `error`, which says nothing about
    the completion and trains nothing. One that takes too long to compute makes a `timeout`: the completion failed.
    """

    def __init__(self, task: Rewarding) -> None:
        """Prepare a verifier; its processes start with the first completion.

        Args:
            task: configuration; its module must be importable.
        """
        super().__init__(task.has_thinking, task.workers)
        self._task = task

    def _service(self) -> Service:
        return Service(
            name=f"task {self._task.name}",
            make=f"{__name__}:service",
            payload=pickle.dumps(self._task),
            seconds=self._task.reward_seconds,
            environment=dict(os.environ),
        )

    def _request(self, prompt: Prompt, answer: str) -> dict[str, Any]:
        return {"prompt": asdict(prompt), "answer": answer}

    def _answers(self, requests: list[dict[str, Any]]) -> list[Answer]:
        if not is_async(self._task):
            return super()._answers(requests)
        batches = [requests[first : first + AT_ONCE] for first in range(0, len(requests), AT_ONCE)]
        found: list[Answer] = []
        for batch, answer in zip(batches, self._workers().answer([{"batch": one} for one in batches]), strict=True):
            each = answer.seconds / len(batch)
            if answer.status == "done":
                found += [Answer(one["status"], one["value"], each) for one in answer.value]
            else:
                found += [answer] * len(batch)
        return found

    def _verdict(self, answer: Answer) -> Verdict:
        return verdict_of(answer, self._task.weights, self._task.pass_at, "the reward function")


def verdict_of(answer: Answer, weights: Mapping[str, float] | None, pass_at: float, what: str) -> Verdict:
    """Turn a worker's answer, a reward, into a verdict.

    Args:
        answer: its value is a number, or parts by name.
        weights: weight of each part; None gives all the same.
        pass_at: the reward from which a completion counts as passed.
        what: what gave the reward, for messages.
    """
    match answer.status:
        case "done":
            try:
                reward, parts = weighted(answer.value, weights)
            except TaskError as problem:
                return verdict("error", answer.seconds, str(problem))
            outcome: Outcome = "passed" if reward >= pass_at else "failed"
            detail = ", ".join(f"{name} {value:.3g}" for name, value in parts.items())
            return Verdict(outcome, reward, answer.seconds, detail, parts)
        case "raised":
            return verdict("error", answer.seconds, f"{what} raised {answer.value}")
        case "timeout":
            return verdict("timeout", answer.seconds, f"{what} took too long")
        case "memory":
            return verdict("memory", answer.seconds, f"{what} took too much memory")
    return verdict("error", answer.seconds, f"the process of {what} died twice ({answer.value})")


def weighted(reward: Any, weights: Mapping[str, float] | None) -> tuple[float, dict[str, float]]:
    """The reward and its parts: Σ wᵢ·rᵢ / Σ wᵢ over parts rᵢ in [0, 1] with weights wᵢ > 0.

    Raises:
        TaskError: not a reward, or parts that the weights do not fit.
    """
    parts = reward if isinstance(reward, Mapping) else {"": reward}
    if not parts:
        raise TaskError("the reward function returned no parts: give one at least, or a number")
    for name, value in parts.items():
        if not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value <= 1):
            what = f"part {name}" if name else "reward"
            raise TaskError(f"the reward function returned {value!r:.60} as {what}: give a number from 0 to 1")
    if not isinstance(reward, Mapping):
        return float(reward), {}
    if weights is not None and set(weights) != set(parts):
        raise TaskError(f"weights are for {sorted(weights)}, the reward has parts {sorted(parts)}: name the same")
    weight = dict.fromkeys(parts, 1.0) if weights is None else weights
    total = sum(weight.values())
    return sum(weight[name] * value for name, value in parts.items()) / total, {k: float(v) for k, v in parts.items()}


AT_ONCE = 16
"""Completions whose `async` rewards a worker waits for at the same time."""


def is_async(task: Rewarding) -> bool:
    """True if a task's reward is a coroutine."""
    return inspect.iscoroutinefunction(getattr(task, "function", None) or task.reward)


def service(payload: bytes) -> Callable[[Any], Any]:
    """Service of a worker of `tasks.bounded`: (prompt, answer) → the task's reward, or a batch of them at once."""
    task: Rewarding = pickle.loads(payload)

    def answer(request: Any) -> Any:
        if "batch" in request:
            import asyncio  # as here and below: it takes a tenth of a command's start

            return asyncio.run(_together(task, request["batch"]))
        return plain_reward(task.reward(Prompt(**request["prompt"]), request["answer"]))

    return answer


async def _together(task: Rewarding, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Wait for the rewards of several completions, for each no longer than the task says."""
    import asyncio

    async def one(request: dict[str, Any]) -> dict[str, Any]:
        reward: Any = task.reward(Prompt(**request["prompt"]), request["answer"])
        try:
            async with asyncio.timeout(task.reward_seconds) as limit:
                return {"status": "done", "value": plain_reward(await reward)}
        except Exception as error:
            if limit.expired():
                return {"status": "raised", "value": f"TimeoutError: no reward within {task.reward_seconds:g} s"}
            return {"status": "raised", "value": reason(error)}

    return await asyncio.gather(*map(one, requests))


def plain_reward(reward: Any) -> Any:
    """A reward, or its parts, as JSON has it."""
    if isinstance(reward, Mapping):
        return {str(name): _plain(value) for name, value in reward.items()}
    return _plain(reward)


def _plain(value: Any) -> Any:
    """A number as JSON has it, NumPy's and torch's and truth values included."""
    return float(value) if isinstance(value, bool | int | float) or hasattr(value, "__float__") else repr(value)[:60]
