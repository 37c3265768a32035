"""Fields that all models share, in the words of Hugging Face's ``config.json``; importable without torch.

Field names are those of ``config.json``, so that the trainer, vLLM and transformers all read the same folder. The
defaults are miniatures that a CPU trains; the real shapes are the same classes with other numbers (ScaleRL §3, Scout
and 8B).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
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
    mscale: PositiveFloat | None = None
    """DeepSeek's: the rotated part is sharpened as at this share of YaRN's own, over that of ``mscale_all_dim``."""
    mscale_all_dim: PositiveFloat | None = None
    """DeepSeek's: share of YaRN's sharpening that all of a head gets."""

    def __post_init__(self) -> None:
        require(
            (self.mscale is None) == (self.mscale_all_dim is None),
            "YaRN's mscale and mscale_all_dim come together: bind both, or neither",
        )


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
    hf_constants: ClassVar[dict[str, Any]] = {}
    """Entries of ``config.json`` that all models of the family share."""

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
        require(
            self.model_type == "deepseek_v3" or not isinstance(rope, YarnRope) or rope.mscale is None,
            "YaRN's rope has an mscale, which only DeepSeek's families have in generators, too",
        )
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
        scaling = {name: value for name, value in scaling.items() if value is not None}
        return {
            **values,
            "architectures": [self.hf_class],
            "model_type": self.model_type,
            "rope_parameters": {"rope_type": kind, **scaling, "rope_theta": theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            **self.hf_constants,
        }


_ROPE_TYPES = {type(None): "default", Llama3Rope: "llama3", YarnRope: "yarn"}


@dataclass(frozen=True, config=CHECKED)
class DenseConfig(DecoderConfig):
    """Fields that dense models share."""

    intermediate_size: PositiveInt = 384
    tie_word_embeddings: bool = False
    """Use the embedding as the output matrix, too."""
