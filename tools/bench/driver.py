"""Load of one driver at full size, beside stand-ins for engines: its calls and books, and an evaluation's completions.

    python tools/bench/driver.py books --engines 64 256 1000 [--seconds 20] [--tokens 5900]
    python tools/bench/driver.py evaluation --completions 16000 --tokens 5900
    python tools/bench/driver.py checkpoint --completions 768 --tokens 5900

`books` runs the lab's engines, graders, groups, heartbeats and status against Ray actors that finish completions at the
plan's speed, with all their tokens and text. An actor stands for many engines, and every one of them is called as a run
calls it. A batch of groups becomes a step in Ray's store. Fewer `--tokens` make completions smaller, not more of them.
`evaluation` lets completions come in groups of 16 from another process, and measures how long the event loop stands
still and what memory is taken, shared memory that it reads included. `checkpoint` does so for the completions that wait
when a checkpoint is taken, and for those of a step that are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalelab.cluster.heartbeats import Pulse
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.types import AnyRollout
from scalelab.rollout.types import Completion, Request
from scalelab.run.work import RolloutWork
from scalelab.shards import taken_out, with_keys
from tasks.types import Prompt, Verdict, verdict

GROUP = 16
TOKENS_A_SECOND, TOKENS = 2218, 5900
"""Speed of an engine and length of a completion in the plan of `h100/scalerl_8b`."""
HOSTS = 4
"""Processes that the engines' stand-ins share."""
FILL, WARM = 10.0, 60.0
"""Seconds for all requests to reach the engines, and for as many groups to be finished as are begun."""


class Pauses:
    """The longest time for which the event loop stood still."""

    longest = 0.0

    async def watch(self, every: float) -> None:
        """Look every so many seconds, until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(every)
            self.longest = max(self.longest, time.perf_counter() - before - every)


def completion(request: Request, ids: np.ndarray, logprobs: np.ndarray, text: str) -> Completion:
    """A completion with tokens of its own."""
    shift, tokens = random.randrange(len(ids)), len(ids)
    turned = np.roll(ids, shift), np.roll(logprobs, shift)
    return Completion(request, *turned, ((0, 0, tokens),), np.zeros(tokens, bool), False, False, text)


class GroupMaker:
    """Stand-in for the engines of an evaluation, which finish a group at a time."""

    def __init__(self, tokens: int) -> None:
        rng = np.random.default_rng(0)
        self.ids = rng.integers(0, 128256, tokens).astype(np.int32)
        self.logprobs = (-rng.exponential(0.3, tokens)).astype(np.float32)
        self.text = "word " * int(tokens * 0.8)

    def make(self, number: int, shard_bytes: int) -> Any:
        """Completions of a group, as `EngineActor.collect` gives them."""
        asked = [Request(f"{number}/{one}", (0,) * 100, 14336, kind="eval", task="math") for one in range(GROUP)]
        return taken_out([completion(one, self.ids, self.logprobs, self.text) for one in asked], shard_bytes)


def evaluation(completions: int, tokens: int, shard_bytes: int) -> None:
    """Write an evaluation's completions as they come, beside a heartbeat of the event loop."""
    import ray

    from scalelab.store.completions import CompletionsFile

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=4 * 2**30)
    maker: Any = ray.remote(num_cpus=0)(GroupMaker).remote(tokens)
    work = RolloutWork(Recipe(), None, 0, False)  # type: ignore[arg-type]
    verdicts = [verdict("passed")] * GROUP

    async def group(number: int) -> list[AnyRollout]:
        answer, *shards = maker.make.options(num_returns=3).remote(number, shard_bytes)
        prompt = Prompt(f"math/{number}", "math", "p" * 300, "42")
        return work.rollouts(prompt, with_keys(await answer, *shards), verdicts)

    async def main() -> None:
        await group(0)
        pauses = Pauses()
        watching = asyncio.ensure_future(pauses.watch(0.001))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step_000000.parquet"
            file, inside, spent = CompletionsFile(path), 0.0, time.process_time()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(completions // GROUP):
                rollouts = await group(number)
                began = time.perf_counter()
                file.add(rollouts)
                inside += time.perf_counter() - began
            await asyncio.wrap_future(file.finish())
            watching.cancel()
            size = path.stat().st_size
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        total = completions * tokens
        print(
            f"{completions} x {tokens} tokens: the loop stood still for {pauses.longest:.3f} s at most, "
            f"{inside:.2f} s in all in the file's calls; {peak:.2f} GiB more memory; {size / total:.1f} bytes a token; "
            f"{1e9 * (time.process_time() - spent) / total:.0f} ns of the driver's processor time a token"
        )

    asyncio.run(main())
    ray.shutdown()


def checkpoint(completions: int, tokens: int) -> None:
    """Take a checkpoint's books while completions wait for a step, and keep those of a step, beside a heartbeat."""
    import ray

    from scalelab.experiment import resolve
    from scalelab.run.books import DrawnGroup, new_books
    from scalelab.run.coroutines import in_own_thread
    from scalelab.store.folder import RunFolder

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=4 * 2**30)
    maker: Any = ray.remote(num_cpus=0)(GroupMaker).remote(tokens)
    work = RolloutWork(Recipe(), None, 0, False)  # type: ignore[arg-type]
    books = new_books(resolve("quickstart").run)
    waiting: list[AnyRollout] = []
    for number in range(completions // GROUP):
        answer, *shards = maker.make.options(num_returns=3).remote(number, 100_000)
        prompt = Prompt(f"math/{number}", "math", "p" * 300, "42")
        rollouts = work.rollouts(prompt, with_keys(ray.get(answer), *shards), [verdict("passed")] * GROUP)
        books.groups[prompt.id] = DrawnGroup(prompt, rollouts)
        waiting += rollouts

    async def main(folder: Path) -> None:
        for what in ("a checkpoint", "a kept step"):
            pauses, began = Pauses(), time.perf_counter()
            watching = asyncio.ensure_future(pauses.watch(0.001))
            await asyncio.sleep(0.1)
            if what == "a checkpoint":
                await in_own_thread(partial(books.capture().written, folder))
            else:
                logprobs = [np.zeros(tokens + 100, np.float32)] * len(waiting)
                kept: Any = SimpleNamespace(path=folder, settle=lambda *_: None)
                (folder / "rollouts").mkdir()
                await in_own_thread(partial(RunFolder.keep_trained, kept, 1, waiting, logprobs))
            took = time.perf_counter() - began - 0.1
            await asyncio.sleep(0.1)
            watching.cancel()
            print(
                f"{what} with {completions} x {tokens} tokens: the loop stood still for {pauses.longest:.3f} s at "
                f"most, the next step waits {took:.2f} s"
            )

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
    ray.shutdown()


class Quick:
    """A task whose verifier takes no time."""

    name = "math"

    def verifier(self) -> Quick:
        """Itself."""
        return self

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """Half of all completions pass."""
        return [verdict("passed" if number % 2 else "failed") for number, _ in enumerate(items)]


class EngineHost:
    """Stand-in for the actors of many engines, which finish the requests they hold at the plan's speed."""

    def __init__(self, engines: int, tokens: int) -> None:
        self.linger, self.shard_bytes, self.places, self.tokens = 0.0, 0, 1, tokens
        self.held: list[list[Request]] = [[] for _ in range(engines)]
        self.done: list[list[Completion]] = [[] for _ in range(engines)]
        self.events = [asyncio.Event() for _ in range(engines)]
        rng = np.random.default_rng(0)
        self.ids = rng.integers(0, 128256, tokens).astype(np.int32)
        self.logprobs = (-rng.exponential(0.3, tokens)).astype(np.float32)
        self.text = "word " * int(tokens * 0.8)

    async def up(self, engine: int) -> str:
        """A node."""
        return "node"

    async def submit(self, engine: int, requests: list[Request]) -> None:
        """Take requests."""
        self.held[engine] += requests

    async def collect(self, engine: int, requests: Sequence[Request] = ()) -> Any:
        """Take requests; finished completions, as `EngineActor.collect`."""
        self.held[engine] += requests
        if not self.done[engine]:
            self.events[engine].clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.events[engine].wait(), 4 * self.linger)
                await asyncio.sleep(self.linger * min(1.0, len(self.held[engine]) / self.places))
        done, self.done[engine] = self.done[engine], []
        light, contents, records = taken_out(done, self.shard_bytes)
        return (light, {"stalled_seconds": 0.0, "steps": 1.0, "completions": 1.0}), contents, records or None

    async def take_weights(self, engine: int, segments: Any) -> None:
        """Take weights at once."""

    async def pulse(self, engine: int) -> Pulse:
        """Current work, as `EngineActor.pulse`."""
        return Pulse("generating", 1.0, "node", engine, speed=1.0)

    async def abort(self, engine: int, ids: list[str]) -> None:
        """Forget nothing."""

    async def set_waits(self, places: int, linger: float, shard_bytes: int) -> None:
        """Set an engine's places, the seconds for which a full one's completions wait, and the size of a shard."""
        self.places, self.linger, self.shard_bytes = places, linger, shard_bytes

    async def work(self) -> None:
        """Finish the oldest requests of engines in turn, for as long as the actor lives."""
        engines, finished, began = range(len(self.held)), 0, time.monotonic()
        rate = len(engines) * TOKENS_A_SECOND / TOKENS
        while True:
            await asyncio.sleep(0.02)
            for _ in range(int((time.monotonic() - began) * rate) - finished):
                finished += 1
                if self.held[engine := random.choice(engines)]:
                    self._finish(engine, self.held[engine].pop(0))

    def _finish(self, engine: int, request: Request) -> None:
        request = replace(request, prompt_ids=())  # as `EngineActor.collect`
        self.done[engine].append(completion(request, self.ids, self.logprobs, self.text))
        self.events[engine].set()


def stand_ins(engines: int, tokens: int) -> tuple[list[Any], Callable[..., Any]]:
    """Ray actors that stand for the engines, and what starts an engine's in place of `actor_class(…).remote`."""
    import ray

    few = min(HOSTS, engines)
    each = -(-engines // few)
    hosts = [ray.remote(num_cpus=0, max_concurrency=4 * each)(EngineHost).remote(each, tokens) for _ in range(few)]
    started = 0

    def start(*arguments: Any) -> Any:
        nonlocal started
        host, engine, started = hosts[started // each], started % each, started + 1
        if not engine:
            host.set_waits.remote(arguments[1].max_sequences, *arguments[-2:])

        def calls(name: str) -> Any:
            method = getattr(host, name)
            apart = SimpleNamespace(remote=partial(method.options(num_returns=3).remote, engine))
            one = SimpleNamespace(remote=partial(method.remote, engine))
            one.options = lambda **options: apart if "num_returns" in options else one
            return one

        names = ("up", "submit", "collect", "take_weights", "abort", "pulse")
        return SimpleNamespace(**{name: calls(name) for name in names})

    return hosts, start


class Driver:
    """The lab's engines, graders and work of a run, with their loop's load.

    Args:
        engines: how many.
        start: starts an engine's stand-in.
    """

    def __init__(self, engines: int, start: Callable[..., Any]) -> None:
        from scalelab.cluster import engines as module
        from scalelab.cluster.faults import Faults
        from scalelab.cluster.graders import ClusterGraders
        from scalelab.cluster.heartbeats import Heartbeats
        from scalelab.experiment import resolve
        from scalelab.run.coroutines import Changes

        place = SimpleNamespace(share=1.0, strategy=lambda device: None, release=lambda: None)
        module.Reservation = lambda *_: place  # type: ignore[assignment,misc]
        module.actor_class = lambda *_, **__: SimpleNamespace(remote=start)  # type: ignore[assignment]
        module.ray = SimpleNamespace(kill=lambda actor: None)  # type: ignore[assignment]
        run = resolve("h100/scalerl_8b", [f"Cluster.generators={engines}", "Cluster.verifiers=2"]).run
        graded = SimpleNamespace(graded_tasks=[Quick()], cluster=run.cluster)
        self.recipe, self.changes = run.recipe, Changes()
        self.work = RolloutWork(run.recipe, None, 0, False)  # type: ignore[arg-type]
        faults = Faults(run.cluster, lambda _: None, print)
        self.engines = module.ClusterEngines(run, Path(), (), None, self.changes, faults)
        self.graders = ClusterGraders(graded, self.changes)  # type: ignore[arg-type]
        self.graders.describe()
        self.beats = Heartbeats(self.engines.actors)
        self.asked, self.steps = 0, 0
        self._batch, self._numbers = list[Any](), count()

    async def groups(self) -> None:
        """Ask for one group after the other, grade it, and keep it for a step."""
        for number in self._numbers:
            prompt = Prompt(f"math/{number}", "math", "p" * 300, "42")
            requests = [Request(f"{number}/{one}", (number,) * 256, 14336, task="math") for one in range(GROUP)]
            self.asked += GROUP
            completions = await self.engines.generate(requests)
            rollouts = self.work.rollouts(prompt, completions, await self.graders.grade(prompt, completions))
            self.work.outcome(rollouts)
            self._batch.append(rollouts)

    async def take_steps(self) -> None:
        """Build steps as the loop does, and put them into Ray's store as the trainer's port does."""
        import ray

        from scalelab.run.coroutines import in_own_thread

        size = self.recipe.prompts_per_step
        while True:
            await self.changes.until(lambda: len(self._batch) >= size, "a batch")
            groups = [self._batch.pop(0) for _ in range(size)]
            await in_own_thread(partial(ray.put, self.work.step(groups, 0).sequences))
            self.steps += 1

    async def look(self, folder: Path) -> None:
        """Count what the engines did, and write every actor's state, as often as a run does."""
        from scalelab.cluster.actors import LOOK_SECONDS
        from scalelab.cluster.heartbeats import stragglers
        from scalelab.store.status_file import StatusFile

        status = StatusFile(folder)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.engines.totals()
            if status.due:
                actors, versions = self.beats.lines(), self.engines.versions()
                told = [one | {"version": versions.get(one["name"])} for one in actors]
                status.write("RL", actors=told, stragglers=stragglers(actors))

    async def ask(self) -> None:
        """Ask what the loop's conditions ask after every change."""
        while True:
            await self.changes.until(lambda: self.engines.room < 0 or self.engines.version < 0, "nothing")


def books(engines: int, tokens: int, seconds: float, folder: Path) -> None:
    """Let engines finish completions at the plan's speed; print the driver's processor time and its longest pause."""
    import ray

    from scalelab.session.drive import OBJECTS

    gc.set_threshold(OBJECTS)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=4 * 2**30)
    hosts, start = stand_ins(engines, tokens)
    driver, pauses = Driver(engines, start), Pauses()
    port = driver.engines

    async def main() -> None:
        served = port.serve(), driver.graders.serve(), driver.beats.serve()
        beside = driver.take_steps(), driver.look(folder), driver.ask(), pauses.watch(0.02)
        serving = [asyncio.ensure_future(one) for one in (*served, *beside)]
        await driver.changes.until(lambda: len(port.listeners()) == engines, "all engines")
        serving += [asyncio.ensure_future(driver.groups()) for _ in range(port.room // GROUP)]
        await asyncio.sleep(FILL)
        for host in hosts:
            host.work.remote()
        await asyncio.sleep(WARM)
        before, stepped, pauses.longest = driver.asked - port.outstanding, driver.steps, 0.0
        began, spent = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - began
        spent, finished = time.process_time() - spent, driver.asked - port.outstanding - before
        print(
            f"{engines} engines, {finished / passed:.0f} completions of {tokens} tokens a second (the "
            f"plan: {engines * TOKENS_A_SECOND / TOKENS:.0f}), {driver.steps - stepped} steps: the driver takes "
            f"{spent / passed:.2f} core, {1e3 * spent / max(finished, 1):.2f} ms a completion; its loop stood still "
            f"for {pauses.longest:.2f} s at most",
            flush=True,
        )
        for one in serving:
            one.cancel()

    asyncio.run(main())
    ray.shutdown()


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("evaluation")
    one.add_argument("--completions", type=int, default=16000)
    one.add_argument("--shard-bytes", type=int, default=100_000, help="see Cluster.shard_bytes; 10**9: all in answers")
    three = parts.add_parser("checkpoint")
    three.add_argument("--completions", type=int, default=768)
    two = parts.add_parser("books")
    two.add_argument("--engines", type=int, nargs="+", default=[64, 256, 1000])
    two.add_argument("--seconds", type=float, default=20.0)
    for part in (one, two, three):
        part.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args()
    if asked.part == "evaluation":
        evaluation(asked.completions, asked.tokens, asked.shard_bytes)
        return
    if asked.part == "checkpoint":
        checkpoint(asked.completions, asked.tokens)
        return
    for engines in asked.engines:
        with tempfile.TemporaryDirectory() as folder:
            books(engines, asked.tokens, asked.seconds, Path(folder))


if __name__ == "__main__":
    main()
