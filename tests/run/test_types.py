"""Types are carried through the loop: an argument in another's place is an error before anything runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LOOP = "scalelab/run/loop.py"
SWAPS = (
    ("partial(self.graders.grade, prompt)", "partial(self.graders.grade, requests)"),
    ("self.work.rollouts(prompt, completions, verdicts)", "self.work.rollouts(verdicts, prompt, completions)"),
    (
        "self.work.step(self.books.take(names), self.books.version)",
        "self.work.step(self.books.version, self.books.take(names))",
    ),
    ("self.trainer.step(step)", "self.trainer.step(names)"),
    ("self.engines.update(version, await published)", "self.engines.update(await published, version)"),
    ("self.journal.stepped(names, step, result, seconds)", "self.journal.stepped(names, result, step, seconds)"),
)


@pytest.mark.nightly
def test_mypy_notices_every_swapped_argument_of_the_loop(tmp_path: Path) -> None:
    text, swapped = (ROOT / LOOP).read_text(), tmp_path / "loop.py"
    for before, after in SWAPS:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    swapped.write_text(text)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")]
    command += ["--shadow-file", LOOP, str(swapped), "-m", "scalelab.run.loop"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    noticed = {int(line) for line in re.findall(rf"^{LOOP}:(\d+): error: ", done.stdout, re.MULTILINE)}
    wrong = {text[: text.index(after)].count("\n") + 1 for _, after in SWAPS}
    assert noticed == wrong, done.stdout


@pytest.mark.parametrize("name", ["ports", "work", "books", "loop", "evaluations", "world"])
def test_no_message_of_the_loop_is_of_any_type(name: str) -> None:
    assert re.findall(r"\bAny\b", (ROOT / "scalelab" / "run" / f"{name}.py").read_text()) == []
