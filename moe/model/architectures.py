"""A Hugging Face ``config.json`` in Megatron's terms; importable without torch.

An architecture is a function from the config to Megatron's fields and to one `LayerPlan` per layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moe.errors import MoeError


@dataclass(frozen=True)
class AttentionPlan:
    """Properties of one layer's attention beyond softmax(QKᵀ)V.

    Attributes:
        inv_freq: inverse frequencies of the rotary embedding, D/2 of them; None for no embedding.
        interleaved: rotate neighbouring pairs (Llama-4) rather than the two halves of a head (Llama).
        chunk: attend within chunks of this many tokens; None attends to everything before.
        temperature: (floor, scale) of Llama-4's position-dependent sharpening; None for none.
    """

    inv_freq: tuple[float, ...] | None
    interleaved: bool = False
    chunk: int | None = None
    temperature: tuple[float, float] | None = None


@dataclass(frozen=True)
class LayerPlan:
    """Properties in which layers differ.

    Attributes:
        attention: see `AttentionPlan`.
        qk_norm: "none", "l2" (Llama-4, without weights) or "rms" (Qwen3).
        experts: True for a mixture of experts, False for a dense feed-forward.
    """

    attention: AttentionPlan
    qk_norm: str = "none"
    experts: bool = False


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


def _head_dim(hf: dict[str, Any]) -> int:
    return hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]


def _inv_freq(hf: dict[str, Any]) -> tuple[float, ...]:
    """Read the inverse frequencies from ``rope_parameters``, or from older configs' fields (before transformers 5)."""
    rope = hf.get("rope_parameters") or {"rope_theta": hf["rope_theta"], **(hf.get("rope_scaling") or {})}
    return inverse_frequencies(rope, _head_dim(hf))


def _llama_fields(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields that Llama and its descendants share."""
    return {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "ffn_hidden_size": hf["intermediate_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": hf.get("num_key_value_heads") or hf["num_attention_heads"],
        "kv_channels": _head_dim(hf),
        "layernorm_epsilon": hf["rms_norm_eps"],
    }


def _llama(hf: dict[str, Any]) -> Architecture:
    layer = LayerPlan(AttentionPlan(_inv_freq(hf)))
    return Architecture(_llama_fields(hf), (layer,) * hf["num_hidden_layers"], hf.get("tie_word_embeddings", False))


def _qwen3(hf: dict[str, Any]) -> Architecture:
    """Read a Qwen3 config: Llama with queries and keys normalised head by head before they are rotated."""
    layer = LayerPlan(AttentionPlan(_inv_freq(hf)), qk_norm="rms")
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
    attention = AttentionPlan(_inv_freq(hf))
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
    layer = LayerPlan(AttentionPlan(_inv_freq(hf)), experts=True)
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


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Architecture]] = {
    "llama": _llama,
    "llama4_text": _llama4_text,
    "mixtral": _mixtral,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}

_ONLY = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "use_sliding_window": False}
"""Required values of entries of a config, where they are given."""


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "attention_chunk_size"),
    *("num_experts", "num_local_experts", "num_experts_per_tok"),
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
        raise MoeError(f"model_type {kind!r} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}")
    for name, only in _ONLY.items():
        if hf_config.get(name, only) != only:
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
    if fields.get("moe_router_pre_softmax"):
        raise MoeError("expert_bias needs weights of experts that are normalised (norm_topk_prob), or sigmoids")


def inverse_frequencies(rope: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    """Inverse frequencies for the ``rope_parameters`` of a Hugging Face config (default and llama3).

    Raises:
        KeyError: for a scaling type this trainer does not know; the caller names the model.
    """
    base = [rope["rope_theta"] ** (-i / head_dim) for i in range(0, head_dim, 2)]
    kind = rope.get("rope_type", "default")
    return tuple({"default": lambda f: f, "llama3": lambda f: _llama3(f, rope)}[kind](f) for f in base)


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    """Stretch slow waves by ``factor``, keep fast ones, and blend those between."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    blend = (turns - low) / (high - low) if low < turns < high else float(turns >= high)  # Scout: low is high
    return (1 - blend) * frequency / rope["factor"] + blend * frequency
