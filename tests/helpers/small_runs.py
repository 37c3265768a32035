"""Folders of runs that nobody ran: small, whole, and written with the lab's own means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from moe.checkpoint.folder import Manifest, digest, publish, step_folder, write_manifest
from moe.durable import made_whole, write_whole
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import ROLLOUTS, config_sha256
from scalelab.store.publication import LINE
from scalelab.watch.tensorboard_writer import TensorBoardWriter

TASKS = ("math", "code")
GROUPS = 3
"""Groups of a step."""


def step_line(step: int) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    groups = [f"group{number}" for number in range(GROUPS * (step - 1), GROUPS * step)]
    return {"step": step, "time": 100.0 + step, "compute": step / 8, "loss": 1 / step, "groups": groups}


def rows(step: int) -> list[dict[str, Any]]:
    """Completions of an evaluation: of each task two prompts with two each, of which `step` modulo 4 passed."""
    made = []
    for task in TASKS:
        for number in range(4):
            reward = float(number < step % 4)
            outcome = "passed" if reward else "failed"
            made.append({"task": task, "prompt_id": f"{task}/{number // 2}", "reward": reward, "outcome": outcome})
    return made


def evaluation_lines(step: int) -> list[dict[str, Any]]:
    """The lines of `evals.jsonl` for `rows(step)`."""
    passed = step % 4
    outcomes = {name: count for name, count in (("passed", passed), ("failed", 4 - passed)) if count}
    begin = {"step": step, "time": 100.5 + step, "compute": step / 8, "pass_rate": passed / 4, "outcomes": outcomes}
    return [{**begin, "task": task, "n_prompts": 2, "k": 2} for task in TASKS]


def write_checkpoint(folder: RunFolder, step: int) -> Path:
    """A whole checkpoint, with a file of weights, one of rollouts and the books of that step, under its own name."""
    path = write_unnamed(folder, step)
    folder.publish_checkpoints()
    return step_folder(path.parent, step)


def write_unnamed(folder: RunFolder, step: int) -> Path:
    """A whole checkpoint as the trainer's ranks leave it."""
    path, root = folder.begin_checkpoint(step, None), folder.checkpoints
    fresh = path.with_name(f".{path.name}.writing")
    fresh.mkdir(parents=True)
    content = bytes([step % 256]) * 100
    write_whole(root / "rollouts.npz", content)
    name = f"rollouts_{digest(root / 'rollouts.npz')[1]}.npz"
    (root / "rollouts.npz").rename(root / name)
    state: dict[str, Any] = {
        "schedule": {"trainer_version": step},
        "drawn": GROUPS * step + 2,
        "dropped": {"all_passed": 1},
        "groups": {f"group{GROUPS * step}": {}},
        "rollouts": name,
        "config_sha256": config_sha256(folder.path),
        LINE: folder.line_of(step),
    }
    write_whole(fresh / "state.json", json.dumps(state))
    write_whole(fresh / "weights", content * 10)
    files = {file.name: digest(file) for file in fresh.iterdir()}
    write_manifest(fresh, Manifest(step, {"model_type": "llama"}, {}, 1, ("model", "state"), files))
    publish(fresh, path)
    return path


def add_evaluation(folder: RunFolder, step: int) -> None:
    """Write an evaluation as the journal does: its completions, then its lines."""
    path = folder.path / ROLLOUTS / f"step_{step:06d}.parquet"
    with made_whole(path) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(step)), unfinished)
        folder.settle(path, unfinished)
    folder.add_evaluation(evaluation_lines(step))


def write_run(path: Path, steps: int = 6) -> Path:
    """A run that was evaluated at 0 and every third step, with a checkpoint after every second."""
    folder = RunFolder(path)
    folder.add_observer(TensorBoardWriter(path / "tensorboard"))
    folder.begin("Run.seed = 3\n", status="interrupted", held_out=dict.fromkeys(TASKS, 2))
    add_evaluation(folder, 0)
    for step in range(1, steps + 1):
        folder.add_step(step_line(step))
        if step % 3 == 0:
            add_evaluation(folder, step)
        if step % 2 == 0:
            write_checkpoint(folder, step)
    folder.close()
    return path
