"""Parameters of a model, put together from the segments of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.weights.links import EXPERT_BIAS, Link, expert_bias_names, links
from moe.weights.segments import Piece, Segment


def check(hf_config: dict[str, Any], segments: Sequence[Segment]) -> dict[str, list[tuple[int, Piece]]]:
    """Find the pieces of every parameter: by name, (segment, piece).

    Raises:
        MoeError: a parameter is missing, incomplete, unknown, or of another model.
    """
    found: dict[str, list[tuple[int, Piece]]] = {}
    for number, segment in enumerate(segments):
        for piece in segment.pieces:
            found.setdefault(piece.name, []).append((number, piece))
    if len({segment.version for segment in segments}) != 1:
        raise MoeError(f"the segments are of versions {sorted({s.version for s in segments})}: publish them together")
    shapes = {link.param: link.shape for link in links(hf_config)}
    biases = [name for name in found if name.endswith(EXPERT_BIAS)]
    for name in biases:
        if name not in expert_bias_names(hf_config).values():
            raise MoeError(f"the published weights hold {name}, which this model has no place for")
    if other := sorted(found.keys() - shapes.keys() - set(biases)):
        raise MoeError(f"the published weights hold {other[0]}, which this model has no place for")
    for name, shape in shapes.items():
        _check_whole(name, shape, [piece for _, piece in found.get(name, [])])
    return found


def _check_whole(name: str, shape: tuple[int, ...], pieces: list[Piece]) -> None:
    if wrong := next((piece for piece in pieces if piece.whole != tuple(shape)), None):
        raise MoeError(f"the published {name} has shape {wrong.whole}, but this model needs {tuple(shape)}")
    wanted = 1
    for _, _, _, parts in pieces[0].cuts if pieces else ():
        wanted *= parts
    places = {tuple(part for _, _, part, _ in piece.cuts) for piece in pieces}
    if not pieces or not len(pieces) == len(places) == wanted:
        raise MoeError(f"the published weights hold {len(places)} of {wanted} parts of {name}: a rank is missing")


def weights(
    hf_config: dict[str, Any], segments: Sequence[Segment], views: Sequence[Callable[[Piece], Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield every Hugging Face tensor, then every bias of experts; one parameter is put together at a time.

    Args:
        hf_config: the model's.
        segments: of all ranks.
        views: for every segment what gives a piece's tensor.

    Raises:
        MoeError: see `check`; before the first tensor.
    """
    found = check(hf_config, segments)
    for link in links(hf_config):
        yield from zip(link.names, link.split(_assemble(link, found[link.param], views)), strict=True)
    for name in expert_bias_names(hf_config).values() if any(n.endswith(EXPERT_BIAS) for n in found) else ():
        (number, piece), *_ = found[name]
        yield name, views[number](piece)


def _assemble(link: Link, parts: list[tuple[int, Piece]], views: Sequence[Callable[[Piece], Tensor]]) -> Tensor:
    """The whole parameter: the part itself where there is one, a new tensor where there are several."""
    number, first = parts[0]
    if len(parts) == 1:
        return views[number](first)
    whole = torch.empty(link.shape, dtype=getattr(torch, first.dtype))
    for number, piece in parts:
        place, part = whole, views[number](piece)
        for axis, stretches, index, count in piece.cuts[:-1]:
            assert stretches == 1
            place = place.chunk(count, dim=axis)[index]
        axis, stretches, index, count = piece.cuts[-1]
        place.unflatten(axis, (stretches, count, -1)).select(axis + 1, index).copy_(
            part.unflatten(axis, (stretches, -1))
        )
    return whole
