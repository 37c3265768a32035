"""The program's side of a transcript: do one line after the other, and say what came of each.

Lines: `["call", target, args, kwargs]`, `["get", target, name]`, `["set", target, name, value]`, `["do", operation,
…values]`. A value may be `{"$name": expression}` for what the program knows by it, `{"$answer": [line, part]}` for an
object that an earlier line gave, `{"$expr": source}`, or `{"$function": [name, source, names that it uses]}`, which
is a class where that extends one of the program's.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import operator
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from functools import cache
from typing import Any

from tasks.sandbox.feeding import Feed, MoreInputError
from tasks.sandbox.objects import Builder, fields_of, truth_of
from tasks.sandbox.values import decode, encode

# Items that are taken of what can be iterated, and objects that are described in one answer.
_MOST_ITEMS = 1000
_MOST_PARTS = 20_000
_SHORT_TEXT = 1000
_MOST_PRINTED = 100_000

ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "neg", "pos", "invert"),
)
"""Names of operators."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "getitem", "setitem", "delitem")
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*ARITHMETIC, *_COMPARISONS)},
    **{function.__name__: function for function in (bool, isinstance, len, next, repr, str)},
    "named": lambda value: value,
    "list": lambda values: list(itertools.islice(values, _MOST_ITEMS)),
    "enter": lambda manager: manager.__enter__(),
    "exit": lambda manager: manager.__exit__(None, None, None),
    "issubclass": issubclass,
    "await": lambda awaitable: _run_async(_awaited(awaitable)),
    "async list": lambda items: _run_async(_listed(items)),
    "async enter": lambda manager: _run_async(_awaited(manager.__aenter__())),
    "async exit": lambda manager: _run_async(_awaited(manager.__aexit__(None, None, None))),
}
"""Operations on objects beside calls and attributes."""


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _listed(items: AsyncIterable[Any]) -> list[Any]:
    found = []
    async for item in items:
        found.append(item)
        if len(found) == _MOST_ITEMS:
            break
    return found


@cache
def _loop() -> Any:
    return importlib.import_module("asyncio").new_event_loop()


def _run_async(awaitable: Awaitable[Any]) -> Any:
    """Wait in the one loop of this process, so that tasks and locks of the program live on between questions."""
    return _loop().run_until_complete(awaitable)


def look_up(expression: str, namespace: dict[str, Any]) -> Any:
    """The value of an expression such as `f`, `Solution().f` or `Class.f`; `f` may be a method of `Solution`."""
    solution = namespace.get("Solution")
    if expression.isidentifier() and hasattr(solution, expression):
        own = getattr(namespace.get(expression), "__module__", None) == namespace["__name__"]
        if not own:  # not there, or a name that the prelude imports
            return getattr(solution(), expression)  # type: ignore[misc]
    return eval(expression, namespace)


def answers(lines: str, namespace: dict[str, Any], shared: set[str], describe: Callable[[BaseException], str]) -> Any:
    """Do lines in a module in which the program has been loaded.

    Args:
        lines: JSON of a list of them.
        namespace: the module's.
        shared: names of classes that the tests know, too, so that their fields are all there is to say.
        describe: an exception as one line.

    Yields:
        Without what was printed: `["value", written, [args, kwargs] as a call left them, or null]`, or `["raised",
        text, [[module, name] of its class and those that this extends], args]`, or `["input", prompts]` of a call that
        asks for more than it was given (`tasks.sandbox.feeding`).
    """
    parts: list[list[Any]] = []
    special: dict[str, Callable[[Any], Any]] = {
        "$name": lambda source: look_up(source, namespace),
        "$expr": lambda source: eval(source, namespace),
        "$function": lambda content: _function(namespace, content[0], content[1], decode(content[2], special)),
        "$answer": lambda place: parts[place[0]][place[1]],
        "$other": Builder(namespace).build,
    }
    for line in json.loads(lines):
        parts.append([])
        feed = Feed(line[4] if line[0] == "call" and len(line) > 4 else None)
        try:
            content: list[Any] = decode(line[1:4] if line[0] == "call" else line[1:], special)
            with feed:
                value = _DO[line[0]](*content)
        except MemoryError:
            raise
        except (Exception, SystemExit, MoreInputError) as error:
            if feed.wanting:
                yield ["input", feed.prompts]
                continue
            family = [[cls.__module__, cls.__name__] for cls in type(error).__mro__[:-1]]
            yield ["raised", describe(error), family, _plain_arguments(error)]
            continue
        if feed.wanting:  # it caught what broke it off
            yield ["input", feed.prompts]
            continue
        parts[-1].append(value)
        describer = _Describer(value, parts[-1], shared, namespace["__name__"])
        written = encode(value, describer)
        yield ["value", written, [*encode(content[1:], describer), *feed.taken()] if line[0] == "call" else None]


def _function(namespace: dict[str, Any], name: str, source: str, known: dict[str, Any]) -> Any:
    """A function of the tests, made anew beside the program."""
    scope = {**namespace, **known}
    if name == "<lambda>":
        return eval(source, scope)
    exec(source, scope)
    return scope[name]


_DO: dict[str, Callable[..., Any]] = {
    "call": lambda target, args, kwargs: target(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "do": lambda operation, *values: OPERATIONS[operation](*values),
}


def _plain_arguments(error: BaseException) -> list[Any]:
    try:
        return [encode(argument) for argument in error.args]
    except (TypeError, RecursionError):
        return [str(error)]


class Printed(io.StringIO):
    """Standard output of a program that answers, as far as it is worth keeping."""

    def __init__(self) -> None:
        super().__init__()
        sys.stdout = self

    def write(self, text: str) -> int:
        """Keep the beginning."""
        return super().write(text) if self.tell() < _MOST_PRINTED else len(text)

    def taken(self) -> str:
        """Text that was printed since the last time."""
        text = self.getvalue()[:_MOST_PRINTED]
        self.seek(0)
        self.truncate()
        return text


class _Describer:
    """Writer of what is no data: each object of an answer gets a number, its part."""

    def __init__(self, whole: Any, parts: list[Any], shared: set[str], module: str) -> None:
        self._whole, self._parts, self._shared, self._module = whole, parts, shared, module

    def __call__(self, value: Any) -> Any:
        part = 0 if value is self._whole else len(self._parts)
        if part:
            self._parts.append(value)
        if len(self._parts) > _MOST_PARTS:
            raise RecursionError(f"more than {_MOST_PARTS} objects")
        kind = type(value)
        described: dict[str, Any] = {"type": kind.__name__, "truth": truth_of(value), "part": part}
        if kind.__name__ in self._shared:
            described["fields"] = {name: encode(field, self) for name, field in fields_of(value).items()}
        elif kind.__module__ == self._module:
            described["fields"] = self._short_fields(value)
        elif hasattr(kind, "__iter__"):
            described["items"] = [encode(item, self) for item in itertools.islice(iter(value), _MOST_ITEMS)]
            described["once"] = hasattr(kind, "__next__")
        return {"$other": described}

    def _short_fields(self, value: Any) -> dict[str, Any]:
        """Fields that are numbers, short texts or such objects in their turn, so that lists are walked at once."""
        known = len(self._parts)
        try:
            return dict(self._short(value))
        except RecursionError:  # it contains itself: each field is asked for
            del self._parts[known:]
            return {}

    def _short(self, value: Any) -> Iterator[tuple[str, Any]]:
        for name, field in fields_of(value).items():
            if isinstance(field, bool | int | float | None) or (isinstance(field, str) and len(field) < _SHORT_TEXT):
                yield name, encode(field)
            elif type(field).__module__ == self._module and not isinstance(field, type) and hasattr(field, "__dict__"):
                yield name, self._nested(field)

    def _nested(self, value: Any) -> Any:
        self._parts.append(value)
        if len(self._parts) > _MOST_PARTS:
            raise RecursionError
        part = len(self._parts) - 1
        described = {"type": type(value).__name__, "truth": truth_of(value), "part": part}
        return {"$other": described | {"fields": dict(self._short(value))}}
