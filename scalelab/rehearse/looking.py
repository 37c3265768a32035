"""Actors of a rehearsal that say what they see of their node; each process imports no more than its role's class."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from scalelab.cluster.heartbeats import Beating


@dataclass(frozen=True)
class Sight:
    """The surroundings of an actor, as it sees them.

    Attributes:
        variables: its environment, as far as it was asked for.
        address: of its node, by which others reach it.
    """

    variables: dict[str, str]
    address: str


class Looking(Beating):
    """Actor that says what it sees."""

    def look(self, names: Sequence[str]) -> Sight:
        """The values of variables that are set, and the address of the node."""
        return Sight({name: os.environ[name] for name in names if name in os.environ}, ray.util.get_node_ip_address())


class Unstarted(Looking):
    """Actor that gets another's class and arguments, which must fit together, and does not start it."""

    def __init__(self, cls: type, *arguments: Any) -> None:
        super().__init__()
        inspect.signature(cls).bind(*arguments)


def that_looks(cls: type) -> type:
    """An actor's class with `look`; Ray sends it by its content, and its base by name."""
    return type(f"Looking{cls.__name__}", (Looking, cls), {})
