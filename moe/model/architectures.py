"""A Hugging Face ``config.json`` in Megatron's terms; importable without torch.

An architecture is a function from the config to Megatron's fields and to one `LayerPlan` per layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moe.errors import MoeError


@dataclass(frozen=True)
class AttentionPlan:
    """Properties of one layer's attention beyond softmax(QKᵀ)V.

    Attributes:
        inv_freq: inverse frequencies of the rotary embedding, D/2 of them; None for no embedding.
        magnitude: factor on the rotated queries and keys (YaRN's attention factor).
        interleaved: rotate neighbouring pairs (Llama-4) rather than the two halves of a head (Llama).
        chunk: attend within chunks of this many tokens; None attends to everything before.
        temperature: (floor, scale) of Llama-4's position-dependent sharpening; None for none.
    """

    inv_freq: tuple[float, ...] | None
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
    """

    attention: AttentionPlan
    qk_norm: str = "none"
    experts: bool = False
    norm_behind: bool = False


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
    """Size of a head; configs that do not say share the hidden size among the heads."""
    return hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]


def rope_parameters(hf: dict[str, Any]) -> dict[str, Any]:
    """Read ``rope_parameters``, or the fields of older configs (before transformers 5)."""
    rope = hf.get("rope_parameters") or {"rope_theta": hf["rope_theta"], **(hf.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _STRETCHED:
        known = ", ".join(sorted(_STRETCHED))
        raise MoeError(
            f"{hf['model_type']} with rotary scaling {str(kind)[:60]!r} is not supported; supported are {known}"
        )
    return {**rope, "rope_type": kind}


def _inv_freq(hf: dict[str, Any]) -> tuple[float, ...]:
    return inverse_frequencies(rope_parameters(hf), head_dim(hf))


def _rotated(hf: dict[str, Any]) -> AttentionPlan:
    """Plan attention over all tokens before, with a rotary embedding on every head."""
    rope = rope_parameters(hf)
    return AttentionPlan(inverse_frequencies(rope, head_dim(hf)), magnitude=rope_magnitude(rope))


def _llama_fields(hf: dict[str, Any]) -> dict[str, Any]:
    """Fields that Llama and its descendants share."""
    return {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "ffn_hidden_size": hf["intermediate_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "num_query_groups": hf.get("num_key_value_heads") or hf["num_attention_heads"],
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


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Architecture]] = {
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
    """Inverse frequencies for the ``rope_parameters`` of a Hugging Face config.

    Args:
        rope: with a ``rope_type`` that is one of `_STRETCHED`.
        head_dim: size of a head, D.

    Returns:
        D/2 numbers, radians per token.
    """
    base = [rope["rope_theta"] ** (-i / head_dim) for i in range(0, head_dim, 2)]
    return tuple(_STRETCHED[rope.get("rope_type", "default")](base, rope))


def _llama3(base: list[float], rope: dict[str, Any]) -> list[float]:
    """Stretch slow waves by ``factor``, keep fast ones, and blend those between."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]

    def stretched(frequency: float) -> float:
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        blend = (turns - low) / (high - low) if low < turns < high else float(turns >= high)  # Scout: low is high
        return (1 - blend) * frequency / rope["factor"] + blend * frequency

    return [stretched(frequency) for frequency in base]


def _yarn(base: list[float], rope: dict[str, Any]) -> list[float]:
    """Stretch slow waves by ``factor``, keep fast ones, and blend those between by their place (YaRN, §3.2)."""

    def place(turns: float) -> float:
        """Find the pair, perhaps between two, that turns so often within the original length."""
        longest = rope["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return len(base) * math.log(longest) / math.log(rope["rope_theta"])

    first, last = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * len(base) - 1)
    stretch = [min(max((i - first) / (last - first or 0.001), 0.0), 1.0) for i in range(len(base))]
    return [frequency * ((1 - share) + share / rope["factor"]) for frequency, share in zip(base, stretch, strict=True)]


_STRETCHED: dict[str, Callable[[list[float], dict[str, Any]], list[float]]] = {
    "default": lambda base, rope: base,
    "llama3": _llama3,
    "yarn": _yarn,
}


def rope_magnitude(rope: dict[str, Any]) -> float:
    """Factor on rotated queries and keys: 1, or YaRN's √(1/t) = 0.1 ln(factor) + 1 (arXiv 2309.00071, Eq. 22).

    Args:
        rope: ``rope_parameters``; ``attention_factor`` is taken where it is given, else ``mscale`` over
            ``mscale_all_dim`` (DeepSeek).
    """
    if rope.get("rope_type", "default") != "yarn":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    log, scale, all_dim = math.log(max(rope["factor"], 1.0)), rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and all_dim:
        return (0.1 * scale * log + 1) / (0.1 * all_dim * log + 1)
    return 0.1 * log + 1
