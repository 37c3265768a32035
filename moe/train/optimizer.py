"""Megatron's DDP and DistributedOptimizer around a model, with AdamW in fp32 and sums instead of averages."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, ChainedOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from moe.model.gpt import LogProbModel
from moe.train.config import OptimizerConfig


class TorchAdamOptimizer(DistributedOptimizer):
    """Megatron's DistributedOptimizer, made to save and load torch's AdamW.

    megatron-core 0.16.1 expects Apex's or Transformer Engine's Adam, which counts steps per group. torch's
    counts per parameter, in a tensor; after loading, Megatron would leave one such tensor shared by all
    parameters, and every step would advance it once per parameter.
    """

    @torch.no_grad()
    def _set_main_param_and_optimizer_states(self, model_param: Tensor, tensors: dict[str, Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        main = self.optimizer.param_groups[group]["params"][order]
        for name, tensor in {"param": main, **self.optimizer.state[main]}.items():
            if name in tensors:
                tensor.copy_(tensors[name])

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state as Megatron does, with a step counter for each parameter."""
        super().load_state_dict(state_dict)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()


class Optimizer:
    """A model with its gradients and its optimiser.

    Attributes:
        ddp: the model in Megatron's DDP; gradients are *summed* over the data-parallel ranks.
        megatron: Megatron's optimiser, one part for the experts and one for the rest.
    """

    def __init__(self, model: LogProbModel, config: OptimizerConfig) -> None:
        low = model.config.params_dtype is not torch.float32
        self.config = config
        self.ddp = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=low, use_distributed_optimizer=True),
            model,
        )
        self.megatron: ChainedOptimizer = get_megatron_optimizer(
            MegatronOptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.betas[0],
                adam_beta2=config.betas[1],
                adam_eps=config.eps,
                clip_grad=0.0,  # done below, so that one norm serves clipping, skipping and reporting
                bf16=low,
                params_dtype=model.config.params_dtype,
                use_distributed_optimizer=True,
            ),
            [self.ddp],
        )
        if USING_PYTORCH_OPTIMIZER:
            for part in self.megatron.chained_optimizers:
                part.__class__ = TorchAdamOptimizer
        self._set_groups()
        self._fill_state()
        model.config.finalize_model_grads_func = _finalize
        model.config.grad_scale_func = self.megatron.scale_loss

    def _set_groups(self) -> None:
        """Write the config into the parameter groups, where Megatron expects its scheduler to."""
        for group in self.megatron.param_groups:
            group["weight_decay"] = self.config.weight_decay * group["wd_mult"]
            group["betas"], group["eps"] = self.config.betas, self.config.eps
            if USING_PYTORCH_OPTIMIZER:
                group["fused"], group["foreach"] = True, False

    def _fill_state(self) -> None:
        """Start AdamW's state at once instead of in the first step, so that it can always be saved."""
        for part in self.megatron.chained_optimizers:
            part.init_state_fn(part.optimizer)
            if USING_PYTORCH_OPTIMIZER:  # Apex and Transformer Engine count steps per group, from the first on
                for main, state in part.optimizer.state.items():
                    state["step"] = torch.zeros((), dtype=torch.float32, device=main.device)

    def load_state_dict(self, state: Any) -> None:
        """Load optimiser state read by `moe.checkpoint`; the learning rate and other settings stay this config's."""
        self.megatron.load_state_dict(state)
        self._set_groups()

    def release(self) -> None:
        """Drop the references to the model: Python's collector cannot see the cycles through autograd's nodes.

        Their hooks hold the DDP. The nodes are held by a list, by the config's functions, and by the routed
        tensors that a token dispatcher keeps of its last micro-batch.
        """
        self.ddp.config.finalize_model_grads_func = self.ddp.config.grad_scale_func = None
        self.ddp.grad_accs.clear()
        for module in self.ddp.modules():
            if isinstance(module, MoELayer):
                del module.token_dispatcher

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.ddp.zero_grad_buffer()
        self.megatron.zero_grad()

    def step(self, lr: float) -> tuple[float, bool]:
        """Clip the gradients and take one AdamW step, unless a gradient is not finite.

        Returns:
            (global gradient norm before clipping, whether the step was taken), the same on every rank.
        """
        self.megatron.prepare_grads()
        norm = self.megatron.get_grad_norm()
        if not math.isfinite(norm):
            return norm, False
        scale = min(1.0, self.config.clip_grad / (norm + 1e-6)) if self.config.clip_grad else 1.0
        for group in self.megatron.param_groups:
            group["lr"] = lr
            mine = [p.grad for p in group["params"] if p.grad is not None]
            if scale < 1 and mine:  # a share of the optimiser that lies within one matrix has no vectors at all
                torch._foreach_mul_(mine, scale)
        self.megatron.step_with_ready_grads()
        return norm, True

    def not_finite(self) -> str | None:
        """The first parameter of this rank with a gradient that is not finite, and how much of it is not."""
        for name, parameter in self.ddp.module.named_parameters():
            bad = (~parameter.main_grad.isfinite()).sum().item()
            if bad:
                return f"{bad} of {parameter.numel()} entries of the gradient of {name}"
        return None


def _finalize(model: list[Any], num_tokens: Tensor | None = None, **kwargs: Any) -> None:
    """Megatron's reduction of gradients over the ranks, without its division by the number of tokens."""
    finalize_model_grads(model, None, **kwargs)
