"""The work on groups of a real run: requests, rollouts, and the training sequences of a step.

Axes: `_G` the generations of one prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from scalelab.recipe.length_control import LengthControl, interruption
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.sequences import PlannedSequences
from scalelab.recipe.step import StepLoss, drop_reason, in_loss, pass_rate, plan_step
from scalelab.recipe.types import AnyRollout, HeldRecord, HeldRollout, Rollout, is_held
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.rollout.types import AnsweredVerdict, AnyCompletion, HeldCompletion, Kind, Request
from scalelab.run.settings import TaskLimits, limits_of
from tasks.stream import stable_number
from tasks.task import Task
from tasks.types import Prompt, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LONGEST_GOLD = 500
"""Characters of a right answer that are kept with a completion."""


@dataclass(frozen=True)
class Step:
    """An optimiser step that is about to be taken.

    Attributes:
        sequences: what the trainer learns from; empty if every group was left out.
        loss: the recipe's.
        metrics: what needs no model, for `metrics.jsonl`.
        completions: in all groups of the step.
        generated: completion tokens of all groups of the step.
        rollouts: those behind the sequences, in their order, if they are to be kept; else empty.
        records: keys of the records of experts that the sequences lack, one for each or None; empty if they lack none.
    """

    sequences: PlannedSequences
    loss: StepLoss
    metrics: dict[str, object]
    completions: int
    generated: int
    rollouts: list[AnyRollout]
    records: list[HeldRecord | None] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """True if completions or their records lie elsewhere, so that ranks have to fetch them first."""
        return bool(self.sequences.keys or self.records)

    @property
    def kept(self) -> bool:
        """True if the step's completions are to be kept, with the trainer's log-probabilities."""
        return bool(self.rollouts)

    @property
    def tokens(self) -> int:
        """Tokens of prompts and completions that are trained on."""
        return sum(self.sequences.lengths)


class Sampling:
    """Requests for completions of prompts, and their rollouts once they are graded.

    Args:
        tokenizer: turns prompts into tokens.
        generations: completions of a prompt.
        max_tokens: most tokens of a completion.
        temperature: of the sampling.
        length_control: what interrupts long thinking.
        limits: of single tasks, by name, in place of the two.
        seed: with a group's name it decides where completions are interrupted.
        seeded: whether it decides how completions are sampled, too: the same prompt under the same name then draws the
            same random numbers.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        generations: int,
        max_tokens: int,
        temperature: float = 1.0,
        length_control: LengthControl | None = None,
        limits: Mapping[str, TaskLimits] | None = None,
        seed: int = 0,
        seeded: bool = False,
    ) -> None:
        self.generations, self.max_tokens, self.temperature = generations, max_tokens, temperature
        self._tokenizer, self._control = tokenizer, length_control
        self._limits = dict(limits or {})
        self._seed, self._seeded = seed, seeded

    def like(
        self, *, generations: int, max_tokens: int, temperature: float, limits: Mapping[str, TaskLimits]
    ) -> Sampling:
        """Sampling with the same seed and tokenizer, and with these settings."""
        return Sampling(
            self._tokenizer,
            generations=generations,
            max_tokens=max_tokens,
            temperature=temperature,
            length_control=self._control,
            limits=limits,
            seed=self._seed,
            seeded=self._seeded,
        )

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt."""
        return prompt_ids(self._tokenizer, prompt)

    def requests(self, name: str, prompt: Prompt, kind: Kind = "train") -> list[Request]:
        """Requests for the completions of one prompt, each with its own place for an interruption."""
        seed = stable_number(self._seed, kind, name)
        rng = np.random.default_rng(seed)
        ids = self.prompt_ids(prompt)
        limits = self._limits.get(prompt.task) or TaskLimits(self.max_tokens, self._control)
        return [
            Request(
                id=f"{kind}/{name}/{number}",
                prompt_ids=ids,
                max_tokens=min(self.max_tokens, limits.max_tokens),
                seed=(seed + number) % 2**63 if self._seeded else None,
                temperature=self.temperature,
                interrupt_at=interruption(limits.control, rng),
                kind=kind,
                task=prompt.task,
            )
            for number in range(self.generations)
        ]

    def rollouts(
        self, prompt: Prompt, completions: Sequence[AnyCompletion], verdicts: Sequence[Verdict]
    ) -> list[AnyRollout]:
        """The graded completions of one prompt, which share its token ids."""
        ids = np.array(completions[0].request.prompt_ids, np.int32) if completions else np.empty(0, np.int32)
        return [rollout(prompt, ids, *pair) for pair in zip(completions, verdicts, strict=True)]


class RolloutWork(Sampling):
    """Groups of completions according to the recipe.

    Args:
        recipe: the run's.
        tokenizer: turns prompts into tokens.
        seed: the run's.
        seeded: whether it decides how completions are sampled; see `Sampling`.
        keep_every: keep the completions of every step whose number is a multiple of this; None keeps none.
        tasks: the run's, which may have limits of their own.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        seeded: bool,
        keep_every: int | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        super().__init__(
            tokenizer,
            generations=recipe.generations_per_prompt,
            max_tokens=recipe.max_tokens,
            temperature=recipe.temperature,
            length_control=recipe.length_control,
            limits={task.name: limits_of(task, recipe) for task in tasks},
            seed=seed,
            seeded=seeded,
        )
        self.recipe, self._keep_every = recipe, keep_every

    def outcome(self, rollouts: list[AnyRollout]) -> tuple[float | None, str | None]:
        """A group's pass rate, and the reason to replace it by another (None: it waits for its step)."""
        reason = drop_reason(rollouts, self.recipe) if self.recipe.zero_variance == "refill" else None
        return pass_rate(rollouts), reason

    def step(self, groups: list[list[AnyRollout]], version: int) -> Step:
        """The training sequences of a step on these groups, with metrics that need no model."""
        sequences, metrics = plan_step(groups, self.recipe, version)
        rollouts = [rollout for group in groups for rollout in group]
        generated = sum(rollout.tokens for rollout in rollouts)
        kept = self._keep_every is not None and (version + 1) % self._keep_every == 0
        trained = in_loss(groups, self.recipe)
        records = [one.routed_TLK if is_held(one.routed_TLK) else None for one in trained]
        return Step(
            sequences,
            StepLoss(self.recipe.loss),
            metrics,
            len(rollouts),
            generated,
            trained if kept else [],
            records if any(records) else [],
        )


def rollout(prompt: Prompt, ids: np.ndarray, completion: AnyCompletion, verdict: Verdict) -> AnyRollout:
    """A graded completion."""
    gold, parts = shown_gold(prompt.gold), dict(verdict.parts)
    if isinstance(completion, HeldCompletion):
        return HeldRollout(
            prompt_id=prompt.id,
            task=prompt.task,
            prompt_ids=ids,
            tokens=completion.tokens,
            sampled=completion.sampled,
            finite=completion.finite,
            content=completion.content,
            spans=completion.spans,
            reward=verdict.reward,
            outcome=verdict.outcome,
            truncated=completion.truncated,
            interrupted=completion.interrupted,
            routed_TLK=completion.routed_TLK,
            prompt=prompt.text,
            detail=verdict.detail,
            gold=gold,
            parts=parts,
            answer=verdict.answer if isinstance(verdict, AnsweredVerdict) else None,
        )
    return Rollout(
        prompt_id=prompt.id,
        task=prompt.task,
        prompt_ids=ids,
        completion_ids=completion.token_ids,
        logprobs_T=completion.logprobs_T,
        forced_T=completion.forced_T,
        spans=completion.spans,
        reward=verdict.reward,
        outcome=verdict.outcome,
        truncated=completion.truncated,
        interrupted=completion.interrupted,
        routed_TLK=completion.routed_TLK,
        prompt=prompt.text,
        text=completion.text,
        detail=verdict.detail,
        gold=gold,
        parts=parts,
    )


def shown_gold(gold: object) -> str:
    """A right answer as readers see it; empty for what is no text, number or list of these, such as tests."""
    if isinstance(gold, list | tuple) and all(isinstance(one, str | int | float) for one in gold):
        gold = " or ".join(map(str, gold))
    return str(gold)[:LONGEST_GOLD] if isinstance(gold, str | int | float) else ""
