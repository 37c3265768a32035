"""Processor time of the commands, on the committed runs of the study and on simulated logs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from curve_tables.common import ROOT, markdown
from curve_tables.families import FAMILIES, Family, seeds_family, simulate
from scalelab.curves import Curve


def speed_section() -> str:
    """Processor time of whole commands, the start of Python included."""
    runs = [str(folder) for folder in sorted((ROOT / "docs/study/runs").iterdir())]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = _write(folder / "one.csv", [_of(FAMILIES["sigmoid, AR(1)"], 0)])
        nine = [_write(folder / f"recipe_{at}.csv", [_of(seeds_family(4, 0.0125), at)]) for at in range(9)]
        rows = _rows(folder / "rows.jsonl", 1_000_000)
        cells = [
            ["`fit` of one run", _spent(["fit", one], folder)],
            ["`compare` of 9 recipes with 4 seeds", _spent(["compare", *nine], folder)],
            ["`compare` of docs/study: 43 recipes, 138 runs, 2 tasks", _spent(["compare", *runs], folder)],
            ["the same once more", _spent(["compare", *runs], folder)],
            ["`law` over docs/study, axis `lr`", _spent(["law", *runs, "--axis", "OptimizerConfig.lr"], folder)],
            ["`fit` of 1,000,000 rows of JSON lines", _spent(["fit", rows], folder)],
        ]
    return markdown(["what", "processor time"], cells)


def _spent(argv: Sequence[str], cache: Path) -> str:
    before = os.times()
    environment = os.environ | {"SCALELAB_CACHE": str(cache)}
    command = [sys.executable, "-m", "scalelab", *argv]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=False)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return f"{spent:.1f} s"


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
