"""`scalelab rehearse` prints what design.md says, refuses bad input in one line, and fails if a role would."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moe.settings import Layout
from scalelab.cli import main
from scalelab.hardware import device
from scalelab.rehearse.processes import ROOT, Interpreter, rehearse_all
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import trainer_roles
from scalelab.rehearse.setting import RehearsalSettings
from tests.helpers.rehearsals import MODELS, run_of


@pytest.mark.slow
def test_a_miniature_is_rehearsed_for_the_cpu_where_temporary_files_alone_can_be_written(tmp_path: Path) -> None:
    rest = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), "/tmp"]
    read_only = ["bwrap", *rest] if os.getuid() == 0 and shutil.which("bwrap") else []  # others may write little anyway
    command = [*read_only, sys.executable, "-m", "scalelab", "rehearse", "quickstart", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["experiment"], said["hardware"], said["ok"]) == ("quickstart", "cpu", True)
    trainer, engine, verifier, cluster = said["roles"]
    assert [phase["name"] for phase in verifier["phases"]] == ["start", "grade"]
    assert [phase["name"] for phase in cluster["phases"]] == ["start", "trainer", "engine", "grader"]
    assert (verifier["role"], verifier["ok"], verifier["stands_for"]) == ("verifier", True, 1)
    assert trainer["role"] == "trainer rank 0"
    assert engine["role"] == "engine"
    assert cluster["ok"]
    for role in (trainer, engine):
        assert role["ok"]
        assert role["problems"] == []
        assert role["peak_gib"] > 0
        assert role["plan_gib"] > 0
    assert trainer["flops"] > 0
    assert trainer["plan_flops"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scalerl_8b", "--hardware", "abacus"], "no hardware 'abacus' in the table: there are a100"),
        (["scalerl_17bx16", "--hardware", "h100"], "does not fit"),
        (["recipes"], "is a family; name one of its members: recipes/"),
        (["scalerl_8b", "--hardware", "cpu"], "does not fit"),
        (["scalerl_8b", "--imbalance", "0"], "--imbalance 0.0 must be a positive number"),
        (["scalerl_8b", "--imbalance", "nan"], "--imbalance nan must be a positive number"),
        (["scalerl_8b", "--deadline", "inf"], "--deadline inf must be a positive number"),
        (["scalerl_8b", "--jobs", "-1"], "--jobs -1 must be a positive number"),
        (["scalerl_8b", "--set", "Layout.tensor=3"], "Layout"),
        (["scalerl_8b", "--only", "tuner"], "no fine-tuning to rehearse: SFT.pretrained = 'models/llama"),
        (["quickstart", "--only", "tuner"], "no fine-tuning to rehearse: the model that RL starts from comes with the"),
        (["sft/scalerl_8b", "--set", "SFT.trainers=3"], "SFT.trainers = 3 with TrainerConfig.layout: 3 trainer ranks"),
        (["h100/scalerl_17bx16_least", "--set", "Budget.hours=50"], "an evaluation of 4,480 completions takes"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def rehearsed(interpreter: Interpreter, deadline: float) -> list[RoleResult]:
    layout = Layout(tensor=2)
    roles = trainer_roles(layout, 2)
    told = []
    setting = RehearsalSettings(run_of(MODELS["llama"], layout, 2), device("h100"))
    results = rehearse_all(setting, roles, {"trainer": interpreter}, 2, deadline, lambda *said: told.append(said))
    assert [result.role for result in results] == [role.name for role in roles]
    assert len(told) == 2
    return results


def test_a_process_that_dies_is_a_problem_of_its_role() -> None:
    for result in rehearsed(Interpreter("/bin/false"), 30):
        assert result.problems == ["its process ended with code 1 and said last: nothing"]
        assert not result.ok


def test_a_role_whose_process_breaks_spares_the_others() -> None:
    """Roles of a kind that cannot be rehearsed: their module has no function for it, which shows after the fork."""
    roles = [replace(role, kind="ranks") for role in trainer_roles(Layout(tensor=2), 2)]
    setting = RehearsalSettings(run_of(MODELS["llama"], Layout(tensor=2), 2), device("h100"))
    results = rehearse_all(setting, roles, {"ranks": Interpreter()}, 1, 50, lambda *said: None)
    assert [result.role for result in results] == [role.name for role in roles]
    for result in results:
        [problem] = result.problems
        assert problem.startswith("its process ended with code 1 and said last: AttributeError")


def test_what_a_killed_role_left_is_ended_though_its_worker_ends_in_order(tmp_path: Path) -> None:
    """Among them a process that calls itself something else, as Ray's do."""
    worker, pid = tmp_path / "worker", tmp_path / "pid"
    left = (
        f"from ray._raylet import *; setproctitle('else'); open('{pid}', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    worker.write_text(
        f'#!/bin/sh\nsetsid {sys.executable} -c "import os, time; {left}" > {tmp_path}/said 2>&1 &\n'
        f"while ! [ -s {pid} ]; do sleep 0.1; done\n"
    )
    worker.chmod(0o755)
    rehearsed(Interpreter(str(worker)), 60)
    try:
        state = Path(f"/proc/{pid.read_text()}/stat").read_text().split()[2]
    except OSError:
        state = "gone"
    assert state in ("gone", "Z", "X")  # nobody may have asked yet how it ended


def test_a_process_that_hangs_is_given_up(tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    hang.write_text("#!/bin/sh\nexec sleep 30\n")
    hang.chmod(0o755)
    for result in rehearsed(Interpreter(str(hang)), 0.5):
        assert result.problems == ["took more than 0.5 s: raise --deadline, or look for what hangs"]
        assert result.verdict == "not done", "nobody knows if it breaks"
        assert not result.ok


def test_a_role_that_takes_too_long_is_not_said_to_break(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "quickstart", "--deadline", "0.01"]) == 1
    said = capsys.readouterr().out
    assert "not done: trainer rank 0" in said
    assert "breaks" not in said


def test_a_role_of_which_something_was_left_out_is_not_plainly_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "h100/scalerl_8b", "--only", "verifier"]) == 0
    said = capsys.readouterr()
    [row] = [line.split() for line in said.out.splitlines() if line.startswith("verifier ")]
    assert row[2] == "ok*"
    assert "verifier: ok* (" in said.err
    *_, title, left = said.out.splitlines()
    assert (title, left.split(":")[0]) == ("* not rehearsed, so no verdict covers it", "  verifier")
    assert RoleResult("verifier", "verifier").verdict == "ok"


def test_a_result_comes_back_from_json_as_it_went() -> None:
    result = RoleResult("trainer rank 0", "trainer", 2, memory_gib={"weights": 1.5}, problems=["load: lost"])
    read = RoleResult.from_json(json.loads(json.dumps(result.to_json())))
    assert read == result
    assert replace(read, problems=[]).ok
