"""The completions that a step learns from, on their way to the trainer's sequences.

Axes: `_N` completions, `_T` tokens of all prompts and completions end to end, `_C` of all completions end to end.

    rollouts, advantages, weights ──► PlannedSequences ──(pickled: a few long arrays)──► list of TrainingSequence
    held rollouts, likewise ────────► PlannedSequences ──(pickled: keys)──► filled where it is trained on ──►
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from moe.sequences import REFERENCE, TrainingSequence
from scalelab.recipe.types import AnyRollout, Content, HeldContent, HeldRollout, Rollout


@dataclass(frozen=True, eq=False)
class PlannedSequences:
    """The completions in a step's loss, with all that their training sequences are made from, a third of the size.

    What is pickled is this, and what comes out is the list of training sequences: they are laid out where they are
    trained on. With a `HeldRollout` this itself comes out, to be `filled` there.

    Attributes:
        rollouts: the completions.
        advantages_N: float64, the advantage of each completion's sampled tokens.
        weights_N: float64, their weights likewise.
        trainer_version: optimiser steps behind the weights that the step starts from.
        seen: names that the loss sees (`sees`).
    """

    rollouts: Sequence[AnyRollout]
    advantages_N: np.ndarray
    weights_N: np.ndarray
    trainer_version: int
    seen: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt with its completion."""
        return [len(one.prompt_ids) + one.tokens for one in self.rollouts]

    @property
    def keys(self) -> list[HeldContent | None]:
        """Keys of the completions whose content lies elsewhere, None for each of the others; empty without any."""
        keys = [one.content if isinstance(one, HeldRollout) else None for one in self.rollouts]
        return keys if any(keys) else []

    @property
    def tokens_in_loss(self) -> int:
        """Sampled tokens of completions that weigh something."""
        weighing = zip(self.rollouts, self.weights_N.astype(np.float32), strict=True)
        return sum(one.sampled for one, weight in weighing if weight)

    def filled(self, contents: Mapping[int, Content]) -> PlannedSequences:
        """Put whole completions in place of the keys; one without content is left out.

        Those beside it keep their advantages and weights, as if the loss of one that is left out were zero.

        Args:
            contents: of the completions that had a key, by their places.
        """
        there = [n for n, one in enumerate(self.rollouts) if isinstance(one, Rollout) or n in contents]
        chosen = [(n, self.rollouts[n]) for n in there]
        return replace(
            self,
            rollouts=[one.filled(contents[n]) if isinstance(one, HeldRollout) else one for n, one in chosen],
            advantages_N=self.advantages_N[there],
            weights_N=self.weights_N[there],
        )

    def built(self) -> list[TrainingSequence]:
        """Lay the training sequences out, as unpickling does."""
        return laid_out(*self._columns())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.keys:
            unread = [replace(one, prompt="", gold="") for one in self.rollouts]  # what is for readers stays
            return PlannedSequences, (unread, self.advantages_N, self.weights_N, self.trainer_version, self.seen)
        return laid_out, self._columns()

    def _columns(self) -> tuple[Any, ...]:
        chosen = cast("Sequence[Rollout]", self.rollouts)
        prompts_N = np.array([len(one.prompt_ids) for one in chosen], np.int64)
        completions_N = np.array([len(one.completion_ids) for one in chosen], np.int64)
        tokens_T = _joined([ids for one in chosen for ids in (one.prompt_ids, one.completion_ids)], np.int32)
        logprobs_C = _joined([one.logprobs_T for one in chosen], np.float32)
        forced_C = _joined([one.forced_T for one in chosen], bool)
        versions = np.array([version for one in chosen for version, _, _ in one.spans], np.int64)
        stretches = np.array([end - start for one in chosen for _, start, end in one.spans], np.int64)
        routed = [one.routed_TLK if isinstance(one.routed_TLK, np.ndarray) else None for one in chosen]
        seen = {name: self._seen(name) for name in self.seen if name != REFERENCE}
        arrays = (prompts_N, completions_N, tokens_T, logprobs_C, forced_C, versions, stretches)
        return (*arrays, self.advantages_N, self.weights_N, seen, self.trainer_version, routed)

    def _seen(self, name: str) -> np.ndarray | None:
        """float64[N], each completion's value for a name in a loss's `sees`; None for staleness, token by token."""
        kind, _, rest = name.partition(" ")
        if kind == "staleness":
            return None
        if kind == "part":
            return np.array([one.parts.get(rest, 0.0) for one in self.rollouts], np.float64)
        if kind == "task":
            return np.array([one.task == rest for one in self.rollouts], np.float64)
        return np.array([one.reward for one in self.rollouts], np.float64)


def laid_out(
    prompts_N: np.ndarray,
    completions_N: np.ndarray,
    tokens_T: np.ndarray,
    logprobs_C: np.ndarray,
    forced_C: np.ndarray,
    versions: np.ndarray,
    stretches: np.ndarray,
    advantages_N: np.ndarray,
    weights_N: np.ndarray,
    seen: Mapping[str, np.ndarray | None],
    trainer_version: int,
    routed: Sequence[np.ndarray | None],
) -> list[TrainingSequence]:
    """Lay training sequences out; whatever belongs to no sampled token is zero.

    Args:
        prompts_N: tokens of each prompt.
        completions_N: tokens of each completion.
        tokens_T: ids of all prompts and completions, in turn.
        logprobs_C: the generator's log-probabilities.
        forced_C: True for tokens that were not sampled.
        versions: policy version of each stretch of tokens with one version.
        stretches: tokens of each such stretch.
        advantages_N: of each completion's sampled tokens.
        weights_N: likewise.
        seen: each completion's value for every name that the loss sees; None for the staleness of its tokens.
        trainer_version: optimiser steps behind the weights that the step starts from.
        routed: experts of each sequence's tokens, or None.
    """
    lengths_N = prompts_N + completions_N
    parts = np.stack([prompts_N, completions_N], axis=1).ravel()
    generated_T = np.repeat(np.tile([False, True], len(lengths_N)), parts)
    sampled_T = generated_T.copy()
    sampled_T[generated_T] = ~forced_C
    versions_C = np.repeat(versions, stretches)

    def each(values_N: np.ndarray) -> np.ndarray:
        return np.where(sampled_T, np.repeat(values_N, lengths_N), 0).astype(np.float32)

    def of_tokens(values_C: np.ndarray) -> np.ndarray:
        full_T: np.ndarray = np.zeros(len(tokens_T), np.float32)
        full_T[sampled_T] = values_C[~forced_C]
        return full_T

    late_C = trainer_version - versions_C
    extras = {
        "old_logprobs": of_tokens(logprobs_C),
        "advantages": each(advantages_N),
        "weights": each(weights_N),
        "sequence_ids": np.repeat(np.arange(len(lengths_N)), lengths_N),
        "same_version": of_tokens(versions_C == trainer_version),
        **{name: of_tokens(late_C) if values is None else each(values) for name, values in seen.items()},
    }
    ends_N = np.cumsum(lengths_N)
    return [
        TrainingSequence(tokens_T[at:end], {name: values[at:end] for name, values in extras.items()}, experts)
        for at, end, experts in zip(ends_N - lengths_N, ends_N, routed, strict=True)
    ]


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    joined: np.ndarray = np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)
    return joined
