"""Print what a run takes and costs as its cluster grows to a thousand devices and more, by `scalelab plan`.

    .venv/bin/python tools/bench/thousand.py

Each row is an experiment on so many H100, with its own batch and with one that grows with the cluster; evaluations are
left out. Prompts come with 16 completions. Costs are at `PRICE` an hour of a device; they grow in proportion.
"""

from __future__ import annotations

from scalelab.experiment import load, resolve_experiment
from scalelab.hardware import device
from scalelab.plan.driver import driver_seconds
from scalelab.plan.idle import idle
from scalelab.plan.placement import resize
from scalelab.plan.planner import plan_of
from scalelab.plan.speed import Assumptions

EXPERIMENTS = ("h100/scalerl_8b", "h100/scalerl_17bx16")
SIZES = (80, 320, 1000, 10_000)
HOME = 80
"""Devices of the experiments themselves."""
PRICE = 2.5
"""Example of a price of a device's hour."""


def main() -> None:
    """Print the table."""
    cost = f"at {PRICE:g} an hour"
    print(
        f"| experiment | H100 | completions a step | s a step | GPU-hours a million | {cost} | trainer idle | held by |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in EXPERIMENTS:
        for size in SIZES:
            own = (48,) if size < SIZES[-1] else ()
            for prompts in dict.fromkeys((*own, 48 * size // HOME)):
                print(row(name, size, prompts))


def row(name: str, devices: int, prompts: int) -> str:
    """One line: an experiment on so many devices, with so many prompts a step."""
    ((member, experiment),) = load(name).items()
    settings = [f"Recipe.prompts_per_step={prompts}", "Evaluation.every=1000000"]
    run = resolve_experiment(member, experiment, settings).run
    plan = plan_of(run, resize(run, devices), device("h100"), Assumptions())
    seconds = plan.seconds
    step, completions = seconds["step"], run.recipe.completions_per_step
    limits = {"trainer": seconds["train"], "engines": seconds["generate"], "longest completion": seconds["hold"]}
    limits["driver"] = driver_seconds(completions)
    held = max(limits, key=limits.__getitem__)
    hours = devices * step / 3600 / completions * 1e6
    cost, idles = hours * PRICE, idle(plan)
    size = f"{devices:,} | {completions:,}"
    return f"| {name} | {size} | {step:.1f} | {hours:,.0f} | {cost:,.0f} | {idles:.0%} | {held} |"


if __name__ == "__main__":
    main()
