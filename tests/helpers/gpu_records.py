"""vLLM's own record of experts, which its model runner for GPUs takes, beneath an engine on a CPU.

Scheduler, connectors, store and output processor are vLLM's. Only what the runner for GPUs (`v1/worker/gpu/
model_runner.py`, `async_utils.py`) does with the connector in a step is written again here, for the runner on a CPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.distributed.aux_output_connector.worker import get_aux_output_connector


def record_as_on_a_gpu(worker: Any) -> None:
    """Give a worker vLLM's connector, and its steps what a GPU's do for it."""
    runner = worker.model_runner
    connector = get_aux_output_connector(runner.get_model(), runner.vllm_config, runner.kv_cache_config)
    execute, sample = runner.execute_model, runner.sample_tokens

    def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        connector.begin_step(scheduled.aux_output_connector_metadata)
        return execute(scheduled, *args, **kwargs)

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        count = batch.num_reqs
        here = SimpleNamespace(
            req_ids=list(batch.req_ids[:count]),
            num_computed_tokens_np=batch.num_computed_tokens_cpu[:count].copy(),
            query_start_loc_np=runner.query_start_loc.np[: count + 1].copy(),
        )
        pending = connector.prepare_output(here)
        output = sample(*args, **kwargs)
        if pending is not None:
            sampled = np.array([len(ids) for ids in output.sampled_token_ids])
            pending.enqueue_cpu_copy(sampled, np.zeros_like(sampled))
            output.aux_output_connector_output = pending.process_output()
        return output

    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens
