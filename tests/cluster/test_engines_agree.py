"""Megatron and vLLM, fed with the same weights under Hugging Face names, give the same log-probs in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from moe.model.families import Model
from moe.sequences import TrainingSequence
from moe.settings import OptimizerConfig, TrainerSetup
from moe.weights.segments import Segment
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.types import Completion, Request
from scalelab.start.fine_tuning import cross_entropy
from tests.helpers.rollout_models import (
    DEEPSEEK_V3,
    DENSE,
    GLM4_MOE,
    MISTRAL,
    MIXTRAL,
    MOE,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    generate,
    prompts,
)

pytestmark = pytest.mark.slow

# Each engine claims torch.distributed of its process, so each has one of its own, which remembers it here.
_HELD: dict[str, Any] = {}

Ask = Callable[..., Any]
"""Calls a function on one of the two sides, and waits for what it returns."""


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Ask, Ask]]:
    """The trainer's and the generator's process, for all models: to import their libraries takes long."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context) as trainer, ProcessPoolExecutor(1, context) as generator:

        def asker(at: ProcessPoolExecutor) -> Ask:
            return lambda f, *args, **kw: at.submit(f, *args, **kw).result(220)

        yield asker(trainer), asker(generator)


def hold(name: str, make: Callable[[], Any]) -> None:
    """Remember an engine in place of the one before."""
    if name in _HELD:
        _HELD.pop(name).close()
    _HELD[name] = make()


def build_trainer(
    model: Model, folder: Path, dtype: Literal["float32", "bfloat16"] = "float32", expert_bias: float = 0.0
) -> None:
    """Make the trainer with weights far from their small initial values, and save them for the generator."""
    import torch

    from moe.train.trainer import Trainer

    torch.set_num_threads(1)
    config = TrainerSetup(optimizer=OptimizerConfig(lr=5e-3), dtype=dtype, expert_bias=expert_bias)
    hold("trainer", lambda: Trainer(model.to_hf(), config, rendezvous=f"file://{folder}.at"))
    for router in _HELD["trainer"].model.routers:
        if router.correction_E is not None:
            router.correction_E.copy_(torch.linspace(-0.3, 0.3, len(router.correction_E)))
    train(6)
    _HELD["trainer"].save_hf(folder)


def train(steps: int) -> None:
    """Take a few steps on random tokens."""
    rng = np.random.default_rng(steps)
    for _ in range(steps):
        sequences = [TrainingSequence(rng.integers(5, 96, 40).astype(np.int32), {}) for _ in range(8)]
        for sequence in sequences:
            sequence.extras["weights"] = np.full(40, 1 / 312, dtype=np.float32)
            sequence.extras["weights"][0] = 0
        _HELD["trainer"].train_step(sequences, cross_entropy, 5e-3)


def publish(version: int) -> list[Segment]:
    """Take a few steps and lay the weights out."""
    train(3)
    return [_HELD["trainer"].publish(version)]


def forget_biases() -> None:
    for router in _HELD["trainer"].model.routers:
        router.bias_E.zero_()


def trainer_logprobs(sequences: list[TrainingSequence]) -> list[np.ndarray]:
    return _HELD["trainer"].logprobs(sequences)


def build_generator(folder: Path, **options: Any) -> None:
    from scalelab.rollout.generator import Generator

    config = GeneratorSetup(max_model_len=128, max_sequences=16, kv_cache_gib=0.25, block_size=32, **options)
    hold("generator", lambda: Generator(folder, config))


def update(segments: list[Segment]) -> None:
    _HELD["generator"].take_weights(segments)


def complete(count: int) -> list[Completion]:
    requests = [
        Request(id=f"{count}/{n}", prompt_ids=ids, max_tokens=60) for n, ids in enumerate(prompts(count, 24, 96, count))
    ]
    return generate(_HELD["generator"], requests)


FOR_A_NIGHT = (DENSE, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, MIXTRAL, GLM4_MOE)
"""Families whose parts are all in others, too."""


@pytest.mark.parametrize(
    "model",
    [MOE, DEEPSEEK_V3, *(pytest.param(one, marks=pytest.mark.nightly) for one in FOR_A_NIGHT)],
    ids=lambda model: model.model_type,
)
def test_log_probs_agree_on_saved_and_on_published_weights(
    model: Model, sides: tuple[Ask, Ask], tmp_path: Path
) -> None:
    trainer, generator = sides
    trainer(build_trainer, model, tmp_path / "model")
    generator(build_generator, tmp_path / "model")
    for version in (0, 1):
        if version:
            generator(update, trainer(publish, version))
        completions = generator(complete, 8 + version)
        sequences = [
            TrainingSequence(np.array([*c.request.prompt_ids, *c.token_ids], dtype=np.int32)) for c in completions
        ]
        assert {span[0] for completion in completions for span in completion.spans} == {version}
        assert largest_gap(completions, trainer(trainer_logprobs, sequences)) < 1e-4


@pytest.mark.parametrize(
    "model",
    [MOE, *(pytest.param(one, marks=pytest.mark.nightly) for one in (QWEN3_MOE, MIXTRAL))],
    ids=lambda model: model.model_type,
)
def test_biases_of_experts_reach_the_generator_saved_and_published(
    model: Model, sides: tuple[Ask, Ask], tmp_path: Path
) -> None:
    trainer, generator = sides
    trainer(build_trainer, model, tmp_path / "model", expert_bias=0.5)
    generator(build_generator, tmp_path / "model", expert_bias=True)
    for version in (0, 1):
        if version:
            generator(update, trainer(publish, version))
        completions = generator(complete, 8 + version)
        sequences = [
            TrainingSequence(np.array([*c.request.prompt_ids, *c.token_ids], dtype=np.int32)) for c in completions
        ]
        assert largest_gap(completions, trainer(trainer_logprobs, sequences)) < 1e-4
    trainer(forget_biases)
    assert largest_gap(completions, trainer(trainer_logprobs, sequences)) > 0.1


def largest_gap(completions: list[Completion], logprobs: list[np.ndarray]) -> float:
    """The largest difference between the trainer's and the generator's log-probs of completions, in nats."""
    return max(np.abs(ours_T[-len(c.token_ids) :] - c.logprobs_T).max() for c, ours_T in zip(completions, logprobs))


def test_replayed_experts_bring_the_engines_closer(sides: tuple[Ask, Ask], tmp_path: Path) -> None:
    """In bf16 the engines' router logits differ, and now and then so does the choice among nearly tied experts."""
    trainer, generator = sides
    folder = tmp_path / "model"
    trainer(build_trainer, MOE, folder, "bfloat16")
    options = {"dtype": "bfloat16", "record_routing": True, "prefix_caching": False}
    generator(build_generator, folder, **options)
    completions = generator(complete, 64)
    gaps = {}
    for replayed in (False, True):
        sequences = [
            TrainingSequence(
                np.array([*c.request.prompt_ids, *c.token_ids], dtype=np.int32),
                routed_TLK=c.routed_TLK if replayed else None,
            )
            for c in completions
        ]
        logprobs = trainer(trainer_logprobs, sequences)
        gaps[replayed] = np.concatenate(
            [np.abs(ours_T[-len(c.token_ids) :] - c.logprobs_T) for c, ours_T in zip(completions, logprobs)]
        )
    assert gaps[True].mean() < 0.8 * gaps[False].mean()
