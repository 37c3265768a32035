"""Messages to and from the sandbox.

What goes in is written by `marshal`, which an interpreter of the same version reads fastest. What comes out is not read
by it, because it trusts what it reads.
"""

from __future__ import annotations

import json
import marshal
import struct
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tasks.errors import TaskError

Ending = Literal["exited", "signalled", "timeout", "output", "prelude"]
"""The end of a child: by itself, by a signal that was not ours, killed for its time or for its output, or before the
program because the prelude failed."""

_ENDINGS: tuple[Ending, ...] = get_args(Ending)
_HEAD = struct.Struct("=Bid")

CROWDED = 5
"""Seconds by the clock that a second of processor time may take."""

CONFINED = b'["confined"]'
"""First line of a report: the child has given up its rights, and what follows is untrusted."""


_PLAIN = {str, bytes, bool, int, float}


def _message(values: dict[str, Any]) -> bytes:
    """Plain values by name; those of NumPy, whose bytes `marshal` would write, as what they derive from."""
    if not {type(value) for value in values.values()} <= _PLAIN:
        values = json.loads(json.dumps(values))
    return marshal.dumps(values)


@dataclass(frozen=True)
class Limits:
    """Resource limits of one program.

    Time is what the program uses of a processor, and what it spends waiting; how long it waits for its turn on a
    crowded machine does not count.

    Attributes:
        seconds: processor time of all its threads, and every second in which it uses none.
        memory_mb: address space in MiB, the interpreter's own included (about 30, with NumPy 120).
        output_mb: what it may say in all, in MiB.
    """

    seconds: float = 10.0
    memory_mb: int = 1024
    output_mb: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 3600:
            raise TaskError(f"a program's time limit is {self.seconds} s: give more than 0 and at most 3600")
        if self.memory_mb < 128:
            raise TaskError(f"a program's memory limit is {self.memory_mb} MiB: give at least 128, Python needs some")
        if self.output_mb <= 0:
            raise TaskError(f"a program's output limit is {self.output_mb} MiB: give more than 0")

    @property
    def wall_seconds(self) -> float:
        """Longest time by the clock: a program that gets less than a fifth of a processor is ended by it."""
        return CROWDED * self.seconds + 5

    @property
    def output_bytes(self) -> int:
        """The output limit in bytes."""
        return int(self.output_mb * (1 << 20))

    def to_bytes(self) -> bytes:
        """The limits as a message."""
        return _message(vars(self))


def limits_from_bytes(message: bytes) -> Limits:
    """The inverse of `Limits.to_bytes`."""
    return Limits(**marshal.loads(message))


@dataclass(frozen=True)
class Job:
    """One program and the calls to make.

    Attributes:
        kind: `call` functions of the program, `ask` it what its tests want to know, run a whole `program`, a
            `binary`, or a `script` (on a server with another interpreter), or `check` tests against what it answered;
            no program is loaded for that.
        code: the untrusted source; of a check, the tests.
        prelude: source that runs before it in the same module (imports and helpers of a data set).
        setup: source that runs after it, and may use what it defines.
        entry_point: `call`: what to call, `f` or `Solution().f`; `check`: what `candidate` stands for.
        calls: `call`: JSON text of `[[entry point or null, args, kwargs], …]`, values as in `tasks.sandbox.values`;
            `ask`: of the lines of a `tasks.sandbox.transcript`.
        keep_going: `call`: report what a call raised, and make the other calls.
        captures: `ask`: say what each line printed.
        answers: `check`: JSON text of what the program answered, as `tasks.sandbox.checking` reads it; empty asks
            which questions the tests have.
        stdin: `program`, `binary`, `script`: its standard input.
        binary: `binary`: an executable file that needs no other.
    """

    kind: Literal["call", "ask", "program", "check", "binary", "script"]
    code: str
    prelude: str = ""
    setup: str = ""
    entry_point: str = ""
    calls: str = "[]"
    keep_going: bool = False
    captures: bool = False
    answers: str = ""
    stdin: str = ""
    binary: bytes = b""

    def to_parts(self) -> list[bytes]:
        """The job as a message."""
        return [_message(vars(self) | {"binary": ""}), self.binary]


def job_from_parts(parts: list[bytes]) -> Job:
    """The inverse of `Job.to_parts`."""
    text, binary = parts
    return Job(**{**marshal.loads(text), "binary": binary})


@dataclass(frozen=True)
class Result:
    """Result of a child process.

    Attributes:
        ending: how it ended.
        code: its exit code (`exited`) or the signal's number (`signalled`), else 0.
        seconds: time that counts, as in `Limits`.
        report: the bytes on its report pipe, without the first line. Untrusted, unless the prelude failed: then it
            says why.
        stdout: the bytes on its standard output (`program`, `binary` and `script` only). Untrusted.
    """

    ending: Ending
    code: int
    seconds: float
    report: bytes
    stdout: bytes


def result_head(ending: Ending, code: int, seconds: float) -> bytes:
    """The first part of a result's message, before report and standard output."""
    return _HEAD.pack(_ENDINGS.index(ending), code, seconds)


def result_from_parts(parts: list[bytes]) -> Result:
    """The result in a fork server's message: its head; report; standard output."""
    head, report, stdout = parts
    try:
        number, code, seconds = _HEAD.unpack(head)
        return Result(_ENDINGS[number], code, seconds, report, stdout)
    except (struct.error, IndexError):
        raise TaskError(f"a fork server answered {head!r}: server and pool are of different versions") from None
