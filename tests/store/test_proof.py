"""A run's journal proves its files: every damage is found and named, and nothing that a run does is called wrong."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.jsonl import plain
from scalelab.store.audit import audit
from scalelab.store.chain import JOURNAL, ChainFile, read_chain
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError
from scalelab.store.lines import read_lines
from tests.helpers.crash_world import live, settings

LAST, CHECKPOINT = "step_000004", "checkpoints/step_000004"
Harm = Callable[[Path], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with three evaluations and two checkpoints, that ended in order."""
    path = tmp_path_factory.mktemp("proof") / "run"
    live(path, settings(CheckpointPolicy__keep_last=2))
    (path / "checkpoints/tokenizer").mkdir()
    (path / "checkpoints/tokenizer/vocabulary").write_text("letters")
    folder = RunFolder(path)
    folder.describe(status="running")
    folder.vouch([path / "checkpoints/tokenizer/vocabulary"])
    folder.add_alarm({"step": 4, "message": "oh"})
    folder.add_fault({"time": 1.0, "event": "lost", "role": "generator", "name": "generator 0", "error": "it died"})
    folder.describe(status="interrupted")
    folder.close()
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def unlink_rollouts_of_training(run: Path) -> None:
    """Take the completions that were trained on."""
    for file in (run / "rollouts").glob("train_*"):
        file.unlink()


def edit(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Harm:
    """Change the lines of a file."""

    def harm(run: Path) -> None:
        lines = read_lines(run / name)
        changed = change(lines)
        lines = changed if isinstance(changed, list) else lines
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return harm


def each(change: Callable[[dict[str, Any]], Any], where: Callable[[dict[str, Any]], bool] = lambda _: True) -> Any:
    """Change some lines one by one."""

    def changes(lines: list[dict[str, Any]]) -> None:
        for line in filter(where, lines):
            change(line)

    return changes


def manifest(change: Callable[[dict[str, Any]], Any]) -> Harm:
    def harm(run: Path) -> None:
        content = json.loads((run / "manifest.json").read_text())
        change(content)
        (run / "manifest.json").write_text(json.dumps(content, indent=2) + "\n")

    return harm


def rewrite(path: str, change: Callable[[bytes], bytes]) -> Harm:
    return lambda run: (run / path).write_bytes(change((run / path).read_bytes()))


def flip(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]


def swap(one: str, other: str) -> Harm:
    def harm(run: Path) -> None:
        (run / one).rename(run / "aside")
        (run / other).rename(run / one)
        (run / "aside").rename(run / other)

    return harm


def columns(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Harm:
    """Change the rows of a Parquet file."""

    def harm(run: Path) -> None:
        rows = pyarrow.parquet.read_table(run / name).to_pylist()
        change(rows)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), run / name)

    return harm


def move_on(name: str) -> Callable[[list[dict[str, Any]]], None]:
    """Give every row another row's value of a column."""

    def change(rows: list[dict[str, Any]]) -> None:
        values = [row[name] for row in rows]
        for row, value in zip(rows, [*values[1:], values[0]], strict=True):
            row[name] = value

    return change


def both(*harms: Harm) -> Harm:
    return lambda run: [harm(run) for harm in harms]


def at(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line["step"] == step


EVALUATION = "rollouts/step_000002.parquet"
DAMAGES: dict[str, tuple[Harm, str]] = {
    "compute of an evaluation ×10": (
        edit("evals.jsonl", each(lambda line: line.update(compute=10 * line["compute"] + 1), at(2))),
        "evals.jsonl: line 3 (step 2) was changed; compute is",
    ),
    "compute of all evaluations": (edit("evals.jsonl", each(lambda line: line.update(compute=1.0))), "compute is 1.0"),
    "no compute in evaluations": (edit("evals.jsonl", each(lambda line: line.pop("compute"))), "compute is None"),
    "standard error": (edit("evals.jsonl", each(lambda line: line.update(stderr=7.0))), "stderr is 7.0"),
    "prompts and samples": (edit("evals.jsonl", each(lambda line: line.update(n_prompts=9, k=7))), "n_prompts is 9"),
    "lengths": (edit("evals.jsonl", each(lambda line: line.update(mean_length=-5))), "mean_length is -5"),
    "version": (edit("evals.jsonl", each(lambda line: line.update(version=3))), "version is 3"),
    "evaluation 0 and its completions": (
        both(
            edit("evals.jsonl", lambda lines: [line for line in lines if line["step"]]),
            lambda run: (run / "rollouts/step_000000.parquet").unlink(),
        ),
        "lines of the journal are missing, the first after line 0 (step 0)",
    ),
    "an evaluation and its completions": (
        both(
            edit("evals.jsonl", lambda lines: [line for line in lines if line["step"] != 2]),
            lambda run: (run / EVALUATION).unlink(),
        ),
        f"{EVALUATION} is missing",
    ),
    "lines of an evaluation": (
        edit("evals.jsonl", lambda lines: [line for line in lines if line["step"] != 2]),
        "lines of the journal are missing",
    ),
    "all evaluations": (
        both(edit("evals.jsonl", lambda _: []), lambda run: shutil.rmtree(run / "rollouts")),
        "evals.jsonl: ",
    ),
    "order of evaluations": (edit("evals.jsonl", lambda lines: lines[::-1]), "in another order"),
    "an unknown task": (
        edit("evals.jsonl", lambda lines: [*lines, {**lines[0], "task": "zzz"}]),
        "is in no line of the journal",
    ),
    "the last step": (edit("metrics.jsonl", lambda lines: lines[:-1]), "missing, the first after line 3 (step 4)"),
    "groups of a step after the checkpoint": (
        edit("metrics.jsonl", each(lambda line: line.update(groups=[]), at(3))),
        "line 3 (step 3) was changed; groups is []",
    ),
    "groups of a step before a checkpoint": (
        edit("metrics.jsonl", each(lambda line: line.update(groups=[]), at(1))),
        "line 1 (step 1) was changed; groups is []",
    ),
    "groups of two steps exchanged": (
        edit("metrics.jsonl", lambda lines: lines[2].update(groups=lines[1]["groups"])),
        "groups is",
    ),
    "no compute in steps": (edit("metrics.jsonl", each(lambda line: line.pop("compute"))), "compute is None"),
    "compute doubled": (
        edit("metrics.jsonl", each(lambda line: line.update(compute=2 * line["compute"] + 1), at(3))),
        "line 3 (step 3) was changed; compute is",
    ),
    "roles": (edit("metrics.jsonl", each(lambda line: line.update(compute_by_role={}))), "compute_by_role is {}"),
    "loss": (edit("metrics.jsonl", each(lambda line: line.update(loss=1e300))), "loss is 1e+300"),
    "versions of steps": (edit("metrics.jsonl", each(lambda line: line.update(version=7))), "version is 7"),
    "no times": (edit("metrics.jsonl", each(lambda line: line.pop("time"))), "time is None"),
    "the newest checkpoint": (lambda run: shutil.rmtree(run / CHECKPOINT), "checkpoint of step 4 is missing"),
    "an older checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints/step_000002"),
        "checkpoint of step 2 is missing",
    ),
    "manifest of a checkpoint": (
        lambda run: (run / CHECKPOINT / "checkpoint.json").unlink(),
        "checkpoint of step 4 is missing",
    ),
    "weights": (rewrite(f"{CHECKPOINT}/weights", flip), "weights has changed"),
    "checkpoints exchanged": (
        swap("checkpoints/step_000002", CHECKPOINT),
        "step_000004 is not the checkpoint that was taken at step 4",
    ),
    "faults": (rewrite("faults.jsonl", lambda _: b"\x00\xff garbage\n{\n"), "faults.jsonl: "),
    "alarms": (rewrite("alarms.jsonl", lambda _: b"[1,2]\n{\n"), "alarms.jsonl: "),
    "no alarms": (lambda run: (run / "alarms.jsonl").unlink(), "alarms.jsonl: 3 lines of the journal are missing"),
    "tokenizer": (rewrite("checkpoints/tokenizer/vocabulary", lambda _: b"letterz"), "vocabulary was changed"),
    "completions of training cut off": (
        rewrite("rollouts/train_000003.parquet", lambda content: content[:100]),
        "train_000003.parquet has 100 of",
    ),
    "completions of training gone": (
        unlink_rollouts_of_training,
        "train_000001.parquet is missing",
    ),
    "a byte of completions": (rewrite(EVALUATION, flip), f"{EVALUATION} was changed"),
    "completions exchanged": (swap(EVALUATION, "rollouts/step_000004.parquet"), f"{EVALUATION} "),
    "texts of other prompts": (columns(EVALUATION, move_on("completion")), f"{EVALUATION} "),
    "other prompts": (columns(EVALUATION, move_on("prompt_id")), f"{EVALUATION} "),
    "versions of completions": (
        columns(EVALUATION, lambda rows: [row.update(versions=[3]) for row in rows]),
        f"{EVALUATION} ",
    ),
    "an ending that was none": (
        manifest(lambda content: content.update(status="finished")),
        "manifest.json was changed: status is finished, was interrupted",
    ),
    "a number made a text": (
        edit("metrics.jsonl", each(lambda line: line.update(step=str(line["step"])), at(2))),
        "step is '2', was 2",
    ),
    "held-out prompts": (manifest(lambda content: content.pop("held_out")), "held_out is None"),
    "another configuration": (
        both(
            manifest(lambda content: content.pop("config_sha256")),
            rewrite("config.gin", lambda content: content.replace(b"Run.seed = 0", b"Run.seed = 1")),
        ),
        "config.gin was changed",
    ),
    "a byte of the configuration": (rewrite("config.gin", lambda content: content + b"\n"), "config.gin has"),
    "a step twice": (edit("metrics.jsonl", lambda lines: lines.insert(2, lines[1])), "line 3 (step 2) is there twice"),
    "NUL bytes": (
        rewrite("metrics.jsonl", lambda content: content[:2000] + bytes(200) + content[2200:]),
        "was changed",
    ),
    "no journal": (lambda run: (run / JOURNAL).unlink(), "journal.jsonl is missing"),
}


def test_the_whole_run_passes(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_found_and_named(run: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    harm, told = DAMAGES[damage]
    harm(run)
    assert main(["check", str(run)]) == 1
    assert told in capsys.readouterr().out


HARMLESS: dict[str, Harm] = {
    "torn last line": rewrite("metrics.jsonl", lambda content: content + b'{"step": 5, "ver'),
    "torn journal": rewrite(JOURNAL, lambda content: content + b'{"hash": "'),
    "line ends of Windows": rewrite("metrics.jsonl", lambda content: content.replace(b"\n", b"\r\n")),
    "passed on without weights": lambda run: shutil.rmtree(run / "checkpoints"),
    "passed on without completions": lambda run: shutil.rmtree(run / "rollouts"),
    "ended between a line and the journal": rewrite("metrics.jsonl", lambda content: content + b'{"step": 5}\n'),
    "events removed": lambda run: shutil.rmtree(run / "tensorboard"),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_no_damage_is_noted_at_most(run: Path, what: str) -> None:
    HARMLESS[what](run)
    found = audit(run)
    assert found.problems == []
    assert found.notes != [] or what == "line ends of Windows"


def covered(run: Path) -> list[Path]:
    """The files that the journal answers for."""
    left_out = ("tensorboard", "status.json")
    files = [path for path in run.rglob("*") if path.is_file() and not set(path.relative_to(run).parts) & {*left_out}]
    return sorted(path for path in files if path.stat().st_size)


KINDS = ("flip", "cut", "drop", "insert", "delete", "zero", "line twice", "line lost", "lines exchanged")


def random_damage(run: Path, draw: random.Random) -> str:
    """Damage one file in a drawn way; says how."""
    files = covered(run)
    file = draw.choice(files)
    content = file.read_bytes()
    lines, place = content.split(b"\n"), draw.randrange(len(content))
    kind = draw.choice(
        ("flip", "cut", "drop", "insert", "delete", "zero", "line twice", "line lost", "lines exchanged")
    )
    if kind == "flip":
        content = content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    elif kind == "cut":
        content = content[:place]
    elif kind == "drop":
        content = content[:place] + content[place + draw.randint(1, 9) :]
    elif kind == "insert":
        content = content[:place] + draw.choice((b"0", b"x", b"{}", b"\xff")) + content[place:]
    elif kind == "zero":
        content = content[:place] + bytes(draw.randint(1, 64)) + content[place + 1 :]
    elif kind.startswith("line") and file.suffix == ".jsonl":
        one, other = draw.randrange(len(lines) - 1), draw.randrange(len(lines) - 1)
        if kind == "line twice":
            lines.insert(other, lines[one])
        elif kind == "line lost":
            del lines[one]
        else:
            lines[one], lines[other] = lines[other], lines[one]
        content = b"\n".join(lines)
    else:
        file.unlink()
        return f"{file.name} deleted"
    if content == file.read_bytes():
        return ""
    file.write_bytes(content)
    return f"{file.name}: {kind} at {place}"


SHARES = 4


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(1, SHARES))])
def test_a_thousand_random_damages_are_found(whole: Path, tmp_path: Path, share: int) -> None:
    draw, missed, made = random.Random(41 + share), [], 0
    run = tmp_path / "run"
    while made < 1000 // SHARES:
        shutil.copytree(whole, run, dirs_exist_ok=True)
        how = random_damage(run, draw)
        made += bool(how)
        code = main(["check", str(run)])
        if how and code == 0:
            missed.append(how)
        shutil.rmtree(run)
    assert missed == []


def test_an_undamaged_journal_cannot_be_cut_behind_a_checkpoint(run: Path) -> None:
    content = (run / JOURNAL).read_bytes()
    lines = content.splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] != "step" or json.loads(line)["records"][0]["step"] < 3]
    (run / JOURNAL).write_bytes(b"".join(kept))
    assert any("before it are missing" in problem for problem in audit(run).problems)


def slow_plain(value: Any) -> Any:
    """A value as JSON has it, by way of text."""
    text = json.dumps(value, default=lambda array: array.tolist())
    return json.loads(text, parse_constant=lambda _: None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.floats(width=32).map(np.float64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_plain_values_are_those_that_json_gives_back(value: Any) -> None:
    assert plain(value) == slow_plain(value)


@pytest.mark.parametrize(("epoch", "may"), [(1, False), (2, True), (3, True)])
def test_a_journal_is_not_gone_on_with_by_an_epoch_before_its_own(tmp_path: Path, epoch: int, may: bool) -> None:
    path = tmp_path / JOURNAL
    first = ChainFile(path, 2)
    first.append("facts", facts={})
    first.close()
    with nullcontext() if may else pytest.raises(FencedError, match=f"has gone on with {re.escape(str(tmp_path))} "):
        ChainFile(path, epoch).close()


def test_lines_of_the_journal_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    first = ChainFile(path, 1)
    for number in range(3):
        first.append("facts", facts={"n": number, "odd": float("nan")})
    first.close()
    second = ChainFile(path, 2)
    second.append("facts", facts={})
    first_again = path.read_bytes()
    chain = read_chain(first_again)
    assert chain.problems == []
    assert [(entry.number, entry.epoch) for entry in chain.entries] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert chain.entries[0].body["facts"] == {"n": 0, "odd": None}
    lines = first_again.splitlines(keepends=True)
    for order, told in (((0, 2, 3), "2 to 2 before it are missing"), ((0, 1, 1, 2, 3), "doubled or moved")):
        broken = read_chain(b"".join(lines[number] for number in order))
        assert told in broken.problems[0]
