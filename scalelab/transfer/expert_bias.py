"""Expert biases in vLLM: a token goes to the experts with the highest logit plus bias, weighted by their logits alone.

vLLM 0.32.0 has no place for them in the models that are trained here. So a hook behind every gate leaves the logits of
the chosen experts as they are and puts all others at −∞: what vLLM then chooses and weighs (the sigmoid of the best
logit, or the softmax among the best) is what the trainer does (`moe.model.choice`). Compiled models skip hooks;
`scalelab.rollout.engine` does not compile where there are biases.

Axes: `_N` tokens of a step, `_E` experts, `_K` experts of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from vllm.v1.worker.worker_base import WorkerBase

from moe.weights.links import EXPERT_BIAS


def install(worker: WorkerBase, names: Sequence[str], experts_per_token: int) -> None:
    """Make the gates of a worker's model choose by logit plus bias, 0 at first.

    Args:
        worker: vLLM's.
        names: of all biases (`moe.weights.links.expert_bias_names`).
        experts_per_token: how many a gate chooses.
    """
    for name in names:
        gate = _gate(worker.model_runner.get_model(), name)
        gate.expert_bias_E = torch.zeros(gate.output_size, device=gate.weight.device)
        gate.register_forward_hook(partial(_leave_chosen, experts_per_token))


def set_biases(model: torch.nn.Module, biases: Mapping[str, torch.Tensor]) -> None:
    """Set the biases of every gate, fp32 [E] by name."""
    for name, bias_E in biases.items():
        _gate(model, name).expert_bias_E.copy_(bias_E)


def set_workers_biases(worker: WorkerBase, biases: Mapping[str, torch.Tensor]) -> None:
    """Set the biases in a worker's process; called by name through vLLM."""
    set_biases(worker.model_runner.get_model(), biases)


def _gate(model: torch.nn.Module, name: str) -> Any:
    return model.get_submodule(name.removesuffix(EXPERT_BIAS))


def _leave_chosen(experts_per_token: int, gate: Any, _: Any, output: tuple[torch.Tensor, Any]) -> tuple:
    logits_NE, rest = output
    chosen_NK = (logits_NE.float() + gate.expert_bias_E).topk(experts_per_token, dim=-1).indices
    others_NE = torch.ones_like(logits_NE, dtype=torch.bool).scatter_(-1, chosen_NK, False)
    return logits_NE.masked_fill(others_NE, -torch.inf), rest
