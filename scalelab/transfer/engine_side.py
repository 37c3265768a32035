"""Weights from trainers to engines through vLLM's own weight transfer (`vllm.distributed.weight_transfer`, 0.32.0).

`ShardTransfer` is a transfer engine of ours in vLLM's registry, for CPUs and for any GPUs: it reads what
`moe.weights.shards` published, or receives whole weights through vLLM's engine for NCCL
(`scalelab.transfer.receiver`).
Every worker of an engine loads a version beside generation (`stage` or `receive`, until `staged`); then vLLM's start,
update and finish put it in place between two steps (`update`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from moe.weights.assembly import check
from moe.weights.links import EXPERT_BIAS, links, shapes
from moe.weights.segments import Segment, UnavailableError
from moe.weights.shards import Snapshot
from scalelab.errors import LabError
from scalelab.transfer import expert_bias
from scalelab.transfer.receiver import Receiver
from scalelab.transfer.rows import RowJoiner
from scalelab.transfer.twin import Twin

BACKEND = "scalelab_shards"
"""Name of our engine in vLLM's registry."""

Named = Iterable[tuple[str, Tensor]]
"""Tensors by Hugging Face name."""


@dataclass
class ShardInit(WeightTransferInitInfo):
    """Data that a worker needs before the first update: the model's Hugging Face config."""

    hf_config: dict[str, Any]


@dataclass
class ShardUpdate(WeightTransferUpdateInfo):
    """The version to put in place, which was staged before."""

    version: int


class _Job:
    """Work in a thread of its own.

    Args:
        work: what is to be done.
        device: that it is done on.
        after: a job to wait for.

    Attributes:
        problem: why it failed, if it did.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, after: _Job | None = None) -> None:
        self.problem: str | None = None
        self._work, self._device, self._after = work, device, after
        self._thread = threading.Thread(target=self._do, name="load weights", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """True if it is done, has failed, or was given up."""
        return self.problem is not None or not self._thread.is_alive()

    def give_up(self, problem: str) -> None:
        """Wait for it no longer."""
        self.problem = problem

    def _do(self) -> None:
        try:
            if self._after is not None:
                self._after._thread.join()
                self._after = None
            if not current_platform.is_cpu():  # a new thread begins on the first device
                torch.accelerator.set_device_index(self._device)
            self._work()
        except Exception as error:  # `staged` reports it to the engine
            self.problem = f"{type(error).__name__}: {printable(error)}"


class ShardTransfer(WeightTransferEngine[ShardInit, ShardUpdate]):
    """Load a version from segments in shared memory, or from a broadcast, into the model of one worker."""

    init_info_cls = ShardInit
    update_info_cls = ShardUpdate

    def init_transfer_engine(self, init_info: ShardInit) -> None:
        """Remember the model's config."""
        self._hf_config = init_info.hf_config
        self._twin: Twin | None = None
        self._twin_lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._biases: dict[str, Tensor] = {}
        self._rows = RowJoiner({})
        self._job: _Job | None = None
        self._last_load: _Job | None = None
        self._version: int | None = None

    def stage(self, segments: Sequence[Segment]) -> None:
        """Begin to load a version in a thread of its own."""

        def read() -> None:
            snapshot = Snapshot(segments, machine=segments[0].machine)
            try:
                self._load(snapshot.version, lambda twin: self._add(twin, snapshot.weights(self._hf_config)))
            finally:
                snapshot.close()

        self._begin_load(read)

    def join(self, init_info: dict[str, Any]) -> None:
        """Begin to meet the sender of weights and its other receivers."""
        if self._receiver is None:
            self._receiver = Receiver(self.vllm_config, self.device, self.model)
        # Loads do not wait for it: a group that never forms keeps its thread for minutes.
        self._job = _Job(partial(self._receiver.join, init_info), self.device)

    def receive(self, version: int, update_info: dict[str, Any]) -> None:
        """Begin to load a version that is sent to those who have joined."""
        receiver = self._receiver
        assert receiver is not None, "a worker joins a group first"

        def take(twin: Twin) -> None:
            receiver.receive(update_info, partial(self._add, twin))
            # The twin would not miss one of a layer's experts.
            self._rows.end(name for link in links(self._hf_config, single=True) for name in link.names)

        self._begin_load(lambda: self._load(version, take))

    def received(self) -> int | None:
        """The last version that this worker has all of."""
        return self._version

    def leave(self) -> None:
        """End this worker's part in the group, a meeting or a transfer under way included."""
        if self._receiver is not None:
            self._receiver.leave()
        self._drop()
        if self._job is not None and self._job is not self._last_load:
            self._job.give_up("the group that weights are sent to was ended")

    def _begin_load(self, work: Callable[[], None]) -> None:
        # A version that nobody waits for any more is not loaded at the same time.
        self._job = self._last_load = _Job(work, self.device, after=self._last_load)

    def _load(self, version: int, fill: Callable[[Twin], None]) -> None:
        """Load a version into the twin; `fill` copies its tensors."""
        with self._twin_lock, set_current_vllm_config(self.vllm_config):
            if self._twin is None:
                self._twin = Twin(self.model, bool(self._hf_config.get("tie_word_embeddings")))
            self._biases, self._version = {}, None
            self._rows = RowJoiner(shapes(self._hf_config))
            self._twin.begin()
            try:
                fill(self._twin)
                self._twin.end()
            except BaseException:
                self._drop()
                raise
            self._version = version

    def _drop(self) -> None:
        """Let go of what is there of a version that will not become whole."""
        self._rows = RowJoiner({})

    def _add(self, twin: Twin, weights: Named) -> None:
        twin.add(self._rows.join(self._without_biases(weights)))

    def _without_biases(self, weights: Named) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if name.endswith(EXPERT_BIAS):
                self._biases[name] = tensor.clone()
            else:
                yield name, tensor

    def staged(self) -> tuple[bool, str | None]:
        """Tell whether the version is ready, and why it cannot be."""
        ready = self._job is not None and self._job.over
        return ready, self._job.problem if self._job is not None and ready else None

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
        with self._twin_lock:  # workers may be meeting a new sender, which takes the twin, too
            self._twin.exchange()
        expert_bias.set_biases(self.model, self._biases)

    def finish_weight_update(self) -> None:
        """Do nothing: the weights are in place."""

    def shutdown(self) -> None:
        """Leave the group of a broadcast; readers let go of their files by themselves."""
        self.leave()


def install(worker: WorkerBase, init_info: dict[str, Any]) -> None:
    """Give a worker our transfer engine; runs in the worker's process."""
    with suppress(ValueError):  # another engine of this process has registered it
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


def _join(worker: WorkerBase, init_info: dict[str, Any]) -> None:
    _inner(worker).weight_transfer_engine.join(init_info)


def _receive(worker: WorkerBase, version: int, update_info: dict[str, Any]) -> None:
    _inner(worker).weight_transfer_engine.receive(version, update_info)


def _received(worker: WorkerBase) -> int | None:
    return _inner(worker).weight_transfer_engine.received()


def _leave(worker: WorkerBase) -> None:
    _inner(worker).weight_transfer_engine.leave()


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


def join(engine: LLMEngine, init_info: dict[str, Any]) -> None:
    """Let all workers begin to meet the sender of weights; `staged` tells when they have.

    Args:
        engine: vLLM's.
        init_info: fields of vLLM's `NCCLWeightTransferInitInfo`, with this engine's `rank_offset`.
    """
    engine.collective_rpc(_join, args=(init_info,))


def receive(engine: LLMEngine, version: int, update_info: dict[str, Any]) -> None:
    """Let all workers begin to load a version that is sent, beside the engine's steps.

    Args:
        engine: vLLM's.
        version: policy version.
        update_info: fields of vLLM's `NCCLWeightTransferUpdateInfo`.
    """
    engine.collective_rpc(_receive, args=(version, update_info))


def received(engine: LLMEngine, version: int) -> bool:
    """True if all workers have all of a version."""
    return set(engine.collective_rpc(_received)) == {version}


def leave(engine: LLMEngine) -> None:
    """End all workers' part in the group; a transfer under way ends with an error."""
    engine.collective_rpc(_leave)


def staged(engine: LLMEngine) -> bool:
    """True once all workers have done what they began.

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
