"""The classes that experiments configure: all that a run is made of, and what can take its place."""

from __future__ import annotations

from moe.checkpoint.folder import CheckpointPolicy
from moe.model.decoder import Llama3Rope, YarnRope
from moe.model.families import (
    DeepseekV3,
    Glm4Moe,
    Llama,
    Llama4Text,
    Mistral,
    Mixtral,
    Olmo2,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    SmolLM3,
)
from moe.settings import Layout, OptimizerConfig, TrainerConfig
from scalelab.experiment.registry import Registry
from scalelab.experiment.retired import RETIRED
from scalelab.recipe.length_control import ForcedInterruption, LengthPenalty
from scalelab.recipe.losses import LOSSES
from scalelab.recipe.recipe import Recipe
from scalelab.rollout.config import GeneratorConfig
from scalelab.run.config import Run
from scalelab.run.evaluation_sets import Benchmark, HeldOut
from scalelab.run.settings import SFT, Budget, Cluster, Evaluation, Rates, Virtual
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.start.pretrained_model import Pretrained
from scalelab.store.retention import Retention
from scalelab.watch.monitors import Monitors
from tasks.code.miniature import CodeMiniature
from tasks.data.datasets import CodeDataset, MathDataset
from tasks.data.traces import PublicTraces
from tasks.environments.task import VerifiersTask
from tasks.gym import ReasoningGym
from tasks.math.miniature import MathMiniature
from tasks.noisy import NoisyVerdicts
from tasks.own import FunctionTask
from tasks.symbolic_gsm import SymbolicGSM

LAB = Registry(
    Run,
    (
        *(Llama4Text, Llama, Llama3Rope, YarnRope, Mistral, Mixtral, Olmo2, Qwen2, Qwen3, Qwen3Moe, SmolLM3),
        *(DeepseekV3, Glm4Moe),
        Pretrained,
        *(TrainerConfig, Layout, OptimizerConfig, CheckpointPolicy),
        GeneratorConfig,
        *(Recipe, *LOSSES, ForcedInterruption, LengthPenalty),
        *(PipelineRL, PPOOffPolicy, Synchronous),
        *(MathMiniature, CodeMiniature, SymbolicGSM, MathDataset, CodeDataset, FunctionTask, ReasoningGym),
        *(VerifiersTask, NoisyVerdicts),
        *(SFT, PublicTraces, Evaluation, HeldOut, Benchmark, Budget, Cluster, Virtual, Rates, Monitors, Retention),
    ),
    RETIRED,
)
"""Each is a frozen dataclass that imports without torch; a field annotated with one of them needs no binding."""
