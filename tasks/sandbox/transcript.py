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
from collections.abc import Callable, Mapping
from typing import Any

from tasks.sandbox import feeding
from tasks.sandbox.counting import Probe
from tasks.sandbox.objects import Builder, describe_other
from tasks.sandbox.remote import Remote, UnknownError, inner
from tasks.sandbox.values import decode, encode

# More lines than this are asked for in further rounds.
_MOST_LINES = 2000
OWN_MODULES = ("solution", "__main__")
"""Modules that prelude and tests are."""

# Exceptions of the standard library that mean something to those who run tests.
_RUNNERS = ("unittest", "doctest", "_pytest", "pytest")


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
        if kind == "call" and (given := feeding.replaced()) is not None:
            line.append(self._given(line, place, given))
        if not self.probe.guessing and (place >= len(self._answers) or self._answers[place][0] != line):
            self.probe.guessing = True
        if len(self.lines) >= _MOST_LINES + len(self._answers):
            raise UnknownError
        self.lines.append(line)
        if self.probe.guessing:
            return Remote(self, {"$answer": [place, 0]}, {"own": own, "unknown": True})
        self.used += 1
        if kind == "call":
            feeding.advance(self._answers[place][1])
        status, *answer, printed = self._answers[place][1]
        if printed:
            sys.stdout.write(printed)  # where the tests may look for it
        if status == "raised":
            raise self._exception(*answer)
        written, left = answer
        if left is not None:
            _, args, kwargs = content
            args_left, kwargs_left = self._read(left[:2], place, own=False)
            for before, after in [*zip(args, args_left), *((kwargs[name], kwargs_left[name]) for name in kwargs)]:
                _restore(before, after)
        return self._read(written, place, own)

    def _given(self, line: list[Any], place: int, given: dict[str, Any]) -> dict[str, Any]:
        """Input of a call: the values of `input` as far as the program's last answer shows that it needs them."""
        if "inputs" not in given or self.probe.guessing or place >= len(self._answers):
            return given
        recorded, answer = self._answers[place]
        if len(recorded) != len(line) + 1 or recorded[:-1] != line:
            return given
        return dict(encode(feeding.known(recorded, answer)))

    def extended(self, name: str, body: dict[str, Any]) -> Any:
        """A class of the tests' that extends one of the program's: it is made beside the program.

        Raises:
            NotImplementedError: its source is not known.
        """
        functions = [one for one in body.values() if isinstance(one, types.FunctionType)]
        source = self.functions().get((name, 0))
        if source is None:
            raise NotImplementedError(f"the class {name} extends one of the program's, and has no source of its own")
        used = {one: value for function in functions for one, value in self._used(function).items()}
        bases = {inner(base)[1]["named"]: base for base in body["__orig_bases__"] if isinstance(base, Remote)}
        made = Remote(self, {"$function": [name, source, encode(bases | used, self._write)]}, {"named": name})
        self.ask("do", "named", made)
        return Remote(self, {"$answer": [len(self.lines) - 1, 0]}, {"named": name})

    def _used(self, function: types.FunctionType) -> dict[str, Any]:
        """Values that a function uses by name."""
        code = function.__code__
        known = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
        known |= {
            name: cell.cell_contents
            for name, cell in zip(code.co_freevars, function.__closure__ or ())
            if name != "__class__"
        }
        return {name: one for name, one in known.items() if one is not function and not _is_module(one)}

    def _write(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_ref")
        if isinstance(value, type | types.BuiltinFunctionType):
            name = str(value.__name__)
            if getattr(builtins, name, None) is value:
                return {"$expr": name}
        if isinstance(value, type):
            return describe_other(value)
        if isinstance(value, types.BuiltinMethodType) or type(value).__module__ == "unittest.mock":
            raise NotImplementedError(f"a {type(value).__name__} of the tests' cannot be handed to the program")
        if isinstance(value, types.FunctionType):
            code = value.__code__
            source = self.functions().get((code.co_name, code.co_firstlineno))
            if source is None:
                raise TypeError(f"the function {code.co_name} has no source of its own")
            return {"$function": [code.co_name, source, encode(self._used(value), self._write)]}
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


def _restore(before: Any, after: Any) -> None:
    """Change an argument as the program changed its copy."""
    if isinstance(before, list) and isinstance(after, list):
        before[:] = after
    elif isinstance(before, dict | set) and isinstance(after, type(before)):
        before.clear()
        before.update(after)
