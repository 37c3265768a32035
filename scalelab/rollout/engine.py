"""vLLM's engine inside this process, and everything here that is tied to its version (0.32.0).

Not thread-safe: `scalelab.rollout.generator` steps it from one thread. Axes: `_T` tokens of one completion,
`_B` sequences of a step, `_V` vocabulary.
"""
# ruff: noqa: E402 - vLLM reads its variables when it is imported

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.environment import take_engine

take_engine()

from safetensors import safe_open
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor
from vllm.v1.request import RequestStatus

from moe.cpu.groups import shared_when_alone
from moe.cpu.portable import portable
from moe.model.architectures import architecture
from moe.model.reading import read_config
from moe.weights.hf_folder import read_biases
from moe.weights.links import expert_bias_names
from moe.weights.shards import Snapshot
from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.interruption import POSITION, ForcePhraseV1, ForcePhraseV2, Phrases, processor_config
from scalelab.rollout.on_cpu import Draw, draw_args, norms, rank_no_logprobs, replace_products, rotate_slices
from scalelab.rollout.routing import RoutingRecorder, of_all_tokens
from scalelab.rollout.scheduler import ArrayScheduler
from scalelab.rollout.split import split_problem
from scalelab.rollout.types import Request
from scalelab.transfer import engine_side as transfer
from scalelab.transfer import expert_bias

if current_platform.is_cpu():  # where its latent attention has one size alone, a kv_lora_rank of 512
    os.environ["VLLM_MLA_DISABLE"] = "1"

_ROUTER = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
"""DeepSeek-V3's router, which vLLM looks up in a config, and transformers' folders need not name."""
SHARED_PART = 0.2
"""Part of a GPU that must be free when an engine starts beside a trainer rank."""


@dataclass(frozen=True)
class Output:
    """Fields of a finished completion that come from the engine; named as in `Completion`."""

    id: str
    token_ids: np.ndarray
    logprobs_T: np.ndarray
    spans: tuple[tuple[int, int, int], ...]
    truncated: bool
    routed_TLK: np.ndarray | None


@dataclass
class _Held:
    """A completion in the making; on a CPU all of its tokens come at once, when it has ended."""

    name: str
    """vLLM's own for the request."""
    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    experts: list[np.ndarray] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(version, first token) of each of its weights but those in place."""
    preemptions: int = 0
    """Times that vLLM took its KV cache away for others."""

    def spans(self, version: int) -> tuple[tuple[int, int, int], ...]:
        """(version, start, end) of its tokens, if the last come from this version."""
        starts = [0, *(end for _, end in self.versions)]
        ends = [*starts[1:], len(self.tokens)]
        versions = [*(earlier for earlier, _ in self.versions), version]
        return tuple((v, a, b) for v, a, b in zip(versions, starts, ends, strict=True) if a < b)


class Engine:
    """vLLM's `LLMEngine` with weights that can be replaced between two steps; one at a time in a process.

    Args:
        model_dir: Hugging Face folder (config.json and safetensors).
        config: size and precision.
        phrases: token ids of the interruption.
        version: policy version of the weights in `model_dir`.
        seed: of the stream that unseeded requests are sampled from.

    Raises:
        LabError: the model and the configuration do not fit.
    """

    def __init__(
        self, model_dir: Path, config: GeneratorSetup, phrases: Phrases, version: int = 0, seed: int = 0
    ) -> None:
        self._hf_config = hf_config = read_config(model_dir)
        _check(hf_config, config, model_dir)
        eos = hf_config["eos_token_id"]
        self._stop_ids = [eos] if isinstance(eos, int) else list(eos)
        self._biases = bias_shapes(model_dir, config)
        eager = current_platform.is_cpu() or bool(self._biases)
        vllm_config = engine_config(model_dir, hf_config, config, phrases, seed, eager)
        with shared_when_alone():
            self._engine = LLMEngine(vllm_config, Executor.get_class(vllm_config), log_stats=False)
        if current_platform.is_cpu():
            self._engine.collective_rpc(rank_no_logprobs)
            if "kv_lora_rank" in hf_config:
                self._engine.collective_rpc(rotate_slices)
            if config.dtype == "bfloat16" or portable():
                self._engine.collective_rpc(replace_products)
        if self._biases:
            self._engine.collective_rpc(
                expert_bias.install, args=(list(self._biases), hf_config["num_experts_per_tok"])
            )
            self._engine.collective_rpc(expert_bias.set_workers_biases, args=(read_biases(model_dir),))
        init = {"hf_config": hf_config}
        self._engine.collective_rpc(transfer.install, args=(init,))
        self._recorder = None
        self._handed_out = vllm_records(config)
        if config.record_routing and not self._handed_out:
            sizes = config.max_sequences, config.max_model_len
            [self._recorder] = self._engine.collective_rpc(lambda worker: RoutingRecorder(worker.model_runner, *sizes))
        self._held: dict[str, _Held] = {}
        self._named: dict[str, _Held] = {}
        self._added = 0
        self._draws = np.random.default_rng(seed)
        self._scheduler = scheduler = self._engine.engine_core.engine_core.scheduler
        self._in_arrays = scheduler if type(scheduler) is ArrayScheduler else None
        self._updates = 0
        self.preemptions = self.recomputed = 0
        """Times that vLLM took a sequence's KV cache away for others, and the most tokens that it computes again."""
        self.version = version
        self._set_version(version)

    def add(self, request: Request) -> None:
        """Start a completion at the next step."""
        on_cpu = current_platform.is_cpu()
        extra: dict[str, Any] = {} if request.interrupt_at is None else {POSITION: request.interrupt_at}
        if on_cpu and request.temperature:
            seed = int(self._draws.integers(2**63)) if request.seed is None else request.seed
            extra |= draw_args(seed, request.temperature)
        params = SamplingParams(
            temperature=0.0 if on_cpu else request.temperature,
            seed=None if on_cpu else request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=self._stop_ids,
            logprobs=0,
            detokenize=False,
            extra_args=extra or None,
            skip_clone=True,
        )
        # The salt is part of a prefix's hash: a request finds only KV of requests that began with its own weights.
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": str(self._updates)}
        core = self._engine.input_processor.process_inputs(request.id, prompt, params, ("generate",))
        core.request_id = f"{request.id}-{self._added}"  # an id may come again while vLLM still frees its last one
        self._added += 1
        self._engine.engine_core.add_request(core)
        self._held[core.request_id] = self._named[request.id] = _Held(core.request_id, request)

    def step(self) -> list[Output]:
        """Generate one token for every running sequence, and return the outputs of those that finished."""
        # vLLM's output processor would make several calls in Python for each token, for text and streams.
        outputs = self._engine.engine_core.get_output().outputs
        self._count_preempted()
        return [self._finish(one) for one in outputs if self._took(one)]

    def _count_preempted(self) -> None:
        """Count the sequences that this step preempted: they wait at the head of vLLM's queue."""
        for request in self._scheduler.waiting:
            if request.status is not RequestStatus.PREEMPTED:
                break
            held = self._held[request.request_id]
            times, held.preemptions = request.num_preemptions - held.preemptions, request.num_preemptions
            self.preemptions += times
            self.recomputed += times * (request.num_tokens - 1)  # the last was not computed yet

    @property
    def waiting(self) -> int:
        """Requests that the last step had no room for."""
        return len(self._scheduler.waiting)

    def _took(self, output: EngineCoreOutput) -> bool:
        """Keep what a sequence got; True if it has ended."""
        held = self._held[output.request_id]
        held.tokens += output.new_token_ids
        if output.new_logprobs is not None:
            held.logprobs.append(output.new_logprobs.logprobs[:, 0])
        if output.routed_experts is not None:
            held.experts.append(output.routed_experts)
        return output.finished

    def _finish(self, output: EngineCoreOutput) -> Output:
        held = self._held.pop(output.request_id)
        del self._named[held.request.id]
        if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise RuntimeError(f"vLLM ended request {held.request.id} with {output.finish_reason}")
        tokens = len(held.request.prompt_ids) + len(held.tokens)
        routed_TLK = None
        if self._recorder is not None:
            routed_TLK = self._recorder.take(held.name, tokens)
        elif self._handed_out:
            routed_TLK = of_all_tokens(np.concatenate(held.experts) if held.experts else None, tokens)
        return Output(
            id=held.request.id,
            token_ids=np.asarray(held.tokens, np.int32),
            logprobs_T=np.concatenate(held.logprobs),
            spans=held.spans(self.version),
            truncated=output.finish_reason == FinishReason.LENGTH,
            routed_TLK=routed_TLK,
        )

    def abort(self, ids: Sequence[str]) -> None:
        """Forget these requests."""
        names = [self._named.pop(id).name for id in ids]
        self._engine.engine_core.abort_requests(names)
        for name in names:
            del self._held[name]
            if self._recorder is not None:
                self._recorder.drop(name)

    def stage(self, snapshot: Snapshot) -> None:
        """Begin to load a version that is here, beside the next steps; vLLM's workers do it, each its part."""
        transfer.stage(self._engine, snapshot)

    def join(self, init_info: dict[str, Any]) -> None:
        """Begin to meet the sender of weights, beside the next steps; see `scalelab.transfer.engine_side.join`."""
        transfer.join(self._engine, init_info)

    def receive(self, version: int, update_info: dict[str, Any]) -> None:
        """Begin to load a version that is sent, beside the next steps."""
        transfer.receive(self._engine, version, update_info)

    def received(self, version: int) -> bool:
        """True if all of a version is here."""
        return transfer.received(self._engine, version)

    def leave(self) -> None:
        """End this engine's part in the group that weights are sent to."""
        transfer.leave(self._engine)

    def staged(self) -> bool:
        """True once what was begun is done.

        Raises:
            LabError: it could not be.
        """
        return transfer.staged(self._engine)

    def take(self, version: int) -> None:
        """Switch to the staged version; unfinished sequences go on with it and keep their KV cache (PipelineRL)."""
        transfer.update(self._engine, version)
        self._set_version(version)
        self._add_waiting_again()

    def replace_weights(self, snapshot: Snapshot) -> None:
        """Stage a version and take it, without a step in between."""
        self.stage(snapshot)
        while not self.staged():
            time.sleep(0.001)
        self.take(snapshot.version)

    def close(self) -> None:
        """Give back memory and the process group."""
        with shared_when_alone():
            self._engine.engine_core.shutdown()

    def _set_version(self, version: int) -> None:
        for held in self._held.values():
            if (count := self._generated(held)) > (held.versions[-1][1] if held.versions else 0):
                held.versions.append((self.version, count))
        self.version = version
        self._updates += 1  # versions come again after a return to a checkpoint; these do not

    def _generated(self, held: _Held) -> int:
        """Tokens of a sequence so far."""
        if self._in_arrays is not None:
            return self._in_arrays.generated(held.name)
        return len(held.tokens)

    def _add_waiting_again(self) -> None:
        """Renew the cache salt of requests that wait in the scheduler and have not begun."""
        waiting = self._scheduler.waiting
        fresh = {r.request_id for r in waiting if r.num_computed_tokens == r.num_output_tokens == 0}
        for request in [held.request for held in self._held.values() if held.name in fresh]:
            self.abort([request.id])
            self.add(request)


def engine_config(
    model_dir: Path, hf_config: dict[str, Any], config: GeneratorSetup, phrases: Phrases, seed: int, eager: bool
) -> VllmConfig:
    """Build vLLM's configuration, with the processor that its model runner takes: V2 wherever Triton is, else V1."""
    args = EngineArgs(
        model=str(model_dir),
        skip_tokenizer_init=True,
        dtype=config.dtype,
        seed=seed,
        tensor_parallel_size=config.tensor_parallel,
        distributed_executor_backend="mp" if config.tensor_parallel > 1 else "uni",
        # Left alone, vLLM tunes Llama-4's attention temperature by max_model_len instead of by the model's config.
        override_generation_config={"attn_temperature_tuning": hf_config.get("attn_temperature_tuning", False)},
        hf_overrides={
            **({"head_dtype": "float32"} if config.fp32_head else {}),
            **(_ROUTER if hf_config["model_type"] == "deepseek_v3" else {}),
        },
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_sequences,
        max_num_batched_tokens=config.max_batched_tokens,
        block_size=config.block_size,
        kv_cache_memory_bytes=int(config.kv_cache_gib * 2**30),
        # vLLM wants this part of a GPU to be free at the start, and with the size of the cache given asks nothing else.
        **({"gpu_memory_utilization": SHARED_PART} if config.shares_device else {}),
        enable_prefix_caching=config.prefix_caching,
        # A prompt in pieces makes vLLM take back a draw of a request with a seed, which a CPU's generator cannot.
        enable_chunked_prefill=False if current_platform.is_cpu() else None,
        # One cache for all kinds of layers: it keeps what chunked layers could drop, and on a CPU, where the
        # bookkeeping of several is a quarter of a step, that is the better deal.
        disable_hybrid_kv_cache_manager=current_platform.is_cpu() or None,
        # A batch in flight during an update would be labelled with the wrong version.
        async_scheduling=False,
        **({"scheduler_cls": ArrayScheduler, "ir_op_priority": norms()} if current_platform.is_cpu() else {}),
        use_tqdm_on_load=not current_platform.is_cpu(),
        # Compilation takes over a minute on a CPU and gains nothing there; on a GPU it captures CUDA graphs.
        enforce_eager=eager,
        logprobs_mode="raw_logprobs",
        additional_config=processor_config(phrases),
        enable_return_routed_experts=vllm_records(config),
    )
    preloaded = os.environ.get("LD_PRELOAD", "")
    vllm_config = args.create_engine_config()
    added = os.environ.get("LD_PRELOAD", "").removeprefix(preloaded)
    if " " in added:  # torch's OpenMP by a path that the linker would split
        os.environ["LD_PRELOAD"] = preloaded
    processors = [ForcePhraseV2] if vllm_config.use_v2_model_runner else [ForcePhraseV1, Draw]
    vllm_config.model_config.logits_processors = processors
    return vllm_config


def vllm_records(config: GeneratorSetup) -> bool:
    """True if vLLM records the experts of every token itself, as its model runner for GPUs can."""
    return config.record_routing and not current_platform.is_cpu()


def _check(hf_config: dict[str, Any], config: GeneratorSetup, model_dir: Path) -> None:
    """Refuse settings with which vLLM would fail later (such as at the first update) or without a clear message."""
    here = "cpu" if current_platform.is_cpu() else "gpu"
    if config.device not in ("auto", here):
        raise LabError(
            f"the engine is to run on a {config.device.upper()}, and this vLLM is built for a {here.upper()}: install "
            f"the {config.device.upper()} packages (make install{'-gpu' * (config.device == 'gpu')})"
        )
    if hf_config.get("eos_token_id") is None:
        raise LabError(f"{model_dir}/config.json has no eos_token_id: name the token that ends a completion there")
    parts = config.tensor_parallel
    if problem := split_problem(hf_config, parts):
        raise LabError(problem)
    sizes = {name: int(hf_config[name]) for name in ("hidden_size", "intermediate_size")}
    if current_platform.is_cpu() and "num_local_experts" in hf_config:
        uneven = sizes["hidden_size"] % 32 or sizes["intermediate_size"] % (32 * parts)
        if uneven:
            each = f" in each of {parts} tensor-parallel parts" if parts > 1 else ""
            raise LabError(f"vLLM's experts on a CPU need sizes in multiples of 32{each}, got {sizes}: round them")
    if config.record_routing and config.tensor_parallel > 1 and current_platform.is_cpu():
        raise LabError("on a CPU, experts are recorded in one process only: set GeneratorConfig.tensor_parallel to 1")
    if config.record_routing and not architecture(hf_config).fields.get("num_moe_experts"):
        raise LabError("record_routing asks for the experts of a model that has none: switch it off")
    chunk = hf_config.get("attention_chunk_size") or config.block_size
    if chunk % config.block_size:
        raise LabError(
            f"block_size ({config.block_size}) must divide the model's attention_chunk_size ({chunk}): choose another"
        )


def bias_shapes(model_dir: Path, config: GeneratorSetup) -> dict[str, tuple[int, ...]]:
    """Shape of every layer's expert biases, by name; empty if the generator has none."""
    biases = read_biases(model_dir)
    if not (biases or config.expert_bias):
        return {}
    hf_config = read_config(model_dir)
    experts: int = architecture(hf_config).fields["num_moe_experts"]
    names = expert_bias_names(hf_config).values()
    if biases and set(biases) != set(names):
        raise LabError(f"the biases of experts in {model_dir} are of another model: write the folder again")
    return {name: (experts,) for name in names}


def weight_shapes(model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every weight in a Hugging Face folder, by name; reads the headers only."""
    shapes = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as weights:
            shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
    return shapes
