"""What the trainer is held to, one table each (docs/trainer.md):

    .venv/bin/python tools/bench_trainer.py                  # all tables
    .venv/bin/python tools/bench_trainer.py --only memory    # one: equality, memory, speed, publication or resume

Every table is a module of `tools/trainer_tables` with a function ``lines()`` that measures and yields Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
TABLES = ("equality", "memory", "speed", "publication", "resume")


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="one table instead of all")
    only = parser.parse_args().only
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [
        str(HERE),
        str(HERE.parent / "tests" / "helpers"),
    ]  # the tables measure the models that the tests hold
    for name in [only] if only else TABLES:
        print(f"## {name}\n", flush=True)
        for line in importlib.import_module(f"trainer_tables.{name}").lines():
            print(line, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
