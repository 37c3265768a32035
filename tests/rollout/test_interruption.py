"""The interruption forces exactly the tokens it says it forced, wherever vLLM moves a sequence in its batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import validate_logits_processors_parameters as validate_v1
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator as build_v2

from scalelab.rollout.interruption import POSITION, ForcePhraseV1, ForcePhraseV2, Phrases, forced_mask, processor_config
from tests.helpers.automata import by_ids

pytestmark = pytest.mark.slow

VOCAB = 8
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)
end_ids = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
phrases = st.builds(
    Phrases, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple), end_ids.map(by_ids)
)


def occurs(token_ids: list[int], end: tuple[int, ...]) -> bool:
    return any(tuple(token_ids[at : at + len(end)]) == end for at in range(len(token_ids) - len(end) + 1))


@given(tokens, st.none() | st.integers(0, 14), phrases, end_ids)
def test_mask_is_the_phrase_as_far_as_it_fits(
    token_ids: list[int], position: int | None, phrases: Phrases, end: tuple[int, ...]
) -> None:
    phrases = replace(phrases, end_think=by_ids(end))
    closed = position is not None and occurs(token_ids[:position], end)
    start = None if position is None or position >= len(token_ids) or closed else position
    slow = [start is not None and start <= t < start + len(phrases.interruption) for t in range(len(token_ids))]
    assert forced_mask(token_ids, position, phrases).tolist() == slow


@dataclass
class Sequence:
    position: int | None
    output_ids: list[int]


class MovingBatch(RuleBasedStateMachine):
    """vLLM's batch: sequences come, go, move, swap and grow; the processor must follow."""

    @initialize(phrases=phrases)
    def start(self, phrases: Phrases) -> None:
        self.phrases = phrases
        config = SimpleNamespace(additional_config=processor_config(phrases))
        self.processor = ForcePhraseV1(config, torch.device("cpu"), False)
        self.rows: list[Sequence] = []

    def update(self, removed: Iterable[Any] = (), added: Iterable[Any] = (), moved: Iterable[Any] = ()) -> None:
        self.processor.update_state(BatchUpdate(len(self.rows), removed, added, moved))

    @rule(position=st.none() | st.integers(0, 6), output_ids=tokens)
    def add(self, position: int | None, output_ids: list[int]) -> None:
        """A new sequence, or one that comes back with what it has generated."""
        sequence = Sequence(position, list(output_ids))
        params = SamplingParams(extra_args=None if position is None else {POSITION: position})
        self.update(added=[(len(self.rows), params, None, sequence.output_ids)])
        self.rows.append(sequence)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove_and_close_the_gap(self, data: st.DataObject) -> None:
        row, last = data.draw(st.integers(0, len(self.rows) - 1)), len(self.rows) - 1
        self.rows[row] = self.rows[last]
        self.rows.pop()
        self.update(removed=[row], moved=[(last, row, MoveDirectionality.UNIDIRECTIONAL)] if row < last else [])

    @precondition(lambda self: len(self.rows) > 1)
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        a, b = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=2, max_size=2, unique=True))
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        self.update(moved=[(a, b, MoveDirectionality.SWAP)])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        for row, forced in enumerate(self.forced_rows()):
            free = data.draw(st.integers(0, VOCAB - 1))
            self.rows[row].output_ids.append(free if forced is None else forced)

    def forced_rows(self) -> list[int | None]:
        logits = torch.randn(len(self.rows), VOCAB)
        before = logits.clone()
        logits = self.processor.apply(logits)
        forced = []
        for old, new in zip(before, logits):
            open_ids = torch.isfinite(new).nonzero().flatten().tolist()
            forced.append(open_ids[0] if len(open_ids) == 1 else None)
            assert len(open_ids) == 1 or torch.equal(old, new)
        return forced

    @invariant()
    def forces_what_the_mask_will_call_forced(self) -> None:
        if not hasattr(self, "rows"):
            return
        for sequence, forced in zip(self.rows, self.forced_rows()):
            step = len(sequence.output_ids)
            mask = forced_mask([*sequence.output_ids, 0], sequence.position, self.phrases)
            assert (forced is not None) == bool(mask[step])
            if forced is not None:
                assert sequence.position is not None
                assert forced == self.phrases.interruption[step - sequence.position]


TestMovingBatch = MovingBatch.TestCase


class SlottedBatch(RuleBasedStateMachine):
    """Model Runner V2's batch: a request keeps a slot, rows change at every step, a freed slot is taken again."""

    SLOTS, LENGTH = 4, 40

    @initialize(phrases=phrases)
    def start(self, phrases: Phrases) -> None:
        self.phrases = phrases
        config = SimpleNamespace(additional_config=json.loads(json.dumps(processor_config(phrases))))
        self.states = LogitsProcRequestState(
            device=torch.device("cpu"),
            max_num_reqs=self.SLOTS,
            vocab_size=VOCAB,
            # vLLM's own buffers lie in pinned memory, which takes a GPU
            all_token_ids=SimpleNamespace(gpu=torch.zeros(self.SLOTS, self.LENGTH, dtype=torch.int32)),
            prompt_len=SimpleNamespace(np=np.zeros(self.SLOTS, np.int32)),
            prefill_len=None,
            total_len=None,
        )
        self.processor = ForcePhraseV2(config, self.states)
        self.running: dict[int, tuple[int, Sequence]] = {}

    def write(self, slot: int) -> None:
        prompt, sequence = self.running[slot]
        ids = [*range(prompt), *sequence.output_ids]
        self.states.prompt_len.np[slot] = prompt
        self.states.all_token_ids.gpu[slot] = VOCAB - 1  # what an earlier request left behind
        self.states.all_token_ids.gpu[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)

    @precondition(lambda self: len(self.running) < self.SLOTS)
    @rule(position=st.none() | st.integers(0, 6), prompt=st.integers(1, 3), output_ids=tokens, data=st.data())
    def add(self, position: int | None, prompt: int, output_ids: list[int], data: st.DataObject) -> None:
        """A new request, or one that was preempted and comes back with what it has generated."""
        slot = data.draw(st.sampled_from(sorted(set(range(self.SLOTS)) - self.running.keys())))
        self.running[slot] = prompt, Sequence(position, list(output_ids))
        params = SamplingParams(extra_args=None if position is None else {POSITION: position})
        assert self.processor.add_request(slot, params) == (position is not None)
        self.write(slot)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        del self.running[data.draw(st.sampled_from(sorted(self.running)))]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some of the requests, in any order, get a token each; what is forced is what the mask will say."""
        slots = data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, unique=True))
        lengths = [self.running[slot][0] + len(self.running[slot][1].output_ids) for slot in slots]
        index, before = torch.tensor(slots, dtype=torch.int32), torch.randn(len(slots), VOCAB)
        zeros = torch.zeros(len(slots), dtype=torch.int32)
        context = LogitsContext(index, index, index.numpy(), zeros, zeros, zeros, np.array(lengths, np.int32))
        after = self.processor.apply(before.clone(), context)
        for row, slot in enumerate(slots):
            _, sequence = self.running[slot]
            at = len(sequence.output_ids)
            due = forced_mask([*sequence.output_ids, 0], sequence.position, self.phrases)[at]
            if due:
                assert sequence.position is not None
                token = self.phrases.interruption[at - sequence.position]
                assert torch.isfinite(after[row]).nonzero().flatten().tolist() == [token]
            else:
                assert torch.equal(before[row], after[row])
                token = data.draw(st.integers(0, VOCAB - 1))
            if at < self.LENGTH - 4:
                sequence.output_ids.append(token)
                self.write(slot)


TestSlottedBatch = SlottedBatch.TestCase


def test_vllm_takes_the_processor_of_either_model_runner() -> None:
    assert build_v2([ForcePhraseV2])(SamplingParams()) is None
    with pytest.raises(ValueError, match="not a subclass"):
        build_v2([ForcePhraseV1])
    validate_v1([ForcePhraseV1], SamplingParams())


def test_mask_of_nothing_is_empty() -> None:
    assert forced_mask([], 0, Phrases((1,), by_ids((2,)))).dtype == np.bool_
