"""Output of commands, held against texts that somebody has read: `tests/commands/approved`.

    python -m tests.helpers.approved [SUBJECT...]

writes the texts anew, all of them or those of some subjects. Read the difference before you commit it. With `--runs` it
prints which files of the lab each subject runs instead, as JSON.
"""

from __future__ import annotations

import difflib
import io
import json
import logging
import os
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from scalelab.cli import main
from tests.helpers.approved_sources import ROOT, write_logs, write_runs
from tests.helpers.approved_subjects import SUBJECTS

TEXTS = Path(__file__).parents[1] / "commands" / "approved"
DIGITS = 4
"""Significant digits of a number of `--json` that is fitted: what is left is the same on every processor."""
MORE_DIGITS = 6
"""Digits of what is counted without matrices: plans, simulations, books."""
COUNTED = ("plan", "simulate", "launch", "books", "read")
LONGEST = 12
"""Numbers of a list that are shown one by one."""
MOST_SHOWN = 40
"""Lines of a difference that a failure shows."""
HIDDEN = ("made", "token", "stamp", "stamps", "size", "time")
"""Keys of JSON whose values differ from one time to the next."""
_SIZES = re.compile(r"(?<=\.parquet )has \d+ of \d+ bytes")
"""Sizes that depend on the version of pyarrow."""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@contextmanager
def world() -> Iterator[Path]:
    """A folder with the logs and runs that the subjects read, as the current one, and an empty cache."""
    before, variables = Path.cwd(), {name: os.environ.get(name) for name in ("SCALELAB_CACHE", "COLUMNS", "TZ")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "logs"
        folder.mkdir()
        write_logs(folder)
        write_runs(folder)
        os.environ |= {"SCALELAB_CACHE": f"{name}/cache", "COLUMNS": "100", "TZ": "UTC"}
        time.tzset()  # times of faults are told in the reader's own
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            for variable, value in variables.items():
                os.environ.pop(variable) if value is None else os.environ.update({variable: value})
            time.tzset()


def transcript(subject: str) -> str:
    """Output of a subject's commands now, run in `world`, or the data that it makes without a command."""
    asked = SUBJECTS[subject]
    if callable(asked):
        return "".join(f"{title}\n{_told(value)}\n" for title, value in asked().items())
    digits = MORE_DIGITS if subject in COUNTED else DIGITS
    return "\n".join(printed(command, digits) for command in asked)


def _told(value: Any) -> str:
    return _plain(value if isinstance(value, str) else lines(value))


@contextmanager
def warnings_to(err: io.StringIO) -> Iterator[None]:
    """Write what the lab logs to a stream, as Python does where nobody asks for it."""
    log, handler = logging.getLogger("scalelab"), logging.StreamHandler(err)
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


def printed(command: str, digits: int = DIGITS) -> str:
    """A command, what it prints, with `!` before lines of stderr, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings_to(err):
        code = main(shlex.split(command))
    text = out.getvalue()
    if "--json" in command and text:
        text = lines(json.loads(text), digits) + "\n"
    said = "".join(f"! {line}\n" for line in err.getvalue().splitlines())
    return _plain(f"$ scalelab {command}\n{text}{said}exit code {code}\n")


def _plain(text: str) -> str:
    """A text without the names of folders that are others next time, and without spaces at ends of lines."""
    for folder, name in ((str(Path.cwd()), "."), (str(ROOT), "ROOT")):
        text = text.replace(folder, name)
    text = _SIZES.sub("has … of … bytes", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def lines(value: Any, digits: int = DIGITS, name: str = "") -> str:
    """JSON as lines `name.name: value`; a long list by its first and last numbers, how many it has, and their sum."""
    if isinstance(value, Mapping) and value:
        named = {str(key): inner for key, inner in value.items() if key not in HIDDEN}
        return "\n".join(lines(inner, digits, f"{name}.{key}" if name else key) for key, inner in named.items())
    if isinstance(value, list) and any(isinstance(one, (list, dict)) for one in value):
        shown = [*range(min(len(value), 2)), *range(max(2, len(value) - 1), len(value))]
        more = [f"{name}: {len(value)} of them"] if len(value) > len(shown) else []
        return "\n".join([*more, *(lines(value[at], digits, f"{name}.{at}") for at in shown)])
    return f"{name}: {_short(value, digits)}"


def _short(value: Any, digits: int) -> str:
    if isinstance(value, float):
        return json.dumps(float(f"{value:.{digits}g}"))
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    shown = [_short(one, digits) for one in value]
    if len(value) <= LONGEST:
        return f"[{', '.join(shown)}]"
    total = sum(float(one) for one in value if isinstance(one, (int, float)))
    return f"[{', '.join(shown[:3])} … {', '.join(shown[-3:])}], {len(value)} values of sum {_short(total, digits)}"


def differences(approved: str, found: str) -> list[str]:
    """Lines that differ by more than one unit of the last digit of a number that has a decimal point."""
    old, new = approved.splitlines(), found.splitlines()
    if len(old) == len(new):
        new = [one if _alike(one, other) else other for one, other in zip(old, new)]
    return list(difflib.unified_diff(old, new, "approved", "found now", lineterm="", n=1))


def _alike(one: str, other: str) -> bool:
    mine, yours = _NUMBER.findall(one), _NUMBER.findall(other)
    if len(mine) != len(yours) or _words(one) != _words(other):
        return False
    return all(a == b or abs(_value(a) - _value(b)) <= 1.001 * _unit(a) for a, b in zip(mine, yours))


def _words(line: str) -> list[str]:
    return [" ".join(part.split()) for part in _NUMBER.split(line)]


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _unit(number: str) -> float:
    """One unit of a number's last digit; none of a whole number."""
    digits, _, power = number.partition("e")
    _, point, behind = digits.partition(".")
    return 10.0 ** (int(power or 0) - len(behind)) if point or power else 0.0


def problem(subject: str) -> str:
    """Difference of a subject's output from its text, and what to do; empty if there is none."""
    path = TEXTS / f"{subject}.txt"
    found = differences(path.read_text() if path.exists() else "", transcript(subject))
    if not found:
        return ""
    shown = "\n".join(found[:MOST_SHOWN])
    more = f"\n… and {len(found) - MOST_SHOWN} lines more" if len(found) > MOST_SHOWN else ""
    return (
        f"what is printed differs from {path.relative_to(ROOT)}:\n{shown}{more}\n"
        f"If the change is meant, run `python -m tests.helpers.approved {subject}`, and commit the text with it."
    )


def remake(subjects: Sequence[str]) -> None:
    """Write the texts of some subjects anew."""
    TEXTS.mkdir(exist_ok=True)
    with world():
        for subject in subjects:
            (TEXTS / f"{subject}.txt").write_text(transcript(subject))


def files_run(subject: str) -> list[str]:
    """Files of the lab that a subject's commands run functions of; to be called in `world`."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        transcript(subject)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    product = f"{ROOT / 'scalelab'}{os.sep}"
    return sorted(str(Path(file).relative_to(ROOT)) for file in found if file.startswith(product))


if __name__ == "__main__":
    if sys.argv[1:] == ["--runs"]:
        with world():
            print(json.dumps({subject: files_run(subject) for subject in SUBJECTS}))
    else:
        remake(sys.argv[1:] or list(SUBJECTS))
