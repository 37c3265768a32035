"""The study: tables and a picture of docs/study from the evaluations and configurations that lie there.

    python tools/bench/study.py                      # make docs/study/README.md's tables and its picture again
    python tools/bench/study.py --take runs/study    # first copy finished runs into docs/study/runs
    python tools/bench/study.py --second --take runs/study_two    # the same of the second study, into two/runs
    python tools/bench/study.py --exercised RUN...   # which ingredients had something to do, as the counters say

Runs that were made a second time lie in docs/study/again; their evaluations are compared byte by byte.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sections import replace_section
from study_tables.ends import ends_table
from study_tables.exercised import exercised_table
from study_tables.falls import falls_table
from study_tables.predictability import forecasts_table
from study_tables.questions import QUESTIONS, glance, members_of
from study_tables.runs import StudyRuns, repeated, take

from scalelab.report.plots import plot_fits

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study"


def facts(runs: StudyRuns) -> str:
    """Runs and what they cost, in a sentence."""
    manifests = runs.manifests()
    cpu = sum(sum(one["cpu_seconds"].values()) for one in manifests.values()) / 3600
    commits = len({one["git_commit"][:10] for one in manifests.values()})
    twice = repeated(runs.folder)
    copies = sum(len(item.seeds) for item in runs.curves if runs.copies(item.run)) // len(runs.tasks())
    said = [
        f"{len(manifests)} runs of {len(runs.members())} members, {cpu:.1f} core-hours, made at {commits} commits;",
        f"{copies} of them are another member's to the last byte.",
        f"Runs made twice: {len(twice)}, with the same bytes: {sum(same for _, same in twice)}.",
    ]
    return " ".join(said)


def write(study: Path) -> None:
    """Write the tables into README.md, and draw the picture."""
    runs = StudyRuns.read(study / "runs")
    items = runs.of(members_of(QUESTIONS[0], runs))
    plot_fits([item.fit.curve for item in items], items, study / "recipes.png")
    parts = [facts(runs), "", "### All answers", "", glance(runs), "", "### Falls", "", falls_table(runs), ""]
    parts += ["### Forecasts from part of a run", "", forecasts_table(runs), ""]
    replace_section(
        study / "README.md", "<!-- made by tools/bench/study.py -->", "<!-- end -->", "\n" + "\n".join(parts)
    )
    second(study)


def second(study: Path) -> None:
    """Write the ends of the second study's runs into README.md."""
    begin = "<!-- made by tools/bench/study.py --second -->"
    replace_section(study / "README.md", begin, "<!-- end -->", f"\n{ends_table(study / 'two' / 'runs')}\n")


def main() -> None:
    """Copy runs if asked to, then write tables and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default docs/study)")
    parser.add_argument(
        "--take", type=Path, help="folder of the family, such as runs/study, to copy finished runs from"
    )
    parser.add_argument(
        "--second", action="store_true", help="make the table of the second study's runs alone (two/runs)"
    )
    parser.add_argument(
        "--exercised", type=Path, nargs="+", metavar="RUN", help="print what these runs exercised, and do nothing else"
    )
    given = parser.parse_args()
    if given.exercised:
        print(exercised_table(given.exercised))
        return
    if given.take is not None:
        take(given.take, given.study / ("two/runs" if given.second else "runs"))
    if given.second:
        second(given.study)
    else:
        write(given.study)


if __name__ == "__main__":
    main()
