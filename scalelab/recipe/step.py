"""The mathematics of one optimiser step: from graded groups to the trainer's sequences, and from its sums to metrics.

Axes: `_T` tokens, `_G` the generations of one prompt.

The loop calls `plan_step` on the step's groups and hands the result to the trainer together with a
`StepLoss`; `summarise` turns the trainer's sums into the figures of `metrics.jsonl`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moe.sequences import REFERENCE
from scalelab.errors import LabError
from scalelab.recipe.advantages import NORMS, centred, signed
from scalelab.recipe.aggregation import token_weights
from scalelab.recipe.filters import zero_variance
from scalelab.recipe.losses import MAX_LOG_RATIO, Loss, Tokens, reference_kl, sees
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.sequences import PlannedSequences
from scalelab.recipe.types import AnyRollout, Group

if TYPE_CHECKING:
    from torch import Tensor


def rewards(group: Group, recipe: Recipe) -> np.ndarray:
    """Compute the rewards that a group is trained on: ±1, with the length penalty if the recipe has one.

    Returns:
        float64[G] in [−1, 1].
    """
    reward_G = np.array([rollout.reward for rollout in group], dtype=np.float64)
    rewards_G = signed(reward_G)
    if recipe.length_control is not None:
        lengths_G = np.array([rollout.tokens for rollout in group])
        rewards_G = rewards_G + recipe.length_control.penalty(lengths_G, reward_G == 1.0)
    return rewards_G


def graded_only(group: Group) -> list[AnyRollout]:
    """Leave out completions that the verifier failed to grade: a reward of 0 for them would blame the policy."""
    return [rollout for rollout in group if rollout.graded]


def pass_rate(group: Group) -> float | None:
    """Mean reward in [0, 1] over the graded completions, as the sampler's history takes it; None without any."""
    return float(np.mean([rollout.reward for rollout in graded_only(group)])) if graded_only(group) else None


def drop_reason(group: Group, recipe: Recipe) -> str | None:
    """Name the reason that keeps a group out of the loss; None if it is in.

    Returns:
        `ungraded` (fewer than two graded completions), or what `zero_variance` says, unless such groups are
        kept.
    """
    if len(graded_only(group)) < 2:
        return "ungraded"
    return None if recipe.zero_variance == "keep" else zero_variance(rewards(graded_only(group), recipe))


def in_loss(groups: Sequence[Group], recipe: Recipe) -> list[AnyRollout]:
    """The rollouts that a step learns from, in the order of `plan_step`'s sequences."""
    return [rollout for group in groups if drop_reason(group, recipe) is None for rollout in graded_only(group)]


def plan_step(groups: Sequence[Group], recipe: Recipe, trainer_version: int) -> tuple[PlannedSequences, dict[str, Any]]:
    """Choose and weigh the completions that a step learns from, and compute the metrics that need no model.

    Args:
        groups: the step's finished groups, each of `generations_per_prompt` rollouts.
        recipe: the choices.
        trainer_version: optimiser steps behind the weights that the step starts from.

    Returns:
        One sequence per completion in the loss (none at all if every group was dropped: then there is no step to take),
        and metrics ready for `metrics.jsonl`. Completions that the verifier failed to grade count for nothing.

    Raises:
        ValueError: a group of another size, or of several prompts.
        LabError: a sampled token without a finite log-prob.
    """
    for group in groups:
        _check_group(group, recipe)
    reasons = [drop_reason(group, recipe) for group in groups]
    kept = [graded_only(group) for group, reason in zip(groups, reasons, strict=True) if reason is None]
    norm = recipe.advantage_norm
    normalise = NORMS[norm] if isinstance(norm, str) else norm.normalise
    advantages = normalise([centred(rewards(group, recipe)) for group in kept])
    lengths = [np.array([rollout.sampled for rollout in group]) for group in kept]
    weights = token_weights(recipe.aggregation, lengths, recipe.max_tokens)
    rollouts = [rollout for group in kept for rollout in group]
    for rollout in rollouts:
        _check_logprobs(rollout)
    planned = PlannedSequences(rollouts, _flat(advantages), _flat(weights), trainer_version, sees(recipe.loss))
    return planned, _step_metrics(groups, reasons, planned)


def _flat(per_group: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0), *per_group])


def _check_group(group: Group, recipe: Recipe) -> None:
    if len(group) != recipe.generations_per_prompt or len({rollout.prompt_id for rollout in group}) != 1:
        names = ", ".join(sorted({rollout.prompt_id for rollout in group}))
        raise ValueError(
            f"a group of {len(group)} completions of prompt {names or '-'}: "
            f"need {recipe.generations_per_prompt} completions of one prompt"
        )


def _check_logprobs(rollout: AnyRollout) -> None:
    if not rollout.finite:
        raise LabError(
            f"the generator gave a sampled token of prompt {rollout.prompt_id} (task {rollout.task}, versions "
            f"{rollout.spans}) a log-prob that is not finite: its weights are broken; resume from an earlier checkpoint"
        )


def _step_metrics(groups: Sequence[Group], reasons: Sequence[str | None], planned: PlannedSequences) -> dict[str, Any]:
    rollouts = [rollout for group in groups for rollout in group]
    versions = [rollout.oldest_version for rollout in rollouts]
    staleness = Counter(planned.trainer_version - version for version in versions if version is not None)
    return {
        "prompts": len(groups),
        "prompts_in_loss": sum(reason is None for reason in reasons),
        "filtered": dict(sorted(Counter(reason for reason in reasons if reason is not None).items())),
        "tokens": sum(planned.lengths),
        "tokens_in_loss": planned.tokens_in_loss,
        "staleness": {str(steps): count for steps, count in sorted(staleness.items())},
        "tasks": {
            task: _task_metrics([rollout for rollout in rollouts if rollout.task == task])
            for task in sorted({rollout.task for rollout in rollouts})
        },
    }


def _task_metrics(rollouts: Sequence[AnyRollout]) -> dict[str, Any]:
    details = Counter(rollout.detail for rollout in rollouts if rollout.outcome == "error" and rollout.detail)
    commonest = {"error": details.most_common(1)[0][0]} if details else {}
    return {
        "completions": len(rollouts),
        "pass_rate": pass_rate(rollouts),
        "mean_length": float(np.mean([rollout.tokens for rollout in rollouts])),
        "truncated": float(np.mean([rollout.truncated for rollout in rollouts])),
        "interrupted": float(np.mean([rollout.interrupted for rollout in rollouts])),
        "outcomes": dict(sorted(Counter(rollout.outcome for rollout in rollouts).items())),
        **commonest,
    }


class Sampled(NamedTuple):
    """The tokens of a micro-batch as metrics need them, without gradients; all of shape [T]."""

    mask_T: Tensor
    """bool: the tokens that were sampled and are in the loss."""
    log_ratio_T: Tensor
    """log ρ_t = log π_train − log π_gen; 0 where masked."""
    entropy_T: Tensor
    """Entropy of the trainer's distribution, in nats."""
    same_version_T: Tensor
    """bool: those that were sampled by the very weights that the step starts from."""


@dataclass(frozen=True)
class StepMetric:
    """A figure of a step in `metrics.jsonl`; this is all there is to declare of one.

    Attributes:
        name: its key.
        source: name of what micro-batches and ranks combine by its ending: `_sum`, `_min` or `_max`.
        value: computes that; None if the loss, or seeing a reference, gives it (`scalelab.recipe.losses`).
        over: name of the sum of tokens that it is a mean over; None if it is no mean.
        formula: computes the figure from several such sums of a step with tokens; None if that is not needed.
    """

    name: str
    source: str
    value: Callable[[Sampled], Tensor] | None = None
    over: str | None = None
    formula: Callable[[Mapping[str, float]], float] | None = None

    def of(self, sums: Mapping[str, float]) -> float | None:
        """The figure; None where there was no such token."""
        if self.formula is not None:
            return self.formula(sums) if sums["tokens_sum"] > 0 else None
        if self.over is not None:
            return sums[self.source] / sums[self.over] if sums[self.over] > 0 else None
        return sums[self.source] if math.isfinite(sums[self.source]) else None


def _kl(sampled: Sampled) -> Tensor:
    """Σ ρ − 1 − log ρ: an unbiased and non-negative estimate of KL(π_gen ‖ π_train) from the generator's samples."""
    bounded_T = sampled.log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (bounded_T.expm1() - bounded_T).sum()


def _ratios(sampled: Sampled) -> Tensor:
    """ρ of the tokens, of shape [T]; 0 where masked."""
    return sampled.log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().masked_fill(~sampled.mask_T, 0.0)


def _effective_sample(sums: Mapping[str, float]) -> float:
    """Effective sample size over the number of tokens: (Σ ρ)² / (n Σ ρ²) in (0, 1] (Kish 1965; Owen 2013, §9.3)."""
    return sums["weight_sum"] ** 2 / (sums["tokens_sum"] * sums["squared_weight_sum"])


COUNTS: dict[str, Callable[[Sampled], Tensor]] = {
    "tokens_sum": lambda sampled: sampled.mask_T.to(sampled.log_ratio_T.dtype).sum(),
    "weight_sum": lambda sampled: _ratios(sampled).sum(),
    "same_version_tokens_sum": lambda sampled: sampled.same_version_T.to(sampled.log_ratio_T.dtype).sum(),
}
"""Sums that several figures are made of."""

METRICS = (
    # Nats per token.
    StepMetric("entropy", "entropy_sum", lambda s: s.entropy_T.masked_fill(~s.mask_T, 0.0).sum(), "tokens_sum"),
    # ρ of the tokens, and the share of them whose gradient the clip holds back.
    StepMetric("ratio_min", "ratio_min"),
    StepMetric("ratio_mean", "ratio_sum", over="tokens_sum"),
    StepMetric("ratio_max", "ratio_max"),
    StepMetric("ratio_clipped", "clipped_sum", over="tokens_sum"),
    # Share of the tokens that would tell as much if all had the same ρ.
    StepMetric(
        "effective_sample",
        "squared_weight_sum",
        lambda s: _ratios(s).square().sum(),
        formula=_effective_sample,
    ),
    StepMetric("kl", "kl_sum", _kl, "tokens_sum"),
    # KL(π_train ‖ π_ref), where the loss sees the policy that the run began with.
    StepMetric("reference_kl", "reference_kl_sum", over="tokens_sum"),
    # |log π_train − log π_gen|, in nats.
    StepMetric("gap_mean", "gap_sum", lambda s: s.log_ratio_T.abs().sum(), "tokens_sum"),
    StepMetric("gap_max", "gap_max", lambda s: s.log_ratio_T.abs().max()),
    # The same where nothing is left of it but the difference of the two engines and, after an update in flight, the
    # stale KV cache.
    StepMetric(
        "same_version_gap_mean",
        "same_version_gap_sum",
        lambda s: s.log_ratio_T.abs().masked_fill(~s.same_version_T, 0.0).sum(),
        "same_version_tokens_sum",
    ),
)
"""The figures of a step that need the trainer's log-probs, in the order of `metrics.jsonl`."""


@dataclass(frozen=True)
class StepLoss:
    """The recipe's loss in the form the trainer calls, with the sums behind `METRICS`."""

    loss: Loss

    def __call__(
        self, logprobs_T: Tensor, entropy_T: Tensor, extras: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over a micro-batch, and its metrics.

        Args:
            logprobs_T: float[T], the trainer's log-prob of each token, with gradient.
            entropy_T: float[T], entropy of the trainer's distribution of each token, in nats.
            extras: the extras of `plan_step`'s sequences, packed alike.
        """
        names = ("old_logprobs", "advantages", "weights", "sequence_ids")
        tokens = Tokens.masked(logprobs_T, *(extras[name] for name in names))
        seen = {name: extras[name].masked_fill(~tokens.mask_T, 0) for name in sees(self.loss)}
        tokens = replace(tokens, entropy_T=entropy_T, seen=seen)
        loss, metrics = self.loss(tokens)
        same_version_T = tokens.mask_T & (extras["same_version"] != 0)
        sampled = Sampled(tokens.mask_T, tokens.log_ratio_T.detach(), entropy_T.detach(), same_version_T)
        counts = {name: count(sampled) for name, count in COUNTS.items()}
        own = {metric.source: metric.value(sampled) for metric in METRICS if metric.value is not None}
        if REFERENCE in seen:
            own["reference_kl_sum"] = reference_kl(tokens).detach().sum()
        return loss, metrics | counts | own


def summarise(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Turn the trainer's reduced sums into the figures of `metrics.jsonl`.

    Args:
        sums: what `StepLoss` returned, reduced over micro-batches and ranks.
    """
    return {metric.name: metric.of(sums) for metric in METRICS if metric.source in sums}
