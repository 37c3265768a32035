"""The recipe: the choices that the lab compares, as one frozen record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field, PositiveInt, SkipValidation
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from scalelab.recipe.length_control import ForcedInterruption, LengthControl, LengthPenalty
from scalelab.recipe.losses import CISPO, Loss
from tasks.sampler import Curriculum
from tasks.thinking import THINK_CLOSE

if TYPE_CHECKING:  # what names experiments does without
    import numpy as np

Aggregation = Literal["prompt", "sample", "token", "constant"]
ZeroVariance = Literal["drop", "keep", "refill"]
FP32Head = Literal["both", "trainer", "generator", "none"]


class AdvantageNorm(Protocol):
    """An advantage norm of the user's own."""

    def normalise(self, advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Normalise a step's advantages: float64[G] per prompt, as `scalelab.recipe.advantages.centred` gives them."""
        ...


@dataclass(frozen=True, config=CHECKED)
class Recipe:
    """The choices that turn completions into a gradient. The defaults are ScaleRL (§4).

    Who waits for whom (PipelineRL-k, PPO-off-policy-k, synchronous) belongs to the schedule, the learning rate to the
    optimiser.

    Raises:
        ValueError: an unknown choice, a number out of range, or choices that contradict each other.
    """

    loss: SkipValidation[Loss] = field(default_factory=CISPO)
    """The policy loss."""
    aggregation: Aggregation = "prompt"
    """Mean in the loss: over prompts, samples (completions), or all tokens of the step; `constant`: a sum over
    tokens, divided by a constant."""
    advantage_norm: Literal["batch", "prompt", "none"] | SkipValidation[AdvantageNorm] = "batch"
    """Standard deviation that divides an advantage: the batch's, the prompt's own, none, or the user's own norm."""
    zero_variance: ZeroVariance = "drop"
    """Groups whose rewards are all equal: dropped from the step, kept in it, or replaced by drawing more prompts."""
    retire_at: Annotated[float, Field(gt=0, le=1)] | None = 0.9
    """Historical pass rate from which a prompt is never drawn again (no-positive-resampling); None: uniform drawing."""
    curriculum: SkipValidation[Curriculum] | None = None
    """The user's own order of prompts, in place of tasks drawn by weight; see `tasks.sampler`."""
    length_control: SkipValidation[LengthControl] | None = field(default_factory=ForcedInterruption)
    """Method that keeps completions within `max_tokens`."""
    fp32_head: FP32Head = "both"
    """Sides that compute their language-model head in FP32."""
    router_replay: bool = False
    """Send tokens through the same experts in the trainer as in the generator that made them (mixtures of experts)."""
    prompts_per_step: PositiveInt = 48
    """Prompts of one optimiser step; with `zero_variance = "drop"` fewer of them are left in the loss."""
    prompts_at_start: PositiveInt | None = None
    """Prompts of the first step, where the batch grows; None for as many as in every other."""
    prompts_grow_until: PositiveInt | None = None
    """Optimiser step from which on a batch has `prompts_per_step`; until then it grows linearly."""
    generations_per_prompt: Annotated[int, Field(ge=2)] = 16
    """Completions of each prompt; an advantage compares a completion with the others of its prompt."""
    max_tokens: PositiveInt = 14 * 1024
    """Most tokens of one completion, thinking and answer (12k + 2k)."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Softmax temperature of the training completions; the trainer's log-probs must be taken at the same one."""

    def __post_init__(self) -> None:
        first, until = self.prompts_at_start, self.prompts_grow_until
        if (first is None) != (until is None) or (first or 0) > self.prompts_per_step:
            raise ValueError(
                f"prompts_at_start = {first} with prompts_grow_until = {until}: bind both for a batch that grows to "
                f"prompts_per_step ({self.prompts_per_step}), the first to at most that, or neither"
            )
        control = self.length_control
        if control is not None and control.phrase and not control.phrase.rstrip().endswith(THINK_CLOSE):
            raise ValueError(
                f"the phrase {control.phrase!r} of length_control does not close the thinking: end it with </think>"
            )
        if isinstance(control, ForcedInterruption) and control.latest >= self.max_tokens:
            raise ValueError(
                f"an interruption at token {control.latest} leaves no room for an answer within max_tokens "
                f"{self.max_tokens}: lower length_control.latest or raise max_tokens"
            )
        if isinstance(control, LengthPenalty) and control.max_tokens > self.max_tokens:
            raise ValueError(
                f"the length penalty ends at {control.max_tokens} tokens, beyond max_tokens {self.max_tokens}: "
                "lower length_control.max_tokens or raise max_tokens"
            )

    def prompts_at(self, step: int) -> int:
        """Prompts of an optimiser step, counted from 0."""
        if self.prompts_at_start is None or self.prompts_grow_until is None or step >= self.prompts_grow_until:
            return self.prompts_per_step
        grown = (self.prompts_per_step - self.prompts_at_start) * step // self.prompts_grow_until
        return self.prompts_at_start + grown

    @property
    def completions_per_step(self) -> int:
        """Prompts per step times generations per prompt."""
        return self.prompts_per_step * self.generations_per_prompt

    @property
    def trainer_fp32_head(self) -> bool:
        """True if the trainer computes its head in FP32."""
        return self.fp32_head in ("both", "trainer")

    @property
    def generator_fp32_head(self) -> bool:
        """True if the generator computes its head in FP32."""
        return self.fp32_head in ("both", "generator")
