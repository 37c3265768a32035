"""Segments of published weights: what each trainer rank wrote. Needs no torch: a run's driver passes them on."""

from __future__ import annotations

from dataclasses import dataclass

from moe.errors import MoeError

Cut = tuple[int, int, int, int]
"""(axis, stretches, part, parts). Stretches are stacked matrices, each of them cut for itself (gate and up: 2)."""


@dataclass(frozen=True)
class Piece:
    """A part of a parameter in a segment.

    Attributes:
        name: Megatron's name of the parameter, layers counted from the model's first; or a bias of experts'.
        dtype: torch's name of the type.
        shape: of the part.
        cuts: how it was cut from the whole, the outermost first.
        offset: first byte in the segment.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]
    offset: int

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the parameter that it is a part of."""
        shape = list(self.shape)
        for axis, _, _, parts in self.cuts:
            shape[axis] *= parts
        return tuple(shape)


@dataclass(frozen=True)
class Segment:
    """The share of one rank.

    Attributes:
        version: policy version.
        rank: who wrote it.
        machine: where the file can be mapped (`this_machine`).
        path: at which processes of the same user on that machine open the file.
        address: host and port that hand the file to other machines.
        key: what to ask for there; nobody else knows it.
        size: bytes.
        pieces: what is in it.
    """

    version: int
    rank: int
    machine: str
    path: str
    address: tuple[str, int]
    key: str
    size: int
    pieces: tuple[Piece, ...]


class UnavailableError(MoeError):
    """The publisher does not hand the weights over: it may be gone, or publish newer ones soon."""


class SupersededError(UnavailableError):
    """The weights were replaced by newer ones."""
