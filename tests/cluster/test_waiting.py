"""A wait that lasts too long, or is for the dead, ends with the name of what it waited for."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import OutOfMemoryError

from scalelab.cluster.actors import start_ray
from scalelab.errors import LabError
from scalelab.run.settings import Cluster
from scalelab.waiting import LateError, LostError, answer, said, wait_for

pytestmark = pytest.mark.slow


@ray.remote(num_cpus=0)
class Worker:
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def refuse(self) -> None:
        raise LabError("the cupboard is bare: fill it")

    def stumble(self) -> None:
        raise KeyError("bone")

    def die(self) -> None:
        os._exit(1)


ACTOR: Any = Worker
"""`Worker` as Ray's decorator made it."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ray.actor.ActorHandle]:
    """An actor on this machine, whose Python lies in a folder with a space and a letter that is not ASCII."""
    environment = tmp_path_factory.mktemp("ray") / "the lab ü"
    environment.symlink_to(sys.prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(environment / "bin" / Path(sys.executable).name))
        start_ray(Cluster())
        worker = ACTOR.options(runtime_env={"env_vars": {"SET": "as for a run"}}).remote()
        wait_for(worker.sleep.remote(0), 300, "the worker to come up")
        yield worker
        ray.shutdown()


def test_a_deadline_names_what_was_waited_for(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(LabError, match="the kettle to boil"):
        wait_for(ACTOR.remote().sleep.remote(30), 0.2, "the kettle to boil")
    with pytest.raises(LabError, match="the toast"):
        asyncio.run(answer(ACTOR.remote().sleep.remote(30), 0.2, "the toast"))


def test_a_problem_inside_an_actor_arrives_in_one_line(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(LabError, match="the dog: the cupboard is bare: fill it"):
        wait_for(worker.refuse.remote(), 60, "the dog")
    with pytest.raises(LabError, match=r"the dog failed: .*KeyError.*bone"):
        wait_for(worker.stumble.remote(), 60, "the dog")
    mortal = ACTOR.remote()
    with pytest.raises(LabError, match="died while the run waited for the dog") as caught:
        wait_for(mortal.die.remote(), 60, "the dog")
    assert "\n" not in str(caught.value)


def test_an_actor_that_ray_ended_for_want_of_memory_is_said_with_the_figures() -> None:
    text = (
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, ID: 7b6e) "
        "was 23.20GB used / 23.54GB limit (0.985674)\nOOM kill reason: Memory usage exceeded threshold\n"
        "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io"
    )  # as Ray 2.60 wrote it, shortened
    lost = said(OutOfMemoryError(text), "generator 0 to start")
    assert isinstance(lost, LostError), "it is replaced"
    assert str(lost) == (
        "an actor died while the run waited for generator 0 to start: Ray ended it because memory ran out: 23.20GB "
        "used / 23.54GB limit on its machine"
    )


def test_answers_are_awaited_side_by_side_each_with_its_own_end(worker: ray.actor.ActorHandle) -> None:
    mortal = ACTOR.remote()
    wait_for(mortal.sleep.remote(0.0), 60, "the dog to come up")

    async def all_of_them() -> list[object]:
        return await asyncio.gather(
            answer(mortal.die.remote(), 60, "the dog"),
            answer(worker.sleep.remote(30.0), 0.1, "a long nap"),
            answer(ray.put(7), 60, "the cat"),
            return_exceptions=True,
        )

    lost, late, there = asyncio.run(all_of_them())
    assert isinstance(lost, LostError)
    assert "the dog" in str(lost)
    assert isinstance(late, LateError)
    assert "a long nap" in str(late)
    assert there == 7
