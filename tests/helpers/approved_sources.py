"""Small logs and runs that the transcripts of `tests/commands/approved` read."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import digest
from scalelab.store.chain import JOURNAL
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import JOURNAL_KEY
from scalelab.watch.tensorboard_writer import TensorBoardWriter
from tests.helpers import odd_logs
from tests.helpers.small_runs import TASKS, add_evaluation, evaluation_lines, step_line, write_run
from tests.helpers.view_runs import made_run

ROOT = Path(__file__).parents[2]


def sigmoid(compute: float, A: float, R0: float = 0.2, B: float = 1.6, C_mid: float = 0.25) -> float:
    return R0 + (A - R0) / (1 + (C_mid / compute) ** B) if compute else R0


def wobble(place: float, size: float) -> float:
    """Noise that nobody draws: it is the same on every machine."""
    return size * math.sin(12.9898 * place) * math.cos(4.1414 * place * place)


def rows(place: int, A: float, C_mid: float = 0.25, n: int = 20, size: float = 0.012, until: float = 1.0) -> list[str]:
    """Lines `compute,pass_rate` of one curve."""
    found = []
    for index in range(n + 1):
        at = until * index / n
        found.append(f"{1000 * at:g},{sigmoid(at, A, C_mid=C_mid) + wobble(index + 31.7 * place, size):.4f}")
    return found


def write_logs(folder: Path) -> None:
    """Tables of curves: of two tasks, of several seeds, falling, jumping, short, along an axis, by prompt."""
    tables: dict[str, tuple[str, list[str]]] = {}
    both = [(task, row) for place, task in enumerate(("math", "code")) for row in rows(place, 0.7 - 0.1 * place)]
    tables["both.csv"] = ("gpu_hours,pass_rate,task,n", [f"{row},{task},2000" for task, row in both])
    for name, start, A, C_mid in (("base", 2, 0.64, 0.25), ("better", 6, 0.7, 0.2), ("slower", 10, 0.64, 0.5)):
        seeds = [(seed, row) for seed in range(3) for row in rows(start + seed, A + wobble(start + seed, 0.01), C_mid)]
        tables[f"{name}.csv"] = ("gpu_hours,pass_rate,seed,n", [f"{row},{seed},2000" for seed, row in seeds])
    tables["short.csv"] = ("gpu_hours,pass_rate,n", [f"{row},2000" for row in rows(14, 0.7, 0.6, until=0.4)])
    tables["forgets.csv"] = (
        "gpu_hours,pass_rate,n",
        [f"{50 * at},{0.5 - 0.012 * at + wobble(at, 0.008):.4f},1000" for at in range(21)],
    )
    for name, place, A, places, shift in (
        ("unstable", 15, 0.7, (11, 12), -0.2),
        ("rises_again", 16, 0.55, range(14, 21), 0.12),
    ):
        points = [tuple(map(float, row.split(","))) for row in rows(place, A)]
        shifted = [f"{c:g},{rate + shift * (at in places):.4f},2000" for at, (c, rate) in enumerate(points)]
        tables[f"{name}.csv"] = ("gpu_hours,pass_rate,n", shifted)
    along = [
        f"{row.split(',')[0]},{row.split(',')[1]},b{batch},{batch},2000"
        for place, batch in enumerate((256, 1024, 4096))
        for row in rows(20 + place, 0.6 + batch / 1e5, 0.2, n=12)
    ]
    tables["along.csv"] = ("gpu_hours,pass_rate,run,batch,n", along)
    for place, name in enumerate(("few_a", "few_b")):
        tables[f"{name}.csv"] = ("gpu_hours,pass_rate,n", [f"{row},2000" for row in rows(40 + place, 0.7, n=8)])
    graded = [
        f"{run},{seed},{step},math,q{prompt},{int((7 * prompt + 3 * k + 5 * seed + step) % 11 < share)}"
        for run, shares in (("base", (3, 5)), ("longer", (3, 7)))
        for seed in range(2)
        for step, share in zip((0, 10), shares)
        for prompt in range(40)
        for k in range(4)
    ]
    tables["graded.csv"] = ("run,seed,step,task,prompt_id,outcome", graded)
    for name, (header, lines) in tables.items():
        (folder / name).write_text("\n".join([header, *lines]) + "\n")
    (folder / "odd_answers").mkdir()
    for name, content in ODD_ANSWERS.items():
        (folder / "odd_answers" / name).write_bytes(content)
    (folder / "odd").mkdir()
    for name in (*odd_logs.TEXTS, *odd_logs.BYTES, *odd_logs.REFUSED):
        odd_logs.write(folder / "odd", name)


ODD_ANSWERS = {
    "no_gold.jsonl": b'{"id": 1, "completion": "2"}\n',
    "gold.jsonl": b'\n{"id": 1, "gold": true, "completion": "2"}\n',
    "completion.jsonl": b'{"id": 1, "gold": "2", "completion": 2}\n',
    "number.jsonl": b'{"id": 1, "gold": NaN, "completion": "2"}\n',
    "bytes.jsonl": b'{"id": 1, "gold": "\xff", "completion": "2"}\n',
    "meta.jsonl": b'{"id": 1, "gold": "2", "completion": "2", "meta": []}\n',
    "empty.jsonl": b"\n",
    "rows.jsonl": b'{"problem": "1 + 1", "answer": "2"}\n' * 2 + b'{"problem": "", "answer": "2"}\n' * 9,
    "rates.json": b'{"device": "h100", "tokens": 2}',
}
"""Files that `grade` and `compare --price` refuse, and rows that `data check` sets aside."""


def write_runs(folder: Path) -> None:
    """Folders of runs: recorded, made up for the page, and small ones with whole and with damaged books."""
    (folder / "recorded").symlink_to(ROOT / "scalelab" / "recorded")
    (folder / "study").symlink_to(ROOT / "docs" / "study" / "runs")
    (folder / "schedules").symlink_to(ROOT / "docs" / "schedules")
    made_run(folder / "page" / "one" / "seed_0", per_task=3, fall=9)
    made_run(folder / "page" / "one" / "seed_1", seed=1, per_task=3)
    made_run(folder / "page" / "other", A=0.65, loss="GRPO", tokens=96, rollouts=False, status="running")
    write_run(folder / "whole")
    for name, harm in DAMAGES.items():
        for older in (False, True) if name in OLDER else (False,):
            run = shutil.copytree(folder / "whole", folder / f"{name}{'_older' * older}")
            if older:
                (run / JOURNAL).unlink()
                manifest = json.loads((run / "manifest.json").read_text())
                manifest.pop(JOURNAL_KEY)
                (run / "manifest.json").write_text(json.dumps(manifest))
            harm(run)


def _changed(file: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Path], object]:
    def harm(run: Path) -> None:
        lines = [json.loads(line) for line in (run / file).read_text().splitlines()]
        (run / file).write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    return harm


def _gone(file: str) -> Callable[[Path], object]:
    return lambda run: (run / file).unlink(missing_ok=True)


def _other_weights(run: Path) -> None:
    weights = run / "checkpoints" / "step_000002" / "weights"
    weights.write_bytes(b"x" * len(weights.read_bytes()))


def _bytes(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda run: (run / file).write_bytes(change((run / file).read_bytes()))


def _state(step: int, **facts: Any) -> Callable[[Path], object]:
    """Put other books into a checkpoint, whose own hashes agree with them."""

    def harm(run: Path) -> None:
        path = run / "checkpoints" / f"step_{step:06d}"
        books = json.loads((path / "state.json").read_text()) | facts
        (path / "state.json").write_text(json.dumps(books))
        manifest = json.loads((path / CHECKPOINT).read_text())
        manifest["files"]["state.json"] = list(digest(path / "state.json"))
        (path / CHECKPOINT).write_text(json.dumps(manifest))

    return harm


def _rows(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], object]:
    """Change the completions of the evaluation at step 3."""

    def harm(run: Path) -> None:
        rows = pyarrow.parquet.read_table(run / "rollouts/step_000003.parquet").to_pylist()
        change(rows)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), run / "rollouts/step_000003.parquet")

    return harm


def _goes_back(run: Path) -> None:
    """Return to the checkpoint of step 4, and take a step, an evaluation and a checkpoint again."""
    shutil.rmtree(run / "checkpoints" / "step_000006")
    folder = RunFolder(run)
    folder.go_back(4, TASKS)
    folder.add_step(step_line(5) | {"loss": 2.0, "compute_by_role": {"trainer": 0.5, "generator": 0.25}})
    folder.describe(retention={"keep_last": 1, "keep_every": 5})
    add_evaluation(folder, 5)
    folder.add_alarm({"step": 5, "message": "oh"})
    folder.close()


def _twice_in_tensorboard(run: Path) -> None:
    writer = TensorBoardWriter(run / "tensorboard")
    writer.step(step_line(3))
    writer.close("finished")


def _renamed(step: int, other: int) -> Callable[[Path], object]:
    name = "checkpoints/step_{:06d}".format
    return lambda run: (run / name(step)).rename(run / name(other))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "lost_line": _changed("metrics.jsonl", lambda lines: lines[:2] + lines[3:]),
    "two_lines": _changed("evals.jsonl", lambda lines: [*lines, lines[0]]),
    "half_an_evaluation": _changed("evals.jsonl", lambda lines: lines[:3] + lines[4:]),
    "other_rate": _changed("evals.jsonl", lambda lines: [lines[0] | {"pass_rate": 0.75}, *lines[1:]]),
    "cheaper": _changed("metrics.jsonl", lambda lines: [*lines[:3], lines[3] | {"compute": 0.1}, *lines[4:]]),
    "stranger": _changed("metrics.jsonl", lambda lines: [lines[0] | {"groups": ["group99"]}, *lines[1:]]),
    "trained_twice": _changed("metrics.jsonl", lambda lines: [*lines[:4], lines[4] | {"groups": ["group1"]}, lines[5]]),
    "no_completions": _gone("rollouts/step_000003.parquet"),
    "no_weights": _gone("checkpoints/step_000004/weights"),
    "no_journal": _gone(JOURNAL),
    "other_weights": _other_weights,
    "torn_line": _bytes("metrics.jsonl", lambda content: content + b'{"step": 7'),
    "blank_lines": _bytes("evals.jsonl", lambda content: content.replace(b"\n", b"\n\n", 2)),
    "no_line_at_all": _changed("metrics.jsonl", lambda lines: []),
    "no_lines": _gone("metrics.jsonl"),
    "other_order": _changed("metrics.jsonl", lambda lines: [lines[1], lines[0], *lines[2:]]),
    "under_way": _changed("metrics.jsonl", lambda lines: [*lines, step_line(7)]),
    "evaluation_under_way": _changed("evals.jsonl", lambda lines: [*lines, *evaluation_lines(5)]),
    "two_more_steps": _changed("metrics.jsonl", lambda lines: [*lines, step_line(7), step_line(8)]),
    "odd_fields": _changed("evals.jsonl", lambda lines: [{**lines[0], "step": "0"}, {"task": "math"}, *lines[2:]]),
    "too_much_compute": _changed("metrics.jsonl", lambda lines: [*lines[:-1], {**lines[-1], "compute": 1e300}]),
    "odd_groups": _changed("metrics.jsonl", lambda lines: [{**lines[0], "groups": [0]}, *lines[1:]]),
    "other_config": _bytes("config.gin", lambda content: content + b"Run.seed = 4\n"),
    "no_config": _gone("config.gin"),
    "other_manifest": _bytes("manifest.json", lambda content: content.replace(b'"interrupted"', b'"finished"')),
    "no_manifest": _gone("manifest.json"),
    "torn_journal": _bytes(JOURNAL, lambda content: content[:-9]),
    "cut_journal": _bytes(JOURNAL, lambda content: b"".join(content.splitlines(keepends=True)[:12])),
    "other_journal": _bytes(JOURNAL, lambda content: content.replace(b'"loss": 0.5', b'"loss": 0.6')),
    "doubled_journal": _bytes(JOURNAL, lambda content: content + content.splitlines(keepends=True)[-1]),
    "other_completions": _rows(lambda rows: rows[0].update(reward=0.5)),
    "other_outcomes": _rows(lambda rows: rows[0].update(outcome="failed")),
    "errors": _rows(lambda rows: [row.update(outcome="error") for row in rows[:2]]),
    "shorter_completions": _bytes("rollouts/step_000003.parquet", lambda content: content[:-1]),
    "other_state": _state(4, drawn=20),
    "more_dropped": _state(6, dropped={"all_passed": 1, "all_failed": 2}),
    "twice_waiting": _state(4, groups={"group12": {}, "group11": {}}),
    "no_books": _state(2, schedule={}),
    "no_such_rollouts": _state(6, rollouts="rollouts.npz"),
    "renamed": _renamed(4, 5),
    "beyond_the_lines": _renamed(6, 9),
    "no_checkpoint": lambda run: shutil.rmtree(run / "checkpoints/step_000006"),
    "no_checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "no_rollouts": lambda run: shutil.rmtree(run / "rollouts"),
    "no_events": lambda run: shutil.rmtree(run / "tensorboard"),
    "twice_in_tensorboard": _twice_in_tensorboard,
    "went_back": _goes_back,
}
"""Damages to the books of a run."""
OLDER = tuple(name for name in DAMAGES if name == "no_journal" or not name.endswith("_journal"))
"""Damages that `NAME_older` has, too: a run from before there was a journal."""
