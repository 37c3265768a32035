"""Planned bytes are the trainer's: buffers and optimiser state exactly, at any layout; activations within 3 %."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from moe.cpu import host as cpu_host
from moe.cpu import operators
from moe.model import attention
from moe.model.architectures import architecture
from moe.model.decoder import DecoderConfig
from moe.model.families import Model
from moe.model.head import forward
from moe.model.packing import pack
from moe.model.size import BYTES, parameters
from moe.sequences import TrainingSequence
from moe.settings import Layout
from moe.train.trainer import Trainer
from moe.weights.parcels import parcels
from scalelab.experiment import resolve
from scalelab.plan.memory import activation_bytes, largest_sent, layer_elements, trainer_memory
from scalelab.plan.sizes import held
from scalelab.plan.speed import attention_flops, training_flops
from scalelab.transfer.sizes import PARCEL
from tests.helpers.moe_models import DEEPSEEK_V3, DENSE, GLM4_MOE, MOE, QWEN2, QWEN3, QWEN3_MOE, trainer

pytestmark = pytest.mark.slow


@pytest.fixture
def one_of_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """A trainer that is one rank of many: its groups have their sizes, but the others are not there to talk to."""
    start, group, made = dist.init_process_group, dist.new_group, []

    def single_process(backend: str, rank: int, world_size: int, **_: object) -> None:
        start("fake", store=FakeStore(), rank=rank, world_size=world_size)

    monkeypatch.setattr(dist, "init_process_group", single_process)
    monkeypatch.setattr(dist, "new_group", lambda *args, **kwargs: group(*args, **{**kwargs, "backend": "fake"}))

    def one(model: Model, rank: int = 0, world: int = 1, **kwargs: Any) -> Trainer:
        made.append(trainer(model, rank, world, at=f"file://{tmp_path}/meet", **kwargs))
        return made[-1]

    yield one
    for each in made:
        each.close()


def allocated(one: Trainer) -> tuple[int, int, int]:
    """Bytes of (weights, gradients, optimiser) that a trainer holds, from the tensors themselves."""
    ddp = one.optimizer.ddp
    buffers = ddp.buffers + ddp.expert_parallel_buffers
    weights = {buffer.param_data.untyped_storage().data_ptr() for buffer in buffers}
    optimizer = 0
    for part in one.optimizer.megatron.chained_optimizers:
        for main, state in part.optimizer.state.items():
            optimizer += sum(tensor.nbytes for tensor in state.values())
            optimizer += main.nbytes if main.untyped_storage().data_ptr() not in weights else 0
    return sum(b.param_data.nbytes for b in buffers), sum(b.grad_data.nbytes for b in buffers), optimizer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "layout", "rank", "world"),
    [
        (DENSE, Layout(), 0, 1),
        (DENSE, Layout(), 3, 4),
        (DENSE, Layout(tensor=2), 3, 4),
        (QWEN2, Layout(tensor=2), 3, 4),
        (QWEN3, Layout(pipeline=2), 3, 4),
        (MOE, Layout(expert=4), 1, 8),
        (QWEN3_MOE, Layout(tensor=2, expert=2), 6, 8),
        (GLM4_MOE, Layout(tensor=2, expert=2), 6, 8),
        (DEEPSEEK_V3, Layout(expert=2), 1, 4),
        (MOE, Layout(expert=2, context=2, pipeline=2), 7, 8),
    ],
    ids=str,
)
def test_planned_bytes_are_those_allocated(
    one_of_many: Callable[..., Trainer], model: DecoderConfig, layout: Layout, rank: int, world: int, dtype: str
) -> None:
    one = one_of_many(model, rank, world, layout=layout, dtype=dtype)
    places = (
        parallel_state.get_data_parallel_rank(with_context_parallel=True),
        parallel_state.get_expert_data_parallel_rank(),
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    planned = held(model.to_hf(), layout, world, dtype, stage, places)
    assert allocated(one) == (planned.weights, planned.gradients, planned.optimizer)


def kept(one: Trainer, tokens: int) -> int:
    """Bytes that the forward pass of so many tokens keeps for the backward pass."""
    held_by: dict[int, torch.Tensor] = {}
    own = {p.untyped_storage().data_ptr() for p in one.model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held_by[storage.data_ptr()] = tensor  # alive, so that no other gets its address
        return tensor

    rng = np.random.default_rng(0)
    sequences = [TrainingSequence(rng.integers(0, 96, tokens // 4, dtype=np.int32), {}) for _ in range(4)]
    packed = pack(
        sequences, {layer.attention.chunk for layer in architecture(one.hf_config).layers}, torch.device("cpu")
    )
    with ExitStack() as stack:
        for module in (operators, attention):  # torch's own, as on a GPU: those for one core keep a little more
            stack.enter_context(mock.patch.object(module, "kernels_fit", return_value=False))
        stack.enter_context(cpu_host.megatron())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
        one.model.train()
        forward(one.model, packed)
    return sum(tensor.untyped_storage().size() for tensor in held_by.values())


@pytest.mark.parametrize(
    "model",
    [DENSE, MOE, QWEN3_MOE, replace(QWEN3_MOE, num_experts=128)],
    ids=["llama", "llama4", "qwen3_moe", "many experts"],
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_planned_activations_are_those_kept(make: Callable[..., Trainer], model: DecoderConfig, recompute: str) -> None:
    """Sequences are equally long, so that a CPU's attention needs no padding."""
    one, tokens = make(model, recompute=recompute), 512
    hf = model.to_hf()
    planned = activation_bytes(hf, one.config, tokens)
    if recompute != "none":  # the layer being computed again exists in the backward pass only
        arch = architecture(hf)
        working = max(layer_elements(arch.fields, layer, one.config, "none") for layer in arch.layers)
        planned -= tokens * BYTES["float32"] * working
    small = 12 * tokens * (one.hf_config["num_hidden_layers"] + 4)  # scales of norms, targets, sums of the softmax
    assert planned <= kept(one, tokens) <= 1.03 * planned + small


@pytest.mark.parametrize("experiment", ["scalerl_8b", "scalerl_17bx16", "quickstart", "smollm2_gpu"])
def test_the_largest_tensor_that_is_sent_is_that_of_the_trainers_parcels(experiment: str) -> None:
    run = resolve(experiment).run
    hf_config, dtype = run.model.to_hf(), run.generator.dtype
    sent = parcels(hf_config, Layout(), BYTES[dtype], PARCEL)
    largest = max(BYTES[dtype] * math.prod(part) for parcel in sent for _, part in parcel.parts())
    assert largest_sent(hf_config, dtype) == largest


def test_a_loss_that_sees_the_first_policy_takes_its_weights_once_more_and_a_forward_pass() -> None:
    run = resolve("scalerl_8b", ["Recipe.loss=@GRPO()"]).run
    more = resolve("scalerl_8b", ["Recipe.loss=@GRPO()", "GRPO.beta=0.04"]).run
    assert (run.trainer_setup.reference, more.trainer_setup.reference) == (False, True)
    assert more.tuner_setup == run.trainer_setup, "a fine-tuning has no reference"
    assert replace(more, recipe=replace(more.recipe, fp32_head="none")).tuner_setup == more.tuner_setup
    hf, ranks = run.model.to_hf(), run.cluster.trainers
    plain, beside = (trainer_memory(hf, one.trainer_setup, ranks, 16384, True) for one in (run, more))
    assert beside.reference == beside.weights > 0
    assert beside.total - plain.total == pytest.approx(plain.weights)
    flops, longer = (training_flops(hf, "full", 1000, 1000**2, reference=one) for one in (False, True))
    forward = 2 * 1000 * (parameters(hf).total - hf["vocab_size"] * hf["hidden_size"])
    assert longer - flops == pytest.approx(forward + attention_flops(hf, 1000, 1000**2), rel=1e-3)
