"""Norms, router and experts that Megatron's layer specs take instead of its CUDA ones.

Axes: _T tokens, _E experts (of this rank where weights are meant), _K experts per token, _H hidden size,
_F gate and up rows of an expert (2·I), _I its inner size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.dist_checkpointing.mapping import (
    ReplicaId,
    ShardedStateDict,
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_utils import compute_routing_scores_for_aux_loss
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group, make_sharded_tensors_for_checkpoint
from torch import Tensor

from moe.cpu.operators import rms_norm, swiglu, weigh
from moe.model.choice import Choice


class RmsNorm(torch.nn.Module):
    """RMS norm with a weight; unlike Megatron's torch norm it works under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # Megatron sums such gradients over the ranks

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return rms_norm(x, self.weight, self.eps)


class WideNorm(RmsNorm):
    """RMS norm over the queries, or the keys, of all heads together (OLMo-2); without tensor parallelism only."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, *, heads: str, **_: Any) -> None:
        super().__init__(config, hidden_size * getattr(config, heads), eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last two axes, heads and their features, together."""
        return super().forward(x.flatten(-2)).unflatten(-1, x.shape[-2:])


class NormBehind(RmsNorm):
    """RMS norm that Megatron's feed-forward can hold: it asks each of its parts for its checkpoint's tensors."""

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> ShardedStateDict:
        """The weight, as Megatron writes that of any module."""
        groups = ensure_metadata_has_dp_cp_group(metadata)
        weights = self.state_dict(prefix="", keep_vars=True)
        found: ShardedStateDict = make_sharded_tensors_for_checkpoint(
            weights, prefix, {}, sharded_offsets, dp_cp_group=groups["dp_cp_group"]
        )
        return found


class _NormedOutput(torch.nn.Module):
    """Norm what the class behind it computes, before it is added to the residual stream (OLMo-2)."""

    def __init__(self, config: TransformerConfig, *args: Any, norm: type, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.norm_behind = norm(config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Compute, and norm."""
        output, _ = super().forward(*args, **kwargs)
        return self.norm_behind(output), None


class AttentionWithNormBehind(_NormedOutput, SelfAttention):
    """Megatron's attention with a normed output."""


class FeedForwardWithNormBehind(_NormedOutput, MLP):
    """Megatron's feed-forward with a normed output."""


class L2Norm(torch.nn.Module):
    """RMS norm without a weight (Llama-4's norm of queries and keys)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return rms_norm(x, None, self.eps)


class SwiGlu(MegatronModule):
    """`swiglu` as a module, in place of Transformer Engine's."""

    def forward(self, gate_up_TF: Tensor) -> Tensor:
        """See `swiglu`."""
        return swiglu(gate_up_TF)


def parameter_device(config: TransformerConfig) -> torch.device | None:
    """Name the device that Megatron builds its own layers on; None for torch's default, such as "meta"."""
    return None if config.use_cpu_initialization else torch.device(torch.cuda.current_device())


BIAS = "router.bias_E"
"""Ending of a router's bias's name, in a model and in a checkpoint."""


class _AddLoss(torch.autograd.Function):
    """Return a tensor as it is, and add a scalar loss to whatever is made of it.

    Megatron's own keeps the loss's scale in a class attribute, made at the first backward pass of the process: a
    rehearsal on fake tensors would leave a fake scale to all trainers after it.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        [loss] = ctx.saved_tensors
        return grad, torch.ones_like(loss)


class Router(TopKRouter):
    """Megatron's router in fp32, which also counts the tokens each expert gets while training.

    Its own `gating` needs Transformer Engine and moves the weight to a GPU.

    Attributes:
        load_E: tokens each expert got since it was last set to zero.
        step_tokens: tokens of all ranks in this step, over which the balancing loss is a mean.
        bias_E: fp32, added to the logits for the choice of experts alone; None until `add_bias`.
        router_replay: how to choose for the micro-batch at hand.
        correction_E: fp32, added to the sigmoids for the choice alone and never trained (DeepSeek-V3); None without.
    """

    def __init__(
        self, config: TransformerConfig, pg_collection: ProcessGroupCollection | None = None, *, corrected: bool = False
    ) -> None:
        super().__init__(config, pg_collection)
        if (device := parameter_device(config)) is not None:
            self.to(device)  # Megatron makes it on the host, and DDP moves no frozen router
        self.load_E = torch.zeros(config.num_moe_experts, device=self.weight.device)
        self.step_tokens = 1
        self.bias_E: Tensor | None
        self.register_buffer("bias_E", None)
        zeros_E = torch.zeros_like(self.load_E)
        self.correction_E = torch.nn.Parameter(zeros_E, requires_grad=False) if corrected else None
        self.router_replay = Choice()

    def add_bias(self) -> None:
        """Choose by logit and a bias for each expert, of 0 at first, which checkpoints hold from now on."""
        self.bias_E = torch.zeros_like(self.load_E)

    @torch.no_grad()
    def move_bias(self, load_E: Tensor, by: float) -> None:
        """Raise the bias of experts with fewer tokens than the mean, and lower the others' (arXiv 2408.15664, Alg. 1).

        Args:
            load_E: tokens each expert got on all ranks.
            by: how far.
        """
        if self.bias_E is not None:
            self.bias_E += by * (load_E.mean() - load_E).sign()

    def gating(self, input: Tensor) -> Tensor:
        """Logits [..., E] in fp32."""
        return F.linear(input.float(), self.weight.float())

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose by logit. Megatron chooses by sigmoid, where in fp32 logits of 12.00 and 12.01 are a tie.

        With `correction_E`, choose by sigmoid, as those models do, and let the chosen share a constant weight.
        """
        self.router_replay.bias_E = self.bias_E
        if self.score_function != "sigmoid":
            return super().routing(logits, padding_mask)
        logits_TE = self.apply_z_loss(logits.flatten(0, -2), padding_mask)
        if self.correction_E is None:
            top_TK, experts_TK = self.router_replay.choose(logits_TE, self.topk)
            weights_TK = top_TK.sigmoid()
        else:
            scores_TE = logits_TE.sigmoid()
            top_TK, experts_TK = self.router_replay.choose(scores_TE, self.topk, self._judged(scores_TE))
            weights_TK = top_TK / (top_TK.sum(-1, keepdim=True) + 1e-20) * self.config.moe_router_topk_scaling_factor
        probs_TE = torch.zeros_like(logits_TE).scatter(1, experts_TK, weights_TK)
        chosen_TE = torch.zeros_like(logits_TE, dtype=torch.bool).scatter(1, experts_TK, True)
        if self.is_aux_loss_enabled() and torch.is_grad_enabled():
            padding_T = None if padding_mask is None else padding_mask.flatten()
            aux_map_TE, scores_TE = compute_routing_scores_for_aux_loss(
                logits_TE, self.topk, self.score_function, padding_mask=padding_T
            )
            probs_TE = self._apply_aux_loss(probs_TE, scores_TE, aux_map_TE)
        return probs_TE, chosen_TE

    @torch.no_grad()
    def _judged(self, scores_TE: Tensor) -> Tensor:
        """Scores [T, E] that experts are chosen by: −∞ outside the groups whose two best experts are best together."""
        judged_TE = scores_TE + self.correction_E
        if not self.config.moe_router_num_groups:
            return judged_TE
        judged_TGE = judged_TE.unflatten(1, (self.config.moe_router_num_groups, -1))
        sums_TG = judged_TGE.topk(2, dim=-1).values.sum(-1)
        best_TG = sums_TG.topk(self.config.moe_router_group_topk, dim=-1).indices
        left_TG = torch.ones_like(sums_TG, dtype=torch.bool).scatter_(1, best_TG, False)
        return judged_TGE.masked_fill(left_TG.unsqueeze(-1), -torch.inf).flatten(1)

    def forward(self, input: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Megatron's (probabilities, map), both [T, E]; ``padding_mask`` [T, 1] is True where nothing counts."""
        probs_TE, chosen_TE = super().forward(input, padding_mask)
        if torch.is_grad_enabled():
            counted_TE = chosen_TE if padding_mask is None else chosen_TE & ~padding_mask
            self.load_E += counted_TE.sum(0)
        return probs_TE, chosen_TE

    def apply_z_loss(self, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Attach weight · Σ_t (log Σ_e exp logit)² / tokens of the step: it keeps logits small (ST-MoE, Eq. 5)."""
        weight = self.config.moe_z_loss_coeff
        if not weight or not torch.is_grad_enabled():
            return logits
        z_T = logits.logsumexp(-1).square()
        if padding_mask is not None:
            z_T = z_T.masked_fill(padding_mask.flatten(), 0.0)
        return _AddLoss.apply(logits, z_T.sum() * (weight / self.step_tokens))

    def _apply_aux_loss(
        self,
        probs: Tensor,
        scores_for_aux_loss: Tensor,
        routing_map: Tensor,
        with_padding_mask: bool = False,
    ) -> Tensor:
        """Attach the balancing loss of a micro-batch by its share of the step's tokens, as the caller's loss is a sum.

        The micro-batch's choices are counted over all ranks that share it. Each rank adds the loss's part that its
        own tokens' probabilities have in it, so that the gradients' sum over the ranks is that of one process.
        """
        chosen_E = routing_map.sum(0).float()
        if self.tp_cp_group.size() > 1:
            dist.all_reduce(chosen_E, group=self.tp_cp_group)
        weight = self.config.moe_aux_loss_coeff * self.num_experts / self.step_tokens
        loss = torch.dot(scores_for_aux_loss.sum(0), chosen_E / chosen_E.sum().clamp(min=1)) * weight
        return _AddLoss.apply(probs, loss)


class StackedExperts(MegatronModule):
    """The routed experts of one rank as two stacked matrices, one grouped product each.

    Megatron's `SequentialMLP` runs the experts one by one; its checkpoints are the same as these.

    Under expert-tensor parallelism a rank holds a stretch of I of every expert, and what it returns is a part of a sum.

    Attributes:
        fc1_EFH: gate and up projections, [E, 2·I, H].
        fc2_EHI: down projections, [E, H, I].
    """

    def __init__(
        self, num_local_experts: int, config: TransformerConfig, pg_collection: ProcessGroupCollection
    ) -> None:
        super().__init__(config)
        self.pg_collection = pg_collection
        inner, hidden = config.moe_ffn_hidden_size // pg_collection.expt_tp.size(), config.hidden_size
        self.fc1_EFH = self._parameter(num_local_experts, 2 * inner, hidden, cut=1, stride=2)
        self.fc2_EHI = self._parameter(num_local_experts, hidden, inner, cut=2)

    def _parameter(self, *shape: int, cut: int, stride: int = 1) -> torch.nn.Parameter:
        device = parameter_device(self.config)
        weight = torch.nn.Parameter(torch.empty(shape, dtype=self.config.params_dtype, device=device))
        # marked without expert-tensor parallelism, too: tensor-parallel ranks then hold other experts or, in the
        # optimiser, other parts of the same, and all of them belong to the gradient's norm
        set_tensor_model_parallel_attributes(weight, True, cut, stride)
        # reduced over the ranks that hold the same experts, not over all data-parallel ranks; marked at
        # EP=1, too, so that the optimiser keeps the same two parts whatever the layout
        weight.allreduce = False
        return weight

    def forward(self, tokens_TH: Tensor, tokens_per_expert: Tensor, probs_T: Tensor) -> tuple[Tensor, None]:
        """Run each expert on its stretch of the tokens.

        Args:
            tokens_TH: tokens sorted by expert.
            tokens_per_expert: lengths of the stretches, [E]; Megatron hands them over on the host.
            probs_T: router weight of each token for its expert.

        Returns:
            ([T, H], no bias).
        """
        ends_E = tokens_per_expert.cumsum(0).int().to(tokens_TH.device, non_blocking=True)
        on_input = self.config.moe_apply_probs_on_input
        if on_input:
            tokens_TH = weigh(tokens_TH, probs_T)
        gate_up = F.grouped_mm(tokens_TH, self.fc1_EFH.transpose(1, 2), offs=ends_E)
        inner_TI = swiglu(gate_up)
        if not on_input:
            inner_TI = weigh(inner_TI, probs_T)
        return F.grouped_mm(inner_TI, self.fc2_EHI.transpose(1, 2), offs=ends_E), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> ShardedStateDict:
        """The stacked weights under the keys and global shapes of Megatron's `SequentialMLP`."""
        groups, axis = self.pg_collection, len(sharded_offsets)
        experts, tensor = (axis, groups.ep.rank(), groups.ep.size()), groups.expt_tp
        replica = (0, 0, groups.expt_dp.rank())

        def shard(key: str, data: Tensor, cut: int, part: int, parts: int, replica_id: ReplicaId) -> ShardedTensor:
            offsets = (*sharded_offsets, experts, (axis + cut, part, parts))
            return ShardedTensor.from_rank_offsets(key, data, *offsets, replica_id=replica_id, prepend_axis_num=axis)

        def gate_and_up(key: str, data: Tensor, replica_id: ReplicaId, _: slice | None) -> list[ShardedTensor]:
            """Shard gates and ups apart: the whole tensor has all gates before all ups."""
            places = enumerate(data.chunk(2, dim=1))
            n = tensor.size()
            return [shard(key, half, 1, i * n + tensor.rank(), 2 * n, replica_id) for i, half in places]

        fc1, fc2 = (f"{prefix}experts.linear_{name}.weight" for name in ("fc1", "fc2"))
        together = partial(torch.cat, dim=1)
        return {
            f"{prefix}fc1_EFH": ShardedTensorFactory(fc1, self.fc1_EFH, gate_and_up, together, replica),
            f"{prefix}fc2_EHI": shard(fc2, self.fc2_EHI, 2, tensor.rank(), tensor.size(), replica),
        }
