"""Megatron GPT models that end in log-probabilities, from an `Architecture`.

Weights come and go under Hugging Face names (`moe.weights.hf_weights`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.extensions.transformer_engine import TEColumnParallelLinear, TENorm
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from moe.cpu.dispatch import dispatch_on_host
from moe.errors import MoeError
from moe.model.architectures import Architecture, LayerPlan, architecture, check_expert_bias
from moe.model.attention import PackedAttention
from moe.model.head import LogProbModel
from moe.model.kernels import Kernels, choose, this_host
from moe.model.latent import LatentAttention
from moe.model.layers import (
    AttentionWithNormBehind,
    FeedForwardWithNormBehind,
    L2Norm,
    NormBehind,
    RmsNorm,
    Router,
    StackedExperts,
    SwiGlu,
    WideNorm,
)
from moe.settings import TrainerSetup


def megatron_config(arch: Architecture, config: TrainerSetup, kernels: Kernels) -> TransformerConfig:
    """Megatron's config for an architecture under a layout."""
    layout, dtype = config.layout, getattr(torch, config.dtype)
    moe: dict[str, Any] = {}
    if "num_moe_experts" in arch.fields:
        moe = {
            "moe_layer_freq": [int(layer.experts) for layer in arch.layers],
            "moe_router_load_balancing_type": "aux_loss" if config.balance else "none",
            "moe_aux_loss_coeff": config.balance,
            "moe_z_loss_coeff": config.z_loss,
            "moe_router_dtype": "fp32",
            "moe_grouped_gemm": False,
        }
    made = MLATransformerConfig if "kv_lora_rank" in arch.fields else TransformerConfig
    return made(
        **arch.fields,
        **moe,
        moe_token_dispatcher_type="alltoall",
        qk_layernorm=any(
            layer.qk_norm in ("rms", "wide") for layer in arch.layers
        ),  # its gradients are summed over tensor ranks
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        tensor_model_parallel_size=layout.tensor,
        sequence_parallel=layout.tensor > 1,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        variable_seq_lengths=True,
        calculate_per_token_loss=True,  # DDP then sums gradients over the ranks instead of averaging them
        perform_initialization=False,  # weights are always loaded, see moe.model.init
        use_cpu_initialization=not torch.cuda.is_available(),
        # which is to say the module in the spec, here `SwiGlu`; Megatron's own takes more passes over memory
        use_te_activation_func=kernels.layers == "local" and "bias_activation_fusion" not in kernels.fusions,
        **_recompute(config.recompute),
        **dict.fromkeys(kernels.fusions, True),
    )


_QK_NORMS = {"none": IdentityOp, "l2": L2Norm, "rms": RmsNorm}


def _recompute(how: str) -> dict[str, Any]:
    """Megatron's fields for recomputation in the backward pass."""
    if how == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if how == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp", "moe"]}
    return {}


def _layer_spec(plan: LayerPlan, config: TransformerConfig, kernels: Kernels) -> ModuleSpec:
    """Megatron's own layer with the parts of `moe.model.layers` and `moe.model.attention` in it."""
    latent = config.multi_latent_attention
    asked = {"num_experts": config.num_moe_experts if plan.experts else None, "multi_latent_attention": latent}
    if kernels.layers == "transformer_engine":
        spec = get_gpt_layer_with_transformer_engine_spec(**asked)
        # norm and linear layer apart, so that parameters have the same names whatever the kernels
        if not latent:
            spec.submodules.self_attention.submodules.linear_qkv = TEColumnParallelLinear
        if not plan.experts:
            spec.submodules.mlp.submodules.linear_fc1 = TEColumnParallelLinear
    else:
        spec = get_gpt_layer_local_spec(**asked, normalization="RMSNorm")
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = _norm(kernels)
    attention = parts.self_attention.submodules
    core: dict[str, Any] = {"plan": plan.attention, "kernel": kernels.attention}
    attention.core_attention = partial(PackedAttention, **core)
    if latent:
        parts.self_attention.module = LatentAttention
        attention.core_attention = ModuleSpec(PackedAttention, params=core)  # it takes no function, as others do
        attention.q_layernorm = attention.kv_layernorm = _norm(kernels)
    elif plan.qk_norm == "wide":
        attention.q_layernorm = ModuleSpec(WideNorm, params={"heads": "num_attention_heads"})
        attention.k_layernorm = ModuleSpec(WideNorm, params={"heads": "num_query_groups"})
    else:
        attention.q_layernorm = attention.k_layernorm = _QK_NORMS[plan.qk_norm]
    if plan.norm_behind:
        parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
        behind = {"norm": TENorm if kernels.layers == "transformer_engine" else NormBehind}
        parts.self_attention.module = AttentionWithNormBehind
        parts.self_attention.params = {**parts.self_attention.params, **behind}
        parts.mlp.module, parts.mlp.params = FeedForwardWithNormBehind, {**parts.mlp.params, **behind}
    if plan.experts:
        parts.mlp.submodules.router = partial(Router, corrected=plan.corrected)
        parts.mlp.submodules.experts = StackedExperts
    if config.use_te_activation_func:
        feed_forward = parts.mlp.submodules.shared_experts if plan.experts else parts.mlp
        feed_forward.submodules.activation_func = SwiGlu
    return spec


def _norm(kernels: Kernels) -> type:
    return TENorm if kernels.layers == "transformer_engine" else RmsNorm


def build(hf_config: dict[str, Any], config: TrainerSetup) -> LogProbModel:
    """Build this rank's part of a model, its weights not yet set; model-parallel groups must exist.

    Raises:
        MoeError: if the architecture is unsupported or cannot be cut as the layout says.
    """
    arch = architecture(hf_config)
    if config.expert_bias:
        check_expert_bias(hf_config)
    kernels = choose(config.kernels, config.dtype, this_host())
    try:
        megatron = megatron_config(arch, config, kernels)
    except (ValueError, AssertionError) as error:
        raise MoeError(f"this model cannot be laid out as {config.layout}: {error}") from error
    first = get_transformer_layer_offset(megatron)
    count = len(arch.layers) // config.layout.pipeline
    spec = TransformerBlockSubmodules(
        layer_specs=[_layer_spec(plan, megatron, kernels) for plan in arch.layers[first : first + count]],
        layer_norm=_norm(kernels),
    )
    model = LogProbModel(
        megatron,
        spec,
        vocab_size=hf_config["vocab_size"],
        max_sequence_length=hf_config["max_position_embeddings"],
        position_embedding_type="none",  # PackedAttention rotates by the positions of the packed tokens
        share_embeddings_and_output_weights=arch.tied,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        fp32_head=config.fp32_head,
        head_chunk=config.head_chunk,
    )
    for module in model.modules():
        if isinstance(module, MoELayer):
            if kernels.dispatcher == "host":
                dispatch_on_host(module)
            _let_go_of_graph(module)
    _mark_cuts(model)
    for router in model.routers:
        router.weight.requires_grad_(not config.freeze_router)
        if config.expert_bias:
            router.add_bias()
    return model


def _let_go_of_graph(layer: MoELayer) -> None:
    """Let a layer's dispatcher keep the router's weights without the graph that they came from.

    Megatron's keeps them with it until the next micro-batch. If the layer is computed again in the backward pass, that
    graph keeps the layer's input and the input's gradient: 2 GiB for Scout's 24 layers on a rank of 32.
    """

    def detach(*args: object) -> None:
        dispatcher = layer.token_dispatcher
        if isinstance(dispatcher, MoEAlltoAllTokenDispatcher):
            dispatcher.probs = dispatcher.probs.detach()

    layer.experts.register_forward_hook(detach)  # by then they have been dispatched


_CUTS = {
    "word_embeddings.weight": (0, 1),
    "output_layer.weight": (0, 1),
    "linear_qkv.weight": (0, 1),
    "linear_qkv.bias": (0, 1),
    "linear_proj.weight": (1, 1),
    "linear_fc1.weight": (0, 2),
    "linear_fc2.weight": (1, 1),
}
"""Axis that tensor parallelism cuts, and the number of stacked matrices (gate and up) that are cut separately."""


def _mark_cuts(model: LogProbModel) -> None:
    """Tag tensor-parallel parameters, as Megatron's initialiser would.

    The gradient norm counts a parameter without this mark on one tensor-parallel rank only.
    """
    for name, param in model.named_parameters():
        cut = next((cut for end, cut in _CUTS.items() if name.endswith(end)), None)
        if cut is not None:
            param.tensor_model_parallel, param.partition_dim, param.partition_stride = True, *cut
