"""`Run`: all settings of a run, as a frozen dataclass that imports fast and does not depend on gin."""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

from pydantic import PositiveFloat, PositiveInt, SkipValidation
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.checkpoint.folder import CheckpointPolicy
from moe.checkpoint.size import save_seconds
from moe.model.families import Model
from moe.sequences import REFERENCE
from moe.settings import TrainerConfig, TrainerSetup
from scalelab.recipe.losses import sees
from scalelab.recipe.recipe import Recipe
from scalelab.rollout.config import GeneratorConfig, GeneratorSetup
from scalelab.run import checks
from scalelab.run.evaluation_sets import Benchmark, Cadence, HeldOut, ReadySet
from scalelab.run.settings import SFT, Budget, Cluster, Evaluation, Virtual
from scalelab.schedule.schedule import SchedulePolicy
from scalelab.store.retention import Retention
from scalelab.watch.monitors import Monitors
from scalelab.watch.tracker import TrackerName
from tasks.task import Task


@dataclass(frozen=True, config=CHECKED)
class Run:
    """All settings of one run."""

    model: Model
    """Architecture of the policy; trainer and generator are both built from it."""

    trainer: TrainerConfig
    """Parallel layout, precision and optimiser."""

    generator: GeneratorConfig
    """The vLLM engine of each generator."""

    recipe: Recipe
    """The RL algorithm."""

    schedule: SkipValidation[SchedulePolicy]
    """Schedule of generators and trainer: who waits for whom."""

    tasks: tuple[SkipValidation[Task], ...]
    """Tasks to train and evaluate, mixed in one run."""

    sft: SFT
    """Supervised fine-tuning before RL."""

    evaluation: Evaluation
    """Evaluations on held-out prompts."""

    budget: Budget
    """Limits of the run."""

    cluster: Cluster
    """Devices, and time limits of the run's parts."""

    monitors: Monitors = field(default_factory=Monitors)
    """Limits of a healthy run, and the alarms that stop it."""

    task_weights: tuple[PositiveFloat, ...] | None = None
    """Share of each task among the prompts drawn; None draws all alike."""

    seed: int = 0
    """Seeds initial weights, prompt order, SFT traces and sampling."""

    virtual: Virtual | None = None
    """A simulated cluster on a simulated clock, in place of the real one; None runs on what there is."""

    checkpoint_every: PositiveInt = 50
    """Optimiser steps between checkpoints; one is also written at the end."""

    checkpoint_hours: PositiveFloat | None = None
    """Hours of the run between checkpoints, in place of `checkpoint_every`: what a fault can cost at most."""

    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    """Writing of checkpoints, and the rule for those that stay on disk."""

    retention: Retention = field(default_factory=Retention)
    """Rule for which evaluations' completions stay on disk."""

    trackers: tuple[TrackerName, ...] = ()
    """Services that show the run besides its own folder and TensorBoard (docs/howto/trackers.md)."""

    def __post_init__(self) -> None:
        checks.check_sets(self.sets, self.tasks, self.generator, self.cluster.device)
        checks.check_tasks(self.tasks, self.task_weights, self.recipe)
        checks.check_places(self.recipe, self.evaluation, self.cluster, self.generator)
        checks.check_lengths(self.model, self.recipe, self.generator, self.sft)
        checks.check_recipe(self.model, self.recipe, self.trainer)
        checks.check_world(self.trainer, self.cluster, self.virtual)
        checks.check_devices(self.model, self.trainer, self.generator, self.cluster, self.sft)

    @cached_property
    def sets(self) -> tuple[ReadySet, ...]:
        """The evaluation sets, every setting filled in; made once, as their tasks keep what they have loaded."""
        return tuple(self._ready(one) for one in self.evaluation.chosen)

    def _ready(self, one: HeldOut | Benchmark) -> ReadySet:
        evaluation = self.evaluation
        trained = isinstance(one, HeldOut)
        tasks = self.tasks if isinstance(one, HeldOut) else (one.named_task(self.tasks),)
        samples = one.samples or (1 if one.temperature == 0 else evaluation.samples)
        own = one.samples is not None or one.temperature == 0
        fixed = any(hasattr(type(task), "held_out_count") for task in tasks) and not trained
        return ReadySet(
            name=one.set_name,
            tasks=tasks,
            prompts=one.prompts or (None if fixed else evaluation.prompts),
            samples=samples,
            early_samples=samples if own else min(evaluation.early_samples or samples, samples),
            full_from=evaluation.full_from,
            max_tokens=one.max_tokens or self.recipe.max_tokens,
            temperature=one.temperature,
            metrics=one.metrics,
            cadence=evaluation.cadence(one),
            trained=trained,
            allow_overlap=isinstance(one, Benchmark) and one.allow_overlap,
        )

    @property
    def graded_tasks(self) -> tuple[Task, ...]:
        """The tasks whose completions are graded: those that are trained on, and those of benchmarks."""
        return (*self.tasks, *(task for one in self.sets if not one.trained for task in one.tasks))

    @property
    def checkpoint_cadence(self) -> Cadence:
        """The rule for when checkpoints are taken."""
        hours = self.checkpoint_hours
        return Cadence(self.checkpoint_every if hours is None else None, hours and hours * self.devices)

    @property
    def compute_unit(self) -> str:
        """Unit of compute: GPU-hours (of a simulated cluster, too), or core-hours where each role holds a core."""
        return "GPU-hours" if self.cluster.device == "gpu" or self.virtual is not None else "core-hours"

    @property
    def generator_devices(self) -> int:
        """Devices that the generators hold."""
        return self.cluster.generators * self.generator.tensor_parallel

    @property
    def devices(self) -> int:
        """Devices that the run holds."""
        return self.cluster.trainers if self.cluster.share_devices else self.generator_devices + self.cluster.trainers

    @property
    def save_seconds(self) -> float:
        """Seconds that writing or reading a checkpoint may take."""
        return save_seconds(self.model.to_hf(), self.trainer)

    @property
    def trainer_setup(self) -> TrainerSetup:
        """Settings that the trainer is built with."""
        seen, fp32_head = sees(self.recipe.loss), self.recipe.trainer_fp32_head
        return replace(self.tuner_setup, reference=REFERENCE in seen, fp32_head=fp32_head)

    @property
    def tuner_setup(self) -> TrainerSetup:
        """Settings that the trainer of a fine-tuning is built with.

        Recipes that are compared start from one model, whatever precision they choose for the head.
        """
        return TrainerSetup(
            **_fields(self.trainer),
            fp32_head=True,
            seed=self.seed,
            device=self.cluster.device,
        )

    @property
    def longest_trace(self) -> int:
        """Most tokens of a sequence of the fine-tuning; worked examples are taken to fit the engines."""
        return self.generator.max_model_len if self.sft.public is None else self.sft.longest

    @property
    def generator_setup(self) -> GeneratorSetup:
        """Settings that every engine is built with."""
        return GeneratorSetup(
            **_fields(self.generator),
            fp32_head=self.recipe.generator_fp32_head,
            record_routing=self.recipe.router_replay,
            expert_bias=self.trainer.expert_bias > 0,
            device=self.cluster.device,
            shares_device=self.cluster.share_devices,
        )


def _fields(config: TrainerConfig | GeneratorConfig) -> dict[str, Any]:
    return {one.name: getattr(config, one.name) for one in fields(config)}
