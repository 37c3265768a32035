"""Tables of the trainer's guarantees (docs/trainer.md):

    .venv/bin/python -m tools.bench.trainer                  # all tables
    .venv/bin/python -m tools.bench.trainer --only memory    # one: equality, memory, speed, publication or resume

Every table is a module of `tools/bench/trainer_tables` with a function ``lines()`` that measures and yields Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import os

TABLES = ("equality", "memory", "speed", "publication", "resume")


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="one table instead of all")
    only = parser.parse_args().only
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in [only] if only else TABLES:
        print(f"## {name}\n", flush=True)
        for line in importlib.import_module(f"tools.bench.trainer_tables.{name}").lines():
            print(line, flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
