"""The study's figure for a talk: what staleness does by learning rate and loss, and what few prompts do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scalelab.report.plots import STYLE
from scalelab.view.palette import MARKERS, codes
from study_tables.ends import ends
from study_tables.falls import GRID
from study_tables.runs import BASELINE, StudyRuns

PROMPTS = {"prompts_64": "64", BASELINE: "256", "prompts_1024": "1,024", "prompts_4096": "4,096"}
"""Members by their training prompts a task."""

LOSSES = {"cispo": "CISPO", "dapo": "DAPO's clip"}

STALENESS = (1, 8, 32)

BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncol": 2}
"""Place of a legend that covers no line."""


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
    for (member, prompts), code in zip(PROMPTS.items(), codes(len(PROMPTS))):
        item = runs.curve(member, "math")
        if item is None:
            continue
        seeds = [item.select(item.seed_N == at) for at in range(len(item.seeds))]
        grid_N = np.linspace(0, min(one.compute_N.max() for one in seeds), 17)
        mean_N = np.mean([np.interp(grid_N, one.compute_N, one.pass_rate_N) for one in seeds], axis=0)
        style = {"color": code["color"], "ls": code["dash"]}
        axis.plot(grid_N, mean_N, MARKERS[code["symbol"]], lw=1.8, label=f"{prompts} prompts a task", **style)
    axis.set(ylim=(0, 0.75), xlim=(0, None), xlabel="compute (GPU-hours, simulated)", ylabel="held-out pass rate")
    axis.set_title("Math, by training prompts (learnt ones retire)", fontsize=10.5)
    axis.legend(**BELOW)
