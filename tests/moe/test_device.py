"""Tensors of a GPU trainer lie on the device; the meta device in a GPU's place makes a mismatch an error."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from moe.checkpoint.distributed import _copy_to_host, _random_state, _set_random_state
from moe.errors import MoeError
from moe.model.attention import _attend
from moe.model.layers import Router, StackedExperts
from moe.ranks import parallel
from moe.ranks.parallel import most_memory
from moe.settings import Layout, TrainerSetup
from moe.train import trainer as trainer_module
from moe.train.trainer import Trainer
from tests.helpers.moe_models import MOE

pytestmark = pytest.mark.slow


@pytest.fixture
def on_device(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's config of a trainer whose parameters are built on a device."""
    config = copy.copy(make(MOE).model.config)
    config.use_cpu_initialization, config.params_dtype = False, torch.bfloat16
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "meta")
    return config


@pytest.mark.parametrize("frozen", [False, True])
def test_a_router_its_loads_and_its_biases_lie_where_the_model_is(on_device: Any, frozen: bool) -> None:
    router = Router(on_device, get_default_pg_collection())
    router.weight.requires_grad_(not frozen)
    router.add_bias()
    assert router.bias_E is not None
    assert {t.device.type for t in (router.weight, router.load_E, router.bias_E)} == {"meta"}


def test_experts_take_counts_from_the_host(on_device: Any) -> None:
    experts, hidden = 4, on_device.hidden_size
    with FakeTensorMode():
        stacked = StackedExperts(experts, on_device, get_default_pg_collection())
        tokens_TH = torch.empty(12, hidden, device="meta", dtype=torch.bfloat16, requires_grad=True) * 1
        out_TH, _ = stacked(tokens_TH, torch.tensor([3, 3, 3, 3], device="cpu"), torch.empty(12, device="meta"))
        out_TH.backward(torch.empty_like(out_TH))
    assert stacked.fc1_EFH.device.type == "meta"
    assert out_TH.shape == (12, hidden)


def test_a_gpu_that_is_not_there_is_refused_and_not_replaced_by_cores(make: Callable[..., Trainer]) -> None:
    why = r"torch .* is built without CUDA: install|CUDA does not start .*: look at nvidia-smi"
    with pytest.raises(MoeError, match=rf"is to train on a GPU, and ({why})"):
        make(MOE, device="gpu")


@pytest.mark.parametrize("error", [RuntimeError("no driver\nmore"), AssertionError("no driver"), None])
def test_a_cuda_that_does_not_start_is_refused_with_its_reason(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    why = r"CUDA does not start \(no driver\)" if error is not None else "CUDA sees none"
    with pytest.raises(MoeError, match=rf"is to train on a GPU, and {why}: look at nvidia-smi"):
        parallel.check_device("gpu")


def test_a_cpu_is_not_replaced_by_a_gpu(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(MoeError, match="CUDA sees a GPU: hide it"):
        make(MOE, device="cpu")


def test_the_most_memory_of_a_rank_is_its_gpus_on_a_gpu_and_its_processs_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`trainer_peak_gib` in metrics.jsonl; what ranks exchange is put on the CPU here."""
    asked: list[Any] = []
    tensor = torch.tensor

    def max_memory_allocated(device: Any) -> int:
        asked.append(device)
        return 7 * 2**30

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", max_memory_allocated)
    monkeypatch.setattr(torch, "tensor", lambda value, dtype, device: tensor(value, dtype=dtype))
    monkeypatch.setattr(dist, "all_reduce", lambda most, op: None)
    gpu = SimpleNamespace(type="cuda")
    assert most_memory(gpu) == 7 * 2**30
    assert asked == [gpu]
    assert 0 < most_memory(torch.device("cpu")) != 7 * 2**30
    assert asked == [gpu]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attention_on_a_gpu_is_computed_in_the_models_own_type(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's CPU kernel alone is faster in fp32."""
    seen: list[torch.dtype] = []

    attention = F.scaled_dot_product_attention

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
        seen.extend(x.dtype for x in (q, k, v))
        return attention(q, k, v, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 8, 16, device=device, dtype=torch.bfloat16) for _ in range(3))
        assert _attend(q, k, v).dtype == torch.bfloat16
    assert seen == [torch.float32 if device == "cpu" else torch.bfloat16] * 3


def test_a_checkpoint_copies_what_is_on_a_gpu_to_the_host() -> None:
    host = torch.ones(3)
    with FakeTensorMode():
        on_gpu = SimpleNamespace(data=torch.empty(3, device="cuda"))
    there, no_tensor = SimpleNamespace(data=host), SimpleNamespace(data=b"state")
    _copy_to_host({"weights": [on_gpu, there], "state": [no_tensor]}, set())
    assert on_gpu.data.device.type == "cpu"
    assert there.data is host
    assert no_tensor.data == b"state"


def test_random_numbers_of_a_gpu_come_back_with_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator on the host stands for the GPU's; `rehearse/test_simulated_calls.py` has torch's own for CUDA."""
    on_gpu = torch.Generator().manual_seed(7)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", on_gpu.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", on_gpu.set_state)
    state = _random_state()
    then = torch.rand(3, generator=on_gpu), torch.rand(3), np.random.rand()
    _set_random_state(state)
    again = torch.rand(3, generator=on_gpu), torch.rand(3), np.random.rand()
    assert torch.equal(then[0], again[0])
    assert torch.equal(then[1], again[1])
    assert then[2] == again[2]


def test_a_checkpoint_of_cpus_leaves_a_gpus_random_numbers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {**_random_state(), "cuda": None}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: pytest.fail("it has none"))
    _set_random_state(state)


@pytest.mark.parametrize("gpu", [True, False])
def test_products_in_bfloat16_are_replaced_on_a_cpu_alone(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def build(hf_config: Any, config: Any) -> None:
        done.append("build")
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(trainer_module.bfloat16, "install", lambda: done.append("replace"))
    monkeypatch.setattr(trainer_module, "build", build)
    one = object.__new__(Trainer)
    one.hf_config, one.config = {}, TrainerSetup(dtype="bfloat16")
    with pytest.raises(InterruptedError):
        one._build(None)
    assert done == (["build"] if gpu else ["replace", "build"])


def test_ranks_of_a_node_take_a_gpu_each_and_meet_over_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rehearse/test_simulated_calls.py` has torch form that group."""
    taken: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **group: taken.append((backend, group["rank"])))
    monkeypatch.setattr(parallel, "meet", lambda *of: None)
    monkeypatch.setattr(parallel, "_form_groups", lambda *of: None)
    parallel.join(Layout(), 11, 16, "tcp://127.0.0.1:1", 5.0)
    assert taken == [3, ("nccl", 11)]
