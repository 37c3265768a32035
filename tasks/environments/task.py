"""Single-turn environments of Prime Intellect's `verifiers` as tasks: https://github.com/PrimeIntellect-ai/verifiers.

The package and the environments may need other versions of what the lab needs, so they live in a virtual environment of
their own; everything of theirs runs in worker processes of that environment's interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.bounded.pool import Answer, BoundedPool, Service
from tasks.errors import TaskError
from tasks.finite import Finite
from tasks.own import Asking
from tasks.rewards import PooledVerifier, verdict_of
from tasks.stream import problem_key
from tasks.thinking import THINK_OPEN
from tasks.types import Message, Prompt, Verdict

_LISTED_AT_ONCE = 500
# Reading a taskset may take it a download.
_LISTING_SECONDS = 300.0


@dataclass(frozen=True)
class VerifiersTask(Asking, Finite):
    """The tasks of one taskset, asked once each and scored by its own rewards.

    What needs more than one answer is refused when it is loaded: tools, containers, judges, simulated users. Rewards
    below 0 count as 0; they are averaged by the taskset's weights.
    """

    taskset: str = ""
    """Name of the taskset: its package or module, or the hub's `owner/name`."""

    python: str = ""
    """Interpreter of the virtual environment that has it: `/path/to/environment/bin/python`."""

    folder: str = ""
    """Folder that the taskset's module lies in, where it is not installed."""

    settings: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Fields of the taskset's configuration."""

    name: str = ""
    """Name of the task; empty is the taskset's."""

    most: int = 10_000
    """Tasks read at most."""

    held_out_size: int = 128
    """Tasks that are never trained on."""

    seed: int = 0
    """Decides the held-out split and the order."""

    chat: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.taskset or not shutil.which(self.python):
            raise TaskError(
                f"VerifiersTask has taskset = {self.taskset!r} and python = {self.python!r}: name a taskset, and the "
                "interpreter of an environment in which it is installed (uv venv; uv pip install verifiers …)"
            )
        if self.most < 1 or self.held_out_size < 1:
            raise TaskError(f"most is {self.most} and held_out_size {self.held_out_size}: give 1 or more")
        if not self.name:
            object.__setattr__(self, "name", self.taskset.rpartition("/")[2].partition("@")[0])

    def verifier(self) -> VerifiersVerifier:
        """A verifier that scores in worker processes of the other environment."""
        return VerifiersVerifier(self)

    def describe(self) -> dict[str, Any]:
        """The taskset, its settings, and how it was split."""
        split = {"held_out": self.held_out_count, "train": self.size}
        return {"taskset": self.taskset, "settings": dict(self.settings), **self._versions, **split}

    def service(self, seconds: float) -> Service:
        """Settings of a worker in the other environment."""
        payload = {"taskset": self.taskset, "settings": dict(self.settings), "most": self.most}
        return Service(
            name=f"task {self.name}",
            make="verifiers_taskset:service",
            payload=json.dumps(payload).encode(),
            seconds=seconds,
            environment=dict(os.environ),
            python=shutil.which(self.python),
            path=(str(Path(__file__).with_name("foreign")), *([os.path.abspath(self.folder)] if self.folder else [])),
        )

    @cached_property
    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        pool = BoundedPool(self.service(_LISTING_SECONDS), 1)
        try:
            rows: list[dict[str, Any]] = []
            while True:
                (answer,) = pool.answer([{"list": [len(rows), _LISTED_AT_ONCE]}])
                if answer.status != "done":
                    raise TaskError(f"tasks of {self.taskset} cannot be listed: {answer.value or answer.status}")
                rows += answer.value["rows"]
                if not answer.value["rows"]:
                    return answer.value["versions"], rows
        finally:
            pool.close()

    @property
    def _versions(self) -> dict[str, Any]:
        return self._read[0]

    def _why_empty(self) -> str:
        return "all of its tasks are held out"

    def _prompts(self) -> dict[str, Prompt]:
        prompts: dict[str, Prompt] = {}
        for index, row in enumerate(self._read[1]):
            prompt = self._asked(index, row)
            prompts.setdefault(prompt.id, prompt)
        return prompts

    def _asked(self, index: int, row: dict[str, Any]) -> Prompt:
        messages: list[Message] = [{"role": one["role"], "content": one["content"]} for one in row["messages"]]
        text = "\n\n".join(message["content"] for message in messages)
        opening = f"\n{THINK_OPEN}\n" if self.thinking else ""
        begun: list[Message] = [{"role": "assistant", "content": opening.lstrip()}] if opening else []
        chat = (*messages, *begun) if self.chat else ()
        key = problem_key(json.dumps(row["messages"]))
        return Prompt(
            f"{self.name}/{key}", self.name, f"{text}\n{opening}", {"index": index, "key": row["key"]}, {}, chat
        )


class VerifiersVerifier(PooledVerifier):
    """Scores of a taskset for completions, by processes of its own environment; see `tasks.task.Verifier`."""

    def __init__(self, task: VerifiersTask) -> None:
        """Prepare; nothing starts before the first completion."""
        super().__init__(task.has_thinking, task.workers)
        self._task = task

    def _service(self) -> Service:
        return self._task.service(self._task.reward_seconds)

    def _request(self, prompt: Prompt, answer: str) -> dict[str, Any]:
        return {"score": prompt.gold, "answer": answer}

    def _verdict(self, answer: Answer) -> Verdict:
        weights = self._task.weights
        if answer.status == "done":
            weights = weights or answer.value["weights"]
            answer = replace(answer, value=answer.value["scores"])
        return verdict_of(answer, weights, self._task.pass_at, "the taskset's reward")
