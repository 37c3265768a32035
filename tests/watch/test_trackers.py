"""Every tracker keeps what it is sent; none can hold a run up or end it. The real packages, offline."""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.recipe.types import Rollout
from scalelab.session.session import _observe
from scalelab.session.tracked_fits import TrackedFits
from scalelab.store.folder import RunFolder
from scalelab.watch import trackers as module
from scalelab.watch.progress import Progress
from scalelab.watch.tracker import scalars
from scalelab.watch.trackers import IDENTITIES, SAMPLED, Trackers, check_trackers, sample, settings_of

FACTS = {"experiment": "quickstart", "seed": 3, "versions": {"python": "3.11"}}
SETTINGS = {"recipe.max_tokens": 80, "recipe.loss": "CISPO"}


def evaluation(step: int, rate: float, task: str = "math") -> dict[str, Any]:
    compute = {"compute": step / 100, "compute_unit": "core-hours"}
    return {"step": step, "time": 1.0, **compute, "task": task, "pass_rate": rate, "stderr": 0.02}


def rising(step: int) -> float:
    """A sigmoid from 0.2 to 0.8 that is half way at step 30."""
    return 0.2 + 0.6 / (1 + (30 / max(step, 1e-9)) ** 2)


ROWS: list[dict[str, Any]] = [
    {
        "task": "math",
        "prompt_id": f"p{number}",
        "prompt": "1+1=",
        "completion": "<b>2</b>",
        "outcome": "passed" if number % 2 else "failed",
        "reward": float(number % 2),
        "detail": "",
        "tokens": 3,
    }
    for number in range(20)
]


ROLLOUTS = [
    Rollout(
        prompt_id=row["prompt_id"],
        task=row["task"],
        prompt_ids=np.zeros(2, np.int32),
        completion_ids=np.zeros(3, np.int32),
        logprobs_T=np.zeros(3, np.float32),
        forced_T=np.zeros(3, bool),
        spans=((0, 0, 3),),
        reward=row["reward"],
        outcome=row["outcome"],
        prompt=row["prompt"],
        text=row["completion"],
    )
    for row in ROWS
]


def send_a_run(trackers: Trackers, steps: Sequence[int] = range(0, 101, 10)) -> None:
    for step in steps:
        if step:
            trackers.step({"step": step, "time": 1.0, "loss": 1 / step, "seconds": {"wait": 0.5}, "skipped": False})
        trackers.evaluation(evaluation(step, rising(step)))
        trackers.evaluation(evaluation(step, rising(step) / 2, "code"))
    trackers.completions(steps[-1], ROWS)
    trackers.alarm({"step": 20, "name": "entropy", "message": "alarm at step 20: entropy is 0.001"})
    trackers.go_back(steps[-1] - 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "recipes" / "dapo"
    path.mkdir(parents=True)
    return path


def open_and_send(name: str, folder: Path) -> list[str]:
    said: list[str] = []
    trackers = Trackers.start((name,), folder, FACTS, said.append, SETTINGS, TrackedFits(folder))
    send_a_run(trackers)
    trackers.close("finished")
    return said


@pytest.mark.slow
def test_wandb_offline_holds_numbers_fits_alarms_and_completions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert open_and_send("wandb", folder) == []
    history, summary, config, name = read_wandb(folder)
    losses = [(row["step"], row["train/loss"]) for row in history if "train/loss" in row]
    assert losses == [(step, 1 / step) for step in range(10, 101, 10)]
    rates = [(row["compute"], row["eval/math/pass_rate"]) for row in history if "eval/math/pass_rate" in row]
    assert rates == [(step / 100, rising(step)) for step in range(0, 101, 10)]
    assert any("fit/math/A_low" in row for row in history)
    table = json.loads(next((folder / "wandb").rglob("*.table.json")).read_text())
    assert len(table["data"]) == 2 * SAMPLED
    assert summary["status"] == "finished"
    assert summary["rollbacks"] == 1
    assert config["recipe.max_tokens"] == 80
    assert name == "recipes/dapo"


def read_wandb(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]:
    """History, summary, configuration and name in the file of an offline run."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made when it is imported

    wandb.teardown()  # its service writes the last block of the file when it ends, as it does with a process
    [file] = (folder / "wandb").glob("offline-run-*/*.wandb")
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    config: dict[str, Any] = {}
    name = ""
    for data in leveldb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
        elif kind == "summary":
            summary |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
        elif kind == "run":
            config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            name = record.run.display_name
    return history, summary, config, name


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, in each pieces of checksum (4), length (2), kind (1) and data.

    W&B puts seven bytes of its own before the first piece.
    """
    at, parts, block = 7, b"", 32768
    while at + 7 <= len(content):
        if (left := block - at % block) < 7:  # too little for another piece, and zeros
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield parts
            parts = b""


@pytest.mark.slow
def test_mlflow_holds_numbers_settings_alarms_and_completions_and_a_resumed_run_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder.parent / "mlflow"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
    assert open_and_send("mlflow", folder) == []
    trackers = Trackers.start(("mlflow",), folder, FACTS, print, SETTINGS)
    trackers.step({"step": 101, "loss": 0.25})
    trackers.close("finished")

    from mlflow.tracking import MlflowClient

    client = MlflowClient(store.as_uri())
    experiment = client.get_experiment_by_name("scalelab")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "recipes/dapo"
    assert run.info.status == "FINISHED"
    assert run.data.params["recipe.max_tokens"] == "80"
    assert run.data.tags["alarm.entropy"].startswith("alarm at step 20")
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in losses] == [
        *((step, 1 / step) for step in range(10, 101, 10)),
        (101, 0.25),
    ]
    assert run.data.metrics["fit/math/A"] == pytest.approx(0.8, abs=0.1)
    rows = json.loads(next(store.rglob("step_000100.json")).read_text())
    assert len(rows) == 2 * SAMPLED


@pytest.mark.slow
def test_trackio_holds_numbers_fits_alarms_and_completions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(folder.parent / "trackio"))  # read when the package is imported
    assert open_and_send("trackio", folder) == []
    database = sqlite3.connect(folder.parent / "trackio" / "scalelab.db")
    rows = [
        (step, json.loads(text)) for step, text in database.execute("SELECT step, metrics FROM metrics ORDER BY id")
    ]
    losses = [(step, values["train/loss"]) for step, values in rows if "train/loss" in values]
    assert losses == [(step, 1 / step) for step in range(10, 101, 10)]
    assert next(values["fit/math/A"] for _, values in reversed(rows) if "fit/math/A" in values) == pytest.approx(
        0.8, abs=0.1
    )
    [table] = [values["completions"] for _, values in rows if "completions" in values]
    assert len(table["_value"]) == 2 * SAMPLED
    assert [title for (title,) in database.execute("SELECT title FROM alerts")] == ["entropy at step 20"]
    [(name, config)] = database.execute("SELECT run_name, config FROM configs")
    assert name == "recipes/dapo"
    assert json.loads(config)["recipe.max_tokens"] == 80


def test_what_trackers_print_does_not_mix_with_the_output_of_a_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Chatty(Slow):
        def numbers(self, step: int, values: Mapping[str, float]) -> None:
            print("look at me")

    trackers = Trackers({"chatty": Chatty()}, lambda line: None)
    trackers.step({"step": 1, "loss": 0.0})
    trackers.close("finished")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "look at me\n"


class Slow:
    """A tracker that takes its time until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.steps: list[int] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        assert self.go.wait(900)
        self.steps.append(step)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Broken:
    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host\nmore")

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def test_a_slow_tracker_does_not_hold_the_run_and_gets_everything_in_order() -> None:
    slow = Slow()
    said: list[str] = []
    trackers = Trackers({"slow": slow}, said.append)
    for step in range(500):
        trackers.step({"step": step, "loss": 0.0})
    assert slow.steps == [], "it has taken none, and nothing waited for it"
    slow.go.set()
    trackers.close("finished")
    assert slow.steps == list(range(500))
    assert said == []


def test_a_tracker_that_hangs_is_left_alone_at_the_end_and_what_did_not_fit_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(module, "WAITING", 10)
    slow = Slow()
    said: list[str] = []
    trackers = Trackers({"slow": slow}, said.append)
    for step in range(100):
        trackers.step({"step": step, "loss": 0.0})
    trackers.close("failed")
    slow.go.set()
    assert "still busy" in said[0]
    assert 80 <= int(said[1].split()[1]) <= 90


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on() -> None:
    said: list[str] = []
    good = Slow()
    good.go.set()
    trackers = Trackers({"broken": Broken(), "good": good}, said.append)
    for step in range(5):
        trackers.step({"step": step, "loss": 0.0})
    trackers.close("finished")
    assert good.steps == [0, 1, 2, 3, 4]
    [line] = said
    assert line.startswith("broken failed and is left out")
    assert line.endswith("no route to host")


@pytest.mark.slow
def test_trackers_that_cannot_start_are_named_before_the_run_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
    with pytest.raises(LabError, match=r"^Run.trackers: mlflow does not start: [^\n]+$"):
        Trackers.start(("mlflow",), folder, FACTS, print)
    for names, says in (
        (("wandbb",), "there are wandb, mlflow, trackio"),
        (("wandb", "wandb"), "twice"),
    ):
        with pytest.raises(LabError, match=says):
            check_trackers(names)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LabError, match=r"pip install 'scalelab\[trackers\]'"):
        check_trackers(("wandb",))
    (folder / IDENTITIES).write_text("[")
    monkeypatch.undo()
    with pytest.raises(LabError, match="remove it"):
        Trackers.start(("wandb",), folder, FACTS, print)


def test_fits_of_a_resumed_run_count_the_evaluations_before(folder: Path) -> None:
    lines = [json.dumps(evaluation(step, rising(step))) for step in range(0, 100, 10)]
    (folder / "evals.jsonl").write_text("\n".join(lines) + '\n{"torn')
    fits = TrackedFits(folder)
    values = fits.after(evaluation(100, rising(100)))
    assert values["fit/math/A"] == pytest.approx(0.8, abs=0.1)
    assert values["fit/math/A_low"] < values["fit/math/A"] < values["fit/math/A_high"]
    fits.go_back(10)
    assert fits.after(evaluation(20, rising(20))) == {}


def test_scalars_are_the_finite_numbers_of_a_record() -> None:
    record = {"step": 1, "loss": float("nan"), "lr": 0.1, "skipped": True, "note": "x", "a": {"b": {"c": 2}}}
    assert dict(scalars(record, "t")) == {"t/lr": 0.1, "t/skipped": 1.0, "t/a/b/c": 2.0}


def test_a_sample_holds_passed_and_failed_completions_of_each_task_with_bounded_texts() -> None:
    rows = [*ROWS, ROWS[0] | {"task": "code", "completion": "x" * 1_000_000}]
    chosen = sample(rows)
    assert [row["prompt_id"] for row in chosen] == ["p0", "p2", "p4", "p6", "p1", "p3", "p5", "p7", "p0"]
    assert len(chosen[-1]["completion"]) < 21_000


@pytest.mark.slow
def test_what_a_run_writes_down_is_what_its_trackers_get(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = resolve("quickstart", ["Run.trackers=('wandb',)"]).run
    written = RunFolder(folder)
    written.describe(**FACTS)
    _observe(run, written, Progress())
    for step in range(0, 61, 10):
        if step:
            written.add_step({"step": step, "time": 1.0, "loss": 1 / step})
        file = written.evaluation_file(step)
        file.add(ROLLOUTS)
        file.finish().result()
        file.drop()
        for task in ("math", "code"):
            written.add_evaluation([evaluation(step, rising(step), task)])
    written.describe(status="finished")
    written.close()
    history, summary, config, _ = read_wandb(folder)
    assert [row["step"] for row in history if "train/loss" in row] == list(range(10, 61, 10))
    for task in ("math", "code"):
        assert [row["step"] for row in history if f"eval/{task}/pass_rate" in row] == list(range(0, 61, 10))
        assert any(f"fit/{task}/A" in row for row in history)
    tables = list((folder / "wandb").rglob("*.table.json"))
    assert len(tables) == 7
    shown = json.loads(tables[0].read_text())
    assert Counter(row[shown["columns"].index("outcome")] for row in shown["data"]) == {"passed": 4, "failed": 4}
    assert summary["status"] == "finished"
    assert config["recipe.max_tokens"] == run.recipe.max_tokens
    assert config["tasks.0"] == type(run.tasks[0]).__name__


def test_settings_are_plain_values_by_the_path_to_them() -> None:
    settings = settings_of(resolve("quickstart").run)
    assert settings["recipe.loss"] == "CISPO"
    assert settings["trainer.optimizer.lr"] == resolve("quickstart").run.trainer.optimizer.lr
    assert all(isinstance(value, str | int | float | bool | None) for value in settings.values())
