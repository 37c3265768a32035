"""The policy losses: weighted sums over tokens; the weights already normalise.

Axes: `_T` tokens of one micro-batch, packed: its completions one after the other, with their prompts; `_S` the
completions in it.

Every loss is called on `Tokens` and returns a scalar, with metrics named for how they combine over micro-batches
and ranks (`_sum`, `_min`, `_max`): `ratio_sum`, `ratio_min`, `ratio_max`, and `clipped_sum`, the tokens
whose gradient the clip holds back.

A loss over token ratios (CISPO, DAPO, GRPO) may be given any part of the tokens; GSPO needs whole completions.
This module imports no torch: it only calls methods of the tensors it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from moe.checked import CHECKED
from moe.sequences import REFERENCE

if TYPE_CHECKING:
    from torch import Tensor

DualClip = Annotated[float, Field(gt=1)] | None
LowerClip = Annotated[float, Field(gt=0, lt=1)]
UpperClip = Annotated[float, Field(gt=0)]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`; beyond it no gradient flows through the ratio."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch as a loss needs them, all of shape [T]; make them with `masked`."""

    logprobs_T: Tensor
    """log π_train(y_t), the only one with a gradient; 0 where masked."""
    log_ratio_T: Tensor
    """log ρ_t = log π_train(y_t) − log π_gen(y_t), not clamped, with gradient; 0 where masked."""
    advantages_T: Tensor
    """Â of the token's completion; 0 where masked."""
    weights_T: Tensor
    """Share of the token in the step's average; 0 masks it out."""
    sequence_ids_T: Tensor
    """int: which completion the token belongs to; any numbering."""
    mask_T: Tensor
    """bool: the tokens in the loss."""
    entropy_T: Tensor | None = None
    """Entropy of the trainer's distribution of the token, in nats, without gradient."""
    seen: Mapping[str, Tensor] = field(default_factory=dict)
    """Values that the loss's `sees` names, each of shape [T] and 0 where masked."""

    @classmethod
    def masked(
        cls,
        logprobs_T: Tensor,
        old_logprobs_T: Tensor,
        advantages_T: Tensor,
        weights_T: Tensor,
        sequence_ids_T: Tensor,
    ) -> Tokens:
        """Set masked positions to zero, whatever they held (NaN and infinities included).

        Args:
            logprobs_T: log π_train(y_t).
            old_logprobs_T: log π_gen(y_t), as the generator sampled it.
            advantages_T: Â of the token's completion.
            weights_T: from `aggregation`; 0 at prompt tokens, forced tokens and padding.
            sequence_ids_T: int, which completion the token belongs to.
        """
        mask_T = weights_T != 0
        logprobs_T = logprobs_T.masked_fill(~mask_T, 0.0)
        return cls(
            logprobs_T=logprobs_T,
            log_ratio_T=logprobs_T - old_logprobs_T.masked_fill(~mask_T, 0.0),
            advantages_T=advantages_T.masked_fill(~mask_T, 0.0),
            weights_T=weights_T,
            sequence_ids_T=sequence_ids_T,
            mask_T=mask_T,
        )


class Loss(Protocol):
    """Protocol of policy losses, the user's own included.

    A class attribute `sees` names what a loss wants to know of every token's completion beside its advantage:

    - "reward": the verifier's, from 0 to 1, without penalties;
    - "part NAME": a part of the reward, 0 where the completion has none of that name;
    - "task NAME": 1 for completions of that task, 0 for others;
    - "staleness": trainer version − version of the token;
    - "reference": log π_ref(y_t) of the policy that the run began with, of which the trainer then keeps a copy.
    """

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over the tokens, and its metrics."""
        ...


def sees(loss: Loss) -> tuple[str, ...]:
    """Names of what a loss wants to know of every token's completion, by its class attribute."""
    return tuple(getattr(loss, "sees", ()))


def check_sees(loss: Loss, tasks: Sequence[str]) -> None:
    """Check that there is what a loss wants to see.

    Args:
        loss: the recipe's.
        tasks: names of the run's tasks.

    Raises:
        ValueError: naming what there is.
    """
    for name in sees(loss):
        kind, _, rest = name.partition(" ")
        if (
            name in ("reward", "staleness", REFERENCE)
            or (kind == "part" and rest)
            or (kind == "task" and rest in tasks)
        ):
            continue
        known = ", ".join(["reward", "staleness", REFERENCE, "part NAME", *(f"task {task}" for task in tasks)])
        raise ValueError(f"Recipe.loss: {type(loss).__name__}.sees has {name!r}; there are: {known}")


@checked(frozen=True, config=CHECKED)
class CISPO:
    """Truncated importance sampling with stop-gradient: every token keeps its gradient (MiniMax-M1; ScaleRL §3.2, §4).

    loss = − Σ_t w_t · sg(min(ρ_t, ε_max)) · Â_t · log π_train(y_t),  ρ_t = π_train(y_t) / π_gen(y_t).
    There is no lower clip. The paper finds ε_max 4, 5 and 8 equally good.
    """

    eps_max: Annotated[float, Field(ge=1)] = 5.0
    """Largest importance weight; 1 is the on-policy one."""

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over the tokens, and its metrics."""
        ratio_T = _exp(tokens.log_ratio_T.detach())
        gain_T = ratio_T.clamp(max=self.eps_max) * tokens.advantages_T * tokens.logprobs_T
        return -(tokens.weights_T * gain_T).sum(), ratio_metrics(ratio_T, ratio_T > self.eps_max, tokens.mask_T)


@checked(frozen=True, config=CHECKED)
class DAPO:
    """The clipped surrogate of PPO on token ratios, with its own upper bound (DAPO; ScaleRL §3.2).

    loss = − Σ_t w_t · min(ρ_t Â_t, clip(ρ_t, 1 − ε⁻, 1 + ε⁺) Â_t). No KL term.
    """

    eps_low: LowerClip = 0.2
    """ε⁻."""
    eps_high: UpperClip = 0.26
    """ε⁺; 0.28 in the DAPO paper."""
    dual_clip: DualClip = None
    """c: with Â < 0 a token's term is at least c · Â, however large ρ is; None leaves it unbounded, as DAPO does."""

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over the tokens, and its metrics."""
        return _clipped_surrogate(_exp(tokens.log_ratio_T), tokens, self.eps_low, self.eps_high, self.dual_clip)


@checked(frozen=True, config=CHECKED)
class GRPO:
    """DAPO's loss with the same bound on both sides, as in PPO and DeepSeek's GRPO (ScaleRL §3.2)."""

    eps: LowerClip = 0.2
    """ε on both sides."""
    dual_clip: DualClip = None
    """c, as in `DAPO`."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """β: weight of the KL to the policy that the run began with (DeepSeekMath, Eq. 3 and 4); 0 for none."""

    @property
    def sees(self) -> tuple[str, ...]:
        """The log-probabilities of the first policy, where they are wanted."""
        return (REFERENCE,) if self.beta else ()

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over the tokens, and its metrics."""
        loss, metrics = self._surrogate(tokens)
        if self.beta:
            loss = loss + self.beta * (tokens.weights_T * reference_kl(tokens)).sum()
        return loss, metrics

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        return _clipped_surrogate(_exp(tokens.log_ratio_T), tokens, self.eps, self.eps, self.dual_clip)


@checked(frozen=True, config=CHECKED)
class GSPO:
    """The clipped surrogate on one ratio per completion (GSPO; ScaleRL §3.2).

    s = (π_train(y) / π_gen(y))^(1/|y|) = exp(mean_t log ρ_t) over the sampled tokens of the completion, and
    loss = − Σ_t w_t · min(s Â, clip(s, 1 − ε⁻, 1 + ε⁺) Â) with the s and Â of the token's completion. With sample
    average the weights of a completion add up to 1 / (P · G), which is GSPO's own objective. No KL term.
    """

    eps_low: LowerClip = 4e-3
    """ε⁻; the paper's clip scale is 3e-3 to 5e-3 (1e-4 did not work)."""
    eps_high: UpperClip = 4e-3
    """ε⁺."""

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over the tokens, and its metrics."""
        ids_S, index_T = tokens.sequence_ids_T.unique(return_inverse=True)
        zeros_S = tokens.log_ratio_T.new_zeros(len(ids_S))
        lengths_S = zeros_S.index_add(0, index_T, tokens.mask_T.to(zeros_S.dtype))
        mean_log_ratio_S = zeros_S.index_add(0, index_T, tokens.log_ratio_T) / lengths_S.clamp(min=1.0)
        return _clipped_surrogate(_exp(mean_log_ratio_S)[index_T], tokens, self.eps_low, self.eps_high)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def reference_kl(tokens: Tokens) -> Tensor:
    """π_ref / π − log(π_ref / π) − 1 of each token, with gradient: an unbiased estimate of KL(π ‖ π_ref).

    For a loss that sees "reference". See DeepSeekMath (arXiv 2402.03300), Eq. 4.
    """
    gap_T = (tokens.seen[REFERENCE] - tokens.logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap_T.expm1() - gap_T


def _clipped_surrogate(
    ratio_T: Tensor, tokens: Tokens, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """− Σ_t w_t · min(ρ_t Â_t, clip(ρ_t, 1 − ε⁻, 1 + ε⁺) Â_t), and the metrics of ρ.

    With a dual clip c the term of a token with Â_t < 0 is max(min(…), c Â_t): it has no gradient where ρ_t > c (Ye et
    al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", arXiv 1912.09729, Eq. 5).
    """
    advantages_T, low, high = tokens.advantages_T, 1.0 - eps_low, 1.0 + eps_high
    gain_T = (ratio_T * advantages_T).minimum(ratio_T.clamp(low, high) * advantages_T)
    stopped_T = ((advantages_T > 0) & (ratio_T > high)) | ((advantages_T < 0) & (ratio_T < low))
    if dual_clip is not None:
        bounded_T = (advantages_T < 0) & (ratio_T > dual_clip)
        gain_T, stopped_T = gain_T.where(~bounded_T, dual_clip * advantages_T), stopped_T | bounded_T
    return -(tokens.weights_T * gain_T).sum(), ratio_metrics(ratio_T.detach(), stopped_T, tokens.mask_T)


def ratio_metrics(ratio_T: Tensor, clipped_T: Tensor, mask_T: Tensor) -> dict[str, Tensor]:
    """Compute the metrics that every loss returns.

    Args:
        ratio_T: float[T], importance ratio of each token, without gradient.
        clipped_T: bool[T], tokens whose gradient the loss holds back.
        mask_T: bool[T], the tokens in the loss.
    """
    return {
        "ratio_sum": ratio_T.masked_fill(~mask_T, 0.0).sum(),
        "ratio_min": ratio_T.masked_fill(~mask_T, math.inf).min(),
        "ratio_max": ratio_T.masked_fill(~mask_T, -math.inf).max(),
        "clipped_sum": (clipped_T & mask_T).to(ratio_T.dtype).sum(),
    }


LOSSES: tuple[type, ...] = (CISPO, DAPO, GRPO, GSPO)
"""The lab's own losses: experiments bind them by name, and tests hold every one of them against a slow reference."""
