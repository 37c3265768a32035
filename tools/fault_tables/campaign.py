"""Random faults without end: any role, any moment, up to three at once, with an audit after each."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fault_tables.lab import FaultLab, tracebacks
from scalelab.run.audit import audit

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM

SIGNALS = {
    "generator": (KILL, STOP, TERM),
    "trainer": (KILL, STOP, TERM),
    "verifier": (KILL, STOP, TERM),
    "sandbox": (KILL, STOP),
    "driver": (KILL, TERM, signal.SIGINT, signal.SIGHUP),
    "gcs": (KILL, STOP),
    "raylet": (KILL, STOP),
}
"""Signals that each role may be sent; a stopped driver would wait until somebody continues it."""

WEIGHTS = {"generator": 4, "trainer": 4, "verifier": 3, "sandbox": 2, "driver": 3, "gcs": 1, "raylet": 1}
LONGEST_WAIT = 10.0
"""Seconds of a run's life before the next faults, at most: long enough for steps, evaluations and checkpoints."""

SETTINGS = {
    "Evaluation__every": "10",
    "SFT__steps": "20",
    "SFT__checkpoint_every": "5",
    "Cluster__hang_seconds": "45.0",
    "Cluster__startup_seconds": "900.0",
    "Cluster__stall_seconds": "120.0",
    "Cluster__generator_restarts": "10_000",
    "Cluster__trainer_restarts": "10_000",
}


@dataclass
class Tally:
    """Results of a campaign."""

    faults: Counter[str] = field(default_factory=Counter)
    together: Counter[int] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    problems: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    tracebacks: int = 0
    slowest: float = 0.0


def campaign(folder: Path, count: int, seed: int, deadline: float) -> None:
    """Break one supervised run `count` times, and print what came of it."""
    rng, tally = random.Random(seed), Tally()
    lab = FaultLab(
        folder / "run",
        folder / "run.log",
        deadline,
        supervised=True,
        environment={"SCALELAB_CACHE": str(folder / "cache")},
    )
    earlier: list[psutil.Process] = []
    with lab:
        lab.start(**SETTINGS)
        while tally.faults.total() < count:
            earlier += _break(lab, rng, tally, count)
            began = time.time()
            _recover(lab, tally)
            tally.slowest = max(tally.slowest, time.time() - began)
            earlier = _audit(lab, tally, earlier)
            _say(tally, count)
        family = lab.family()
        driver = lab.driver()
        if driver is not None:
            driver.send_signal(signal.SIGINT)
        print("last line:", lab.ended())
        _gone(family, tally)
        tally.problems += audit(lab.path).problems
        tally.tracebacks = tracebacks(lab.log)
    _say(tally, count)
    found = audit(lab.path)
    print(f"{found.steps} steps, {found.evaluations} evaluations; resumed by hand {tally.resumed} times")
    print("signals:", dict(sorted(tally.faults.items())))
    print("faults at once:", dict(sorted(tally.together.items())), " moments:", dict(tally.moments))
    for problem in (*tally.problems, *tally.stuck):
        print("WRONG:", problem)
    if tally.problems or tally.stuck or tally.tracebacks:
        (Path.cwd() / "campaign.log").write_text(lab.log)
        raise SystemExit("what it said is in campaign.log")


def _break(lab: FaultLab, rng: random.Random, tally: Tally, count: int) -> list[psutil.Process]:
    """Wait for a random moment, and send up to three signals; returns the processes that there were."""
    lab.until(lambda: bool(lab.family()), "the run's first processes")
    time.sleep(rng.uniform(0.0, LONGEST_WAIT))
    family, doing = lab.family(), str(lab.status().get("doing", "starting")).partition(",")[0]
    at_once = min(rng.choice((1, 1, 2, 2, 3, 3)), count - tally.faults.total())
    sent = []
    while len(sent) < at_once:
        role = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        number, process = rng.choice(SIGNALS[role]), _one_of(lab, role, rng)
        if process is None:  # not there at this moment
            continue
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent.append(f"{role} {number.name}")
        if rng.random() < 0.5:  # the next at the same time, or while this one is being mended
            time.sleep(rng.uniform(0.0, 5.0))
    tally.faults.update(sent)
    tally.together[len(sent)] += 1
    tally.moments[doing] += 1
    print(f"{time.strftime('%H:%M:%S')} {' + '.join(sent)} while {lab.status().get('doing')}", flush=True)
    return family


def _one_of(lab: FaultLab, role: str, rng: random.Random) -> psutil.Process | None:
    if role == "driver":
        return lab.driver()
    if role != "sandbox":
        return next(iter(lab.processes(role)), None)
    children: list[psutil.Process] = []
    for verifier in lab.processes("verifier"):
        with suppress(psutil.NoSuchProcess):
            children += verifier.children(recursive=True)
    return rng.choice(children) if children else None


def _recover(lab: FaultLab, tally: Tally) -> None:
    """Wait for two steps that come after the faults; go on by hand with a run that ended."""
    assert lab.process is not None
    since, end = time.time(), time.monotonic() + lab.deadline
    while sum(line["time"] > since for line in lab.lines("metrics.jsonl")) < 2:
        if lab.process.poll() is not None:
            print(f"  it ended with {lab.process.returncode}: {lab.log.strip().splitlines()[-1][:200]}", flush=True)
            tally.resumed += 1
            begun = (lab.path / "manifest.json").exists()
            lab.resume() if begun else lab.start(**SETTINGS)
        if time.monotonic() > end:
            raise SystemExit(f"no step within {lab.deadline:.0f} s:\n{lab.log[-3000:]}\n{lab.status()}")
        time.sleep(0.2)


def _audit(lab: FaultLab, tally: Tally, earlier: list[psutil.Process]) -> list[psutil.Process]:
    """Look at the books; returns the earlier processes that are still of the run."""
    tally.problems += audit(lab.path).problems
    tally.tracebacks = tracebacks(lab.log)
    now = set(lab.family())
    _gone([process for process in earlier if process not in now], tally)
    return [process for process in earlier if process in now]


def _gone(processes: list[psutil.Process], tally: Tally) -> None:
    """See that processes end within 90 seconds."""
    for process in psutil.wait_procs(processes, timeout=90)[1]:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                tally.stuck.append(f"{' '.join(process.cmdline())[:80]} ({process.status()}, parent {process.ppid()})")
                process.kill()


def _say(tally: Tally, count: int) -> None:
    print(
        f"{tally.faults.total()} of {count} faults; wrong in the books: {len(tally.problems)}; stuck processes: "
        f"{len(tally.stuck)}; tracebacks: {tally.tracebacks}; slowest to two steps: {tally.slowest:.0f} s",
        flush=True,
    )
