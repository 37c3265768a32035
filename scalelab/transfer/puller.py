"""One worker's end of a sharded transfer: vLLM's own engine, which pulls this worker's slices into the twin.

vLLM's engine (`sharded_rdt`, vLLM 0.32.0) writes into the layers that generate. Here the twin is its target. It pulls a
slice into memory of the device that is registered with NIXL, puts a layer together there, and copies that into the
twin's memory on the host: beyond its buffers the device holds a layer or two, and no second model.
"""

from __future__ import annotations

import copy
import importlib.util
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.experimental import deregister_nixl_memory
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.config import VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.sharded_rdt_engine import (
    ShardedRDTWeightTransferEngine,
    ShardedRDTWeightTransferInitInfo,
)
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import to_meta_tensor

from moe.errors import kind_and_line
from moe.weights.links import EXPERT_BIAS
from scalelab.errors import LabError
from scalelab.transfer.joined import joined
from scalelab.transfer.twin import Twin

BACKEND = "sharded_rdt"
"""Name of vLLM's engine in its registry."""

_ENDED = "the transfer of shards was ended"
_LOOK_SECONDS = 1.0
"""Seconds between two checks whether a transfer was ended while a slice is waited for."""


class Puller:
    """vLLM's engine for sharded transfers in one worker.

    Args:
        vllm_config: of the worker.
        device: of the worker.
        twin: gives the twin of the worker's model, which is made when it is first needed.
        lock: is held by whoever works on the twin.
    """

    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, twin: Callable[[], Twin], lock: threading.Lock
    ) -> None:
        self._arguments = vllm_config, device, twin, lock
        self._engine: _Engine | None = None
        self._joining: _Engine | None = None
        self._joins = 0

    def join(self, init_info: dict[str, Any], seconds: float) -> None:
        """Find the trainer's ranks, record which slices this worker needs, and register memory; replaces the last.

        Args:
            init_info: fields of vLLM's `ShardedRDTWeightTransferInitInfo`, and `ray_address`, at which a process of
                the engine that is none of Ray's joins its cluster.
            seconds: deadline.

        Raises:
            LabError: the engine lacks NIXL, the transfer was ended meanwhile, or a server did not answer in time.
        """
        self.leave()
        mine = self._joins
        if problem := without_nixl("this engine"):
            raise LabError(problem)
        init_info = dict(init_info)
        address = init_info.pop("ray_address")
        if not ray.is_initialized():  # in the processes of an engine on several devices
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        engine = self._joining = _Engine(*self._arguments)
        try:
            with _on_one_line():
                engine.join(init_info, seconds)
        except BaseException:
            engine.end()
            raise
        if mine != self._joins:
            engine.shutdown()
            raise LabError(_ENDED)
        self._engine, self._joining = engine, None

    def receive(self, seconds: float) -> tuple[dict[str, Tensor], int]:
        """Pull this worker's slices of one version into the twin, for which room was made.

        Args:
            seconds: deadline.

        Returns:
            The biases of experts by name, fp32 [E] on the host, and the bytes that were pulled.

        Raises:
            LabError: the transfer was ended, or took too long.
        """
        engine = self._engine
        if engine is None:
            raise LabError(_ENDED)
        with _on_one_line():
            return engine.pull(seconds)

    def leave(self) -> None:
        """End this worker's part; from another thread, that ends a meeting or a transfer under way."""
        engine, self._engine = self._engine, None
        joining, self._joining = self._joining, None
        self._joins += 1
        if joining is not None:
            joining.give_up()
        if engine is not None:
            engine.end()


@contextmanager
def _on_one_line() -> Iterator[None]:
    """Leave out the traces of other processes from Ray's errors."""
    try:
        yield
    except RayTaskError as error:
        raise LabError(f"a trainer rank's server failed: {kind_and_line(error.cause)}") from error
    except RayError as error:
        raise LabError(f"a trainer rank's server is lost: {kind_and_line(error)}") from error


def without_nixl(who: str) -> str | None:
    """The reason why a process cannot take part, if NIXL is not installed for it."""
    if importlib.util.find_spec("nixl") is None:
        return f"{who} lacks the package nixl, which moves shards: install it, as requirements/gpu.txt has it"
    return None


class _Target(nn.Module):
    """The twin, and beside it a place for the biases of each layer's experts, which none of vLLM's layers has."""

    def __init__(self, twin: Twin) -> None:
        super().__init__()
        self.model = twin.model
        self.places = nn.ModuleList()
        self.names: list[str] = []
        self.loaded: set[str] = set()
        """The twin's parameters that get values."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load the weights, biases included, as vLLM's models do."""
        places = dict(zip(self.names, self.places, strict=True))

        def without_biases() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                if name in places:
                    place: Any = places[name].values
                    place.weight_loader(place, tensor)
                else:
                    yield name, tensor

        self.loaded = self.model.load_weights(joined(without_biases()))


class _Place(nn.Module):
    """The biases of one layer's experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.values = Parameter(torch.empty(experts), requires_grad=False)


class _Engine(ShardedRDTWeightTransferEngine):
    """vLLM's engine, with the twin as its target and a deadline for what it waits for."""

    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, twin: Callable[[], Twin], lock: threading.Lock
    ) -> None:
        # vLLM's engine looks for the executor that makes workers actors of Ray's. What it needs of Ray it finds in any
        # process that has joined Ray's cluster, as ours have.
        vllm_config = copy.copy(vllm_config)
        vllm_config.parallel_config = copy.copy(vllm_config.parallel_config)
        vllm_config.parallel_config.distributed_executor_backend = "ray"
        super().__init__(WeightTransferConfig(backend=BACKEND), vllm_config, device, nn.Module())
        self._get_twin, self._lock = twin, lock
        self._ended = False
        self._ends = float("inf")

    def join(self, init_info: dict[str, Any], seconds: float) -> None:
        """See `Puller.join`."""
        self._ends = time.monotonic() + seconds
        self.init_transfer_engine(self.parse_init_info(init_info))

    def _resolve_producers(self, init_info: ShardedRDTWeightTransferInitInfo) -> None:
        """Find the servers; what they reserve is waited for here, since vLLM itself waits without a deadline."""
        super()._resolve_producers(init_info)
        router: Any = self._router
        reserve = router.reserve_serve_buffers

        def reserved(*args: Any) -> list[Any]:
            refs: list[Any] = reserve(*args)
            self._await(refs, "reserve memory for this engine")
            return refs

        router.reserve_serve_buffers = reserved

    def _bake(self, init_info: ShardedRDTWeightTransferInitInfo) -> None:
        """Record which slices go where; loads into the twin wait meanwhile."""
        with self._lock, set_current_vllm_config(self.vllm_config):
            self._twin = self._get_twin()
            self.model = self._target = target = _Target(self._twin)
            for name, shape in zip(init_info.names, init_info.shapes, strict=True):
                if name.endswith(EXPERT_BIAS):
                    target.names.append(name)
                    target.places.append(_Place(*shape))
            with self._on_meta():
                super()._bake(init_info)

    def pull(self, seconds: float) -> tuple[dict[str, Tensor], int]:
        """See `Puller.receive`."""
        self._ends = time.monotonic() + seconds
        plan = self._cached_plan
        assert plan is not None, "a worker joins first"
        # Layers are put together here, and take their kernels' form when they are exchanged: vLLM's methods for that
        # are shared with the layers that generate.
        with self._on_meta(), self._as_loaded():
            try:
                self.update_weights({})
                self._await(self._pending_frees, "note what was pulled")  # vLLM waits for it without a deadline
                self.drain_pending()
            except BaseException:
                self._pending_frees.clear()
                with suppress(Exception):
                    self.drain_pending()  # so that nothing writes into the twin any more
                raise
        self._twin.note_loaded(self._target.loaded)
        places = zip(self._target.names, self._target.places, strict=True)
        biases = {name: place.values.detach().cpu().clone() for name, place in places}
        return biases, sum(chunk.pack_bytes for chunk in plan.chunks)

    def give_up(self) -> None:
        """End what this engine waits for, from another thread."""
        self._ended = True

    def end(self) -> None:
        """End a pull under way, and let go of the registered memory; not to be used any more."""
        self.give_up()
        for buffers in self._dest_buffers:
            for buffer in buffers.values():
                with suppress(Exception):  # of NIXL's, whose other end may be gone
                    deregister_nixl_memory(buffer)

    def _complete_pull(self, pending: Any) -> Any:
        """Wait for one pull, as long as the transfer is not ended or late."""
        self._await([pending.ref], "give their shards", fetch_local=False)
        self._check("give their shards")
        ray.get(pending.ref, timeout=max(0.1, self._ends - time.monotonic()))
        return dict(zip(pending.keys, pending.targets, strict=True))

    def _await(self, refs: list[Any], what: str, fetch_local: bool = True) -> None:
        """Wait until the servers of the trainer's ranks have done something, as long as there is time for it."""
        while ray.wait(refs, num_returns=len(refs), timeout=_LOOK_SECONDS, fetch_local=fetch_local)[1]:
            self._check(what)

    def _check(self, what: str) -> None:
        if self._ended:
            raise LabError(_ENDED)
        if time.monotonic() > self._ends:
            raise LabError(f"the trainer's ranks did not {what} in time")

    def _layers(self) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
        """Every layer that gets values, and the form in which they come."""
        yield from self._twin.layers
        for place in self._target.places:
            yield place, dict(place.named_parameters())

    @contextmanager
    def _on_meta(self) -> Iterator[None]:
        """Within it the layers have no memory, and vLLM makes some on the device for each that it puts together."""
        layers = list(self._layers())
        for layer, forms in layers:
            info = get_layerwise_info(layer)
            held = {name: layer._parameters[name] for name in forms}
            buffers = {name: one for name, one in layer._buffers.items() if one is not None}
            info.kernel_tensors = held, buffers
            info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
            info.restore_device = self.device
            info.load_numel_total = 0  # vLLM takes the layer for prepared
            for name, form in forms.items():
                layer.register_parameter(name, to_meta_tensor(form))
        try:
            yield
        finally:
            for layer, _ in layers:
                info = get_layerwise_info(layer)
                if info.can_load():  # it got no values, or not all
                    _place_kernel_tensors(layer, info)
                    info.reset()

    @contextmanager
    def _as_loaded(self) -> Iterator[None]:
        """Within it vLLM leaves the layers' values as they were loaded."""
        hidden = []
        for layer, _ in self._twin.layers:
            for register in (layer.__dict__, layer._modules):
                if "quant_method" in register:
                    hidden.append((register, register.pop("quant_method")))
        try:
            yield
        finally:
            for register, method in hidden:
                register["quant_method"] = method
