"""Broadcast of new weights over NCCL: the trainer's side, with vLLM's own transfer engine `nccl` (vLLM 0.32.0).

All ranks walk through the weights together, parcel by parcel (`moe.weights.parcels`), and rank 0 sends each to every
process of the engines, many in one message. Imports vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.settings import TrainerConfig
from moe.train.trainer import Trainer
from moe.weights.links import expert_bias_names, stored_as
from moe.weights.parcels import parcels
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.transfer.listener import Listener
from scalelab.transfer.listeners import ListeningEngines, why
from scalelab.transfer.sizes import MESSAGE, PARCEL
from scalelab.waiting import LateError


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
        self._engines: ListeningEngines | None = None
        self._sender: NCCLTrainerWeightTransferEngine | None = None

    def send(self, segment: Segment, listeners: Sequence[Listener]) -> str | None:
        """Send the weights to engines; the other ranks walk through `Trainer.export_parcels` at the same time.

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
        except Exception as error:  # of vLLM, of NCCL or CUDA, and of the engines
            reason = why(self._engines, error)
            self._end()
            return f"weights {segment.version} were not broadcast: {reason}"
        finally:
            self._source.finish()  # whatever happens, the walk goes to its end, as those of the other ranks do
        return None

    def _send(self, segment: Segment, listeners: Sequence[Listener]) -> None:
        if self._engines is None or self._engines.listeners != list(listeners):
            self._end()
            self._engines = ListeningEngines(listeners, self._seconds)
            self._sender = self._meet(self._engines)
            self._engines.on_failure = self._sender.shutdown
        assert self._sender is not None
        self._engines.publication = segment
        self._sender.send_weights()

    def _meet(self, engines: ListeningEngines) -> NCCLTrainerWeightTransferEngine:
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


def declared(hf_config: dict[str, Any], config: TrainerConfig) -> list[ParamMeta]:
    """Name, type and shape of every tensor of a broadcast, in the order in which the trainer sends them."""
    dtype = getattr(torch, config.dtype)
    walk = parcels(hf_config, config.layout, dtype.itemsize, PARCEL)
    found = [part for parcel in walk for part in parcel.parts()]
    biases = expert_bias_names(hf_config) if config.expert_bias else {}
    experts = architecture(hf_config).fields.get("num_moe_experts")
    return [ParamMeta(name, stored_as(name, dtype), tuple(shape)) for name, shape in found] + [
        ParamMeta(name, torch.float32, (experts,)) for name in biases.values()
    ]


class MegatronSource(WeightSource):
    """The weights of all ranks, a parcel at a time, on the device; every rank walks through all of them.

    Args:
        trainer: of this rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._walk: Iterator[tuple[str, Tensor]] = iter(())

    def begin(self) -> None:
        """Begin a walk."""
        self._walk = self._trainer.export_parcels(PARCEL)

    def finish(self) -> None:
        """Walk to the end, wherever the walk is: the other ranks do, too."""
        deque(self._walk, maxlen=0)

    def metadata(self) -> list[ParamMeta]:
        """Name, type and shape of every tensor, in the order of the walk."""
        return declared(self._trainer.hf_config, self._trainer.config)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._walk
