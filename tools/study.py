"""The study: tables and pictures of docs/study from the evaluations and configurations that lie there.

    python tools/study.py                      # make docs/study/README.md's tables and its pictures again
    python tools/study.py --take runs/study    # first copy finished runs into docs/study/runs

Runs that were made a second time lie in docs/study/again; their evaluations are compared byte by byte.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from sections import replace_section
from study_tables.axes import law_section
from study_tables.claims import claims_table
from study_tables.inside import inside_table
from study_tables.predictability import forecasts_table, sweeps_table
from study_tables.questions import QUESTIONS, compared, glance, section
from study_tables.runs import StudyRuns, repeated, table, take

from scalelab.curves import Curve, analyse, compare
from scalelab.numbers import with_interval

STUDY = Path(__file__).resolve().parents[1] / "docs" / "study"


def control_section(runs: StudyRuns) -> str:
    """Two controls: the same configuration twice, and members of four seeds and more against themselves, by halves."""
    twice = repeated(runs.folder)
    same = sum(equal for _, equal in twice)
    lines = [f"Runs made twice: {len(twice)}; with the same evaluations to the last byte: {same}.", ""]
    rows = []
    for item in [one for one in runs.curves if len(one.seeds) >= 4]:
        half = len(item.seeds) // 2
        halves = [item.select(item.seed_N < half), item.select(item.seed_N >= half)]
        named = [analyse(replace(one, run=f"{one.run}, seeds {'/'.join(one.seeds)}")) for one in halves]
        [one] = compare(named)
        found = one.entries[0].differences[one.entries[1].run]
        shown = with_interval(found.median, found.interval)
        rows.append([item.task, one.entries[0].run, one.entries[1].run, shown, f"{one.spread[0]:.3f}", found.verdict])
    if rows:
        lines += [table(("task", "first", "second", "difference, 80 %", "spread between runs", "verdict"), rows), ""]
    return "\n".join(lines)


def cost_section(runs: StudyRuns) -> str:
    """Pretended GPU-hours and real processor time of all runs, member by member."""
    rows, hours, spent = [], 0.0, 0.0
    last = {(item.run, seed): _end(item, at) for item in runs.curves for at, seed in enumerate(item.seeds)}
    manifests = runs.manifests()
    for member in runs.members():
        mine = {name: facts for name, facts in manifests.items() if name.startswith(f"{member}/")}
        pretended = sum(end for (run, _), end in last.items() if run == member)
        cpu = sum(sum(facts["cpu_seconds"].values()) for facts in mine.values()) / 3600
        commits = {facts["git_commit"][:10] for facts in mine.values()}
        rows.append([member, str(len(mine)), f"{pretended:.1f}", f"{cpu:.2f}", ", ".join(sorted(commits))])
        hours, spent = hours + pretended, spent + cpu
    rows.append(["all", str(len(manifests)), f"{hours:,.0f}", f"{spent:.1f}", ""])
    return table(("member", "runs", "pretended GPU-hours", "core-hours of CPU", "commit"), rows)


def _end(item: Curve, seed: int) -> float:
    return float(np.max(item.compute_N[item.seed_N == seed]))


def write(study: Path) -> None:
    """Write the tables into README.md, and draw the pictures."""
    runs = StudyRuns.read(study / "runs")
    found = [one for one in (compared(question, runs) for question in QUESTIONS) if one is not None]
    parts = ["### All answers at a glance", "", glance(found), ""]
    parts += [section(one, runs, study) for one in found]
    parts += ["### The paper's claims", "", claims_table(found), ""]
    parts += ["### Forecasts from part of a run", "", forecasts_table(runs), ""]
    parts += ["### How early the ranking was known", "", sweeps_table(runs), ""]
    parts += ["### The law across the axes", "", law_section(runs)]
    parts += ["### Inside the runs", "", inside_table(runs), ""]
    parts += ["### Controls", "", control_section(runs)]
    parts += ["### What it cost", "", cost_section(runs), ""]
    parts += [f"- refused: {one['reason']}" for one in runs.refused]
    replace_section(study / "README.md", "<!-- made by tools/study.py -->", "<!-- end -->", "\n" + "\n".join(parts))
    print(study / "README.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, metavar="FAMILY", help="folder of the family to copy finished runs from")
    parser.add_argument("--again", type=Path, metavar="FAMILY", help="the same, of runs that were made a second time")
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default docs/study)")
    args = parser.parse_args()
    for source, folder in ((args.take, "runs"), (args.again, "again")):
        if source:
            take(source, args.study / folder)
    write(args.study)


if __name__ == "__main__":
    main()
