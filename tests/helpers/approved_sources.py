"""Small logs and runs that the transcripts of `tests/commands/approved` read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalelab.store.chain import JOURNAL
from scalelab.store.manifest import JOURNAL_KEY
from tests.helpers import odd_logs
from tests.helpers.small_runs import write_run
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
    (folder / "odd").mkdir()
    for name in (*odd_logs.TEXTS, *odd_logs.BYTES, *odd_logs.REFUSED):
        odd_logs.write(folder / "odd", name)


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
        for older in (False, True):
            run = write_run(folder / f"{name}{'_older' * older}")
            if older:
                (run / JOURNAL).unlink()
                manifest = json.loads((run / "manifest.json").read_text())
                manifest.pop(JOURNAL_KEY)
                (run / "manifest.json").write_text(json.dumps(manifest))
            harm(run)


def _changed(file: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Path], None]:
    def harm(run: Path) -> None:
        lines = [json.loads(line) for line in (run / file).read_text().splitlines()]
        (run / file).write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    return harm


def _gone(file: str) -> Callable[[Path], None]:
    return lambda run: (run / file).unlink(missing_ok=True)


def _other_weights(run: Path) -> None:
    weights = run / "checkpoints" / "step_000002" / "weights"
    weights.write_bytes(b"x" * len(weights.read_bytes()))


DAMAGES: dict[str, Callable[[Path], None]] = {
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
}
"""Damages to the books of a run; `NAME_older` are those of a run from before there was a journal."""
