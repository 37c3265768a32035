"""New weights through the memory of GPUs that trainer ranks share with engines, with vLLM's own engine `ipc`.

All ranks walk through the weights together. Each packs them into a buffer on its GPU, many at a time, and rank 0 tells
every engine where the buffers are; each engine copies from the one on its own GPU (vLLM 0.32.0). Imports vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerWeightTransferEngine

from moe.train.trainer import Trainer
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.transfer.broadcast import MegatronSource, attempt
from scalelab.transfer.listener import Listener
from scalelab.transfer.listeners import ListeningEngines, gathered, why
from scalelab.transfer.sizes import MESSAGE
from scalelab.waiting import LateError


class IpcSender:
    """One rank's part in such transfers; all ranks make the same calls.

    Args:
        trainer: of this rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        # Ranks wait for each other in collective operations meanwhile, and give up at their deadline.
        self._seconds = trainer.config.deadline / 3
        self._source = MegatronSource(trainer)
        self._engines: _SharingEngines | None = None

    def send(self, segment: Segment, listeners: Sequence[Listener]) -> str | None:
        """Let the engines copy the weights; collective.

        Args:
            segment: of this rank; rank 0's stands for the publication.
            listeners: the engines; others than last time are made ready first.

        Returns:
            The reason why they did not arrive, the same on all ranks; engines are made ready anew next time.

        Raises:
            MoeError: a rank of the trainer is lost.
        """
        problem = attempt(self._source, lambda: self._send(segment, listeners), lambda: self._engines, self._end)
        return problem and f"weights {segment.version} were not passed through the GPU's memory: {problem}"

    def _send(self, segment: Segment, listeners: Sequence[Listener]) -> None:
        first = self._trainer.rank == 0
        new = self._engines is None or self._engines.listeners != list(listeners)
        if self._engines is None or new:
            self._end()
            self._engines = _SharingEngines(listeners, self._seconds)
        sender = _Sender(
            client=self._engines,
            source=self._source,
            is_sender=first,
            packed=True,
            packed_buffer_size_bytes=max(MESSAGE, self._source.largest()),
        )
        if new:
            sender.agree(self._engines.make_ready)
        self._engines.begin(segment)
        sender.send_weights()

    def _end(self) -> None:
        """Let engines give up parts of weights that came so far."""
        engines, self._engines = self._engines, None
        if engines is not None and self._trainer.rank == 0:
            engines.leave()


class _SharingEngines(ListeningEngines):
    """The engines, which get the weights in parts within one deadline."""

    def __init__(self, listeners: Sequence[Listener], seconds: float) -> None:
        words = {"join": "be ready for weights in the GPU's memory", "receive": "copy weights {} from the GPU's memory"}
        super().__init__("ipc", listeners, seconds, **words, place=lambda *_: {})
        self._within = seconds
        self._ends = 0.0
        self._first = True

    def make_ready(self) -> None:
        """Let the engines know what comes."""
        self.init_weight_transfer_engine({"packed": True})

    def begin(self, segment: Segment) -> None:
        """Begin with the first part of a publication."""
        self.publication, self._first, self._ends = segment, True, time.monotonic() + self._within

    def update_weights(self, update_info: Any) -> None:
        """Let the engines copy a part of the weights."""
        first, self._first = self._first, False
        self._part(update_info | {"first": first, "last": False})

    def finish(self) -> None:
        """Let the engines put together what they have."""
        self._part({"first": False, "last": True})

    def _part(self, update_info: dict[str, Any]) -> None:
        self._seconds = self._ends - time.monotonic()
        if self._seconds <= 0:
            raise LateError(f"the engines did not copy all weights within {self._within:.0f} s")
        super().update_weights(update_info)


class _Sender(IPCTrainerWeightTransferEngine):
    """vLLM's engine, which fails on all ranks if an engine fails."""

    client: _SharingEngines

    def send_weights(self) -> None:
        """Send all weights, part by part; collective."""
        assert self.source is not None
        self._send(self.source)
        self.agree(self.client.finish)
        self._post_send_sync()

    def agree(self, work: Callable[[], None]) -> None:
        """Do something on rank 0.

        Raises:
            LabError: on every rank, if it failed.
        """
        problem = None
        if self.is_sender:
            try:
                work()
            except Exception as error:
                problem = why(self.client, error)
        if (problem := gathered(problem)[0]) is not None:
            raise LabError(problem)

    def _do_send(self, *args: Any, **kwargs: Any) -> None:
        send = super()._do_send
        self.agree(lambda: send(*args, **kwargs))
