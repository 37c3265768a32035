"""The miniature study: tables and pictures of docs/study from the evaluations and configurations that lie there.

    python tools/study.py                          # make docs/study/README.md's tables and its pictures again
    python tools/study.py --take runs/recipes_miniature [FAMILY...]   # first copy finished runs into docs/study/runs

The x-axis is completions trained on, not time: the runs shared their machine with other work, so a core-hour of one is
not a core-hour of another. CPU time and wall time of every run are in the table of runs.

Every seed has its own base model, and those differ more than recipes do. So the members of a part are compared by the
seeds that all of them have, and seed by seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sections import replace_section

from scalelab.curves import Curve, analyse_all, compare, read_sources
from scalelab.curves.compare import Comparison
from scalelab.experiment import read_settings
from scalelab.report.plots import plot_efficiency, plot_fits
from scalelab.report.tables import with_interval

STUDY = Path(__file__).resolve().parents[1] / "docs" / "study"
KEPT = ("evals.jsonl", "config.gin", "manifest.json")
UNIT = "thousand completions"
BASELINE = "recipes_miniature/scalerl"


@dataclass(frozen=True)
class Part:
    """One question of the study, and the runs that answer it."""

    title: str
    name: str
    runs: str
    """Runs of docs/study/runs, beside the baseline."""


PARTS = (
    Part("Five recipes", "recipes", "recipes_miniature/*"),
    Part("ScaleRL without one ingredient", "leave_one_out", "leave_one_out_miniature/*"),
    Part("Scaling axes", "axes", "axes_miniature/*"),
)


def take(sources: Sequence[Path], runs: Path) -> None:
    """Copy what is kept of every finished run below some families' folders."""
    for source in sources:
        for manifest in sorted(source.glob("*/seed_*/manifest.json")):
            if json.loads(manifest.read_text())["status"] != "finished":
                print(f"left out, not finished: {manifest.parent}")
                continue
            target = runs / source.resolve().name / manifest.parent.relative_to(source)
            target.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                shutil.copyfile(manifest.parent / name, target / name)


def completions_per_step(run: Path) -> int:
    """Prompts per step times generations per prompt, from the run's configuration."""
    settings = read_settings(run / "config.gin")
    return settings["Recipe.prompts_per_step"] * settings["Recipe.generations_per_prompt"]


def member_curves(member: Path) -> list[Curve]:
    """The curves of one member, its seeds pooled, against completions trained on."""
    first = min(member.glob("seed_*"))
    return read_sources([member], {"compute": "step"}, compute_scale=completions_per_step(first) / 1000, unit=UNIT)


def members_of(part: Part, runs: Path) -> list[Path]:
    """Folders of the members of a part, the baseline first."""
    found = [path for path in sorted(runs.glob(part.runs)) if any(path.glob("seed_*"))]
    baseline = runs / BASELINE
    return [baseline, *(path for path in found if path != baseline)] if baseline.is_dir() else found


def shared_seeds(curves: Sequence[Curve]) -> list[str]:
    """The seeds that all curves have."""
    return sorted(set.intersection(*(set(item.seeds) for item in curves)))


def of_seeds(item: Curve, seeds: Sequence[str]) -> Curve:
    """A curve with the points of some seeds."""
    return item.select(np.isin(np.array(item.seeds)[item.seed_N], seeds))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparison_table(one: Comparison) -> str:
    """One task: by A, then by B at the common A; and what was seen, without any fit."""
    baseline = BASELINE.rpartition("/")[2]
    seen = {entry.run: seen_before(entry.analysis.fit.curve, one.at) for entry in one.entries}
    rows = []
    for entry in one.entries:
        item = entry.analysis
        curve, parameters = item.fit.curve, item.fit.parameters
        rows.append(
            [
                str(entry.rank),
                entry.run,
                f"{curve.pass_rate_N[curve.compute_N == 0].mean():.3f}",
                " / ".join(f"{rate:.3f}" for rate in seen[entry.run]),
                "–" if entry.run == baseline else difference(seen[entry.run] - seen[baseline]),
                with_interval(parameters["A"], item.intervals["A"]),
                with_interval(entry.B_at_common_A, entry.B_interval) if entry.tied_with else "–",
                with_interval(parameters["C_mid"], item.intervals["C_mid"]),
                with_interval(*entry.rate),
                f"{entry.beats[baseline]:.0%}" if baseline in entry.beats else "–",
            ]
        )
    at = f"{one.at:.3g}"
    header = [
        "rank",
        "run",
        "step 0",
        f"seen before {at}, by seed",
        f"less {baseline}'s",
        "A",
        "B at common A",
        "C_mid",
        f"curve at {at}",
        f"beats {baseline} at {at}",
    ]
    return table(header, rows)


def seen_before(item: Curve, at: float) -> np.ndarray:
    """Mean pass rate of the evaluations in the last quarter before some compute, for each seed."""
    late_N = (item.compute_N > 0.75 * at) & (item.compute_N <= at)
    order = np.argsort(item.seeds)
    return np.array([item.pass_rate_N[late_N & (item.seed_N == seed)].mean() for seed in order])


def difference(by_seed: np.ndarray) -> str:
    """The mean of differences between runs of the same seed, with its standard error where there are several."""
    if len(by_seed) == 1:
        return f"{by_seed[0]:+.3f}"
    return f"{by_seed.mean():+.3f} ± {by_seed.std(ddof=1) / np.sqrt(len(by_seed)):.3f}"


def write_part(part: Part, study: Path) -> str:
    """Pictures and Markdown of one part."""
    members = members_of(part, study / "runs")
    text = [f"### {part.title}", ""]
    if len(members) < 2:
        return "\n".join([*text, "No runs yet.", ""])
    curves = [curve for member in members for curve in member_curves(member)]
    seeds = shared_seeds(curves)
    curves = [of_seeds(curve, seeds) for curve in curves]
    analyses, refused = analyse_all(curves)
    comparisons = compare(analyses)
    plot_fits(curves, analyses, study / f"{part.name}.png")
    runs = [curve.run for curve in curves]
    plot_efficiency(comparisons, study / f"{part.name}_efficiency.png", runs)
    text += [f"Seeds compared: {', '.join(seed.split()[-1] for seed in seeds)}.", ""]
    for one in comparisons:
        text += [f"**{one.task}**, {UNIT}; intervals 80 %.", "", comparison_table(one), ""]
        text += [f"{note}." for note in one.notes]
        text.append("")
    text += [f"- refused: {one['reason']}" for one in refused]
    text += [f"![Held-out pass rate, {part.title.lower()}]({part.name}.png)", ""]
    text += [f"![Efficiency, {part.title.lower()}]({part.name}_efficiency.png)", ""]
    return "\n".join(text)


def runs_table(study: Path) -> str:
    """Every run with what it cost."""
    rows, cpu, wall = [], 0.0, 0.0
    for manifest in sorted((study / "runs").glob("*/*/seed_*/manifest.json")):
        facts = json.loads(manifest.read_text())
        spent, seconds = sum(facts["cpu_seconds"].values()), facts["wall_seconds"]
        cpu, wall = cpu + spent, wall + seconds
        name = manifest.parent.relative_to(study / "runs").as_posix()
        rows.append(
            [
                name,
                f"{spent / 3600:.3f}",
                f"{facts['cpu_seconds']['rl'] / 3600:.3f}",
                f"{seconds / 60:.1f}",
                facts["git_commit"][:12],
            ]
        )
    rows.append([f"{len(rows)} runs", f"{cpu / 3600:.2f}", "", f"{wall / 60:.0f}", ""])
    return table(["run", "core-hours of CPU", "of them RL", "wall minutes", "commit"], rows)


def write(study: Path) -> None:
    """Write the tables into README.md, and draw the pictures."""
    parts = [write_part(part, study) for part in PARTS]
    made = "\n".join([*parts, "### The runs", "", runs_table(study), ""])
    readme = study / "README.md"
    replace_section(readme, "<!-- made by tools/study.py -->", "<!-- end -->", f"\n{made}")
    print(readme)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, nargs="+", default=[], metavar="FAMILY", help="families to copy runs from")
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default docs/study)")
    args = parser.parse_args()
    take(args.take, args.study / "runs")
    write(args.study)


if __name__ == "__main__":
    main()
