"""vLLM's choices on a GPU, made here by its own code for CUDA, of a device that answers with its data sheet.

What takes part is imported as on a GPU, and vLLM remembers much of what it found. So this happens in a fork, and
nothing of it is left in the process that goes on with vLLM's build for CPUs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import torch
import vllm.config.vllm as vllm_config
import vllm.utils.flashinfer as vllm_flashinfer
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.triton_utils import triton
from vllm.utils.import_utils import resolve_obj_by_qualname

from scalelab.hardware import Device
from scalelab.plan.shape import shape
from scalelab.rehearse.explain import ToldError, explain
from scalelab.rehearse.ranks import all_replaced
from scalelab.rollout.config import GeneratorSetup

T = TypeVar("T")

WORKER = "vllm.v1.worker.gpu_worker.Worker"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
V2, V1 = "vllm.v1.worker.gpu.model_runner.GPUModelRunner", "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
LIBRARY, FLASH = "_C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa"
ABSENT = (
    *(f"vllm.{LIBRARY}", f"{FLASH}2_C", f"{FLASH}3_C"),
    *("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils", "flashinfer.fused_moe"),
)
"""Compiled modules of vLLM's build for GPUs, and a package of `requirements/gpu.txt`, which wants a driver."""
ANEW = "vllm.v1.attention.backends.fa_utils"
"""A module that chooses by platform when it is imported, and may be here already."""
_CACHED = type(functools.cache(len))
_KERNEL = type(torch.ops._C).__getattr__


@dataclass(frozen=True)
class Choices:
    """Choices of vLLM on a GPU.

    Attributes:
        worker: class of its workers.
        runner: class of their model runner.
        scheduler: class of its scheduler.
        graphs: mode of CUDA graphs, after attention had its say.
        cache: types of the KV cache.
        all_reduce: whether devices that share an engine may use vLLM's own all-reduce.
        buffers: whether they hand each other the buffers of CUDA graphs for it, as `CudaCommunicator` decides.
        kernels: of attention and experts.
    """

    worker: str
    runner: str
    scheduler: str
    graphs: str
    cache: tuple[str, ...]
    all_reduce: bool
    buffers: bool
    kernels: tuple[str, ...]


class _Absent(ModuleType):
    """A module that is not here; any name that is imported from it is a class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _CudaMeansMeta(TorchFunctionMode):
    """Give tensors that are asked for on a GPU no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _any_kernel(namespace: Any, name: str) -> Any:
    """Find operators of vLLM's build for GPUs, which are not here, beside those that are."""
    try:
        return _KERNEL(namespace, name)
    except AttributeError:
        if name.startswith("__") or namespace.name != "_C":
            raise
        return _Absent(name)


def _forget() -> None:
    """Empty vLLM's caches, in which answers of the platform are."""
    for one in gc.get_objects():
        if type(one) is _CACHED and str(one.__module__).startswith("vllm."):
            one.cache_clear()


@contextlib.contextmanager
def platform_of(device: Device) -> Iterator[None]:
    """Let vLLM take this host for one with a GPU while this is entered; what is imported meanwhile is forgotten."""
    modules = dict(sys.modules)
    sys.modules.pop(ANEW, None)
    sys.modules.update({name: _Absent(name) for name in ABSENT})
    try:
        from vllm.platforms.cuda import NonNvmlCudaPlatform

        answers = {
            "get_device_capability": DeviceCapability(*device.capability),
            "get_device_name": f"NVIDIA {device.name.upper()}",
            "get_device_total_memory": int(device.memory_gib * 2**30),
            "device_count": device.per_node,
            "num_compute_units": 1,  # sizes workspaces, which take no memory here
            "is_fully_connected": True,
        }
        methods = {name: classmethod(lambda *_, said=said, **__: said) for name, said in answers.items()}
        replacements: list[tuple[Any, str, Any]] = [
            # all of vLLM holds this one object, by names of its own
            (current_platform, "__class__", type("OnPaper", (NonNvmlCudaPlatform,), methods)),
            (vllm_flashinfer, "has_flashinfer", lambda: True),  # with nvcc, as `docs/cluster.md` installs it
            (vllm_flashinfer, "has_nvidia_artifactory", lambda: True),  # in place of a request to NVIDIA's server
            (type(torch.ops._C), "__getattr__", _any_kernel),
            (torch.cuda, "Stream", object),
            (torch.cuda, "Event", object),
        ]
        if not vllm_config.HAS_TRITON:
            options = lambda sizes, **others: SimpleNamespace(kwargs=sizes, **others)  # noqa: E731
            replacements += [(vllm_config, "HAS_TRITON", True), (triton, "Config", options)]
        _forget()
        with all_replaced(replacements), _CudaMeansMeta():
            yield
    finally:
        _forget()
        sys.modules.clear()
        sys.modules.update(modules)


def choices(config: VllmConfig, built: VllmConfig) -> Choices:
    """Ask what vLLM chooses; what it refuses is raised.

    Args:
        config: of an engine on a GPU, made under `platform_of`.
        built: the same, but eager, with which the model was built.
    """
    parallel, v2 = config.parallel_config, config.use_v2_model_runner
    worker, runner = parallel.worker_cls, V2 if v2 else V1
    for name in (worker, runner):
        resolve_obj_by_qualname(name)
    layers = built.compilation_config.static_forward_context.values()
    attention = [layer for layer in layers if isinstance(layer, AttentionLayerBase)]
    with set_current_vllm_config(config):
        specs = {layer.get_attn_backend(): layer.get_kv_cache_spec(config) for layer in attention}
        graphs = {
            backend.__name__: backend.get_builder_cls().get_cudagraph_support(config, spec)
            for backend, spec in specs.items()
        }
        least = min(graphs, key=lambda name: graphs[name].value)
        mode = config.compilation_config.resolve_cudagraph_mode_and_sizes(graphs[least], least, use_v2_model_runner=v2)
    scheduler = config.scheduler_config.get_scheduler_cls()
    experts = (layer.routed_experts.quant_method.experts_cls for layer in layers if isinstance(layer, MoERunner))
    return Choices(
        worker,
        runner,
        f"{scheduler.__module__}.{scheduler.__name__}",
        mode.name,
        tuple(sorted({str(spec.dtype).removeprefix("torch.") for spec in specs.values()})),
        not parallel.disable_custom_all_reduce,
        parallel.tensor_parallel_size > 1
        and not (parallel.disable_custom_all_reduce or config.model_config.enforce_eager)
        and not config.use_cumem_cudagraph_pool,
        (*sorted(graphs), *sorted({one.__name__ for one in experts})),
    )


def hold(found: Choices, hf_config: dict[str, Any], setup: GeneratorSetup) -> None:
    """Hold vLLM's choices against what the lab counts on.

    Raises:
        ValueError: they differ.
    """
    chunks = any(layer.attention.chunk for layer in shape(hf_config).layers)  # as the plan's time of a token has it
    wanted = {
        "worker": WORKER,
        "scheduler": SCHEDULER,
        "graphs": "NONE" if setup.expert_bias else "PIECEWISE" if chunks else "FULL_AND_PIECEWISE",
        "cache": (setup.dtype,),
        "all_reduce": True,
    }
    for name, want in wanted.items():
        if (have := getattr(found, name)) != want:
            raise ValueError(f"on this GPU vLLM's {name} is {have}, and the lab counts on {want}")


def in_fork(work: Callable[[], T]) -> T:
    """Do something in a process of its own, and return its result.

    Raises:
        ToldError: it failed there.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def tell() -> None:
        try:
            sending.send((work(), ""))
        except Exception as error:  # its traceback stays there
            sending.send((None, explain(error)))

    process = context.Process(target=tell)
    process.start()
    sending.close()
    try:
        result, problem = receiving.recv()
    except EOFError:
        result, problem = None, "its process ended without a word"
    process.join()
    if problem:
        raise ToldError(problem)
    return result
