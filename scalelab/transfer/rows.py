"""Rows of large tensors that come one after the other, put together in host memory (`moe.weights.parcels`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from moe.weights.links import whole_and_first
from scalelab.errors import LabError


class RowJoiner:
    """The tensors of one version of which some rows have come.

    Args:
        shapes: of whole tensors, by name.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self._shapes = shapes
        self._came: dict[str, tuple[Tensor, int]] = {}
        self._whole: set[str] = set()

    def join(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass whole tensors on, and those of which the last rows have come.

        Raises:
            LabError: rows are missing, rows or a tensor come twice, or are none of this model.
        """
        for name, rows in weights:
            whole, first = whole_and_first(name)
            tensor = rows if first is None else self._added(whole, first, rows)
            if tensor is None:
                continue
            if whole in self._whole:
                raise LabError(f"{whole} came twice")
            self._whole.add(whole)
            yield whole, tensor

    def _added(self, name: str, first: int, rows: Tensor) -> Tensor | None:
        """Copy rows to their place; returns the tensor if these were the last."""
        shape = self._shapes.get(name)
        if shape is None or rows.shape[1:] != shape[1:]:
            raise LabError(f"{name} came in rows of shape {tuple(rows.shape)} and is {shape and tuple(shape)} here")
        tensor, count = self._came.pop(name, (None, 0))
        if tensor is None:
            tensor = torch.empty(shape, dtype=rows.dtype)
        last = first + rows.shape[0]
        if first != count or last > shape[0]:
            raise LabError(f"rows {first} to {last} of {name} came after {count} of {shape[0]}")
        tensor[first:last] = rows
        if last == shape[0]:
            return tensor
        self._came[name] = tensor, last
        return None

    def end(self, wanted: Iterable[str]) -> None:
        """Make sure that tensors came, and no other in part.

        Raises:
            LabError: naming one that did not.
        """
        for name, (tensor, count) in self._came.items():
            raise LabError(f"of {name} only {count} of {len(tensor)} rows came")
        if missing := [name for name in wanted if name not in self._whole]:
            raise LabError(f"{missing[0]} and {len(missing) - 1} more did not come")
