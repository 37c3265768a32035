"""Broadcast of new weights over NCCL: the trainer's side, with vLLM's own transfer engine `nccl` (vLLM 0.32.0).

All ranks walk through the weights together, and rank 0, which has each of them whole for a moment, sends it to every
process of the engines, many in one message. Imports vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from threading import Thread
from typing import Any

import ray
import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

from moe.errors import MoeError, kind_and_line
from moe.train.trainer import Trainer
from moe.weights.links import EXPERT_BIAS, expert_bias_names, shapes
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.rollout.config import MESSAGE
from scalelab.run.cluster.engine_actor import Listener
from scalelab.run.cluster.waiting import LateError, wait_for

LEAVE_SECONDS = 10.0
"""Seconds in which engines leave a group; one that does not is late for the next."""


class Broadcaster:
    """Rank 0's part in broadcasts.

    Args:
        trainer: of this rank.
        address: gives a host and a free port on it, at which a group can meet rank 0.
    """

    def __init__(self, trainer: Trainer, address: Callable[[], tuple[str, int]]) -> None:
        self._trainer, self._address = trainer, address
        # The other ranks wait for rank 0 in a collective operation meanwhile, and give up at their deadline.
        self._seconds = trainer.config.deadline / 3
        self._source = MegatronSource(trainer)
        self._engines: _Engines | None = None
        self._sender: NCCLTrainerWeightTransferEngine | None = None

    def send(self, segment: Segment, listeners: Sequence[Listener]) -> str | None:
        """Send the weights to engines; the other ranks walk through `Trainer.export_weights` at the same time.

        Args:
            segment: of this rank, which stands for the publication.
            listeners: the engines; others than last time form a new group.

        Returns:
            The reason why they did not arrive; a new group is formed next time.

        Raises:
            MoeError: a rank of the trainer is lost.
        """
        self._source.begin()
        try:
            self._send(segment, listeners)
        except MoeError:
            self._end()
            raise
        except Exception as error:  # of vLLM, of NCCL, and of the engines
            cause = (self._engines and self._engines.failure) or error
            self._end()
            reason = str(cause) if isinstance(cause, LabError) else kind_and_line(cause)
            return f"weights {segment.version} were not broadcast: {reason}"
        finally:
            self._source.finish()
        return None

    def _send(self, segment: Segment, listeners: Sequence[Listener]) -> None:
        if self._engines is None or self._engines.listeners != list(listeners):
            self._end()
            self._engines = _Engines(listeners, self._seconds)
            self._sender = self._meet(self._engines)
            self._engines.on_failure = self._sender.shutdown
        assert self._sender is not None
        self._engines.publication = segment
        self._sender.send_weights()

    def _meet(self, engines: _Engines) -> NCCLTrainerWeightTransferEngine:
        """Form a group with the engines.

        It is formed in another thread, since an engine that never comes would hold this one up beyond its deadline.
        """
        met: Future[NCCLTrainerWeightTransferEngine] = Future()
        host, port = self._address()
        world = 1 + sum(listener.devices for listener in engines.listeners)
        info = NCCLTrainerInitInfo(host, port, world, packed_buffer_size_bytes=MESSAGE, rank=0)

        def meet() -> None:
            try:
                sender = NCCLTrainerWeightTransferEngine.trainer_init(info, client=engines, source=self._source)
            except Exception as error:
                with suppress(InvalidStateError):
                    met.set_exception(error)
                return
            try:
                met.set_result(sender)
            except InvalidStateError:  # too late
                sender.shutdown()

        engines.on_failure = met.cancel
        Thread(target=meet, name="meet engines", daemon=True).start()
        try:
            sender = met.result(self._seconds)
        except (FutureTimeoutError, CancelledError):
            met.cancel()
            raise LateError(f"waited {self._seconds:.0f} s for engines to meet the trainer over NCCL") from None
        group = sender.model_update_group
        if group is None or group.disabled:
            raise LabError("NCCL's library cannot be loaded by the trainer: install the GPU packages")
        return sender

    def _end(self) -> None:
        """Dissolve the group; engines that are receiving stop."""
        engines, sender, self._engines, self._sender = self._engines, self._sender, None, None
        if engines is not None:
            engines.leave()
        if sender is not None:
            sender.shutdown()


class MegatronSource(WeightSource):
    """The weights of all ranks, one whole parameter at a time, on the device; every rank walks through all of them.

    Args:
        trainer: of this rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._walk: Iterator[tuple[str, Tensor]] = iter(())

    def begin(self) -> None:
        """Begin a walk."""
        self._walk = self._trainer.export_weights(host=False)

    def finish(self) -> None:
        """Walk to the end, wherever the walk is: the other ranks do, too."""
        for _ in self._walk:
            pass

    def metadata(self) -> list[ParamMeta]:
        """Name, type and shape of every tensor, in the order of the walk."""
        hf_config, config = self._trainer.hf_config, self._trainer.config
        dtype, found = getattr(torch, config.dtype), shapes(hf_config)
        biases = expert_bias_names(hf_config).values() if config.expert_bias else ()
        experts = [(name, found[name.removesuffix(EXPERT_BIAS) + ".weight"][:1]) for name in biases]
        return [ParamMeta(name, dtype, tuple(shape)) for name, shape in found.items()] + [
            ParamMeta(name, torch.float32, tuple(shape)) for name, shape in experts
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._walk


class _Engines:
    """The engines of a group, as the client that vLLM's sender calls (`VLLMWeightSyncClient`).

    The sender itself waits in NCCL, without a deadline, so whoever waits for the engines here ends that.

    Args:
        listeners: the engines.
        seconds: deadline of each call.

    Attributes:
        publication: what the engines are to receive.
        failure: the error that ended the group.
        on_failure: called when an engine is lost, refuses, or is late.
    """

    def __init__(self, listeners: Sequence[Listener], seconds: float) -> None:
        self.listeners, self._seconds = list(listeners), seconds
        self.publication: Segment | None = None
        self.failure: Exception | None = None
        self.on_failure: Callable[[], Any] = lambda: None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the engines join, each with as many ranks as it has processes."""
        calls, offset = {}, 1
        for name, actor, devices in self.listeners:
            calls[actor.join_broadcasts.remote({**init_info, "rank_offset": offset})] = name
            offset += devices
        self._wait(calls, "join the group of the broadcast")

    def start_weight_update(self) -> None:
        """Do nothing: engines load beside their steps."""

    def update_weights(self, update_info: Any) -> None:
        """Let the engines receive, until each has loaded everything."""
        one = self.publication
        assert one is not None
        calls = {a.receive_weights.remote(one.key, one.version, update_info): n for n, a, _ in self.listeners}
        self._wait(calls, f"receive weights {one.version} by broadcast")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: the loop tells engines when to put the weights in place."""

    def leave(self) -> None:
        """Let the engines leave the group, before they are asked to join another; those that are lost need not."""
        calls = [listener.actor.leave_broadcasts.remote() for listener in self.listeners]
        ray.wait(calls, num_returns=len(calls), timeout=LEAVE_SECONDS)

    def _wait(self, calls: dict[Any, str], what: str) -> None:
        """Wait for all answers.

        Raises:
            LabError: naming the engine that is lost or says what is wrong, or those that are late.
        """
        ends = time.monotonic() + self._seconds
        try:
            while calls:
                done, _ = ray.wait(list(calls), timeout=max(0.0, ends - time.monotonic()))
                if not done:
                    raise LateError(f"waited {self._seconds:.0f} s for {', '.join(calls.values())} to {what}")
                wait_for(done[0], self._seconds, f"{calls.pop(done[0])} to {what}")
        except Exception as error:
            self.failure = error
            self.on_failure()
            raise
