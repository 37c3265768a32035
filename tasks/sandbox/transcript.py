"""The conversation between tests and a program that runs in another process: what was asked, and what it answered.

Tests hold a `Remote` for everything that is the program's: its functions, its classes, the objects that it makes. What
tests do with one becomes a line of the transcript, and the program's process does all lines in order, so objects keep
their state. Lines whose answers are not there yet are collected, and the host asks for them all at once.

A program answers for its own objects, so it could give an object that claims to be whatever a test asks. Therefore
operators, and methods that plain values have too, work only on objects of classes that the tests themselves name and
build; for everything else only plain data can be equal to what is expected.
"""

from __future__ import annotations

import builtins
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tasks.sandbox.asking import ARITHMETIC
from tasks.sandbox.counting import Probe
from tasks.sandbox.objects import Builder, describe_other
from tasks.sandbox.values import decode, encode

# More lines than this are asked for in further rounds.
_MOST_LINES = 2000
_PLAIN_METHODS = {name for kind in (str, bytes, int, float, complex, list, tuple, dict, set) for name in dir(kind)}
OWN_MODULES = ("solution", "__main__")
"""Modules that prelude and tests are."""

# Exceptions of the standard library that mean something to those who run tests.
_RUNNERS = ("unittest", "doctest", "_pytest", "pytest")


class UnknownError(Exception):
    """A value is needed that is not known yet."""


class RaisedError(Exception):
    """An exception of the program's that has no class here."""


class Transcript:
    """Lines so far, their answers, and what to do with the next.

    Attributes:
        lines: what the program is asked, in order, as `tasks.sandbox.asking` reads it.
        probe: told when answers are no longer known.
        used: answers that the tests got.
        exceptions: classes of the tests' own for exceptions of the program's that they catch.
        functions: finds the sources of functions that tests define and may hand to the program, by name and line.
    """

    def __init__(self, answers: str, namespace: Mapping[str, Any]) -> None:
        """Begin.

        Args:
            answers: JSON of `[[line, answer], …]`, in the order in which they were asked; empty if nothing was yet.
            namespace: classes that tests and program share, by name.
        """
        self._namespace = namespace
        self._answers: list[Any] = json.loads(answers) if answers else []
        self.lines: list[Any] = []
        self.probe = Probe(self.made_by_program, guessing=not answers)
        self.used = 0
        self._raised: list[BaseException] = []
        self._stopped: BaseException | None = None
        self.exceptions: dict[str, type[Exception]] = {}
        self.functions: Callable[[], dict[tuple[str, int], str]] = dict

    def made_by_program(self, error: BaseException) -> bool:
        """True for an exception that the program raised."""
        return any(error is one for one in self._raised)

    def named(self, name: str) -> Any:
        """The program's function or class of a name, or of an expression such as `Solution().f`.

        A name in capitals is a constant; of an exception that the tests catch, this is a class of their own.
        """
        if name in self.exceptions:
            return self.exceptions[name]
        remote = Remote(self, {"$name": name}, {"named": name})
        return self.ask("do", "named", remote) if name.isupper() and len(name) > 1 else remote

    def ask(self, kind: str, *content: Any, own: bool = False) -> Any:
        """The program's answer.

        Args:
            kind: `call`, `get`, `set` or `do`.
            content: values, which are written here.
            own: the answer is an object of a class that the tests build.

        Raises:
            UnknownError: too much is not known yet.
        """
        line = [kind, *encode(list(content), self._write)]
        place = len(self.lines)
        if not self.probe.guessing and (place >= len(self._answers) or self._answers[place][0] != line):
            self.probe.guessing = True
        if len(self.lines) >= _MOST_LINES + len(self._answers):
            raise UnknownError
        self.lines.append(line)
        if self.probe.guessing:
            return Remote(self, {"$answer": [place, 0]}, {"own": own, "unknown": True})
        self.used += 1
        status, *answer, printed = self._answers[place][1]
        if printed:
            sys.stdout.write(printed)  # where the tests may look for it
        if status == "raised":
            raise self._exception(*answer)
        written, left = answer
        if left is not None:
            _, args, kwargs = content
            args_left, kwargs_left = self._read(left, place, own=False)
            for before, after in [*zip(args, args_left), *((kwargs[name], kwargs_left[name]) for name in kwargs)]:
                _restore(before, after)
        return self._read(written, place, own)

    def _write(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_ref")
        if isinstance(value, type | types.BuiltinFunctionType):
            name = str(value.__name__)
            return {"$expr": name} if getattr(builtins, name, None) is value else describe_other(value)
        if isinstance(value, types.FunctionType):
            code = value.__code__
            source = self.functions().get((code.co_name, code.co_firstlineno))
            if source is None:
                raise TypeError(f"the function {code.co_name} has no source of its own")
            known = {name: value.__globals__[name] for name in code.co_names if name in value.__globals__}
            known |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, value.__closure__ or ())}
            given = {name: one for name, one in known.items() if one is not value and not _is_module(one)}
            return {"$function": [code.co_name, source, encode(given, self._write)]}
        return describe_other(value)

    def _read(self, written: Any, place: int, own: bool) -> Any:
        def other(described: dict[str, Any]) -> Remote:
            facts = {"own": own, "born": len(self.lines), "type": described["type"], "truth": described.get("truth")}
            facts["fields"] = {name: builder.read(field) for name, field in described.get("fields", {}).items()}
            if "items" in described:
                facts["items"] = iter([builder.read(item) for item in described["items"]])
                facts["once"] = described.get("once") is True
            return Remote(self, {"$answer": [place, described["part"]]}, facts)

        shared = {name: kind for name, kind in self._namespace.items() if _is_shared(kind)}
        builder = Builder(shared, other)
        return builder.read(written)

    def _exception(self, text: str, family: list[list[str]], args: list[Any]) -> BaseException:
        """The program's exception, of the nearest class that is known here."""
        error: BaseException
        given = [decode(argument, {"$other": lambda _: None}) for argument in args]
        for module, name in family:
            kind = self.exceptions.get(name) or self._known_exception(module, name)
            if kind is None:
                continue
            try:
                error = kind(*given)
            except Exception:
                error = kind.__new__(kind)
                error.args = (text,)
            break
        else:
            error = RaisedError(text)
        self._raised.append(error)
        if family and family[0] == ["builtins", "StopIteration"]:
            self._stopped = error
        return error

    def next_of(self, remote: Remote) -> Any:
        """The next item of a program's iterator.

        Raises:
            StopIteration: it has none; only here, because this would end a `map` of tests in silence.
        """
        try:
            return self.ask("do", "next", remote)
        except Exception as error:
            if error is not self._stopped:
                raise
            self._raised.append(stop := StopIteration())
            raise stop from None

    def _known_exception(self, module: str, name: str) -> type[BaseException] | None:
        if module == "builtins":
            kind = getattr(builtins, name, None)
        elif module in sys.modules and module.partition(".")[0] in sys.stdlib_module_names:
            kind = None if module.startswith(_RUNNERS) else getattr(sys.modules[module], name, None)
        else:
            kind = self._namespace.get(name)
            kind = kind if _is_shared(kind) else None
        right = isinstance(kind, type) and issubclass(kind, Exception | SystemExit)
        # Raised by a function that runs inside `map` or a generator, it would end that in silence.
        return kind if right and kind not in (StopIteration, StopAsyncIteration) else None


def _is_module(value: object) -> bool:
    return isinstance(value, types.ModuleType | Probe)


def _is_shared(kind: object) -> bool:
    """True for a class of the prelude's or the tests' own; what they import, or compare by, may equal anything."""
    if not isinstance(kind, type) or kind.__module__ not in OWN_MODULES:
        return False
    return kind.__module__ == OWN_MODULES[0] or "__eq__" not in vars(kind)


class Remote:
    """Something of the program's, as the tests see it.

    Attribute names of its own begin and end with underscores, so that they hide none of the program's.
    """

    _transcript: Transcript
    _ref: dict[str, Any]
    _facts: dict[str, Any]

    def __init__(self, transcript: Transcript, ref: dict[str, Any], facts: dict[str, Any]) -> None:
        for name, value in (("_transcript", transcript), ("_ref", ref), ("_facts", facts)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask for a call."""
        transcript, facts = _of(self)
        # A name with a capital is a class: the tests build an object of it.
        builds = facts.get("named", "a").rpartition(".")[2][:1].isupper()
        return transcript.ask("call", self, list(args), kwargs, own=builds)

    def __getattr__(self, name: str) -> Any:
        transcript, facts = _of(self)
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
        _of(self)[0].ask("set", self, name, value)

    def __eq__(self, other: object) -> bool:
        transcript, facts = _of(self)
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
        transcript, facts = _of(self)
        if facts.get("unknown"):
            raise UnknownError
        return bool(_answered(transcript.ask("do", "bool", self))) if _is_own(self) else facts.get("truth") is not False

    def __len__(self) -> int:
        transcript, facts = _of(self)
        if "items" in facts:
            if facts["once"]:
                raise TypeError(f"{_described(self)} has no length")
            return len(_items(facts))
        _need(self)
        return int(_answered(transcript.ask("do", "len", self)))

    def __iter__(self) -> Iterator[Any]:
        transcript, facts = _of(self)
        if "items" in facts:
            return facts["items"] if facts["once"] else iter(_items(facts))
        if facts.get("unknown") and not _is_own(self):
            return iter(())  # so that what else the statement asks is asked in the same round
        return iter(_answered(transcript.ask("do", "list", self)))

    def __next__(self) -> Any:
        transcript, facts = _of(self)
        if "items" in facts:
            return next(facts["items"])
        _need(self)
        return transcript.next_of(self)

    def __contains__(self, item: object) -> bool:
        if _is_own(self):
            return bool(_answered(_of(self)[0].ask("do", "contains", self, item)))
        return any(item is one or item == one for one in self)

    def __instancecheck__(self, value: object) -> bool:
        if not isinstance(value, Remote):
            return False
        return bool(_answered(_of(self)[0].ask("do", "isinstance", value, self)))

    def __reduce_ex__(self, _: object) -> Any:
        raise TypeError(f"{_described(self)} cannot be copied")

    def __str__(self) -> str:
        _need(self)
        return str(_answered(_of(self)[0].ask("do", "str", self)))

    def __repr__(self) -> str:
        _need(self)
        return str(_answered(_of(self)[0].ask("do", "repr", self)))

    def __enter__(self) -> Any:
        return _of(self)[0].ask("do", "enter", self, own=_is_own(self))

    def __exit__(self, *_: object) -> None:
        _of(self)[0].ask("do", "exit", self)


def _of(remote: Remote) -> tuple[Transcript, dict[str, Any]]:
    return object.__getattribute__(remote, "_transcript"), object.__getattribute__(remote, "_facts")


def _is_own(value: object) -> bool:
    """True for an object of a class that the tests build."""
    return isinstance(value, Remote) and bool(_of(value)[1].get("own"))


def _described(remote: Remote) -> str:
    facts = _of(remote)[1]
    return f"a {facts.get('type', 'value')} of the program's"


def _need(remote: Remote) -> None:
    """Stop where an answer is needed and not known; it is likely to be plain data, of which nothing more is asked."""
    if _of(remote)[1].get("unknown") and not _is_own(remote):
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
        unknown = next((one for one in operands if isinstance(one, Remote) and _of(one)[1].get("unknown")), None)
        if unknown is not None:
            return unknown  # plain numbers need no answer for this
        raise TypeError(f"{name} is asked of {_described(next(one for one in operands if isinstance(one, Remote)))}")
    transcript = next(_of(one)[0] for one in operands if isinstance(one, Remote))
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


def _restore(before: Any, after: Any) -> None:
    """Change an argument as the program changed its copy."""
    if isinstance(before, list) and isinstance(after, list):
        before[:] = after
    elif isinstance(before, dict | set) and isinstance(after, type(before)):
        before.clear()
        before.update(after)
