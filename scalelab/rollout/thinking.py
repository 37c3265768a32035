"""Recognise the text that closes the thinking, token by token, however a tokenizer spells it.

`</think>` is one token for some tokenizers; others merge its characters with what stands before or behind (`.</`,
`>\\n\\n`). So a finite automaton reads the tokens: its state is how much of the text the tokens so far end with, and
its last state, which nothing leaves, says that the text has occurred (Knuth, Morris and Pratt, 1977).

Axes: `_T` tokens, `_S` states, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Transitions = tuple[tuple[int, int, int], ...]
"""(state, token, next state) for all pairs that do not lead back to state 0; the largest state is the last."""


def by_text(tokenizer: Any, text: str) -> Transitions:
    """Recognise a text in whatever tokens spell it, parts of other words included.

    Args:
        tokenizer: of transformers.
        text: ASCII, so that no character of it is split over tokens' bytes.
    """
    found = []
    for token, piece in enumerate(_pieces(tokenizer)):
        if not piece or (text[0] not in piece and piece[0] not in text):
            continue
        for state in range(len(text)):
            seen = text[:state] + piece
            if text in seen:
                found.append((state, token, len(text)))
                continue
            size = next(n for n in range(min(len(text) - 1, len(seen)), -1, -1) if seen.endswith(text[:n]))
            if size:
                found.append((state, token, size))
    return tuple(found)


def _pieces(tokenizer: Any) -> list[str]:
    """Text that each token adds; decoders drop a space before a text's first token, so another token precedes each."""
    first = tokenizer.encode("a", add_special_tokens=False)
    before = len(tokenizer.decode(first))
    texts = tokenizer.batch_decode([[*first, token] for token in range(len(tokenizer))])
    return [text[before:] for text in texts]


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
