"""Processor time of the commands, on the committed runs of the study and on simulated logs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from curve_tables.common import ROOT, markdown
from curve_tables.families import FAMILIES, Family, seeds_family, simulate
from scalelab.curves import Curve

TIMES = 3
"""Measurements of each command, of which the median is told: the machine has other work."""


def speed_section() -> str:
    """Processor time of whole commands, the start of Python included, beside what is aimed at."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "docs/study/runs", folder / "runs")
        runs = [str(one) for one in sorted((folder / "runs").iterdir())]
        one = _write(folder / "one.csv", [_of(FAMILIES["sigmoid, AR(1)"], 0)])
        nine = [_write(folder / f"recipe_{at}.csv", [_of(seeds_family(4, 0.0125), at)]) for at in range(9)]
        rows = _rows(folder / "rows.jsonl", 1_000_000)
        kept, fresh = folder / "kept", folder / "fresh"
        cells = [
            ["`fit` of one run", "0.15 s more than Python", _spent(["fit", one], fresh)],
            ["`compare` of 9 recipes with 4 seeds", "4 s", _spent(["compare", *nine], fresh)],
            ["`compare` of docs/study: 43 recipes, 138 runs, 2 tasks", "20 s", _spent(["compare", *runs], fresh, kept)],
        ]
        evaluate_once_more(folder / "runs" / "without_loss" / "seed_1" / "evals.jsonl")
        cells += [
            ["after one more evaluation of one run", "2 s", _spent(["compare", *runs], fresh, begin=kept)],
            ["`law` over docs/study", "30 s", _spent(["law", *runs, "--axis", "OptimizerConfig.lr"], fresh)],
            ["`fit` of 1,000,000 rows of JSON lines", "5 s", _spent(["fit", rows], fresh)],
        ]
    return markdown(["what", "aim", "processor time"], cells)


def evaluate_once_more(path: Path) -> None:
    """Add an evaluation of all tasks to a run's `evals.jsonl`: the last one, at 2 % more of all that was spent."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    spent = ("compute", "completions", "tokens", "flops", "time")
    later = [
        record | {"step": record["step"] + 5} | {name: type(record[name])(1.02 * record[name]) for name in spent}
        for record in records
        if record["step"] == records[-1]["step"]
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in later)


def _spent(argv: Sequence[str], cache: Path, keep: Path | None = None, begin: Path | None = None) -> str:
    """Processor time of a command: the median, and all measurements.

    Args:
        argv: its arguments.
        cache: its cache, empty at the start of each.
        keep: where the cache of the last stays.
        begin: a cache that each begins with.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(TIMES):
        shutil.rmtree(cache, ignore_errors=True)
        if begin is not None:
            shutil.copytree(begin, cache)
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "scalelab", *argv],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment | {"SCALELAB_CACHE": str(cache)},
            check=False,
        )
        after = os.times()
        found.append(after.children_user + after.children_system - before.children_user - before.children_system)
    if keep is not None:
        shutil.copytree(cache, keep)
    return f"{np.median(found):.2f} s ({', '.join(f'{one:.2f}' for one in found)})"


def _of(family: Family, seed: int) -> Curve:
    return simulate(family, np.random.default_rng(seed)).item


def _write(path: Path, items: Sequence[Curve]) -> str:
    lines = ["compute,pass_rate,stderr,seed"]
    for item in items:
        errors = item.stderr_N if item.stderr_N is not None else np.zeros(len(item))
        names = (item.seeds[at] for at in item.seed_N)
        lines += [f"{c},{r},{e},{s}" for c, r, e, s in zip(item.compute_N, item.pass_rate_N, errors, names)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _rows(path: Path, count: int) -> str:
    rng = np.random.default_rng(0)
    compute = np.arange(1, count + 1)
    rate = 0.2 + 0.4 / (1 + (2e5 / compute) ** 1.6) + 0.02 * rng.standard_normal(count)
    path.write_text("".join(f'{{"compute": {c}, "pass_rate": {r:.4f}}}\n' for c, r in zip(compute, rate)))
    return str(path)
