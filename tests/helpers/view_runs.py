"""Runs on disk as the loop writes them, made up: for the tests of the page, of the report and of `rollouts`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.curve_points import rate

CONFIG = """# made/up: a run

Run.seed = {seed}
Recipe.prompts_per_step = 4
Recipe.generations_per_prompt = 8
Recipe.max_tokens = {tokens}
Recipe.loss = @{loss}()
Budget.steps = 100
"""

HOSTILE = '<img src=x onerror="window.pwned=1"></script><script>window.pwned=1</script>\u202egnp\x1b[31m'
"""Hostile text for every place where a run holds text."""


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def made_run(
    folder: Path, tasks: tuple[str, ...] = ("math", "code"), A: float = 0.8, seed: int = 0, evaluations: int = 16,
    rollouts: bool = True, loss: str = "CISPO", fall: int | None = None, name: str = "made/up",
    status: str = "finished", text: str = "", tokens: int = 64, per_task: int = 6,
) -> Path:  # fmt: skip
    """A run of `evaluations` evaluations, ten steps apart; `fall` is the number of one with a lower pass rate."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    compute = np.linspace(0, 1, evaluations)
    evals = []
    for index, spent in enumerate(compute.tolist()):
        for shift, task in enumerate(tasks):
            passed = float(np.clip(rate(spent, A=A - 0.05 * shift) + 0.008 * rng.standard_normal(), 0, 1))
            if index == fall:
                passed -= 0.2
            evals.append(
                {"step": 10 * index, "version": 10 * index, "time": 1000.0 + 60 * index, "compute": spent,
                 "compute_unit": "GPU-hours", "task": task, "n_prompts": 100, "k": 4, "pass_rate": passed,
                 "stderr": 0.015, "truncated": 0.0, "interrupted": 0.0, "outcomes": {"passed": 1}, "mean_length": 20.0,
                 "completions": 320 * index, "tokens": 6400 * index, "flops": 1e12 * index}
            )  # fmt: skip
    write_lines(folder / "evals.jsonl", evals)
    write_lines(folder / "metrics.jsonl", [metrics_line(step, tasks) for step in range(1, 10 * evaluations - 9)])
    alarm = {"step": 7, "name": "truncated", "level": "alarm", "subject": "math", "message": f"too long {text}"}
    write_lines(folder / "alarms.jsonl", [alarm])
    lost = {"time": 1100.0, "event": "lost", "role": "generator", "name": "generator 1", "error": f"it died {text}"}
    back = {"time": 1130.0, "event": "recovered", "role": "generator", "name": "generator 1", "seconds": 30.0}
    write_lines(folder / "faults.jsonl", [lost, back])
    config = CONFIG.format(seed=seed, loss=loss, tokens=tokens) + f"Model.name = {json.dumps(text)}\n"
    (folder / "config.gin").write_text(config)
    manifest = {"experiment": name, "description": text, "seed": seed, "status": status, "started": 990.0,
                "wall_seconds": 3600.0, "clock": "wall", "hardware": {"devices": {"generator": 2}}}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if rollouts:
        for step in (0, 10 * (evaluations // 2), 10 * (evaluations - 1)):
            add_rollouts(folder, step, tasks, text, seed, per_task)
    return folder


def metrics_line(step: int, tasks: tuple[str, ...] = ("math",)) -> dict:
    return {
        "step": step, "time": 1000.0 + 6 * step, "loss": 0.1 / step, "entropy": 1.0 - step / 1000, "grad_norm": 1.0,
        "ratio_min": 0.5, "ratio_mean": 1.0, "ratio_max": 2.0, "staleness": {"0": 3, "2": 1}, "tokens": 640,
        "tasks": {task: {"pass_rate": 0.5, "truncated": 0.0, "outcomes": {"passed": 1}} for task in tasks},
        "seconds": {"wait": 2.0, "build": 0.1, "step": 3.0}, "generator_idle_seconds": 1.0 * step, "skipped": False,
    }  # fmt: skip


def rollout_rows(
    step: int, tasks: tuple[str, ...] = ("math", "code"), text: str = "", seed: int = 0, per_task: int = 6, k: int = 2
) -> list[dict]:
    rng = np.random.default_rng(seed + step)
    rows = []
    for task in tasks:
        for prompt in range(per_task):
            for _ in range(k):
                passed = bool(rng.random() < 0.3 + step / 300)
                pieces = [f"think {prompt}", " more", "</think>", f"answer {step}{text}"]
                rows.append(
                    {"task": task, "prompt_id": f"{task}/{prompt}{text}", "prompt": f"What is {prompt}?{text}",
                     "completion": "".join(pieces), "outcome": "passed" if passed else "failed",
                     "reward": float(passed), "detail": "" if passed else f"test 3: got 1, not {prompt}{text}",
                     "gold": f"{prompt}{text}" if task == "math" else "", "parts": '{"form": 1.0, "value": 0.5}',
                     "tokens": 4, "truncated": False, "interrupted": prompt == 0, "versions": [step, step + 1],
                     "pieces": pieces, "token_ids": [5, 6, 7, 8], "logprobs": [-0.1, -2.0, -0.01, -0.5],
                     "trainer_logprobs": [-0.1, -1.8, -0.01, -0.9], "forced": [False, False, True, False],
                     "spans": [[step, 0, 2], [step + 1, 2, 4]]}
                )  # fmt: skip
    return rows


def add_rollouts(
    folder: Path,
    step: int,
    tasks: tuple[str, ...] = ("math", "code"),
    text: str = "",
    seed: int = 0,
    per_task: int = 6,
    k: int = 2,
    tokens_only: bool = False,
) -> Path:
    """Completions of one evaluation; `tokens_only` has the numbers of tokens, as the loop writes them, and no texts."""
    import pyarrow
    import pyarrow.parquet

    (folder / "rollouts").mkdir(exist_ok=True)
    path = folder / "rollouts" / f"step_{step:06d}.parquet"
    rows = rollout_rows(step, tasks, text, seed, per_task, k)
    if tokens_only:
        rows = [{name: value for name, value in row.items() if name != "pieces"} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
