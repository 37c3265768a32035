"""Sweeps: what runs, beside what, what is skipped or stopped, and that one run's failure is its own."""

from __future__ import annotations

import _thread
import json
import re
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from scalelab.cli import main
from scalelab.commands.run import chosen
from scalelab.errors import LabError
from scalelab.experiment import load, recipe_digest, settings_in
from scalelab.sweep.grid import grid
from scalelab.sweep.losers import cannot_win
from scalelab.sweep.members import Member, members
from scalelab.sweep.sweep import Sweep, SweepOptions
from tests.helpers import crash_world

RECORDED = Path(__file__).parents[2] / "docs" / "quickstart"


def child_script(folder: Path) -> Path:
    script = folder / "child.py"
    script.write_text(
        """import json, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
folder, code, seconds, hours = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
times = pathlib.Path(__file__).with_name("times")
def note(change):
    with open(times, "a") as file:
        file.write(f"{time.monotonic()} {change}\\n")
def status(word):
    (folder / "manifest.json").write_text(json.dumps({"status": word}))
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.gin").write_text(pathlib.Path(sys.argv[5]).read_text())
status("running")
note(1)
line = {"step": 0, "task": "math", "pass_rate": 0.5, "compute": hours, "compute_unit": "core-hours"}
line["compute_by_role"] = {"generator": hours / 2, "trainer": hours / 2, "evaluation": 0.0}
try:
    (folder / "evals.jsonl").write_text(json.dumps(line) + "\\n")
    time.sleep(seconds)
    status("finished" if code == 0 else "failed")
except KeyboardInterrupt:
    status("interrupted")
    code = 130
note(-1)
print("scalelab: it broke; mend it", file=sys.stderr)
sys.exit(code)
"""
    )
    return script


def sweep(
    folder: Path,
    family: list[Member],
    options: dict[str, Any],
    children: dict[str, tuple[int, float, float]] | None = None,
) -> Sweep:
    """A sweep whose runs are small scripts: name → exit code, seconds, device-hours."""
    script = child_script(folder)

    def command(member: Member) -> list[str]:
        config = folder / "config"
        config.write_text(member.resolved.config_gin())
        code, seconds, hours = (children or {}).get(member.name, (0, 0.0, 1.0))
        return [sys.executable, str(script), str(member.path), *map(str, (code, seconds, hours)), str(config)]

    return Sweep(family, SweepOptions(poll_seconds=0.02, **options), lambda line: None, command)


def family(folder: Path, *names: str, seeds: list[int] | None = None) -> list[Member]:
    experiments = {f"leave_one_out_miniature/{name}": load(f"leave_one_out_miniature/{name}") for name in names}
    return members(
        "leave_one_out_miniature", {name: e[name] for name, e in experiments.items()}, (), seeds, folder / "family"
    )


def most_at_once(folder: Path) -> int:
    now = most = 0
    for line in sorted((folder / "times").read_text().splitlines()):
        now += int(line.split()[1])
        most = max(most, now)
    return most


def test_members_have_a_folder_for_every_seed_and_a_spec_that_runs_them_alone(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule", seeds=[0, 2])
    assert [(m.name, str(m.path.relative_to(tmp_path))) for m in runs] == [
        ("loss seed 0", "family/loss/seed_0"),
        ("schedule seed 0", "family/schedule/seed_0"),
        ("loss seed 2", "family/loss/seed_2"),
        ("schedule seed 2", "family/schedule/seed_2"),
    ]
    assert (runs[2].spec, runs[2].sets, runs[2].resolved.run.seed) == (
        "leave_one_out_miniature/loss",
        ("Run.seed=2",),
        2,
    )
    [member] = members("quickstart", load("quickstart"), ("Run.seed=5",), None, tmp_path)
    assert (member.spec, member.path) == ("quickstart", tmp_path / "seed_5")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(LabError, match="is a run itself"):
        members("quickstart", load("quickstart"), (), [0, 1], tmp_path)


def test_one_that_fails_stops_no_other_and_what_is_finished_is_skipped_the_next_time(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule", "curriculum")
    first = sweep(tmp_path, runs, {}, {"schedule": (3, 0.0, 1.0)}).run()
    assert [outcome.ending for outcome in first] == ["finished", "failed", "finished"]
    assert most_at_once(tmp_path) == 1
    again = sweep(tmp_path, runs, {}).run()
    assert [outcome.ending for outcome in again] == ["finished before", "finished", "finished before"]


@pytest.mark.slow
def test_runs_stand_side_by_side_as_far_as_the_devices_go(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule", "curriculum", "fp32_head")
    assert {run.devices for run in runs} == {2}
    slow = dict.fromkeys([run.name for run in runs], (0, 1.5, 1.0)) | {"schedule": (7, 0.0, 1.0)}
    outcomes = sweep(tmp_path, runs, {"devices": 5}, slow).run()
    assert [outcome.ending for outcome in outcomes] == ["finished", "failed", "finished", "finished"]
    assert outcomes[1].reason == "it broke; mend it"
    assert most_at_once(tmp_path) == 2
    with pytest.raises(LabError, match="needs 2 devices, the cluster has 1"):
        sweep(tmp_path, family(tmp_path / "other", "loss"), {"devices": 1}).run()


@pytest.mark.slow
def test_as_many_jobs_stand_side_by_side_as_asked(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule", "curriculum")
    outcomes = sweep(tmp_path, runs, {"jobs": 2}, dict.fromkeys([run.name for run in runs], (0, 1.5, 1.0))).run()
    assert [outcome.ending for outcome in outcomes] == ["finished"] * 3
    assert most_at_once(tmp_path) == 2
    assert runs[0].path.with_name("seed_0.log").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstart", "--jobs", "2"], "--jobs is for families and several seeds; quickstart is one run"),
        (["schedules_miniature", "--jobs", "0"], "--jobs 0: at least one run has to go on"),
        (["recipes_miniature", "--jobs", "2"], "--jobs 2: .* runs on the wall clock, .*: add --virtual, or share"),
    ],
)
def test_jobs_that_would_disturb_each_other_are_refused(words: list[str], message: str, capsys: Any) -> None:
    assert main(["run", *words]) == 1
    assert re.search(message, capsys.readouterr().err)


FAMILY = ["schedules_miniature", "--only", "synchronous"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*FAMILY, "--seeds", "0", "1", "0"], "--seeds 0 1 0: name each seed once"),
        *(([*FAMILY, "--hours", hours], f"--hours {hours}: give a number of device-hours") for hours in ("-1", "nan")),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(["run", *words, "--out", str(tmp_path / "family")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "family").exists()


def test_a_damaged_line_of_a_member_is_named(tmp_path: Path) -> None:
    [run] = family(tmp_path, "loss")
    run.path.mkdir(parents=True)
    (run.path / "evals.jsonl").write_text('{"garbage": \n{}\n')
    with pytest.raises(LabError, match=r"seed_0/evals.jsonl: a line is not JSON .*; `scalelab check .*` names it"):
        run.evaluations()


def test_the_budget_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule", "curriculum")
    children = {"loss": (0, 0.0, 4.0), "schedule": (0, 100.0, 7.0)}
    outcomes = sweep(tmp_path, runs, {"hours": 10.0}, children).run()
    assert [outcome.ending for outcome in outcomes] == ["finished", "stopped", "not started"]
    assert "10 device-hours" in outcomes[1].reason
    assert json.loads((runs[1].path / "manifest.json").read_text())["status"] == "interrupted"
    assert runs[1].state() == "unfinished"
    assert runs[1].command()[-2:] == [str(runs[1].path), "--resume"]
    assert runs[2].command()[-3:] == ["leave_one_out_miniature/curriculum", "--out", str(runs[2].path)]


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_in_order(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule")
    running = sweep(tmp_path, runs, {}, {"loss": (0, 100.0, 1.0)})

    def interrupt() -> None:
        deadline = time.monotonic() + 900
        while not (runs[0].path / "evals.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    assert [outcome.ending for outcome in running.run()] == ["interrupted", "not started"]
    assert json.loads((runs[0].path / "manifest.json").read_text())["status"] == "interrupted"


def test_a_folder_with_something_else_is_refused_before_anything_starts(tmp_path: Path) -> None:
    runs = family(tmp_path, "loss", "schedule")
    [other] = family(tmp_path, "curriculum")
    runs[1].path.mkdir(parents=True)
    (runs[1].path / "config.gin").write_text(other.resolved.config_gin())
    (runs[1].path / "manifest.json").write_text('{"status": "finished"}')
    with pytest.raises(LabError, match=r"another configuration .* --diff"):
        sweep(tmp_path, runs, {}).run()
    (runs[1].path / "config.gin").unlink()
    with pytest.raises(LabError, match="no run"):
        sweep(tmp_path, runs, {}).run()
    assert not runs[0].path.exists()


def test_a_run_from_before_a_setting_existed_is_gone_on_with_and_has_its_recipe(tmp_path: Path) -> None:
    [run] = family(tmp_path, "loss")
    run.path.mkdir(parents=True)
    text = run.resolved.config_gin()
    older = re.sub(r"(Budget\.hour_price|Cluster\.try_step) .*\n", "", text)
    assert older.count("\n") == text.count("\n") - 2
    (run.path / "config.gin").write_text(older)
    (run.path / "manifest.json").write_text('{"status": "interrupted"}')
    assert run.state() == "unfinished"
    cheap = re.sub(r"Budget\.hour_price .*\n", "Budget.hour_price = 2.5\n", text)
    assert cheap != text
    assert recipe_digest(settings_in(cheap, "cheap")) == recipe_digest(settings_in(text, "text"))
    (run.path / "config.gin").write_text(text + "Budget.gone = 1\n")
    with pytest.raises(LabError, match="another configuration"):
        run.state()


def test_a_member_whose_manifest_was_lost_is_known_by_its_journal(tmp_path: Path) -> None:
    resolved = crash_world.settings()
    crash_world.live(tmp_path / "seed_0", resolved)
    member = Member("family/one", "one", (), resolved, tmp_path / "seed_0")
    assert member.state() == "finished"
    (tmp_path / "seed_0" / "manifest.json").unlink()
    assert member.state() == "finished"


def test_a_journal_that_is_a_folder_does_not_end_a_sweep(tmp_path: Path) -> None:
    resolved = crash_world.settings()
    crash_world.live(tmp_path / "seed_0", resolved)
    (tmp_path / "seed_0" / "journal.jsonl").unlink()
    (tmp_path / "seed_0" / "journal.jsonl").mkdir()
    assert Member("family/one", "one", (), resolved, tmp_path / "seed_0").state() == "finished"


def recorded(folder: Path, source: Path, share: float = 1.0, gain: float = 1.0) -> Path:
    """A recorded run, its first part only, with what it gained since step 0 scaled."""
    folder.mkdir(parents=True)
    lines = [json.loads(line) for line in (source / "evals.jsonl").read_text().splitlines()]
    start = {line["task"]: line["pass_rate"] for line in reversed(lines)}
    keep = lines[: 2 * round(share * len(lines) / 2)]
    for line in keep:
        line["pass_rate"] = start[line["task"]] + gain * (line["pass_rate"] - start[line["task"]])
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in keep))
    return folder


@pytest.mark.slow
def test_only_what_cannot_win_is_stopped_on_recorded_curves(tmp_path: Path) -> None:
    leader = RECORDED / "seed0"
    equal = recorded(tmp_path / "equal", RECORDED / "seed1", share=0.5)
    assert cannot_win(equal, [leader]) is None
    lame = recorded(tmp_path / "lame", RECORDED / "seed1", share=0.6, gain=0.5)
    reason = cannot_win(lame, [leader, tmp_path / "not_begun"])
    assert reason is not None
    assert "math" in reason
    assert "code" in reason
    early = recorded(tmp_path / "early", RECORDED / "seed1", share=0.2, gain=0.5)
    assert cannot_win(early, [leader]) is None
    flat = recorded(tmp_path / "flat", RECORDED / "seed1", share=0.6, gain=0.0)
    assert cannot_win(flat, [leader]) is None
    fallen = recorded(tmp_path / "fallen", RECORDED / "seed1", share=0.6, gain=-0.2)
    assert cannot_win(fallen, [leader]) is None, "a run that falls may rise again"
    assert cannot_win(leader, []) is None


RIVALS = """
import json, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
folder, rival, config, early, late = map(pathlib.Path, sys.argv[1:])
def status(word):
    (folder / "manifest.json").write_text(json.dumps({"status": word}))
def resumed(run):
    return (run / "manifest.json").exists() and "interrupted" in (run / "manifest.json").read_text()
again = resumed(folder)
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.gin").write_text(config.read_text())
(folder / "evals.jsonl").write_text(((late if again else early) / "evals.jsonl").read_text())
status("running")
deadline = time.monotonic() + 300
try:
    while not again and not resumed(rival) and time.monotonic() < deadline:
        time.sleep(0.05)
    (folder / "evals.jsonl").write_text((late / "evals.jsonl").read_text())
    status("finished")
except KeyboardInterrupt:
    status("interrupted")
    sys.exit(130)
"""
"""A run that waits until its rival is stopped; the files of evaluations are before and after that."""


@pytest.mark.slow
def test_a_loser_goes_on_once_the_leader_has_fallen(tmp_path: Path) -> None:
    runs = members("quickstart", load("quickstart"), (), None, tmp_path, grid(["PipelineRL.k=1,8"]))
    lame = recorded(tmp_path / "curves/lame", RECORDED / "seed1", share=0.6, gain=0.5)
    leader = recorded(tmp_path / "curves/leader", RECORDED / "seed0", share=0.6)
    fallen = recorded(tmp_path / "curves/fallen", RECORDED / "seed0", gain=0.01)
    (tmp_path / "rival.py").write_text(RIVALS)

    def command(run: Member) -> list[str]:
        own = runs.index(run)
        path = tmp_path / f"{own}.gin"
        path.write_text(run.resolved.config_gin())
        curves = [(leader, fallen), (lame, lame)][own]
        return [sys.executable, str(tmp_path / "rival.py"), *map(str, (run.path, runs[1 - own].path, path, *curves))]

    said: list[str] = []
    options = SweepOptions(stop_losers=True, jobs=2, poll_seconds=0.1)
    outcomes = Sweep(runs, options, said.append, command).run()
    assert [outcome.ending for outcome in outcomes] == ["finished", "finished"]
    told = [line for line in said if line.startswith(runs[1].name)]
    assert [word for line in told for word in ("cannot win", "may win after all", "finished") if word in line] == [
        *("cannot win", "may win after all", "finished")
    ]


def test_several_patterns_choose_together_in_the_family_s_order() -> None:
    assert list(chosen(load("recipes"), ["magi*", "*grpo"], "recipes")) == [
        "recipes/deepseek_grpo",
        "recipes/magistral",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["leave_one_out", "--only", "nothing"], "no member of leave_one_out matches"),
        (["leave_one_out", "--only", "loss", "--only", "nothing"], "matches --only nothing"),
        (["quickstart", "--hours", "3"], "for families"),
        (["recipes_miniature", "--set", "Recipe.promts_per_step=3"], "did you mean 'prompts_per_step'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=60) | st.recursive(st.none() | st.booleans() | st.text() | st.floats(), st.lists).map(json.dumps)
)
@example("[" * 100_000)
@example('{"status": ["finished"]}')
def test_a_manifest_that_is_none_is_refused_in_one_line(content: str | bytes) -> None:
    [member] = family(Path("nowhere"), "loss")
    with tempfile.TemporaryDirectory() as name:
        run = replace(member, path=Path(name))
        (run.path / "config.gin").write_text(member.resolved.config_gin())
        (run.path / "manifest.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            state: str = run.state()
        except LabError as error:
            state = str(error)
    assert state in ("unfinished", "finished") or (
        re.search(r"manifest.json is n|manifest.json: status is .* which no run writes", state) and state.isprintable()
    )


def test_settings_on_the_command_line_make_a_family_of_every_combination(tmp_path: Path) -> None:
    points = grid(["OptimizerConfig.lr=1e-4,3e-4", "OptimizerConfig.betas=(0.9, 0.95),(0.8, 0.9)"])
    runs = members("quickstart", load("quickstart"), ("Budget.steps=5",), [0, 1], tmp_path, points)
    assert len(runs) == len({run.path for run in runs}) == 8
    assert runs[0].path == tmp_path / "lr=1e-4,betas=_0.9_0.95_" / "seed_0"
    last = runs[-1]
    assert (last.resolved.run.trainer.optimizer.lr, last.resolved.run.trainer.optimizer.betas) == (3e-4, (0.8, 0.9))
    assert (last.resolved.run.seed, last.resolved.run.budget.steps) == (1, 5)
    assert last.name == "lr=3e-4,betas=_0.8_0.9_ seed 1"
    assert last.command()[-8:] == [
        *("--set", "Budget.steps=5", "--set", "OptimizerConfig.lr=3e-4"),
        *("--set", "OptimizerConfig.betas=(0.8, 0.9)", "--set", "Run.seed=1"),
    ]
    [member] = members("quickstart", load("quickstart"), (), None, None, grid(["Recipe.loss=DAPO"]))
    assert member.path == Path("runs/quickstart_sweep/loss=DAPO/seed_0")


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["OptimizerConfig.lr"], "write it as CLASS.FIELD=VALUE,VALUE"),
        (["OptimizerConfig.lr=1e-4,"], "write it as CLASS.FIELD=VALUE,VALUE"),
        (["lr=1e-4,1e-3"], "write it as CLASS.FIELD=VALUE,VALUE"),
        (["OptimizerConfig.lr=1e-4,1e-4"], "two runs called lr=1e-4"),
        (["A.b='x/y','x y'"], "two runs called b=_x_y_"),
    ],
)
def test_a_sweep_that_says_too_little_or_too_much_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(LabError, match=says):
        grid(texts)
