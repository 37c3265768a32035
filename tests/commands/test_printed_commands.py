"""A command that the lab prints does what it says when it is pasted into a shell, whatever the folder is called."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.store.folder import RunFolder
from scalelab.terminal import shell_path

NAME = "-b é 'run"
"""A folder's name that a shell takes apart, and a command for an option."""


@given(st.text(min_size=1))
def test_a_path_is_one_word_of_a_shell_and_no_option(text: str) -> None:
    [word] = shlex.split(shell_path(text))
    assert word == (f"./{text}" if text[0] == "-" else text)


def test_a_path_without_special_characters_is_printed_as_it_is() -> None:
    assert shell_path(Path("/tmp/runs/scalerl_8b/seed-0@100")) == "/tmp/runs/scalerl_8b/seed-0@100"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was killed, by its relative name."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path(NAME))
    folder.begin(resolve("quickstart", ["Budget.steps=7"]).config_gin(), status="running")
    folder.status.write("RL")
    folder.close()
    status = json.loads(Path(NAME, "status.json").read_text())
    Path(NAME, "status.json").write_text(json.dumps(status | {"started": "1"}))
    return Path(NAME)


@pytest.mark.parametrize(
    ("command", "ending", "printed"),
    [
        (["status", f"./{NAME}"], "running", [["run", f"./{NAME}", "--resume"]]),
        (["status", f"./{NAME}"], "interrupted", [["run", f"./{NAME}", "--resume"]]),
        (["run", "quickstart", f"--out={NAME}", "--resume"], "running", [["run", f"./{NAME}", "--resume"]]),
        (["run", f"./{NAME}"], "running", [["run", f"./{NAME}", "--resume"], ["report", f"./{NAME}"]]),
        (
            ["run", f"./{NAME}", "--resume"],
            "finished",
            [["report", f"./{NAME}"], ["run", "--from", f"./{NAME}", "--set", "Budget.steps=…"]],
        ),
        (["run", f"./{NAME}", "--resume"], "edited", [["run", f"./{NAME}/config.gin"]]),
    ],
)
def test_printed_commands_name_the_folder(
    run: Path, command: list[str], ending: str, printed: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    if ending in ("finished", "interrupted"):
        folder = RunFolder(run)
        folder.describe(status=ending)
        folder.close()
    if ending == "edited":
        (run / "config.gin").write_text((run / "config.gin").read_text() + "\n")
    main(command)
    told = "".join(capsys.readouterr())
    assert [shlex.split(one) for one in re.findall("`scalelab ([^`]+)`", told)] == printed
