"""Load of one driver at full size, with stand-ins for engines: its bookkeeping, and an evaluation's completions.

    python tools/bench_driver.py books --engines 64 256 1000 [--seconds 5]
    python tools/bench_driver.py evaluation --completions 16000 --tokens 5900

`books` runs the lab's `ClusterEngines` with actors that answer at once; Ray itself is left out. `evaluation` lets
completions come in groups of 16, and measures how long the event loop stands still and what memory is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from scalelab.recipe.types import Rollout

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


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("evaluation")
    one.add_argument("--completions", type=int, default=16000)
    one.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args()
    evaluation(asked.completions, asked.tokens)


if __name__ == "__main__":
    main()
