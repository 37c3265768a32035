"""Turn rewards into advantages: one number per completion.

Axes: `_G` the generations of one prompt. A batch is a list with one such array per prompt.

Normalising never divides by (almost) zero: a group whose rewards are all equal has advantages of exactly zero, and what
is exactly zero stays zero. No ε is added to the deviation, so that scaling all rewards changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def signed(rewards_G: np.ndarray) -> np.ndarray:
    """Map rewards from [0, 1] to [−1, 1], as the paper trains on ±1 (ScaleRL §2).

    Args:
        rewards_G: float[G], 0 wrong to 1 right.

    Returns:
        float64[G].
    """
    return 2.0 * np.asarray(rewards_G, dtype=np.float64) - 1.0


def centred(rewards_G: np.ndarray) -> np.ndarray:
    """Advantage of each generation over its group: Â_i = r_i − mean(r_1..r_G) (ScaleRL §4).

    Args:
        rewards_G: float[G].

    Returns:
        float64[G]; exactly zero where all rewards are equal, whatever rounding does to their mean.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if np.all(rewards_G == rewards_G[0]):
        return np.zeros_like(rewards_G)
    centred_G: np.ndarray = rewards_G - rewards_G.mean()
    return centred_G


def by_batch(advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Divide by the standard deviation of all advantages in the batch (ScaleRL §3.2 and §4).

    The deviation is the population's (divided by the count), taken once per completion, not per token, over all tasks
    together. The batch is what the loss is taken over: in the paper's objective the condition 0 < mean(r) < 1 stands
    under the same expectation, so prompts dropped for zero variance are gone before the deviation is taken. Where they
    are kept, they count with their zeros.
    """
    if not advantages:
        return []
    std = float(np.concatenate(advantages).std())
    return [advantages_G / std if std > 0.0 else advantages_G for advantages_G in advantages]


def by_prompt(advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Divide each group by its own (population) standard deviation, as in GRPO (ScaleRL §3.2)."""
    return [by_batch([advantages_G])[0] for advantages_G in advantages]


def unchanged(advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Leave the advantages as they are, as in Dr. GRPO (ScaleRL §3.2)."""
    return list(advantages)


NORMS: dict[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = {
    "batch": by_batch,
    "prompt": by_prompt,
    "none": unchanged,
}
