"""A cancellation ends a group of tasks whatever else happens in it; work in a thread of its own holds up no ending."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from scalelab.errors import LabError
from scalelab.run.coroutines import Changes, TaskGroup, in_own_thread


async def serve(rounds: list[int]) -> None:
    """Keep an actor that dies at the moment at which the run is cancelled, and start another whenever one has died."""

    async def collect() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise LabError("an actor died") from None

    while len(rounds) < 3:
        rounds.append(1)
        try:
            async with TaskGroup() as group:
                group.create_task(collect())
        except* LabError:
            pass


def test_a_cancellation_is_not_lost_where_a_child_fails_at_the_same_moment() -> None:
    """CPython raises the child's error (gh-116720), and whoever catches it goes on; what cleans up is not cancelled."""
    rounds: list[int] = []
    cleaned = False

    async def serve_and_clean_up() -> None:
        nonlocal cleaned
        try:
            await serve(rounds)
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    async def main() -> None:
        serving = asyncio.create_task(serve_and_clean_up())
        await asyncio.sleep(0.01)
        serving.cancel()
        async with asyncio.timeout(60):
            await serving

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert (len(rounds), cleaned) == (1, True)


def test_a_group_that_is_not_cancelled_raises_what_its_children_raise() -> None:
    async def fail() -> None:
        raise LabError("of a child")

    async def main() -> None:
        async with TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert [str(one) for one in caught.value.exceptions] == ["of a child"]


def test_an_inner_group_that_fails_in_an_outer_one_that_lives_does_not_end_it() -> None:
    async def main() -> str:
        async with TaskGroup():
            try:
                async with TaskGroup() as inner:
                    inner.create_task(asyncio.sleep(3600))
                    raise LabError("within")
            except* LabError:
                pass
            await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(main()) == "went on"


def test_a_child_that_fails_while_its_group_is_waited_for_cancels_nothing_else() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise LabError("late")

    async def main() -> int:
        try:
            async with TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.sleep(3600))
        except* LabError:
            pass
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(main()) == 0


WAITS = """
import asyncio, time
from scalelab.run.coroutines import in_own_thread
async def main():
    waiting = asyncio.create_task(in_own_thread(lambda: time.sleep(1000)))
    await asyncio.sleep(0.1)
    raise RuntimeError("Ray's raylet died")
try:
    asyncio.run(main())
except RuntimeError as error:
    print(error)
"""


def test_the_end_does_not_wait_for_a_thread_that_waits_for_what_is_gone() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=600)
    assert done.stdout == "Ray's raylet died\n"
    assert time.monotonic() - began < 500


def test_what_a_thread_of_its_own_gives_or_raises_arrives() -> None:
    assert asyncio.run(in_own_thread(lambda: 3)) == 3

    def fail() -> None:
        raise LabError("no")

    with pytest.raises(LabError, match="no"):
        asyncio.run(in_own_thread(fail))


class Places:
    """Free places that many wait for; counts how often they are looked at."""

    def __init__(self) -> None:
        self.changes, self.free, self.looked = Changes(), 0, 0

    def any_free(self) -> bool:
        self.looked += 1
        return self.free > 0

    async def take(self) -> None:
        await self.changes.until(self.any_free, "a free place")
        self.free -= 1


def test_those_who_wait_for_one_condition_are_all_served_at_one_look_each() -> None:
    async def main() -> None:
        places = Places()
        takers = [asyncio.ensure_future(places.take()) for _ in range(100)]
        await asyncio.sleep(0)
        places.looked, places.free = 0, 60
        places.changes.notify()
        assert places.looked == 1, "not once for each that waits"
        await asyncio.sleep(0.01)
        assert (places.free, sum(one.done() for one in takers)) == (0, 60)
        assert [one.done() for one in takers] == [True] * 60 + [False] * 40, "first come, first served"
        places.free = 40
        places.changes.notify()
        await asyncio.wait_for(asyncio.gather(*takers), 60)

    asyncio.run(main())


def test_one_who_is_cancelled_when_woken_passes_it_on() -> None:
    async def main() -> None:
        places = Places()
        first, second = (asyncio.ensure_future(places.take()) for _ in range(2))
        await asyncio.sleep(0)
        places.free = 1
        places.changes.notify()
        first.cancel()
        await asyncio.wait_for(second, 60)
        assert first.cancelled()
        assert not places.changes.waits()

    asyncio.run(main())
