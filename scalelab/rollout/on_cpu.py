"""Samples and norms of an engine on a CPU, which vLLM computes in slower ways (vLLM 0.32.0).

A sample is drawn by the inverse of the cumulative distribution, for all sequences in one operation. It depends on the
request's seed, the token's position and the logits alone. vLLM draws one by one where requests have seeds, and takes
two logarithms for every word of the vocabulary.

The norms are vLLM's own in C++, which it takes on a GPU alone; here it has half a dozen operators of torch for them.
They round once, after the weight, where torch's operators round before it, too. Importing this registers them: every
process of an engine does, for its configuration names `Draw`.

Axes: `_B` sequences of a step, `_V` vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from vllm import ir
from vllm.config.kernel import IrOpPriorityConfig
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as LogitsProcessorV1
from vllm.v1.worker.worker_base import WorkerBase

from moe.cpu import bfloat16

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

DRAW = "draw"
"""Name under which a request's (seed, temperature) travel in vLLM's `SamplingParams.extra_args`."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, uint64 [...]: neighbours become unrelated (Steele, Lea and Flood, 2014, Fig. 13)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniform(keys_B: np.ndarray, positions_B: np.ndarray) -> np.ndarray:
    """float64 [B] in [0, 1): number `position` of each key's stream (SplitMix64)."""
    steps_B = (positions_B.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return (mix(keys_B + steps_B) >> np.uint64(11)) * 2.0**-53


def draw_tokens(logits_BV: Tensor, uniform_B: np.ndarray) -> Tensor:
    """int64 [B]: the token at which the cumulative distribution of softmax(logits) passes a uniform number."""
    cumulative_BV = torch.softmax(logits_BV, -1, torch.float32).cumsum(-1, dtype=torch.float64)
    reached_B1 = torch.from_numpy(uniform_B).unsqueeze(1) * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, reached_B1, right=True).squeeze(1).clamp_(max=logits_BV.shape[1] - 1)


class Draw(LogitsProcessorV1):
    """Mark the drawn token of every row that is not greedy, so that vLLM's largest logit is the draw.

    vLLM takes log-probabilities before its processors see the logits.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        rows = vllm_config.scheduler_config.max_num_seqs
        self._keys = np.zeros(rows, np.uint64)
        self._positions = np.zeros(rows, np.int64)
        self._temperatures = np.zeros(rows, np.float32)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Accept what `Generator.submit` has checked already."""

    def is_argmax_invariant(self) -> bool:
        """False: the draw becomes the largest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the sequences as vLLM adds and moves them within its batch; removed rows are not looked at."""
        if batch_update is None:
            return
        for row, params, _, output_ids in batch_update.added:
            key, temperature = (params.extra_args or {}).get(DRAW, (0, 0.0))
            self._keys[row], self._temperatures[row], self._positions[row] = key, temperature, len(output_ids)
        for source, target, direction in batch_update.moved:
            for values in (self._keys, self._temperatures, self._positions):
                moved, replaced = values[source], values[target]
                values[target] = moved
                if direction == MoveDirectionality.SWAP:
                    values[source] = replaced

    def apply(self, logits: Tensor) -> Tensor:
        """Raise the drawn token's logit above all others; `logits` is [B, V], changed in place."""
        rows = len(logits)
        temperatures_B = self._temperatures[:rows]
        drawn = np.flatnonzero(temperatures_B)
        if len(drawn):
            every = len(drawn) == rows
            chosen_BV = logits if every else logits[torch.from_numpy(drawn)]
            if (temperatures_B[drawn] != 1).any():
                chosen_BV = chosen_BV / torch.from_numpy(temperatures_B[drawn]).unsqueeze(1)
            tokens_B = draw_tokens(chosen_BV, uniform(self._keys[drawn], self._positions[drawn]))
            logits[torch.from_numpy(drawn), tokens_B] = float("inf")
        self._positions[:rows] += 1
        return logits


def stream_key(seed: int) -> int:
    """Key of a seed's stream; seeds are often neighbours."""
    return int(mix(np.array([seed & _WORD], np.uint64))[0])


def draw_args(seed: int, temperature: float) -> dict[str, Any]:
    """The entry of vLLM's `extra_args` for a request that is not greedy."""
    return {DRAW: (stream_key(seed), temperature)}


_PROVIDER = "cpu_c"


def norms() -> IrOpPriorityConfig:
    """The setting that has vLLM take these norms."""
    return IrOpPriorityConfig(rms_norm=[_PROVIDER], fused_add_rms_norm=[_PROVIDER])


def _takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype and x.is_contiguous()


def _takes_sum(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _takes(x, weight, epsilon, variance_size) and _takes(x_residual, weight, epsilon)


@ir.ops.rms_norm.register_impl(_PROVIDER, supports_args=_takes, supported=current_platform.is_cpu())
def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


@ir.ops.fused_add_rms_norm.register_impl(
    _PROVIDER, supports_args=_takes_sum, supported=current_platform.is_cpu(), inplace=True
)
def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def rank_no_logprobs(worker: WorkerBase) -> None:
    """Return the sampled token's log-prob without its rank, which is not used.

    On a CPU vLLM compiles the ranking when the first token is sampled: that takes a C++ compiler and ten seconds.
    """

    def gather(logprobs_BV: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        ids_B1 = token_ids.unsqueeze(-1)
        return LogprobsTensors(ids_B1.to(torch.int32), logprobs_BV.gather(-1, ids_B1), torch.zeros_like(token_ids))

    worker.model_runner.sampler.gather_logprobs = gather


def rotate_slices(worker: WorkerBase) -> None:
    """Rotate parts of heads by torch's operators: the kernel for CPUs takes a slice of each head for whole heads."""
    for module in worker.model_runner.get_model().modules():
        if isinstance(module, RotaryEmbeddingBase):
            module._forward_method = module.forward_native


def replace_products(worker: WorkerBase) -> None:
    """Multiply matrices of bfloat16 as the trainer does."""
    bfloat16.install()
