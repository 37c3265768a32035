"""Patches that make one process behave as one rank of many on GPUs.

Tensors are fake (`torch._subclasses.FakeTensorMode`): they have a shape, a type and a device, but no memory and no
numbers, and operators only say what they would return. Around that this module answers what a program asks of a real
cluster: other ranks, values of numbers on the device, shapes that depend on them, and the name of the GPU.

Without CUDA the tensors bear the label "cpu" and `moe.cpu.host` answers Megatron; the kernels chosen are those of the
GPU all the same. With a simulated CUDA runtime (`docs/rehearse.md`) they bear the label "cuda" and a tensor on the
wrong device is found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # read when torch is imported: its compiler wants real tensors

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.distributed import distributed_data_parallel as megatron_ddp
from megatron.core.optimizer import clip_grads
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.varlen import varlen_attn

from moe.model import attention, gpt, head, packing
from moe.model.kernels import Host
from moe.sequences import TrainingSequence
from moe.train.trainer import Trainer
from scalelab.hardware import Device
from scalelab.rehearse.ranks import Replacement, all_replaced, other_ranks
from scalelab.rehearse.te_shapes import PACKAGE, rehearsed_version


@dataclass(frozen=True)
class SimulatedDevice:
    """The device, and the other ranks, that a rehearsed trainer believes in.

    Attributes:
        hardware: the GPU; "cpu" takes the CPU's kernels.
        chosen: experts per token, 0 in a dense model.
        imbalance: tokens that this rank's experts get, as a multiple of their even share.
        hidden: shape [T, 1, H] of what pipeline stages hand to each other.
        report: what the last pipeline stage tells the others of a step.
    """

    hardware: Device
    chosen: int = 0
    imbalance: float = 1.0
    hidden: tuple[int, int, int] = (0, 1, 0)
    report: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def simulated(world: SimulatedDevice) -> Iterator[FakeTensorMode]:
    """Let a `moe.train.trainer.Trainer` in this block be any rank of any number of ranks."""
    replacements = [*other_ranks(world.report), *_gpu(world), *_routing(world), *_torch(), *_logprobs(), *_labels()]
    if torch.cuda.is_available():
        replacements += _cuda()
    with all_replaced(replacements), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            yield mode
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _gpu(world: SimulatedDevice) -> list[Replacement]:
    """Choose the kernels of the GPU although the tensors are labelled as the CPU's."""
    if not world.hardware.gpu:
        return []
    version = rehearsed_version()
    packages = ((PACKAGE, version),) if version else ()  # of requirements/gpu.txt the choice asks for no other
    host = Host(world.hardware.name, world.hardware.capability, packages)
    product = head.product
    return [
        (gpt, "this_host", lambda: host),
        (head, "product", lambda device, dtype, fp32: product("cuda", dtype, fp32)),
    ]


def _cuda() -> list[Replacement]:
    """Replace the GPU's random state, which recomputation keeps and nothing here draws from, and parameters' labels."""
    random = torch.empty(0, dtype=torch.uint8)

    class Buffer(megatron_ddp._ParamAndGradBuffer):
        """Megatron's parameter buffer for fake tensors: `.data = …` moves a tensor, but not a fake one's label."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for parameter in self.params:
                parameter.fake_device = self.param_data.device

    return [
        (megatron_ddp, "_ParamAndGradBuffer", Buffer),
        (torch.cuda, "get_rng_state", lambda *args, **kwargs: random),
        (torch.cuda, "set_rng_state", lambda *args, **kwargs: None),
        (torch.cuda.random, "get_rng_state", lambda *args, **kwargs: random),
        (torch.cuda.random, "set_rng_state", lambda *args, **kwargs: None),
        (megatron_random, "_get_cuda_rng_state", lambda *args, **kwargs: random),
        (megatron_random, "_set_cuda_rng_state", lambda *args, **kwargs: None),
    ]


def _labels() -> list[Replacement]:
    """Replace what torch would take from the tensor inside a fake one: its type's name, and pages for copies.

    Pages that are locked for copies to a device are as many as others.
    """
    of_inner = torch.Tensor.type

    def name(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = of_inner(tensor, *args, **kwargs)
        if args or kwargs or tensor.device.type != "cuda" or ".cuda." in found:
            return found
        return found.replace("torch.", "torch.cuda.", 1)

    def unlocked(make: Any) -> Any:
        return lambda *args, pin_memory=False, **kwargs: make(*args, **kwargs)

    makers = ("empty", "empty_like", "zeros", "zeros_like")
    return [
        (torch.Tensor, "type", name),
        (torch.Tensor, "pin_memory", lambda tensor, *args: tensor),
        *((torch, maker, unlocked(getattr(torch, maker))) for maker in makers),
    ]


def _routing(world: SimulatedDevice) -> list[Replacement]:
    """Provide numbers that the host must know: tokens of each expert, and the shape that a pipeline stage receives."""
    count = MoEAlltoAllTokenDispatcher.preprocess

    def preprocess(self: Any, routing_map: Tensor) -> Tensor:
        """Count as Megatron does, then return even shares in place of the counts."""
        counted = count(self, routing_map)
        sent = self.num_out_tokens
        given = even(sent, self.ep_size)
        mine = round(int(given[self.ep_group.rank()]) * world.imbalance)
        if self.ep_size > 1 or self.tp_size > 1:
            self.input_splits, self.output_splits = given, np.full(self.ep_size, mine)
            self.output_splits_tp = np.full(self.tp_size, mine * self.ep_size)
        if self.num_local_experts > 1 and not self.config.moe_permute_fusion:  # which counts on the device
            share = even(mine, self.num_local_experts)
            self.num_global_tokens_per_local_expert = np.tile(share, (self.tp_size * self.ep_size, 1))
        return counted

    def shapes(self: Any, send_next: Any, send_prev: Any, recv_prev: bool, recv_next: bool) -> tuple[Any, Any]:
        return list(world.hidden), list(world.hidden)

    return [(MoEAlltoAllTokenDispatcher, "preprocess", preprocess), (P2PCommunicator, "_communicate_shapes", shapes)]


def _logprobs() -> list[Replacement]:
    """Provide log-probabilities on the host, where fake tensors cannot be copied to: zeros, of other ranks, too."""
    compute = Trainer.logprobs

    def logprobs(self: Trainer, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        compute(self, sequences)
        return zeros(len(one) for one in sequences)

    def zeros(lengths: Iterable[int]) -> list[np.ndarray]:
        return [np.zeros(length, np.float32) for length in lengths]

    return [
        (packing, "_of_sequences", lambda batch, logprobs_T: zeros(batch.packed.lengths)),
        (Trainer, "_together", lambda self, plan, mine: []),
        (Trainer, "logprobs", logprobs),
    ]


def _torch() -> list[Replacement]:
    """Replace operations that fake tensors lack; none changes memory, sizes or products."""
    move, whole = torch.nn.Module.to, attention._attend

    def norm(chunk: int, overflow: Tensor, gradients: list[list[Tensor]], *args: Any) -> tuple[Tensor, None]:
        """The norm of all gradients, which Megatron without fused kernels sums up on the host."""
        return torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients[0]]).norm().view(1), None

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Change the label of a module's fake tensors; torch would swap them, which its cache may forbid."""
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        if dtype is not None or not all(isinstance(tensor, FakeTensor) for tensor in tensors):
            return move(module, *args, **kwargs)
        for tensor in tensors:
            tensor.fake_device = device
        return module

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attention that looks back beyond its own rows, by flash attention as on the GPU."""
        if bias is None:
            return whole(q, k, v)
        rows = [x.squeeze(0).transpose(0, 1) for x in (q, k, v)]
        borders = [torch.empty(2, dtype=torch.int32, device=q.device) for _ in "qk"]
        out = varlen_attn(*rows, *borders, q.shape[2], k.shape[2], window_size=(-1, 0), enable_gqa=True)
        return out.transpose(0, 1).unsqueeze(0)

    return [
        *([] if rehearsed_version() else [(clip_grads, "l2_norm_impl", norm)]),
        (torch.nn.Module, "to", to),
        (attention, "causal_lower_right", lambda *size: torch.empty(0)),
        (attention, "_attend", attend),
    ]


def even(number: int, parts: int) -> np.ndarray:
    """Split ``number`` into whole numbers that differ by at most one."""
    return number // parts + (np.arange(parts) < number % parts)


class Answers:
    """Answers to operators whose result depends on numbers that fake tensors do not have.

    A number read on the host is 1. That of a real tensor is its own: when Python clears away an object of a model,
    such a number may name the memory to free. A mask selects ``chosen`` elements for each of its columns, as a map of
    experts to tokens does.
    """

    def __init__(self, world: SimulatedDevice) -> None:
        self._chosen, self._gpu = world.chosen, world.hardware.gpu

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Give an operator's result, as far as it depends on numbers, or let it run."""
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:
            if not isinstance(args[0], FakeTensor):
                with unset_fake_temporarily():
                    return func(*args)
            kind = args[0].dtype
            return True if kind is torch.bool else 1.0 if kind.is_floating_point else 1
        if func is aten.masked_select.default:
            return args[0].new_empty(args[1].shape[-1] * max(1, self._chosen))
        if func is aten.record_stream.default:
            return None
        if func is aten._grouped_mm.default and not self._gpu:
            return _grouped(*args, **kwargs)
        return func(*args, **kwargs)


def _grouped(a: Tensor, b: Tensor, offs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A product of stacked experts on a CPU, which takes fp32 where torch's check of fake tensors wants bf16."""
    return a.new_empty(a.shape[0], b.shape[-1]) if b.dim() == 3 else a.new_empty(len(offs), a.shape[0], b.shape[1])
