"""Keep completions within their budget: end the thinking, or lower the reward.

Axes: `_N` completions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED

if TYPE_CHECKING:  # what names experiments does without
    import numpy as np

TIME_IS_UP = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"


class LengthControl(Protocol):
    """A way to keep completions within their budget; users' own classes derive from it and change one part."""

    @property
    def phrase(self) -> str:
        """Text that is forced into a completion to end its thinking; "" for none."""
        return ""

    def draw(self, rng: np.random.Generator) -> int | None:
        """Draw the completion token at which one rollout's thinking is ended; None for never."""
        return None

    def penalty(self, lengths_N: np.ndarray, correct_N: np.ndarray) -> np.ndarray:
        """Compute the penalty that is added to each reward on the ±1 scale.

        Args:
            lengths_N: int[N], tokens of each completion, thinking and answer.
            correct_N: bool[N].

        Returns:
            float64[N].
        """
        import numpy as np

        return np.zeros(len(lengths_N))


def interruption(control: LengthControl | None, rng: np.random.Generator) -> int | None:
    """Draw the completion token at which one rollout's thinking is ended; None for never.

    Args:
        control: the recipe's; one without a phrase never interrupts.
        rng: of this prompt's completions.
    """
    place = control.draw(rng) if control is not None and control.phrase else None
    return None if place is None else int(place)


@dataclass(frozen=True, config=CHECKED)
class ForcedInterruption(LengthControl):
    """End the thinking by force at a random length (ScaleRL §4).

    A completion that still thinks at its position has `phrase` forced into it and goes on to the answer. The forced
    tokens are masked out of the loss. The position is random so that the model cannot count on a fixed budget.
    Defaults are the paper's 10k to 12k of a 14k-token completion, k = 1024.
    """

    phrase: str = TIME_IS_UP
    """The text put in; it ends by closing the thinking."""
    earliest: NonNegativeInt = 10 * 1024
    """First completion token at which the phrase may begin."""
    latest: NonNegativeInt = 12 * 1024
    """Last completion token at which the phrase may begin."""

    def __post_init__(self) -> None:
        if self.earliest > self.latest:
            raise ValueError(f"interruption window [{self.earliest}, {self.latest}] is empty: need earliest ≤ latest")

    def draw(self, rng: np.random.Generator) -> int:
        """Draw the position for one rollout, uniform over `earliest..latest`, both included."""
        return int(rng.integers(self.earliest, self.latest, endpoint=True))


@dataclass(frozen=True, config=CHECKED)
class LengthPenalty(LengthControl):
    """Lower the reward of long correct completions (ScaleRL §4; DAPO's soft overlong punishment).

    The penalty is clip((L_max − |y|) / L_cache − 1, −1, 0): nothing up to L_max − L_cache tokens, then falling linearly
    to −1 at L_max. It is added to rewards on the ±1 scale, and only where the completion is correct.
    Defaults are the paper's 14k and 2k, k = 1024.
    """

    max_tokens: PositiveInt = 14 * 1024
    """L_max: length at which the penalty reaches −1, in tokens."""
    cache_tokens: PositiveInt = 2 * 1024
    """L_cache: width of the slope, in tokens."""

    def __post_init__(self) -> None:
        if self.cache_tokens > self.max_tokens:
            raise ValueError(
                f"length penalty with cache_tokens {self.cache_tokens} and max_tokens {self.max_tokens}: "
                "need cache_tokens ≤ max_tokens"
            )

    def penalty(self, lengths_N: np.ndarray, correct_N: np.ndarray) -> np.ndarray:
        """Compute the penalty that is added to each reward.

        Args:
            lengths_N: int[N], tokens of each completion, thinking and answer.
            correct_N: bool[N].

        Returns:
            float64[N] in [−1, 0].
        """
        import numpy as np

        slope_N = (self.max_tokens - np.asarray(lengths_N, dtype=np.float64)) / self.cache_tokens - 1.0
        return np.where(correct_N, np.clip(slope_N, -1.0, 0.0), 0.0)
