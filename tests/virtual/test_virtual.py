"""A run in the virtual world repeats to the last bit: alone or in a sweep, in one go or broken off and resumed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from moe.checkpoint.folder import read_state
from scalelab.cli import main
from scalelab.curves import read_sources
from scalelab.experiment import resolve
from scalelab.session.facts import facts
from scalelab.store.audit import audit
from scalelab.store.folder import RunFolder
from scalelab.store.lines import read_lines
from scalelab.store.recovery import DUE
from scalelab.virtual.cluster import DERIVED, clock_facts
from tests.helpers.virtual_runs import command, environment, in_turn, run, run_all

pytestmark = pytest.mark.slow

RATES = (
    "Virtual.rates=@Rates()",
    "Rates.step_seconds=1.0",
    "Rates.sequence_seconds=0",
    "Rates.train_token_seconds=1.0",
)
BROKEN_OFF = ("--set", "Budget.steps=10", "--set", "Run.checkpoint_every=4")
"""A signal is heeded within three steps of this small model: those of a run that is stopped lie between checkpoints."""
BURSTS = "import time\nwhile True: sum(range(3_000_000)), time.sleep(0.1)"
"""Load that comes and goes, so that a run's parts take turns in other ways."""
REPEATED = ("evals.jsonl", "metrics.jsonl", "alarms.jsonl")


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (["Virtual.memory_gib=0.001"], r"KV cache takes 0\.0\d+ GiB of Virtual.memory_gib = 0.001: lower"),
        (["GeneratorConfig.kv_cache_gib=0.0001"], "a group has 8 completions, and all engines together take 2 at a"),
        ([*RATES, "Rates.cores=2"], "the parts of Run.virtual wait for no core: leave it out"),
    ],
)
def test_simulated_clusters_that_cannot_be_leave_one_line_and_no_folder(
    settings: list[str], refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sets = tmp_path / "run", [part for one in settings for part in ("--set", one)]
    assert main(["run", "quickstart", "--virtual", "--out", str(out), *sets]) == 1
    said = capsys.readouterr().err
    assert re.search(refusal, said)
    assert said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("changed", ["rates", "places"])
def test_a_run_of_another_simulated_cluster_is_not_resumed_and_stays_as_it_is(
    changed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = resolve("quickstart", ["Run.virtual=@Virtual()"])
    before = clock_facts(resolved.run)
    before[changed] = {**before["rates"], "step_seconds": 9.0} if changed == "rates" else 7
    folder = RunFolder(tmp_path)
    folder.begin(resolved.config_gin(), **facts(resolved), started=0.0, status="interrupted", **before)
    folder.close()
    manifest = (tmp_path / "manifest.json").read_bytes()
    assert main(["run", str(tmp_path), "--resume"]) == 1
    said = {"rates": "step_seconds was 9.0 and is ", "places": "places was 7 and is "}
    assert f"was begun with others: {said[changed]}" in capsys.readouterr().err
    assert (tmp_path / "manifest.json").read_bytes() == manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("virtual")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """One of two runs that a sweep makes side by side."""
    family = run(folder, "family", *BROKEN_OFF, "--seeds", "0", "1", "--jobs", "2", timeout=900)
    assert (family / "seed_0" / "evals.jsonl").read_bytes() != (family / "seed_1" / "evals.jsonl").read_bytes()
    return family / "seed_0"


def weights(out: Path, folder: Path) -> dict[str, np.ndarray]:
    """The weights of a run's last checkpoint."""
    newest = max((out / "checkpoints").glob("step_*"))
    target = folder / f"exported_{out.name}"
    if not target.exists():
        assert main(["export", str(newest), str(target)]) == 0
    return {name: array for file in sorted(target.glob("*.safetensors")) for name, array in load_file(file).items()}


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").glob("step_*"))


def assert_the_same(one: Path, other: Path, folder: Path) -> None:
    for name in REPEATED:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert checkpoints(one) == checkpoints(other)
    trained = [path.name for path in sorted((one / "rollouts").glob("train_*"))]
    assert trained == ["train_000003.parquet", "train_000006.parquet", "train_000009.parquet"]
    for name in trained:
        assert (one / "rollouts" / name).read_bytes() == (other / "rollouts" / name).read_bytes(), name
    mine, theirs = weights(one, folder), weights(other, folder)
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def test_a_run_learns_in_simulated_hours_and_says_so(whole: Path) -> None:
    steps, evals = read_lines(whole / "metrics.jsonl"), read_lines(whole / "evals.jsonl")
    assert [line["step"] for line in steps] == list(range(1, 11))
    assert any(line["grad_norm"] > 0 for line in steps)
    assert max(int(late) for line in steps for late in line["staleness"]) == 2, "weights change in flight"
    assert [line["step"] for line in evals] == [0, 2, 4, 6, 8, 10]
    assert evals[0]["compute"] == 0
    assert evals[-1]["compute_unit"] == "GPU-hours"
    assert evals[-1]["compute_by_role"]["evaluation"] == 0
    assert evals[-1]["compute"] == pytest.approx(6 * steps[-1]["time"] / 3600), "6 devices are held all the time"
    assert evals[-1]["flops"] > evals[-1]["tokens"] > evals[-1]["completions"] == 10 * 16
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["clock"] == "virtual"
    assert re.fullmatch("[0-9a-f]{64}", manifest["base_model"])
    assert manifest["rates"]["step_seconds"] == 0.85
    assert manifest["engine"].keys() == set(DERIVED)
    assert manifest["engine"]["max_sequences"] == 4 * manifest["places"], "one engine holds the sequences of all four"
    assert {line["of"] for line in read_lines(whole / "wall.jsonl")} == {"step", "evaluation"}


def ended(folder: Path, arguments: list[str], number: signal.Signals, when: Callable[[], bool]) -> int:
    """Send a process a signal; gives how it ended."""
    process = subprocess.Popen(
        arguments, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 900
    while not when():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline, "the run took too few steps"
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=900)
    return process.returncode


def steps(out: Path) -> int:
    lines = out / "metrics.jsonl"
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


@pytest.fixture(scope="module")
def broken_off(folder: Path) -> Path:
    """A run like `whole` that Ctrl-C ended between two checkpoints, and a copy of it that stays so."""
    out, disk = folder / "broken_off", folder / "disk"
    started = command(folder, out, *BROKEN_OFF, "--set", f'Retention.copy_to="{disk}"')
    assert ended(folder, started, signal.SIGINT, lambda: steps(out) >= 5) == 130
    shutil.copytree(out, folder / "kept")
    return out


def test_a_run_of_a_sweep_and_one_that_is_stopped_and_killed_beside_other_load_are_the_same_run(
    folder: Path, whole: Path, broken_off: Path
) -> None:
    out, disk, undone = broken_off, folder / "disk", broken_off / "undone.jsonl"
    resume = [sys.executable, "-m", "scalelab", "run", str(out), "--resume"]
    first, stop = checkpoints(out)
    assert (first, stop in ("step_000005", "step_000006", "step_000007")) == ("step_000004", True)
    assert checkpoints(disk / out.name) == [first], "the copy keeps the one to go on from"
    evaluated = [line["step"] for line in read_lines(out / "evals.jsonl")]
    assert evaluated == [0, 2, 4, 6][: int(stop[-1]) // 2 + 1], "nothing is lost that was due"
    load = subprocess.Popen([sys.executable, "-c", BURSTS])
    try:
        assert ended(folder, resume, signal.SIGKILL, lambda: undone.exists() and steps(out) >= 6) == -signal.SIGKILL
        done = subprocess.run(resume, env=environment(folder), capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        load.kill()
        load.wait()
    assert_the_same(whole, out, folder)


STOPPED_IN_STEP = """
import sys
from scalelab.cli import main
from scalelab.run.loop import Loop
step = Loop.step
def stopped_in_4(self, names, waited):
    if self.books.version == 3:
        self.stop()
    return step(self, names, waited)
Loop.step = stopped_in_4
main(sys.argv[1:])
"""
"""A run that is asked to stop as its fourth step begins."""


@pytest.mark.nightly
def test_a_run_that_is_stopped_in_a_step_whose_checkpoint_is_due_is_the_same_run(folder: Path, whole: Path) -> None:
    """From there on it draws no more: its checkpoint has other groups in flight than that of a run that goes on."""
    out = folder / "stopped_in_step"
    started, resumed = command(folder, out, *BROKEN_OFF)[3:], [*command(folder, out)[:4], str(out), "--resume"]
    for due, code in ((False, [sys.executable, "-c", STOPPED_IN_STEP, *started]), (True, resumed)):
        subprocess.run(code, env=environment(folder), stdout=subprocess.DEVNULL, timeout=900, check=False)
        assert read_state(out / "checkpoints" / "step_000004")["virtual"][DUE] is due
    assert_the_same(whole, out, folder)


HARDER = ("Evaluation.sets=(@HeldOut(), @Benchmark())", "Benchmark.task=@hard/MathMiniature()", 'Benchmark.name="hard"')


@pytest.fixture(scope="module")
def branches(folder: Path, broken_off: Path) -> tuple[Path, Path]:
    """A run of seven steps that went on to ten, and a branch of one that was broken off, with a benchmark beside it."""
    short, longer, other = (folder / name for name in ("short", "longer", "gspo"))
    sets = [part for one in HARDER for part in ("--set", one)]
    in_turn(
        folder,
        [
            command(folder, short, *BROKEN_OFF[2:], "--set", "Budget.steps=7")[3:],
            ["run", "--from", str(short), "--out", str(longer), "--set", "Budget.steps=10"],
            ["run", "--from", str(folder / "kept"), "--out", str(other), "--set", "Recipe.loss=@GSPO()", *sets],
            ["eval", str(other), "--steps", "4", "--trust"],
        ],
    )
    assert checkpoints(short) == ["step_000004", "step_000007"]
    return longer, other


@pytest.mark.nightly
def test_a_finished_run_that_is_extended_ends_as_one_longer_run(
    folder: Path, whole: Path, branches: tuple[Path, Path]
) -> None:
    longer, _ = branches
    assert json.loads((longer / "manifest.json").read_text())["from"]["step"] == 4
    assert_the_same(whole, longer, folder)


def test_a_run_that_was_broken_off_branches_with_another_loss_and_a_benchmark(
    folder: Path, whole: Path, branches: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, other = branches
    first, second = (read_lines(out / "evals.jsonl") for out in (whole, other))
    assert second[:3] == first[:3], "the trunk"
    mine, theirs = weights(other, folder), weights(whole, folder)
    assert any((mine[name] != theirs[name]).any() for name in mine), "another loss trains other weights"
    added = {line["step"]: line for line in second if line["task"] == "hard"}
    assert list(added) == [6, 8, 10, 4], "that of the fork was made afterwards"
    own = {line["step"]: line for line in second if line["task"] == "math"}
    assert all((line["n_prompts"], line["compute"]) == (4, own[step]["compute"]) for step, line in added.items())
    [curve] = [item for item in read_sources([other]) if item.task == "hard"]
    assert curve.other_N["step"].tolist() == [4, 6, 8, 10]
    assert audit(other).problems == []
    main(["compare", str(whole), str(other)])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"from the fork at step 4 on, the last 1 to 2 evaluations up to [\d.,]+ GPU-hours", said), said


def test_a_run_whose_prompts_are_all_retired_is_finished_and_evaluates_its_last_policy(folder: Path) -> None:
    sets = ("--set", "CoinMath.size=16", "--set", "Recipe.retire_at=0.01", "--set", "Budget.steps=60")
    out = run(folder, "all_retired", *sets)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["reason"] == "every prompt of every task is retired: add prompts, or raise retire_at"
    last = read_lines(out / "metrics.jsonl")[-1]
    assert 0 < last["step"] < 60
    assert read_lines(out / "evals.jsonl")[-1]["step"] == last["step"]
    assert audit(out).problems == []


@pytest.mark.nightly
def test_the_synchronous_case_of_all_schedules_trains_the_same_weights(folder: Path) -> None:
    short = ("--set", "Budget.steps=3", "--set", "Evaluation.every=3")
    schedules = {
        "synchronous": ("--set", "Run.schedule=@Synchronous()"),
        "pipeline": ("--set", "PipelineRL.k=0"),
        "ppo": ("--set", "Run.schedule=@PPOOffPolicy()", "--set", "PPOOffPolicy.k=1"),
    }
    runs = run_all(folder, {name: (*chosen, *short) for name, chosen in schedules.items()})
    steps = {name: read_lines(out / "metrics.jsonl") for name, out in runs.items()}
    assert all(step["staleness"] == {"0": 16} for step in steps["synchronous"])
    expected = weights(runs["synchronous"], folder)
    for name in ("pipeline", "ppo"):
        for step, twin in zip(steps[name], steps["synchronous"], strict=True):
            assert step["tasks"] == twin["tasks"], "the same completions, step for step"
        for weight, values in weights(runs[name], folder).items():
            np.testing.assert_array_equal(values, expected[weight], err_msg=f"{weight} of {name}")
