"""Some of a layer's experts, read alone, are the same as that part of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from moe.model.families import Llama4Text, Mixtral, Model, Qwen3Moe
from moe.weights.hf_folder import FolderWeights
from moe.weights.links import Link, links, shapes

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MODELS = [
    Llama4Text(**_SIZES),
    Qwen3Moe(**_SIZES, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2),
    Mixtral(**_SIZES, intermediate_size=64, num_local_experts=4),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model_type)
def test_some_experts_are_that_part_of_all(model: Model, tmp_path: Path) -> None:
    hf = model.to_hf()
    save_file({name: torch.randn(shape) for name, shape in shapes(hf).items()}, tmp_path / "model.safetensors")
    weights = FolderWeights(tmp_path)
    half = range(1, 3)

    def merged(link: Link) -> Tensor:
        return link.merge(
            weights[name] if shape == weights[name].shape else weights.rows(name, half.start, tuple(shape))
            for name, shape in link.parts()
        )

    compared = 0
    for whole, part in zip(links(hf), links(hf, half), strict=True):
        assert whole.param == part.param
        expected = merged(whole)
        torch.testing.assert_close(merged(part), expected[half.start : half.stop] if whole.experts else expected)
        compared += whole.experts
    assert compared == 4
