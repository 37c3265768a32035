"""Encode objects that are no plain data, with the few facts about them that tests use.

`{"$other": {"type": name, "truth": bool, "items": […], "fields": {…}}}`: `items` of what can be iterated (generators,
ranges, views, deques), `fields` of instances of a class (linked lists, trees). A process that knows no class of that
name gets an object with the same fields, items and truth.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tasks.sandbox.values import decode, encode


def describe_other(value: Any) -> Any:
    """Write a value that is no data; use it as `encode(value, describe_other)`.

    Raises:
        RecursionError: nested too deeply, or containing itself.
    """
    described: dict[str, Any] = {"type": type(value).__name__, "truth": truth_of(value)}
    fields = fields_of(value)
    if isinstance(value, Stranger):
        if value.items_ is not None:
            described["items"] = encode(value.items_, describe_other)
        fields.pop("items_")
        fields.pop("truth_")
    elif hasattr(type(value), "__iter__"):
        described["items"] = [encode(item, describe_other) for item in value]
    if fields:
        described["fields"] = {name: encode(field, describe_other) for name, field in fields.items()}
    return {"$other": described}


class Stranger:
    """An object of a class that this process does not know."""

    items_: list[Any] | None = None
    truth_: bool = True

    def __bool__(self) -> bool:
        return self.truth_

    def __iter__(self) -> Iterator[Any]:
        if self.items_ is None:
            raise TypeError(f"a {type(self).__name__} has no items")
        return iter(self.items_)

    def __len__(self) -> int:
        return len(list(iter(self)))


class Builder:
    """Make objects of what `describe_other` wrote.

    Args:
        namespace: where classes are looked up by name; its functions and builtins are not.
        stranger: makes an object of a class that is not there; None makes a `Stranger`.
    """

    def __init__(self, namespace: Mapping[str, Any], stranger: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self._namespace, self._stranger = namespace, stranger
        self._special = {"$other": self.build, "$named": self._named}

    def build(self, described: Any) -> Any:
        """The object, made without calling its class.

        Raises:
            ValueError, TypeError: this is no description.
        """
        name, fields = described["type"], described.get("fields", {})
        if not isinstance(name, str) or not isinstance(fields, dict):
            raise ValueError("an object's description has no type, or fields that are none")
        known = self._namespace.get(name)
        made: Any
        if isinstance(known, type) and "items" not in described:
            made = object.__new__(known)
        elif self._stranger is not None:
            return self._stranger(described)
        else:
            made = object.__new__(type(name, (Stranger,), {}))
            made.truth_ = described.get("truth") is not False
            made.items_ = self.read(described["items"]) if "items" in described else None
        for field, written in fields.items():
            if field.isidentifier() and not field.startswith("__"):
                setattr(made, field, self.read(written))
        return made

    def _named(self, content: list[Any]) -> Any:
        names, items = content
        return namedtuple("Named", names)(*map(self.read, items))  # type: ignore[misc]

    def read(self, written: Any) -> Any:
        """A value that `encode` wrote with `describe_other`."""
        return decode(written, self._special)


def truth_of(value: Any) -> bool | None:
    """The truth of a value; None if it has none."""
    try:
        return bool(value)
    except Exception:  # an array of several numbers has none
        return None


def fields_of(value: Any) -> dict[str, Any]:
    """The attributes that an instance holds itself."""
    fields = dict(getattr(value, "__dict__", None) or {}) if not isinstance(value, type) else {}
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    return fields | {name: getattr(value, name) for name in slots if hasattr(value, name)}


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
