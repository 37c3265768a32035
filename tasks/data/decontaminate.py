"""Find problems of a training set that are problems of an evaluation set, by the word sequences that they share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

N = 8
"""Words in an n-gram; a text with fewer words is one n-gram."""
SHARE = 0.5
"""Overlap from which two problems are the same."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_LATEX = re.compile(r"\\(?:text|mathrm|mathbf|frac|dfrac|tfrac|left|right|[,;:! ])")


@dataclass(frozen=True)
class Dropped:
    """A training problem that an evaluation set has.

    Attributes:
        id: the training problem.
        like: the evaluation problem.
        overlap: share of the shorter one's n-grams that both have.
    """

    id: str
    like: str
    overlap: float


def words(text: str) -> list[str]:
    """The words and numbers of a text, without case, punctuation and LaTeX layout."""
    return _WORD.findall(_LATEX.sub(" ", text.replace(",", "")).lower())


def decontaminate(training: Sequence[tuple[str, str]], evaluation: Sequence[tuple[str, str]]) -> list[Dropped]:
    """The training problems to drop.

    Two problems are the same if they have at least `SHARE` of the shorter one's n-grams of words in common, so that
    a changed sentence or a preamble hides nothing, and a common turn of phrase condemns nothing.

    Args:
        training: (id, text) of the training problems.
        evaluation: (id, text) of the evaluation problems.

    Returns:
        One entry per problem to drop, with the evaluation problem that it overlaps most.
    """
    sizes: dict[str, int] = {}
    holders: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in evaluation:
        grams = _grams(text)
        sizes[name] = len(grams)
        for gram in grams:
            holders[gram].append(name)
    dropped = []
    for name, text in training:
        grams = _grams(text)
        common = Counter(holder for gram in grams for holder in holders.get(gram, ()))
        overlaps = [(count / min(len(grams), sizes[other]), other) for other, count in common.items()]
        if overlaps and max(overlaps)[0] >= SHARE:
            overlap, other = max(overlaps)
            dropped.append(Dropped(name, other, overlap))
    return dropped


def _grams(text: str) -> set[tuple[str, ...]]:
    tokens = words(text)
    if not tokens:
        return set()
    return {tuple(tokens[i : i + N]) for i in range(max(1, len(tokens) - N + 1))}
