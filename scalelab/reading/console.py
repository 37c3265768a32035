"""Consoles of trainers as tables: verl's step lines, prime-rl's evaluations, the dictionaries of TRL and Hugging Face.

Nothing of a line is ever run: numbers are found by patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_TEXT
from scalelab.reading.table import Table, from_records

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Colours, which loggers write around everything."""

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"

VERL = re.compile(r"\bstep:(\d+) - ")
"""Beginning of verl's line for a step: `step:80 - actor/lr:1e-06 - val-core/…/mean@1:np.float64(0.49) - …`."""

VERL_VALUE = re.compile(rf"(\S[^:]{{0,200}}):(?:np\.(?:float|int)\d+\()?({NUMBER})\)?")

PRIME_STEP = re.compile(r"(?:ckpt_step=|checkpoint step |ckpt step |\bStep )(\d+)")
"""Words by which prime-rl's orchestrator names the step that its evaluations belong to."""

PRIME_EVALUATION = re.compile(rf"Evaluated (\S{{1,200}}) in {NUMBER}s \(((?:Avg|avg)@\d+)[=:] ?({NUMBER})")

DICTIONARY = re.compile(r"\{'[^{}]{1,20000}\}")
"""Dictionaries that Hugging Face's trainers print, TRL's among them: `{'eval_accuracy': 0.4, 'epoch': 1.0}`."""

ENTRY = re.compile(rf"'([^']{{1,200}})': '?(?:np\.float\d+\()?({NUMBER})\)?'?")


def read_console(path: Path, run: str, text: str) -> Table:
    """The evaluations in what a trainer printed, one row for each line that has numbers.

    Args:
        path: the file.
        run: name of the run.
        text: its text.

    Raises:
        LabError: none of the known trainers printed it.
    """
    lines = [(number, ESCAPE.sub("", line[:LONGEST_TEXT])) for number, line in enumerate(text.split("\n"), 1)]
    for kind, find in (
        ("console of verl", _verl),
        ("console of prime-rl", _prime),
        ("console of Hugging Face's trainers (TRL)", _dictionaries),
    ):
        records = list(find(lines))
        if records:
            return from_records(path, kind, records, run, counted="line")
    raise LabError(
        f"{path}: no evaluations of verl, prime-rl or TRL in this text; give a table of points, or one JSON object per "
        "line as .jsonl"
    )


def _verl(lines: list[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        found = VERL.search(line)
        if found:
            values = {"step": float(found[1])}
            for part in line[found.end() :].split(" - "):
                value = VERL_VALUE.fullmatch(part.strip())
                if value:
                    values[value[1]] = float(value[2])
            yield number, values


def _prime(lines: list[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    step: float | None = None
    for number, line in lines:
        evaluated = PRIME_EVALUATION.search(line)
        if evaluated:
            yield number, {"step": step, f"eval/{evaluated[1]}/{evaluated[2].lower()}": float(evaluated[3])}
        elif found := PRIME_STEP.search(line):
            step = float(found[1])


def _dictionaries(lines: list[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        for found in DICTIONARY.finditer(line):
            values = {name: float(value) for name, value in ENTRY.findall(found[0])}
            if len(values) > 1:
                yield number, values
