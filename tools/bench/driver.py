"""Load of one driver at full size, with stand-ins for engines: its bookkeeping, and an evaluation's completions.

    python tools/bench/driver.py books --engines 64 256 1000 [--seconds 5]
    python tools/bench/driver.py evaluation --completions 16000 --tokens 5900

`books` runs the lab's `ClusterEngines` in real time with engines that finish completions at the plan's speed; of Ray it
counts the calls. `evaluation` lets
completions come in groups of 16, and measures how long the event loop stands still and what memory is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalelab.recipe.types import Rollout
from scalelab.rollout.types import Completion, Request

GROUP = 16
TOKENS_A_SECOND, TOKENS = 2218, 5900
"""Speed of an engine and length of a completion in the plan of `h100/scalerl_8b`."""
WAITING = 82
"""Completions that are asked for, for each engine."""


def evaluation(completions: int, tokens: int) -> None:
    """Write an evaluation's completions as they come, beside a heartbeat of the event loop."""
    from scalelab.store.completions import CompletionsFile

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 128256, tokens).astype(np.int32)
    logprobs = (-rng.exponential(0.3, tokens)).astype(np.float32)

    def group(number: int) -> list[Rollout]:
        return [
            Rollout(
                prompt_id=f"math/{number}",
                task="math",
                prompt_ids=np.arange(100, dtype=np.int32),
                completion_ids=np.roll(ids, number * GROUP + one),
                logprobs_T=np.roll(logprobs, number + one),
                forced_T=np.zeros(tokens, bool),
                spans=((0, 0, tokens),),
                reward=1.0,
                outcome="passed",
                prompt="p" * 300,
                text="word " * int(tokens * 0.8),
            )
            for one in range(GROUP)
        ]

    async def main() -> None:
        longest, running = 0.0, True

        async def heartbeat() -> None:
            nonlocal longest
            while running:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before - 0.001)

        beating = asyncio.ensure_future(heartbeat())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step_000000.parquet"
            file, inside = CompletionsFile(path), 0.0
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(completions // GROUP):
                rollouts = group(number)
                began = time.perf_counter()
                file.add(rollouts)
                inside += time.perf_counter() - began
                await asyncio.sleep(0.002)
            await asyncio.wrap_future(file.finish())
            running = False
            await beating
            size = path.stat().st_size
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        total = completions * tokens
        print(
            f"{completions} x {tokens} tokens: the loop stood still for {longest:.3f} s at most, {inside:.2f} s in all "
            f"in the file's calls; {peak:.2f} GiB more memory; {size / total:.1f} bytes a token; "
            f"{1e9 * time.process_time() / total:.0f} ns of processor time a token, with what makes the completions"
        )

    asyncio.run(main())


class EngineStandIn:
    """Stand-in for an engine's actor: it finishes a request when it is told to. Ray's part is left out."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.done: list[Completion] = []
        self.calls = 0
        self.event: asyncio.Future[None] | None = None
        for name in ("up", "submit", "collect", "take_weights", "abort"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    async def _up(self) -> str:
        return "node"

    async def _submit(self, requests: list[Request]) -> None:
        self.calls += 1
        self.held += requests

    async def _collect(self, most: int, timeout: float, linger: float = 0.05) -> Any:
        self.calls += 1
        if not self.done:
            self.event = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.event, timeout)
            if self.done:
                await asyncio.sleep(linger)
        done, self.done = self.done, []
        return done, {"stalled_seconds": 0.0, "steps": 1.0, "completions": 1.0}

    async def _take_weights(self, segments: Any) -> None:
        return None

    async def _abort(self, ids: list[str]) -> None:
        pass

    def finish(self, tokens: np.ndarray) -> None:
        """Finish the oldest request."""
        if self.held:
            request = self.held.pop(0)
            forced = np.zeros(len(tokens), bool)
            self.done.append(Completion(request, tokens, tokens, ((0, 0, len(tokens)),), forced, False, False))
            if self.event is not None and not self.event.done():
                self.event.set_result(None)


def books(engines: int, seconds: float, ray_call: float) -> None:
    """Let engines finish completions at the plan's speed in real time; print the driver's processor time."""
    from scalelab.cluster import engines as module
    from scalelab.cluster.faults import Faults
    from scalelab.experiment import resolve
    from scalelab.run.changes import Changes

    actors: list[EngineStandIn] = []

    def started(*arguments: Any) -> EngineStandIn:
        actors.append(EngineStandIn())
        return actors[-1]

    place = SimpleNamespace(share=1.0, strategy=lambda device: None, release=lambda: None)
    module.Reservation = lambda *_: place  # type: ignore[assignment,misc]
    module.actor_class = lambda *_, **__: SimpleNamespace(remote=started)  # type: ignore[assignment]
    module.ray = SimpleNamespace(kill=lambda actor: None)  # type: ignore[assignment]
    run = resolve("h100/scalerl_8b", [f"Cluster.generators={engines}"]).run
    changes, tokens = Changes(), np.zeros(TOKENS, np.int32)
    port = module.ClusterEngines(run, Path(), (), None, changes, Faults(run.cluster, lambda _: None, print))
    done = 0

    async def group(number: int) -> None:
        nonlocal done
        await port.generate([Request(f"{number}/{one}", (1,) * 256, 14336, task="math") for one in range(GROUP)])
        done += GROUP

    async def loop_like() -> None:
        """Ask what the loop's conditions ask after every change."""
        while True:
            await changes.until(lambda: port.room < 0 or port.version < 0, "nothing")

    async def main() -> None:
        serving = [asyncio.ensure_future(one) for one in (port.serve(), loop_like())]
        await changes.until(lambda: len(port.listeners()) == engines, "all engines")
        running = {asyncio.ensure_future(group(number)) for number in range(engines * WAITING // GROUP)}
        number = len(running)
        while sum(len(actor.held) for actor in actors) < number * GROUP:
            await asyncio.sleep(0.05)
        for actor in actors:
            actor.calls = 0
        chooser, rate = random.Random(0), engines * TOKENS_A_SECOND / TOKENS
        began, spent, finished, before = time.monotonic(), time.process_time(), 0, done
        while (passed := time.monotonic() - began) < seconds:
            while finished < passed * rate:
                chooser.choice(actors).finish(tokens)
                finished += 1
            await asyncio.sleep(0.01)
            over = {one for one in running if one.done()}
            running -= over
            for _ in over:
                running.add(asyncio.ensure_future(group(number)))
                number += 1
        spent = time.process_time() - spent
        calls = sum(actor.calls for actor in actors) / passed
        print(
            f"{engines} engines, {finished / passed:.0f} completions a second: bookkeeping takes {spent / passed:.3f} "
            f"core, {1e3 * spent / finished:.3f} ms a completion; {calls:.0f} Ray calls a second, at "
            f"{1e3 * ray_call:.2f} ms each {calls * ray_call:.2f} core ({done - before} completions in whole groups)",
            flush=True,
        )
        for one in (*serving, *running):
            one.cancel()

    asyncio.run(main())


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("evaluation")
    one.add_argument("--completions", type=int, default=16000)
    one.add_argument("--tokens", type=int, default=TOKENS)
    two = parts.add_parser("books")
    two.add_argument("--engines", type=int, nargs="+", default=[64, 256, 1000])
    two.add_argument("--seconds", type=float, default=20.0)
    two.add_argument("--ray-call", type=float, default=0.0007, help="processor seconds of a call of Ray's")
    asked = parser.parse_args()
    if asked.part == "evaluation":
        evaluation(asked.completions, asked.tokens)
        return
    for engines in asked.engines:
        books(engines, asked.seconds, asked.ray_call)


if __name__ == "__main__":
    main()
