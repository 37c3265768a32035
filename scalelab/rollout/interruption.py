"""Forced interruption (ScaleRL §4): a forced phrase ends the thinking at a drawn position.

One rule (`forced_mask`) says which tokens are forced; both of vLLM's model runners have a processor that forces exactly
these. Axes: `_T` tokens of one completion, `_B` sequences of a step, `_R` rows that are due, `_S` states of the
automaton that recognises the end of thinking, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as LogitsProcessorV1
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

from scalelab.rollout.tokenizer import Transitions

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

POSITION = "interrupt_at"
"""Name under which a request's position travels in vLLM's `SamplingParams.extra_args`."""
PHRASES = "phrases"
"""Name under which the phrases travel in vLLM's `additional_config`."""


@dataclass(frozen=True)
class Phrases:
    """Token ids of the interrupting phrase, and the automaton that recognises the end of thinking."""

    interruption: tuple[int, ...] = ()
    """Token ids that are forced."""
    end_think: Transitions = ()
    """Automaton that recognises the text that closes the thinking (`scalelab.rollout.tokenizer.by_text`)."""


def last_state(transitions: Transitions) -> int:
    """State of the automaton when it has seen the whole text; 0 if there is no text to recognise."""
    return max((target for _, _, target in transitions), default=0)


class Reader:
    """The automaton in Python, for one completion at a time."""

    def __init__(self, transitions: Transitions) -> None:
        self._next = {(state, token): target for state, token, target in transitions}
        self._last = last_state(transitions)

    def closes(self, token_ids: Sequence[int]) -> bool:
        """True if the text occurs in these tokens."""
        state = 0
        for token in token_ids:
            state = self._next.get((state, token), 0)
            if state == self._last and state:
                return True
        return False


class DeviceReader:
    """The automaton as a table on a device: reads thousands of tokens in a few parallel operations.

    A token is a map from states to states, and reading is composing maps, which is associative: neighbours are
    composed pair by pair, in log₂ T rounds.
    """

    def __init__(self, transitions: Transitions, vocabulary: int, device: torch.device) -> None:
        self._last = last_state(transitions)
        table_VS = torch.zeros(vocabulary, self._last + 1, dtype=torch.uint8)
        if transitions:
            state, token, target = torch.tensor(transitions).t()
            table_VS[token, state] = target.to(torch.uint8)
        table_VS[:, self._last] = self._last
        self._table_VS = table_VS.to(device)
        self._identity_1S = torch.arange(self._last + 1, dtype=torch.uint8, device=device).unsqueeze(0)

    def closes(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """bool[] on the tokens' device: True if the text occurs in these tokens."""
        maps_TS = torch.cat([self._table_VS[tokens_T.long()], self._identity_1S]).long()
        while len(maps_TS) > 1:
            if len(maps_TS) % 2:
                maps_TS = torch.cat([maps_TS, self._identity_1S.long()])
            maps_TS = maps_TS[1::2].gather(1, maps_TS[::2])
        return (maps_TS[0, 0] == self._last) & (self._last > 0)


def forced_mask(token_ids: Sequence[int], interrupt_at: int | None, phrases: Phrases) -> np.ndarray:
    """bool[T]: True for tokens of a completion that were forced.

    Args:
        token_ids: [T] the whole completion.
        interrupt_at: position from which the phrase was to be forced; None for never.
        phrases: the phrase, and what closes the thinking.

    Returns:
        bool[T], True on the phrase as far as it fits, all False if thinking was closed before or never so long.
    """
    forced_T = np.zeros(len(token_ids), np.bool_)
    if interrupt_at is not None and len(token_ids) > interrupt_at:
        open_still = not Reader(phrases.end_think).closes(token_ids[:interrupt_at])
        forced_T[interrupt_at : interrupt_at + len(phrases.interruption)] = open_still
    return forced_T


def processor_config(phrases: Phrases) -> dict[str, Any]:
    """Content of vLLM's `additional_config`; plain lists, since compiled engines hash it as JSON."""
    return {PHRASES: {name: [*map(_plain, value)] for name, value in asdict(phrases).items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _phrases(vllm_config: VllmConfig) -> Phrases:
    held = vllm_config.additional_config[PHRASES]
    return Phrases(tuple(held["interruption"]), tuple((a, b, c) for a, b, c in held["end_think"]))


class ForcePhraseV2(LogitsProcessorV2):
    """Force the phrase under Model Runner V2, which every GPU takes; nothing is read back from the device.

    A request has a slot as long as it runs. The host knows every length, so it knows which rows are due; whether their
    thinking is closed is known on the device alone, and decides there.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        phrases, slots = _phrases(vllm_config), req_states.max_num_reqs
        self._requests, self._device = req_states, req_states.device
        self._reader = DeviceReader(phrases.end_think, req_states.vocab_size, self._device)
        self._phrase = np.array(phrases.interruption, np.int64)
        self._position = np.full(slots, _NEVER, np.int64)
        self._known = np.zeros(slots, np.bool_)
        self._closed = torch.zeros(slots, dtype=torch.bool, device=self._device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take a request into a slot, a new one or one that was preempted."""
        position = (sampling_params.extra_args or {}).get(POSITION)
        self._position[req_idx] = _NEVER if position is None else position
        self._known[req_idx] = False
        return position is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Leave only the phrase's next token in the rows that are due; `logits` is [B, V], changed in place."""
        slots_B = ctx.idx_mapping_np
        done_B = ctx.seq_lens_upper_bound_np[: len(slots_B)] - self._requests.prompt_len.np[slots_B]
        step_B = done_B - self._position[slots_B]
        rows = np.flatnonzero((step_B >= 0) & (step_B < len(self._phrase)))
        if not len(rows):
            return logits
        for slot in slots_B[rows]:
            self._look(int(slot))
        rows_R, slots_R, tokens_R = (
            torch.from_numpy(values).to(self._device, non_blocking=True)
            for values in (rows, slots_B[rows].astype(np.int64), self._phrase[step_B[rows]])
        )
        forced_RV = torch.full_like(logits[: len(rows)], float("-inf")).scatter_(1, tokens_R.unsqueeze(1), 0.0)
        kept_R1 = self._closed[slots_R].unsqueeze(1)
        logits[rows_R] = torch.where(kept_R1, logits[rows_R], forced_RV)
        return logits

    def _look(self, slot: int) -> None:
        """Check on the device, once per sequence, if the thinking was closed before the position."""
        if self._known[slot]:
            return
        start = int(self._requests.prompt_len.np[slot])
        before_T = self._requests.all_token_ids.gpu[slot, start : start + int(self._position[slot])]
        self._closed[slot] = self._reader.closes(before_T)
        self._known[slot] = True


_NEVER = 2**62


class ForcePhraseV1(LogitsProcessorV1):
    """Force the phrase under Model Runner V1, which is the only one on a CPU; one `_Interrupted` per sequence."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        phrases = _phrases(vllm_config)
        self._phrase, self._reader = phrases.interruption, Reader(phrases.end_think)
        self._interrupted: dict[int, _Interrupted] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Accept what `Generator.submit` has checked already."""

    def is_argmax_invariant(self) -> bool:
        """False: forcing changes the most likely token, so greedy sampling needs it too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the sequences as vLLM removes, adds and moves them within its batch."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._interrupted.pop(row, None)
        for row, params, _, output_ids in batch_update.added:
            self._interrupted.pop(row, None)
            position = (params.extra_args or {}).get(POSITION)
            if position is not None:
                self._interrupted[row] = _Interrupted(position, output_ids)
        for source, target, direction in batch_update.moved:
            moved, replaced = self._interrupted.pop(source, None), self._interrupted.pop(target, None)
            if moved is not None:
                self._interrupted[target] = moved
            if direction == MoveDirectionality.SWAP and replaced is not None:
                self._interrupted[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave only the phrase's next token in the rows that are due; `logits` is [B, V], changed in place."""
        for row, place in self._interrupted.items():
            step = len(place.output_ids) - place.position
            if 0 <= step < len(self._phrase):
                if place.closed is None:
                    place.closed = self._reader.closes(place.output_ids[: place.position])
                if not place.closed:
                    logits[row] = float("-inf")
                    logits[row, self._phrase[step]] = 0.0
        return logits


@dataclass
class _Interrupted:
    """A sequence of the batch that is to be interrupted."""

    position: int
    output_ids: list[int]
    """vLLM's own list, which grows as tokens are sampled."""
    closed: bool | None = None
    """True if thinking was closed before the position; None until that is known."""
