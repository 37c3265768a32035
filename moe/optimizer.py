"""Megatron's DDP and DistributedOptimizer around a model, with AdamW in fp32 and sums instead of averages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, ChainedOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from moe.errors import MoeError
from moe.model.head import LogProbModel
from moe.settings import OptimizerConfig, UpdateRule

_HYBRID = (
    *("offload_fraction", "cpu_optimizer_cls", "gpu_optimizer_cls", "param_update_in_fp32"),
    *("pin_cpu_grads", "pin_cpu_params", "overlap_cpu_optimizer_d2h_h2d"),
)
"""Arguments of Megatron's hybrid optimiser that it keeps among the settings of its parameters."""


class TorchAdamOptimizer(DistributedOptimizer):
    """Megatron's DistributedOptimizer, made to save and load torch's AdamW, on the device or on the host.

    megatron-core 0.16.1 expects Apex's or Transformer Engine's Adam, which counts steps per group. torch's
    counts per parameter, in a tensor; after loading, Megatron would leave one such tensor shared by all
    parameters, and every step would advance it once per parameter. Of an optimiser on the host it would save the
    constructor's arguments, classes among them, which no checkpoint may hold.
    """

    def state_dict(self) -> dict[str, Any]:
        """The state that is alike on all ranks, in plain values."""
        state = super().state_dict()
        for group in state["optimizer"]["param_groups"]:
            for name in _HYBRID:
                group.pop(name, None)
        return state

    @torch.no_grad()
    def _set_main_param_and_optimizer_states(self, model_param: Tensor, tensors: dict[str, Tensor]) -> None:
        if isinstance(self.optimizer, HybridDeviceOptimizer):
            super()._set_main_param_and_optimizer_states(model_param, tensors)
            return
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


class Ruled(torch.optim.Optimizer):
    """An AdamW, whoever's, that takes its steps by a rule of the user's and keeps its own state for it."""

    rule: UpdateRule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Change every stretch of a parameter that this rank holds."""
        for group in self.param_groups:
            if not USING_PYTORCH_OPTIMIZER:
                group["step"] = group.get("step", 0) + 1
            for main in group["params"]:
                if main.grad is None:
                    continue
                state = self.state[main]
                if USING_PYTORCH_OPTIMIZER:
                    state["step"] += 1
                count = int(state["step"] if USING_PYTORCH_OPTIMIZER else group["step"])
                memory = state["exp_avg"], state["exp_avg_sq"]
                self.rule.update(main, main.grad, *memory, step=count, lr=group["lr"], decay=group["weight_decay"])


class Optimizer:
    """A model with its gradients and its optimiser.

    Args:
        model: the model, on its device.
        config: settings of AdamW.
        overlap: whether gradients are exchanged while the backward pass goes on.
        overlap_parameters: whether `step` returns before the new parameters of the other ranks have arrived. Modules
            wait for their own when they are called; `wait_for_parameters` waits for all.

    Attributes:
        ddp: the model in Megatron's DDP; gradients are *summed* over the data-parallel ranks.
        megatron: Megatron's optimiser, one part for the experts and one for the rest.

    Raises:
        MoeError: the settings ask for what is not here.
    """

    def __init__(
        self,
        model: LogProbModel,
        config: OptimizerConfig,
        overlap: bool = False,
        overlap_parameters: bool = False,
    ) -> None:
        low = model.config.params_dtype is not torch.float32
        self.config = config
        if config.moments != "float32" and USING_PYTORCH_OPTIMIZER:
            raise MoeError(
                f"OptimizerConfig.moments = {config.moments!r} needs Transformer Engine's AdamW, which is not "
                "installed here: install it (make install-gpu), or bind 'float32'"
            )
        if config.offload and not any(parameter.is_cuda for parameter in model.parameters()):
            raise MoeError(
                "OptimizerConfig.offload takes memory off a GPU, and this rank trains on a CPU: leave it out"
            )
        self.ddp = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=low,
                use_distributed_optimizer=True,
                overlap_grad_reduce=overlap,
                overlap_param_gather=overlap_parameters,
                align_param_gather=overlap_parameters,  # `step` begins all, so a module begins no other's
            ),
            model,
        )
        if overlap_parameters and model.post_process:
            # the output product reads its matrix without calling its module, right after this norm
            model.decoder.final_layernorm.register_forward_pre_hook(self._wait_for_head)
        self.megatron: ChainedOptimizer = get_megatron_optimizer(
            _megatron_config(config, model.config.params_dtype), [self.ddp]
        )
        if USING_PYTORCH_OPTIMIZER or config.offload:
            for part in self.megatron.chained_optimizers:
                part.__class__ = TorchAdamOptimizer
        if config.rule is not None:
            for part in self.megatron.chained_optimizers:
                adam = type(part.optimizer)
                part.optimizer.__class__ = type(f"Ruled{adam.__name__}", (Ruled, adam), {"rule": config.rule})
        self._set_groups()
        self._fill_state()
        model.config.finalize_model_grads_func = _finalize
        model.config.no_sync_func = self.ddp.no_sync if overlap else None
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
            if isinstance(part.optimizer, HybridDeviceOptimizer):
                _fill_host_state(part.optimizer)
                continue
            if self.config.moments != "float32":
                _fill_precise_state(part.optimizer)
                continue
            part.init_state_fn(part.optimizer, part.config)
            if USING_PYTORCH_OPTIMIZER:  # Apex and Transformer Engine count steps per group, from the first on
                for main, state in part.optimizer.state.items():
                    state["step"] = torch.zeros((), dtype=torch.float32, device=main.device)

    def reload_weights(self) -> None:
        """Go on from weights that were set in the model; moments stay."""
        self.megatron.reload_model_params()
        if self.config.moments != "float32":  # what the kernel keeps is the difference to weights that are gone
            for part in self.megatron.chained_optimizers:
                for state in part.optimizer.state.values():
                    state["master_param"].zero_()

    def load_state_dict(self, state: Any) -> None:
        """Load optimiser state read by `moe.checkpoint`; the learning rate and other settings stay this config's."""
        self.megatron.load_state_dict(state)
        self._set_groups()

    def release(self) -> None:
        """Drop the references to the model: Python's collector cannot see the cycles through autograd's nodes.

        Their hooks hold the DDP. The nodes are held by a list, by the config's functions, and by the routed
        tensors that a token dispatcher keeps of its last micro-batch.
        """
        config = self.ddp.config
        config.finalize_model_grads_func = config.grad_scale_func = config.no_sync_func = None
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
            mine = list(_gradients(group["params"]))
            if scale < 1 and mine:  # a share of the optimiser that lies within one matrix has no vectors at all
                torch._foreach_mul_(mine, scale)
        self.megatron.step_with_ready_grads()
        if self.ddp.ddp_config.overlap_param_gather:
            self.ddp.start_param_sync()
        return norm, True

    def wait_for_parameters(self) -> None:
        """Wait until the parameters that `step` began to gather are here; not collective."""
        for group in (*self.ddp.bucket_groups, *self.ddp.expert_parallel_bucket_groups):
            if group.param_gather_handle is not None:
                group.finish_param_sync(skip_next_bucket_dispatch=True)

    def _wait_for_head(self, *_: object) -> None:
        """Wait for the output matrix, as Megatron's hooks wait for the parameters of the module that they are for."""
        matrix = self.ddp.module.output_matrix
        self.ddp.param_to_bucket_group[matrix].finish_param_sync(skip_next_bucket_dispatch=True)

    def not_finite(self) -> str | None:
        """The first parameter of this rank with a gradient that is not finite, and how much of it is not."""
        for name, parameter in self.ddp.module.named_parameters():
            bad = (~parameter.main_grad.isfinite()).sum().item()
            if bad:
                return f"{bad} of {parameter.numel()} entries of the gradient of {name}"
        return None

    def why_skipped(self, times: int, loss: float, norm: float) -> str:
        """The error message when so many steps in a row were skipped."""
        where = self.not_finite() or "no gradient of this rank, but one of another"
        return (
            f"{times} steps in a row were skipped: the gradient norm is {norm}, with a loss of {loss:g}; not finite: "
            f"{where}. Look at the advantages and the learning rate, and resume from an earlier checkpoint"
        )


def _megatron_config(config: OptimizerConfig, dtype: torch.dtype) -> MegatronOptimizerConfig:
    """Megatron's config of AdamW."""
    moments = getattr(torch, config.moments)
    made = MegatronOptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        clip_grad=0.0,  # done in `Optimizer.step`, so that one norm serves clipping, skipping and reporting
        bf16=dtype is not torch.float32,
        params_dtype=dtype,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=config.moments != "float32",
        exp_avg_dtype=moments,
        exp_avg_sq_dtype=moments,
        optimizer_cpu_offload=config.offload,
        optimizer_offload_fraction=1.0,
        overlap_cpu_optimizer_d2h_h2d=config.offload,
    )
    if config.offload:  # it shares this path; set here, since the constructor asks for Transformer Engine's version
        made.use_precision_aware_optimizer = made.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
        made.store_param_remainders = False
    return made


def _gradients(params: list[Tensor]) -> Iterator[Tensor]:
    """The gradients that the optimiser will read; a precision-aware one reads its own attribute."""
    for param in params:
        gradient = getattr(param, "decoupled_grad", None)
        gradient = param.grad if gradient is None else gradient
        if gradient is not None:
            yield gradient


def _fill_precise_state(optimizer: Any) -> None:
    """Start the state of Transformer Engine's AdamW with bf16 moments.

    megatron-core 0.16.1 leaves out an argument that Transformer Engine 2.20 wants: whether only the 16 bits are kept
    that the fp32 weights have beyond bf16 ones. It is given as the step itself would give it.
    """
    for group in optimizer.param_groups:
        for main in group["params"]:
            optimizer.initialize_state(main, optimizer.store_param_remainders and main.dtype is torch.bfloat16)


def _fill_host_state(optimizer: HybridDeviceOptimizer) -> None:
    """Start the state of an optimiser in host memory."""
    for part in optimizer.sub_optimizers:
        for group in part.param_groups:
            for main in group["params"]:
                part.state[main] = {
                    "step": torch.zeros((), dtype=torch.float32),
                    "exp_avg": torch.zeros_like(main),
                    "exp_avg_sq": torch.zeros_like(main),
                }
    optimizer._sync_sub_optimizers_state_to_hdo()


def _finalize(model: list[Any], num_tokens: Tensor | None = None, **kwargs: Any) -> None:
    """Megatron's reduction of gradients over the ranks, without its division by the number of tokens."""
    finalize_model_grads(model, None, **kwargs)
