"""Record the runs of `scalelab demo` anew, into scalelab/recorded: what the page reads of the runs of demo_runs.py.

    .venv/bin/python tools/record_demo.py work       # takes half an hour on two idle cores; `work` keeps the whole runs

Run again, it goes on with what is in `work`. The last seed of one recipe is killed on its way, and stays unfinished.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "scalelab" / "recorded"
FILES = ("config.gin", "manifest.json", "evals.jsonl", "metrics.jsonl", "status.json", "alarms.jsonl")
KEEP_EVERY = 4
"""Steps between evaluations whose completions are kept."""
UNFINISHED = ("magistral", 2)
EVALUATIONS = 10
"""Lines of evaluations after which the unfinished run is killed."""
MOST_BYTES = 3_000_000
DEADLINE = 3 * 3600.0


def main() -> None:
    """Make the runs that are missing, and copy what the page reads."""
    work = Path(sys.argv[1]).resolve()
    name, seed = UNFINISHED
    run(work, "scalerl", 0, 1, 2)
    run(work, name, *range(seed))
    run(work, "too_fast", 0)
    if not (work / name / f"seed_{seed}").exists():
        run_and_kill(work, name, seed)
    shutil.rmtree(RECORDED, ignore_errors=True)
    for manifest in sorted(work.glob("*/seed_*/manifest.json")):
        keep(manifest.parent, RECORDED / manifest.parent.relative_to(work))
    size = sum(file.stat().st_size for file in RECORDED.rglob("*") if file.is_file())
    print(f"{RECORDED.relative_to(ROOT)}: {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        sys.exit(f"that is more than {MOST_BYTES / 1e6:.0f} MB")


def command(work: Path, name: str, *seeds: int) -> list[str]:
    """The command that runs seeds of one member."""
    experiment = [str(ROOT / "tools" / "demo_runs.py"), "--only", name, "--seeds", *map(str, seeds)]
    return [sys.executable, "-m", "scalelab", "run", *experiment, "--virtual", "--out", str(work)]


def run(work: Path, name: str, *seeds: int) -> None:
    """Run what is not finished yet."""
    subprocess.run(command(work, name, *seeds), check=True, cwd=ROOT, timeout=DEADLINE)


def run_and_kill(work: Path, name: str, seed: int) -> None:
    """Kill a run after some evaluations, as a machine that fails does."""
    lines = work / name / f"seed_{seed}" / "evals.jsonl"
    child = subprocess.Popen(command(work, name, seed), cwd=ROOT, start_new_session=True)  # a run is its child
    until = time.monotonic() + DEADLINE
    while not lines.exists() or lines.read_bytes().count(b"\n") < EVALUATIONS:
        if child.poll() is not None or time.monotonic() > until:
            sys.exit(f"{name} seed {seed} ended before it had {EVALUATIONS} evaluations")
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=60)


def keep(source: Path, to: Path) -> None:
    """Copy what the page reads of one run: not checkpoints, and not all completions."""
    to.mkdir(parents=True)
    for name in FILES:
        if (source / name).exists():
            shutil.copy2(source / name, to / name)
    for file in sorted((source / "rollouts").glob("step_*.parquet")):
        if int(file.stem.rpartition("_")[2]) % KEEP_EVERY == 0:
            (to / "rollouts").mkdir(exist_ok=True)
            shutil.copy2(file, to / "rollouts" / file.name)


if __name__ == "__main__":
    main()
