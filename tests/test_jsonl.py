"""Lines of JSON decoded together are those that are decoded one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scalelab import jsonl
from scalelab.errors import LabError

PIECES = (
    *('{"a": 1}', '{"a": 2, "b": [{}]}', '{"a": NaN, "b": Infinity}', '{"d": {"e": [1, 2]}, "d": 2}', "  "),
    *('{"a": 1}, {"b": 2}', '{"x": [{}', "{}]}", "null", "[1", "2]", '{"a": -Infinity}', '{"a": 1}, -1e999, {"b": 2}'),
)


def read(content: bytes) -> str:
    try:
        return repr(jsonl.objects_in(Path("log"), content))
    except LabError as error:
        return str(error)


def test_blocks_of_lines_are_read_as_their_lines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, seen = random.Random(0), set()
    for _ in range(2000):
        likely = [*PIECES[:4] * 6, *PIECES]
        content = "\n".join(rng.choice(likely) for _ in range(rng.randrange(12))).encode()
        monkeypatch.setattr(jsonl, "BLOCK", 4)
        together = read(content)
        monkeypatch.setattr(jsonl, "_block", lambda lines: None)
        assert together == read(content), content
        monkeypatch.undo()
        seen.add("not a JSON object" in together)
    assert seen == {True, False}
