"""Kill and stop a run's processes, fill its disk, and count what was lost and how long recovery took.

    .venv/bin/python tools/bench_faults.py                  # each fault three times, on the smallest model
    .venv/bin/python tools/bench_faults.py --times 1 --out docs/run.md

One run of the whole loop takes all faults, one after the other; a second one takes the full disk, on a file system of
its own. "Seconds to recover" is from the fault to the next optimiser step that was written down after the lost part was
back; after a fault that ends the run, from the start of `--resume`. Prompts lost and duplicated come from the books:
every group that was drawn must have been trained on in exactly one step that counts, or stand in the newest checkpoint.
With `--out` the table replaces what stands between the markers there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sections import replace_section

from moe.checkpoint.folder import newest, read_state
from scalelab.run.folder import read_lines

BEGIN, END = "<!-- fault table: tools/bench_faults.py -->", "<!-- end of the fault table -->"

SMALLEST = {
    "Llama4Text.num_hidden_layers": 4,
    "Llama4Text.hidden_size": 64,
    "Llama4Text.intermediate_size": 32,
    "Llama4Text.num_attention_heads": 2,
    "Llama4Text.num_key_value_heads": 1,
    "SFT.steps": 20,
    "SFT.trainers": 1,
    "Recipe.prompts_per_step": 4,
    "Recipe.generations_per_prompt": 4,
    "Recipe.zero_variance": '"keep"',
    "Budget.steps": 100_000,
    "Evaluation.every": 100,
    "Evaluation.prompts": 4,
    "Evaluation.samples": 2,
    "Run.checkpoint_every": 3,
    "GeneratorConfig.max_sequences": 32,
    "Cluster.hang_seconds": 30.0,
    "Cluster.generator_restarts": 100,
    "Cluster.trainer_restarts": 100,
}

# Command line of a role's processes, as Ray names them.
ROLES = {
    "generator": "ray::EngineActor",
    "verifier": "ray::GraderActor",
    "trainer": "ray::TrainerRank",
    "gcs": "gcs_server",
    "raylet": "raylet",
}


@dataclass
class Lab:
    """One run's folder, and the process that works on it."""

    path: Path
    messages: Path
    """File of the run's output; elsewhere, since the run's own disk may be full."""
    deadline: float
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self, **more: str) -> None:
        """Start the run; `more` are values over those of the smallest, with `__` for the dot."""
        values = {**SMALLEST, **{name.replace("__", "."): value for name, value in more.items()}}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        self._run("quickstart", "--out", str(self.path), *sets)

    def resume(self) -> None:
        """Go on with the run."""
        self._run(str(self.path), "--resume")

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "scalelab", "run", *arguments]
        self.started = time.time()
        with open(self.messages, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Lab:
        """Return the lab; nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind: Ray's own end with the one that started them."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(self.deadline)

    @property
    def log(self) -> str:
        """Output of the run."""
        return self.messages.read_text(errors="replace")

    def processes(self, role: str) -> list[psutil.Process]:
        """The live processes of a role, all of them descendants of this very process."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                line = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if line and (line[0].startswith(ROLES[role]) or Path(line[0]).name == ROLES[role]):
                found.append(process)
        return found

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something while the run lives."""
        assert self.process is not None
        end = time.monotonic() + self.deadline
        while not done():
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended while {what} was waited for:\n{self.log[-2000:]}")
            if time.monotonic() > end:
                raise SystemExit(f"waited {self.deadline:.0f} s for {what}:\n{self.log[-2000:]}")
            time.sleep(0.05)

    def lines(self, name: str) -> list[dict]:
        """Records of one of the run's files."""
        file = self.path / name
        return read_lines(file) if file.exists() else []

    def step_after(self, since: float) -> float:
        """Wait for an optimiser step written after `since`; returns when that was."""

        def there() -> bool:
            lines = self.lines("metrics.jsonl")
            return bool(lines) and lines[-1]["time"] > since

        self.until(there, "an optimiser step")
        return next(line["time"] for line in self.lines("metrics.jsonl") if line["time"] > since)

    def warm(self, steps: int = 5) -> None:
        """Let the run take some steps, so that its pipeline is full and a checkpoint is there."""
        for _ in range(steps):
            self.step_after(time.time())

    def ended(self) -> str:
        """Wait for the run's process to end; returns its last line."""
        assert self.process is not None
        self.process.wait(self.deadline)
        return (self.log.strip().splitlines() or [""])[-1]


@dataclass
class Outcome:
    """Result of one kind of fault."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0


def recovered(lab: Lab, name: str) -> Callable[[float], float]:
    """Wait for the line that says a role is back; returns its time."""

    def wait(since: float) -> float:
        def back() -> list[float]:
            return [
                line["time"]
                for line in lab.lines("faults.jsonl")
                if line["event"] == "recovered" and line["role"] == name and line["time"] > since
            ]

        lab.until(lambda: bool(back()), f"the {name} to come back")
        return back()[0]

    return wait


def verifier_back(lab: Lab, before: set[int]) -> Callable[[float], float]:
    """Wait for a verifier that was not there before; returns when it was seen."""

    def wait(_: float) -> float:
        lab.until(lambda: bool({p.pid for p in lab.processes("verifier")} - before), "the verifier to come back")
        return time.time()

    return wait


def within(lab: Lab, role: str, number: signal.Signals) -> float:
    """Send a signal to a process of a role; returns seconds to the next step after its replacement."""
    processes = lab.processes(role)
    wait = verifier_back(lab, {p.pid for p in processes}) if role == "verifier" else recovered(lab, role)
    began = time.time()
    processes[0].send_signal(number)
    return lab.step_after(wait(began)) - began


def ending(lab: Lab, kill: Callable[[], None]) -> float:
    """Break the run off and resume it; returns seconds from the resumption to the next step."""
    family = [process for role in ROLES for process in lab.processes(role)]
    kill()
    print(f"  last line: {lab.ended()}", flush=True)
    # Ray's agents are left out: where its head is gone, they look for it for another minute before they end.
    _, alive = psutil.wait_procs(family, timeout=60)
    if alive:
        raise SystemExit(f"processes outlived their run: {[' '.join(p.cmdline())[:80] for p in alive]}")
    lab.resume()
    return lab.step_after(lab.started) - lab.started


def kill(lab: Lab, role: str) -> Callable[[], None]:
    """Kill the driver, or one of Ray's own processes."""

    def do() -> None:
        assert lab.process is not None
        (lab.process if role == "driver" else lab.processes(role)[0]).send_signal(signal.SIGKILL)

    return do


def audit(path: Path) -> tuple[int, int]:
    """(lost, duplicated) groups by a run's own books, as of its newest checkpoint."""
    state = read_state(newest(path / "checkpoints", contents=False).path)
    lines = [
        line for line in read_lines(path / "metrics.jsonl") if line["step"] <= state["schedule"]["trainer_version"]
    ]
    settled = Counter([name for line in lines for name in line["groups"]] + list(state["groups"]))
    drawn = {f"group{number}" for number in range(state["drawn"])}
    unknown = settled.keys() - drawn
    if unknown:
        raise SystemExit(f"groups that were never drawn: {sorted(unknown)[:5]}")
    return len(drawn - settled.keys()), sum(count - 1 for count in settled.values())


def stop(lab: Lab) -> tuple[int, int]:
    """Break the run off with Ctrl-C, and look at its books."""
    assert lab.process is not None
    lab.process.send_signal(signal.SIGINT)
    lab.ended()
    return audit(lab.path)


def processes(folder: Path, times: int, deadline: float, only: str) -> Iterator[tuple[str, Outcome]]:
    """Every fault of a process, in one run; after each kind, a checkpoint later, its books are looked at."""
    lab = Lab(folder / "killed", folder / "killed.log", deadline)
    faults: dict[str, Callable[[], float]] = {
        "generator, `kill -9`": lambda: within(lab, "generator", signal.SIGKILL),
        "trainer rank, `kill -9`": lambda: within(lab, "trainer", signal.SIGKILL),
        "generator, `kill -STOP` (hangs)": lambda: within(lab, "generator", signal.SIGSTOP),
        "verifier, `kill -9`": lambda: within(lab, "verifier", signal.SIGKILL),
        "driver, `kill -9`, then `--resume`": lambda: ending(lab, kill(lab, "driver")),
        "Ray head (GCS), `kill -9`, then `--resume`": lambda: ending(lab, kill(lab, "gcs")),
        "Ray node (raylet), `kill -9`, then `--resume`": lambda: ending(lab, kill(lab, "raylet")),
        "Ctrl-C, then `--resume`": lambda: ending(lab, lambda: lab.process.send_signal(signal.SIGINT)),
    }
    chosen = {name: inject for name, inject in faults.items() if only in name}
    with lab:
        if chosen:
            lab.start()
            lab.warm()
        for name, inject in chosen.items():
            outcome = Outcome()
            for _ in range(times):
                outcome.seconds.append(inject())
                lab.warm()
            outcome.lost, outcome.duplicated = audit(lab.path)
            yield name, outcome
        if chosen:
            stop(lab)


def full_disk(folder: Path, times: int, deadline: float, only: str) -> Iterator[tuple[str, Outcome]]:
    """A file system that fills up under a run, and has room again for `--resume`."""
    name = "full disk, then `--resume`"
    if only not in name:
        return
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200m", "tmpfs", str(disk)], check=True)
    lab, outcome, filler = Lab(disk / "full", folder / "full.log", deadline), Outcome(), disk / "filler"
    with lab:
        lab.start()
        for _ in range(times):
            lab.warm()
            with open(filler, "wb") as file:
                while free := shutil.disk_usage(disk).free:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
            print(f"  last line: {lab.ended()}", flush=True)
            filler.unlink()
            lab.resume()
            outcome.seconds.append(lab.step_after(lab.started) - lab.started)
        outcome.lost, outcome.duplicated = stop(lab)
    subprocess.run(["umount", str(disk)], check=True)
    yield name, outcome


def table(found: dict[str, Outcome], times: int) -> str:
    """The results in Markdown."""
    rows = ["| fault | times | seconds to recover | prompts lost | duplicated |", "|---|---|---|---|---|"]
    for name, one in found.items():
        seconds = ", ".join(f"{value:.0f}" for value in one.seconds)
        rows.append(f"| {name} | {times} | {seconds} | {one.lost} | {one.duplicated} |")
    return "\n".join(rows)


def own_mounts() -> None:
    """Start again in a mount namespace of our own, so that a small disk needs no rights and leaves no trace."""
    if "--inside" in sys.argv:
        return
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvp("unshare", ["unshare", *rights, "--mount", sys.executable, *sys.argv, "--inside"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="how often each fault is injected")
    parser.add_argument("--only", default="", metavar="TEXT", help="the faults whose names contain it")
    parser.add_argument("--out", type=Path, help="a Markdown file with the markers, to write the table into")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds to wait for any one thing")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    own_mounts()
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="bench_faults_") as name:
        for part in (processes, full_disk):
            with closing(part(Path(name), args.times, args.deadline, args.only)) as outcomes:
                for kind, outcome in outcomes:
                    found[kind] = outcome
                    write(table(found, args.times), args.out)


def write(text: str, out: Path | None) -> None:
    """Print the table as far as it has come, and put it between the markers of a file."""
    print(text, flush=True)
    if out is not None:
        replace_section(out, BEGIN, END, text)


if __name__ == "__main__":
    main()
