"""Weights of tokens relative to each other: one weight per completion, shared by all its sampled tokens.

Axes: `_G` the generations of one prompt. A batch is a list with one such array per prompt.

The weights are normalised over the whole step before any token reaches the trainer. A step's loss is then a plain sum
over tokens, and cannot depend on how the step was split into micro-batches, packed, or spread over ranks.

|y| counts the *sampled* tokens: forced ones are masked out of the loss, so they are out of the denominators too (a mean
that divides by tokens it did not add up is not a mean). P counts the prompts that are in the loss: the paper's
"effective batch" (ScaleRL §3.2), in which prompts dropped for zero variance do not appear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def prompt_average(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Mean over prompts of the mean over all tokens of a prompt's completions: w = 1 / (P · Σ_g |y_g|) (ScaleRL §4).

    Args:
        lengths: per prompt int[G], sampled tokens of each completion.

    Returns:
        Per prompt float64[G], the weight of one token of each completion; the weights of all tokens add up to one
        if every prompt has any. A completion without sampled tokens has none to weigh; its entry is finite and unused.
    """
    n_prompts = len(lengths)
    return [np.full(len(lengths_G), 1.0 / (n_prompts * max(lengths_G.sum(), 1))) for lengths_G in lengths]


def sample_average(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Mean over completions of the mean over a completion's tokens: w = 1 / (P · G · |y|), as in GRPO (ScaleRL §3.2).

    Arguments and result as in `prompt_average`.
    """
    n_completions = sum(len(lengths_G) for lengths_G in lengths)
    return [1.0 / (n_completions * np.maximum(lengths_G, 1)) for lengths_G in lengths]


def token_average(lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Mean over all tokens of the batch: w = 1 / Σ |y| over every completion (ScaleRL §3.2).

    Arguments and result as in `prompt_average`.
    """
    n_tokens = sum(int(lengths_G.sum()) for lengths_G in lengths)
    return [np.full(len(lengths_G), 1.0 / max(n_tokens, 1)) for lengths_G in lengths]


def constant_length(lengths: Sequence[np.ndarray], longest: int) -> list[np.ndarray]:
    """Sum over tokens, divided by a constant: w = 1 / (P · G · L_max) (Dr. GRPO, arXiv 2503.20783).

    A token weighs the same whatever the length of its completion, in every step. The weights of a step add up to the
    completions' mean length over L_max.

    Args:
        lengths: as in `prompt_average`.
        longest: L_max, most tokens of a completion.

    Returns:
        As `prompt_average`.
    """
    n_completions = sum(len(lengths_G) for lengths_G in lengths)
    return [np.full(len(lengths_G), 1.0 / (n_completions * longest)) for lengths_G in lengths]


AVERAGES: dict[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = {
    "prompt": prompt_average,
    "sample": sample_average,
    "token": token_average,
}


def token_weights(aggregation: str, lengths: Sequence[np.ndarray], longest: int) -> list[np.ndarray]:
    """Weigh the tokens of a step's completions.

    Args:
        aggregation: one of `AVERAGES`, or `constant`.
        lengths: as in `prompt_average`.
        longest: most tokens of a completion.

    Returns:
        As `prompt_average`.
    """
    return constant_length(lengths, longest) if aggregation == "constant" else AVERAGES[aggregation](lengths)
