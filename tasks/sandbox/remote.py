"""Something of the program's in the process of its tests: what is done with it becomes a question to the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tasks.sandbox.asking import ARITHMETIC

_PLAIN_METHODS = {name for kind in (str, bytes, int, float, complex, list, tuple, dict, set) for name in dir(kind)}


class UnknownError(Exception):
    """A value is needed that is not known yet."""


class Asks(Protocol):
    """Interface of a `tasks.sandbox.transcript.Transcript` for a `Remote`."""

    lines: list[Any]

    def ask(self, kind: str, *content: Any, own: bool = False) -> Any:
        """The program's answer."""

    def next_of(self, remote: Remote) -> Any:
        """The next item of a program's iterator."""

    def extended(self, name: str, body: dict[str, Any]) -> Any:
        """A class of the tests' that extends one of the program's."""


class Remote:
    """Something of the program's, as the tests see it.

    Attribute names of its own begin and end with underscores, so that they hide none of the program's.
    """

    _transcript: Asks
    _ref: dict[str, Any]
    _facts: dict[str, Any]

    def __init__(self, transcript: Asks, ref: dict[str, Any], facts: dict[str, Any]) -> None:
        for name, value in (("_transcript", transcript), ("_ref", ref), ("_facts", facts)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask for a call."""
        transcript, facts = inner(self)
        # A name with a capital is a class: the tests build an object of it.
        builds = facts.get("named", "a").rpartition(".")[2][:1].isupper()
        return transcript.ask("call", self, list(args), kwargs, own=builds)

    def __getattr__(self, name: str) -> Any:
        transcript, facts = inner(self)
        if name == "__name__" and "named" in facts:
            return facts["named"]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        fields = facts.get("fields", {})
        if name in fields and facts["born"] == len(transcript.lines):
            return fields[name]
        if not _is_own(self) and name in _PLAIN_METHODS:
            raise AttributeError(f"{name} is asked of {_described(self)}")
        return transcript.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner(self)[0].ask("set", self, name, value)

    def __eq__(self, other: object) -> bool:
        transcript, facts = inner(self)
        if isinstance(other, Remote):
            return self is other or bool(_operate("eq", self, other, either=True))
        if facts.get("unknown"):
            raise UnknownError
        return "named" in facts and bool(transcript.ask("do", "named", self) == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(json.dumps(object.__getattribute__(self, "_ref")))

    def __bool__(self) -> bool:
        transcript, facts = inner(self)
        if facts.get("unknown"):
            raise UnknownError
        return bool(_answered(transcript.ask("do", "bool", self))) if _is_own(self) else facts.get("truth") is not False

    def __len__(self) -> int:
        transcript, facts = inner(self)
        if "items" in facts:
            if facts["once"]:
                raise TypeError(f"{_described(self)} has no length")
            return len(_items(facts))
        _need(self)
        return int(_answered(transcript.ask("do", "len", self)))

    def __iter__(self) -> Iterator[Any]:
        transcript, facts = inner(self)
        if "items" in facts:
            return facts["items"] if facts["once"] else iter(_items(facts))
        if facts.get("unknown") and not _is_own(self):
            return iter(())  # so that what else the statement asks is asked in the same round
        return iter(_answered(transcript.ask("do", "list", self)))

    def __next__(self) -> Any:
        transcript, facts = inner(self)
        if "items" in facts:
            return next(facts["items"])
        _need(self)
        return transcript.next_of(self)

    def __contains__(self, item: object) -> bool:
        if _is_own(self):
            return bool(_answered(inner(self)[0].ask("do", "contains", self, item)))
        return any(item is one or item == one for one in self)

    def __instancecheck__(self, value: object) -> bool:
        if not isinstance(value, Remote):
            return False
        return bool(_answered(inner(self)[0].ask("do", "isinstance", value, self)))

    def __subclasscheck__(self, kind: object) -> bool:
        if not isinstance(kind, Remote):
            return False
        return bool(_answered(inner(self)[0].ask("do", "issubclass", kind, self)))

    def __reduce_ex__(self, _: object) -> Any:
        raise TypeError(f"{_described(self)} cannot be copied")

    def __str__(self) -> str:
        _need(self)
        return str(_answered(inner(self)[0].ask("do", "str", self)))

    def __repr__(self) -> str:
        _need(self)
        return str(_answered(inner(self)[0].ask("do", "repr", self)))

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return inner(self)[0].ask("do", "await", self)

    async def __aiter__(self) -> Any:
        for item in _answered(inner(self)[0].ask("do", "async list", self)):
            yield item

    async def __aenter__(self) -> Any:
        return inner(self)[0].ask("do", "async enter", self, own=_is_own(self))

    async def __aexit__(self, *_: object) -> None:
        inner(self)[0].ask("do", "async exit", self)

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (_Extended,)

    def __enter__(self) -> Any:
        return inner(self)[0].ask("do", "enter", self, own=_is_own(self))

    def __exit__(self, *_: object) -> None:
        inner(self)[0].ask("do", "exit", self)


class _Extending(type):
    """Maker of the class that tests mean where they extend one of the program's."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **more: Any) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        base = next(base for base in body["__orig_bases__"] if isinstance(base, Remote))
        return inner(base)[0].extended(name, body)


class _Extended(metaclass=_Extending):
    pass


def inner(remote: Remote) -> tuple[Asks, dict[str, Any]]:
    """Transcript and facts of one, past the attributes that are the program's."""
    return object.__getattribute__(remote, "_transcript"), object.__getattribute__(remote, "_facts")


def _is_own(value: object) -> bool:
    """True for an object of a class that the tests build."""
    return isinstance(value, Remote) and bool(inner(value)[1].get("own"))


def _described(remote: Remote) -> str:
    facts = inner(remote)[1]
    return f"a {facts.get('type', 'value')} of the program's"


def _need(remote: Remote) -> None:
    """Stop where an answer is needed and not known; it is likely to be plain data, of which nothing more is asked."""
    if inner(remote)[1].get("unknown") and not _is_own(remote):
        raise UnknownError


def _answered(value: Any) -> Any:
    if isinstance(value, Remote):
        raise UnknownError
    return value


def _items(facts: dict[str, Any]) -> list[Any]:
    items = list(facts["items"])
    facts["items"] = iter(items)
    return items


def _operate(name: str, *operands: Any, either: bool) -> Any:
    """Have the program do an operation, if one of its operands (or the first) is of a class that the tests build."""
    if not any(map(_is_own, operands if either else operands[:1])):
        if name == "eq":
            return False
        unknown = next((one for one in operands if isinstance(one, Remote) and inner(one)[1].get("unknown")), None)
        if unknown is not None:
            return unknown  # plain numbers need no answer for this
        raise TypeError(f"{name} is asked of {_described(next(one for one in operands if isinstance(one, Remote)))}")
    transcript = next(inner(one)[0] for one in operands if isinstance(one, Remote))
    return transcript.ask("do", name, *operands, own=True)


def _method(name: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Remote, *others: Any) -> Any:
        return _operate(name, *(reversed([self, *others]) if swapped else (self, *others)), either=bool(others))

    return method


for _name in ARITHMETIC:
    setattr(Remote, f"__{_name.strip('_')}__", _method(_name))
    setattr(Remote, f"__r{_name.strip('_')}__", _method(_name, swapped=True))
for _name in ("getitem", "setitem", "delitem"):
    setattr(Remote, f"__{_name}__", _method(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _method(_name))
