"""Sharded transfers of new weights: the trainer's side, with vLLM's own engine `sharded_rdt` (vLLM 0.32.0).

Every rank gathers a layer's matrices from the ranks that cut them between them, keeps the experts that it has, and
hands them to a server of vLLM's beside it, as it does with its rows of the vocabulary's matrices. Every process of the
engines pulls from these servers the slices that it computes with, through Ray's direct transport and NIXL. Nothing is
whole anywhere but a layer without its other experts. Imports vLLM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import ray
import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.sharded_rdt_trainer import (
    ShardedRDTTrainerInitInfo,
    ShardedRDTTrainerWeightTransferEngine,
)

from moe.errors import MoeError
from moe.train.trainer import Trainer
from moe.weights.held import held_parts
from moe.weights.links import EXPERT_BIAS
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.transfer.listener import Listener
from scalelab.transfer.listeners import ListeningEngines, gathered, why
from scalelab.transfer.puller import without_nixl
from scalelab.transfer.sizes import SHARD_BUFFERS
from scalelab.waiting import LateError

_SLACK = 15.0
"""Seconds beyond its own deadline after which a rank's server is taken for lost."""


class ShardSender:
    """One rank's part in sharded transfers; all ranks make the same calls.

    Args:
        trainer: of this rank.
        engines: the most engines that there can be at a time, all with the same number of processes.
    """

    def __init__(self, trainer: Trainer, engines: int) -> None:
        self._trainer, self._most = trainer, engines
        # Ranks wait for each other in collective operations meanwhile, and give up at their deadline: servers start,
        # engines connect and slices are pulled within a quarter of it each.
        self._seconds = trainer.config.deadline / 4
        self._source = HeldSource(trainer)
        self._sender: _Sender | None = None
        self._numbers: dict[int, Listener] = {}
        """The engines that are connected, by their number among the engines."""

    def send(self, segment: Segment, listeners: Sequence[Listener]) -> str | None:
        """Let the engines pull the weights; collective.

        Args:
            segment: of this rank; rank 0's stands for the publication.
            listeners: the engines; those that did not take part yet are connected.

        Returns:
            The reason why they did not arrive, the same on all ranks; engines are connected anew next time.

        Raises:
            MoeError: a rank of the trainer is lost.
        """
        numbers, newcomers = numbered(listeners, self._numbers)
        problem = None
        if self._sender is None:
            problem = self._agreed(lambda: self._start(min(listener.devices for listener in listeners)))
        if problem is None and newcomers:
            problem = self._agreed(lambda: self._connect(newcomers))
        if problem is None:
            self._numbers |= numbers
            problem = self._agreed(lambda: self._transfer(segment, numbers))
            if problem is not None:
                self._numbers = {}
                if self._agreed(self._check_server) is not None:
                    self._end()
        return problem and f"weights {segment.version} were not sent in shards: {problem}"

    def _agreed(self, work: Callable[[], None]) -> str | None:
        """Do something on all ranks; gives the first reason why it failed on any."""
        mine = None
        try:
            work()
        except MoeError:
            self._end()
            raise
        except Exception as error:  # of vLLM, of Ray, and of the engines
            mine = why(self._sender and self._sender.client, error)
        return next((problem for problem in gathered(mine) if problem is not None), None)

    def _start(self, devices: int) -> None:
        """Start a server beside every rank, for engines of so many processes."""
        info = ShardedRDTTrainerInitInfo(
            num_consumers=self._most * devices,
            workers_per_replica=devices,
            trainer_actor_namespace=ray.get_runtime_context().namespace,
            num_rdt_buffers=SHARD_BUFFERS,
            stall_timeout_s=self._seconds,
            rank=self._trainer.rank,
        )
        self._sender = _Sender.trainer_init(info, client=_PullingEngines({}, self._seconds), source=self._source)

    def _connect(self, newcomers: dict[int, Listener]) -> None:
        """Let engines find the servers; rank 0 alone asks them to."""
        assert self._sender is not None
        if self._trainer.rank == 0:
            self._sender.client = engines = _PullingEngines(newcomers, self._seconds)
            address = {"ray_address": ray.get_runtime_context().gcs_address, "num_replicas": self._most}
            try:
                engines.connect(self._sender.get_worker_init_payload() | address)
            except Exception:
                engines.leave()
                raise

    def _transfer(self, segment: Segment, numbers: dict[int, Listener]) -> None:
        """Give this rank's layers, one after the other, to the server beside it, until engines have pulled them."""
        sender = self._sender
        assert sender is not None
        sender.client = engines = _PullingEngines(numbers, self._seconds)
        engines.publication = segment
        engines.on_failure = sender.give_up
        self._source.begin(engines.begun.set)
        live = [number * one.devices + process for number, one in numbers.items() for process in range(one.devices)]
        try:
            sender.send_weights(live)
        except Exception:
            if sender.is_sender:
                engines.leave()
            raise
        finally:
            self._source.finish()

    def _check_server(self) -> None:
        """Make sure that the server beside this rank is there."""
        assert self._sender is not None
        self._sender._rpc("ping")

    def _end(self) -> None:
        """End the server beside this rank; engines are connected to others next time."""
        sender, self._sender, self._numbers = self._sender, None, {}
        if sender is not None:
            sender.shutdown()


def numbered(
    listeners: Sequence[Listener], connected: Mapping[int, Listener]
) -> tuple[dict[int, Listener], dict[int, Listener]]:
    """Number engines, those that are connected as they were.

    vLLM's servers serve a single engine only if its number is 0.

    Returns:
        All of them by number, and of these the ones that are not connected under it.
    """
    numbers = {number: one for number, one in connected.items() if one in listeners}
    if len(listeners) == 1 and 0 not in numbers:
        numbers = {}
    for one in listeners:
        if one not in numbers.values():
            numbers[next(number for number in itertools.count() if number not in numbers)] = one
    newcomers = {number: one for number, one in numbers.items() if connected.get(number) != one}
    return dict(sorted(numbers.items())), newcomers


class HeldSource(WeightSource):
    """The weights that this rank holds: its pipeline stage, of the experts its own, each with the biases it has.

    Args:
        trainer: of this rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._walk: Iterator[tuple[str, Tensor]] = iter(())
        self._begun = True
        self._on_begin: Callable[[], None] = lambda: None

    def begin(self, on_begin: Callable[[], None]) -> None:
        """Begin a walk; `on_begin` is called when all ranks have."""
        self._walk, self._begun, self._on_begin = self._trainer.export_held(), False, on_begin

    def finish(self) -> None:
        """Walk to the end, wherever the walk is: the other ranks do, too."""
        self._meet()
        for _ in self._walk:
            pass

    def _meet(self) -> None:
        """Wait once in a walk until all ranks are there.

        Engines begin to pull after it. Else one of them could tell a server that it is done with a layer before that
        server begins to count.
        """
        if not self._begun:
            self._begun = True
            gathered(None)
            self._on_begin()

    def metadata(self) -> list[ParamMeta]:
        """Name, type and shape of every tensor of the whole model, layer after layer."""
        hf_config, config = self._trainer.hf_config, self._trainer.config
        dtype = getattr(torch, config.dtype)
        found = held_parts(hf_config, config.layout.tensor, biased=config.expert_bias > 0)
        return [
            ParamMeta(name, torch.float32 if name.endswith(EXPERT_BIAS) else dtype, tuple(shape))
            for name, shape in found
        ]

    def held_names(self) -> list[str]:
        """The names of this rank's tensors."""
        return self._trainer.held_names()

    def iter_groups(self) -> Iterator[tuple[list[str], list[Any]]]:
        """Names and tensors of each layer that this rank has a part of; None for what others hold."""
        self._meet()
        held = set(self.held_names())
        for group in self.groups():
            yield group, [self._next(name) if name in held else None for name in group]

    def _next(self, name: str) -> Tensor:
        found, tensor = next(self._walk)
        assert found == name
        return tensor

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._walk


class _PullingEngines(ListeningEngines):
    """The engines that pull, by number; they begin when all ranks of the trainer have."""

    def __init__(self, numbers: Mapping[int, Listener], seconds: float) -> None:
        order = list(numbers)
        words = {"join": "connect to the trainer's shards", "receive": "pull its shards of weights {}"}
        super().__init__(
            "sharded_rdt",
            list(numbers.values()),
            seconds,
            **words,
            place=lambda index, _: {"replica_rank": order[index]},
        )
        self.begun = Event()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Do nothing: ranks agree that all servers are up before `connect`."""

    def connect(self, init_info: dict[str, Any]) -> None:
        """Let the engines find the servers."""
        super().init_weight_transfer_engine(init_info)

    def update_weights(self, update_info: Any) -> None:
        """Let the engines pull, until each has loaded everything."""
        if not self.begun.wait(self._seconds):
            raise LateError(f"waited {self._seconds:.0f} s for all trainer ranks to begin to send shards")
        super().update_weights(update_info)


class _Sender(ShardedRDTTrainerWeightTransferEngine):
    """vLLM's engine, whose waits have a deadline, and which fails on all ranks if it fails on one."""

    client: ListeningEngines
    _server: Any
    _problem: str | None = None
    """Reason why the server beside this rank did not start."""

    def give_up(self) -> None:
        """Let all servers end what waits in them."""
        namespace = self._init_info.trainer_actor_namespace
        for name in self._server_names or ():
            with suppress(Exception):  # a server that is lost
                ray.get_actor(name, namespace).set_gather_error.remote("an engine did not pull its shards")

    def shutdown(self) -> None:
        """End the server beside this rank."""
        server, self._server = self._server, None
        self._inflight.clear()
        if server is not None:
            ray.kill(server)

    def _spawn_server(self, served_names: list[str]) -> None:
        """Start the server in another thread, since what it waits for has no deadline in vLLM."""
        started: Future[None] = Future()
        spawn = super()._spawn_server

        def start() -> None:
            try:
                spawn(served_names)
                started.set_result(None)
            except Exception as error:
                started.set_exception(error)

        if problem := without_nixl("the trainer"):
            self._problem = problem
            return
        Thread(target=start, name="start server", daemon=True).start()
        seconds = self._init_info.stall_timeout_s
        try:
            started.result(seconds)
        except FutureTimeoutError:
            self._problem = f"waited {seconds:.0f} s for the server of trainer rank {self._init_info.rank} to start"
        except Exception as error:
            self._problem = why(None, error)

    def _all_gather_server_names(self, world: int, rank: int) -> list[str]:
        """The names of all servers.

        Raises:
            LabError: on every rank, if one of them did not start.
        """
        names, problems = zip(*gathered((self._server_name, self._problem)), strict=True)
        if problem := next((problem for problem in problems if problem is not None), None):
            self.shutdown()
            raise LabError(problem)
        return list(names)

    def _rpc(self, method: str, *args: Any) -> Any:
        return self._await_publish(getattr(self._server, method).remote(*args))

    def _await_publish(self, ref: Any) -> Any:
        return ray.get(ref, timeout=self._init_info.stall_timeout_s + _SLACK)
