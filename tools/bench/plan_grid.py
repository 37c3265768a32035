"""Seconds of a step by `scalelab plan` and by `scalelab simulate`, over a grid of experiments and cluster sizes.

    .venv/bin/python tools/bench/plan_grid.py [--hours 3] [--evaluations]

Evaluations are left out of both unless asked for; with them each simulation has several. Prints the pairs that differ
by more than `WITHIN`, and how many do not.
"""

from __future__ import annotations

import argparse
import io
import json
from contextlib import redirect_stdout

from scalelab.cli import main as scalelab
from scalelab.experiment import load

WITHIN = 0.05
"""Largest relative difference that needs no reason."""

STEPS = 60
"""Least of a simulation: a mean of fewer is off by more than `WITHIN`."""

EVALUATIONS = 4.5
"""Evaluations in a simulation, which all these experiments make every 100 steps."""

SIZES = {
    "h100/scalerl_8b": (40, 80, 160, 400, 800, 1000),
    "scalerl_8b": (40, 80, 160, 400),
    "h100/scalerl_17bx16": (80, 160, 320, 640),
    "scalerl_17bx16": (80, 160, 400),
    "qwen/qwen3_8b": (80, 160, 400),
    "qwen/qwen25_7b": (80, 160),
    "qwen/qwen3_30b_a3b": (80, 160, 320),
    "h100/scalerl_8b_node": (8,),
    "h100/scalerl_17bx16_least": (40,),
    "h200/scalerl_17bx16_least": (24,),
    "h100/scalerl_8b_512": (512,),
    "h100/scalerl_17bx16_512": (512,),
}
"""Devices in all of an experiment."""

ROUNDS = ("Synchronous", "PPOOffPolicy")
"""Schedules other than an experiment's own."""

FAMILIES = ("axes", "leave_one_out", "recipes", "additions")
"""Families whose members are planned on the devices of their own."""


def grid() -> list[list[str]]:
    """Arguments of every experiment, each twice at most: with its own schedule, and the first with less staleness."""
    sized = [[name, "--gpus", str(gpus)] for name, sizes in SIZES.items() for gpus in sizes]
    staleness = [
        [name, "--set", f"PipelineRL.k={k}"] for name in ("h100/scalerl_8b", "scalerl_8b") for k in (1, 2, 4, 16)
    ]
    rounds = [
        [name, "--set", f"Run.schedule=@{schedule}()"]
        for name in ("h100/scalerl_8b", "scalerl_8b", "h100/scalerl_17bx16", "scalerl_17bx16")
        for schedule in ROUNDS
    ]
    return sized + staleness + rounds + [[member] for family in FAMILIES for member in load(family)]


def read(command: list[str]) -> dict[str, dict[str, float]]:
    """The JSON of a command."""
    out = io.StringIO()
    with redirect_stdout(out):
        scalelab([*command, "--json"])
    return dict(json.loads(out.getvalue()))


def main() -> None:
    """Plan and simulate every experiment of the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", default="3", help="of simulated time")
    parser.add_argument("--evaluations", action="store_true", help="with evaluations")
    asked = parser.parse_args()
    none = ["--set", "Evaluation.every=1000000"]
    pairs = [[*one, *([] if asked.evaluations else none)] for one in grid()]
    if asked.evaluations:
        pairs += [["h100/scalerl_8b", "--set", one] for one in ("Evaluation.engines=0", "Evaluation.samples=64")]
    beyond = 0
    for arguments in pairs:
        planned = read(["plan", *arguments])["seconds"]
        hours = f"{max(float(asked.hours), STEPS * planned['step'] / 3600):.3g}"
        if asked.evaluations:
            hours = f"{EVALUATIONS * 100 * planned['step'] / 3600:.3g}"
        simulated = read(["simulate", *arguments, "--no-search", "--hours", hours])["split"]["seconds_per_step"]
        difference = planned["step"] / simulated - 1
        beyond += abs(difference) > WITHIN
        mark = "beyond" if abs(difference) > WITHIN else ""
        parts = ", ".join(f"{part} {planned[part]:.1f}" for part in ("train", "generate", "publish", "hold"))
        shown = " ".join(one for one in arguments if one not in none)
        print(
            f"{shown}: {planned['step']:.1f} {simulated:.1f} {difference:+.1%} {mark} ({parts})",
            flush=True,
        )
    print(f"{len(pairs) - beyond} of {len(pairs)} within {WITHIN:.0%}")


if __name__ == "__main__":
    main()
