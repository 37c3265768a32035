"""The optimiser equals AdamW written out, also with bf16 weights over fp32 masters, and gives up on endless NaNs.

The reference keeps every number in fp64. It is checked on gradients set by hand, of sizes from 1 to 1e-12, so that an ε
of 1e-8 in place of the paper's 1e-15 (ScaleRL A.3) would show.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch.overrides import TorchFunctionMode

from moe.cpu import host as cpu_host
from moe.errors import MoeError
from moe.settings import OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer
from tests.helpers.moe_models import DENSE, MOE, batch, weighted, weights

pytestmark = pytest.mark.slow


class SlowAdamW:
    """AdamW (Loshchilov & Hutter, Algorithm 2) with clipping by the global norm, one tensor after the other."""

    def __init__(self, weights: dict[str, torch.Tensor], config: OptimizerConfig) -> None:
        self.w = {name: weight.double().numpy().copy() for name, weight in weights.items()}
        self.m = {name: np.zeros_like(w) for name, w in self.w.items()}
        self.v = {name: np.zeros_like(w) for name, w in self.w.items()}
        self.c, self.t = config, 0

    def step(self, gradients: dict[str, np.ndarray], lr: float) -> float:
        self.t += 1
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        scale = min(1.0, self.c.clip_grad / (norm + 1e-6)) if self.c.clip_grad else 1.0
        (b1, b2), t = self.c.betas, self.t
        for name, g in gradients.items():
            decay = self.c.weight_decay if self.w[name].ndim > 1 else 0.0
            self.m[name] = b1 * self.m[name] + (1 - b1) * scale * g
            self.v[name] = b2 * self.v[name] + (1 - b2) * (scale * g) ** 2
            m, v = self.m[name] / (1 - b1**t), self.v[name] / (1 - b2**t)
            self.w[name] -= lr * (m / (np.sqrt(v) + self.c.eps) + decay * self.w[name])
        return norm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_equal_adamw_written_out(make: Callable[..., Trainer], dtype: str, clip: float) -> None:
    """Steps of 1e-4 of a weight are lost in bf16: only fp32 masters add them up."""
    config = OptimizerConfig(lr=1e-4, weight_decay=0.1, clip_grad=clip)
    one = make(DENSE, dtype=dtype, optimizer=config)
    params = dict(one.model.named_parameters())
    slow = SlowAdamW({name: p.detach().clone() for name, p in params.items()}, config)
    rng = np.random.default_rng(0)
    with cpu_host.megatron():
        for _ in range(25):
            size = {name: 10.0 ** -(3 * (k % 5)) for k, name in enumerate(params)}
            gradients = {name: size[name] * (rng.normal(size=p.shape) + 1) for name, p in params.items()}
            one.optimizer.zero_grad()
            for name, p in params.items():
                p.main_grad.copy_(torch.from_numpy(gradients[name]))
            norm, taken = one.optimizer.step(config.lr)
            assert taken
            assert norm == pytest.approx(slow.step(gradients, config.lr), rel=1e-5)
    for name, p in params.items():
        expected = torch.from_numpy(slow.w[name])
        rounding = 2e-6 if dtype == "float32" else 2**-8  # half a unit in the last place of a bf16 number
        torch.testing.assert_close(p.detach().double(), expected, rtol=1.01 * rounding, atol=1e-6)


class OnDevice(TorchFunctionMode):
    """Says of bf16 tensors that a GPU holds them: Megatron's hybrid optimiser takes those to the host."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.is_cuda.__get__:
            return args[0].dtype is torch.bfloat16
        return func(*args, **(kwargs or {}))


def test_a_step_in_host_memory_is_the_same_step(make: Callable[..., Trainer], tmp_path: Path) -> None:
    """Weights, and a checkpoint that either kind of optimiser goes on from, to the last bit."""
    settings: dict[str, Any] = {"lr": 1e-3, "warmup_steps": 0, "clip_grad": 0.5}
    found: dict[bool | str, dict[str, torch.Tensor]] = {}
    start: dict[str, torch.Tensor] | None = None
    for offload in (False, True):
        with OnDevice():
            one = make(DENSE, dtype="bfloat16", optimizer=OptimizerConfig(**settings, offload=offload))
            assert (
                any(isinstance(p.optimizer, HybridDeviceOptimizer) for p in one.optimizer.megatron.chained_optimizers)
                is offload
            )
            start = weights(one) if start is None else start
            one.load_weights(start)
            one.train_step(batch(0), weighted)
            one.train_step(batch(1), weighted)
            one.save(tmp_path / str(offload))
            one.train_step(batch(2), weighted)
            found[offload] = weights(one)
    for offload in (False, True):
        with OnDevice():
            one = make(DENSE, dtype="bfloat16", seed=9, optimizer=OptimizerConfig(**settings, offload=not offload))
            one.load(tmp_path / str(offload))
            one.train_step(batch(2), weighted)
            found[f"from {offload}"] = weights(one)
    for other in found.values():
        assert all(torch.equal(tensor, found[False][name]) for name, tensor in other.items())
    assert start is not None
    assert not all(torch.equal(tensor, start[name]) for name, tensor in found[False].items())


def test_overlapped_exchanges_change_nothing_on_one_rank(make: Callable[..., Trainer]) -> None:
    """Megatron's hooks begin exchanges with nobody; sums over several micro-batches stay as they are."""
    steps = {}
    for overlap in (False, True):
        one = make(MOE, overlap_gradients=overlap, overlap_parameters=overlap)
        one.train_step(batch(0), weighted)
        steps[overlap] = weights(one)
    assert all(torch.equal(tensor, steps[False][name]) for name, tensor in steps[True].items())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offload": True}, "trains on a CPU: leave it out"),
        ({"moments": "bfloat16"}, "needs Transformer Engine's AdamW, which is not installed"),
    ],
)
def test_what_the_optimizer_cannot_do_here_is_said(
    make: Callable[..., Trainer], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(MoeError, match=said):
        make(DENSE, dtype="bfloat16", optimizer=OptimizerConfig(**settings))


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bind OptimizerConfig.moments = 'float32'"):
        OptimizerConfig(offload=True, moments="bfloat16")
    with pytest.raises(ValueError, match=r"OptimizerConfig.offload = True saves memory of bfloat16 models"):
        TrainerSetup(optimizer=OptimizerConfig(offload=True))
    with pytest.raises(ValueError, match=r"bind TrainerConfig.overlap_gradients = True"):
        TrainerSetup(overlap_parameters=True)


def test_endless_nans_stop_training_with_their_cause(make: Callable[..., Trainer]) -> None:
    one = make(DENSE, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0, max_skipped=3))

    def spoilt(
        logprobs_T: torch.Tensor, entropy_T: torch.Tensor, extras: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return (logprobs_T * float("nan")).sum(), {}

    assert one.train_step(batch(0), spoilt).skipped
    assert one.train_step(batch(0), spoilt).skipped
    assert not one.train_step(batch(0), weighted).skipped
    before = weights(one)
    for _ in range(2):
        one.train_step(batch(0), spoilt)
    with pytest.raises(
        MoeError, match=r"3 steps in a row were skipped: .* loss of nan; not finite: \d+ of \d+ entries"
    ):
        one.train_step(batch(0), spoilt)
    assert (one.version, one.skipped) == (1, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.export_weights())
