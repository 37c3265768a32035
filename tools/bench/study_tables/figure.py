"""Pictures of the study: the mean curves of a question's members, and the figure for a talk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.report.plots import STYLE
from scalelab.view.palette import MARKERS, codes
from study_tables.ends import ends
from study_tables.falls import GRID
from study_tables.runs import BASELINE, CENTRES, LONG, MANY, StudyRuns

PROMPTS = {"prompts_64": "64", BASELINE: "256", "prompts_1024": "1,024", "prompts_4096": "4,096"}
"""Members by their training prompts a task."""

LOSSES = {"cispo": "CISPO", "dapo": "DAPO's clip"}

STALENESS = (1, 8, 32)

BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncol": 2}
"""Place of a legend that covers no line."""


@dataclass(frozen=True)
class QuestionPicture:
    """A picture above the answer to a question.

    Attributes:
        caption: what it shows.
        labels: name in the legend by member.
    """

    caption: str
    labels: Mapping[str, str]


PICTURES = {
    "recipes_long": QuestionPicture(
        "The five recipes with 4,096 prompts a task and twice the hours",
        {
            LONG + BASELINE: "ScaleRL",
            f"{LONG}deepseek_grpo": "GRPO",
            f"{LONG}qwen25_dapo": "DAPO",
            f"{LONG}magistral": "Magistral",
            f"{LONG}minimax_m1": "MiniMax",
        },
    ),
    "bases": QuestionPicture(
        "ScaleRL and Magistral from three base models",
        {
            CENTRES[MANY]: "ScaleRL, base 0",
            "base_1_scalerl": "ScaleRL, base 1",
            "base_2_scalerl": "ScaleRL, base 2",
            f"{MANY}magistral": "Magistral, base 0",
            "base_1_magistral": "Magistral, base 1",
            "base_2_magistral": "Magistral, base 2",
        },
    ),
    "without_many": QuestionPicture(
        "ScaleRL without one ingredient, 1,024 prompts a task",
        {
            CENTRES[MANY]: "ScaleRL",
            f"{MANY}without_length_control": "length penalty",
            f"{MANY}without_loss": "DAPO's clip",
            f"{MANY}without_schedule": "PPO-off-policy-8",
            f"{MANY}without_aggregation": "sample average",
            f"{MANY}without_advantage_norm": "norm by prompt",
            f"{MANY}without_zero_variance": "no variance kept",
        },
    ),
    "grid": QuestionPicture(
        "CISPO and DAPO's clip at twice the learning rate, by the steps that a rollout may be old",
        {
            f"k{steps}_fast_{loss}": f"{LOSSES[loss]}, {steps} step{'s' * (steps > 1)}"
            for loss in LOSSES
            for steps in STALENESS
        },
    ),
    "prompts": QuestionPicture(
        "ScaleRL by training prompts a task", {name: f"{few} prompts" for name, few in PROMPTS.items()}
    ),
    "axes_many": QuestionPicture(
        "ScaleRL with other lengths, batches and generations, 1,024 prompts a task",
        {
            CENTRES[MANY]: "64 tokens, batch 128, 8 generations",
            f"{MANY}length_56": "56 tokens",
            f"{MANY}length_96": "96 tokens",
            f"{MANY}batch_64": "batch 64",
            f"{MANY}batch_256": "batch 256",
            f"{MANY}generations_4": "4 generations",
            f"{MANY}generations_16": "16 generations",
            f"{MANY}generations_32": "32 generations",
        },
    ),
    "width": QuestionPicture(
        "Three widths, 256 and 1,024 prompts a task",
        {
            "width_64": "64, 256 prompts",
            BASELINE: "128, 256 prompts",
            "width_192": "192, 256 prompts",
            f"{MANY}width_64": "64, 1,024 prompts",
            CENTRES[MANY]: "128, 1,024 prompts",
            f"{MANY}width_192": "192, 1,024 prompts",
        },
    ),
    "tasks": QuestionPicture(
        "Trained on both tasks, and on one", {BASELINE: "both", "tasks_code": "code alone", "tasks_math": "math alone"}
    ),
    "noise": QuestionPicture(
        "Verdicts that err in training",
        {
            BASELINE: "right verdicts",
            "false_pass_10": "10 % of wrong ones pass",
            "false_pass_20": "20 % of wrong ones pass",
            "false_refusal_10": "10 % of right ones refused",
            "false_refusal_20": "20 % of right ones refused",
        },
    ),
}
"""Pictures by the section of the page that they stand in."""


def draw_question(runs: StudyRuns, picture: QuestionPicture, path: Path) -> None:
    """Draw the mean curves of a question's members on both tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({**STYLE, "font.size": 10, "legend.fontsize": 9, "lines.markersize": 4}):
        tasks = runs.tasks()
        figure, axes = pyplot.subplots(1, len(tasks), figsize=(10.0, 4.0))
        for axis, task in zip(axes, tasks):
            _draw_means(axis, runs, picture.labels, task)
            axis.set_title(task, fontsize=10.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=3 if len(labels) > 4 else len(labels))
        lines = -(-len(labels) // 3) if len(labels) > 4 else 1
        figure.tight_layout(w_pad=3, rect=(0, 0.03 + 0.055 * lines, 1, 1))
        figure.savefig(path, dpi=100)
        pyplot.close(figure)


def _draw_means(axis: Any, runs: StudyRuns, labels: Mapping[str, str], task: str) -> None:
    """Draw the mean of each member's seeds over compute."""
    for (member, label), code in zip(labels.items(), codes(len(labels))):
        item = runs.curve(member, task)
        if item is None:
            continue
        seeds = [item.select(item.seed_N == at) for at in range(len(item.seeds))]
        grid_N = np.linspace(0, min(one.compute_N.max() for one in seeds), 17)
        mean_N = np.mean([np.interp(grid_N, one.compute_N, one.pass_rate_N) for one in seeds], axis=0)
        style = {"color": code["color"], "ls": code["dash"]}
        axis.plot(grid_N, mean_N, MARKERS[code["symbol"]], lw=1.8, label=label, **style)
    axis.set(ylim=(0, None), xlim=(0, None), xlabel="compute (GPU-hours, simulated)", ylabel="held-out pass rate")


def draw(runs: StudyRuns, path: Path) -> None:
    """Draw the end of code by staleness, and math over compute by the number of prompts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({**STYLE, "font.size": 10, "legend.fontsize": 9, "lines.markersize": 5}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.0, 4.6))
        _draw_staleness(left, runs)
        _draw_prompts(right, runs)
        figure.tight_layout(w_pad=3)
        figure.savefig(path, dpi=200)
        pyplot.close(figure)


def _draw_staleness(axis: Any, runs: StudyRuns) -> None:
    lines = list(dict.fromkeys((cell.rate, cell.loss) for cell in GRID))
    for (rate, loss), code in zip(lines, codes(len(lines))):
        cells = [cell for cell in GRID if (cell.rate, cell.loss) == (rate, loss)]
        found = {cell.k: ends(item) for cell in cells if (item := runs.curve(cell.member, "code")) is not None}
        seeds = [(STALENESS.index(k), end) for k, each in found.items() for end in each]
        style = {"color": code["color"], "marker": MARKERS[code["symbol"]]}
        axis.scatter(*zip(*seeds), s=16, alpha=0.5, linewidths=0, **style)
        means = [(STALENESS.index(k), float(np.mean(each))) for k, each in found.items()]
        label = f"{LOSSES[loss]}, learning rate {rate}"
        axis.plot(*zip(*means), ls=code["dash"], lw=1.8, label=label, **style)
    axis.set(ylim=(0, 0.9), xlabel="steps that a rollout may be old", ylabel="held-out pass rate at the end")
    axis.set_xticks(range(len(STALENESS)), [str(k) for k in STALENESS])
    axis.set_title("Code at the end, by staleness, learning rate and loss", fontsize=10.5)
    axis.legend(**BELOW)


def _draw_prompts(axis: Any, runs: StudyRuns) -> None:
    _draw_means(axis, runs, {member: f"{prompts} prompts a task" for member, prompts in PROMPTS.items()}, "math")
    axis.set_ylim(0, 0.75)
    axis.set_title("Math, by training prompts (learnt ones retire)", fontsize=10.5)
    axis.legend(**BELOW)
