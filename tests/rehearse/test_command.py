"""`scalelab rehearse` prints what design.md says, refuses bad input in one line, and fails if a role would."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.settings import Layout
from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.rehearse.cluster import RehearsedNode, subject
from scalelab.rehearse.processes import ROOT, Interpreter, rehearse_all, tasks_of, whole_limit
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role, trainer_roles
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.run.config import Run
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
    tasks = tasks_of(setting, roles, {"trainer": interpreter})
    results = rehearse_all(tasks, 2, deadline, lambda *said: told.append(said))
    assert [result.role for result in results] == [role.name for role in roles]
    assert len(told) == 2
    return results


@pytest.mark.slow
def test_ranks_that_two_runs_have_alike_are_rehearsed_once_and_others_are_not() -> None:
    """More engines change no trainer rank; a longer sequence does."""
    layout = Layout(tensor=2)
    first = run_of(MODELS["llama"], layout, 2)
    more = replace(first, cluster=replace(first.cluster, generators=5))
    longer = replace(first, generator=replace(first.generator, max_model_len=2 * first.generator.max_model_len))
    roles = trainer_roles(layout, 2)[:1]
    others = [replace(role, stands_for=9) for role in roles]
    settings = [RehearsalSettings(run, device("h100")) for run in (first, more, longer)]
    tasks = [
        task
        for setting, mine in zip(settings, (roles, others, roles), strict=True)
        for task in tasks_of(setting, mine, {"trainer": Interpreter()})
    ]
    took: dict[int, float] = {}

    def tell(number: int, result: RoleResult, seconds: float) -> None:
        took[number] = seconds

    results = rehearse_all(tasks, 2, 280, tell)
    assert [result.problems for result in results] == [[], [], []]
    assert [bool(took[number]) for number in range(3)] == [True, False, True]
    assert results[1] == replace(results[0], stands_for=9)
    assert results[2].longest_row == 2 * results[0].longest_row


@given(st.lists(st.sampled_from(["cluster", "engine"]), min_size=1, max_size=9), st.integers(1, 9))
def test_every_role_has_its_time_whatever_was_rehearsed_before_it(kinds: list[str], jobs: int) -> None:
    """Nodes of Ray come one after the other, and as many others at a time as there are jobs."""
    setting = RehearsalSettings(resolve("quickstart").run, device("cpu"))
    tasks = tasks_of(setting, [Role(kind, kind, 0, 1) for kind in kinds], dict.fromkeys(kinds, Interpreter()))
    nodes = kinds.count("cluster")
    last = max(nodes, -(-(len(kinds) - nodes) // jobs))
    assert whole_limit(tasks, jobs, 10.0) >= 10.0 * (1 + last), "imports have the time of a role, too"


def test_a_node_is_the_same_only_where_an_actor_would_see_no_difference() -> None:
    """Actors that only start see their share of the node, an engine's devices and the graded tasks."""
    run = resolve("h100/scalerl_8b").run

    def node(of: Run) -> RehearsedNode:
        return subject(RehearsalSettings(of, device("h100")))

    assert node(run) == node(replace(run, cluster=replace(run.cluster, generators=32, trainers=32)))
    changes: list[Run] = [
        replace(run, cluster=replace(run.cluster, trainers=4)),
        replace(run, generator=replace(run.generator, tensor_parallel=4)),
        replace(run, cluster=replace(run.cluster, devices_per_node=4)),
        replace(run, tasks=resolve("quickstart").run.tasks, task_weights=resolve("quickstart").run.task_weights),
        replace(run, sft=resolve("sft/scalerl_8b").run.sft),
    ]
    for changed in changes:
        assert node(run) != node(changed)
    assert node(run) != subject(RehearsalSettings(run, device("gb200")))


def test_of_several_experiments_one_that_cannot_be_rehearsed_is_named_before_any_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rehearse", "quickstart", "scalerl_17bx16", "--hardware", "h100"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "scalerl_17bx16: " in err


def test_several_experiments_are_told_apart_in_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["h100/scalerl_8b", "quickstart"]
    assert main(["rehearse", *names, "--only", "verifier"]) == 0
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if " rehearsed for " in line] == [
        "h100/scalerl_8b rehearsed for 80 × h100",
        "quickstart rehearsed for 2 × cpu",
    ]
    for name in names:
        assert f"{name}: verifier: ok* (" in said.err or f"{name}: verifier: ok (" in said.err
    assert main(["rehearse", *names, "--only", "verifier", "--json"]) == 0
    json_said = json.loads(capsys.readouterr().out)
    assert json_said["ok"] is True
    assert [(one["experiment"], one["hardware"]) for one in json_said["experiments"]] == [
        ("h100/scalerl_8b", "h100"),
        ("quickstart", "cpu"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM])
def test_a_rehearsal_that_is_asked_to_stop_leaves_no_process_and_no_folder(ask: signal.Signals, tmp_path: Path) -> None:
    """Though a shell makes what it starts in the background ignore SIGINT."""
    command = [sys.executable, "-m", "scalelab", "rehearse", "h100/scalerl_8b", "--only", "trainer", "--only", "engine"]
    environ = os.environ | {"TMPDIR": str(tmp_path), "OF_TEST": str(tmp_path)}
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True, preexec_fn=ignored)
    try:
        ends = time.monotonic() + 100
        while not [*tmp_path.glob("rehearsal-*/said")]:
            assert time.monotonic() < ends, "the workers to start"
            time.sleep(0.1)
        process.send_signal(ask)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, said) == (130, "scalelab: interrupted\n")
    assert [*tmp_path.glob("rehearsal-*")] == []
    mark = f"OF_TEST={tmp_path}\0".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            assert mark not in path.read_bytes()


def test_a_process_that_dies_is_a_problem_of_its_role() -> None:
    for result in rehearsed(Interpreter("/bin/false"), 30):
        assert result.problems == ["its process ended with code 1 and said last: nothing"]
        assert not result.ok


def test_a_role_whose_process_breaks_spares_the_others() -> None:
    """Roles of a kind that cannot be rehearsed: their module has no function for it, which shows after the fork."""
    roles = [replace(role, kind="ranks") for role in trainer_roles(Layout(tensor=2), 2)]
    setting = RehearsalSettings(run_of(MODELS["llama"], Layout(tensor=2), 2), device("h100"))
    results = rehearse_all(tasks_of(setting, roles, {"ranks": Interpreter()}), 1, 50, lambda *said: None)
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
