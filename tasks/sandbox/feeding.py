"""Input of a program while it is asked, where the tests replace `input` or the standard input.

Tests and program are two processes, so the program cannot call what the tests put in the place of `input`. It is given
the values that are known; where it asks for one more, its call is broken off with the prompts so far, the tests say
the next value, and the call is made again.
"""

from __future__ import annotations

import builtins
import io
import sys
from typing import Any

_INPUT, _PRINT = builtins.input, builtins.print


class MoreInputError(BaseException):
    """The program asks for a value that is not known yet."""


def replaced() -> dict[str, Any] | None:
    """In the tests' process: what a call may read; None if the tests replace nothing."""
    if builtins.print is not _PRINT:
        raise NotImplementedError("the tests replace print")
    if builtins.input is not _INPUT:
        return {"inputs": []}
    if isinstance(sys.stdin, io.StringIO):
        return {"stdin": sys.stdin.getvalue()[sys.stdin.tell() :]}
    return None


def known(recorded: list[Any], answer: list[Any]) -> dict[str, Any]:
    """In the tests' process: what a call may read after its answer, for which `input` is called as the program did.

    Args:
        recorded: the line that was answered, with what it could read.
        answer: the program's; it chose the prompts.
    """
    wanted = recorded[-1]["inputs"]
    prompts = answer[1] if answer[0] == "input" else taken(answer)
    texts = [text for text in prompts if isinstance(text, str)] if isinstance(prompts, list) else [""] * len(wanted)
    try:
        return {"inputs": [builtins.input(text) for text in texts[: len(wanted) + 1]]}
    except StopIteration:  # left alone, it would end a loop of the tests in silence
        raise EOFError("the program reads more than the tests give it") from None


def taken(answer: list[Any]) -> Any:
    """An answer's own account of what was read; None if it has none."""
    left = answer[2] if answer[0] == "value" else None
    return left[2] if isinstance(left, list) and len(left) > 2 else None


def advance(answer: list[Any]) -> None:
    """In the tests' process: move the replaced standard input to where the program stopped reading."""
    if isinstance(sys.stdin, io.StringIO):
        count = taken(answer)
        sys.stdin.read(count if isinstance(count, int) and count >= 0 else -1)


class Feed:
    """In the program's process: let a call read what is given; without a gift, nothing changes."""

    def __init__(self, given: dict[str, Any] | None) -> None:
        self._given = given or {}
        self._left = list(self._given.get("inputs", []))
        self._prompts: list[str] = []
        self.wanting = False

    def __enter__(self) -> Feed:
        self._before = builtins.input, sys.stdin
        if "inputs" in self._given:
            builtins.input = self._input
        if "stdin" in self._given:
            sys.stdin = io.StringIO(self._given["stdin"])
        return self

    def __exit__(self, *_: object) -> None:
        self._read = sys.stdin
        builtins.input, sys.stdin = self._before

    def _input(self, prompt: object = "", /) -> Any:
        self._prompts.append(str(prompt)[:1000])
        if not self._left:
            self.wanting = True
            raise MoreInputError
        return self._left.pop(0)

    @property
    def prompts(self) -> list[str]:
        """Prompts so far."""
        return self._prompts

    def taken(self) -> list[Any]:
        """Account of what was read, to be added to what a call left of its arguments; empty if nothing was given."""
        if "inputs" in self._given:
            return [self._prompts]
        return [self._read.tell()] if isinstance(self._read, io.StringIO) else []
