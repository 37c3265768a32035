"""Times for which a step waits: for its longest completions, for a round's, and for the first group that is graded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalelab.plan.lengths import Moments, lengths_of
from scalelab.plan.speed import Assumptions, Decoding
from scalelab.run.config import Run

ROUNDS = 8
"""Rounds in which the first group to end is looked for."""


def longest_seconds(decode: Callable[[float], float], tokens: int, beside: float, after: float) -> float:
    """Seconds of the longest completions of a draw, which reach the limit, and for which a step of PipelineRL waits.

    A cycle lasts as long as they, a step and a publication, and decodes all that is in flight once. So an engine has in
    the mean d · L / (M + s) sequences: d completions in flight an engine, of mean length L, M tokens at most, and s the
    tokens in whose time a step and a publication are done.

    Args:
        decode: seconds of a decoding step with so many sequences.
        tokens: M.
        beside: d · L / M.
        after: seconds of a step and a publication.
    """
    seconds, share = 0.0, 1.0
    for _ in range(4):  # to a fixed point: the load moves the seconds little, and they the load
        seconds = tokens * decode(max(1.0, beside * share))
        share = seconds / (seconds + after)
    return seconds


def round_seconds(engine: Decoding, quarter: Decoding, completions: float, length: Moments) -> float:
    """Seconds in which an engine makes the completions of a round.

    A decoding step takes a + b · n for n sequences side by side, by the two given points. The engine fills at once, and
    empties until the longest completion ends: after tokens / places steps, and those by which the longest is longer
    than the mean. Each token costs b, each step a.
    """
    tokens = completions * length.mean
    turns = tokens / engine.sequences + length.most - length.mean
    each = (engine.seconds - quarter.seconds) / max(engine.sequences - quarter.sequences, 1.0)
    return each * tokens + (engine.seconds - each * engine.sequences) * turns


def first_group_tokens(run: Run, assumed: Assumptions, groups: int) -> float:
    """Tokens until all completions of the first group of a round have ended, in the mean over some rounds."""
    lengths, rng = lengths_of(run, assumed.sigma, assumed.median), np.random.default_rng(0)
    drawn = [lengths.draw(rng, groups, run.recipe.generations_per_prompt).max(1).min() for _ in range(ROUNDS)]
    return float(np.mean(drawn))
