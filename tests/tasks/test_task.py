"""The task protocol: built-in tasks follow it, and a class that does not is refused with what it lacks."""

from dataclasses import dataclass
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.code.miniature import CodeMiniature
from tasks.data.datasets import CodeDataset, MathDataset
from tasks.errors import TaskError
from tasks.math.miniature import MathMiniature
from tasks.symbolic_gsm import SymbolicGSM
from tasks.task import require_task
from tasks.text import clean
from tasks.types import Prompt, Verdict

TASKS = (MathMiniature, CodeMiniature, SymbolicGSM, MathDataset, CodeDataset)
HOSTILE = st.text(st.characters(codec=None, categories=None))


@pytest.mark.parametrize("task", TASKS)
def test_built_in_tasks_follow_the_protocol(task: type[Any]) -> None:
    require_task(task)


def test_thinking_is_asked_by_the_protocol() -> None:
    assert MathMiniature().has_thinking
    assert not SymbolicGSM().has_thinking
    assert not MathDataset("gsm8k", thinking=False).has_thinking


@dataclass(frozen=True)
class Bare:
    name: str = "bare"
    size: int = 3
    held_out_size: int | None = None

    def prompt(self, index: int) -> Prompt:
        return Prompt(f"bare/{index}", self.name, "", None)


class Narrow(Bare):
    has_thinking = False

    def held_out(self) -> list[Prompt]:
        return []

    def verifier(self) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}


class Whole(Narrow):
    def held_out(self, n: int) -> list[Prompt]:  # type: ignore[override]  # Narrow's takes too little
        return [self.prompt(-1)] * n


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Bare, "lacks has_thinking, held_out, verifier, describe"),
        (Narrow(), "Narrow.held_out is called with 1"),
        (7, "int"),
    ],
)
def test_what_a_task_lacks_is_named(candidate: type[Bare] | Narrow | int, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        require_task(candidate)


def test_a_class_that_extends_nothing_of_ours_is_a_task() -> None:
    require_task(Whole)
    require_task(Whole())


@given(HOSTILE)
def test_cleaned_text_can_be_encoded_and_other_text_stays(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) == len(text)
    cleaned.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert cleaned == text


@given(HOSTILE, HOSTILE)
def test_every_prompt_and_verdict_can_be_written_to_parquet(text: str, detail: str) -> None:
    prompt = Prompt(text, "task", text, None, chat=({"role": "user", "content": text},))
    verdict = Verdict("failed", 0.0, detail=detail)
    row = {"id": prompt.id, "prompt": prompt.text, "detail": verdict.detail, "asked": prompt.chat[0]["content"]}
    assert pyarrow.Table.from_pylist([row]).num_rows == 1


@pytest.mark.parametrize("reward", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_reward_lies_between_zero_and_one(reward: float) -> None:
    with pytest.raises(TaskError, match="from 0 to 1"):
        Verdict("failed", reward)
    with pytest.raises(TaskError, match="from 0 to 1"):
        Verdict("failed", 0.0, parts={"form": reward})
