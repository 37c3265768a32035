"""From-scratch weights that depend on the seed and the tensor's name alone, whatever the layout.

Megatron draws each rank's parameters from that rank's own random stream, which gives all expert-parallel
ranks identical experts on a CPU and other weights at every layout. Here each Hugging Face tensor is drawn
whole from its own stream and then cut.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


class InitialWeights(Mapping[str, Tensor]):
    """Tensors drawn when asked for; see `standard_deviation`.

    Args:
        shapes: every tensor's name and shape.
        layers: the model's layers.
        seed: picks the weights.
    """

    def __init__(self, shapes: Iterable[tuple[str, torch.Size]], layers: int, seed: int) -> None:
        self._shapes, self._layers, self._seed = dict(shapes), layers, seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape)
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return torch.randn(shape, generator=stream) * standard_deviation(name, shape, self._layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def standard_deviation(name: str, shape: torch.Size, layers: int) -> float:
    """1/√fan_in, less for what is added to the residual stream, so that its size does not grow with depth.

    Stacked experts are [experts, in, out] in Hugging Face form, all other matrices [out, in].
    """
    if name.endswith("embed_tokens.weight"):
        return 0.5
    fan_in = shape[1] if len(shape) == 3 else shape[-1]
    residual = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj", "w2.weight"))
    return 1 / math.sqrt(fan_in * (2 * layers if residual else 1))
