"""Splits and orders that are functions of their arguments alone, so that any process can compute them again."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache


def stable_number(*parts: object) -> int:
    """A number in [0, 2^62) that depends on the parts alone: the same in every process and on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def in_held_out(text: str, share: float) -> bool:
    """True if a problem belongs to the held-out split: decided by its text, so two splits never share a problem."""
    return stable_number("held out", text) < share * 2**62


def epoch_position(index: int, size: int, seed: int) -> int:
    """Index of the item at place `index` of an endless stream that permutes `size` items anew every epoch."""
    return _permutation(size, seed, index // size)[index % size]


@lru_cache(maxsize=16)
def _permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


def problem_key(problem: str) -> str:
    """A short name for a problem that its text decides, so that a copy has the same; layout does not count."""
    return f"{stable_number(' '.join(problem.split())):016x}"
