"""The recipe's data: rollouts and groups of them.

Axes: `_T` tokens of one completion (in a training sequence: of prompt and completion), `_G` the generations of one
prompt, `_N` completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np

NOT_RECORDED = -1
"""Expert of a token for which none was recorded: the trainer's own router chooses."""


class HeldRecord(Protocol):
    """Key of a record of experts that lies elsewhere, so that it need not pass through every process on its way."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[prompt and completion tokens, layers, experts per token]."""


def is_held(record: np.ndarray | HeldRecord | None) -> TypeGuard[HeldRecord]:
    """True for the key of a record, False for a record or none."""
    return record is not None and not isinstance(record, np.ndarray)


Span: TypeAlias = tuple[int, int, int]
"""(policy version, start, end): the version that produced completion tokens `start` to `end` (exclusive)."""


@dataclass(frozen=True)
class Rollout:
    """One graded completion with everything a training step needs of it.

    Raises:
        ValueError: lengths that differ, spans that do not tile the completion, or a reward outside [0, 1].
    """

    prompt_id: str
    """The prompt's name; the same in a whole group."""
    task: str
    """The task that the prompt belongs to; metrics are kept per task."""
    prompt_ids: np.ndarray
    """int[≥ 1]: tokens of the prompt."""
    completion_ids: np.ndarray
    """int[T]: tokens of the completion, sampled and forced ones alike."""
    logprobs_T: np.ndarray
    """float32[T]: log-probability of each token under the policy that sampled it; anything where forced."""
    forced_T: np.ndarray
    """bool[T]: True where the token was put there by a forced interruption rather than sampled."""
    spans: tuple[Span, ...]
    """The versions that produced the tokens, in order, without gaps."""
    reward: float
    """The verifier's reward, from 0 (wrong) to 1 (right); without meaning where it failed to grade."""
    outcome: str
    """`passed`, `failed`, `timeout`, `memory`, or `error` where the verifier failed to grade."""
    truncated: bool = False
    """The completion was cut at the token limit."""
    interrupted: bool = False
    """The thinking was ended by force."""
    routed_TLK: np.ndarray | HeldRecord | None = None
    """int16[prompt and completion, layers, experts per token]: experts that generated it, −1 where not recorded; or
    the key of such a record."""
    prompt: str = ""
    """The prompt as people read it."""
    text: str = ""
    """Text that the model generated."""
    detail: str = ""
    """The verifier's remark, for readers."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts that the reward is made of, each from 0 to 1."""
    gold: str = ""
    """The right answer, for readers; empty where it is no short text, such as a set of tests."""

    def __post_init__(self) -> None:
        n_tokens = len(self.completion_ids)
        if len(self.prompt_ids) == 0:
            raise ValueError(f"prompt {self.prompt_id} has no tokens: its first completion token has no context")
        if len(self.logprobs_T) != n_tokens or len(self.forced_T) != n_tokens:
            raise ValueError(
                f"a completion of prompt {self.prompt_id} has {n_tokens} tokens, {len(self.logprobs_T)} log-probs "
                f"and {len(self.forced_T)} forced flags: all three must have one length"
            )
        edges = [0, *(end for _, _, end in self.spans)]
        tiled = edges == sorted(edges) and edges[-1] == n_tokens and edges[:-1] == [start for _, start, _ in self.spans]
        if not tiled:
            raise ValueError(
                f"version spans {self.spans} of a completion of prompt {self.prompt_id} do not tile its "
                f"{n_tokens} tokens"
            )
        if not 0.0 <= self.reward <= 1.0:
            raise ValueError(f"reward {self.reward} of prompt {self.prompt_id} is outside [0, 1]")

    @property
    def tokens(self) -> int:
        """Tokens of the completion."""
        return len(self.completion_ids)

    @property
    def graded(self) -> bool:
        """True unless the verifier itself failed, which leaves the reward without meaning."""
        return self.outcome != "error"

    @property
    def sampled_T(self) -> np.ndarray:
        """bool[T]: True for tokens that take part in the loss."""
        return ~np.asarray(self.forced_T, dtype=bool)

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version in the spans; None for an empty completion."""
        return min((version for version, _, _ in self.spans), default=None)


Group: TypeAlias = Sequence[Rollout]
"""The G completions of one prompt."""
