"""The recipe's data: rollouts and groups of them.

Axes: `_T` tokens of one completion (in a training sequence: of prompt and completion), `_G` the generations of one
prompt, `_N` completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np

NOT_RECORDED = -1
"""Expert of a token for which none was recorded: the trainer's own router chooses."""


class HeldRecord(Protocol):
    """Key of a record of experts that lies elsewhere, so that it need not pass through every process on its way."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[prompt and completion tokens, layers, experts per token]."""


class HeldContent(Protocol):
    """Key of a completion's `Content` that lies elsewhere likewise (`scalelab.shards`)."""

    @property
    def index(self) -> int:
        """Row of the completion in its shard."""


def is_held(record: np.ndarray | HeldRecord | None) -> TypeGuard[HeldRecord]:
    """True for the key of a record, False for a record or none."""
    return record is not None and not isinstance(record, np.ndarray)


Span: TypeAlias = tuple[int, int, int]
"""(policy version, start, end): the version that produced completion tokens `start` to `end` (exclusive)."""


@dataclass(frozen=True)
class Content:
    """Tokens and text of one completion; fields as in `Rollout`."""

    completion_ids: np.ndarray
    logprobs_T: np.ndarray
    forced_T: np.ndarray
    text: str = ""


NO_CONTENT = Content(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, bool))
"""Content of a completion whose own is lost."""


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
    def sampled(self) -> int:
        """Tokens that take part in the loss."""
        return int(self.sampled_T.sum())

    @property
    def finite(self) -> bool:
        """True if every token that takes part in the loss has a finite log-probability."""
        return bool(np.all(np.isfinite(self.logprobs_T[self.sampled_T])))

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version in the spans; None for an empty completion."""
        return min((version for version, _, _ in self.spans), default=None)


@dataclass(frozen=True)
class HeldRollout:
    """A graded completion whose tokens and text lie elsewhere: its verdict, its counts and a key; fields as in
    `Rollout`."""

    prompt_id: str
    task: str
    prompt_ids: np.ndarray
    tokens: int
    sampled: int
    finite: bool
    content: HeldContent
    spans: tuple[Span, ...]
    reward: float
    outcome: str
    truncated: bool = False
    interrupted: bool = False
    routed_TLK: HeldRecord | None = None
    prompt: str = ""
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    gold: str = ""
    answer: str | None = None
    """Answer of the completion, for a vote of the majority; None if it gives none."""

    @property
    def graded(self) -> bool:
        """True unless the verifier itself failed, which leaves the reward without meaning."""
        return self.outcome != "error"

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version in the spans; None for an empty completion."""
        return min((version for version, _, _ in self.spans), default=None)

    def filled(self, content: Content) -> Rollout:
        """The whole completion.

        Raises:
            ValueError: the content has another number of tokens.
        """
        kept = {one.name for one in fields(self)} - {"tokens", "sampled", "finite", "content", "answer"}
        return Rollout(**{name: getattr(self, name) for name in kept}, **vars(content))


AnyRollout: TypeAlias = Rollout | HeldRollout

Group: TypeAlias = Sequence[AnyRollout]
"""The G completions of one prompt."""
