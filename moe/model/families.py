"""Model configurations in the words of Hugging Face's ``config.json``: plain values, importable without torch."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.errors import require
from moe.model.decoder import DecoderConfig, DenseConfig


@dataclass(frozen=True, config=CHECKED)
class Llama(DenseConfig):
    """Dense Llama; the defaults are a miniature of about 1M parameters (ScaleRL's 8B is Llama-3.1-8B)."""

    model_type: ClassVar[str] = "llama"
    hf_class: ClassVar[str] = "LlamaForCausalLM"
    hf_constants: ClassVar[dict[str, Any]] = {"mlp_bias": False}


@dataclass(frozen=True, config=CHECKED)
class Mistral(DenseConfig):
    """Dense Mistral without a sliding window (7B from v0.2 on); a miniature of about 1M parameters."""

    model_type: ClassVar[str] = "mistral"
    hf_class: ClassVar[str] = "MistralForCausalLM"
    hf_constants: ClassVar[dict[str, Any]] = {"sliding_window": None}


@dataclass(frozen=True, config=CHECKED)
class Olmo2(DenseConfig):
    """OLMo-2: norms behind attention and feed-forward, and over all heads' queries and keys; a miniature."""

    model_type: ClassVar[str] = "olmo2"
    hf_class: ClassVar[str] = "Olmo2ForCausalLM"


@dataclass(frozen=True, config=CHECKED)
class Qwen2(DenseConfig):
    """Qwen2 and Qwen2.5: Llama with biases on queries, keys and values; a miniature of about 1M parameters.

    Raises:
        ValueError: if the heads do not fill the hidden size, as vLLM's and transformers' Qwen2 take for granted.
    """

    model_type: ClassVar[str] = "qwen2"
    hf_class: ClassVar[str] = "Qwen2ForCausalLM"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.head_dim * self.num_attention_heads == self.hidden_size,
            f"Qwen2's heads fill the hidden size: {self.num_attention_heads} heads of head_dim {self.head_dim} need "
            f"hidden_size={self.num_attention_heads * self.head_dim}, not {self.hidden_size}",
        )

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        values = super().to_hf()
        del values["attention_bias"]  # Qwen2 has no such switch
        return {**values, "use_sliding_window": False, "sliding_window": None}


@dataclass(frozen=True, config=CHECKED)
class Qwen3(DenseConfig):
    """Dense Qwen3: Llama with an RMS norm on every head's queries and keys; a miniature of about 1M parameters."""

    model_type: ClassVar[str] = "qwen3"
    hf_class: ClassVar[str] = "Qwen3ForCausalLM"
    hf_constants: ClassVar[dict[str, Any]] = {"use_sliding_window": False, "sliding_window": None}


@dataclass(frozen=True, config=CHECKED)
class SmolLM3(DenseConfig):
    """SmolLM3: Llama with layers that do not rotate; a miniature of about 1M parameters."""

    model_type: ClassVar[str] = "smollm3"
    hf_class: ClassVar[str] = "SmolLM3ForCausalLM"

    no_rope_layer_interval: PositiveInt = 4
    """Every such layer has no rotary embedding."""

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        layers = range(self.num_hidden_layers)
        return {
            **super().to_hf(),
            "mlp_bias": False,
            "no_rope_layers": [int((i + 1) % self.no_rope_layer_interval != 0) for i in layers],
            "layer_types": ["full_attention" for _ in layers],
            "use_sliding_window": False,
            "sliding_window": None,
        }


@dataclass(frozen=True, config=CHECKED)
class Qwen3Moe(DecoderConfig):
    """Qwen3 with mixtures of experts; the defaults are Qwen3-30B-A3B in miniature, about 3M parameters.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str] = "qwen3_moe"
    hf_class: ClassVar[str] = "Qwen3MoeForCausalLM"
    hf_constants: ClassVar[dict[str, Any]] = {
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
    }

    intermediate_size: PositiveInt = 384
    """Inner size of the feed-forward of layers without experts (none when the sparse step is 1)."""
    moe_intermediate_size: PositiveInt = 96
    """Inner size of each expert."""
    num_experts: PositiveInt = 16
    num_experts_per_tok: PositiveInt = 4
    norm_topk_prob: bool = True
    """Divide the chosen experts' weights by their sum."""
    decoder_sparse_step: PositiveInt = 1
    """Every such layer is a mixture of experts (30B-A3B: 1, all of them)."""
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_chosen(self.num_experts_per_tok, self.num_experts)


@dataclass(frozen=True, config=CHECKED)
class Mixtral(DecoderConfig):
    """Mixtral; the defaults are 8x7B in miniature, about 3M parameters.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str] = "mixtral"
    hf_class: ClassVar[str] = "MixtralForCausalLM"
    hf_constants: ClassVar[dict[str, Any]] = {
        "router_aux_loss_coef": 0.0,
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    }

    intermediate_size: PositiveInt = 192
    """Inner size of each expert."""
    num_local_experts: PositiveInt = 8
    num_experts_per_tok: PositiveInt = 2
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_chosen(self.num_experts_per_tok, self.num_local_experts)


def _check_chosen(chosen: int, experts: int) -> None:
    require(chosen <= experts, f"num_experts_per_tok ({chosen}) must be at most the {experts} experts")


@dataclass(frozen=True, config=CHECKED)
class Llama4Text(DecoderConfig):
    """Llama-4 text model; the defaults are Scout 17Bx16 in miniature, about 3M parameters.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str] = "llama4_text"
    hf_class: ClassVar[str] = "Llama4ForCausalLM"

    intermediate_size: PositiveInt = 96
    """Inner size of each routed expert and of the shared expert."""
    intermediate_size_mlp: PositiveInt = 256
    """Inner size of the feed-forward of layers without experts (none when the interleave step is 1)."""
    num_local_experts: PositiveInt = 16
    num_experts_per_tok: PositiveInt = 1
    interleave_moe_layer_step: PositiveInt = 1
    """Every such layer is a mixture of experts (Scout: 1, all of them)."""
    no_rope_layer_interval: PositiveInt = 4
    """Every such layer has no rotary embedding and attends over the whole sequence."""
    use_qk_norm: bool = True
    """L2-normalise queries and keys on the layers with rotary embedding."""
    attention_chunk_size: PositiveInt = 128
    """Tokens attend within chunks of this size on the layers with rotary embedding."""
    attn_temperature_tuning: bool = True
    """Sharpen attention with the position on the layers without rotary embedding."""
    floor_scale: PositiveInt = 128
    attn_scale: NonNegativeFloat = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.num_experts_per_tok == 1,
            f"Llama-4 routes each token to one expert (its weight scales the expert's input), "
            f"got num_experts_per_tok={self.num_experts_per_tok}",
        )

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        layers = range(self.num_hidden_layers)
        rope = [int((i + 1) % self.no_rope_layer_interval != 0) for i in layers]
        step = self.interleave_moe_layer_step
        return {
            **super().to_hf(),
            "no_rope_layers": rope,
            "layer_types": ["chunked_attention" if r else "full_attention" for r in rope],
            "moe_layers": [i for i in layers if (i + 1) % step == 0],
            "tie_word_embeddings": False,
            "router_aux_loss_coef": 0.0,
            "router_jitter_noise": 0.0,
        }


@dataclass(frozen=True, config=CHECKED)
class SigmoidRouted(DecoderConfig):
    """Mixtures whose router takes sigmoids, has a bias for each expert, and runs shared experts beside the routed ones.

    The bias counts for the choice alone, and RL leaves it as it is.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    hf_constants: ClassVar[dict[str, Any]] = {"norm_topk_prob": True, "num_nextn_predict_layers": 0}

    intermediate_size: PositiveInt = 384
    """Inner size of the feed-forward of the first layers, which have no experts."""
    moe_intermediate_size: PositiveInt = 96
    """Inner size of each expert."""
    n_routed_experts: PositiveInt = 16
    num_experts_per_tok: PositiveInt = 4
    n_shared_experts: PositiveInt = 1
    """Experts that every token passes through."""
    first_k_dense_replace: PositiveInt = 1
    """Layers without experts, the first of all."""
    n_group: PositiveInt = 1
    """Groups of experts, of which a token's come from the best ``topk_group``."""
    topk_group: PositiveInt = 1
    routed_scaling_factor: PositiveFloat = 1.0
    """Sum of the chosen experts' weights."""
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, experts = self.num_experts_per_tok, self.n_routed_experts
        _check_chosen(chosen, experts)
        most = experts // self.n_group * self.topk_group
        require(
            experts % self.n_group == 0 and self.topk_group <= self.n_group and chosen <= most,
            f"{experts} experts in n_group={self.n_group} equal groups, of which a token takes "
            f"num_experts_per_tok={chosen} from topk_group={self.topk_group}: that does not work out",
        )
        require(
            self.n_group == 1 or experts // self.n_group > 1,
            f"a group is judged by its two best experts, and n_group={self.n_group} leaves it one",
        )


@dataclass(frozen=True, config=CHECKED)
class Glm4Moe(SigmoidRouted):
    """GLM-4.5: half of each head rotates, queries, keys and values have biases; GLM-4.5-Air in miniature."""

    model_type: ClassVar[str] = "glm4_moe"
    hf_class: ClassVar[str] = "Glm4MoeForCausalLM"

    use_qk_norm: bool = False
    """RMS norm on every head's queries and keys (GLM-4.5, not Air)."""
    attention_bias: bool = True
    """Biases on queries, keys and values."""

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        values = super().to_hf()
        rope = {**values["rope_parameters"], "partial_rotary_factor": 0.5}
        return {**values, "attention_bias": self.attention_bias, "rope_parameters": rope, "partial_rotary_factor": 0.5}


@dataclass(frozen=True, config=CHECKED)
class DeepseekV3(SigmoidRouted):
    """DeepSeek-V3 (also Moonlight): latent attention, whose keys and values come from one small vector; a miniature.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str] = "deepseek_v3"
    hf_class: ClassVar[str] = "DeepseekV3ForCausalLM"

    num_key_value_heads: PositiveInt = 4
    """Equal to the number of heads: each has keys and values of its own."""
    q_lora_rank: PositiveInt | None = 64
    """Size of the vector that queries come from; None takes them from the hidden state."""
    kv_lora_rank: PositiveInt = 64
    """Size of the vector that keys and values come from."""
    qk_nope_head_dim: PositiveInt = 32
    """Size of the part of a head that does not rotate; ``head_dim`` is that of the part that does."""
    v_head_dim: PositiveInt = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.num_key_value_heads == self.num_attention_heads,
            f"latent attention gives each of the {self.num_attention_heads} heads its own keys and values, got "
            f"num_key_value_heads={self.num_key_value_heads}",
        )
        require(
            self.v_head_dim <= self.qk_nope_head_dim + self.head_dim,
            f"v_head_dim ({self.v_head_dim}) must be at most qk_nope_head_dim + head_dim "
            f"({self.qk_nope_head_dim + self.head_dim})",
        )

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        rope = {"qk_rope_head_dim": self.head_dim, "rope_interleave": True}
        return {**super().to_hf(), **rope, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}


Model = DeepseekV3 | Glm4Moe | Llama | Llama4Text | Mistral | Mixtral | Olmo2 | Qwen2 | Qwen3 | Qwen3Moe | SmolLM3
"""Every model the trainer and the generators both run."""


def routed_experts(model: Model) -> int:
    """Routed experts of a mixture's layers; 0 for a dense model."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return int(next((getattr(model, name) for name in names if hasattr(model, name)), 0))
