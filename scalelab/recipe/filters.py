"""Reasons that keep a group out of the loss.

Axes: `_G` the generations of one prompt.
"""

from __future__ import annotations

import numpy as np


def zero_variance(rewards_G: np.ndarray) -> str | None:
    """Name the reason if all rewards of a group are equal, so that every advantage is zero (ScaleRL §3.2).

    On rewards without a length penalty this is the paper's condition 0 < mean(r) < 1. With one, correct completions of
    different lengths still differ, and the group stays.

    Args:
        rewards_G: float[G], rewards in [−1, 1] with the length penalty in.

    Returns:
        None if the rewards differ; otherwise the reason, which becomes a metric: `all_passed`, `all_failed` or
        `equal_rewards` (all alike, but neither 1 nor −1).
    """
    first = rewards_G[0]
    if np.any(rewards_G != first):
        return None
    return {1.0: "all_passed", -1.0: "all_failed"}.get(float(first), "equal_rewards")
