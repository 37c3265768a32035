"""Cost of a line of the journal, and of that of `metrics.jsonl` before it: processor time, syncs, and waits for them.

    .venv/bin/python tools/bench/journal.py              # on the disk of the temporary files
    .venv/bin/python tools/bench/journal.py --at DIR     # on another; /dev/shm leaves the processor's part alone

The line is that of a step of 48 prompts with 60 metrics, as a run on 80 GPUs writes it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

LINE: dict[str, Any] = {
    "groups": [f"group{number:06d}" for number in range(48)],
    **{f"metric_{number}": 0.123456789 * number for number in range(60)},
    "compute": 1.0,
    "compute_by_role": {"generators": 1.0, "trainer": 1.0, "evaluation": 0.1, "faults": 0.0},
    "seconds": {"wait": 1.0, "step": 2.0, "publish": 3.0},
    "time": 1.0,
    "wall_seconds": 1.0,
}


def cost(at: Path | None, lines: int) -> dict[str, float]:
    """Milliseconds of a line: of the processor, on the wall, and in syncs; and how many syncs there are."""
    sync, spent = os.fsync, []

    def timed(fd: FileDescriptorLike) -> None:
        began = time.perf_counter()
        sync(fd)
        spent.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory(dir=at) as name:
        path = Path(name) / "run"
        path.mkdir()
        folder = RunFolder(path, Lease(path))
        folder.begin("Run.seed = 0\n", status="running")
        os.fsync = timed
        try:
            busy, wall = time.process_time(), time.perf_counter()
            for step in range(1, lines + 1):
                folder.add_step({"step": step, "version": step, **LINE})
            busy, wall = time.process_time() - busy, time.perf_counter() - wall
        finally:
            os.fsync = sync
    each = {"processor": busy, "wall": wall, "in syncs": sum(spent)}
    return {**{what: 1000 * seconds / lines for what, seconds in each.items()}, "syncs": len(spent) / lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument(
        "--at", type=Path, metavar="DIR", help="a folder on the disk (default: that of temporary files)"
    )
    args = parser.parse_args()
    found = cost(args.at, args.lines)
    milliseconds = ", ".join(f"{found[what]:.3f} {what}" for what in ("processor", "wall", "in syncs"))
    print(f"milliseconds a line: {milliseconds}; {found['syncs']:.0f} syncs; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
