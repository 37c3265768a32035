"""Messages to and from a generator: requests and completions.

Axes: `_T` tokens of one completion.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import numpy as np

from scalelab.recipe.types import HeldContent, HeldRecord
from tasks.types import Verdict

Kind = Literal["train", "eval"]


@dataclass(frozen=True)
class Request:
    """One completion to generate."""

    id: str
    """Unique among the requests that one generator holds."""
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt, at least one."""
    max_tokens: int
    """Most tokens the completion may have, the forced ones and the end-of-sequence token included."""
    seed: int | None = None
    """Seed of this completion's own random stream; None draws from the generator's. It repeats exactly only while
    the batch around it does, since sums in the model may change with it."""
    temperature: float = 1.0
    """0 is greedy. Training completions need 1: their log-probs are those of the unscaled policy."""
    interrupt_at: int | None = None
    """Output position from which the interruption phrase is forced, unless thinking is closed by then."""
    kind: Kind = "train"
    """Purpose of the completion; evaluation's compute is counted apart."""
    task: str = ""
    """The task whose completions tell how long this one may become."""


@dataclass(frozen=True)
class Completion:
    """One generated answer, with all that off-policy learning needs to know about how it came to be."""

    request: Request
    token_ids: np.ndarray
    """int32[T], the end-of-sequence token included."""
    logprobs_T: np.ndarray
    """float32[T], log-probability of each token under the unscaled policy that produced it, before forcing."""
    spans: tuple[tuple[int, int, int], ...]
    """(policy version, start, end) of consecutive tokens; together they cover every token once, in order."""
    forced_T: np.ndarray
    """bool[T], True where the token was put there by the interruption instead of sampled."""
    truncated: bool
    """Stopped at `max_tokens` without an end-of-sequence token."""
    interrupted: bool
    """At least one token was forced."""
    text: str = ""
    """Generated text, without the tokens that end it."""
    routed_TLK: np.ndarray | HeldRecord | None = None
    """int16[prompt and completion tokens, layers, experts of a token]: the experts that each token went through, −1
    where none were recorded (`scalelab.rollout.routing`); or the key of such a record. None unless asked for."""

    @property
    def tokens(self) -> int:
        """Tokens, the end-of-sequence token included."""
        return len(self.token_ids)


@dataclass(frozen=True)
class HeldCompletion:
    """A generated answer whose tokens and text lie elsewhere: its counts and a key; fields as in `Completion`."""

    request: Request
    tokens: int
    sampled: int
    """Tokens that were sampled rather than forced."""
    finite: bool
    """True if every one of these has a finite log-probability."""
    spans: tuple[tuple[int, int, int], ...]
    truncated: bool
    interrupted: bool
    content: HeldContent
    routed_TLK: HeldRecord | None = None


AnyCompletion: TypeAlias = Completion | HeldCompletion


@dataclass(frozen=True)
class AnsweredVerdict(Verdict):
    """A verdict beside the answer that a completion gives, where its text was at hand."""

    answer: str | None = None

    @classmethod
    def of(cls, given: Verdict, answer: str | None) -> AnsweredVerdict:
        """A verifier's verdict with an answer; what a class of its own has beside the fields of one is left out."""
        return cls(**{one.name: getattr(given, one.name) for one in fields(Verdict)}, answer=answer)


@dataclass(frozen=True)
class LostVerdict(Verdict):
    """The `error` of a completion whose text is gone: another may be generated in its place."""
