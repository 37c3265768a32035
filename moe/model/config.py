"""Model configurations in the words of Hugging Face's ``config.json``: plain values, importable without torch.

Field names are those of ``config.json``, so that the trainer, vLLM and transformers all read the same folder. The
defaults are miniatures that a CPU trains; the real shapes are the same classes with other numbers (ScaleRL §3, Scout
and 8B).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.errors import require


@dataclass(frozen=True, config=CHECKED)
class Llama3Rope:
    """Rotary embedding stretched to long contexts as Llama 3.1 does; the defaults are Llama-3.1-8B's."""

    factor: PositiveFloat = 8.0
    """Factor that stretches the slowest waves."""
    low_freq_factor: PositiveFloat = 1.0
    """Waves that turn less often than this within the original length are stretched in full."""
    high_freq_factor: PositiveFloat = 4.0
    """Waves that turn more often than this are left alone."""
    original_max_position_embeddings: PositiveInt = 8192


@dataclass(frozen=True, config=CHECKED)
class YarnRope:
    """Rotary embedding stretched to long contexts by YaRN (arXiv 2309.00071); the defaults are Qwen2.5's."""

    factor: Annotated[float, Field(ge=1.0)] = 4.0
    """New length of the context as a multiple of the original length."""
    original_max_position_embeddings: PositiveInt = 32768
    beta_fast: PositiveFloat = 32.0
    """Waves that turn more often than this within the original length are left alone."""
    beta_slow: PositiveFloat = 1.0
    """Waves that turn less often than this are stretched in full."""


@dataclass(frozen=True, config=CHECKED)
class DecoderConfig:
    """Fields that all models here share: a decoder with grouped-query attention and rotary embedding.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str]
    """The family's name in transformers."""
    hf_class: ClassVar[str]
    """The class of transformers and vLLM that runs it."""

    vocab_size: PositiveInt = 512
    hidden_size: PositiveInt = 128
    num_hidden_layers: PositiveInt = 4
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    head_dim: Annotated[int, Field(gt=0, multiple_of=2)] = 32
    """Size of a head, even for rotary embeddings; vLLM on a CPU runs 32 but not 16."""
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: Llama3Rope | YarnRope | None = None
    """Stretching of the rotary embedding; None for none."""
    rms_norm_eps: PositiveFloat = 1e-5
    max_position_embeddings: PositiveInt = 4096
    pad_token_id: NonNegativeInt = 0
    bos_token_id: NonNegativeInt = 1
    eos_token_id: NonNegativeInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = 2
    """The token that ends a completion, or several that do."""

    def __post_init__(self) -> None:
        require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
            f"num_key_value_heads ({self.num_key_value_heads})",
        )
        rope = self.rope_scaling
        if isinstance(rope, YarnRope):  # vLLM has no rotations beyond, and reads what lies there
            longest = int(rope.factor * rope.original_max_position_embeddings)
            require(
                self.max_position_embeddings <= longest,
                f"YaRN stretches to {longest} positions (factor × original_max_position_embeddings), but "
                f"max_position_embeddings is {self.max_position_embeddings}",
            )

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        values = asdict(self)
        theta, scaling = values.pop("rope_theta"), values.pop("rope_scaling") or {}
        kind = _ROPE_TYPES[type(self.rope_scaling)]
        return {
            **values,
            "architectures": [self.hf_class],
            "model_type": self.model_type,
            "rope_parameters": {"rope_type": kind, **scaling, "rope_theta": theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
        }


_ROPE_TYPES = {type(None): "default", Llama3Rope: "llama3", YarnRope: "yarn"}


@dataclass(frozen=True, config=CHECKED)
class DenseConfig(DecoderConfig):
    """Fields that dense models share."""

    intermediate_size: PositiveInt = 384
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""


@dataclass(frozen=True, config=CHECKED)
class Llama(DenseConfig):
    """Dense Llama; the defaults are a miniature of about 1M parameters (ScaleRL's 8B is Llama-3.1-8B)."""

    model_type: ClassVar[str] = "llama"
    hf_class: ClassVar[str] = "LlamaForCausalLM"

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        return {**super().to_hf(), "mlp_bias": False}


@dataclass(frozen=True, config=CHECKED)
class Mistral(DenseConfig):
    """Dense Mistral without a sliding window (7B from v0.2 on); a miniature of about 1M parameters."""

    model_type: ClassVar[str] = "mistral"
    hf_class: ClassVar[str] = "MistralForCausalLM"

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        return {**super().to_hf(), "sliding_window": None}


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

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        return {**super().to_hf(), "use_sliding_window": False, "sliding_window": None}


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

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        return {
            **super().to_hf(),
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.0,
            "use_sliding_window": False,
            "sliding_window": None,
        }


@dataclass(frozen=True, config=CHECKED)
class Mixtral(DecoderConfig):
    """Mixtral; the defaults are 8x7B in miniature, about 3M parameters.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    model_type: ClassVar[str] = "mixtral"
    hf_class: ClassVar[str] = "MixtralForCausalLM"

    intermediate_size: PositiveInt = 192
    """Inner size of each expert."""
    num_local_experts: PositiveInt = 8
    num_experts_per_tok: PositiveInt = 2
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_chosen(self.num_experts_per_tok, self.num_local_experts)

    def to_hf(self) -> dict[str, Any]:
        """The content of ``config.json`` that transformers and vLLM load."""
        return {
            **super().to_hf(),
            "router_aux_loss_coef": 0.0,
            "router_jitter_noise": 0.0,
            "sliding_window": None,
        }


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


Model = Llama | Llama4Text | Mistral | Mixtral | Olmo2 | Qwen2 | Qwen3 | Qwen3Moe | SmolLM3
"""Every model the trainer and the generators both run."""


def routed_experts(model: Model) -> int:
    """Routed experts of a mixture's layers; 0 for a dense model."""
    return int(getattr(model, "num_local_experts", getattr(model, "num_experts", 0)))
