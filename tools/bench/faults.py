"""Kill and stop a run's processes, damage its files, fill its disk, and count what was lost.

    .venv/bin/python tools/bench/faults.py                  # each fault three times, on the smallest model
    .venv/bin/python tools/bench/faults.py --times 1 --out docs/run.md
    .venv/bin/python tools/bench/faults.py --campaign 100   # random faults: any role, any moment, up to three at once

One run of the whole loop takes the faults, one after the other. Those of fine-tuning and start-up take runs of their
own, the preempted node is of a cluster of three, faults of the machine have file systems of their own. "Seconds to
recover" is from the fault to the next optimiser step that was written down after the lost part was back; after a fault
that ends the run, from the start of `--resume`. Prompts lost and duplicated come from the books: every group that was
drawn must have been trained on in exactly one step that counts, or stand in the newest checkpoint, and `scalelab check`
must find nothing else wrong either. With `--out` the table replaces what stands between the markers there. A campaign
with `--record FILE` goes on where an earlier one with this file was broken off.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from fault_tables.campaign import Record, campaign
from fault_tables.lab import BESIDE, FaultLab, lost_and_doubled
from fault_tables.machine import FAULTS, around, loopback, shaken
from fault_tables.preemption import ThreeNodes, preempt
from sections import replace_section

from moe.checkpoint.folder import finished_checkpoints, read_state
from moe.errors import MoeError

BEGIN, END = "<!-- fault table: tools/bench/faults.py -->", "<!-- end of the fault table -->"


@dataclass
class FaultOutcome:
    """Result of one kind of fault."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0


def recovered(lab: FaultLab, name: str) -> Callable[[float], float]:
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


def verifier_back(lab: FaultLab, before: set[int]) -> Callable[[float], float]:
    """Wait for a verifier that was not there before; returns when it was seen."""

    def wait(_: float) -> float:
        lab.until(lambda: bool({p.pid for p in lab.processes("verifier")} - before), "the verifier to come back")
        return time.time()

    return wait


def within(lab: FaultLab, role: str, number: signal.Signals) -> float:
    """Send a signal to a process of a role; returns seconds to the next step after its replacement."""
    processes = lab.processes(role)
    wait = verifier_back(lab, {p.pid for p in processes}) if role == "verifier" else recovered(lab, role)
    began = time.time()
    processes[0].send_signal(number)
    return lab.step_after(wait(began)) - began


def again(lab: FaultLab, role: str) -> float:
    """Kill a process of a role, and its successor as soon as it is there; returns seconds to the next step."""
    wait, first = recovered(lab, role), {process.pid for process in lab.processes(role)}
    began = time.time()

    def kill_all() -> None:
        for process in lab.processes(role):
            process.kill()

    kill_all()
    lab.until(lambda: bool({process.pid for process in lab.processes(role)} - first), f"another {role}")
    kill_all()
    return lab.step_after(wait(began)) - began


def ending(lab: FaultLab, kill: Callable[[], None], then: Callable[[], None] = lambda: None) -> float:
    """Break the run off and resume it; returns seconds from the resumption to the next step."""
    family = lab.family()
    kill()
    print(f"  last line: {lab.ended()}", flush=True)
    _, alive = psutil.wait_procs(family, timeout=60)
    if alive:
        raise SystemExit(f"processes outlived their run: {[' '.join(p.cmdline())[:80] for p in alive]}")
    then()
    lab.resume()
    return lab.step_after(lab.started) - lab.started


def beside(lab: FaultLab, role: str) -> float:
    """Kill one of Ray's processes beside head and node, and resume the run if that ends it.

    Returns:
        Seconds to the next step, from the start of `--resume` if there was one.
    """
    if not lab.processes(role):  # killed before, and started by Ray with a new cluster alone
        ending(lab, send(lab, "driver", signal.SIGINT))
        lab.warm()
    return shaken(lab, send(lab, role, signal.SIGKILL))


def send(lab: FaultLab, role: str, number: signal.Signals) -> Callable[[], None]:
    """Make a fault that sends a signal to the driver, or to one of Ray's own processes."""

    def do() -> None:
        process = lab.driver() if role == "driver" else lab.processes(role)[0]
        assert process is not None
        process.send_signal(number)

    return do


def kill_when(lab: FaultLab, pattern: str) -> Callable[[], None]:
    """Make a fault that kills the driver as soon as its folder has another file of a pattern: between two writes."""

    def do() -> None:
        before = set(lab.path.glob(pattern))
        lab.until(lambda: bool(set(lab.path.glob(pattern)) - before), pattern, pause=0.0)
        send(lab, "driver", signal.SIGKILL)()

    return do


def named_rollouts(lab: FaultLab) -> Path | None:
    """File of rollouts that the newest checkpoint names; None if nothing waits in it."""
    root = lab.path / "checkpoints"
    with suppress(MoeError):  # the run has deleted it meanwhile
        for newest in finished_checkpoints(root)[-1:]:
            name = read_state(newest)["rollouts"]
            return root / name if name else None
    return None


def kill_with_rollouts(lab: FaultLab) -> None:
    """Kill the driver while its newest checkpoint names rollouts."""
    lab.until(lambda: named_rollouts(lab) is not None, "a checkpoint that names rollouts")
    send(lab, "driver", signal.SIGKILL)()


def with_damaged_rollouts(lab: FaultLab) -> float:
    """Kill the driver, flip a bit of the rollouts that its newest checkpoint names, and resume.

    Returns:
        Seconds to the next step. By then newer checkpoints have replaced the damaged one, so that the books balance.
    """
    damaged: list[Path] = []

    def damage() -> None:
        file = named_rollouts(lab)
        assert file is not None
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        damaged.append(file)

    seconds = ending(lab, lambda: kill_with_rollouts(lab), damage)
    lab.until(lambda: not damaged[0].exists(), "newer checkpoints in place of the damaged one")
    return seconds


def stop(lab: FaultLab) -> tuple[int, int]:
    """Break the run off with Ctrl-C, and look at its books."""
    assert lab.process is not None
    lab.process.send_signal(signal.SIGINT)
    lab.ended()
    return lost_and_doubled(lab.path)


Outcomes = Generator[tuple[str, FaultOutcome], None, None]


def processes(folder: Path, times: int, deadline: float, only: str) -> Outcomes:
    """Every fault of a process, in one run; after each kind, a checkpoint later, its books are looked at."""
    lab = FaultLab(folder / "killed", folder / "killed.log", deadline)
    kill, halt, hang_up, ask = signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP, signal.SIGINT
    faults: dict[str, Callable[[], float]] = {
        "generator, `kill -9`": lambda: within(lab, "generator", kill),
        "trainer rank, `kill -9`": lambda: within(lab, "trainer", kill),
        "trainer rank, `kill -9`, and again while it starts": lambda: again(lab, "trainer"),
        "generator, `kill -STOP` (hangs)": lambda: within(lab, "generator", halt),
        "verifier, `kill -9`": lambda: within(lab, "verifier", kill),
        "driver, `kill -9`, then `--resume`": lambda: ending(lab, send(lab, "driver", kill)),
        "driver, `kill -9` while a checkpoint is written": lambda: ending(
            lab, kill_when(lab, "checkpoints/.step_*.writing")
        ),
        "driver, `kill -9` between completions and lines of an evaluation": lambda: ending(
            lab, kill_when(lab, "rollouts/*.parquet")
        ),
        "Ray head (GCS), `kill -9`, then `--resume`": lambda: ending(lab, send(lab, "gcs", kill)),
        "Ray node (raylet), `kill -9`, then `--resume`": lambda: ending(lab, send(lab, "raylet", kill)),
        "Ray head (GCS), `kill -STOP`, then `--resume`": lambda: ending(lab, send(lab, "gcs", halt)),
        "Ray node (raylet), `kill -STOP`, then `--resume`": lambda: ending(lab, send(lab, "raylet", halt)),
        **{f"Ray's {role}, `kill -9`": partial(beside, lab, role) for role in BESIDE},
        "Ctrl-C, then `--resume`": lambda: ending(lab, send(lab, "driver", ask)),
        "closed terminal (SIGHUP), then `--resume`": lambda: ending(lab, send(lab, "driver", hang_up)),
        "driver, `kill -9`, a damaged `rollouts_*.npz`, then `--resume`": lambda: with_damaged_rollouts(lab),
        "Ctrl-C, `checkpoints/` deleted, then `--resume` from the second copy": lambda: ending(
            lab, send(lab, "driver", ask), lambda: shutil.rmtree(lab.path / "checkpoints")
        ),
    }
    chosen = {name: inject for name, inject in faults.items() if only in name}
    with lab:
        if chosen:
            lab.start(Evaluation__every="20", Retention__copy_to=repr(str(folder / "second")))
            lab.warm()
        for name, inject in chosen.items():
            outcome = FaultOutcome()
            for _ in range(times):
                outcome.seconds.append(inject())
                lab.warm()
            outcome.lost, outcome.duplicated = lost_and_doubled(lab.path)
            yield name, outcome
        if chosen:
            stop(lab)


def beginnings(folder: Path, times: int, deadline: float, only: str) -> Outcomes:
    """Deaths before the first step, and one under `--supervise`, each in a run of its own."""
    faults: dict[str, Callable[[FaultLab], float]] = {
        "trainer rank, `kill -9` in SFT": in_sft,
        "trainer rank, `kill -9` at start-up": lambda lab: at_start(lab, "trainer"),
        "generator, `kill -9` at start-up": lambda lab: at_start(lab, "generator"),
        "verifier, `kill -9` at start-up": lambda lab: at_start(lab, "verifier"),
        "driver, `kill -9` under `--supervise`": under_supervision,
    }
    for number, (name, inject) in enumerate(faults.items()):
        if only not in name:
            continue
        outcome = FaultOutcome()
        for turn in range(times):
            place = folder / f"beginning_{number}_{turn}"
            # A cache of its own, for a base model that is there already is not trained.
            own = {"SCALELAB_CACHE": str(place.with_suffix(".cache"))} if inject is in_sft else {}
            watched = inject is under_supervision
            with FaultLab(place, place.with_suffix(".log"), deadline, supervised=watched, environment=own) as lab:
                lab.start(SFT__steps="20" if inject is not in_sft else "60", SFT__checkpoint_every="10")
                outcome.seconds.append(inject(lab))
                lab.warm(2)
                lost, duplicated = stop(lab)
                outcome.lost, outcome.duplicated = outcome.lost + lost, outcome.duplicated + duplicated
        yield name, outcome


def in_sft(lab: FaultLab) -> float:
    """Kill the trainer in fine-tuning, after its first checkpoint; returns seconds until it goes on from there."""
    lab.until(lambda: bool(list((lab.path / "sft").glob("step_??????"))), "a checkpoint of the fine-tuning")
    began = time.time()
    lab.processes("trainer")[0].kill()
    lab.until(lambda: "SFT: going on from step" in lab.log, "the fine-tuning to go on")
    return time.time() - began


def under_supervision(lab: FaultLab) -> float:
    """Kill the driver; returns seconds to the next step, which its supervisor's new one takes."""
    lab.warm()
    driver = lab.driver()
    assert driver is not None
    began = time.time()
    driver.kill()
    return lab.step_after(began) - began


def at_start(lab: FaultLab, role: str) -> float:
    """Kill a process of a role while the run's actors start; returns seconds to the first step."""
    lab.until(lambda: "RL: starting" in lab.log, "the fine-tuned model")
    lab.until(lambda: bool(lab.processes(role)), f"the {role}")
    time.sleep(1.0)
    began = time.time()
    lab.processes(role)[0].kill()
    return lab.step_after(began) - began


def preemption(folder: Path, times: int, deadline: float, only: str) -> Outcomes:
    """A node of a cluster that is announced to go, goes, and is replaced; seconds are those of the announcement."""
    name = "a generator's node, `ray drain-node`, then ended and replaced"
    if only not in name:
        return
    nodes, outcome = ThreeNodes(), FaultOutcome()
    try:
        with FaultLab(folder / "preempted", folder / "preempted.log", deadline) as lab:
            lab.start(Cluster__address=f'"{nodes.address}"', Cluster__generators="2")
            lab.warm()
            for _ in range(times):
                outcome.seconds.append(preempt(lab, nodes))
            outcome.lost, outcome.duplicated = stop(lab)
    finally:
        nodes.shutdown()
    yield name, outcome


def of_the_machine(folder: Path, times: int, deadline: float, only: str) -> Outcomes:
    """Faults of disk, shared memory, network and cores, each in a run and on a file system of its own."""
    for number, name in enumerate(FAULTS):
        if only in name:
            place = folder / f"machine_{number}"
            place.mkdir()
            yield name, FaultOutcome(*around(place, times, deadline, name))


def table(found: dict[str, FaultOutcome]) -> str:
    """The results in Markdown."""
    rows = ["| fault | seconds to recover | prompts lost, duplicated |", "|---|---|---|"]
    for name, one in found.items():
        seconds = ", ".join(f"{value:.0f}" for value in one.seconds)
        rows.append(f"| {name} | {seconds} | {one.lost}, {one.duplicated} |")
    return "\n".join(rows)


def own_namespaces() -> None:
    """Start again in namespaces of our own, so that small disks and a network that goes leave no trace."""
    if "--inside" in sys.argv:
        loopback(True)
        return
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvp("unshare", ["unshare", *rights, "--mount", "--net", sys.executable, *sys.argv, "--inside"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="how often each fault is injected")
    parser.add_argument("--only", default="", metavar="TEXT", help="the faults whose names contain it")
    parser.add_argument("--out", type=Path, help="a Markdown file with the markers, to write the table into")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds to wait for any one thing")
    parser.add_argument("--campaign", type=int, metavar="N", help="so many random faults in place of the table's")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign")
    parser.add_argument("--record", type=Path, help="file for the campaign's attacks; one that is there is continued")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.campaign is not None:
        with tempfile.TemporaryDirectory(prefix="bench_faults_") as name:
            campaign(Path(name), args.campaign, args.seed, args.deadline, Record(args.record or Path(name, "record")))
        return
    own_namespaces()
    found: dict[str, FaultOutcome] = {}
    with tempfile.TemporaryDirectory(prefix="bench_faults_") as name:
        for part in (processes, beginnings, preemption, of_the_machine):
            with closing(part(Path(name), args.times, args.deadline, args.only)) as outcomes:
                for kind, outcome in outcomes:
                    found[kind] = outcome
                    write(table(found), args.out)


def write(text: str, out: Path | None) -> None:
    """Print the table as far as it has come, and put it between the markers of a file."""
    print(text, flush=True)
    if out is not None:
        replace_section(out, BEGIN, END, text)


if __name__ == "__main__":
    main()
