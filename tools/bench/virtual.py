"""Speed of virtual runs: one alone, two side by side on a core each, and a run on the wall clock on all cores.

    .venv/bin/python tools/bench/virtual.py [--steps 20] [--rounds 3]

All four are the quickstart's model, tasks and recipe from one base model. Completions per second are those of optimiser
steps, from the end of the first step in the window to the end of the last, without evaluations. The speed of a
shared machine changes while they run, so measure several rounds. Nothing is asserted: the table is the result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from scalelab.experiment import resolve
from scalelab.store.lines import read_lines

WARM_UP = 10
"""Steps before the measurement begins."""

QUIET = ("Evaluation.every=100000", "Evaluation.prompts=8", "Run.checkpoint_every=100000")


def start(experiment: str, folder: Path, steps: int, core: int | None = None) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own, on one core or on all."""
    command = [sys.executable, "-m", "scalelab", "run", experiment, "--out", str(folder)]
    for binding in (*QUIET, f"Budget.steps={WARM_UP + steps}"):
        command += ["--set", binding]
    pin = ["taskset", "-c", str(core)] if core is not None else []
    return subprocess.Popen([*pin, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def speed(folder: Path, completions: int) -> float:
    """Completions trained on in a second, after the warm-up."""
    wall = [line["time"] for line in read_lines(folder / "wall.jsonl") if line["of"] == "step"]
    times = wall or [line["time"] for line in read_lines(folder / "metrics.jsonl")]
    window = times[WARM_UP - 1 :]
    return (len(window) - 1) * completions / (window[-1] - window[0])


def measure(experiment: str, root: Path, steps: int, cores: list[int | None]) -> list[float]:
    """Speeds of runs that are started together."""
    folders = [root / f"{experiment.replace('/', '_')}_{len(cores)}_{number}" for number in range(len(cores))]
    runs = [start(experiment, folder, steps, core) for folder, core in zip(folders, cores, strict=True)]
    if any(run.wait() for run in runs):
        raise SystemExit(f"{experiment} failed: start it by hand to see why")
    per_step = resolve("quickstart").run.recipe.completions_per_step
    return [speed(folder, per_step) for folder in folders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps measured")
    parser.add_argument("--rounds", type=int, default=1, help="how often all are measured, in turn")
    args = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two runs side by side need two cores")
    virtual = "schedules_miniature/pipeline_8"
    head = ("one virtual run alone on a core", "two side by side", "a run on the wall clock, all cores")
    ratios = ("both, of one alone", "both, of the run on the wall clock")
    print("|", " | ".join((*head, *ratios)), "|\n|---|---|---|---|---|")
    of_one, of_wall = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="bench_virtual_") as folder:
            root = Path(folder)
            [single] = measure(virtual, root, args.steps, [0])
            pair = measure(virtual, root, args.steps, [0, 1])
            [wall] = measure("quickstart", root, args.steps, [None])
        of_one.append(sum(pair) / single)
        of_wall.append(sum(pair) / wall)
        each = f"{pair[0]:.0f} + {pair[1]:.0f}"
        print(f"| {single:.0f} | {each} | {wall:.0f} | {of_one[-1]:.2f} | {of_wall[-1]:.2f} |", flush=True)
    print(f"medians: {median(of_one):.2f} of one alone, {median(of_wall):.2f} of the run on the wall clock")


if __name__ == "__main__":
    main()
