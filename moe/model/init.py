"""From-scratch weights that depend on the seed and the tensor's name alone, whatever the layout.

Megatron draws each rank's parameters from that rank's own random stream, which gives all expert-parallel
ranks identical experts on a CPU and other weights at every layout. Here each Hugging Face tensor is drawn from its
own stream, a large one from a stream for every stretch of its rows, and then cut: a rank draws about what it keeps.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

STRETCH = 2**24
"""Entries of a tensor that are drawn from one stream, at most, unless a row has more."""


class InitialWeights(Mapping[str, Tensor]):
    """Tensors drawn when asked for; see `standard_deviation`.

    Args:
        shapes: every tensor's name and shape.
        layers: the model's layers.
        seed: picks the weights.
    """

    def __init__(self, shapes: Iterable[tuple[str, torch.Size]], layers: int, seed: int) -> None:
        self.shapes, self._layers, self._seed = dict(shapes), layers, seed

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, 0, self.shapes[name])

    def rows(self, name: str, first: int, shape: tuple[int, ...]) -> Tensor:
        """Draw a stretch of a tensor along its first axis.

        Args:
            name: the tensor.
            first: where to begin.
            shape: of the stretch.
        """
        whole = self.shapes[name]
        if len(whole) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        step, last = max(1, STRETCH // math.prod(whole[1:])), first + shape[0]
        out = torch.empty(shape)
        for begin in range(first // step * step, last, step):
            drawn = self._draw(name, begin, (min(step, whole[0] - begin), *whole[1:]))
            low, high = max(first, begin), min(last, begin + step)
            out[low - first : high - first] = drawn[low - begin : high - begin]
        return out.mul_(standard_deviation(name, whole, self._layers))

    def _draw(self, name: str, begin: int, shape: tuple[int, ...]) -> Tensor:
        """Draw normal numbers from the stream of the rows that begin there."""
        text = f"{self._seed}/{name}" + (f"/{begin}" if begin else "")
        digest = hashlib.sha256(text.encode()).digest()
        return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1))

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def standard_deviation(name: str, shape: torch.Size, layers: int) -> float:
    """1/√fan_in, less for what is added to the residual stream, so that its size does not grow with depth.

    Stacked experts are [experts, in, out] in Hugging Face form, all other matrices [out, in].
    """
    if name.endswith("embed_tokens.weight"):
        return 0.5
    fan_in = shape[1] if len(shape) == 3 else shape[-1]
    residual = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj", "w2.weight"))
    return 1 / math.sqrt(fan_in * (2 * layers if residual else 1))
