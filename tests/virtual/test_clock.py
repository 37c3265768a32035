"""Simulated time: it moves only when nothing can run, adds up exactly, and says who waits when it cannot move."""

from __future__ import annotations

import asyncio
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.run.coroutines import Changes
from scalelab.virtual.clock import (
    TICKS_PER_SECOND,
    StandStillError,
    run_virtual,
    sleep_until,
    ticks,
    virtual_loop,
)


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=20))
def test_sleepers_wake_in_the_order_of_their_times_at_exactly_these(seconds: list[float]) -> None:
    woken: list[int] = []

    async def sleeper(when: int) -> None:
        await sleep_until(when, "the alarm")
        assert virtual_loop().now == when
        woken.append(when)

    async def main() -> None:
        await asyncio.gather(*(sleeper(ticks(one)) for one in seconds))

    run_virtual(main())
    assert woken == sorted(ticks(one) for one in seconds)


@given(st.floats(1e-6, 10.0), st.integers(1, 200))
def test_durations_add_up_exactly(seconds: float, count: int) -> None:
    async def main() -> int:
        for _ in range(count):
            await sleep_until(virtual_loop().now + ticks(seconds), "a step")
        return virtual_loop().now

    assert run_virtual(main()) == count * ticks(seconds)


def test_what_is_last_at_a_tick_sees_all_that_happens_then() -> None:
    seen: list[str] = []

    async def at(when: int, name: str, last: bool = False) -> None:
        await sleep_until(when, name, last=last)
        seen.append(name)
        if name == "early":
            await asyncio.sleep(0)
            seen.append("what follows early")

    async def main() -> None:
        await asyncio.gather(at(7, "last", last=True), at(7, "early"), at(7, "late"))

    run_virtual(main())
    assert seen == ["early", "what follows early", "late", "last"]


def test_ordinary_sleeps_and_timeouts_are_simulated_too() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    assert run_virtual(main(), start=TICKS_PER_SECOND) == 1 + 3660


def test_time_that_stands_still_names_every_coroutine_and_what_it_awaits() -> None:
    async def main() -> None:
        changes = Changes()
        async with asyncio.TaskGroup() as group:
            group.create_task(changes.until(lambda: False, "the moon"), name="dreamer")
            group.create_task(changes.until(lambda: None, "godot"), name="estragon")

    with pytest.raises(
        StandStillError, match=r"stands still at 0.000 s: .*dreamer awaits the moon.*estragon awaits godot"
    ):
        run_virtual(main())


def test_signals_reach_a_loop_that_never_waits() -> None:
    async def main() -> int:
        loop = virtual_loop()
        got: list[int] = []
        loop.add_signal_handler(signal.SIGUSR1, got.append, 1)
        signal.raise_signal(signal.SIGUSR1)
        turns = 0
        while not got:
            await asyncio.sleep(1.0)
            turns += 1
            assert turns < 1000
        return turns

    assert run_virtual(main()) < 1000


def test_a_stretched_clock_passes_more_wall_time() -> None:
    async def main() -> float:
        loop = virtual_loop()
        await asyncio.sleep(2.0)
        loop.stretch = lambda: 1.5
        await asyncio.sleep(2.0)
        return loop.wall

    assert run_virtual(main()) == 5.0
