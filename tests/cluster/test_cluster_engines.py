"""The engines of a cluster, with actors that a test scripts: what is lost in the middle of an update costs no run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalelab.cluster import engines as module
from scalelab.cluster.engines import ClusterEngines
from scalelab.cluster.faults import Faults
from scalelab.errors import LabError
from scalelab.rollout.types import Completion, Kind, Request
from scalelab.run.coroutines import Changes
from scalelab.run.ports import EvaluationLostError
from scalelab.run.settings import Cluster
from scalelab.waiting import LateError, LostError


class Method:
    """A method of an actor as Ray calls it; what it answers has no shards beside it."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call

    def options(self, num_returns: int) -> Any:
        return SimpleNamespace(remote=lambda *arguments: (self.remote(*arguments), *[None] * (num_returns - 1)))


class Actor:
    """An engine whose completions tell the version that they were made with."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.number, self.version = lab, len(lab.actors), 0
        self.held: list[Request] = []
        lab.actors.append(self)
        for name in ("up", "submit", "collect", "take_weights", "abort"):
            setattr(self, name, Method(getattr(self, f"_{name}")))

    async def _up(self) -> str:
        await asyncio.sleep(self.lab.slow_start)
        if self.number in self.lab.dying:
            raise LostError(f"actor {self.number} died while it started")
        if self.number in self.lab.without_room:
            raise LateError(f"waited in abort_ids for actor {self.number}")
        return f"node {self.number}"

    async def _submit(self, requests: list[Request]) -> None:
        self.lab.submitted += len(requests)
        self.held += requests

    async def _collect(self, requests: Sequence[Request] = ()) -> tuple[list[Completion], dict[str, float]]:
        self.lab.sent_along += len(requests)
        self.held += requests
        await asyncio.sleep(0.002)
        if self.number in self.lab.broken:
            raise LostError(f"actor {self.number} died at work")
        done, self.held = (self.held, []) if self.lab.answers else ([], self.held)
        return [completion(request, self.version) for request in done], {"stalled_seconds": 0.0}

    async def _take_weights(self, segments: list[int]) -> str | None:
        await asyncio.sleep(self.lab.load_seconds)
        if segments[0] in self.lab.deadly and not self.number:
            raise LostError("actor 0 died while it took weights")
        if segments[0] in self.lab.unavailable:
            return "rank 1 is gone"
        self.version = segments[0]
        return None

    async def _abort(self, ids: list[str]) -> None:
        self.held = [request for request in self.held if request.id not in ids]


def completion(request: Request, version: int) -> Completion:
    zeros = np.zeros(1)
    return Completion(request, zeros.astype(np.int32), zeros, ((version, 0, 1),), zeros.astype(bool), False, False)


class Lab:
    """Two engines at work, and what is to happen to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: list[Actor] = []
        self.deadly: set[int] = set()
        self.dying: set[int] = set()
        self.unavailable: set[int] = set()
        self.without_room: set[int] = set()
        self.broken: set[int] = set()
        self.answers, self.load_seconds, self.slow_start = True, 0.002, 0.0
        self.submitted, self.sent_along = 0, 0
        self.events: list[dict[str, Any]] = []
        places = SimpleNamespace(share=1.0, strategy=lambda device: None, release=lambda: None)
        monkeypatch.setattr(module, "Reservation", lambda *_: places)
        monkeypatch.setattr(module, "actor_class", lambda *_, **__: SimpleNamespace(remote=lambda *_: Actor(self)))
        monkeypatch.setattr(module.ray, "kill", lambda actor: None)
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
        self.cluster = Cluster(generators=2, generator_restarts=1)
        run: Any = SimpleNamespace(
            cluster=self.cluster,
            seed=0,
            generator_setup=None,
            generator=SimpleNamespace(tensor_parallel=1, max_sequences=8),
            recipe=SimpleNamespace(router_replay=False),
            save_seconds=1800.0,
        )
        self.changes = Changes()
        faults = Faults(self.cluster, self.events.append, lambda line: None)
        self.engines = ClusterEngines(run, Path(), (), None, self.changes, faults)

    def run(self, scenario: Awaitable[None]) -> None:
        async def main() -> None:
            serving = asyncio.ensure_future(self.engines.serve())
            playing = asyncio.ensure_future(scenario)
            await asyncio.wait([serving, playing], return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            playing.cancel()
            await asyncio.gather(serving, playing, return_exceptions=True)
            if not playing.cancelled():
                playing.result()
            elif not serving.cancelled():
                serving.result()

        asyncio.run(main())

    async def update(self, version: int) -> None:
        """New weights; what stands for their segment tells their version."""
        segment: Any = version
        await self.engines.update(version, [segment])

    async def versions(self, count: int = 8, kind: Kind = "train") -> set[int]:
        """Versions that a group is made with."""
        requests = [Request(f"{kind}{number}", (1,), 1, kind=kind) for number in range(count)]
        made = await self.engines.generate(requests)
        assert [one.request.id.partition("/")[2] for one in made] == [request.id for request in requests]
        return {one.spans[0][0] for one in made}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_weights_that_cannot_be_had_are_waited_for_and_cost_no_engine(lab: Lab) -> None:
    async def scenario() -> None:
        lab.unavailable = {1}
        stuck = asyncio.ensure_future(lab.update(1))  # its trainer dies before anybody has fetched it
        assert await lab.versions() == {0}, "the engines go on with the weights that they have"
        stuck.cancel()
        await lab.update(2)
        assert await lab.versions() == {2}
        assert lab.engines.version == 2

    lab.run(scenario())
    assert lab.events == []
    assert len(lab.actors) == 2


def test_requests_for_an_engine_without_an_empty_place_go_with_the_call_for_its_completions(lab: Lab) -> None:
    async def scenario() -> None:
        while not lab.engines.listeners():
            await asyncio.sleep(0.001)
        lab.answers = False
        asked = [asyncio.ensure_future(lab.versions(16))]
        while sum(len(actor.held) for actor in lab.actors) < 16:
            await asyncio.sleep(0.01)
        full = lab.submitted
        asked.append(asyncio.ensure_future(lab.versions(10, "eval")))
        while sum(len(actor.held) for actor in lab.actors) < 26:
            await asyncio.sleep(0.01)
        assert lab.submitted == full, "both engines hold as many as they have places"
        assert lab.submitted + lab.sent_along == 26
        lab.answers = True
        assert [await one for one in asked] == [{0}, {0}]

    lab.run(scenario())
    assert lab.events == []


def test_weights_that_come_late_are_taken_without_newer_ones(lab: Lab) -> None:
    async def scenario() -> None:
        lab.unavailable = {1}
        late = asyncio.ensure_future(lab.update(1))
        await asyncio.sleep(0.03)
        lab.unavailable = set()
        await late
        assert await lab.versions() == {1}

    lab.run(scenario())
    assert lab.events == []


def test_an_update_that_outlasts_hang_seconds_costs_no_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.engines, "_cluster", dataclasses.replace(lab.cluster, hang_seconds=1.0))

    async def scenario() -> None:
        lab.load_seconds = 1.2
        began = time.monotonic()
        long = asyncio.ensure_future(lab.update(1))
        while not long.done():
            assert await lab.versions() <= {0, 1}, "the engines work on meanwhile"
        assert time.monotonic() - began >= 1.2
        assert await lab.versions() == {1}

    lab.run(scenario())
    assert lab.events == []
    assert len(lab.actors) == 2


def test_an_engine_that_dies_while_it_takes_weights_is_replaced_with_the_newest(lab: Lab) -> None:
    async def scenario() -> None:
        lab.deadly, lab.answers = {1}, False
        asked = asyncio.ensure_future(lab.versions())
        await asyncio.sleep(0.01)
        await lab.update(1)
        assert lab.engines.version == 1
        lab.answers = True
        assert await asked == {1}, "what it held is generated by the others"
        while len(lab.engines._up()) < 2:
            await asyncio.sleep(0.01)
        assert [actor.version for actor in lab.actors[1:]] == [1, 1]

    lab.run(scenario())
    assert [event["event"] for event in lab.events] == ["lost", "recovered"]


def test_what_a_lost_engine_would_have_had_until_another_took_its_place_is_counted(lab: Lab) -> None:
    async def scenario() -> None:
        assert await lab.versions() == {0}
        assert lab.engines.totals()["lost_device_seconds"] == 0
        lab.slow_start, before = 0.2, time.monotonic()
        lab.broken = {0}
        while len(lab.actors) < 3 or lab.engines.totals()["lost_device_seconds"] < 0.15:
            await asyncio.sleep(0.01)
        lab.broken = set()
        while lab.engines._places[0].lost_since is not None:
            await asyncio.sleep(0.01)
        counted = lab.engines.totals()["lost_device_seconds"]
        assert 0.2 <= counted <= time.monotonic() - before
        await asyncio.sleep(0.05)
        assert lab.engines.totals()["lost_device_seconds"] == counted, "it is back"

    lab.run(scenario())


def test_the_others_go_on_without_an_engine_that_finds_no_device_and_take_it_back(lab: Lab) -> None:
    async def scenario() -> None:
        assert await lab.versions() == {0}
        lab.deadly, lab.without_room = {1}, set(range(2, 6))
        await lab.update(1)
        while len(lab.actors) < 6:
            assert await lab.versions() == {1}
        while len(lab.engines._up()) < 2:
            await asyncio.sleep(0.01)
        await lab.update(2)
        assert await lab.versions() == {2}

    lab.run(scenario())
    assert [event["event"] for event in lab.events] == ["lost", "missing", "recovered"]


def test_an_engine_set_aside_keeps_its_weights_for_an_evaluation_and_follows_afterwards(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.update(1)
        assert lab.engines.set_aside(5) == 1, "one goes on with the trainer"
        for version in (2, 3):
            await lab.update(version)
            assert (await lab.versions(), await lab.versions(kind="eval")) == ({version}, {1})
            assert lab.engines.version == version
        room = lab.engines.room
        lab.answers = False
        asked = asyncio.ensure_future(lab.versions(kind="eval"))
        await asyncio.sleep(0.01)
        assert lab.engines.room == room, "completions of the evaluation take no place from others"
        lab.answers = True
        assert await asked == {1}
        lab.engines.set_aside(0)
        assert lab.engines.version == 3, "it gets no work before it has followed"
        while len(lab.engines._usual()) < 2:
            assert await lab.versions() == {3}
            await asyncio.sleep(0.001)
        assert [actor.version for actor in lab.actors] == [3, 3]
        assert await lab.versions(kind="eval") == {3}

    lab.run(scenario())
    assert lab.events == []


def test_weights_are_broadcast_to_the_engines_that_follow_the_trainer_and_to_no_other(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.update(1)
        assert [one.name for one in lab.engines.listeners()] == ["generator 0", "generator 1"]
        lab.engines.set_aside(1)
        assert [one.name for one in lab.engines.listeners()] == ["generator 0"]
        lab.engines.set_aside(0)
        while len(lab.engines.listeners()) < 2:
            await asyncio.sleep(0.001)

    lab.run(scenario())


def test_an_evaluation_that_loses_its_last_engine_says_so_and_nobody_else_does(lab: Lab) -> None:
    async def scenario() -> None:
        await lab.update(1)
        lab.engines.set_aside(1)
        lab.answers = False
        evaluated, trained = (asyncio.ensure_future(lab.versions(kind=kind)) for kind in ("eval", "train"))
        while not lab.actors[1].held:
            await asyncio.sleep(0.001)
        lab.broken = {1}
        with pytest.raises(EvaluationLostError, match="lost the last of its engines"):
            await evaluated
        lab.answers = True
        assert await trained == {1}
        assert lab.engines.outstanding == 0
        while len(lab.engines._up()) < 2:
            await asyncio.sleep(0.01)
        lab.engines.set_aside(0)
        assert await lab.versions(kind="eval") == {1}

    lab.run(scenario())
    assert [event["event"] for event in lab.events] == ["lost", "recovered"]
    assert lab.events[0]["evaluation"] == "lost"


def test_an_engine_that_dies_while_the_run_starts_is_replaced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wait_for", lambda up, *_: asyncio.run(up))
    lab.dying = {1}
    lab.engines.ready()
    assert [event["event"] for event in lab.events] == ["lost", "recovered"]
    assert len(lab.actors) == 3
    lab.dying = {2}
    with pytest.raises(LabError, match="died while it started; 1 times the generator was replaced already"):
        lab.engines.ready()


def test_an_engine_leaves_a_node_that_is_about_to_go_and_starts_again_once_it_is_gone(lab: Lab) -> None:
    async def scenario() -> None:
        for number, place in enumerate(lab.engines._places):
            place.node = f"node {number}"
        lab.answers = False
        asked = asyncio.ensure_future(lab.versions())
        while not (lab.actors[0].held and lab.actors[1].held):
            await asyncio.sleep(0.01)
        lab.engines.drain({"node 0": 0.0})
        while len(lab.actors[1].held) < 8:  # all that was asked for: what the other held is generated there
            await asyncio.sleep(0.01)
        lab.answers = True
        assert await asked == {0}
        assert (len(lab.engines._up()), len(lab.actors)) == (1, 2), "nothing starts on that node"
        lab.engines.drain({})
        while len(lab.engines._up()) < 2:
            await asyncio.sleep(0.01)

    lab.run(scenario())
    assert [event["event"] for event in lab.events] == ["missing", "recovered"], "no loss that a limit counts"


def test_a_node_that_was_said_to_go_and_stays_is_named_and_waited_for_no_longer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.engines, "_cluster", dataclasses.replace(lab.cluster, startup_seconds=0.05))

    async def scenario() -> None:
        for number, place in enumerate(lab.engines._places):
            place.node = f"node {number}"
        lab.without_room = {2}
        soon = time.time() + 0.05
        lab.engines.drain({"node 0": soon})
        while len(lab.actors) < 4:
            assert await lab.versions() == {0}, "the other engine works on"
        assert time.time() > soon + 0.05, "not before it was to go, and an engine's start later"
        while len(lab.engines._up()) < 2:
            await asyncio.sleep(0.01)

    lab.run(scenario())
    assert [event["event"] for event in lab.events] == ["missing", "overdue", "recovered"]
    assert lab.events[1]["error"] == "waited 0 s for the node of generator 0 to go, as `ray drain-node` said"


def test_the_last_engine_works_on_until_its_node_is_gone(lab: Lab) -> None:
    async def scenario() -> None:
        for number, place in enumerate(lab.engines._places):
            place.node = f"node {number}"
        lab.engines.drain({"node 0": 0.0, "node 1": 0.0})
        for _ in range(3):
            assert await lab.versions() == {0}
        assert len(lab.engines._up()) == 2

    lab.run(scenario())
    assert lab.events == []


def test_a_node_that_takes_all_its_engines_with_it_is_one_loss() -> None:
    said: list[str] = []
    faults = Faults(Cluster(generators=8, generator_restarts=1), lambda line: None, said.append)
    for number in range(8):
        faults.lost("generator", f"generator {number}", LabError("gone"))
    assert said == ["gone; replacing it (1 of 1)"] * 8
    with pytest.raises(LabError, match="gone; 1 times the generator was replaced already"):
        faults.lost("generator", "generator 3", LabError("gone"))
