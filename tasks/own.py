"""Tasks of one's own: a class with problems and a reward, or a file of prompts and a function; see docs/tasks.md."""

from __future__ import annotations

import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import TaskError
from tasks.finite import Finite
from tasks.procedural import Procedural
from tasks.rewards import Reward, RewardVerifier
from tasks.stream import problem_key
from tasks.task import Verifier
from tasks.thinking import THINK_OPEN
from tasks.types import Message, Prompt


@dataclass(frozen=True)
class Asking:
    """Settings of a task's prompts and rewards."""

    thinking: bool = False
    """Completions begin inside `<think>`, and only what follows `</think>` is graded."""

    chat: bool = False
    """Ask as a user's message in the model's own chat template instead of as plain text."""

    system: str = ""
    """System message of the chat; empty is none."""

    pass_at: float = 1.0
    """The reward from which a completion counts as passed, in (0, 1]."""

    weights: dict[str, float] | None = None
    """Weight of each part of the reward; None gives all the same."""

    reward_seconds: float = 5.0
    """Processor time of one reward; if it sleeps, ten times that."""

    workers: int = 2
    """Completions graded at the same time, by each verifier."""

    def __post_init__(self) -> None:
        if not 0 < self.pass_at <= 1:
            raise TaskError(f"pass_at is {self.pass_at}: give a reward in (0, 1]")
        if self.workers < 1 or self.reward_seconds <= 0:
            raise TaskError(
                f"workers is {self.workers} and reward_seconds {self.reward_seconds}: give 1 or more, and more than 0"
            )
        if self.weights is not None and not all(weight > 0 for weight in self.weights.values()):
            raise TaskError(f"weights are {self.weights}: give positive numbers, or leave a part out of the reward")

    @property
    def has_thinking(self) -> bool:
        """True if completions begin inside `<think>`."""
        return self.thinking

    def asked(self, task: str, text: str, gold: Any, meta: dict[str, Any] | None = None) -> Prompt:
        """A prompt that asks `text`; its id is decided by the text, so a copy has the same."""
        opening = f"\n{THINK_OPEN}\n" if self.thinking else ""
        chat: tuple[Message, ...] = ()
        if self.chat:
            system = ({"role": "system", "content": self.system},) if self.system else ()
            begun = ({"role": "assistant", "content": opening.lstrip()},) if opening else ()
            chat = (*system, {"role": "user", "content": text.strip()}, *begun)
        return Prompt(f"{task}/{problem_key(text)}", task, text + opening, gold, meta or {}, chat)


@dataclass(frozen=True)
class RewardTask(Asking, Procedural):
    """A task whose problems are drawn and whose reward is a method; extend it with `problem` and `reward`.

    Attributes:
        size: number of different training prompts, permuted anew every epoch.
        held_out_share: share of all problems, by a hash of their text, that is never trained on.
    """

    def __post_init__(self) -> None:
        Asking.__post_init__(self)
        Procedural.__post_init__(self)

    @abstractmethod
    def problem(self, rng: random.Random) -> tuple[str, Any]:
        """One problem: what is asked, and what `reward` needs to know of it (JSON-able), as `prompt.gold`."""

    @abstractmethod
    def reward(self, prompt: Prompt, answer: str) -> Reward:
        """The reward of an answer, from 0 to 1, or named parts of it. Runs in a process of its own."""

    def draw(self, number: int) -> Prompt:
        """The problem of a generator that is seeded with a number."""
        text, gold = self.problem(random.Random(number))
        return self.asked(self.name, text, gold)

    def verifier(self) -> Verifier:
        """A verifier that runs `reward` in worker processes, with a time limit."""
        return RewardVerifier(self)


@dataclass(frozen=True)
class FunctionTask(Asking, Finite):
    """Prompts of a JSON-lines file, rewarded by a function.

    A line is `{"prompt": text, "gold": …}`; other keys become `prompt.meta`.
    """

    prompts: str = ""
    """The file."""

    function: Callable[[Prompt, str], Reward] | None = None
    """Function of a module; called with the prompt (`tasks.types.Prompt`) and the answer (text), returns the reward."""

    name: str = "own"
    """Task name, in prompt ids, weights and curves."""

    held_out_size: int = 100
    """Prompts that are never trained on."""

    seed: int = 0
    """Decides the held-out split and the order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "/" in self.name or not self.name:
            raise TaskError(f"name {self.name!r} of a task must be there and hold no slash")
        if not self.prompts or self.function is None:
            raise TaskError(
                f"task {self.name} has prompts = {self.prompts!r} and function = {self.function}: "
                "give a JSON-lines file, and a function as @my_module.my_function"
            )
        if self.held_out_size < 1:
            raise TaskError(f"held_out_size of {self.name} is {self.held_out_size}: give 1 or more")

    def reward(self, prompt: Prompt, answer: str) -> Reward:
        """Call the function and return its reward."""
        assert self.function is not None
        return self.function(prompt, answer)

    def verifier(self) -> RewardVerifier:
        """A verifier that runs the function in worker processes, with a time limit."""
        return RewardVerifier(self)

    def describe(self) -> dict[str, Any]:
        """The file with its SHA-256, and how it was split."""
        digest = hashlib.sha256(self._content).hexdigest()
        return {"file": self.prompts, "sha256": digest, "held_out": self.held_out_count, "train": self.size}

    @property
    def _content(self) -> bytes:
        try:
            return Path(self.prompts).read_bytes()
        except OSError as problem:
            raise TaskError(f"prompts of task {self.name} cannot be read: {problem}") from None

    def _why_empty(self) -> str:
        return f"all of {self.prompts} is held out"

    def _prompts(self) -> dict[str, Prompt]:
        prompts: dict[str, Prompt] = {}
        for number, line in enumerate(self._content.split(b"\n"), 1):
            if line.strip():
                prompt = self._read(line, f"{self.prompts}, line {number}")
                prompts.setdefault(prompt.id, prompt)
        return prompts

    def _read(self, line: bytes, where: str) -> Prompt:
        try:
            row = json.loads(line)
            text = row.pop("prompt")
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            raise TaskError(f'{where} is no prompt: write {{"prompt": text, "gold": …}}') from None
        return self.asked(self.name, text, row.pop("gold", None), row)
