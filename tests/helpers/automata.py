"""Automata of single sequences of token ids, to test what reads automata without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from scalelab.rollout.tokenizer import Transitions


def by_ids(token_ids: Sequence[int]) -> Transitions:
    """Recognise one sequence of token ids."""
    wanted = tuple(token_ids)
    found = []
    for state in range(len(wanted)):
        for token in sorted(set(wanted)):
            seen = (*wanted[:state], token)
            size = next(n for n in range(len(seen), -1, -1) if seen[len(seen) - n :] == wanted[:n])
            if size:
                found.append((state, token, size))
    return tuple(found)
