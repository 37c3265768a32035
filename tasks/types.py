"""The messages that tasks, verifiers and their callers exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tasks.errors import TaskError
from tasks.text import clean

Outcome = Literal["passed", "failed", "timeout", "memory", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Message = Mapping[str, str]
"""One message of a chat: `role` (system, user, assistant) and `content`."""


@dataclass(frozen=True)
class Prompt:
    """One problem as a model is asked it; lone surrogates in what the model reads are replaced.

    Attributes:
        id: unique over all tasks and stable over runs; history and splits go by it.
        task: name of the task that it belongs to.
        text: what the model continues; the completion begins right after it. Of a chat, the same for people to read.
        gold: what the verifier grades against (JSON-able): an answer, or a set of tests.
        meta: anything else worth recording with the rollout (JSON-able).
        chat: messages that the model's own chat template puts into words, in place of `text`; if the last is the
            assistant's, the completion goes on from it. Empty for a plain text.
    """

    id: str
    task: str
    text: str
    gold: Any
    meta: Mapping[str, Any] = field(default_factory=dict)
    chat: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        for name in ("id", "text"):
            object.__setattr__(self, name, clean(getattr(self, name)))
        chat = tuple({key: clean(part) for key, part in message.items()} for message in self.chat)
        object.__setattr__(self, "chat", chat)


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of one completion.

    Attributes:
        outcome: `passed` or `failed` judge the completion; `timeout` and `memory` say that running or
            grading it took more than it was given, so it failed and is trained on with reward 0; `error` is the
            verifier's own trouble, says nothing about the completion, and trains nothing.
        reward: from 0 (wrong) to 1 (right); a verifier without partial credit gives 1 if passed, else 0.
        seconds: wall time that grading took.
        detail: one line for people, never parsed; lone surrogates are replaced.
        parts: named parts that the reward is made of, each from 0 to 1; empty if it has none.
    """

    outcome: Outcome
    reward: float
    seconds: float = 0.0
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise TaskError(f"unknown outcome {self.outcome!r}: use one of {', '.join(OUTCOMES)}")
        for name, value in {"reward": self.reward, **self.parts}.items():
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise TaskError(f"{name} of a verdict is {value}: give a number from 0 to 1")
        object.__setattr__(self, "detail", clean(self.detail))


def verdict(outcome: Outcome, seconds: float = 0.0, detail: str = "") -> Verdict:
    """Make a verdict without partial credit: the reward is 1 if the outcome is `passed`, else 0."""
    return Verdict(outcome, float(outcome == "passed"), seconds, detail)
