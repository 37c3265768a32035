"""Rates of wrong words: simulated studies like this one, and members held against themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scalelab.curves import Analysis, compare
from scalelab.curves.calibrate import SimulatedDesign, calibrate, like
from scalelab.curves.compare import against
from scalelab.curves.comparison import Comparison
from scalelab.kept import Kept, key_of, user_folder
from scalelab.numbers import share
from study_tables.runs import BASELINE, CENTRES, FIRST, MANY, StudyRuns, fits, table

VERDICTS = 30
"""Simulated verdicts for each true difference, task and design: each takes a fit of all seeds of a recipe."""

DIFFERENCES = (0.0, 0.02, 0.05)
"""True differences of simulated recipes."""

DESIGNS = ((CENTRES[MANY], 3), (FIRST + BASELINE, 3))
"""Member whose curve, drift and spread are simulated, and seeds of each recipe."""

HALVES = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
"""Three ways to halve four seeds."""


def error_rates(recipes: Sequence[Comparison]) -> str:
    """Words said of simulated recipes like those of comparisons, by their true difference, and of whole families.

    They are kept in the user's cache by what is simulated.
    """
    designs = {}
    for member, seeds in DESIGNS:
        mine = [one for one in recipes if member in (one.baseline, *one.verdicts)]
        if mine:
            designs[member, seeds] = [replace(like(one), seeds=seeds) for one in against(mine, member)]
    key = key_of("words of the study", designs, VERDICTS, DIFFERENCES)
    found: str = Kept(user_folder()).get(key, lambda: _simulated(designs))
    return found


def _simulated(designs: Mapping[tuple[str, int], Sequence[SimulatedDesign]]) -> str:
    rows, sentences = [], []
    for (member, seeds), settings in designs.items():
        found = calibrate(settings, VERDICTS, DIFFERENCES)
        for task, lines in found.rates.items():
            for line in lines:
                shares = (line.better, line.worse, line.equal, line.cannot_tell, line.wrong)
                cells = [share(one, line.pairs) for one in shares]
                rows.append([f"`{member}`", str(seeds), task, f"{line.difference:+.3f}", *cells])
        sentences.append(f"- Like `{member}`, {seeds} seeds: {found.sentence()}")
    header = ["curves like", "seeds", "task", "true difference", "better", "worse", "equal", "cannot tell", "false"]
    return "\n".join([table(header, rows), "", *sentences])


def controls(runs: StudyRuns) -> str:
    """Members with four seeds or more against themselves: the words of all ways to halve four seeds.

    Better and worse are false here, and equal is right. Halves of the same seeds are not independent.
    """
    said: dict[str, Counter[str]] = {}
    for member in runs.members():
        for first in range(0, runs.seeds(member) - 3, 4):
            for one, other in HALVES:
                words = said.setdefault(member, Counter())
                words.update(_halves(runs, member, [first + at for at in one], [first + at for at in other]))
    rows = [[f"`{member}`", *(str(words[word]) for word in WORDS)] for member, words in said.items()]
    total = sum(said.values(), Counter())
    rows.append(["all", *(str(total[word]) for word in WORDS)])
    return table(["member against itself", *WORDS], rows)


WORDS = ("better", "worse", "equal", "unstable", "cannot tell")


def _halves(runs: StudyRuns, member: str, one: Sequence[int], other: Sequence[int]) -> list[str]:
    """Words of one half of a member's seeds against the other, on all tasks."""
    halves = [
        replace(item.select(np.isin(item.seed_N, mine)), run=name)
        for item in runs.curves
        if item.run == member
        for name, mine in (("first", one), ("second", other))
    ]
    items, _ = fits(halves)
    both = [item for item in items if _has_both(items, item.fit.curve.task)]
    others = [item for item in runs.like(member) if item.fit.curve.run != member]
    found = compare(both, spread_from=others, baseline="first") if both else []
    return [one.verdicts["second"] for one in found]


def _has_both(items: Sequence[Analysis], task: str) -> bool:
    return {item.fit.curve.run for item in items if item.fit.curve.task == task} == {"first", "second"}
