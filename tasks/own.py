"""Tasks of one's own: problems from a generator or a file, rewarded by a method or a function (docs/tasks.md)."""

from __future__ import annotations

import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.data.rows import Row, RowError, numbered_rows
from tasks.errors import TaskError
from tasks.finite import Finite
from tasks.lengths import OwnLengths
from tasks.procedural import Procedural
from tasks.rewards import Reward, RewardVerifier
from tasks.stream import problem_key
from tasks.task import Verifier
from tasks.thinking import THINK_OPEN
from tasks.types import Message, Prompt

COLUMNS = ("prompt", "gold", "trace")
"""Contents of a file's columns: the problem, the gold that its answer is graded against, and a worked example."""


@dataclass(frozen=True)
class Asking(OwnLengths):
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
    """Limit on one reward: processor time, or ten times that if it sleeps; of an `async` one, time by the clock."""

    workers: int = 2
    """Processes of each verifier, each of which grades one completion at a time, or 16 with an `async` reward."""

    seconds_per_reward: float = 0.0
    """Processor time that a reward takes, as `scalelab task check` measures it; plans count it."""

    def __post_init__(self) -> None:
        if not 0 < self.pass_at <= 1:
            raise TaskError(f"pass_at is {self.pass_at}: give a reward in (0, 1]")
        if self.workers < 1 or self.reward_seconds <= 0:
            raise TaskError(
                f"workers is {self.workers} and reward_seconds {self.reward_seconds}: give 1 or more, and more than 0"
            )
        self.check_lengths(self.thinking)
        if self.seconds_per_reward < 0:
            raise TaskError(f"seconds_per_reward is {self.seconds_per_reward}: give 0 or more")
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
    def problem(self, rng: random.Random) -> tuple[str, Any] | tuple[str, Any, str]:
        """One problem: what is asked, and what `reward` needs to know of it (JSON-able), as `prompt.gold`.

        A third text is its worked example: the completion that fine-tuning learns.
        """

    @abstractmethod
    def reward(self, prompt: Prompt, answer: str) -> Reward | Awaitable[Reward]:
        """The reward of an answer, from 0 to 1, or named parts of it. Runs in a process of its own."""

    def draw(self, number: int) -> Prompt:
        """The problem of a generator that is seeded with a number."""
        return self._worked(number)[0]

    @property
    def has_trace(self) -> bool:
        """True if there are worked examples: `problem` gives them, or a class has a `trace` of its own."""
        return type(self).trace is not RewardTask.trace or bool(self._worked(0)[1])

    def trace(self, index: int) -> tuple[Prompt, str]:
        """Worked example number `index`, of any problem that is not held out."""
        return self._worked(self._numbered("trace", index, held_out=False)[0])

    def verifier(self) -> Verifier:
        """A verifier that runs `reward` in worker processes, with a time limit."""
        return RewardVerifier(self)

    def _worked(self, number: int) -> tuple[Prompt, str]:
        """A problem with its worked example, empty if it has none."""
        found: tuple[Any, ...] = self.problem(random.Random(number))
        texts = (found[0], *found[2:]) if isinstance(found, tuple) and len(found) in (2, 3) else ()
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TaskError(
                f"problem of task {self.name} returns {str(found)[:60]!r}: return what is asked (a text), the gold, "
                "and a worked example (a text) if there is one"
            )
        return self.asked(self.name, found[0], found[1]), "".join(found[2:])


@dataclass(frozen=True)
class FileTask(Asking, Finite):
    """Problems of a file, each a row; extend it with `reward`.

    A row without named columns is `{"prompt": text, "gold": …}`; all columns without a part in the task are in
    `prompt.meta`.
    """

    prompts: str = ""
    """The file: JSON lines (`.gz` or not), a JSON list, or Parquet."""

    columns: dict[str, str] | None = None
    """Columns of `prompt`, `gold` and `trace`, where they have other names, such as `{"prompt": "question"}`. A `trace`
    is a worked example: a completion to fine-tune on."""

    template: str = "{prompt}"
    """Text of a prompt, around the problem."""

    name: str = "own"
    """Task name, in prompt ids, weights and curves."""

    held_out_size: int = 128
    """Prompts that are never trained on; the miniatures evaluate as many."""

    seed: int = 0
    """Decides the held-out split and the order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "/" in self.name or not self.name:
            raise TaskError(f"name {self.name!r} of a task must be there and hold no slash")
        if not self.prompts:
            raise TaskError(f"task {self.name} has no prompts: give a JSON lines or Parquet file")
        if "{prompt}" not in self.template:
            raise TaskError(f"template {self.template!r} of task {self.name} has no {{prompt}} in it")
        if unknown := sorted(set(self.columns or ()) - set(COLUMNS)):
            raise TaskError(f"columns of task {self.name} name {unknown[0]!r}: name {', '.join(COLUMNS)}")
        if self.held_out_size < 1:
            raise TaskError(f"held_out_size of {self.name} is {self.held_out_size}: give 1 or more")

    @abstractmethod
    def reward(self, prompt: Prompt, answer: str) -> Reward | Awaitable[Reward]:
        """The reward of an answer, from 0 to 1, or named parts of it. Runs in a process of its own."""

    def verifier(self) -> RewardVerifier:
        """A verifier that runs the reward in worker processes, with a time limit."""
        return RewardVerifier(self)

    @property
    def has_trace(self) -> bool:
        """True if the file holds worked examples."""
        return "trace" in (self.columns or ())

    def trace(self, index: int) -> tuple[Prompt, str]:
        """Worked example number `index`, of a prompt that is trained on.

        Raises:
            TaskError: its row has none.
        """
        prompt = self.prompt(index)
        text = self._traces.get(prompt.id)
        if not text:
            raise TaskError(f"task {self.name} has no worked example of {prompt.text[:40]!r}: fill its column")
        return prompt, text

    def describe(self) -> dict[str, Any]:
        """The file with its SHA-256, and how it was split."""
        try:
            digest = hashlib.sha256(Path(self.prompts).read_bytes()).hexdigest()
        except OSError as problem:
            raise TaskError(f"prompts of task {self.name} cannot be read: {problem}") from None
        return {"file": self.prompts, "sha256": digest, "held_out": self.held_out_count, "train": self.size}

    def _why_empty(self) -> str:
        return f"all of {self.prompts} is held out"

    def _prompts(self) -> Mapping[str, Prompt]:
        return self._rows[0]

    @property
    def _traces(self) -> dict[str, str]:
        return self._rows[1]

    @cached_property
    def _rows(self) -> tuple[dict[str, Prompt], dict[str, str]]:
        """The prompts and the worked examples, by the prompts' ids; of copies the first."""
        prompts: dict[str, Prompt] = {}
        traces: dict[str, str] = {}
        if not Path(self.prompts).is_file():
            raise TaskError(f"prompts of task {self.name} cannot be read: there is no file {self.prompts}")
        for number, row in numbered_rows(Path(self.prompts)):
            try:
                prompt, trace = self._read(row)
            except RowError as problem:
                raise TaskError(f"{self.prompts}, line {number} {problem}") from None
            if prompt.id not in prompts:
                prompts[prompt.id], traces[prompt.id] = prompt, trace
        if not prompts:
            raise TaskError(f"{self.prompts} of task {self.name} is empty: write a row for each prompt")
        return prompts, traces

    def _read(self, row: Row | RowError) -> tuple[Prompt, str]:
        if isinstance(row, RowError):
            raise row
        columns = {name: (self.columns or {}).get(name, name) for name in COLUMNS}
        named = ("prompt", *(self.columns or ()))
        if missing := [columns[name] for name in named if columns[name] not in row]:
            has = ", ".join(map(str, row))[:80]
            raise RowError(f"has no column {missing[0]!r} (it has {has}): say which one by columns = {{'prompt': …}}")
        text, trace = row[columns["prompt"]], row.get(columns["trace"]) if self.has_trace else ""
        if not isinstance(text, str) or not text.strip():
            raise RowError(f"asks nothing: its {columns['prompt']} is {text!r:.40}, where a text is expected")
        if not isinstance(trace or "", str):
            raise RowError(f"has a {type(trace).__name__} as {columns['trace']}, where a text is expected")
        gold = row.get(columns["gold"])
        meta = {name: value for name, value in row.items() if name not in columns.values()}
        try:
            json.dumps([gold, meta], allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise RowError(f"holds what JSON cannot: {str(problem)[:80]}; give texts, finite numbers, lists") from None
        return self.asked(self.name, self.template.replace("{prompt}", text), gold, meta), trace or ""


@dataclass(frozen=True)
class FunctionTask(FileTask):
    """Problems of a file, rewarded by a function."""

    function: Callable[[Prompt, str], Reward | Awaitable[Reward]] | None = None
    """Function of a module, `async` or not: called with the prompt (`tasks.types.Prompt`) and the answer (text), it
    returns the reward."""

    def __post_init__(self) -> None:
        if self.function is None:
            raise TaskError(f"task {self.name} has no function: give one as @my_module.my_function")
        super().__post_init__()

    def reward(self, prompt: Prompt, answer: str) -> Reward | Awaitable[Reward]:
        """Call the function and return its reward."""
        assert self.function is not None
        return self.function(prompt, answer)
