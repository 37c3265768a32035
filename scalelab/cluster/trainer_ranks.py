"""The trainer of a run: one Ray actor per rank, and the group through which the loop talks to them."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from moe.sequences import TrainingSequence
from moe.settings import TrainerSetup
from moe.train.result import StepResult
from moe.weights.segments import Segment
from scalelab.cluster.actors import actor_class, this_node
from scalelab.cluster.heartbeats import Beating
from scalelab.cluster.held_step import HeldStep, Lost, Planned
from scalelab.cluster.interfaces import name_interface
from scalelab.cluster.placement import Reservation, for_trainer
from scalelab.errors import LabError
from scalelab.imports import quick_imports
from scalelab.recipe.types import HeldRecord
from scalelab.run.config import Run
from scalelab.run.coroutines import in_own_thread
from scalelab.run.ports import StepLostError, TrainerLostError
from scalelab.run.settings import Cluster
from scalelab.run.work import Step
from scalelab.shards import FETCH_SECONDS
from scalelab.transfer.listener import Listener
from scalelab.transfer.sizes import PARCEL
from scalelab.waiting import LateError, LostError, answer

if TYPE_CHECKING:
    from scalelab.transfer.broadcast import Broadcaster

log = logging.getLogger(__name__)

# Below the ports that Linux hands out by itself, so that nobody else is given the one that was found free.
RENDEZVOUS_PORTS = range(20_000, 32_000)

# Seconds after which Ray has noticed the death of a rank that another rank complains of.
SHOWS_WITHIN = 10.0


class TrainerRank(Beating):
    """One process of the trainer."""

    def __init__(self, hf_config: dict[str, Any], config: TrainerSetup, rank: int, world: int) -> None:
        import torch

        super().__init__()
        # Imported before an address is chosen, so that it is soon taken.
        with quick_imports():
            from moe.train.trainer import Trainer

        torch.set_num_threads(1)
        self._class = Trainer
        self._make = (hf_config, config, rank, world)
        self._trainer: Any = None
        self._held = HeldStep()
        self._sender: Broadcaster | None = None

    def address(self, one_machine: bool) -> str:
        """A free address on this node at which the ranks can meet.

        Args:
            one_machine: whether all ranks are on this machine, so that no other need reach it.
        """
        host, port = _free_address(one_machine)
        return f"tcp://{host}:{port}"

    def start(self, rendezvous: str, weights: str | None) -> str:
        """Build the model, from a Hugging Face folder if `weights` names one; returns the node that this rank is on."""
        hf_config, config, rank, world = self._make
        name_interface(ray.util.get_node_ip_address())
        with self.at("building the model"):
            self._trainer = self._class(
                hf_config, config, rank=rank, world=world, rendezvous=rendezvous, weights=weights
            )
        return this_node()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the trainer."""
        with self.at(method.replace("_", " ")):
            return getattr(self._trainer, method)(*args)

    def hold(self, seconds: float, sequences: Planned, records: Sequence[HeldRecord | None] = ()) -> Lost:
        """Fetch contents and records of experts of the step to come; returns the places of those that are lost.

        Args:
            seconds: longest time for each of the two.
            sequences: the step's completions.
            records: keys of their records, or none.
        """
        with self.at("fetching completions"):
            return self._held.fetch(sequences, records, seconds)

    def held_step(self, lost: Lost, *args: Any) -> StepResult:
        """Take an optimiser step on what it holds, but for what some rank lacks."""
        result: StepResult = self.call("train_step", self._held.take(lost), *args)
        return result

    def publish(self, version: int, cluster: Cluster, listeners: Sequence[Listener] = ()) -> tuple[Segment, str | None]:
        """Write this rank's share of the weights where engines of this node map it, and others fetch it.

        Then send them to the listeners, if there are any; also returns the reason why that did not work.
        """
        one_machine = cluster.address is None
        with self.at("publishing the weights"):
            segment = self._trainer.publish(version, _host(one_machine), this_node())
        if not listeners:
            return segment, None
        with self.at("sending the weights"):
            if self._trainer.rank != 0:  # rank 0 sends what all gather
                deque(self._trainer.export_parcels(PARCEL), maxlen=0)  # each is let go of before the next
                return segment, None
            if self._sender is None:
                self._sender = self._make_sender(cluster)
            return segment, self._sender.send(segment, listeners)

    def _make_sender(self, cluster: Cluster) -> Broadcaster:
        """Rank 0's part in broadcasts; imports vLLM."""
        from scalelab.transfer.broadcast import Broadcaster

        return Broadcaster(self._trainer, partial(_free_address, cluster.address is None))


class ClusterTrainer:
    """All ranks of the trainer: every collective call goes to all of them, rank 0 answers.

    Args:
        run: the run.
        weights: Hugging Face folder to start from; None starts from the run's seed.
        world: number of ranks.
        reservation: devices that are held already, perhaps by others, too; None takes some.
        setup: of each rank; None for the run's.
    """

    def __init__(
        self,
        run: Run,
        weights: Path | None,
        world: int,
        reservation: Reservation | None = None,
        setup: TrainerSetup | None = None,
    ) -> None:
        self._run, self._weights, self._world = run, weights, world
        self._setup = setup or run.trainer_setup
        self._seconds = run.cluster.startup_seconds
        self.nodes: frozenset[str] = frozenset()
        """Ray nodes that the ranks are on, once they are up."""
        self.listeners: Callable[[], Sequence[Listener]] = tuple
        """Gives the engines that weights are sent to."""
        self.on_unsent: Callable[[str], None] = log.warning
        """Takes the reason why weights that were sent did not arrive."""
        self.on_lost_records: Callable[[int, int], None] = partial(
            log.warning, "%d records of experts of %d did not arrive"
        )
        """Takes how many of a step's records of experts did not arrive, and of how many."""
        self.on_lost_completions: Callable[[int, int], None] = partial(
            log.warning, "%d completions of a step of %d did not arrive"
        )
        """Takes how many of a step's completions did not arrive, and of how many."""
        self._reservation = reservation or for_trainer(run.cluster, world)
        self._start()

    def _start(self) -> None:
        """Start the ranks' processes; `ready` waits for them."""
        self._ranks = [self._rank(rank) for rank in range(self._world)]
        self._address = self._ranks[0].address.remote(self._run.cluster.address is None)
        self._started: list[Any] = []
        self._taken: asyncio.Future[None] | None = None

    def _rank(self, rank: int) -> Any:
        run, held = self._run, self._reservation
        actor = actor_class(TrainerRank, "trainer", run.cluster, devices=held.share, strategy=held.strategy(rank))
        return actor.remote(run.model.to_hf(), self._setup, rank, self._world)

    def ready(self) -> None:
        """Wait until every rank holds the model.

        Raises:
            TrainerLostError: a rank died on the way, or hangs.
            LabError: a rank says what is wrong.
        """
        if not self._started:
            rendezvous = self.wait([self._address], "the first trainer rank to come up", self._seconds)
            weights = str(self._weights) if self._weights else None
            self._started = [rank.start.remote(rendezvous, weights) for rank in self._ranks]
        up = self._all(self._started, "the trainer to build the model", self._seconds)
        self.nodes = frozenset(asyncio.run(up))

    def actors(self) -> dict[str, Any]:
        """The actors that there are now, by name."""
        return {f"trainer rank {number}": rank for number, rank in enumerate(self._ranks)}

    # The port. Ray carries out an actor's calls in the order in which they are made.

    async def step(self, step: Step) -> StepResult:
        """Take an optimiser step; gives rank 0's result.

        Raises:
            TrainerLostError: a rank died, or none answered in time.
            StepLostError: none of its completions could be fetched.
            LabError: a rank says what went wrong, or Ray's store has no room for the step.
        """
        refs, lost = await self._begin_step(step)
        result: StepResult = await self._first(refs, "an optimiser step")
        if lost.contents and result.logprobs is not None:
            found = iter(result.logprobs)
            none = np.empty(0, np.float32)
            places = range(len(step.sequences))
            result = replace(result, logprobs=[none if n in lost.contents else next(found) for n in places])
        return result

    async def _begin_step(self, step: Step) -> tuple[list[Any], Lost]:
        """Send a step to all ranks; what lies in shards is fetched first.

        Raises:
            StepLostError: none of its completions could be fetched.
        """
        # Beside the event loop: a step of 768 completions of 6,000 tokens takes some time.
        seconds, large = self._run.cluster.stall_seconds, [one for one in (step.sequences, step.records) if one]
        putting = in_own_thread(lambda: [ray.put(one) for one in large])
        refs = await answer(putting, seconds, "room for a step in Ray's object store")
        if not step.held:
            return self.calls("train_step", *refs, step.loss, None, step.kept), Lost()
        most = min(FETCH_SECONDS, seconds / 3)  # a rank that waits has to answer before it counts as lost
        held = await self._all([one.hold.remote(most, *refs) for one in self._ranks], "the step's completions", seconds)
        lost = Lost.together(held)
        if lost.contents:
            self.on_lost_completions(len(lost.contents), len(step.sequences))
        if lost.records:
            self.on_lost_records(len(lost.records), len(step.sequences))
        if len(lost.contents) == len(step.sequences):
            raise StepLostError("no completion of a step arrived: the nodes of its engines are gone, or out of reach")
        return [rank.held_step.remote(lost, step.loss, None, step.kept) for rank in self._ranks], lost

    def try_step(self, step: Step) -> None:
        """Take an optimiser step, and start the ranks again with the weights they had before it.

        Raises:
            LabError: naming what broke.
        """
        refs, _ = asyncio.run(self._begin_step(step))
        self.wait(refs, "an optimiser step on made-up completions", self._run.cluster.stall_seconds)
        self.restart()

    def publish(self, version: int) -> Awaitable[list[Segment]]:
        """Let every rank lay out its share of the weights; gives what engines need to know of the shares."""
        cluster, listeners = self._run.cluster, self.listeners()
        # A broadcast gives up within two thirds of the ranks' own deadline.
        seconds = max(cluster.stall_seconds, self._run.trainer_setup.deadline) if listeners else None
        refs = [rank.publish.remote(version, cluster, listeners) for rank in self._ranks]
        return self._published(refs, seconds)

    async def _published(self, refs: Sequence[Any], seconds: float | None) -> list[Segment]:
        answers = await self._all(refs, "weights to be laid out", seconds)
        if problem := next((problem for _, problem in answers if problem), None):
            self.on_unsent(problem)
        return [segment for segment, _ in answers]

    def save(self, path: str, state: Any) -> Awaitable[None]:
        """Take a checkpoint; it is written while later calls run, and the next one says if it could not be.

        Args:
            path: its folder.
            state: the caller's own, as JSON, in Ray's object store.
        """
        refs = self.calls("save", path, state, self._run.checkpoints.background)
        taken = self._first(refs, "a checkpoint to be taken", self._run.save_seconds)
        self._taken = asyncio.ensure_future(taken)
        self._taken.add_done_callback(lambda one: one.cancelled() or one.exception())  # seen, whoever waits
        return asyncio.shield(self._taken)

    def saving(self) -> Awaitable[Any]:
        """Find out whether the last checkpoint could be written so far."""
        return self._first(self.calls("saving"), "the last checkpoint")

    async def finish_saving(self) -> None:
        """Wait until the last checkpoint is taken, even if nobody waits for that any more, and on the disk."""
        if self._taken is not None:
            await self._taken
        refs = self.calls("finish_saving")
        await self._all(refs, "the last checkpoint to be written", self._run.save_seconds)

    # Start-up, and starting again.

    def calls(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all ranks; a reference per rank, rank 0's first."""
        return [rank.call.remote(method, *args) for rank in self._ranks]

    def call(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        """Call a method on all ranks and wait for rank 0's answer, while nothing else goes on in this thread."""
        what = f"the trainer to {method.replace('_', ' ')}"
        return self.wait(self.calls(method, *args), what, self._seconds if seconds is None else seconds)

    def wait(self, refs: Sequence[Any], what: str, seconds: float) -> Any:
        """Wait for all ranks while nothing else goes on in this thread; gives rank 0's answer.

        Raises:
            TrainerLostError: a rank died, or none answered in time.
            LabError: a rank says what went wrong.
        """
        return asyncio.run(self._first(refs, what, seconds))

    def restart(self) -> None:
        """End what is left of the ranks and start new ones, with the weights that the first ones started from."""
        self._end()
        self._start()

    def stop(self) -> None:
        """End the ranks' processes and give their devices back."""
        self._end()
        self._reservation.release()

    def _end(self) -> None:
        for rank in self._ranks:
            ray.kill(rank)

    async def _first(self, refs: Sequence[Any], what: str, seconds: float | None = None) -> Any:
        """Wait for all ranks; gives rank 0's answer."""
        return (await self._all(refs, what, seconds))[0]

    async def _all(self, refs: Sequence[Any], what: str, seconds: float | None = None) -> list[Any]:
        """Wait for all ranks; gives their answers.

        A rank's death shows at its own reference: the others may wait for it until a deadline of theirs, so the first
        error counts.

        Raises:
            TrainerLostError: a rank died, or none answered in time.
            LabError: a rank says what went wrong.
        """
        deadline = self._run.cluster.stall_seconds if seconds is None else seconds
        waits = [asyncio.ensure_future(answer(ref, deadline, what)) for ref in refs]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_EXCEPTION)
            for one in done:
                one.result()
            return [one.result() for one in waits]
        except (LostError, LateError) as error:
            raise TrainerLostError(str(error)) from error
        except LabError as error:
            death = await _death(waits)
            if death is None:
                raise
            raise TrainerLostError(str(death)) from error
        finally:
            for one in waits:
                one.cancel()


def _free_address(one_machine: bool) -> tuple[str, int]:
    """A host and a free port of this node."""
    host = _host(one_machine)
    for port in random.sample(RENDEZVOUS_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return host, port
    raise LabError(f"found no free port among {RENDEZVOUS_PORTS} for the trainer ranks to meet at: free some")


def _host(one_machine: bool) -> str:
    """Address of this node; of this machine alone, if all ranks and engines are on it."""
    return "127.0.0.1" if one_machine else ray.util.get_node_ip_address()


async def _death(waits: Sequence[asyncio.Future[Any]]) -> LabError | None:
    """Find the rank whose death made another rank fail: it shows within seconds, if there is one."""
    await asyncio.wait(waits, timeout=SHOWS_WITHIN)
    for one in waits:
        if one.done() and isinstance(error := one.exception(), LostError):
            return error
    return None


class ClusterTuner:
    """Tuner whose trainer is on ranks of a cluster."""

    def __init__(self, run: Run) -> None:
        start = None if run.sft.pretrained is None else Path(run.sft.pretrained)
        self._ranks = ClusterTrainer(run, start, run.sft.trainers, setup=run.tuner_setup)
        self._step_seconds, self._save_seconds = run.cluster.stall_seconds, run.save_seconds

    def begin(self, path: Path | None) -> None:
        """Be ready to train, from a checkpoint or from the initial weights.

        Raises:
            TrainerLostError: a rank died on the way, or hangs.
        """
        self._ranks.ready()
        if path is not None:
            self._ranks.call("load", str(path), seconds=self._save_seconds)

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        """Start an optimiser step; what is returned waits for its loss."""
        refs = self._ranks.calls("train_step", ray.put(sequences), loss, lr)
        return lambda: self._ranks.wait(refs, "a step of the fine-tuning", self._step_seconds).loss

    def logprobs(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        """Compute the log-probability of every token of the sequences."""
        refs = self._ranks.calls("logprobs", ray.put(sequences))
        return self._ranks.wait(refs, "the loss on held-out traces", self._step_seconds)

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take a checkpoint."""
        self._ranks.call("save", str(path), dict(state), seconds=self._save_seconds)

    def save_hf(self, folder: Path) -> None:
        """Write the weights into a Hugging Face folder."""
        self._ranks.call("save_hf", str(folder))

    def restart(self) -> None:
        """Start other ranks in place of these."""
        self._ranks.restart()

    def close(self) -> None:
        """End the ranks' processes and give their devices back."""
        self._ranks.stop()
