"""The graders: every completion gets one verdict whoever dies, and only one that kills twice is an error."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.cluster_utils import Cluster as RayCluster

from scalelab.cluster.graders import CHUNK, DEPTH, ENGINES, ClusterGraders, turns
from scalelab.errors import BrokenOffError, first_error
from scalelab.experiment import resolve
from scalelab.run.coroutines import Changes
from tasks.math.miniature import MathMiniature
from tasks.types import Prompt, Verdict, verdict

pytestmark = pytest.mark.slow


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
        time.sleep(0.3 if what == "slow" else 0.02)
        return verdict("passed" if what == "right" else "failed")

    def close(self) -> None:
        pass


@given(st.dictionaries(st.text("ab", min_size=1), st.integers(0, 9), max_size=5), st.integers(0, 60))
def test_nodes_take_graders_in_proportion_to_their_cores(cores: dict[str, int], graders: int) -> None:
    order, total = turns(tuple(sorted(cores.items()))), sum(cores.values())
    assert len(order) == total
    if total:
        taken = Counter(order[turn % total] for turn in range(graders))
        for node, count in cores.items():
            assert abs(taken[node] - graders * count / total) < len(cores)
            assert bool(taken[node]) <= bool(count)


def test_a_run_whose_last_node_goes_is_broken_off_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "a", "Alive": False, "Resources": {"CPU": 4.0}}])
    with pytest.raises(BrokenOffError, match=r"^no node of the Ray cluster is left to grade on: go on with --resume$"):
        ClusterGraders(resolve("quickstart").run, Changes())


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
    tests = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}, "py_executable": shlex.quote(sys.executable)}
    ray.init(address=cluster.address, runtime_env=tests, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    cluster.shutdown()


def grading(
    tasks: tuple[Any, ...],
    workers: int,
    body: Callable[[ClusterGraders], Awaitable[Any]],
    stall_seconds: float = 100.0,
    engines: int = 1,
) -> Any:
    """Run a coroutine beside a pool that is served."""
    run = resolve("quickstart").run
    cluster = replace(run.cluster, verifiers=workers, stall_seconds=stall_seconds, generators=engines)
    run = replace(run, cluster=cluster)
    object.__setattr__(run, "tasks", tasks)

    async def main() -> Any:
        graders = ClusterGraders(run, Changes())
        graders.describe()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(graders.serve())
            await asyncio.sleep(0)
            async with asyncio.timeout(200):
                result = await body(graders)
            serving.cancel()
        return result

    return asyncio.run(main())


def completion(text: str) -> Any:
    return SimpleNamespace(text=text)


async def grade(graders: ClusterGraders, texts: Sequence[str], task: str = "trap", size: int = 10) -> list[str]:
    """Outcomes in order, of groups of `size`."""
    groups = [texts[at : at + size] for at in range(0, len(texts), size)]
    calls = [
        graders.grade(Prompt(f"{task}/{number}", task, "", "1"), [completion(text) for text in group])
        for number, group in enumerate(groups)
    ]
    verdicts = await asyncio.gather(*calls)
    assert graders.outstanding == 0
    return [verdict.outcome for group in verdicts for verdict in group]


def processes(graders: ClusterGraders) -> list[int]:
    refs = [worker.actor.__ray_call__.remote(lambda _: os.getpid()) for worker in graders._workers]
    return ray.get(refs, timeout=900)


def test_actors_stand_on_different_nodes() -> None:
    async def body(graders: ClusterGraders) -> list[str]:
        node = [
            w.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for w in graders._workers
        ]
        return ray.get(node, timeout=900)

    assert len(set(grading((TrapTask(),), 2, body))) == 2


@pytest.mark.parametrize(("engines", "chunk"), [(1, CHUNK), (20 * ENGINES, 20)])
def test_an_actor_holds_a_bounded_number_and_the_rest_waits_for_room(engines: int, chunk: int) -> None:
    async def body(graders: ClusterGraders) -> None:
        assert graders.room == 2 * chunk * DEPTH
        many = asyncio.ensure_future(grade(graders, ["wrong"] * 3 * chunk * DEPTH, size=chunk))
        while graders.room or min(worker.calls for worker in graders._workers) < DEPTH:
            await asyncio.sleep(0)
        assert max(worker.calls for worker in graders._workers) == DEPTH
        assert set(await many) == {"failed"}
        assert graders.room == 2 * chunk * DEPTH

    grading((TrapTask(),), 2, body, engines=engines)


def test_a_group_of_slow_programs_that_goes_in_one_call_is_not_taken_for_a_hanging_actor() -> None:
    async def body(graders: ClusterGraders) -> None:
        assert await grade(graders, ["slow"] * 20, size=20) == ["failed"] * 20
        assert graders.counts == {"restarts": 0, "retried": 0, "errors": 0}

    grading((TrapTask(),), 1, body, stall_seconds=4.0, engines=20 * ENGINES)


def test_killed_actors_lose_no_verdict_and_count_nothing_as_wrong() -> None:
    math = MathMiniature()

    async def grade_and_kill(graders: ClusterGraders, pid: int, prompts: list[Prompt]) -> list[list[Verdict]]:
        calls = [
            asyncio.ensure_future(
                graders.grade(prompt, [completion(f"</think>{prompt.gold if n % 2 else 'x'}") for n in range(8)])
            )
            for prompt in prompts
        ]
        while sum(call.done() for call in calls) < 5:
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*calls)

    async def body(graders: ClusterGraders) -> list[list[Verdict]]:
        killed, verdicts = processes(graders), []
        for number, pid in enumerate(killed):  # one after the other: a completion that was lost twice is an error
            prompts = [math.prompt(n) for n in range(50 * number, 50 * (number + 1))]
            verdicts += await grade_and_kill(graders, pid, prompts)
            while graders.room < 2 * CHUNK * DEPTH:  # both are up again
                await asyncio.sleep(0.1)
        assert graders.counts["errors"] == 0
        assert not set(processes(graders)) & set(killed)
        return verdicts

    for verdicts in grading((math,), 2, body):
        assert [verdict.outcome for verdict in verdicts] == ["failed", "passed"] * 4


@pytest.mark.parametrize(("workers", "poison"), [pytest.param(1, "kill", marks=pytest.mark.nightly), (2, "raise")])
def test_poison_is_an_error_and_harms_no_other(workers: int, poison: str) -> None:
    completions = [poison if n == 30 else "right" if n % 3 else "wrong" for n in range(60)]
    expected = ["error" if n == 30 else "passed" if n % 3 else "failed" for n in range(60)]

    async def body(graders: ClusterGraders) -> None:
        assert await grade(graders, completions) == expected
        assert graders.counts["errors"] == 1
        assert await grade(graders, ["right"]) == ["passed"], "the pool goes on"

    grading((TrapTask(),), workers, body)


@pytest.mark.nightly  # as is a killed actor
def test_a_loss_that_does_not_repeat_costs_nothing(tmp_path: Path) -> None:
    async def body(graders: ClusterGraders) -> None:
        assert await grade(graders, [f"kill {tmp_path / 'marker'}", *["right"] * 9]) == ["passed"] * 10
        counts = graders.counts
        assert (counts["restarts"], counts["errors"]) == (1, 0)
        assert counts["retried"] >= 1

    grading((TrapTask(),), 1, body)


def test_an_actor_that_hangs_is_killed_and_its_completions_graded_elsewhere() -> None:
    async def body(graders: ClusterGraders) -> set[int]:
        hung = processes(graders)
        outcomes = await grade(graders, ["right"] * 10 + ["stop"] + ["wrong"] * 10)
        assert outcomes == ["passed"] * 10 + ["error"] + ["failed"] * 10
        while graders.room < 2 * CHUNK * DEPTH:
            await asyncio.sleep(0.1)
        return set(hung) - set(processes(graders))

    replaced, deadline = grading((TrapTask(),), 2, body, stall_seconds=3.0), time.monotonic() + 900
    assert replaced
    while left := [pid for pid in replaced if Path(f"/proc/{pid}").exists()]:  # Ray ends a stopped one in seconds
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.2)


def test_a_verifier_that_was_kept_free_for_work_that_is_cancelled_takes_other_work() -> None:
    async def body(graders: ClusterGraders) -> list[str]:
        [worker] = graders._workers
        worker.calls += 1  # as if it held completions
        kept = asyncio.create_task(graders._reserve(worker, (Prompt("trap/0", "trap", "", "1"), "right")))
        await asyncio.sleep(0)
        assert worker.reserved
        kept.cancel()  # the trainer is lost, and with it whoever waits for a verdict
        await asyncio.gather(kept, return_exceptions=True)
        worker.calls -= 1
        return await grade(graders, ["right"])

    assert grading((TrapTask(),), 1, body) == ["passed"]


@pytest.mark.nightly
def test_an_actor_that_never_comes_up_again_ends_the_run_with_the_reason() -> None:
    stillborn: Any = StillbornTask()

    async def body(graders: ClusterGraders) -> None:
        graders._tasks = (stillborn,)
        os.kill(processes(graders)[0], signal.SIGKILL)
        await grade(graders, ["right"])

    with pytest.raises(ExceptionGroup) as caught:
        grading((TrapTask(),), 1, body)
    assert "verifier 0 failed 3 times to come up" in str(first_error(caught.value))
