"""The interruption forces exactly the tokens it says it forced, wherever vLLM moves a sequence in its batch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from scalelab.rollout.interruption import POSITION, ForcedInterruption, Phrases, forced_mask, processor_config

VOCAB = 8
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)
phrases = st.builds(
    Phrases,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple),
)


def first_forced(token_ids: list[int], position: int | None, phrases: Phrases) -> int | None:
    """Where the phrase starts, by looking at every place where thinking could have been closed."""
    if position is None or position >= len(token_ids):
        return None
    for end in range(position + 1):
        if tuple(token_ids[:end][-len(phrases.end_think) :]) == phrases.end_think:
            return None
    return position


@given(tokens, st.none() | st.integers(0, 14), phrases)
def test_mask_is_the_phrase_as_far_as_it_fits(token_ids: list[int], position: int | None, phrases: Phrases) -> None:
    start = first_forced(token_ids, position, phrases)
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
        self.processor = ForcedInterruption(config, torch.device("cpu"), False)
        self.rows: list[Sequence | None] = []

    def update(self, removed: list[int] = (), added: list = (), moved: list = ()) -> None:
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
                assert forced == self.phrases.interruption[step - sequence.position]


TestMovingBatch = MovingBatch.TestCase


def test_mask_of_nothing_is_empty() -> None:
    assert forced_mask([], 0, Phrases((1,), (2,))).dtype == np.bool_
