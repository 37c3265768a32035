"""A Hugging Face ``config.json`` in Megatron's terms; importable without torch.

An architecture is a function from the config to Megatron's fields and to one `LayerPlan` per layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moe.errors import MoeError
from moe.model.rotation import inverse_frequencies, rope_magnitude, rope_parameters


@dataclass(frozen=True)
class AttentionPlan:
    """Properties of one layer's attention beyond softmax(QKᵀ)V.

    Attributes:
        inv_freq: inverse frequencies of the rotary embedding, one for each pair of features that rotate; None for no
            embedding.
        first: first feature of a head that rotates.
        scale: factor on the queries beyond 1/√D (DeepSeek's with YaRN).
        magnitude: factor on the rotated queries and keys (YaRN's attention factor).
        interleaved: rotate neighbouring pairs (Llama-4) rather than the two halves of a head (Llama).
        chunk: attend within chunks of this many tokens; None attends to everything before.
        temperature: (floor, scale) of Llama-4's position-dependent sharpening; None for none.
    """

    inv_freq: tuple[float, ...] | None
    first: int = 0
    scale: float = 1.0
    magnitude: float = 1.0
    interleaved: bool = False
    chunk: int | None = None
    temperature: tuple[float, float] | None = None


@dataclass(frozen=True)
class LayerPlan:
    """Properties in which layers differ.

    Attributes:
        attention: see `AttentionPlan`.
        qk_norm: "none", "l2" (Llama-4, without weights), "rms" (Qwen3, by head) or "wide" (OLMo-2, over all heads).
        norm_behind: norms behind attention and feed-forward in place of those before (OLMo-2).
        experts: True for a mixture of experts, False for a dense feed-forward.
        corrected: the router has a bias for each expert, for the choice alone.
    """

    attention: AttentionPlan
    qk_norm: str = "none"
    experts: bool = False
    norm_behind: bool = False
    corrected: bool = False


@dataclass(frozen=True)
class Architecture:
    """A Hugging Face config in Megatron's terms.

    Attributes:
        fields: entries of Megatron's `TransformerConfig`.
        layers: one plan per layer.
        tied: the embedding doubles as output matrix.
    """

    fields: dict[str, Any]
    layers: tuple[LayerPlan, ...]
    tied: bool = False

    @property
    def chunks(self) -> set[int | None]:
        """The attention chunk sizes in use."""
        return {layer.attention.chunk for layer in self.layers}


def head_dim(hf: dict[str, Any]) -> int:
    """Size of a head's queries and keys; configs that do not say share the hidden size among the heads."""
    if "kv_lora_rank" in hf:
        return int(hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"])
    return hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]


def kv_heads(hf: dict[str, Any]) -> int:
    """Heads of keys and values: configs that do not say have as many as of queries, and so has latent attention."""
    shared = None if "kv_lora_rank" in hf else hf.get("num_key_value_heads")
    return int(shared or hf["num_attention_heads"])


def _inv_freq(hf: dict[str, Any]) -> tuple[float, ...]:
    return inverse_frequencies(rope_parameters(hf), head_dim(hf))


def _rotated(hf: dict[str, Any], size: int | None = None) -> AttentionPlan:
    """Plan attention over all tokens before, with a rotary embedding on the first features of every head, or on all."""
    rope = rope_parameters(hf)
    return AttentionPlan(inverse_frequencies(rope, size or head_dim(hf)), magnitude=rope_magnitude(rope))


def _llama_fields(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields that Llama and its descendants share."""
    return {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "ffn_hidden_size": hf["intermediate_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": kv_heads(hf),
        "kv_channels": head_dim(hf),
        "layernorm_epsilon": hf["rms_norm_eps"],
    }


def _llama(hf: dict[str, Any]) -> Architecture:
    layer = LayerPlan(_rotated(hf))
    return Architecture(_llama_fields(hf), (layer,) * hf["num_hidden_layers"], hf.get("tie_word_embeddings", False))


def _smollm3(hf: dict[str, Any]) -> Architecture:
    """Read a SmolLM3 config: Llama, some of whose layers do not rotate queries and keys."""
    layers, step = range(hf["num_hidden_layers"]), hf["no_rope_layer_interval"]
    rope = hf.get("no_rope_layers") or [int((i + 1) % step != 0) for i in layers]
    turned = _rotated(hf)
    plans = tuple(LayerPlan(turned if rope[i] else AttentionPlan(None)) for i in layers)
    return Architecture(_llama_fields(hf), plans, hf.get("tie_word_embeddings", True))


def _olmo2(hf: dict[str, Any]) -> Architecture:
    """Read an OLMo-2 config: norms behind each block, and over the queries and keys of all heads together."""
    layer = LayerPlan(_rotated(hf), qk_norm="wide", norm_behind=True)
    return Architecture(_llama_fields(hf), (layer,) * hf["num_hidden_layers"], hf.get("tie_word_embeddings", False))


def _qwen2(hf: dict[str, Any]) -> Architecture:
    """Read a Qwen2 or Qwen2.5 config: Llama with biases on queries, keys and values."""
    plain = _llama(hf)
    return replace(plain, fields={**plain.fields, "add_qkv_bias": True})


def _qwen3(hf: dict[str, Any]) -> Architecture:
    """Read a Qwen3 config: Llama with queries and keys normalised head by head before they are rotated."""
    layer = LayerPlan(_rotated(hf), qk_norm="rms")
    return Architecture(_llama_fields(hf), (layer,) * hf["num_hidden_layers"], hf.get("tie_word_embeddings", False))


def _softmax_router(chosen: int, normalize: bool) -> dict[str, Any]:
    """The best ``chosen`` experts by softmax, their weights divided by their sum or left as they are.

    The softmax of the chosen logits *is* the softmax of all of them divided by the sum of the chosen.
    """
    if normalize and chosen == 1:
        raise MoeError("one expert per token with normalised weights always weighs 1 and its router learns nothing")
    return {"moe_router_topk": chosen, "moe_router_score_function": "softmax", "moe_router_pre_softmax": not normalize}


def _qwen3_moe(hf: dict[str, Any]) -> Architecture:
    fields = {
        **_llama_fields(hf),
        "num_moe_experts": hf["num_local_experts"] if "num_local_experts" in hf else hf["num_experts"],
        "moe_ffn_hidden_size": hf["moe_intermediate_size"],
        **_softmax_router(hf["num_experts_per_tok"], hf["norm_topk_prob"]),
    }
    step, dense = hf["decoder_sparse_step"], hf.get("mlp_only_layers") or []
    attention = _rotated(hf)
    plans = tuple(
        LayerPlan(attention, qk_norm="rms", experts=(i + 1) % step == 0 and i not in dense)
        for i in range(hf["num_hidden_layers"])
    )
    return Architecture(fields, plans, hf.get("tie_word_embeddings", False))


def _mixtral(hf: dict[str, Any]) -> Architecture:
    fields = {
        **_llama_fields(hf),
        "num_moe_experts": hf["num_local_experts"],
        "moe_ffn_hidden_size": hf["intermediate_size"],
        **_softmax_router(hf["num_experts_per_tok"], normalize=True),
    }
    layer = LayerPlan(_rotated(hf), experts=True)
    return Architecture(fields, (layer,) * hf["num_hidden_layers"], hf.get("tie_word_embeddings", False))


def _llama4_text(hf: dict[str, Any]) -> Architecture:
    """ScaleRL §4's MoE: sigmoid top-1 router whose weight scales the expert's input, shared expert, NoPE layers."""
    layers = range(hf["num_hidden_layers"])
    # empty or absent lists mean these, as in transformers
    rope = hf.get("no_rope_layers") or [int((i + 1) % hf["no_rope_layer_interval"] != 0) for i in layers]
    kinds = hf.get("layer_types") or ["chunked_attention" if r else "full_attention" for r in rope]
    step = hf["interleave_moe_layer_step"]
    experts = hf.get("moe_layers") or [i for i in layers if (i + 1) % step == 0]
    inv_freq = _inv_freq(hf)
    tuning = (hf["floor_scale"], hf["attn_scale"]) if hf["attn_temperature_tuning"] else None
    fields = {
        **_llama_fields(hf),
        "ffn_hidden_size": hf["intermediate_size_mlp"],
        "num_moe_experts": hf["num_local_experts"],
        "moe_router_topk": hf["num_experts_per_tok"],
        "moe_ffn_hidden_size": hf["intermediate_size"],
        "moe_shared_expert_intermediate_size": hf["intermediate_size"],
        "moe_router_score_function": "sigmoid",
        "moe_apply_probs_on_input": True,
    }
    plans = tuple(
        LayerPlan(
            AttentionPlan(
                inv_freq if rope[i] else None,
                interleaved=True,
                chunk=hf["attention_chunk_size"] if kinds[i] == "chunked_attention" else None,
                temperature=None if rope[i] else tuning,
            ),
            qk_norm="l2" if hf["use_qk_norm"] and rope[i] else "none",
            experts=i in experts,
        )
        for i in layers
    )
    return Architecture(fields, plans, hf.get("tie_word_embeddings", False))


def _sigmoid_routed(hf: dict[str, Any]) -> dict[str, Any]:
    """DeepSeek-V3's mixtures: the best sigmoids, with biases for the choice alone, share out a constant weight.

    See arXiv 2412.19437, Eq. 13 to 16.
    """
    chosen, groups = hf["num_experts_per_tok"], hf["n_group"] or 1
    if not hf["norm_topk_prob"] or chosen == 1:
        raise MoeError(f"{hf['model_type']} needs norm_topk_prob and several experts per token: Megatron's sigmoids do")
    for name, only in {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}.items():
        if hf.get(name, only) != only:
            raise MoeError(f"{hf['model_type']} with {name}={hf[name]!r} is not supported, only {only!r}")
    grouped = {"moe_router_num_groups": groups, "moe_router_group_topk": hf["topk_group"]} if groups > 1 else {}
    return {
        "num_moe_experts": hf["n_routed_experts"] if "n_routed_experts" in hf else hf["num_local_experts"],
        "moe_ffn_hidden_size": hf["moe_intermediate_size"],
        "moe_shared_expert_intermediate_size": hf["moe_intermediate_size"] * hf["n_shared_experts"],
        "moe_router_topk": chosen,
        "moe_router_score_function": "sigmoid",
        "moe_router_topk_scaling_factor": float(hf["routed_scaling_factor"]),
        **grouped,
    }


def _first_dense(hf: dict[str, Any], fields: dict[str, Any], plan: LayerPlan) -> Architecture:
    """All layers alike, but for the first ones, which have no experts."""
    mixed, dense = replace(plan, experts=True, corrected=True), hf["first_k_dense_replace"]
    plans = tuple(mixed if i >= dense else plan for i in range(hf["num_hidden_layers"]))
    return Architecture(fields, plans, hf.get("tie_word_embeddings", False))


def _glm4_moe(hf: dict[str, Any]) -> Architecture:
    """Read a GLM-4.5 config: the first half of each head rotates."""
    share = rope_parameters(hf).get("partial_rotary_factor", hf.get("partial_rotary_factor", 0.5))
    biased = {"add_qkv_bias": True} if hf["attention_bias"] else {}
    fields = {**_llama_fields(hf), **_sigmoid_routed(hf), **biased}
    norm = "rms" if hf.get("use_qk_norm", False) else "none"
    return _first_dense(hf, fields, LayerPlan(_rotated(hf, int(head_dim(hf) * share)), qk_norm=norm))


def _deepseek_v3(hf: dict[str, Any]) -> Architecture:
    """Read a DeepSeek-V3 config: latent attention (arXiv 2405.04434, §2.1), of whose heads the last part rotates."""
    rope, still, turning = rope_parameters(hf), hf["qk_nope_head_dim"], hf["qk_rope_head_dim"]
    fields = {
        **_llama_fields(hf),
        **_sigmoid_routed(hf),
        "multi_latent_attention": True,
        "q_lora_rank": hf["q_lora_rank"],
        "kv_lora_rank": hf["kv_lora_rank"],
        "qk_head_dim": still,
        "qk_pos_emb_head_dim": turning,
        "v_head_dim": hf["v_head_dim"],
        "rope_type": "rope",  # only kept from stopping: `PackedAttention` rotates
    }
    all_dim = rope.get("mscale_all_dim") if rope["rope_type"] == "yarn" else None
    attention = replace(
        _rotated(hf, turning),
        first=still,
        scale=(0.1 * all_dim * math.log(max(rope["factor"], 1.0)) + 1) ** 2 if all_dim else 1.0,
        interleaved=hf.get("rope_interleave", True),
    )
    return _first_dense(hf, fields, LayerPlan(attention))


def latent_matrices(fields: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Shapes, [out, in], of the matrices of latent attention but its last, by Megatron's names."""
    hidden, heads, turning = fields["hidden_size"], fields["num_attention_heads"], fields["qk_pos_emb_head_dim"]
    still, latent, queries = fields["qk_head_dim"], fields["kv_lora_rank"], fields["q_lora_rank"]
    wide = heads * (still + turning)
    found = {"linear_q_proj": (wide, hidden)}
    if queries is not None:
        found = {"linear_q_down_proj": (queries, hidden), "linear_q_up_proj": (wide, queries)}
    down, up = (latent + turning, hidden), (heads * (still + fields["v_head_dim"]), latent)
    return {**found, "linear_kv_down_proj": down, "linear_kv_up_proj": up}


def latent_norms(fields: dict[str, Any]) -> dict[str, int]:
    """Widths of the norms within latent attention, by Megatron's names."""
    sizes = {"q_layernorm": fields["q_lora_rank"], "kv_layernorm": fields["kv_lora_rank"]}
    return {name: size for name, size in sizes.items() if size is not None}


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Architecture]] = {
    "deepseek_v3": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "llama": _llama,
    "llama4_text": _llama4_text,
    "mistral": _llama,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
}

_GEMMA = "norms on both sides of each block, gates of GELU, and sliding windows"
_LACKING = {
    "deepseek_v2": "softmax routers without normalised weights beside latent attention",
    "gemma2": f"{_GEMMA}, with caps on logits",
    "gemma3": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt_oss": "attention sinks, sliding windows and biases of experts; engines on a CPU cannot take new weights of it",
    "olmo3": "sliding windows; vLLM 0.32 runs it through transformers, and stops at its first token",
}
"""Parts of known families that are not built."""

_ONLY = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "use_sliding_window": False}
"""Required values of entries of a config, where they are given."""


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "attention_chunk_size"),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "n_routed_experts", "n_shared_experts"),
    *("n_group", "topk_group", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("decoder_sparse_step", "interleave_moe_layer_step", "no_rope_layer_interval"),
)
"""Entries of a config that are whole numbers of at least 1, where they are given."""

_MOST_LAYERS = 10_000


def _check_sizes(kind: str, hf: dict[str, Any]) -> None:
    """Refuse sizes, heads, intervals and numbers of layers that no model has; the config is untrusted."""
    for name in (*_SIZES, "num_hidden_layers"):
        value, most = hf.get(name), _MOST_LAYERS if name == "num_hidden_layers" else 2**31 - 1
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise MoeError(f"{kind} needs {name} to be a whole number from 1 to {most}, not {str(value)[:60]}")


def architecture(hf_config: dict[str, Any]) -> Architecture:
    """Read a Hugging Face config.

    Raises:
        MoeError: for an architecture or a feature this trainer does not have, or a value that no model has, naming it.
    """
    kind = hf_config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        lacking = f" (not built: {_LACKING[kind]})" if isinstance(kind, str) and kind in _LACKING else ""
        raise MoeError(
            f"model_type {str(kind)[:60]!r} is not supported{lacking}; supported are {', '.join(sorted(ARCHITECTURES))}"
        )
    for name, only in _ONLY.items():
        if hf_config.get(name, only) != only and (kind, name) != ("glm4_moe", "attention_bias"):
            raise MoeError(f"{kind} with {name}={hf_config[name]!r} is not supported, only {only!r}")
    # configs may name a window and not use it; the switch is only Qwen's
    if hf_config.get("sliding_window") is not None and "use_sliding_window" not in hf_config:
        raise MoeError(f"{kind} with sliding_window={hf_config['sliding_window']!r} is not supported, only None")
    _check_sizes(kind, hf_config)
    try:
        return ARCHITECTURES[kind](hf_config)
    except KeyError as missing:
        raise MoeError(f"the config of this {kind} lacks or has an unknown {missing}; check its config.json") from None
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise MoeError(f"the config of this {kind} does not fit together ({error}); check its config.json") from None


def check_expert_bias(hf_config: dict[str, Any]) -> None:
    """Refuse biases of experts where there are no experts, or where they would not mean the same as in a generator.

    Raises:
        MoeError: saying which.
    """
    fields = architecture(hf_config).fields
    if "num_moe_experts" not in fields:
        raise MoeError("expert_bias needs a mixture of experts: this model is dense")
    if any(layer.corrected for layer in architecture(hf_config).layers):
        raise MoeError("this family's routers have biases of their own, which stay as they are: set expert_bias to 0")
    if fields.get("moe_router_pre_softmax"):
        raise MoeError("expert_bias needs weights of experts that are normalised (norm_topk_prob), or sigmoids")
