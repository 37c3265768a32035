"""`scalelab check` passes a whole run, names every kind of damage, and never fails on what it reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.checkpoint.folder import MANIFEST, step_folder
from scalelab.cli import main
from scalelab.store import audit as audit_module
from scalelab.store.audit import Audit, _conservation, _lines, audit
from scalelab.store.chain import JOURNAL
from scalelab.store.folder import RunFolder
from scalelab.store.lines import read_lines
from scalelab.store.manifest import JOURNAL_KEY, VIEWS
from tests.helpers.small_runs import write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is whole."""
    return write_run(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def older(run: Path) -> Path:
    """A copy to be damaged, as versions before the journal left it: only its books can be compared."""
    (run / JOURNAL).unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({name: manifest[name] for name in manifest if name != JOURNAL_KEY}))
    return run


def test_a_whole_run_passes_and_its_counts_are_told(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(whole), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == found["notes"] == []
    counts = {name: found[name] for name in ("steps", "groups", "evaluations", "checkpoints", "status")}
    assert counts == {"steps": 6, "groups": 18, "evaluations": 3, "checkpoints": 3, "status": "interrupted"}
    assert main(["check", str(whole), "--fast"]) == 0
    assert "the books balance" in capsys.readouterr().out


def test_a_checkpoint_that_goes_while_it_is_looked_at_is_no_problem(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on deletes its older checkpoints, their manifests first."""
    gone, read, checked = sorted((run / "checkpoints").glob("step_*")), audit_module._lines, audit_module.check

    def lines(*arguments: Any) -> Any:
        shutil.rmtree(gone[0], ignore_errors=True)
        return read(*arguments)

    def check(path: Path, **more: Any) -> Any:
        if path == gone[1]:
            (path / MANIFEST).unlink()
        return checked(path, **more)

    monkeypatch.setattr(audit_module, "_lines", lines)
    monkeypatch.setattr(audit_module, "check", check)
    found = audit(run)
    assert (found.problems, found.checkpoints) == ([], 2)


def edit(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Path], None]:
    """Change the lines of a file."""

    def harm(run: Path) -> None:
        lines = read_lines(run / name)
        change(lines)
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return harm


def flip(path: str) -> Callable[[Path], None]:
    """Change a byte in the middle of the first file that a pattern matches."""

    def harm(run: Path) -> None:
        file = sorted(run.glob(path))[0]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    return harm


def remove(path: str) -> Callable[[Path], None]:
    """Delete the first file that a pattern matches."""
    return lambda run: sorted(run.glob(path))[0].unlink()


DAMAGES = {
    "a step twice": (edit("metrics.jsonl", lambda lines: lines.insert(3, lines[2])), "line 4, is of step 3"),
    "a step lost": (edit("metrics.jsonl", lambda lines: lines.pop(2)), "line 3, is of step 4"),
    "a group twice": (
        edit("metrics.jsonl", lambda lines: lines[4]["groups"].append("group1")),
        "group1 was trained on in step 1 and again in step 5",
    ),
    "a group lost": (
        edit("metrics.jsonl", lambda lines: lines[1]["groups"].pop()),
        "step_000002: of 8 groups drawn, 1 were neither",
    ),
    "a group nobody drew": (
        edit("metrics.jsonl", lambda lines: lines[0]["groups"].append("group99")),
        "1 groups were never drawn, such as group99",
    ),
    "compute taken back": (
        edit("metrics.jsonl", lambda lines: lines[3].update(compute=0.1)),
        "falls from 0.375 to 0.1",
    ),
    "half an evaluation": (edit("evals.jsonl", lambda lines: lines.pop(3)), "evaluation 3 lacks code"),
    "an evaluation twice": (
        edit("evals.jsonl", lambda lines: lines.append(lines[0])),
        "0 has 2 lines of math",
    ),
    "an evaluation of no step": (
        edit("evals.jsonl", lambda lines: lines[0].update(step=9)),
        "9 is of a step",
    ),
    "another pass rate": (
        edit("evals.jsonl", lambda lines: lines[2].update(pass_rate=0.5)),
        "completions give 0.75",
    ),
    "completions lost": (remove("rollouts/step_000003.parquet"), "evaluation 3 has no completions"),
    "completions damaged": (
        lambda run: (run / "rollouts/step_000003.parquet").write_bytes(b"PAR1"),
        "step_000003.parquet: not a Parquet file that can be read",
    ),
    "a checkpoint damaged": (flip("checkpoints/step_*/weights"), "weights has changed"),
    "a state damaged": (flip("checkpoints/step_*/state.json"), "state.json has changed"),
    "rollouts damaged": (flip("checkpoints/rollouts_*.npz"), "have to be generated again"),
    "another configuration": (lambda run: (run / "config.gin").write_text("Run.seed = 4\n"), "not what this run began"),
    "lines lost": (remove("metrics.jsonl"), "metrics.jsonl is missing"),
    "a broken line": (lambda run: (run / "evals.jsonl").write_bytes(b"{}\n[\n{}\n"), "line 2: not a JSON object"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_of_a_run_without_journal_is_named(
    older: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(older)]) == 0
    assert "there is no journal, as an earlier version began the run" in capsys.readouterr().out
    harm, told = DAMAGES[damage]
    harm(older)
    assert main(["check", str(older)]) == 1
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip("rollouts/step_000003.parquet"), "rollouts/step_000003.parquet was changed since it was written"),
        (remove("rollouts/step_000003.parquet"), "rollouts/step_000003.parquet is missing"),
        (edit("evals.jsonl", lambda lines: lines.pop()), "evals.jsonl: 1 lines of the journal are missing"),
        (lambda run: (run / "manifest.json").write_text("{}"), "manifest.json was changed: "),
        (lambda run: shutil.rmtree(run / "checkpoints/step_000006"), "the checkpoint of step 6 is missing"),
    ],
)
def test_a_run_without_journal_that_goes_on_has_one_that_vouches_for_what_was_there(
    older: Path, damage: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (older / name).read_bytes() for name in VIEWS}
    RunFolder(older)
    assert {name: (older / name).read_bytes() for name in VIEWS} == before
    assert main(["check", str(older), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["notes"]) == ([], [])
    damage(older)
    assert main(["check", str(older)]) == 1
    assert told in capsys.readouterr().out


def test_a_copy_of_the_curve_alone_is_not_called_whole_and_says_why(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = tmp_path / "curve"
    curve.mkdir()
    for name in ("manifest.json", "config.gin", "evals.jsonl"):
        shutil.copy(run / name, curve / name)
    found = audit(curve)
    assert found.problems == [
        "journal.jsonl and metrics.jsonl are missing: only the run's curve is here, and nothing to hold it against"
    ]
    assert found.evaluations == audit(run).evaluations
    assert main(["check", str(curve)]) == 1
    assert "0 checkpoints: 1 thing wrong" in capsys.readouterr().out


def test_completions_that_are_lost_are_one_wrong_thing(run: Path) -> None:
    remove("rollouts/step_000003.parquet")(run)
    assert audit(run).problems == ["rollouts/step_000003.parquet is missing"]


def test_what_a_crash_may_leave_is_no_problem(run: Path) -> None:
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 7, "ti')
    (run / "rollouts" / "step_000007.parquet.partial").write_bytes(b"half")
    (run / "checkpoints" / ".step_000008.writing").mkdir()
    shutil.rmtree(run / "tensorboard")
    found = audit(run)
    assert found.problems == []
    assert len(found.notes) == 2


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("content", "torn"), [(b"", False), (b"{}\n", False), (b'{"step": 1}\n{"st', True)])
def test_a_file_of_lines_is_torn_where_its_last_byte_ends_no_line(
    tmp_path: Path, name: str, content: bytes, torn: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    _lines(tmp_path, name, found := Audit(""))
    assert found.notes == ([f"{name} ends with a torn line, which --resume cuts off"] if torn else [])


def test_steps_that_were_undone_and_taken_again_balance(run: Path) -> None:
    for step in (5, 6):
        shutil.rmtree(step_folder(run / "checkpoints", step), ignore_errors=True)
    folder = RunFolder(run)
    assert folder.go_back(4, ["math", "code"]) == 2
    folder.close()
    found = audit(run)
    assert (found.problems, found.steps) == ([], 4)


def test_completions_that_the_run_was_not_to_keep_are_not_missed(older: Path) -> None:
    manifest = json.loads((older / "manifest.json").read_text())
    (older / "manifest.json").write_text(json.dumps({**manifest, "retention": {"keep_last": 1, "keep_every": None}}))
    for step in (0, 3):
        (older / "rollouts" / f"step_{step:06d}.parquet").unlink()
    assert audit(older).problems == []


def test_steps_without_a_gradient_make_no_checkpoint_wrong(older: Path) -> None:
    """The trainer counts its own steps; those whose groups were all filtered are the run's alone."""
    for path in (older / "checkpoints").glob("step_*/checkpoint.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0}))
    assert audit(older).problems == []


def test_a_clock_that_was_set_back_makes_no_compute_fall(older: Path) -> None:
    edit("metrics.jsonl", lambda lines: [line.update(time=line["time"] - 3600) for line in lines[3:]])(older)
    assert audit(older).problems == []


def test_an_evaluation_whose_verdicts_are_all_errors_agrees_with_its_completions(older: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = older / "rollouts/step_000003.parquet"
    rows = [{**row, "outcome": "error", "reward": 0.0} for row in pyarrow.parquet.read_table(file).to_pylist()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    told = {"outcomes": {"error": 4}, "pass_rate": None}
    edit("evals.jsonl", lambda lines: [line.update(told) for line in lines if line["step"] == 3])(older)
    assert audit(older).problems == []
    edit("evals.jsonl", lambda lines: [line.update(pass_rate=0.5) for line in lines if line["step"] == 3])(older)
    assert any("no completion could be graded" in problem for problem in audit(older).problems)


def test_a_configuration_that_was_changed_is_told_once_however_many_checkpoints_are_of_it(run: Path) -> None:
    (run / "config.gin").write_text("Run.seed = 4\n")
    assert len(list((run / "checkpoints").glob("step_*"))) > 1
    assert len(set(audit(run).problems)) == len(audit(run).problems) == 2, "its size, and what it says"


@pytest.mark.parametrize(
    ("dropped", "told"),
    [
        (0, "of 20 groups drawn, 1 were neither trained on, nor wait, nor were dropped"),
        (1, None),
        (4, "20 groups were drawn, and 23 were trained on, wait or were dropped"),
    ],
)
def test_no_number_of_groups_is_negative(dropped: int, told: str | None) -> None:
    lines = [{"step": step, "groups": [f"group{3 * step - n}" for n in (1, 2, 3)]} for step in range(1, 7)]
    state = {"schedule": {"trainer_version": 6}, "drawn": 20, "groups": {"group18": {}}, "dropped": {"all": dropped}}
    found = list(_conservation("step_000006", state, lines))
    assert found == ([] if told is None else [f"step_000006: {told}"])


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nothing")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_whatever_the_files_hold_the_audit_answers(whole: Path, data: st.DataObject) -> None:
    run = whole.parent / "fuzzed"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    file = run / data.draw(st.sampled_from(files))
    content = file.read_bytes()
    kind = data.draw(st.sampled_from(("cut", "change", "replace", "type")))
    if kind == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    elif kind == "change" and content:
        at = data.draw(st.integers(0, len(content) - 1))
        content = content[:at] + data.draw(st.binary(min_size=1, max_size=3)) + content[at + 1 :]
    elif kind == "replace":
        content = data.draw(
            st.sampled_from((b"", b"[]", b"{}", b"null\n", b"\xff\n", b"[" * 50_000, b'{"step": "x"}\n'))
        )
    else:
        odd = data.draw(st.sampled_from(("null", '"x"', "-1", "[3]", "1e400", "{}", "true")))
        content = content.replace(b": 1", f": {odd}".encode(), 1)
    file.write_bytes(content)
    assert main(["check", str(run)]) in (0, 1)
