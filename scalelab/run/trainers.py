"""The trainer of a run: one Ray actor per rank, and the group through which the driver talks to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from moe.train.batch import Sequence as TrainSequence
from moe.train.config import TrainerConfig
from scalelab.errors import LabError
from scalelab.run.actors import actor_class
from scalelab.run.config import Run
from scalelab.run.placement import Reservation, packed
from scalelab.run.waits import LateError, LostError, Waits, wait_for

# Below the ports that Linux hands out by itself, so that nobody else is given the one that was found free.
RENDEZVOUS_PORTS = range(20_000, 32_000)

# Seconds after which Ray has noticed the death of a rank that another rank complains of.
SHOWS_WITHIN = 10.0


class TrainerRank:
    """One process of the trainer."""

    def __init__(self, hf_config: dict[str, Any], config: TrainerConfig, rank: int, world: int) -> None:
        import torch

        # Imported before an address is chosen, so that it is soon taken.
        from moe.train.trainer import Trainer

        torch.set_num_threads(1)
        self._class = Trainer
        self._make = (hf_config, config, rank, world)
        self._trainer: Any = None

    def address(self) -> str:
        """A free address on this node at which the ranks can meet."""
        import socket

        for port in random.sample(RENDEZVOUS_PORTS, 100):
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("", port))
                return f"tcp://{ray.util.get_node_ip_address()}:{port}"
        raise LabError(f"found no free port among {RENDEZVOUS_PORTS} for the trainer ranks to meet at: free some")

    def start(self, rendezvous: str, weights: str | None) -> None:
        """Build the model, from a Hugging Face folder if `weights` names one."""
        hf_config, config, rank, world = self._make
        self._trainer = self._class(hf_config, config, rank=rank, world=world, rendezvous=rendezvous, weights=weights)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the trainer."""
        return getattr(self._trainer, method)(*args)

    def weights(self) -> tuple[int, list[Any] | None]:
        """Number of buckets, and on rank 0 all weights in them; the other ranks take part."""
        buckets = list(self._trainer.weight_buckets())
        return len(buckets), buckets if self._trainer.rank == 0 else None


class TrainerLostError(LabError):
    """A rank died or hangs: the others cannot go on without it."""


class Trainers:
    """All ranks of the trainer: every collective call goes to all of them, rank 0 answers.

    The methods named `start_…` return a reference per rank, rank 0's first. A rank's death shows at its own reference:
    the others may wait for it until a deadline of theirs.
    """

    def __init__(self, run: Run, weights: Path | None, world: int) -> None:
        self._run, self._weights, self._world = run, weights, world
        self._seconds = run.cluster.startup_seconds
        self._life = 0
        bundles = packed(world, run.cluster.devices_per_node)
        self._reservation = Reservation(run.cluster, bundles, "the trainer")
        self._start()

    def _start(self) -> None:
        self._ranks = [self._rank(rank) for rank in range(self._world)]
        rendezvous = wait_for(self._ranks[0].address.remote(), self._seconds, "the first trainer rank to come up")
        weights = str(self._weights) if self._weights else None
        self._started = [rank.start.remote(rendezvous, weights) for rank in self._ranks]

    def _rank(self, rank: int) -> Any:
        run, strategy = self._run, self._reservation.strategy(rank)
        actor = actor_class(TrainerRank, run.cluster, devices=1, strategy=strategy)
        return actor.remote(run.model.to_hf(), run.trainer_config, rank, self._world)

    def ready(self) -> None:
        """Wait until every rank holds the model."""
        wait_for(self._started, self._seconds, "the trainer to build the model")

    def start_step(
        self, sequences: Sequence[TrainSequence], loss: Callable[..., Any], lr: float | None = None
    ) -> list[Any]:
        """Start an optimiser step; rank 0's reference resolves to its `StepResult`."""
        return self.start_call("train_step", ray.put(list(sequences)), loss, lr)

    def start_export(self) -> tuple[list[Any], Any]:
        """Export the weights as they are after the calls made so far.

        Returns:
            A reference per rank, to wait for, and one to rank 0's buckets, which stay in the object store of its node:
            whoever needs them fetches them from there.
        """
        done, buckets = zip(*(rank.weights.options(num_returns=2).remote() for rank in self._ranks), strict=True)
        return list(done), buckets[0]

    def start_call(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all ranks."""
        return [rank.call.remote(method, *args) for rank in self._ranks]

    def call(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        """Call a method on all ranks and wait for rank 0's answer."""
        what = f"the trainer to {method.replace('_', ' ')}"
        return wait_for(self.start_call(method, *args), self._seconds if seconds is None else seconds, what)[0]

    def watch(
        self,
        refs: Sequence[Any],
        what: str,
        waits: Waits,
        then: Callable[[Any], None],
        seconds: float | None = None,
    ) -> None:
        """Wait for all ranks' references, and call `then` with rank 0's answer unless the ranks were restarted.

        Raises:
            TrainerLostError: from `Waits.run_ready`, once: a rank died, or none answered in time.
        """
        life = self._life

        def answered(answer: Any) -> None:
            if life == self._life:
                then(answer)

        def failed(error: LabError) -> None:
            if life != self._life:
                return
            cause = error if isinstance(error, LostError | LateError) else _loss(refs, what)
            if cause is None:
                raise error
            self._life += 1
            raise TrainerLostError(str(cause)) from error

        first, *others = refs
        waits.add(first, what, answered, failed, seconds)
        for ref in others:
            waits.add(ref, what, lambda _: None, failed, seconds)

    def restart(self) -> None:
        """End what is left of the ranks and start new ones, with the weights that the first ones started from."""
        self._end()
        self._start()
        self.ready()

    def stop(self) -> None:
        """End the ranks' processes and give their devices back."""
        self._end()
        self._reservation.release()

    def _end(self) -> None:
        self._life += 1
        for rank in self._ranks:
            ray.kill(rank)


def _loss(refs: Sequence[Any], what: str) -> LabError | None:
    """The death of a rank that is behind another's complaint: it shows within seconds, if there is one."""
    ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=SHOWS_WITHIN)
    for ref in ready:
        try:
            wait_for(ref, SHOWS_WITHIN, what)
        except LostError as lost:
            return lost
        except LabError:  # another that misses it
            continue
    return None
