"""Print what a run takes as its cluster grows to a thousand devices, by `scalelab plan`.

    .venv/bin/python tools/bench/thousand.py

Each row is an experiment on so many H100, with its own batch and with one that grows with the cluster; evaluations are
left out. Prompts come with 16 completions.
"""

from __future__ import annotations

from scalelab.experiment import load, resolve_experiment
from scalelab.hardware import device
from scalelab.plan.placement import resize
from scalelab.plan.planner import plan_of
from scalelab.plan.speed import Assumptions

EXPERIMENTS = ("h100/scalerl_8b", "h100/scalerl_17bx16")
SIZES = (80, 320, 1000)
HOME = 80
"""Devices of the experiments themselves."""


def main() -> None:
    """Print the table."""
    print("| experiment | H100 | completions a step | s a step | GPU-hours a million | trainer idle | held by |")
    print("|---|---|---|---|---|---|---|")
    for name in EXPERIMENTS:
        for size in SIZES:
            for prompts in dict.fromkeys((48, 48 * size // HOME)):
                print(row(name, size, prompts))


def row(name: str, devices: int, prompts: int) -> str:
    """One line: an experiment on so many devices, with so many prompts a step."""
    ((member, experiment),) = load(name).items()
    settings = [f"Recipe.prompts_per_step={prompts}", "Evaluation.every=1000000"]
    run = resolve_experiment(member, experiment, settings).run
    seconds = plan_of(run, resize(run, devices), device("h100"), Assumptions()).seconds
    step, completions = seconds["step"], run.recipe.completions_per_step
    limits = {"trainer": seconds["train"], "engines": seconds["generate"], "longest completion": seconds["hold"]}
    held = max(limits, key=limits.__getitem__)
    hours = devices * step / 3600 / completions * 1e6
    idle = 1 - seconds["train"] / step
    return f"| {name} | {devices:,} | {completions:,} | {step:.1f} | {hours:,.0f} | {idle:.0%} | {held} |"


if __name__ == "__main__":
    main()
