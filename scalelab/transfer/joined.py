"""Pieces of a tensor, taken for the whole by vLLM's loaders while it records which slices a worker pulls.

vLLM's record (`FakeRDTTensor`, vLLM 0.32.0) knows slices of tensors that a rank has. Where the ranks have stretches of
a tensor's rows, loaders get this in their place: rows that a loader copies are copied piece by piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from moe.weights.parcels import whole_and_first


def joined(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors as they are, and one for all rows of another, which come one behind the other."""

    def whole(one: tuple[str, Tensor]) -> tuple[str, bool]:
        name, first = whole_and_first(one[0])
        return name, first is not None

    for (name, by_rows), some in itertools.groupby(weights, whole):
        parts = [tensor for _, tensor in some]
        yield from ((name, Joined(parts, 0, sum(map(len, parts)))) if by_rows else (name, part) for part in parts[:1])


class Joined(Tensor):
    """Rows of a tensor that is there in pieces; it has no memory, and can be narrowed along its rows and copied."""

    _pieces: Sequence[Tensor]
    _first: int

    @staticmethod
    def __new__(cls, pieces: Sequence[Tensor], first: int, count: int) -> Joined:
        """Take some rows of the tensor that the pieces make up, one behind the other."""
        some = pieces[0]
        made: Joined = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, torch.Size((count, *some.shape[1:])), dtype=some.dtype, device=some.device
        )
        made._pieces, made._first = pieces, first
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Narrow, or be copied; the rest is refused unless it asks for the shape or the type."""
        if func is Tensor.narrow and args[1] == 0:
            one, _, start, count = args
            return Joined(one._pieces, one._first + int(start), count)
        if func is Tensor.copy_:
            return args[1]._copy_to(args[0])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse what needs values."""
        raise NotImplementedError(f"vLLM's loader does {func} with a tensor that comes in pieces")

    def _copy_to(self, place: Tensor) -> Tensor:
        begin, end, first = self._first, self._first + len(self), 0
        for piece in self._pieces:
            low, high = max(begin, first), min(end, first + len(piece))
            if low < high:
                place.narrow(0, low - begin, high - low).copy_(piece.narrow(0, low - first, high - low))
            first += len(piece)
        return place
