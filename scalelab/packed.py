"""Objects as bytes for entries that are kept: a line of JSON and the numbers of all arrays, one after the other.

Only names of classes that the reader lists are made from it, and a damaged entry is told from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

PLAIN = {str, int, float, bool, type(None)}
DTYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}


class Packing:
    """Bytes of values made of dataclasses, arrays, sequences, mappings by text, and plain values.

    Args:
        kinds: dataclasses that values hold.
        named: other objects that values hold, each the one of its name.
        beside: class → properties that are kept with its objects, since they take long to compute.
    """

    def __init__(
        self,
        *kinds: type,
        named: Mapping[str, Any] = MappingProxyType({}),
        beside: Mapping[type, Callable[[Any], dict[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._kinds, self._named, self._beside = {kind.__name__: kind for kind in kinds}, named, beside
        self._names = {id(one): name for name, one in named.items()}

    def entry(self, value: Any) -> bytes:
        """A value as bytes with their digest in front."""
        arrays: list[bytes] = []
        body = json.dumps(self._packed(value, arrays)).encode() + b"\n" + b"".join(arrays)
        return hashlib.sha256(body).digest() + body

    def value(self, content: bytes) -> Any:
        """The value that `entry` was given.

        Raises:
            ValueError: the content is damaged.
        """
        body = memoryview(content)[32:]
        if hashlib.sha256(body).digest() != content[:32]:
            raise ValueError("damaged")
        end = content.index(b"\n", 32)
        return self._unpacked(json.loads(content[32:end]), memoryview(content)[end + 1 :], [0])

    def _packed(self, value: Any, arrays: list[bytes]) -> Any:
        if isinstance(value, np.ndarray):
            kind = value.dtype.kind
            arrays.append(np.ascontiguousarray(value, DTYPES[kind]).tobytes())
            return ["array", kind, list(value.shape)]
        if id(value) in self._names:
            return ["named", self._names[id(value)]]
        if is_dataclass(value):
            kept = {field.name: self._packed(getattr(value, field.name), arrays) for field in fields(value)}
            beside = self._beside[type(value)](value) if type(value) in self._beside else {}
            return ["object", type(value).__name__, kept, self._packed(beside, arrays)]
        if isinstance(value, (tuple, list)):
            if all(type(member) in PLAIN for member in value):
                return ["plain", list(value)]
            return ["tuple", [self._packed(member, arrays) for member in value]]
        if isinstance(value, Mapping):
            kind = "view" if isinstance(value, MappingProxyType) else "dict"
            return [kind, [[key, self._packed(member, arrays)] for key, member in value.items()]]
        return value.item() if isinstance(value, np.generic) else value

    def _unpacked(self, packed: Any, numbers: memoryview, at: list[int]) -> Any:
        """The value, its arrays taken from `numbers` in the order in which they were packed."""
        if not isinstance(packed, list):
            return packed
        kind, *rest = packed
        if kind == "plain":
            return tuple(rest[0])
        if kind == "array":
            dtype, count = np.dtype(DTYPES[rest[0]]), math.prod(rest[1])
            found = np.frombuffer(numbers, dtype, count, at[0]).reshape(rest[1])
            at[0] += count * dtype.itemsize
            return found
        if kind == "named":
            return self._named[rest[0]]
        if kind == "object":
            made = self._kinds[rest[0]](
                **{name: self._unpacked(member, numbers, at) for name, member in rest[1].items()}
            )
            vars(made).update(self._unpacked(rest[2], numbers, at))
            return made
        if kind in ("dict", "view"):
            members = {key: self._unpacked(member, numbers, at) for key, member in rest[0]}
            return MappingProxyType(members) if kind == "view" else members
        return tuple(self._unpacked(member, numbers, at) for member in rest[0])
