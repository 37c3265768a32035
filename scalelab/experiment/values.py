"""Check a value against the annotation of its field, type and range: pydantic decides, the messages are the lab's."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MultipleOf
from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from scalelab.experiment.syntax import Mention

PLAIN = (int, float, str, bool, NoneType, Any)

LIMITS = {
    Gt: ("gt", "above"),
    Ge: ("ge", "at least"),
    Lt: ("lt", "below"),
    Le: ("le", "at most"),
    MultipleOf: ("multiple_of", "a multiple of"),
}

LONGEST_SHOWN = 120
"""Characters of a value that a message repeats."""


class MismatchError(Exception):
    """A value of a wrong type or range; the message names what is allowed."""


def conform(value: Any, hint: Any, written: Any = None) -> Any:
    """Check a value against an annotation, and return it as the field should hold it.

    An int fits float and becomes one; a bool fits bool alone; floats are finite. An object fits its class and the bases
    of that, and a protocol if its class has all members of it.

    Args:
        value: the value.
        hint: the annotation; `Annotated` may say the range, as pydantic and annotated-types write it.
        written: what messages show in place of the value; None is the value.

    Raises:
        MismatchError: the value does not fit.
    """
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        reasons = [str(one["ctx"]["error"]) for one in error.errors() if one["type"] == "value_error"]
        reasons += ["give a finite number" for one in error.errors() if one["type"] == "finite_number"]
        raise MismatchError(_expected(value if written is None else written, hint, reasons)) from None


def mistakes(error: ValidationError) -> str:
    """The class and its mistakes in one line; pydantic's own first line only counts them."""
    told = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"] for one in error.errors())
    return f"{error.title}: {'; '.join(told)}".replace("\n", " ")


@lru_cache(maxsize=1024)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_checkable(hint), config=ConfigDict(strict=True, allow_inf_nan=False))


def _checkable(hint: Any) -> Any:
    """Rewrite an annotation for pydantic: of objects, which are built already, only the class is checked."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = _limits(args[1:])
        return Annotated[(_checkable(args[0]), *limits)] if limits else _checkable(args[0])
    if origin in (Union, UnionType):
        return Union[tuple(_checkable(option) for option in args)]  # noqa: UP007
    if origin is tuple:
        return tuple[tuple(option if option is ... else _checkable(option) for option in args)]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[tuple(map(_checkable, args))]  # type: ignore[misc]
    return Annotated[Any, PlainValidator(_follows(hint))] if isinstance(hint, type) and hint not in PLAIN else hint


def _follows(cls: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        missing = lacking(type(value), cls)
        if missing:
            raise ValueError(f"{type(value).__name__} has no {', '.join(missing)}")
        if missing is None:
            raise ValueError("")
        return value

    return check


def lacking(cls: type, wanted: type) -> list[str] | None:
    """List the members that a class lacks to stand for another class or protocol.

    Returns:
        The members of a protocol that the class does not have; None if `wanted` is a class and none of its bases.
    """
    if not getattr(wanted, "_is_protocol", False):
        return [] if issubclass(cls, wanted) else None
    if cls in (int, float, str, bool, NoneType, tuple, dict):
        return None
    own = {*getattr(cls, "__dataclass_fields__", ()), *(name for base in cls.__mro__ for name in vars(base))}
    return sorted(name for name in _members(wanted) if name not in own)


def _members(protocol: type) -> set[str]:
    return {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *inspect.get_annotations(base))
        if not name.startswith("_") or name == "__call__"
    }


def _expected(value: Any, hint: Any, reasons: list[str]) -> str:
    near = difflib.get_close_matches(value, texts(hint), n=1, cutoff=0.3) if isinstance(value, str) else []
    why = next(filter(None, reasons), "")
    return (
        f"must be {describe(hint)}, not {brief(shown(value))}"
        + (f": {why}" if why else "")
        + (f"; did you mean {near[0]!r}?" if near else "")
    )


def texts(hint: Any) -> list[str]:
    """The texts that an annotation lists."""
    if get_origin(hint) is Literal:
        return [option for option in get_args(hint) if isinstance(option, str)]
    return [text for option in _options(hint) for text in texts(option)]


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type that an `Annotated` describes."""
    origin = get_origin(hint)
    return get_args(hint) if origin in (Union, UnionType) else get_args(hint)[:1] if origin is Annotated else ()


def accepts(hint: Any, kind: Any) -> bool:
    """True if an annotation takes values of a plain type."""
    return hint is kind or any(accepts(option, kind) for option in _options(hint))


def classes(hint: Any) -> list[type]:
    """The classes among the alternatives of an annotation."""
    if isinstance(hint, type) and hint not in PLAIN and get_origin(hint) is None:
        return [hint]
    return [cls for option in _options(hint) for cls in classes(option)]


def describe(hint: Any) -> str:
    """An annotation in words that fit after "must be"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join(filter(None, (describe(args[0]), _range(args[1:]))))
    if origin in (Union, UnionType):
        return " or ".join(describe(option) for option in args)
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is tuple:
        inside = f"of {describe(args[0])}" if args[1:] == (...,) else f"({', '.join(map(describe, args))})"
        return f"a tuple {inside}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict from {describe(args[0])} to {describe(args[1])}"
    if hint is NoneType:
        return "None"
    if getattr(hint, "_is_protocol", False):
        return str(hint.__name__)
    if hint in PLAIN:
        return getattr(hint, "__name__", str(hint))
    return f"@{hint.__name__}()" if isinstance(hint, type) else str(hint).removeprefix("typing.")


def _limits(metadata: tuple[Any, ...]) -> list[BaseMetadata]:
    """The bounds among what an annotation says beside the type."""
    found: list[BaseMetadata] = []
    for item in metadata:
        inner = item.metadata if isinstance(item, FieldInfo) else item if isinstance(item, GroupedMetadata) else ()
        found += _limits(tuple(inner)) if inner else [item] if isinstance(item, BaseMetadata) else []
    return found


def _range(metadata: tuple[Any, ...]) -> str:
    limits = _limits(metadata)
    bounds = [
        (word, getattr(one, name)) for kind, (name, word) in LIMITS.items() for one in limits if type(one) is kind
    ]
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds)


def shown(value: Any) -> str:
    """A value as gin writes it."""
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(shown, value)) + ("," if len(value) == 1 and isinstance(value, tuple) else "")
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items()) + "}"
    return str(value) if isinstance(value, Mention) else repr(value)


def brief(text: Any, longest: int = LONGEST_SHOWN) -> str:
    """A text on one line, and cut where it is long."""
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text)[: longest + 1])
    return text if len(text) <= longest else f"{text[:longest]}…"
