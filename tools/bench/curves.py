"""Measure how good the fits of scalelab.curves are, and rewrite the tables in docs/curves.md and docs/speed.md.

python tools/bench/curves.py                 everything, about ten minutes of one core
python tools/bench/curves.py --only speed    one part, such as coverage, verdicts or speed
python tools/bench/curves.py --runs 50       fewer simulated runs, for a look

Coverage goes on where it stopped: every simulated run is a line in the folder `--kept`, and `--runs 0` makes the
table of what is there.

python tools/bench/curves.py --only coverage --runs 300 --families Gompertz seeds
python tools/bench/curves.py --only verdicts --runs 60
"""
# ruff: noqa: E402 - the number of threads is set before NumPy loads: all figures are for one core

from __future__ import annotations

import argparse
import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import sys
import time
from collections.abc import Callable
from pathlib import Path

from curve_tables.contradictions import contradictions_section
from curve_tables.coverage import coverage_section, families_matching, run_family
from curve_tables.holdback import holdback_section
from curve_tables.speed import speed_section
from curve_tables.verdicts import verdicts_section
from sections import replace_section

DOCUMENT = Path(__file__).parents[2] / "docs" / "curves.md"


def coverage(runs: int, words: list[str], folder: Path) -> str:
    """Simulate what is missing, a quarter of the runs of every family at a time, and make the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(1, 5):
        for name in families_matching(words):
            run_family(name, runs * part // 4, folder)
            print(f"{name}: {runs * part // 4} runs", file=sys.stderr)
    return coverage_section(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections: dict[str, Callable[[], str]] = {
        "coverage": lambda: coverage(args.runs, args.families, args.kept),
        "holdback": lambda: holdback_section(args.logs),
        "verdicts": lambda: verdicts_section(args.runs, args.kept),
        "contradictions": lambda: contradictions_section(args.runs, args.kept),
        "speed": speed_section,
    }
    parser.add_argument("--only", choices=tuple(sections), action="append", help="one part; repeat for more")
    parser.add_argument("--runs", type=int, default=500, metavar="N", help="simulated runs of each kind")
    parser.add_argument("--families", nargs="+", default=[], metavar="WORD", help="only families with such a name")
    parser.add_argument("--kept", type=Path, default=Path("runs/bench_curves"), help="folder of the simulated runs")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="also hold back the last half of its real_*.csv")
    args = parser.parse_args()
    for name, section in sections.items():
        if not args.only or name in args.only:
            began = time.perf_counter()
            text = section()
            page = DOCUMENT.with_name("speed.md") if name == "speed" else DOCUMENT
            replace_section(page, f"<!-- made by tools/bench/curves.py: {name} -->", f"<!-- end {name} -->", text)
            print(f"{name} ({time.perf_counter() - began:.0f} s)\n\n{text}\n")


if __name__ == "__main__":
    main()
