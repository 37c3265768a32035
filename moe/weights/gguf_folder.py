"""GGUF files of Llama models, as llama.cpp runs them, to Hugging Face folders; quantised weights are de-quantised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor

from moe.errors import MoeError
from moe.weights.hf_folder import save_folder
from moe.weights.links import check_names, shapes

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
    **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}
_LAYER = re.compile(r"blk\.(\d+)\.(.*)")


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a GGUF file's metadata, by llama.cpp's names.

    Raises:
        MoeError: if it cannot be read.
    """
    return {name: field.contents() for name, field in _open(path).fields.items()}


def convert_gguf(path: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``config.json`` and the weights of a GGUF file; the tokenizer is the caller's.

    Args:
        path: the file.
        folder: the folder.
        dtype: type of the weights; the error of 4 or 8 bits is far larger than that of bfloat16.

    Raises:
        MoeError: if the file cannot be read or is no Llama.
    """
    reader = _open(path)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    hf_config = _config(
        {name: field.contents() for name, field in reader.fields.items()}, "output.weight" not in stored
    )
    by_name = {_hf_name(name): tensor for name, tensor in stored.items() if not name.startswith("rope_freqs")}
    wanted = shapes(hf_config)
    check_names(wanted, by_name)

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name in wanted:
            tensor = by_name[name]
            plain = torch.from_numpy(np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type)))
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                plain = _unturned(plain, hf_config["head_dim"])
            yield name, plain.to(dtype)

    save_folder(folder, hf_config, weights(), wanted)


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise MoeError(f"{path} cannot be read as GGUF ({error}); fetch it again") from error


def _config(facts: dict[str, Any], tied: bool) -> dict[str, Any]:
    kind = facts.get("general.architecture")
    if kind != "llama" or "llama.expert_count" in facts:
        raise MoeError(f"the GGUF holds {kind!r}; only dense models of the kind 'llama' are read")
    if any(name.startswith("llama.rope.scaling") for name in facts):
        raise MoeError("the GGUF stretches its rotary embedding (llama.rope.scaling…), which is not read")
    heads, hidden = facts["llama.attention.head_count"], facts["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts.get("llama.vocab_size", len(facts["tokenizer.ggml.tokens"])),
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", heads),
        "head_dim": facts.get("llama.rope.dimension_count", hidden // heads),
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 12),  # was fp32: 1e-05 is 9.99…e-06
        "rope_parameters": {"rope_type": "default", "rope_theta": facts.get("llama.rope.freq_base", 10000.0)},
        "tie_word_embeddings": tied,
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def _hf_name(name: str) -> str:
    layer = _LAYER.fullmatch(name)
    rest, prefix = (layer[2], f"model.layers.{layer[1]}.") if layer else (name, "")
    part, _, kind = rest.rpartition(".")
    return f"{prefix}{_NAMES.get(part, part)}.{kind}"


def _unturned(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder features: llama.cpp rotates neighbouring pairs, Hugging Face's Llama the two halves of a head."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
