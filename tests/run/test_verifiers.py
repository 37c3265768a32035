"""The verifier pool: every item gets one verdict whoever dies, and only an item that kills twice is an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.run.cluster.waiting import Waits
from scalelab.run.verifiers import CHUNK, DEPTH, Verifiers
from tasks.math.miniature import MathMiniature
from tasks.types import Prompt, Verdict, verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class TrapVerifier:
    """Does to its own process what a completion says; `once PATH` does it only the first time."""

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        return [self._grade(completion) for _, completion in items]

    def _grade(self, completion: str) -> Verdict:
        what, _, path = completion.partition(" ")
        if path:
            if Path(path).exists():
                return verdict("passed")
            Path(path).touch()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "raise":
            raise KeyError("trap")
        time.sleep(0.02)
        return verdict("passed" if what == "right" else "failed")

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class TrapTask:
    name: str = "trap"

    def verifier(self) -> TrapVerifier:
        return TrapVerifier()


@dataclass(frozen=True)
class StillbornTask(TrapTask):
    def verifier(self) -> TrapVerifier:
        os._exit(1)


@pytest.fixture(scope="module", autouse=True)
def two_nodes() -> Iterator[None]:
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20})
    cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    tests = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}}
    ray.init(address=cluster.address, runtime_env=tests, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    cluster.shutdown()


def pool(tasks: tuple[Any, ...], workers: int, stall_seconds: float = 100.0) -> Verifiers:
    run = resolve("quickstart").run
    cluster = replace(run.cluster, verifiers=workers, stall_seconds=stall_seconds)
    run = replace(run, cluster=cluster)
    object.__setattr__(run, "tasks", tasks)
    verifiers = Verifiers(run)
    verifiers.describe()
    return verifiers


def grade(verifiers: Verifiers, completions: Sequence[str], task: str = "trap") -> list[str]:
    """Outcomes in order, the books checked at every turn."""
    waits, outcomes = Waits(200.0), {}

    def graded(place: int, given: Verdict) -> None:
        assert place not in outcomes, "two verdicts for one item"
        outcomes[place] = given.outcome

    items = [(Prompt(f"{task}/{n}", task, "", "1"), completion) for n, completion in enumerate(completions)]
    verifiers.verify(items, waits, graded)
    deadline = time.monotonic() + 200
    while len(outcomes) < len(items):
        assert time.monotonic() < deadline, f"{len(items) - len(outcomes)} items never came back"
        waits.run_ready(1.0)
        assert verifiers.outstanding == len(items) - len(outcomes)
    return [outcomes[place] for place in range(len(items))]


def keep_waiting(waits: Waits, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        waits.run_ready(1.0)


def processes(verifiers: Verifiers) -> list[int]:
    refs = [worker.actor.__ray_call__.remote(lambda _: os.getpid()) for worker in verifiers._workers]
    return ray.get(refs, timeout=60)


def test_workers_stand_on_different_nodes() -> None:
    verifiers = pool((TrapTask(),), 2)
    where = [w.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for w in verifiers._workers]
    assert len(set(ray.get(where, timeout=60))) == 2


def test_a_worker_holds_a_bounded_number_and_the_rest_waits_for_room() -> None:
    verifiers, waits, seen = pool((TrapTask(),), 2), Waits(200.0), []
    assert verifiers.room == 2 * CHUNK * DEPTH
    verifiers.verify([(Prompt("trap/0", "trap", "", ""), "right")], waits, lambda place, given: seen.append(place))
    assert verifiers.room == 2 * CHUNK * DEPTH - 1
    items = [(Prompt(f"trap/{n}", "trap", "", ""), "wrong") for n in range(3 * CHUNK * DEPTH)]
    verifiers.verify(items, waits, lambda place, given: seen.append(place))
    assert verifiers.room == 0
    assert max(worker.items for worker in verifiers._workers) == CHUNK * DEPTH
    while len(seen) < len(items) + 1:
        assert waits.run_ready(60.0)
    assert verifiers.room == 2 * CHUNK * DEPTH


def test_killed_workers_lose_no_verdict_and_count_nothing_as_wrong() -> None:
    math = MathMiniature()
    verifiers = pool((math,), 2)
    prompts = [math.prompt(n) for n in range(400)]
    waits, outcomes = Waits(200.0), {}

    def graded(place: int, given: Verdict) -> None:
        assert place not in outcomes, "two verdicts for one item"
        outcomes[place] = given.outcome

    completions = [f"</think>{prompt.gold if n % 2 else 'x'}" for n, prompt in enumerate(prompts)]
    killed = processes(verifiers)
    verifiers.verify(list(zip(prompts, completions, strict=True)), waits, graded)
    for number, pid in enumerate(killed):
        while len(outcomes) < 20 * (number + 1):
            assert waits.run_ready(60.0)
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 200
    while len(outcomes) < len(prompts):
        assert time.monotonic() < deadline
        waits.run_ready(1.0)
        assert verifiers.outstanding == len(prompts) - len(outcomes)
    assert [outcomes[n] for n in range(len(prompts))] == ["failed", "passed"] * 200
    assert verifiers.counts["errors"] == 0
    assert not set(processes(verifiers)) & set(killed)


@pytest.mark.parametrize(("workers", "poison"), [(1, "kill"), (2, "raise")])
def test_poison_is_an_error_and_harms_no_other(workers: int, poison: str) -> None:
    verifiers = pool((TrapTask(),), workers)
    completions = [poison if n == 30 else "right" if n % 3 else "wrong" for n in range(60)]
    expected = ["error" if n == 30 else "passed" if n % 3 else "failed" for n in range(60)]
    assert grade(verifiers, completions) == expected
    assert verifiers.counts["errors"] == 1
    assert grade(verifiers, ["right"]) == ["passed"], "the pool goes on"


def test_a_loss_that_does_not_repeat_costs_nothing(tmp_path: Path) -> None:
    verifiers = pool((TrapTask(),), 1)
    assert grade(verifiers, [f"kill {tmp_path / 'marker'}", *["right"] * 9]) == ["passed"] * 10
    counts = verifiers.counts
    assert (counts["restarts"], counts["errors"]) == (1, 0)
    assert counts["retried"] >= 1


def test_a_worker_that_hangs_is_killed_and_its_items_tried_elsewhere() -> None:
    verifiers = pool((TrapTask(),), 2, stall_seconds=3.0)
    hung = processes(verifiers)
    outcomes = grade(verifiers, ["right"] * 10 + ["stop"] + ["wrong"] * 10)
    assert outcomes == ["passed"] * 10 + ["error"] + ["failed"] * 10
    assert len(set(hung) & set(processes(verifiers))) <= 1
    replaced, deadline = (
        set(hung) - set(processes(verifiers)),
        time.monotonic() + 60,
    )  # Ray ends a stopped one in seconds
    while left := [pid for pid in replaced if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.2)


def test_a_worker_that_never_comes_up_again_ends_the_run_with_the_reason() -> None:
    verifiers, waits = pool((TrapTask(),), 1), Waits(200.0)
    verifiers._tasks = (StillbornTask(),)
    os.kill(processes(verifiers)[0], signal.SIGKILL)
    verifiers.verify([(Prompt("trap/0", "trap", "", ""), "right")], waits, lambda place, given: None)
    with pytest.raises(LabError, match="verifier 0 failed 3 times to come up"):
        keep_waiting(waits, 200)
