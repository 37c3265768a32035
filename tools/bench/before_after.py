"""Core-seconds of a virtual run in two versions of the lab, in turn, each pinned to one core.

    git worktree add /tmp/before 44e3751
    python -m tools.bench.before_after --before /tmp/before [--hours 6] [--rounds 2] [--spare]

Each run is `study/scalerl` from the base model that comes with its version. With `--spare`, a third run takes the
evaluations that `scalelab design` names. Nothing is asserted: the table is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from scalelab.store.lines import read_lines

TREE = Path(__file__).resolve().parents[2]
SPARING = ("Evaluation.early_samples=1", "Evaluation.samples=7", "Evaluation.full_from=0.9")
"""Settings that leave the pass rate at the end as exact as 4 samples in 20 evaluations (`scalelab design`)."""


def cost(tree: Path, folder: Path, hours: float, sets: tuple[str, ...]) -> tuple[float, float, float]:
    """Core-seconds of RL of a run, and those for each completion and for each that is trained on."""
    bindings = (f"Budget.hours={hours:g}", f"Evaluation.every_hours={hours / 20:g}", *sets)
    command = ["taskset", "-c", "0", sys.executable, "-m", "scalelab", "run", "study/scalerl", "--out", str(folder)]
    command += [word for binding in bindings for word in ("--set", binding)]
    paths = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))  # packages of then, perhaps
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        done = subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SystemExit(f"{tree} failed: {(folder.parent / f'{folder.name}.log').read_text()[-600:]}")
    seconds = json.loads((folder / "manifest.json").read_text())["cpu_seconds"]["rl"]
    evals = read_lines(folder / "evals.jsonl")
    trained = max(line["completions"] for line in evals)
    if not trained:
        raise SystemExit(f"{hours:g} GPU-hours are over before a step is: give more --hours")
    evaluated = sum(line["n_prompts"] * line["k"] for line in evals)
    return seconds, 1e3 * seconds / (trained + evaluated), 1e3 * seconds / trained


def main() -> None:
    """Print a row for each version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="the other version's files")
    parser.add_argument("--hours", type=float, default=6.0, help="simulated GPU-hours of each run")
    parser.add_argument("--rounds", type=int, default=1, help="how often all are measured, in turn")
    parser.add_argument("--spare", action="store_true", help="with the evaluations that design names, too")
    given = parser.parse_args()
    ways: dict[str, tuple[Path, tuple[str, ...]]] = {"before": (given.before, ()), "now": (TREE, ())}
    ways |= {"now, sparing evaluations": (TREE, SPARING)} if given.spare else {}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="bench_before_after_") as folder:
        for number in range(given.rounds):
            for at, (name, (tree, sets)) in enumerate(ways.items()):
                found[name].append(cost(tree, Path(folder) / f"{number}_{at}", given.hours, sets))
    columns = ("core-seconds of RL", "ms a completion", "ms a completion trained on", "of before")
    print("| |", " | ".join(columns), "|\n|---|---|---|---|---|")
    for name, costs in found.items():
        ratio = median(one[2] / before[2] for one, before in zip(costs, found["before"], strict=True))
        cells = [median(one[at] for one in costs) for at in range(3)]
        print(f"| {name} | {cells[0]:.1f} | {cells[1]:.2f} | {cells[2]:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
