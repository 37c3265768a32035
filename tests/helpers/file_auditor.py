"""Independent audit of a run's folder: it reads the files alone, and shares no code with what writes them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet

VIEW = {"step": "metrics.jsonl", "evaluation": "evals.jsonl", "alarm": "alarms.jsonl", "fault": "faults.jsonl"}


def journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, whose hashes must hold."""
    lines, before = [], "0" * 64
    for number, raw in enumerate((path / "journal.jsonl").read_bytes().split(b"\n")[:-1], 1):
        rest = raw[77:]
        assert hashlib.sha256(rest).hexdigest() == raw[10:74].decode(), f"line {number} does not hold"
        line = json.loads(raw)
        assert line["before"] == before, f"line {number} does not follow"
        assert line["number"] == number
        before = line["hash"]
        lines.append(line)
    epochs = [line["epoch"] for line in lines]
    assert epochs == sorted(epochs), "a process wrote after it had lost the run"
    return lines


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def audit_files(path: Path, tasks: list[str], steps: int | None) -> None:
    """Assert that a run's files are whole, and agree.

    Args:
        path: the run's folder.
        tasks: of every evaluation.
        steps: that a finished run has taken; None: it is not finished.
    """
    lines = journal(path)
    written = [one["compute"] for line in lines if line["kind"] == "step" for one in line["records"]]
    assert all(b > a - 1e-9 for a, b in pairwise(written)), "compute of undone steps stays spent"
    counted: dict[str, list[dict[str, Any]]] = {name: [] for name in (*VIEW.values(), "undone.jsonl")}
    manifest: dict[str, Any] = {}
    checkpoints: dict[int, str] = {}
    files: dict[str, str] = {}
    pruned: set[int] = set()
    for line in lines:
        kind = line["kind"]
        if kind in VIEW:
            counted[VIEW[kind]] += line["records"]
            files |= {name: sha for name, (_, sha) in line.get("files", {}).items()}
            if kind == "evaluation":
                pruned -= {one["step"] for one in line["records"]}
                there = sorted({one["step"] for one in counted["evals.jsonl"]} - pruned)
                pruned |= set(there[: -(manifest.get("retention", {}).get("keep_last") or len(there))])
        elif kind == "facts":
            manifest |= line["facts"]
        elif kind == "checkpoint":
            checkpoints[line["step"]] = line["sha256"]
        elif kind == "undo":
            last = line["step"]
            for name in ("metrics.jsonl", "alarms.jsonl", "evals.jsonl"):
                gone = [one for one in counted[name] if one["step"] > last]
                counted["undone.jsonl"] += [{"file": name} | one for one in gone]
                counted[name] = [one for one in counted[name] if one["step"] <= last]
            files = {name: sha for name, sha in files.items() if int(Path(name).stem.split("_")[1]) <= last}
            checkpoints = {step: sha for step, sha in checkpoints.items() if step <= last}
    if steps is not None:
        assert manifest["status"] == "finished"
        assert json.loads((path / "manifest.json").read_text()) == manifest
        for name, records in counted.items():
            assert [json.loads(one) for one in (path / name).read_text().splitlines()] == records, name
    metrics, evals = counted["metrics.jsonl"], counted["evals.jsonl"]
    assert [one["step"] for one in metrics] == list(range(1, len(metrics) + 1)), "each step once, in order"
    assert steps is None or len(metrics) == steps
    groups = [name for one in metrics for name in one["groups"]]
    assert len(groups) == len(set(groups)), "each group once"
    compute = [one["compute"] for one in metrics]
    assert compute == sorted(compute), "compute never falls"
    for one in metrics:
        hours = one["compute_by_role"]
        assert abs(sum(hours.values()) - hours["evaluation"] - one["compute"]) < 1e-12
        assert abs(one["compute"] - hours["faults"] - one["compute_undisturbed"]) < 1e-12
    seconds = [one["wall_seconds"] for one in metrics]
    assert seconds == sorted(seconds), "the wall's seconds go on after a resume"
    by_step = Counter((one["step"], one["task"]) for one in evals)
    assert set(by_step.values()) <= {1}, "each evaluation once"
    assert {(step, task) for step, _ in by_step for task in tasks} == set(by_step), "an evaluation is of all tasks"
    if steps is not None:
        assert {0, steps} <= {step for step, _ in by_step}, "the first and the last policy are evaluated"
    for name, sha in files.items():
        if (path / name).exists() or (
            name.startswith("rollouts/step_") and int(Path(name).stem.split("_")[1]) not in pruned
        ):
            assert file_hash(path / name) == sha, name
    for one in evals:
        if one["step"] in pruned:
            continue
        file = path / f"rollouts/step_{one['step']:06d}.parquet"
        rows = pyarrow.parquet.read_table(file, columns=["task", "outcome"], use_threads=False)
        found = Counter(row["outcome"] for row in rows.to_pylist() if row["task"] == one["task"])
        assert found == one["outcomes"]
    _check_checkpoints(path, metrics, checkpoints)


def _check_checkpoints(path: Path, metrics: list[dict[str, Any]], checkpoints: dict[int, str]) -> None:
    """Assert that every group drawn before a checkpoint was trained on, dropped, or waits in it."""
    for manifest in (path / "checkpoints").glob("step_*/checkpoint.json"):
        name = manifest.parent.name.removeprefix("step_")
        if not name.isdecimal():
            continue  # not in its place yet
        step = int(name)
        if step > len(metrics):
            continue  # of a process that was killed before it could go back
        assert checkpoints.get(step, file_hash(manifest)) == file_hash(manifest), f"another checkpoint {step}"
        for name, (size, sha) in json.loads(manifest.read_text())["files"].items():
            assert ((manifest.parent / name).stat().st_size, file_hash(manifest.parent / name)) == (size, sha)
        state = json.loads((manifest.parent / "state.json").read_text())
        assert state["schedule"]["trainer_version"] == step
        trained = {name for one in metrics[:step] for name in one["groups"]}
        waiting = set(state["groups"])
        assert not trained & waiting
        assert len(trained) + len(waiting) + sum(state["dropped"].values()) == state["drawn"], "a group is lost"
