"""Memory of every process of the smallest run, step by step.

    .venv/bin/python tools/bench/memory.py --steps 2000

The run is on a cluster of one machine, with checkpoints and evaluations on the way. Read is the resident memory of
every process (`/proc/PID/smaps_rollup`), and the part of it that no other process shares. Compared are the medians of
two stretches of steps: the first after `--since`, and the last. The exit code is 1 if a process grew by more than
`--limit`.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
from fault_tables.lab import ROLES, FaultLab

SHORT = {
    "Recipe__prompts_per_step": "2",
    "Recipe__generations_per_prompt": "2",
    "Evaluation__every": "200",
    "Run__checkpoint_every": "50",
}
"""Settings of a run with short steps."""

Sample = tuple[int, float, float]
"""Step, MiB resident, MiB that are the process's own."""


def watch(lab: FaultLab, steps: int, every: int) -> dict[str, list[Sample]]:
    """Take so many steps, and read the memory of every process now and then; a replaced process appears twice.

    Args:
        lab: the run, started.
        steps: steps to take.
        every: steps between two looks.
    """
    seen: defaultdict[str, list[Sample]] = defaultdict(list)
    at = 0
    while at < steps:
        at = lab.steps(min(at + every, steps))
        driver = lab.driver()
        roles = {role: lab.processes(role) for role in ROLES} | {"driver": [driver] if driver else []}
        for role, found in roles.items():
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    memory = process.memory_full_info()
                    seen[f"{role} {process.pid}"].append((at, memory.rss / 2**20, memory.uss / 2**20))
        if at % (10 * every) < every:
            print(at, {name: round(samples[-1][1]) for name, samples in seen.items()}, flush=True)
    return seen


def table(seen: dict[str, list[Sample]], since: int, steps: int) -> tuple[str, float]:
    """The growth of every process in Markdown, and the largest in percent."""
    stretch = max(1, (steps - since) // 10)
    rows = [
        f"| process | MiB, steps {since}–{since + stretch} | MiB, steps {steps - stretch}–{steps} | growth |",
        "|---|---|---|---|",
    ]
    largest = 0.0
    for name, samples in sorted(seen.items()):
        first = [one for one in samples if since <= one[0] <= since + stretch]
        last = [one for one in samples if one[0] >= steps - stretch]
        if not first or not last:
            rows.append(f"| {name} | – | – | it did not live so long |")
            continue
        before, after = (median(one[1] for one in part) for part in (first, last))
        growth = 100 * (after / before - 1)
        largest = max(largest, growth)
        own = median(one[2] for one in last) - median(one[2] for one in first)
        rows.append(
            f"| {name.partition(' ')[0]} | {before:.0f} | {after:.0f} | {growth:+.1f} % (its own: {own:+.0f} MiB) |"
        )
    return "\n".join(rows), largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--since", type=int, default=200, help="steps that do not count (default 200)")
    parser.add_argument("--every", type=int, default=10, help="steps between two looks (default 10)")
    parser.add_argument("--limit", type=float, default=5.0, metavar="PERCENT", help="growth that fails (default 5)")
    parser.add_argument("--deadline", type=float, default=900.0, help="seconds that a few steps may take")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench_memory_") as name,
        FaultLab(Path(name) / "run", Path(name) / "run.log", args.deadline) as lab,
    ):
        lab.start(**SHORT)
        seen = watch(lab, args.steps, args.every)
        text, largest = table(seen, args.since, args.steps)
        print(text, flush=True)
        assert lab.process is not None
        lab.process.send_signal(signal.SIGINT)  # in order, so that its processes end as well
        print("last line:", lab.ended())
    if largest > args.limit:
        raise SystemExit(f"memory grew by {largest:.1f} %")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
