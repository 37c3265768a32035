"""A wait that lasts too long, or is for the dead, ends with the name of what it waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import ray

from scalelab.errors import LabError
from scalelab.run.cluster.actors import start_ray
from scalelab.run.cluster.waiting import LateError, LostError, Waits, wait_for
from scalelab.run.config import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


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


@pytest.fixture(scope="module")
def worker() -> Iterator[ray.actor.ActorHandle]:
    start_ray(Cluster())
    worker = Worker.remote()
    wait_for(worker.sleep.remote(0), 60, "the worker to come up")
    yield worker
    ray.shutdown()


def test_a_deadline_names_what_was_waited_for(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(LabError, match="the kettle to boil"):
        wait_for(Worker.remote().sleep.remote(30), 0.2, "the kettle to boil")
    waits = Waits(0.1)
    waits.add(Worker.remote().sleep.remote(30), "the toast", print)
    with pytest.raises(LabError, match="the toast"):
        waits.run_ready(0.3)


def test_a_problem_inside_an_actor_arrives_in_one_line(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(LabError, match="the dog: the cupboard is bare: fill it"):
        wait_for(worker.refuse.remote(), 60, "the dog")
    with pytest.raises(LabError, match=r"the dog failed: .*KeyError.*bone"):
        wait_for(worker.stumble.remote(), 60, "the dog")
    mortal = Worker.remote()
    with pytest.raises(LabError, match="died while the run waited for the dog") as caught:
        wait_for(mortal.die.remote(), 60, "the dog")
    assert "\n" not in str(caught.value)


def test_everything_ready_is_handled_and_nothing_twice(worker: ray.actor.ActorHandle) -> None:
    waits, seen = Waits(60), []
    for number in range(5):
        waits.add(ray.put(number), f"number {number}", seen.append)
    while len(seen) < 5:
        assert waits.run_ready(1.0)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    waits.add(worker.sleep.remote(0.5), "a nap", seen.append)
    assert waits.run_ready(0.0) == 0
    assert waits.run_ready(30.0) == 1
    assert seen[-1] == 0.5


def test_a_failure_goes_to_its_own_callback_and_the_others_are_waited_for_still(worker: ray.actor.ActorHandle) -> None:
    waits, seen, failures = Waits(60), [], []
    mortal = Worker.remote()
    wait_for(mortal.sleep.remote(0.0), 60, "the dog to come up")
    waits.add(mortal.die.remote(), "the dog", seen.append, failures.append)
    waits.add(mortal.sleep.remote(0.0), "the dog again", seen.append, failures.append)
    waits.add(worker.sleep.remote(1.5), "a long nap", seen.append, failures.append, seconds=0.1)
    waits.add(worker.sleep.remote(0.2), "the cat", seen.append, failures.append)
    deadline = time.monotonic() + 60
    while len(seen) + len(failures) < 4 and time.monotonic() < deadline:
        waits.run_ready(0.2)
    assert seen == [0.2]
    lost = [str(error) for error in failures if isinstance(error, LostError)]
    assert len(lost) == 2
    assert all("the dog" in message for message in lost)
    assert ["a long nap" in str(error) for error in failures if isinstance(error, LateError)] == [True]
