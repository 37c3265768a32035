"""Ports between the loop and a world: three small protocols, and their messages.

| world | engines | trainer | graders | time |
|---|---|---|---|---|
| cluster | vLLM in Ray actors | Megatron in Ray actors | verifiers in Ray actors | the wall's |
| virtual | one vLLM engine that stands for many | Megatron in this process | verifiers in threads | simulated |
| simulated | lengths are drawn | a duration | a duration | simulated |
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, TypeVar

from scalelab.errors import LabError

PromptT = TypeVar("PromptT")
RequestT = TypeVar("RequestT")
CompletionT = TypeVar("CompletionT")
VerdictT = TypeVar("VerdictT")
RolloutsT = TypeVar("RolloutsT")
"""The graded completions of a group."""
ResultT = TypeVar("ResultT")
"""Result of a step, as the trainer gives it."""
WeightsT = TypeVar("WeightsT")
"""Weights on their way, from `Trainer.publish` to `Engines.update`."""


class Step(Protocol):
    """An optimiser step that is about to be taken."""

    @property
    def sequences(self) -> object:
        """All that is trained on; false in a condition if that is nothing."""


StepT = TypeVar("StepT", bound=Step)

_PromptIn = TypeVar("_PromptIn", contravariant=True)
_RequestIn = TypeVar("_RequestIn", contravariant=True)
_CompletionIn = TypeVar("_CompletionIn", contravariant=True)
_StepIn = TypeVar("_StepIn", contravariant=True)
_WeightsIn = TypeVar("_WeightsIn", contravariant=True)
_ResultOut = TypeVar("_ResultOut", covariant=True)
_WeightsOut = TypeVar("_WeightsOut", covariant=True)


def capacity(places: int) -> int:
    """Requests to keep outstanding: 1.5 for each place in the engines, so that a freed place is refilled at once."""
    return round(places * 1.5)


def too_few_places(places: int, completions: int) -> str | None:
    """The reason why no group of so many completions could ever be started; None if one can."""
    if capacity(places) >= completions:
        return None
    return (
        f"a group has {completions} completions, and all engines together take {capacity(places)} at a time: raise "
        "GeneratorConfig.max_sequences, GeneratorConfig.kv_cache_gib or Cluster.generators, or lower "
        "Recipe.generations_per_prompt"
    )


class TrainerLostError(LabError):
    """The trainer died or hangs: the run has to go back to a checkpoint."""


class StepLostError(LabError):
    """No completion of a step could be fetched: their groups have to be generated again, and the trainer is well."""


class EvaluationLostError(LabError):
    """The engines that were set aside for an evaluation are lost, and with them its weights."""


class Engines(Protocol[_RequestIn, CompletionT, _WeightsIn]):
    """Generators of completions, with weights that change in flight."""

    @property
    def version(self) -> int:
        """The oldest policy version that a request made now could be generated with."""

    @property
    def outstanding(self) -> int:
        """Completions asked for and not there yet."""

    @property
    def room(self) -> int:
        """Completions that could be asked for now: places in the engines, and some to wait for the next."""

    async def generate(self, requests: Sequence[_RequestIn]) -> list[CompletionT]:
        """Generate all completions of a group, in the order of the requests.

        Raises:
            EvaluationLostError: they are of an evaluation that lost the engines set aside for it.
        """

    def set_aside(self, count: int) -> int:
        """Let engines keep their weights for an evaluation; returns how many do. 0 ends it."""

    async def update(self, version: int, weights: _WeightsIn) -> None:
        """Swap the weights in flight; returns when every engine that is up holds them.

        Args:
            version: policy version.
            weights: what `Trainer.publish` gave.
        """

    def forget(self) -> None:
        """Drop all requests; their late completions are discarded."""

    def totals(self) -> Mapping[str, float]:
        """Counters since the start: `completions`, `tokens`, `busy_seconds_train`, `busy_seconds_eval`, `idle_seconds`,
        `update_seconds`, `update_bytes`, `fetched_bytes`, `recomputed_tokens`."""

    async def serve(self) -> None:
        """Keep the engines at work until cancelled.

        Raises:
            LabError: they cannot be replaced any more.
        """


class Trainer(Protocol[_StepIn, _ResultOut, _WeightsOut]):
    """The policy that learns. Calls are carried out in the order in which they are made."""

    def step(self, step: _StepIn) -> Awaitable[_ResultOut]:
        """Take an optimiser step.

        Raises:
            TrainerLostError: when awaited: the trainer has to go back to a checkpoint.
            StepLostError: when awaited: the step was not taken, for what it is to learn from is lost.
        """

    def publish(self, version: int) -> Awaitable[_WeightsOut]:
        """Lay the weights out for the engines, as those of a policy version; they replace the last ones."""


class Graders(Protocol[_PromptIn, _CompletionIn, VerdictT]):
    """Verifiers of completions."""

    @property
    def outstanding(self) -> int:
        """Completions that have no verdict yet."""

    @property
    def room(self) -> int:
        """Completions that could be graded at once; 0 while some wait."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Graders replaced, completions graded again, and given up."""

    async def grade(self, prompt: _PromptIn, completions: Sequence[_CompletionIn]) -> list[VerdictT]:
        """Grade completions of one prompt, in their order."""

    async def serve(self) -> None:
        """Keep the graders at work until cancelled.

        Raises:
            LabError: they cannot be replaced any more.
        """
