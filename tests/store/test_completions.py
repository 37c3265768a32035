"""Completions are the same rows in parts and by hand, and a file has its name once it is whole."""

from __future__ import annotations

import gc
import json
import tracemalloc
import weakref
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from moe.durable import PARTIAL
from scalelab.recipe.types import HeldRollout, Rollout
from scalelab.shards import BRIEF_SECONDS
from scalelab.store import completions
from scalelab.store.completions import CompletionsFile, completions_table
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import ROLLOUTS

TEXTS = st.text(max_size=5) | st.just("lone \ud800 surrogate")


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    length = draw(st.integers(0, 6))
    cut = draw(st.integers(0, length))
    spans = tuple(span for span in ((3, 0, cut), (4, cut, length)) if span[1] < span[2])
    floats = st.floats(-30, 0, width=32)
    return Rollout(
        prompt_id=draw(TEXTS),
        task=draw(st.sampled_from(["math", "code"])),
        prompt_ids=np.zeros(draw(st.integers(1, 3)), np.int32),
        completion_ids=np.array(draw(st.lists(st.integers(0, 2**17), min_size=length, max_size=length)), np.int32),
        logprobs_T=np.array(draw(st.lists(floats, min_size=length, max_size=length)), np.float32),
        forced_T=np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool),
        spans=spans,
        reward=draw(st.sampled_from([0.0, 0.5, 1.0])),
        outcome=draw(st.sampled_from(["passed", "failed", "error"])),
        truncated=draw(st.booleans()),
        prompt=draw(TEXTS),
        text=draw(TEXTS),
        detail=draw(TEXTS),
        gold=draw(TEXTS),
        parts=draw(st.dictionaries(st.sampled_from(["form", "value"]), st.floats(0, 1))),
    )


def by_hand(one: Rollout) -> dict[str, Any]:
    """The row of a completion, value by value."""

    def told(text: str) -> str:
        return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)

    return {
        "task": one.task,
        "prompt_id": told(one.prompt_id),
        "prompt": told(one.prompt),
        "completion": told(one.text),
        "outcome": one.outcome,
        "reward": one.reward,
        "detail": told(one.detail),
        "gold": told(one.gold),
        "parts": json.dumps(one.parts) if one.parts else "",
        "tokens": len(one.completion_ids),
        "truncated": one.truncated,
        "interrupted": one.interrupted,
        "versions": [version for version, _, _ in one.spans],
        "token_ids": one.completion_ids.tolist(),
        "logprobs": [pytest.approx(value, abs=5.1e-5) for value in one.logprobs_T.tolist()],
        "forced": one.forced_T.tolist(),
        "spans": [list(span) for span in one.spans],
    }


@given(st.lists(rollouts(), max_size=6), st.integers(1, 8))
def test_rows_are_those_of_the_completions_in_however_many_parts(
    tmp_path_factory: pytest.TempPathFactory, made: list[Rollout], part: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "step_000001.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "PART_TOKENS", part)
        file = CompletionsFile(path)
        for one in made:
            file.add([one])
            assert not path.exists()
        file.finish().result(60)
        file.drop()
    assert parquet.read_table(path).to_pylist() == [by_hand(one) for one in made]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    kept = parquet.ParquetFile(path).metadata
    parts = sum(kept.row_group(group).num_rows for group in range(kept.num_row_groups))
    assert parts == len(made)


@given(st.lists(rollouts(), min_size=1, max_size=4))
def test_what_was_trained_on_has_the_trainers_log_probabilities_of_the_completion_alone(made: list[Rollout]) -> None:
    trainer = [np.arange(len(one.prompt_ids) + one.tokens, dtype=np.float32) for one in made]
    for row, one in zip(completions_table(made, trainer).to_pylist(), made, strict=True):
        assert row["trainer_logprobs"] == [len(one.prompt_ids) + number for number in range(one.tokens)]


def test_completions_that_are_dropped_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "PART_TOKENS", 1)
    [one] = [rollout(4)]
    file = CompletionsFile(tmp_path / "x.parquet")
    file.add([one])
    file.drop()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "PART_TOKENS", 1)
    file = CompletionsFile(tmp_path / "no" / ("x" + PARTIAL))
    file.add([rollout(2)])
    with pytest.raises(FileNotFoundError):
        file.finish().result(60)
    file.drop()
    assert list(tmp_path.iterdir()) == []


def rollout(tokens: int) -> Rollout:
    ids = np.arange(tokens, dtype=np.int32)
    return Rollout("p", "math", ids[:1], ids, -ids.astype(np.float32), ids < 0, ((0, 0, tokens),), 1.0, "passed")


def test_a_token_of_an_evaluation_costs_the_driver_no_python_object(tmp_path: Path) -> None:
    """A part is let go of once it is written; lists of numbers would take 167 bytes a token."""
    length = completions.PART_TOKENS // 4
    one = Rollout(
        prompt_id="p",
        task="math",
        prompt_ids=np.zeros(1, np.int32),
        completion_ids=np.arange(length, dtype=np.int32),
        logprobs_T=np.zeros(length, np.float32),
        forced_T=np.zeros(length, bool),
        spans=((0, 0, length),),
        reward=1.0,
        outcome="passed",
    )
    file = CompletionsFile(tmp_path / "step_000000.parquet")
    tracemalloc.start()
    try:
        for _ in range(8):
            file.add([one] * 4)
            assert file._written is not None
            file._written.result(60)  # a run's completions come more slowly than they are written
        file.finish().result(60)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        file.drop()
    assert most < 60 * completions.PART_TOKENS, "bytes at once, for eight parts"


def held(one: Rollout, content: Any = None) -> HeldRollout:
    """A completion whose content is lost: nobody knows this key."""
    counts = {"tokens": one.tokens, "sampled": one.sampled, "finite": one.finite}
    kept = {each.name: getattr(one, each.name) for each in fields(HeldRollout) if hasattr(one, each.name)}
    return HeldRollout(**kept | counts, content=content)


PLAIN = Rollout(
    prompt_id="math/1",
    task="math",
    prompt_ids=np.zeros(2, np.int32),
    completion_ids=np.arange(3, dtype=np.int32),
    logprobs_T=np.zeros(3, np.float32),
    forced_T=np.zeros(3, bool),
    spans=((0, 0, 3),),
    reward=1.0,
    outcome="passed",
)


def test_log_probs_of_the_trainer_stand_beside_tokens_alone() -> None:
    """One that is lost to the driver, and one that was lost to the trainer, among others."""
    trainer = [np.arange(5, dtype=np.float32), np.arange(5, dtype=np.float32), np.empty(0, np.float32)]
    table = completions_table([PLAIN, held(PLAIN), PLAIN], trainer).to_pylist()
    assert [row["trainer_logprobs"] for row in table] == [[2.0, 3.0, 4.0], [], []]
    assert [len(row["token_ids"]) for row in table] == [3, 0, 3]
    assert [row["tokens"] for row in table] == [3, 3, 3]


def test_a_step_that_is_kept_waits_briefly_for_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step waits meanwhile."""
    waited: list[float] = []

    def whole(rollouts: Any, seconds: float) -> Any:
        waited.append(seconds)
        return rollouts

    monkeypatch.setattr(completions, "with_contents", whole)
    folder: Any = SimpleNamespace(path=tmp_path, settle=lambda *_: None)
    (tmp_path / ROLLOUTS).mkdir()
    RunFolder.keep_trained(folder, 1, [PLAIN], [np.zeros(5, np.float32)])
    assert waited == [BRIEF_SECONDS]


def test_a_whole_file_lets_its_completions_go(tmp_path: Path) -> None:
    """They may keep shards alive, and an evaluation's file is there until the next."""
    file = CompletionsFile(tmp_path / "step_000001.parquet", shown=lambda rows: None)
    one = replace(PLAIN)
    there = weakref.ref(one)
    file.add([one])
    file.finish().result(60)
    del one
    gc.collect()
    assert there() is None
    file.drop()
