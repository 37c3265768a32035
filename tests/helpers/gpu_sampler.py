"""vLLM's own sampler for GPUs, fed with the requests that an engine on a GPU makes; its kernels run interpreted.

What is replaced: the platform's answer that this is a CPU, memory that both sides can read (a copy in its place), and
Triton's compiler by Triton's interpreter, which `START` puts there. Request states, sampler, logits processors and
kernels are vLLM's.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm.config.vllm as vllm_config_module
from vllm.config import VllmConfig
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample.logits_processor.loader import build_custom_logits_processors
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from moe.model.families import Llama
from scalelab.rollout import engine
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine, engine_config
from scalelab.rollout.interruption import Phrases
from scalelab.rollout.types import Request
from tests.helpers.automata import by_ids

VOCAB, PROMPT, SLOTS, LENGTH = 8, 3, 128, 64
PHRASE = (6, 7)
MODEL = Llama(vocab_size=96, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
CPU = torch.device("cpu")
START = """
import sys
from pathlib import Path

import triton
import triton.language
import vllm.triton_utils

vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language

from tests.helpers.gpu_sampler import main

main(Path(sys.argv[1]))
"""
"""Start of `main`, with `TRITON_INTERPRET` set: vLLM's build for CPUs has words without meaning in Triton's place."""


def requests_of(config: VllmConfig, asked: list[Request]) -> list[EngineCoreRequest]:
    """Make vLLM's requests by `Engine.add`, through vLLM's own checks of them."""
    made: list[EngineCoreRequest] = []
    one: Any = object.__new__(Engine)
    core = SimpleNamespace(add_request=made.append)
    one._engine = SimpleNamespace(input_processor=InputProcessor(config), engine_core=core)
    one._stop_ids, one._updates, one._added, one._held, one._named = [1], 1, 0, {}, {}
    for request in asked:
        one.add(request)
    return made


class SamplerOfGpus:
    """vLLM's sampler with slots of its own.

    Args:
        config: of an engine, with the processors of Model Runner V2.
        requests: vLLM's, all of them running.
    """

    def __init__(self, config: VllmConfig, requests: list[EngineCoreRequest]) -> None:
        self._states = RequestState(SLOTS, LENGTH, 4096, 0, VOCAB, CPU)
        own = build_custom_logits_processors(config, self._states, False, config.model_config.logits_processors or ())
        self._sampler = Sampler(
            config, SLOTS, VOCAB, CPU, self._states, config.model_config.logprobs_mode, custom_logits_processors=own
        )
        for one in requests:
            params, prompt = one.sampling_params, one.prompt_token_ids
            assert params is not None
            assert params.max_tokens is not None
            assert prompt is not None
            self._states.add_request(one.request_id, len(prompt), prompt, len(prompt) - 1, params.max_tokens)
            self._sampler.add_request(self._states.req_id_to_index[one.request_id], params)
        self._states.apply_staged_writes()
        self._sampler.apply_staged_writes()
        slots = [self._states.req_id_to_index[one.request_id] for one in requests]
        self._slots = np.array(slots, np.intp)

    def step(self, logits_V: torch.Tensor, generated: int) -> dict[str, Any]:
        """Sample one token for every request after as many others."""
        slots, count = self._slots, len(self._slots)
        index, rows = torch.from_numpy(slots).to(torch.int32), torch.arange(count)
        lengths = torch.full((count,), PROMPT + generated, dtype=torch.int32)
        bounds = torch.arange(count + 1, dtype=torch.int32)
        batch: Any = SimpleNamespace(
            expanded_idx_mapping=index,
            idx_mapping=index,
            idx_mapping_np=slots,
            cu_num_logits=bounds,
            cu_num_logits_np=bounds.numpy(),
            expanded_local_pos=torch.zeros_like(index),
            positions=lengths.to(torch.int64) - 1,
            input_ids=torch.zeros_like(index),
            logits_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=count,
        )
        out = self._sampler(logits_V.expand(count, VOCAB).clone(), batch)
        assert out.logprobs_tensors is not None
        tokens_B1, logprobs_B1 = out.sampled_token_ids, out.logprobs_tensors.logprobs
        return {
            "tokens": tokens_B1[:, 0].tolist(),
            "logprobs": logprobs_B1[:, 0].tolist(),
            "sampled": out.num_sampled.tolist(),
            "forms": [[str(one.dtype), *one.shape] for one in (tokens_B1, logprobs_B1)],
        }


def drawn(config: VllmConfig, asked: list[Request], logits_V: torch.Tensor, steps: int) -> list[dict[str, Any]]:
    """Let requests run some steps on the same logits."""
    sampler = SamplerOfGpus(config, requests_of(config, asked))
    return [sampler.step(logits_V, number) for number in range(steps)]


def main(folder: Path) -> None:
    """Print, as JSON, what each kind of request draws, and the logits that it draws from."""
    (folder / "config.json").write_text(json.dumps(MODEL.to_hf()))
    setup = GeneratorSetup(max_model_len=LENGTH, max_sequences=SLOTS, kv_cache_gib=0.01)
    phrases = Phrases(PHRASE, by_ids((5,)))
    vllm_config_module.HAS_TRITON = True  # as on a GPU, where it decides for Model Runner V2
    config = engine_config(folder, MODEL.to_hf(), setup, phrases, 0, eager=True)
    engine.current_platform = SimpleNamespace(is_cpu=lambda: False)  # type: ignore[assignment]
    buffer_utils.is_uva_available = lambda: False
    set_random_seed(config.model_config.seed)  # as a worker does on a GPU
    logits_V = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 0.25, -1.0, -2.0])

    def asked(count: int, **settings: Any) -> list[Request]:
        return [
            Request(f"{n}", (2, 3, 4), 16, **{name: f(n) if callable(f) else f for name, f in settings.items()})
            for n in range(count)
        ]

    seeded = asked(SLOTS, seed=lambda n: 2**63 - 1 - n, temperature=0.5)
    print(
        json.dumps(
            {
                "logits": logits_V.tolist(),
                "half": drawn(config, seeded, logits_V, 3),
                "again": drawn(config, seeded, logits_V, 3),
                "one": drawn(config, asked(SLOTS), logits_V, 3),
                "greedy": drawn(config, asked(4, temperature=0.0), logits_V, 2),
                "forced": drawn(config, asked(4, interrupt_at=lambda n: 1 if n < 2 else None, seed=3), logits_V, 4),
            }
        )
    )
