"""The study: tables and pictures of docs/study from the evaluations and configurations that lie there.

    python tools/bench/study.py                            # make the pages and pictures of the second study again
    python tools/bench/study.py --take runs/study_two      # first copy finished runs into docs/study/two/runs
    python tools/bench/study.py --first                    # make the section of the first study's page again
    python tools/bench/study.py --exercised RUN...         # which ingredients had something to do, as the counters say

Fits are kept in the user's cache: a second call takes a third of the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sections import replace_section
from study_tables.axes import HOURS
from study_tables.exercised import exercised_table, rows_of
from study_tables.figure import PICTURES, draw, draw_question
from study_tables.legends import with_legend
from study_tables.pages import Sections, first_sections, read_axes, second_sections
from study_tables.questions import RECIPES_MANY, members_of
from study_tables.runs import StudyRuns, take

from scalelab.report.plots import plot_fits

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study"


def write(study: Path, sections: Sections) -> None:
    """Write sections into the documents of a study."""
    for document, named in sections.items():
        for name, text in named.items():
            begin = f"<!-- made by tools/bench/study.py: {name} -->"
            replace_section(study / document, begin, "<!-- end -->", f"\n{with_legend(document, name, text)}\n")


def pictures(runs: StudyRuns, study: Path) -> None:
    """Draw the recipes' curves, those of the questions, and the figure for a talk."""
    items = runs.of(members_of(RECIPES_MANY, runs))
    plot_fits([item.fit.curve for item in items], items, study / "recipes.png", until=125.0)
    draw(runs, study / "talk.png")
    for name, picture in PICTURES.items():
        draw_question(runs, picture, study / f"{name}.png")


def main() -> None:
    """Copy runs if asked to, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, default=STUDY, help="folder of the study (default docs/study)")
    parser.add_argument(
        "--take", type=Path, help="folder of the family, such as runs/study_two, to copy finished runs from"
    )
    parser.add_argument("--first", action="store_true", help="make the section of the first study's page alone")
    parser.add_argument(
        "--exercised", type=Path, nargs="+", metavar="RUN", help="print what these runs exercised, and do nothing else"
    )
    given = parser.parse_args()
    if given.exercised:
        print(exercised_table({f"{run.parent.name}/{run.name}": [rows_of(run)] for run in given.exercised}))
        return
    if given.first:
        write(given.study, first_sections(given.study / "runs"))
        return
    if given.take is not None:
        take(given.take, given.study / "two" / "runs")
    by_axis = read_axes(given.study / "two" / "runs")
    pictures(by_axis[HOURS], given.study)
    write(given.study, second_sections(by_axis))


if __name__ == "__main__":
    main()
