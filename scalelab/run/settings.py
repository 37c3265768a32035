"""Settings of a run's parts: fine-tuning, evaluations, budget, cluster, virtual world, lengths; frozen, free of gin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from scalelab.errors import LabError
from scalelab.hardware import device
from scalelab.recipe.length_control import ForcedInterruption, LengthControl
from scalelab.recipe.recipe import Recipe
from scalelab.run.evaluation_sets import Benchmark, Cadence, EvaluationSet, HeldOut
from tasks.data.traces import PublicTraces
from tasks.task import Task

TICKS_PER_SECOND = 2**26
"""Resolution of simulated time."""
_LEAST = 1 / TICKS_PER_SECOND
"""Shortest decoding step, in seconds."""


@dataclass(frozen=True, config=CHECKED)
class SFT:
    """Supervised fine-tuning on reasoning traces before RL, the tasks' own or public ones; cached by content."""

    steps: NonNegativeInt = 600
    """Optimiser steps. 0 starts RL from the initial weights."""

    traces_per_step: PositiveInt = 64
    """Traces (prompt and completion) an optimiser step averages over."""

    seed: int | None = None
    """Seed of the base model's initial weights; None takes `Run.seed`. Runs that differ in `Run.seed` alone then start
    from one model."""

    learning_rate: NonNegativeFloat = 2e-3
    """Peak learning rate: linear warm-up over the first 5 % of the steps, then a cosine to a tenth."""

    trainers: PositiveInt = 1
    """Trainer ranks while SFT runs; the generators' devices are free then."""

    checkpoint_every: PositiveInt = 100
    """Optimiser steps between checkpoints, from which fine-tuning goes on after a fault or with `--resume`."""

    pretrained: str | None = None
    """Hugging Face folder of the model that RL starts from, `hub:ORG/NAME` (or `hub:ORG/NAME@REVISION`) to download it
    from the Hugging Face hub, or `package:NAME` for the GGUF file in a Python package. With `traces`, it is the model
    that is fine-tuned. None fine-tunes one on the tasks' own traces, which public data sets do not have."""

    traces: PublicTraces | Literal["tasks"] | None = None
    """Traces on which `pretrained` is fine-tuned before RL: public ones, or the tasks' own worked examples; None takes
    it as it is."""

    longest: PositiveInt = 12288
    """Most tokens of a public trace, prompt and completion together; longer ones are left out (ScaleRL A.3)."""

    def __post_init__(self) -> None:
        if self.traces is not None and self.pretrained is None:
            raise ValueError("SFT.traces fine-tune a pretrained model: bind SFT.pretrained to its Hugging Face folder")

    @property
    def public(self) -> PublicTraces | None:
        """The public traces; None if there are none."""
        return self.traces if isinstance(self.traces, PublicTraces) else None

    @property
    def worked_examples(self) -> bool:
        """True if a model is fine-tuned on the tasks' own worked examples."""
        return self.traces == "tasks" or self.pretrained is None


@dataclass(frozen=True, config=CHECKED)
class Evaluation:
    """Mean@k on fixed prompts that are not trained on, at step 0, every few steps, and at the end."""

    every: PositiveInt = 10
    """Optimiser steps between evaluations (ScaleRL §2: 100)."""

    every_hours: PositiveFloat | None = None
    """Device-hours between evaluations, in place of `every`: recipes whose steps cost differently are then evaluated at
    the same compute."""

    prompts: Annotated[int, Field(ge=2)] = 128
    """Held-out prompts per task (ScaleRL §2: 1,000); a standard error needs two."""

    samples: PositiveInt = 4
    """Completions per held-out prompt, the k of mean@k (ScaleRL §2: 16)."""

    early_samples: PositiveInt | None = None
    """Completions per prompt until `full_from`, at most `samples`, for sets that bind no `samples` of their own. The
    prompts stay the same. None: `samples` in every evaluation."""

    full_from: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Part of the budget from which evaluations take all `samples`, where `early_samples` is given; `scalelab design`
    says what accuracy the two leave."""

    sets: tuple[HeldOut | Benchmark, ...] = ()
    """Evaluation sets, such as `(@HeldOut(), @Benchmark())`; what they do not bind is as here. Empty: the held-out
    split of the run's tasks alone."""

    engines: NonNegativeInt | Annotated[float, Field(gt=0, lt=1)] = 0
    """Engines that keep their weights for an evaluation while the others go on taking new ones, as a number or, below
    1, as the nearest share of `Cluster.generators`; 0: all keep theirs, and the trainer gets ahead of them by as many
    steps as the schedule allows."""

    fit_since: NonNegativeFloat | None = None
    """First compute used for fitting unless told otherwise, in device-hours
    (ScaleRL A.4: 1,500, about an epoch). None: from the first evaluation."""

    fit_until: PositiveFloat | None = None
    """Last compute used for fitting; later points test the forecast. None: to the end."""

    def __post_init__(self) -> None:
        if self.fit_until is not None and (self.fit_since or 0.0) >= self.fit_until:
            raise ValueError(
                f"Evaluation.fit_since {self.fit_since:g} and fit_until {self.fit_until:g} leave no window: give "
                "since < until"
            )
        if not self.first:
            raise ValueError(
                "every set of Evaluation.sets is evaluated at the end alone: a curve needs one that is not"
            )
        kinds = [type(one) for one in self.chosen]
        if kinds.count(HeldOut) > 1:
            raise ValueError("Evaluation.sets has two HeldOut: the held-out split is one set; give one")

    def engines_of(self, generators: int) -> int:
        """Engines to set aside of so many; of a share at least one goes on."""
        if isinstance(self.engines, int):
            return self.engines
        return min(round(self.engines * generators), generators - 1)

    @property
    def chosen(self) -> tuple[HeldOut | Benchmark, ...]:
        """The sets of a run: `sets`, or the held-out split."""
        return self.sets or (HeldOut(),)

    def cadence(self, one: EvaluationSet) -> Cadence:
        """The rule for when a set is evaluated: its own, or else the evaluation's."""
        if one.at_end:
            return Cadence(None, None)
        own = one.every is not None or one.every_hours is not None
        every, hours = (one.every, one.every_hours) if own else (self.every, self.every_hours)
        return Cadence(None if hours is not None else every, hours)

    def due(self, step: int, since: float, compute: float) -> tuple[str, ...]:
        """The names of the sets that the weights after a step are to be evaluated on.

        Args:
            step: optimiser steps so far, with this one.
            since: device-hours when the step before was booked.
            compute: device-hours now.
        """
        return tuple(name for name, rule in self._rules() if rule.due(step, since, compute))

    @property
    def first(self) -> tuple[str, ...]:
        """The names of the sets that the first weights are evaluated on."""
        return tuple(name for name, rule in self._rules() if rule.first)

    def period(self, hours_of_step: float) -> float:
        """Optimiser steps from one evaluation to the next, where each step takes so many device-hours."""
        return min(rule.period(hours_of_step) for _, rule in self._rules())

    def steps(self, last: int, hours_of_step: float | None = None) -> list[int]:
        """Steps that a run evaluates: the first weights, those that are due, and the last.

        Args:
            last: optimiser steps of the run.
            hours_of_step: device-hours of each; None if nobody knows, and any step may be due by its hours.
        """
        return sorted({step for _, rule in self._rules() for step in rule.steps(last, hours_of_step)})

    def _rules(self) -> list[tuple[str, Cadence]]:
        return [(one.set_name, self.cadence(one)) for one in self.chosen]


@dataclass(frozen=True, config=CHECKED)
class Budget:
    """Limits of a run; it ends at whichever comes first."""

    steps: PositiveInt = 200
    """Optimiser steps."""

    hours: PositiveFloat | None = None
    """Compute of generators and trainers together, in device-hours (GPU-hours; core-hours on a CPU). Once they are
    spent, no step begins, completions in flight are dropped, and the last policy is evaluated."""

    hour_price: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Price of a device-hour in your currency, with which `plan`, `simulate` and `status` say what the budget costs."""

    def part(self, step: int, compute: float) -> float:
        """Part of the budget that so many steps and device-hours have spent: of the limit that is nearer."""
        return max(step / self.steps, 0.0 if self.hours is None else compute / self.hours)

    def steps_within(self, hours_of_step: float | None) -> int:
        """Optimiser steps that a run takes whose steps take so many device-hours; `steps` where these are not known.

        The last begins while hours are left, and may end behind them.
        """
        if self.hours is None or hours_of_step is None:
            return self.steps
        return min(self.steps, math.ceil(self.hours / hours_of_step))

    def cost(self, hours: float) -> float | None:
        """Price of so many device-hours; None where none is given."""
        return None if self.hour_price is None else hours * self.hour_price


@dataclass(frozen=True, config=CHECKED)
class Cluster:
    """The run's devices, and the time limits of its parts."""

    address: str | None = None
    """Ray address to join; None starts Ray on this machine and stops it at the end."""

    device: Literal["cpu", "gpu"] = "cpu"
    """Kind of device that a generator or a trainer rank occupies."""

    hardware: str | None = None
    """Model of the devices for planning and for MFU, by a name of `scalelab plan --hardware`; None: a run on GPUs takes
    what it finds."""

    devices_per_node: PositiveInt = 8
    """Trainer ranks that share a node where there are as many; expert parallelism should stay within."""

    share_devices: bool = False
    """Put generator i and trainer rank i on one device, as on a machine with a single GPU. Half of it counts as each
    one's. They work at the same time, so both are slower."""

    publication: Literal["files", "nccl"] = "files"
    """Way of new weights to the engines: "files" in memory, mapped on a machine and fetched by others, beside training;
    or "nccl", vLLM's own broadcast over NCCL, for which the trainer stands still (several GPUs only)."""

    generators: PositiveInt = 1
    """Engines, each on `GeneratorConfig.tensor_parallel` devices of one node."""

    trainers: PositiveInt = 1
    """Trainer ranks, one process each."""

    verifiers: PositiveInt = 1
    """Verifier actors, each with its own math and sandbox workers."""

    shard_bytes: NonNegativeInt = 100_000
    """Size of an engine's answer from which tokens and texts of its completions stay in the object store of its node,
    and the driver gets keys. Ray sends smaller objects along in any case."""

    startup_seconds: PositiveFloat = 300.0
    """Deadline for an actor to come up."""

    stall_seconds: PositiveFloat = 300.0
    """Deadline for any single thing the loop waits for: a completion, a verdict, a step, a weight update."""

    hang_seconds: PositiveFloat = 120.0
    """Time without an answer, or without a new token while it has work, after which a generator is killed and
    replaced. On a GPU it must be longer than the first steps of an engine that still compiles."""

    generator_restarts: NonNegativeInt = 10
    """Generators that a run may replace before it ends with an error."""

    try_step: bool = False
    """Before a new run's first evaluation, take a step on made-up completions of the longest length and start the
    trainer again: what would break the first real step then costs a minute, and not an evaluation by all devices."""

    trainer_restarts: NonNegativeInt = 3
    """Times that a run may start the trainer again, from its newest checkpoint, before it ends with an error."""

    def __post_init__(self) -> None:
        if self.hardware is not None:
            device(self.hardware)
        if not self.share_devices:
            return
        if self.generators != self.trainers or self.trainers > self.devices_per_node:
            raise ValueError(
                f"Cluster.share_devices pairs generators and trainer ranks of one node: {self.generators} generators "
                f"and {self.trainers} trainers on nodes of {self.devices_per_node} devices cannot be paired"
            )
        if self.publication != "files":
            raise ValueError(
                f"Cluster.publication = {self.publication!r} needs a device for each side, and Cluster.share_devices "
                "gives both one: take 'files'"
            )

    @property
    def share(self) -> float:
        """Part of a device that a generator's process or a trainer rank holds."""
        return 0.5 if self.share_devices else 1.0


@plain_dataclass(frozen=True)
class Rates:
    """Seconds per operation of one generator engine and of one trainer unit."""

    step_seconds: float
    """A decoding step of one engine, however few sequences it has."""
    sequence_seconds: float
    """Seconds that each sequence adds to a decoding step."""
    train_token_seconds: float
    """A token of prompt or completion, in an optimiser step on one trainer unit; n units share the tokens evenly."""
    train_step_seconds: float = 0.0
    """Seconds of an optimiser step without those of its tokens."""
    export_seconds: float = 0.0
    """The trainer gathers the weights for the generators, before its next step can begin."""
    transfer_seconds: float = 0.0
    """The weights are under way while both sides work."""
    pause_seconds: float = 0.0
    """Generators stand still to take them."""
    verify_seconds: float = 0.0
    """Seconds from a group's last token to its last verdict."""
    host_seconds: float = 0.0
    """Seconds in which the verifiers grade a completion, one after the other; of `cores`, they hold one meanwhile."""
    cores: int | None = None
    """Cores that generators, trainer units and host work share, one core each; None: no part waits for a core."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise LabError(f"{name} is {value:g}: give a rate of 0 or more")
        if self.cores is not None and self.cores < 1:
            raise LabError(f"cores is {self.cores}: give at least 1, or leave it out")
        if (
            self.step_seconds + self.sequence_seconds < _LEAST
            or self.train_token_seconds + self.train_step_seconds <= 0
        ):
            raise LabError("a decoding step and an optimiser step must take some time: give rates above 0")


@dataclass(frozen=True, config=CHECKED)
class Virtual:
    """A simulated cluster of the size in `Cluster`; one process with one engine and one trainer stands for it.

    Time is simulated, and compute is booked in device-hours of the simulated cluster. A run repeats to the last bit.
    """

    hardware: str | None = None
    """Device that `scalelab.plan` estimates the rates for, such as h100; None where `rates` are given, or else for the
    cluster's own."""

    rates: Rates | None = None
    """Durations of the cluster's operations; None estimates them for `hardware`."""

    memory_gib: PositiveFloat = 8.0
    """Most memory for the one engine's KV cache, which holds the sequences of all simulated engines."""

    portable: bool = False
    """Keep to kernels that every x86-64 processor with AVX2 has, so that the run repeats to the last bit on processors
    of different kinds, too (`moe.cpu.portable`)."""

    def __post_init__(self) -> None:
        if self.hardware is not None and self.rates is not None:
            raise ValueError(
                f"Virtual.hardware = {self.hardware!r} and Virtual.rates exclude each other: leave --hardware out, or "
                "bind Virtual.rates = None"
            )
        if self.hardware is not None:
            device(self.hardware)


@plain_dataclass(frozen=True)
class TaskLimits:
    """Limits on one task's completions.

    Attributes:
        max_tokens: most tokens of a completion.
        control: what interrupts long thinking; None for a task without thinking.
        typical: median length in tokens; None if the task does not say.
    """

    max_tokens: int
    control: LengthControl | None
    typical: int | None = None


def limits_of(task: Task, recipe: Recipe, most: int | None = None) -> TaskLimits:
    """The limits of a task's completions under a recipe.

    Args:
        task: may have `max_tokens`, `interrupt` (first, last token) and `typical_tokens`; None is the recipe's.
        recipe: the run's.
        most: most tokens of a task that does not say; None is as the recipe says.
    """
    control, window = recipe.length_control, getattr(task, "interrupt", None)
    if control is not None and control.phrase and not task.has_thinking:
        control = None
    elif isinstance(control, ForcedInterruption) and window is not None:
        control = replace(control, earliest=window[0], latest=window[1])
    own = getattr(task, "max_tokens", None)
    return TaskLimits(own or most or recipe.max_tokens, control, getattr(task, "typical_tokens", None))


def task_shares(names: Sequence[str], weights: Sequence[float] | None) -> dict[str, float]:
    """Share of each task among the prompts drawn."""
    given = weights or [1.0] * len(names)
    return {name: weight / sum(given) for name, weight in zip(names, given, strict=True)}
