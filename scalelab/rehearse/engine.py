"""One device of an engine at full size: vLLM's configuration, its own model, and its own loading.

Tensors are on torch's "meta" device: they have shapes and types only. vLLM's CPU build makes the model; what differs on
a GPU are kernels, which a rehearsal does not run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scalelab.rollout.engine import engine_config  # isort: skip  (sets vLLM's environment first)

import torch
import vllm.distributed.parallel_state as vllm_ranks
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.device_allocator.alloc_conf import EXPANDABLE_SEGMENTS, alloc_conf_from_env, conf_flag_enabled
from vllm.distributed.device_communicators import custom_all_reduce
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator

from moe.model.size import kv_bytes_per_token
from moe.weights.links import shapes
from scalelab.plan.memory import message_memory
from scalelab.rehearse import gpu_platform, planned
from scalelab.rehearse.answering import let_engine_answer
from scalelab.rehearse.collectives import Exchange
from scalelab.rehearse.explain import explain
from scalelab.rehearse.ranks import all_replaced, other_ranks
from scalelab.rehearse.receiving import receive
from scalelab.rehearse.result import GIB, Phase, RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rollout.interruption import Phrases


class AnswersOfDriver:
    """Answers of NVIDIA's driver to vLLM's custom all-reduce."""

    def get_graph_buffer_ipc_meta(self, pointer: int) -> tuple[list[int], list[int]]:
        """Handles of the buffers in CUDA graphs (`cudaIpcGetMemHandle`).

        Raises:
            RuntimeError: the memory is of expandable segments, which have no such handle.
        """
        said = alloc_conf_from_env()
        if conf_flag_enabled(said, EXPANDABLE_SEGMENTS):
            raise RuntimeError(
                f"the driver gives no handle (cudaIpcGetMemHandle) for memory of expandable segments ({said}), and "
                "vLLM's custom all-reduce hands buffers to the other devices: leave them out for this role"
            )
        return [], []

    def register_graph_buffers(self, *arguments: object) -> None:
        """Take the others' buffers."""


def rehearse(setting: RehearsalSettings, role: Role) -> RoleResult:
    """Build one device of an engine and load the trainer's weights; errors are recorded, not raised."""
    result = RoleResult(role.name, "engine", role.stands_for)
    with tempfile.TemporaryDirectory(prefix="scalelab-rehearsal-") as folder:
        _EngineRehearsal(setting, role, result, Path(folder)).run()
    return result


class _EngineRehearsal:
    def __init__(self, setting: RehearsalSettings, role: Role, result: RoleResult, folder: Path) -> None:
        self.role, self.result, self.folder = role, result, folder
        self.hf, self.config, self.of_run = setting.run.model.to_hf(), setting.run.generator_setup, setting.run
        self.device, self.gpu = setting.hardware, setting.hardware.gpu
        self.model: torch.nn.Module | None = None
        self.vllm: VllmConfig | None = None
        self.there: gpu_platform.Choices | None = None
        """Choices of vLLM on a GPU; None on a CPU."""

    def run(self) -> None:
        """Run all phases, up to the first that fails."""
        (self.folder / "config.json").write_text(json.dumps({**self.hf, "dtype": self.config.dtype}))
        self.result.longest_row = self.config.max_model_len
        self.result.plan_memory_gib = planned.engine_gib(self.hf, self.config)
        self.result.not_rehearsed += [
            "the model's part of a step: vLLM's worker and kernels run on a GPU only, which captures CUDA graphs",
            "what vLLM takes for activations and CUDA graphs: the plan reserves for it",
        ]
        plain = vllm_ranks.init_model_parallel_group

        def quiet(*args: object, **kwargs: object) -> object:
            """Make a process group without message queues to the other devices."""
            return plain(*args, **{**kwargs, "use_message_queue_broadcaster": False, "use_device_communicator": False})

        with all_replaced([*other_ranks(), (vllm_ranks, "init_model_parallel_group", quiet)]):
            phases: dict[str, Callable[[], None]] = {
                "configure": self._configure,
                "build": self._build,
                "load": self._load,
                "cache": self._cache,
                "start": self._start,
                "receive": self._receive,
            }
            try:
                for name, do in phases.items():
                    if not self._left_out(name) and not self._phase(name, do):
                        break
            finally:
                vllm_ranks.destroy_model_parallel()
                vllm_ranks.destroy_distributed_environment()

    def _left_out(self, name: str) -> bool:
        """True for a phase in which nothing of this run would happen; what it would have shown is said."""
        if name == "start":
            return self.there is None or not self.there.buffers
        if name == "receive" and self.of_run.cluster.publication == "files":
            self.result.not_rehearsed.append("new weights on their way through files, which are loaded as at the start")
            return True
        return name == "receive" and bool(self.result.replaced)

    def _phase(self, name: str, do: Callable[[], None]) -> bool:
        started, phase = time.perf_counter(), Phase(name, True, 0.0)
        try:
            do()
        except Exception as error:  # whatever breaks is what a rehearsal is for
            phase.ok = False
            self.result.problems.append(f"{name}: {explain(error)}")
        phase.seconds, phase.peak_gib = time.perf_counter() - started, sum(self.result.memory_gib.values())
        self.result.phases.append(phase)
        return phase.ok

    def _engine_config(self, eager: bool) -> VllmConfig:
        return engine_config(self.folder, self.hf, self.config, Phrases(), 0, eager)

    def _configure(self) -> None:
        """vLLM's configuration and choices for a GPU, then the configuration with which its model is built here."""
        os.environ["VLLM_MLA_DISABLE"] = "0" if self.gpu else "1"  # as an engine there has it
        if self.gpu:
            self.there = gpu_platform.in_fork(self._on_gpu)
            if self.config.record_routing:
                self.result.not_rehearsed.append("the record of experts, whose form a test of the lab holds")
            self.result.not_rehearsed.append(f"the kernels that vLLM chooses there: {', '.join(self.there.kernels)}")
        self.vllm = self._engine_config(eager=True)

    def _on_gpu(self) -> gpu_platform.Choices:
        """Configure vLLM, build its model and let an engine answer as on a GPU; builds nothing for a CPU any more."""
        with gpu_platform.platform_of(self.device):
            there = self._engine_config(eager=self.config.expert_bias)
            if there.use_v2_model_runner:
                build_custom_logits_processors_params_validator(there.model_config.logits_processors)
            there.compute_hash()  # every compiled engine asks for it
            self.vllm = self._engine_config(eager=True)
            self._build()
            found = gpu_platform.choices(there, self.vllm)
            let_engine_answer(self.folder, self.config, self.vllm)
        gpu_platform.hold(found, self.hf, self.config)
        return found

    def _build(self) -> None:
        assert self.vllm is not None
        ranks, dtype = self.config.tensor_parallel, torch.get_default_dtype()
        with set_current_vllm_config(self.vllm):
            meeting = f"file://{self.folder}/meeting"
            vllm_ranks.init_distributed_environment(ranks, self.role.rank, meeting, self.role.rank, "gloo")
            vllm_ranks.ensure_model_parallel_initialized(ranks, 1)
            torch.set_default_dtype(getattr(torch, self.config.dtype))
            try:
                with torch.device("meta"):
                    self.model = initialize_model(vllm_config=self.vllm, model_config=self.vllm.model_config)
            finally:
                torch.set_default_dtype(dtype)
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        self.result.memory_gib["weights"] = weights / GIB

    def _load(self) -> None:
        assert self.model is not None
        if ".transformers" in type(self.model).__module__:
            self.result.replaced.append(
                f"vLLM runs {self.hf['model_type']} through transformers, which loads no weights without numbers: the "
                "load was left out"
            )
            return
        dtype = getattr(torch, self.config.dtype)

        def published() -> Iterator[tuple[str, Tensor]]:
            for name, shape in shapes(self.hf).items():
                yield name, torch.empty(shape, dtype=dtype, device="meta")

        with set_current_vllm_config(self.vllm):
            loaded = self.model.load_weights(published())
        if left := sorted(dict(self.model.named_parameters()).keys() - loaded):
            raise ValueError(f"vLLM's model got no weights for {left[0]} and {len(left) - 1} more")

    def _start(self) -> None:
        """Start as on a GPU, with the environment of an engine, up to what the driver is asked.

        Several devices that share an engine hand each other the buffers of their CUDA graphs; that code is vLLM's.
        """
        ranks = vllm_ranks.get_tp_group()
        with all_replaced([(custom_all_reduce, "ops", AnswersOfDriver())]):
            reduce: Any = object.__new__(custom_all_reduce.CustomAllreduce)
            reduce.disabled, reduce._ptr, reduce.rank, reduce.group = False, 0, ranks.rank_in_group, ranks.cpu_group
            with reduce.capture():
                pass

    def _receive(self) -> None:
        """Receive a version as a broadcast brings it."""
        assert self.vllm is not None
        assert self.model is not None
        sizes = receive(self.of_run, self.vllm, self.model)
        held, planned = 2 * max(sizes), message_memory(self.hf, self.config.dtype).engine
        if held > planned:
            raise ValueError(f"two messages of weights take {held / GIB:.2f} GiB, the plan says {planned / GIB:.2f}")
        engines = self.of_run.cluster.generators * self.config.tensor_parallel
        whole = Exchange(f"weights × {1 + engines}", "broadcast", len(sizes), sum(sizes))
        self.result.publication = [vars(whole)]

    def _cache(self) -> None:
        """Number of tokens that the KV cache holds, by vLLM's own pages."""
        assert self.vllm is not None
        layers = self.vllm.compilation_config.static_forward_context.values()
        attention = [layer for layer in layers if isinstance(layer, AttentionLayerBase)]
        specs = [spec for layer in attention if (spec := layer.get_kv_cache_spec(self.vllm)) is not None]
        block = sum(spec.page_size_bytes for spec in specs)
        blocks = int(self.config.kv_cache_gib * GIB) // block
        self.result.memory_gib["kv_cache"] = blocks * block / GIB
        size = self.vllm.cache_config.block_size  # a CPU's latent attention has one of its own
        found, wanted = block / size, self.config.max_model_len
        expected = kv_bytes_per_token(self.hf, self.config.dtype, self.config.tensor_parallel, self.gpu)
        if abs(found / expected - 1) > 0.01:
            raise ValueError(f"a token takes {found:.0f} bytes of KV cache, the plan says {expected:.0f}")
        if blocks * size < wanted:
            raise ValueError(f"the KV cache holds {blocks * size} tokens, a sequence has {wanted}")
