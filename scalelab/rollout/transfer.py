"""Weights from trainers to engines through vLLM's own weight transfer (`vllm.distributed.weight_transfer`, 0.32.0).

`ShardTransfer` is a transfer engine of ours in vLLM's registry, for CPUs and for any GPUs: it reads what
`moe.weights.shards` published. Every worker of an engine loads a version beside generation (`stage`, `staged`); then
vLLM's start, update and finish put it in place between two steps (`update`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config import WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker.worker_base import WorkerBase

from moe.errors import MoeError, printable
from moe.weights.links import EXPERT_BIAS
from moe.weights.segments import Segment, UnavailableError, check
from moe.weights.shards import Snapshot
from scalelab.errors import LabError
from scalelab.rollout import expert_bias
from scalelab.rollout.twin import Twin

BACKEND = "scalelab_shards"
"""Name of our engine in vLLM's registry."""


@dataclass
class ShardInit(WeightTransferInitInfo):
    """Data that a worker needs before the first update: the model's Hugging Face config."""

    hf_config: dict[str, Any]


@dataclass
class ShardUpdate(WeightTransferUpdateInfo):
    """The version to put in place, which was staged before."""

    version: int


class ShardTransfer(WeightTransferEngine[ShardInit, ShardUpdate]):
    """Load a version from segments in shared memory into the model of one worker."""

    init_info_cls = ShardInit
    update_info_cls = ShardUpdate

    def init_transfer_engine(self, init_info: ShardInit) -> None:
        """Remember the model's config."""
        self._hf_config = init_info.hf_config
        self._twin: Twin | None = None
        self._biases: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._version: int | None = None

    def stage(self, segments: Sequence[Segment]) -> None:
        """Begin to load a version in a thread of its own."""
        before = self._thread
        self._thread = threading.Thread(target=self._stage, args=(segments, before), name="stage weights", daemon=True)
        self._thread.start()

    def _stage(self, segments: Sequence[Segment], before: threading.Thread | None) -> None:
        try:
            if before is not None:  # a version that nobody waits for any more is not loaded at the same time
                before.join()
            self._problem, self._version = None, None
            if self._twin is None:
                self._twin = Twin(self.model, bool(self._hf_config.get("tie_word_embeddings")))
            snapshot = Snapshot(segments, machine=segments[0].machine)
            try:
                self._biases = {}
                with set_current_vllm_config(self.vllm_config):
                    self._twin.load(self._without_biases(snapshot.weights(self._hf_config)))
            finally:
                snapshot.close()
            self._version = snapshot.version
        except Exception as error:  # `staged` reports it to the engine
            self._problem = f"{type(error).__name__}: {printable(error)}"

    def _without_biases(self, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if name.endswith(EXPERT_BIAS):
                self._biases[name] = tensor.clone()
            else:
                yield name, tensor

    def staged(self) -> tuple[bool, str | None]:
        """Tell whether the version is ready, and why it cannot be."""
        ready = self._thread is not None and not self._thread.is_alive()
        return ready, self._problem if ready else None

    def start_weight_update(self) -> None:
        """Do nothing: the layers stay as they are."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Put the staged version in place, and wait until it is on the device."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ShardUpdate) -> None:
        """Exchange the layers' parameters; biases of experts go to their gates."""
        if self._twin is None or self._version != update_info.version:
            raise LabError(f"weights of version {update_info.version} are to be put in place, {self._version} is there")
        self._twin.exchange()
        expert_bias.set_biases(self.model, self._biases)

    def finish_weight_update(self) -> None:
        """Do nothing: the weights are in place."""

    def shutdown(self) -> None:
        """Do nothing: readers let go of their files by themselves."""


def install(worker: WorkerBase, init_info: dict[str, Any]) -> None:
    """Give a worker our transfer engine; runs in the worker's process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ShardTransfer)
    worker = _inner(worker)
    worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend=BACKEND), worker.vllm_config, worker.device, worker.model_runner.get_model()
    )
    worker.init_weight_transfer_engine(init_info)


def _inner(worker: Any) -> Any:
    """Unwrap a worker: vLLM's wrapper passes on reads of attributes, but no assignments."""
    return getattr(worker, "worker", worker)


def _stage(worker: WorkerBase, segments: Sequence[Segment]) -> None:
    _inner(worker).weight_transfer_engine.stage(segments)


def _staged(worker: WorkerBase) -> tuple[bool, str | None]:
    return _inner(worker).weight_transfer_engine.staged()


def fetch(hf_config: dict[str, Any], segments: Sequence[Segment], machine: str | None, deadline: float) -> Snapshot:
    """Bring a published version to this machine, while engines go on generating; close it when it is loaded.

    Raises:
        UnavailableError: it cannot be had, perhaps because a newer version takes its place.
        LabError: it is of another model or incomplete, or there is no room.
    """
    try:
        check(hf_config, segments)
        return Snapshot(segments, machine=machine, deadline=deadline)
    except UnavailableError:
        raise
    except MoeError as error:
        raise LabError(str(error)) from error


def stage(engine: LLMEngine, snapshot: Snapshot) -> None:
    """Let all workers of an engine begin to load a version, beside its steps."""
    engine.collective_rpc(_stage, args=(snapshot.segments,))


def staged(engine: LLMEngine) -> bool:
    """True once all workers have loaded it.

    Raises:
        LabError: one of them could not.
    """
    answers = engine.collective_rpc(_staged)
    if problem := next((problem for _, problem in answers if problem), None):
        raise LabError(f"an engine could not load new weights: {problem}")
    return all(ready for ready, _ in answers)


def update(engine: LLMEngine, version: int) -> None:
    """Put a staged version in place in all workers, between two steps."""
    engine.collective_rpc("start_weight_update")
    engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version}})
    engine.collective_rpc("finish_weight_update")
