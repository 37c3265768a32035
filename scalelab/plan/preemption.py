"""Tokens that vLLM computes again because an engine's KV cache was too small for all sequences that it had started."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from scalelab.plan.lengths import Moments

SKIPPED, LOOKED_AT = 3, 9
"""Completions for each running sequence that end before the counting begins, and about those that end until it ends."""

LARGEST = 128
"""Running sequences beyond which an engine is simulated in small."""


def usual_context(length: Moments, prompt: int) -> float:
    """Tokens behind a running sequence in the mean: its prompt, and E[L²]/2E[L] of its completion."""
    return prompt + length.square / (2 * length.mean)


@lru_cache(maxsize=512)
def computed_again(length: Moments, prompt: int, cache: int, places: int, block: int) -> float:
    """Simulate an engine with more work than places, and count tokens that it computes again by tokens that it makes.

    Lengths are drawn from the log-normal of the given moments, cut at the longest.

    Args:
        length: of completions.
        prompt: tokens of a prompt.
        cache: tokens for which the KV cache has room.
        places: sequences that may run side by side.
        block: tokens of a block of the cache.
    """
    if places * (prompt + length.most + block) <= cache:
        return 0.0
    usual = usual_context(length, prompt)
    # Shares hardly depend on the size of an engine: a large one is simulated in small.
    scale = max(1.0, min(places, cache / usual) / LARGEST)
    room = cache / scale
    # No more can run at once than there is room for their prompts.
    places = max(1, round(min(places / scale, math.ceil(room / (prompt + block / 2)))))
    running = max(1, min(places, round(room / usual)))
    variance = math.log(max(1.0, length.square / length.mean**2))
    count = places + (SKIPPED + LOOKED_AT) * running
    drawn_C = np.random.default_rng(0).lognormal(math.log(length.mean) - variance / 2, math.sqrt(variance), count)
    made, again, _ = preempted(np.clip(drawn_C, 1, length.most), prompt, room, places, block, SKIPPED * running)
    return float(again / made)


def preempted(
    tokens_C: np.ndarray, prompt: float, cache: float, places: int, block: int, skipped: int = 0
) -> tuple[float, float, int]:
    """Simulate vLLM's rule for a cache that is full, from event to event, and count until none waits to begin.

    All running sequences grow alike. Where the cache has no room for that, the one that began last gives up its
    tokens: it waits at the head of the queue, and computes them again when it begins anew. A sequence begins when there
    is room for all tokens that it has (`scheduler_reserve_full_isl`), which happens only when another has ended. A
    block is half empty in the mean. An upper bound: an engine of vLLM 0.32 with 24 places for 15 sequences computed
    0.52 as many tokens again as it made where this says 0.63, and 0.45 with a prefix cache, in which some are found.

    Args:
        tokens_C: lengths of completions, float[completions], in the order of their arrival.
        prompt: tokens of a prompt.
        cache: tokens for which the cache has room.
        places: sequences that may run side by side.
        block: tokens of a block.
        skipped: completions that end before the counting.

    Returns:
        (tokens made, tokens computed again, preemptions).
    """
    half, free, done, arrived = block / 2, float(cache), 0, 0
    have_S, want_S = np.empty(0), np.empty(0)  # tokens of the running sequences, in the order of their begin
    waiting: list[tuple[float, float]] = []  # the preempted, of which the last began first
    made = again = 0.0
    times = 0
    while True:
        begun: list[tuple[float, float]] = []
        while len(have_S) + len(begun) < places and (waiting or arrived < len(tokens_C)):
            have, want = waiting[-1] if waiting else (prompt, prompt + tokens_C[arrived])
            if have + half >= free and (len(have_S) or begun):
                break
            if waiting:
                waiting.pop()
            else:
                arrived += 1
            free -= have + half
            begun.append((have, want))
        have_S = np.concatenate([have_S, [have for have, _ in begun]])
        want_S = np.concatenate([want_S, [want for _, want in begun]])
        if not len(have_S) or (skipped and arrived == len(tokens_C)):
            return made, again, times
        while True:  # until one ends; on the way some give up
            to_end = float((want_S - have_S).min())
            grown = min(to_end, free / len(have_S)) if len(have_S) > 1 else to_end
            have_S, free = have_S + grown, free - len(have_S) * grown
            made += len(have_S) * grown * (done >= skipped)
            if grown == to_end:
                break
            again, times = again + have_S[-1] * (done >= skipped), times + (done >= skipped)
            free += have_S[-1] + half
            waiting.append((have_S[-1], want_S[-1]))
            have_S, want_S = have_S[:-1], want_S[:-1]
        ended_S = want_S - have_S < 1e-6
        free, done = free + float((have_S[ended_S] + half).sum()), done + int(ended_S.sum())
        have_S, want_S = have_S[~ended_S], want_S[~ended_S]
