"""Random faults without end: any role, any moment, up to three at once, with an audit after each."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from fault_tables.lab import BESIDE, FaultLab, tracebacks
from scalelab.store.audit import audit

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM

SIGNALS = {
    "generator": (KILL, STOP, TERM),
    "trainer": (KILL, STOP, TERM),
    "verifier": (KILL, STOP, TERM),
    "sandbox": (KILL, STOP),
    "driver": (KILL, TERM, signal.SIGINT, signal.SIGHUP),
    "gcs": (KILL, STOP),
    "raylet": (KILL, STOP),
    **dict.fromkeys(BESIDE, (KILL,)),
}
"""Signals that each role may be sent; a stopped driver would wait until somebody continues it."""

WEIGHTS = {"generator": 6, "trainer": 6, "verifier": 5, "sandbox": 4, "driver": 2, "gcs": 0.5, "raylet": 0.5}
WEIGHTS |= dict.fromkeys(BESIDE, 0.2)
"""Frequency of faults of each role. After those of driver and Ray the whole run starts again: the longest by far."""
LONGEST_WAIT = 10.0
"""Seconds of a run's life before the next faults, at most: long enough for steps, evaluations and checkpoints."""

SETTINGS = {
    "Evaluation__every": "10",
    "SFT__steps": "20",
    "SFT__checkpoint_every": "5",
    "Cluster__hang_seconds": "45.0",
    "Cluster__startup_seconds": "300.0",
    "Cluster__stall_seconds": "90.0",
    "Cluster__generator_restarts": "10_000",
    "Cluster__trainer_restarts": "10_000",
}
"""Settings of the campaign's run: what was stopped is noticed soon."""


@dataclass
class Attack:
    """Faults that were made together, and what the audit after them found."""

    faults: list[str]
    moment: str
    """Work of the run at that time."""
    seconds: float | None = None
    """From the last fault to two optimiser steps after it; None while that is waited for."""
    resumed: int = 0
    """Number of times that a run that had ended was resumed by hand."""
    problems: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    tracebacks: int = 0


class Record:
    """All attacks of a campaign, kept in a file, so that a campaign that was broken off can go on.

    An attack has a line when its faults are made, and another when it was audited, with the same number. One without
    the second line was broken off with the campaign: it is shown, and does not count.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.attacks = {line.pop("number"): Attack(**line) for line in lines}
        self._number = max(self.attacks, default=-1)

    def begin(self, attack: Attack) -> None:
        """Write down an attack whose faults have been made."""
        self._number += 1
        self.end(attack)

    def end(self, attack: Attack) -> None:
        """Write down what came of the latest attack."""
        self.attacks[self._number] = attack
        with open(self._path, "a") as file:
            file.write(json.dumps({"number": self._number, **asdict(attack)}) + "\n")

    @property
    def audited(self) -> list[Attack]:
        """The attacks that were seen to their end."""
        return [attack for attack in self.attacks.values() if attack.seconds is not None]

    @property
    def faults(self) -> int:
        """Number of faults that were audited."""
        return sum(len(attack.faults) for attack in self.audited)

    def __str__(self) -> str:
        """Results of the campaign so far, in one line."""
        done = self.audited
        return (
            f"{self.faults} faults in {len(done)} attacks; wrong in the books: {sum(len(a.problems) for a in done)}; "
            f"stuck processes: {sum(len(a.stuck) for a in done)}; tracebacks: {sum(a.tracebacks for a in done)}; "
            f"slowest to two steps: {max((a.seconds or 0.0 for a in done), default=0.0):.0f} s"
        )

    def summary(self) -> str:
        """The whole result in lines."""
        done = self.audited
        together = Counter(len(attack.faults) for attack in done)
        median = sorted(attack.seconds or 0.0 for attack in done)[len(done) // 2] if done else 0.0
        lines = [
            str(self),
            f"median to two steps: {median:.0f} s; resumed by hand {sum(a.resumed for a in done)} times",
            f"signals: {dict(sorted(Counter(name for attack in done for name in attack.faults).items()))}",
            f"faults at once: {dict(sorted(together.items()))}",
            f"moments: {dict(Counter(attack.moment for attack in done))}",
        ]
        lines += [f"broken off: {' + '.join(a.faults)}" for a in self.attacks.values() if a.seconds is None]
        return "\n".join(lines + [f"WRONG: {problem}" for a in done for problem in (*a.problems, *a.stuck)])

    def sound(self) -> bool:
        """Say whether nothing went wrong in any attack."""
        return not any(attack.problems or attack.stuck or attack.tracebacks for attack in self.audited)


def campaign(folder: Path, count: int, seed: int, deadline: float, record: Record) -> None:
    """Break one supervised run until `count` faults stand in the record, and print what came of it."""
    # Attacks that were recorded before are not drawn again.
    rng = random.Random(f"{seed} {len(record.attacks)}")
    environment = {"SCALELAB_CACHE": str(folder / "cache")}
    lab = FaultLab(folder / "run", folder / "run.log", deadline, supervised=True, environment=environment)
    earlier: list[psutil.Process] = []
    said = 0
    try:
        with lab:
            lab.start(**SETTINGS)
            while record.faults < count:
                attack, family = _break(lab, rng, count - record.faults)
                record.begin(attack)
                _recover(lab, attack)
                earlier = _audit(lab, attack, earlier + family)
                attack.tracebacks, said = tracebacks(lab.log) - said, tracebacks(lab.log)
                record.end(attack)
                print(record, flush=True)
            _end(lab)
    except SystemExit:
        (Path.cwd() / "campaign.log").write_text(lab.log)
        raise
    if not record.sound():
        (Path.cwd() / "campaign.log").write_text(lab.log)
        raise SystemExit(f"{record.summary()}\nwhat the run said is in campaign.log")
    print(record.summary())


def _end(lab: FaultLab) -> None:
    """End the run with Ctrl-C, and audit it a last time."""
    family, driver = lab.family(), lab.driver()
    if driver is not None:
        driver.send_signal(signal.SIGINT)
    print("last line:", lab.ended())
    found = audit(lab.path)
    print(f"{found.steps} steps, {found.evaluations} evaluations")
    if wrong := [*found.problems, *_stuck(family)]:
        raise SystemExit("\n".join(["after the run's end:", *wrong]))


def _break(lab: FaultLab, rng: random.Random, most: int) -> tuple[Attack, list[psutil.Process]]:
    """Wait for a random moment, and send up to three signals; returns them with the processes that there were."""
    lab.until(lambda: bool(lab.family()), "the run's first processes")
    time.sleep(rng.uniform(0.0, LONGEST_WAIT))
    family, doing = lab.family(), str(lab.status().get("doing", "starting"))
    at_once = min(rng.choice((1, 2, 3, 3)), most)
    sent: list[str] = []
    assert lab.process is not None
    while len(sent) < at_once and not (sent and lab.process.poll() is not None):
        role = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        number, process = rng.choice(SIGNALS[role]), _one_of(lab, role, rng)
        if process is None:  # not there at this moment
            time.sleep(0.05)
            continue
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent.append(f"{role} {number.name}")
        if rng.random() < 0.5:  # the next at the same time, or while this one is being mended
            time.sleep(rng.uniform(0.0, 5.0))
    print(f"{time.strftime('%H:%M:%S')} {' + '.join(sent)} while {doing}", flush=True)
    return Attack(sent, doing.partition(",")[0]), family


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


def _recover(lab: FaultLab, attack: Attack) -> None:
    """Wait for two steps that come after the faults; go on by hand with a run that ended."""
    assert lab.process is not None
    since, end = time.time(), time.monotonic() + lab.deadline
    while sum(line["time"] > since for line in lab.lines("metrics.jsonl")) < 2:
        if lab.process.poll() is not None:
            print(f"  it ended with {lab.process.returncode}: {lab.log.strip().splitlines()[-1][:200]}", flush=True)
            attack.resumed += 1
            begun = (lab.path / "manifest.json").exists()
            lab.resume() if begun else lab.start(**SETTINGS)
        if time.monotonic() > end:
            raise SystemExit(f"no step within {lab.deadline:.0f} s:\n{lab.log[-3000:]}\n{lab.status()}")
        time.sleep(0.2)
    attack.seconds = time.time() - since


def _audit(lab: FaultLab, attack: Attack, earlier: list[psutil.Process]) -> list[psutil.Process]:
    """Look at the books; returns the earlier processes that are still of the run."""
    attack.problems = list(audit(lab.path).problems)
    now = set(lab.family())
    attack.stuck = _stuck([process for process in earlier if process not in now])
    return [process for process in set(earlier) if process in now]


def _stuck(processes: list[psutil.Process]) -> list[str]:
    """Processes that have not ended after 90 seconds; they are killed then."""
    found = []
    for process in psutil.wait_procs(processes, timeout=90)[1]:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{' '.join(process.cmdline())[:80]} ({process.status()}, parent {process.ppid()})")
                process.kill()
    return found
