"""Metrics of a step, reduced over micro-batches and ranks with few collective operations.

Axes: _L layers with experts, _E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from moe.errors import MoeError
from moe.model.layers import Router

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_LOCAL = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


def reduce_metrics(reports: Sequence[dict[str, Tensor]], group: dist.ProcessGroup) -> dict[str, float]:
    """Reduce scalars of every micro-batch and rank, each by the ending of its name.

    Args:
        reports: one dictionary of scalars per micro-batch of this rank, with the same names on every rank.
        group: the ranks to put together.

    Raises:
        MoeError: for a name that does not end in ``_sum``, ``_max`` or ``_min``.
    """
    names: dict[str, list[str]] = {kind: [] for kind in _OPERATIONS}
    for name in sorted(reports[0]):
        kind = name.rsplit("_", 1)[-1]
        if kind not in names:
            raise MoeError(f"metric {name!r} must end in _sum, _max or _min to say how it is put together")
        names[kind].append(name)
    reduced: dict[str, float] = {}
    for kind, operation in _OPERATIONS.items():
        if names[kind]:
            rows = [torch.stack([report[n].detach().double() for n in names[kind]]) for report in reports]
            values = _LOCAL[kind](torch.stack(rows), dim=0)
            dist.all_reduce(values, op=operation, group=group)
            reduced.update(zip(names[kind], values.tolist()))
    return reduced


def take_loads(routers: Sequence[Router]) -> list[Tensor]:
    """Tokens that the experts of each layer got on all ranks since the last call, fp32 [E] each; collective.

    Args:
        routers: those of this rank's pipeline stage.
    """
    if not routers:
        return []
    load_LE = torch.stack([router.load_E for router in routers])
    for router in routers:
        router.load_E.zero_()
    dist.all_reduce(load_LE, group=parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True))
    return list(load_LE)


def load_metrics(loads: Sequence[Tensor]) -> dict[str, float]:
    """Imbalance of experts: the busiest expert's tokens over the mean; collective over the pipeline stages.

    Args:
        loads: what `take_loads` said of this rank's stage.

    Returns:
        ``moe_imbalance`` (mean over the layers) and ``moe_imbalance_max`` (worst layer); 1 is even, the
        number of experts is all on one. Empty for a dense model.
    """
    imbalance_L = [(load_E.amax() / load_E.mean().clamp(min=1e-9)).item() for load_E in loads]
    stages: list[list[float]] = [imbalance_L]
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        stages *= parallel_state.get_pipeline_model_parallel_world_size()
        dist.all_gather_object(stages, imbalance_L, group=parallel_state.get_pipeline_model_parallel_group())
    every_L = [value for stage in stages for value in stage]
    if not every_L:
        return {}
    return {"moe_imbalance": sum(every_L) / len(every_L), "moe_imbalance_max": max(every_L)}
