"""Weights in parcels, for ways that send all of them to every engine: on no rank is a large tensor ever whole.

    ranks that hold ──▶ parcel: some rows of the vocabulary's matrices, one expert, or another parameter ──▶ every rank

All ranks walk through the same parcels in the same order; nothing but the parcel is gathered. A receiver that wants
whole tensors puts rows together (`whole_and_first`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from moe.model.architectures import architecture
from moe.model.head import LogProbModel
from moe.settings import Layout
from moe.weights.cuts import cuts_of, gather, within_experts
from moe.weights.hf_weights import own_parameters
from moe.weights.links import Link, links, rows_name, stored_as

VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Parameters that are sent by rows: they are larger than two layers of a dense model."""


@dataclass(frozen=True)
class Parcel:
    """The tensors that all ranks have at once.

    Attributes:
        link: of the parameter, of the one expert in it, or of the rows.
        first: the first expert or row of the parameter; None for all of it.
        holder: place of the rank that holds them, among those that share the parameter.
        stage: of the pipeline that has the parameter.
    """

    link: Link
    first: int | None = None
    holder: int = 0
    stage: int = 0

    def parts(self) -> list[tuple[str, torch.Size]]:
        """(Name, shape) of each of its tensors; rows have a name that says which is the first."""
        return list(self.link.parts())


def parcels(hf_config: dict[str, Any], layout: Layout, itemsize: int, limit: int) -> list[Parcel]:
    """List all parcels of a model, layer after layer.

    Args:
        hf_config: the model's.
        layout: of the ranks that hold it.
        itemsize: bytes of a number.
        limit: bytes of a vocabulary's rows that are sent at once.
    """
    count = architecture(hf_config).fields.get("num_moe_experts") or 0
    single = [
        {link.param: link for link in links(hf_config, range(number, number + 1), single=True) if link.experts}
        for number in range(count)
    ]
    found = []
    for link in links(hf_config, single=True):
        stage = _stage(link.param, hf_config["num_hidden_layers"], layout.pipeline)
        if link.experts:
            holders = [number * layout.expert // count for number in range(count)]
            found += [Parcel(single[n][link.param], n, holder, stage) for n, holder in enumerate(holders)]
        elif link.param in VOCABULARY:
            found += by_rows(link, layout.tensor, max(1, limit // (link.shape[1] * itemsize)), stage)
        else:
            found.append(Parcel(link, stage=stage))
    return found


def _stage(param: str, layers: int, stages: int) -> int:
    """The pipeline stage of a parameter; every stage has as many layers."""
    if param.startswith("decoder.layers."):
        return int(param.split(".")[2]) * stages // layers
    return 0 if param.startswith("embedding.") else stages - 1


def by_rows(link: Link, ranks: int, most: int, stage: int = 0) -> list[Parcel]:
    """Cut a vocabulary's matrix at the borders of its ranks, and between them into at most so many rows."""
    words, hidden = link.shape
    share, [name] = words // ranks, link.names
    if ranks == 1 and most >= words:
        return [Parcel(link, stage=stage)]
    found = []
    for holder in range(ranks):
        for first in range(holder * share, (holder + 1) * share, most):
            rows = min(most, (holder + 1) * share - first)
            part = replace(link, shape=(rows, hidden), names=(rows_name(name, first),))
            found.append(Parcel(part, first, holder, stage))
    return found


def walk(model: LogProbModel, hf_config: dict[str, Any], through: Sequence[Parcel]) -> Iterator[tuple[str, Tensor]]:
    """Every weight as (name, contiguous tensor on the model's device); all ranks must walk it to its end.

    The tensors may share memory with the model: copy those you keep beyond the next step.

    Args:
        model: this rank's part of the model.
        hf_config: of the whole model.
        through: its parcels.
    """
    own = own_parameters(model, hf_config)
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    some = next(model.parameters())
    for parcel in through:
        link = parcel.link
        here = parcel.stage == pipeline.rank()
        tensor = (
            _collected(own[link.param], parcel)
            if here
            else some.new_empty(link.shape, dtype=stored_as(link.names[0], some.dtype), requires_grad=False)
        )
        if pipeline.size() > 1:
            dist.broadcast(tensor, dist.get_global_rank(pipeline, parcel.stage), group=pipeline)
        for name, part in zip(link.names, link.split(tensor), strict=True):
            yield name, part.contiguous()
            del part
        del tensor  # before the next is collected


def _collected(param: Tensor, parcel: Parcel) -> Tensor:
    """Bring a parcel to all ranks that share the parameter; a collective operation of these."""
    link, cuts = parcel.link, cuts_of(param, parcel.link)
    if parcel.first is None:
        return gather(param, cuts).contiguous()
    group = (
        parallel_state.get_expert_model_parallel_group()
        if link.experts
        else parallel_state.get_tensor_model_parallel_group()
    )
    if group.rank() == parcel.holder:
        begin = parcel.first - group.rank() * param.shape[0]
        held = param.detach()[begin : begin + link.shape[0]]
        tensor = gather(held, within_experts(cuts) if link.experts else ()).contiguous()
    else:
        tensor = param.new_empty(link.shape, requires_grad=False)
    if group.size() > 1:
        dist.broadcast(tensor, dist.get_global_rank(group, parcel.holder), group=group)
    return tensor
