"""Verifiers on real data: are they right, how fast are they, and how fast is what others do.

    python tools/bench/graders.py [math] [answers] [code] [programs] [--data FOLDER] [--write docs/tasks.md]

FOLDER (or SCALELAB_DATA) holds the files named in tasks/data/hub.py (gsm8k/train.jsonl, math/train.json, …).
"""

from __future__ import annotations

import argparse
import importlib
import os

PARTS = {"math": "math_speed", "answers": "answers", "code": "code_speed", "programs": "programs"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; everything if left out")
    parser.add_argument("--data", default=os.environ.get("SCALELAB_DATA"), help="folder with the data sets")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each verifier")
    parser.add_argument("--sample", type=int, default=500, help="items per row of the throughput tables")
    parser.add_argument("--mutants", type=float, default=1.0, help="share of the references that are mutated")
    parser.add_argument("--judged", metavar="FILE", help="more judged pairs of math answers, as JSON lines")
    parser.add_argument("--write", metavar="FILE", help="also replace the tables of this document")
    options = parser.parse_args()
    for part in options.parts or PARTS:
        importlib.import_module(PARTS[part]).main(options)


if __name__ == "__main__":
    main()
