"""The trainer's ranks on a cluster while they start, with ranks that a test scripts: one that is lost is replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scalelab.cluster import faults as faults_room
from scalelab.cluster import trainer_ranks as room
from scalelab.cluster.faults import PAUSES, Faults
from scalelab.cluster.trainer_ranks import ClusterTrainer
from scalelab.errors import LabError
from scalelab.run.ports import TrainerLostError
from scalelab.run.settings import Cluster
from scalelab.waiting import LostError

RANKS = 2
MOMENTS = ("address", "start")
WAYS = ("dies", "hangs")
MATTERS = [(0, "address"), *((rank, "start") for rank in range(RANKS))]
"""Calls of a start, by rank: only the first is asked for an address."""
SAVING = {"save_seconds": 10.0, "checkpoints": SimpleNamespace(background=True)}


class Answer:
    """A reference as Ray gives it: it is awaited, and gives a value, an error, or nothing for good."""

    def __init__(self, value: Any = None, way: str | None = None) -> None:
        self.value, self.way = value, way

    def __await__(self) -> Generator[Any, None, Any]:
        if self.way == "hangs":
            yield from asyncio.Event().wait().__await__()
        yield from asyncio.sleep(0).__await__()
        if self.way == "dies":
            raise LostError("the actor died")
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Lab:
    """Ranks that are started again and again; what happens to which of them is said beforehand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, harm: dict[tuple[int, int, str], str], restarts: int) -> None:
        self.harm = harm
        """Faults to inject: (number of the trainer, rank, moment) → kind."""
        self.started: list[Any] = []
        self.killed: list[Any] = []
        self.events: list[dict[str, Any]] = []
        cluster = Cluster(trainers=RANKS, trainer_restarts=restarts, startup_seconds=0.4)
        run: Any = SimpleNamespace(cluster=cluster, model=SimpleNamespace(to_hf=dict), trainer_setup=None, **SAVING)
        places = SimpleNamespace(share=1.0, strategy=lambda device: None, release=lambda: None)
        monkeypatch.setattr(room, "for_trainer", lambda *_: places)
        monkeypatch.setattr(room, "actor_class", lambda *_, **__: SimpleNamespace(remote=self.rank))
        monkeypatch.setattr(room.ray, "kill", self.killed.append)
        monkeypatch.setattr(faults_room, "PAUSES", (0.0,))
        self.trainer = ClusterTrainer(run, None, RANKS)
        self.faults = Faults(cluster, self.events.append, lambda line: None)

    def rank(self, hf_config: Any, config: Any, number: int, world: int) -> Any:
        life = len(self.started) // RANKS
        way = {moment: self.harm.get((life, number, moment)) for moment in MOMENTS}

        def start(rendezvous: str, weights: str | None) -> Answer:
            assert rendezvous == f"meet in life {life}", "no rank is sent to where the lost ones met"
            return Answer(f"node {life}", way["start"])

        methods = {"address": lambda one_machine: Answer(f"meet in life {life}", way["address"]), "start": start}
        actor = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in methods.items()})
        self.started.append(actor)
        return actor

    def start(self) -> None:
        """Do what a run does before its first step."""
        self.faults.retry_with_new_trainer(self.trainer.ready, self.trainer.restart)


harms = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, RANKS - 1), st.sampled_from(MOMENTS)), st.sampled_from(WAYS), max_size=5
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(harms, st.integers(0, 4))
@example({(0, 1, "start"): "dies"}, 1)
@example({(0, 0, "address"): "dies", (1, 0, "start"): "hangs", (2, 1, "start"): "dies"}, 3)
def test_a_trainer_that_is_lost_while_a_run_starts_is_replaced_as_often_as_allowed(
    monkeypatch: pytest.MonkeyPatch, harm: dict[tuple[int, int, str], str], restarts: int
) -> None:
    lab = Lab(monkeypatch, harm, restarts)
    lives = [any((life, rank, moment) in harm for rank, moment in MATTERS) for life in range(5)]
    lost = lives.index(False)
    if lost <= restarts:
        lab.start()
        assert lab.trainer.nodes == {f"node {lost}"}
        assert [event["event"] for event in lab.events] == ["lost"] * lost + ["recovered"] * (lost > 0)
        assert lab.killed == lab.started[: RANKS * lost], "of a life that was lost nothing stays"
    else:
        with pytest.raises(LabError, match=f"{restarts} times the trainer was replaced already"):
            lab.start()
        assert [event["event"] for event in lab.events] == ["lost"] * (restarts + 1)


def test_what_a_rank_itself_says_is_wrong_ends_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, {}, restarts=3)
    for actor in lab.started:
        actor.start = SimpleNamespace(remote=lambda *_: Answer(LabError("the layout does not fit")))
    with pytest.raises(LabError, match="the layout does not fit"):
        lab.start()
    assert (lab.events, lab.killed) == ([], [])


@pytest.mark.parametrize("way", ["dies", "says why", "takes it"])
def test_a_checkpoint_that_nobody_waits_for_any_more_is_looked_at_in_the_end(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lab = Lab(monkeypatch, {}, restarts=0)
    disk_full = LabError("no room for the checkpoint") if way == "says why" else None
    answers = {"save": Answer(disk_full, way), "finish_saving": Answer()}
    for actor in lab.started:
        actor.call = SimpleNamespace(remote=lambda method, *_: answers[method])

    async def end_of_a_run() -> None:
        waiter = asyncio.ensure_future(lab.trainer.save("step_8", {}))
        await asyncio.sleep(0)
        waiter.cancel()
        await lab.trainer.finish_saving()

    if way == "takes it":
        asyncio.run(end_of_a_run())
    else:
        monkeypatch.setattr(room, "SHOWS_WITHIN", 0.01)
        with pytest.raises(TrainerLostError if way == "dies" else LabError, match=r"died|no room"):
            asyncio.run(end_of_a_run())


@pytest.mark.timeout(60)
def test_a_store_without_room_is_waited_for_until_a_deadline_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, full = Lab(monkeypatch, {}, restarts=0), threading.Event()
    monkeypatch.setattr(room.ray, "put", lambda sequences: full.wait(30))
    object.__setattr__(lab.trainer._run.cluster, "stall_seconds", 0.1)
    step: Any = SimpleNamespace(sequences="sequences", loss="loss", kept="kept", records=[], held=False)
    with pytest.raises(LabError, match="waited 0 s for room for a step in Ray's object store: raise the deadline"):
        asyncio.run(lab.trainer.step(step))
    full.set()


@pytest.mark.timeout(60)
def test_the_event_loop_goes_on_while_a_step_is_put_into_rays_store(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, {}, restarts=0)
    copied = threading.Event()
    asked: list[tuple[Any, ...]] = []

    def remote(method: str, *given: Any) -> Answer:
        asked.append((method, *given))
        return Answer("result")

    for actor in lab.started:
        actor.call = SimpleNamespace(remote=remote)

    def put(sequences: Any) -> str:
        assert copied.wait(30), "a large step takes as long as the loop is given something else to do"
        return f"where {sequences} are"

    async def both() -> Any:
        step: Any = SimpleNamespace(sequences="sequences", loss="loss", kept="kept", records=[], held=False)
        taken = asyncio.ensure_future(lab.trainer.step(step))
        await asyncio.sleep(0.01)
        assert not asked
        copied.set()
        return await taken

    monkeypatch.setattr(room.ray, "put", put)
    assert asyncio.run(both()) == "result"
    assert asked == [("train_step", "where sequences are", "loss", None, "kept")] * RANKS


def test_a_start_and_a_return_wait_alike_between_two_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    def faults(events: list[dict[str, Any]]) -> Faults:
        return Faults(Cluster(trainer_restarts=9), events.append, lambda line: None)

    def attempt() -> None:
        if len(waited) < 7:
            raise TrainerLostError("the actor died")

    waited: list[float] = []
    monkeypatch.setattr(faults_room.time, "sleep", waited.append)
    faults([]).retry_with_new_trainer(attempt, lambda: None)
    assert waited == [0.0, *PAUSES, PAUSES[-1], PAUSES[-1]]
    events: list[dict[str, Any]] = []
    pauses = []
    for one in faults(events).trainer_attempts(TrainerLostError("in step 5"), step=5):
        assert one.again
        pauses.append(one.pause)
        with one:
            if len(pauses) < 7:
                raise TrainerLostError("on the way")
    assert pauses == waited
    assert [event["event"] for event in events] == ["lost"] * 7 + ["recovered"]
    assert [event.get("step") for event in events] == [5, *[None] * 7], "the others undo no step"
    with pytest.raises(LabError, match="another fault"), next(faults([]).trainer_attempts()):
        raise LabError("another fault")
