"""Answers on their way through an engine as on a GPU: vLLM's scheduler and outputs, and the lab's reading of them.

The engine is the lab's own, from its start on, with the run's settings. Only what works on a device is a stand-in: in
place of vLLM's workers and of the model runner for GPUs, made-up tokens and log-probabilities take the way of the
runner's output (`AsyncOutput`), with CUDA's streams and events left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.renderers import renderer_from_config
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import Request as CoreRequest
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from scalelab.rehearse.ranks import all_replaced
from scalelab.rollout import engine as lab
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.types import Request

TOKENS = 3
"""Tokens of the completion that ends by itself; the other is cut off with one more."""
LOGPROB = -0.5


def as_handed_over(names: list[str], tokens: list[int], logprobs: list[float], sampled: list[int]) -> ModelRunnerOutput:
    """The output of a step in the form, and on the way, that the model runner for GPUs gives it.

    Args:
        names: vLLM's of the sequences.
        tokens: the sampled one of each.
        logprobs: theirs.
        sampled: 1 for each, or 0 where only a part of its prompt was computed.
    """
    stream = SimpleNamespace(wait_stream=lambda other: None)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    tokens_B1 = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 1)
    logprobs_B1 = torch.tensor(logprobs, dtype=torch.float32).reshape(-1, 1)
    ranks_B = torch.zeros(len(names), dtype=torch.int64)
    sampled_B = torch.tensor(sampled, dtype=torch.int32)
    tensors = LogprobsTensors(tokens_B1.to(torch.int32), logprobs_B1, ranks_B)
    sampler = SamplerOutput(tokens_B1, tensors, None, sampled_B, torch.zeros_like(sampled_B))
    blank: Any = None
    base = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, blank)
    cuda: list[tuple[Any, str, Any]] = [
        (torch.cuda, "Event", lambda **_: event),
        (torch.cuda, "set_stream", lambda _: None),
    ]
    with all_replaced(cuda):
        return AsyncOutput(base, sampler, sampled_B, stream, stream, False, None).get_output()


class Core:
    """vLLM's engine in one process, with its own scheduler, and neither workers nor a model.

    Args:
        config: vLLM's.
        built: the configuration with which the model was built, whose layers say what they keep.
        kv_bytes: of the cache on a device.
        sample: gives the next token of a sequence by its name and the tokens that it has.
    """

    def __init__(self, config: VllmConfig, built: VllmConfig, kv_bytes: int, sample: Callable[[str, int], int]) -> None:
        layers = built.compilation_config.static_forward_context
        attention = {name: layer for name, layer in layers.items() if isinstance(layer, AttentionLayerBase)}
        specs = {name: spec for name, layer in attention.items() if (spec := layer.get_kv_cache_spec(config))}
        layouts = get_supported_kv_cache_layouts({layer.get_attn_backend() for layer in attention.values()})
        resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
        cache = generate_scheduler_kv_cache_config(get_kv_cache_configs(config, [specs], [kv_bytes]))
        config.cache_config.num_gpu_blocks = cache.num_blocks
        block, hashed = resolve_kv_cache_block_sizes(cache, config)
        scheduler: Any = config.scheduler_config.get_scheduler_cls()
        self.scheduler = scheduler(config, cache, StructuredOutputManager(config), block, hashed, log_stats=False)
        self.input_processor = InputProcessor(config, renderer_from_config(config))
        self.engine_core = SimpleNamespace(
            engine_core=self, add_request=self._add, get_output=self._step, abort_requests=self._abort
        )
        self._hasher, self._sample = None, sample
        if config.cache_config.enable_prefix_caching:
            function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
            init_none_hash(function)
            self._hasher = get_request_block_hasher(hashed, function)

    def collective_rpc(self, work: object, args: object = ()) -> list[None]:
        """Do nothing: there are no workers."""
        return [None]

    def _add(self, request: EngineCoreRequest) -> None:
        self.scheduler.add_request(CoreRequest.from_engine_core_request(request, self._hasher))

    def _abort(self, names: list[str]) -> None:
        raise NotImplementedError(f"nothing here is aborted, and {names[0]} was")

    def _step(self) -> EngineCoreOutputs:
        scheduled: SchedulerOutput = self.scheduler.schedule()
        names = [*scheduled.num_scheduled_tokens]
        requests = [self.scheduler.requests[name] for name in names]
        sampled = [int(one.num_computed_tokens >= one.num_tokens) for one in requests]  # counted when it is scheduled
        tokens = [self._sample(one.request_id, one.num_output_tokens) for one in requests]
        output = as_handed_over(names, tokens, [LOGPROB] * len(names), sampled)
        made: dict[int, EngineCoreOutputs] = self.scheduler.update_from_output(scheduled, output)
        return made.get(0, EngineCoreOutputs())


def let_engine_answer(folder: Path, setup: GeneratorSetup, built: VllmConfig) -> None:
    """Let an engine take two completions of the longest prompts, one to its end and one that is cut off.

    Called where vLLM takes this host for one with a GPU.

    Args:
        folder: has the model's config.json.
        setup: of the engine.
        built: vLLM's configuration with which the model was built.

    Raises:
        ValueError: what the engine gives is not what was made up.
    """
    setup = replace(setup, record_routing=False)
    eos = lab.read_config(folder)["eos_token_id"]
    end = eos if isinstance(eos, int) else eos[0]
    plain = next(number for number in range(end + 2) if number != end)

    def sample(name: str, have: int) -> int:
        return end if name.startswith("ends") and have == TOKENS - 1 else plain

    def started(config: VllmConfig, executor: object, log_stats: bool) -> Core:
        return Core(config, built, int(setup.kv_cache_gib * 2**30), sample)

    with all_replaced([(lab, "LLMEngine", started)]):
        engine = lab.Engine(folder, setup, Phrases())
    prompt = (plain,) * (setup.max_model_len - TOKENS - 2)  # not cut off by the longest length that vLLM has
    for name, most in (("ends", TOKENS + 1), ("cut off", TOKENS + 1)):
        engine.add(Request(name, prompt, most))
    found: dict[str, lab.Output] = {}
    for _ in range(len(prompt) * 2 + 2 * TOKENS + 2):
        found |= {one.id: one for one in engine.step()}
        if len(found) == 2:
            break
    wanted = {"ends": ([plain] * (TOKENS - 1) + [end], False), "cut off": ([plain] * (TOKENS + 1), True)}
    for name, (tokens, truncated) in wanted.items():
        got = found.get(name)
        if got is None:
            raise ValueError(f"the completion that is {name!r} did not come back")
        read = got.token_ids.tolist(), got.logprobs_T.tolist(), got.truncated, got.spans
        if read != (tokens, [LOGPROB] * len(tokens), truncated, ((0, 0, len(tokens)),)):
            raise ValueError(f"the engine read {read} of the completion that is {name!r}")
