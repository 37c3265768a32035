"""Table of the inside of the study's runs at their end, which tells recipes apart where pass rates do not say why."""

from __future__ import annotations

import numpy as np

from study_tables.course import COLUMNS, COURSE, read_course
from study_tables.runs import StudyRuns, table

LAST = 5
"""Parts at the end of a run that the table is about: the last quarter."""


def inside_table(runs: StudyRuns) -> str:
    """Every member's metrics over the last quarter of its compute, the mean of its seeds."""
    rows = []
    for member in runs.members():
        seeds = [read_course(path) for path in sorted(runs.folder.glob(f"{member}/seed_*/{COURSE}"))]
        if not seeds:
            continue
        steps = np.mean([sum(row["steps"] for row in seed) for seed in seeds])
        means = {name: np.mean([row[name] for seed in seeds for row in seed[-LAST:]]) for name in COLUMNS[2:]}
        first = np.mean([seed[0]["entropy"] for seed in seeds])
        rows.append(
            [
                member,
                f"{steps:.0f}",
                f"{first:.3f} → {means['entropy']:.3f}",
                f"{means['kl']:.2g}",
                f"{means['clipped']:.2%}",
                f"{means['largest_ratio']:.3g}",
                f"{means['gap']:.2g}",
                f"{means['staleness']:.1f}",
                f"{means['in_loss']:.0%}",
                f"{means['length']:.1f}",
            ]
        )
    header = (
        *("member", "steps", "entropy, nats", "KL of generator and trainer", "tokens clipped", "largest ratio"),
        *("log-prob gap", "staleness, steps", "prompts in the loss", "tokens a completion"),
    )
    return table(header, rows)
