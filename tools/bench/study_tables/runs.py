"""Runs of a study: where they lie, their curves, their inside, what they cost."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalelab.curves import Analysis, Curve, Options, pool_seeds
from scalelab.curves.kept import analyse_kept
from scalelab.kept import user_folder
from study_tables.axes import HOURS, read_axis
from study_tables.course import COURSE, write_course
from study_tables.outcomes import OUTCOMES, write_outcomes

KEPT = ("evals.jsonl", "config.gin", "manifest.json")
BASELINE = "scalerl"
FIRST = "first_base_"
"""Beginning of the names of members of an earlier version of the lab, which had another base model."""
MANY = "many_"
"""Beginning of the names of members with 1,024 prompts a task; the others have 256."""
LONG = "long_"
"""Beginning of the names of members with 4,096 prompts a task and twice the hours of the others."""
OTHER_BASES = ("base_1_", "base_2_")
"""Beginnings of the names of members with 1,024 prompts that start from base models of other seeds."""
CENTRES = {
    **{beginning: beginning + BASELINE for beginning in (FIRST, *OTHER_BASES, LONG)},
    MANY: "prompts_1024",
    "": BASELINE,
}
"""ScaleRL among the members whose names begin so, which are compared with it."""
BENCHMARK = "benchmark"
"""Member that has a benchmark as a third task, and the baseline's evaluations on the others."""
AGAIN = "again"
"""Folder, beside the runs, of those that were made a second time."""


def take(source: Path, runs: Path) -> None:
    """Copy what is kept of every finished run below the folder of a family."""
    for manifest in sorted(source.glob("*/seed_*/manifest.json")):
        if json.loads(manifest.read_text())["status"] != "finished":
            print(f"left out, not finished: {manifest.parent}")
            continue
        target = runs / manifest.parent.relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copyfile(manifest.parent / name, target / name)
        write_course(manifest.parent / "metrics.jsonl", target / COURSE)
        write_outcomes(manifest.parent / "rollouts", target / OUTCOMES)


@dataclass(frozen=True)
class StudyRuns:
    """All runs of a study over one axis, fitted.

    Attributes:
        folder: holds MEMBER/seed_S.
        curves: one for each member and task, its seeds pooled.
        analyses: their fits.
        refused: curves that carry no fit, with the reason.
    """

    folder: Path
    curves: tuple[Curve, ...]
    analyses: tuple[Analysis, ...]
    refused: tuple[dict[str, str], ...]

    @classmethod
    def read(cls, folder: Path, axis: str = HOURS) -> StudyRuns:
        """Read and fit the runs below a folder."""
        curves = read_members(folder, axis)
        analyses, refused = fits(curves)
        return cls(folder, tuple(curves), tuple(analyses), tuple(refused))

    def of(self, members: Sequence[str]) -> list[Analysis]:
        """Fits of some members, in that order."""
        return [item for name in members for item in self.analyses if item.fit.curve.run == name]

    def like(self, member: str) -> list[Analysis]:
        """Fits of members with several seeds that have the base model and the prompts of one, its own among them."""
        return [
            item
            for item in self.analyses
            if len(item.fit.curve.seeds) > 1 and beginning_of(item.fit.curve.run) == beginning_of(member)
        ]

    def curve(self, member: str, task: str) -> Curve | None:
        """The evaluations of a member on a task; None if it has no runs."""
        return next((item for item in self.curves if (item.run, item.task) == (member, task)), None)

    def seeds(self, member: str) -> int:
        """Number of runs that a member has."""
        return max((len(item.seeds) for item in self.curves if item.run == member), default=0)

    def members(self) -> list[str]:
        """Names of the members that have runs."""
        return list(dict.fromkeys(item.run for item in self.curves))

    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return sorted({item.task for item in self.curves})

    def unchanged(self, member: str, baseline: str) -> bool:
        """True if a member's runs have the evaluations of the baseline's with the same seeds, to the last byte."""
        mine = sorted((self.folder / member).glob("seed_*/evals.jsonl"))
        theirs = [self.folder / baseline / path.parent.name / path.name for path in mine]
        if member == baseline or not mine:
            return False
        pairs = zip(mine, theirs, strict=True)
        return all(other.is_file() and filecmp.cmp(path, other, shallow=False) for path, other in pairs)

    def copies(self, member: str) -> bool:
        """True if a member's runs are those of another member to the last byte."""
        return any(self.unchanged(member, other) for other in (BASELINE, "baseline_and_baseline"))

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Manifest of every run by MEMBER/seed_S."""
        found = sorted(self.folder.glob("*/seed_*/manifest.json"))
        return {path.parent.relative_to(self.folder).as_posix(): json.loads(path.read_text()) for path in found}


def read_members(folder: Path, axis: str) -> list[Curve]:
    """The curves of every member but the benchmark's, seeds pooled, under the names of their folders.

    Members of the first base model have the configurations of others, with which `scalelab` would pool them.
    """
    members = [path for path in sorted(folder.iterdir()) if any(path.glob("seed_*/evals.jsonl"))]
    return [
        replace(item, run=path.name)
        for path in members
        if path.name != BENCHMARK
        for item in pool_seeds(read_axis([path], axis))[0]
    ]


def beginning_of(member: str) -> str:
    """Beginning of a member's name, as in `CENTRES`: what members share that have one base model and one data set."""
    centres = {centre: beginning for beginning, centre in CENTRES.items()}
    return centres.get(member, next(beginning for beginning in CENTRES if member.startswith(beginning)))


def baseline_of(member: str) -> str:
    """ScaleRL from the base model, and with the prompts, of a member."""
    return CENTRES[beginning_of(member)]


def change_of(member: str) -> str:
    """Change that a member makes: its name without what it shares with its baseline; `BASELINE` for a baseline."""
    return BASELINE if member in CENTRES.values() else member.removeprefix(beginning_of(member))


def fits(curves: Sequence[Curve]) -> tuple[list[Analysis], list[dict[str, str]]]:
    """Fits without the checks of single curves, and refusals; what was fitted before comes from the user's cache."""
    return analyse_kept(curves, Options(checks=False), user_folder())


def fitted(item: Curve) -> Analysis | None:
    """The fit of one curve; None if it carries none."""
    found, _ = fits([item])
    return found[0] if found else None


def repeated(folder: Path) -> list[tuple[str, bool]]:
    """Runs that were made twice, and whether both have the same evaluations to the last byte."""
    found = sorted((folder.parent / AGAIN).glob("*/seed_*/evals.jsonl"))
    pairs = [(path, folder / path.relative_to(folder.parent / AGAIN)) for path in found]
    return [
        (first.parent.relative_to(folder).as_posix(), filecmp.cmp(second, first, shallow=False))
        for second, first in pairs
        if first.is_file()
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
