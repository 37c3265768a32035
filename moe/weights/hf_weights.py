"""Weights under Hugging Face names, in and out of a Megatron model, one tensor at a time.

Export and import walk the same links (`moe.weights.links`) in the same order on every rank, so that nothing beyond one
parameter is ever gathered. A rank holds the layers of its pipeline stage, of these a slice of every matrix that
tensor parallelism cuts, and of the experts some, each perhaps cut, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.model.head import LogProbModel
from moe.model.init import InitialWeights
from moe.weights.cuts import RankCut, cut_out, cuts_of, gather, within_experts
from moe.weights.hf_folder import FolderWeights
from moe.weights.links import Link, check_names, check_shape, expert_bias_names, links, shapes, stored_as
from moe.weights.segments import Cut as ShardCut


def _linked(model: LogProbModel, hf_config: dict[str, Any]) -> list[tuple[Link, Tensor]]:
    """Every parameter of this rank's pipeline stage beside its link, in the order of the layers."""
    offset = get_transformer_layer_offset(model.config)
    params = {_counted_from_the_first(name, offset): param for name, param in model.named_parameters()}
    everything = links(hf_config)
    mine = [link for link in everything if _is_here(link.param, model, offset)]
    if absent := [link.names[0] for link in mine if link.param not in params]:
        raise MoeError(f"this {hf_config['model_type']} has no parameter for {absent[0]}")
    found = [(link, params.pop(link.param)) for link in mine]
    if copy := [name for name, param in params.items() if _is_copy(param)]:
        found.append((replace(everything[0], param=copy[0]), params.pop(copy[0])))  # the first link is the embedding's
    if params:
        raise MoeError(f"parameter {min(params)} of this {hf_config['model_type']} has no Hugging Face name")
    return found


def _is_here(name: str, model: LogProbModel, offset: int) -> bool:
    """True if a parameter of the whole model belongs to this rank's pipeline stage."""
    if name.startswith("decoder.layers."):
        return 0 <= int(name.split(".")[2]) - offset < len(model.decoder.layers)
    return model.pre_process if name.startswith("embedding.") else model.post_process


def _is_copy(param: Tensor) -> bool:
    """True for the last stage's copy of an embedding that doubles as output matrix; Megatron marks it."""
    return getattr(param, "shared", False)


def _counted_from_the_first(name: str, offset: int) -> str:
    """Renumber layers: Megatron counts from the first of the stage, links from the first of the model."""
    if not name.startswith("decoder.layers."):
        return name
    decoder, layers, number, rest = name.split(".", 3)
    return f"{decoder}.{layers}.{int(number) + offset}.{rest}"


def own_parameters(model: LogProbModel, hf_config: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters of this rank's pipeline stage, but for copies, by Megatron's name counted from the first layer."""
    return {link.param: param for link, param in _linked(model, hf_config) if not _is_copy(param)}


def _own(model: LogProbModel, hf_config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The part of `export` from this rank's pipeline stage."""
    for link, param in _linked(model, hf_config):
        if not _is_copy(param):
            yield from _named(param, link)


def _named(param: Tensor, link: Link) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face tensors of one parameter, which is let go of with the last."""
    for name, tensor in zip(link.names, link.split(gather(param, cuts_of(param, link)))):
        yield name, tensor.contiguous()


def own_parts(model: LogProbModel, hf_config: dict[str, Any]) -> list[tuple[str, tuple[ShardCut, ...], Tensor]]:
    """List the parts that this rank publishes: each part of a parameter is published by one rank that holds it.

    Not collective. Ranks that hold the same part take turns by bytes, so that the shares of all are about equal.

    Returns:
        (Megatron's name with layers counted from the model's first, how the part was cut, the part).
    """
    own, turns = [], _Turns()
    for link, param in _linked(model, hf_config):
        if not _is_copy(param) and turns.mine(param, experts=link.experts):
            cuts = tuple((cut.axis, cut.stretches, cut.group.rank(), cut.group.size()) for cut in cuts_of(param, link))
            own.append((link.param, cuts, param.detach()))
    names = expert_bias_names(hf_config)
    for router in model.routers:
        if router.bias_E is not None and turns.mine(router.bias_E, experts=False):
            own.append((names[router.layer_number - 1], (), router.bias_E))
    return own


class _Turns:
    """Turns among ranks that hold the same parts, counted alike on all of them."""

    def __init__(self) -> None:
        self._bytes: dict[str, list[int]] = {}

    def mine(self, part: Tensor, *, experts: bool) -> bool:
        """Give a part to the rank with the fewest bytes so far; returns whether that is this one."""
        if experts:
            kind, rank, ranks = "experts", *_of(parallel_state.get_expert_data_parallel_group())
        else:
            kind, rank, ranks = "cut", *_of(parallel_state.get_data_parallel_group(with_context_parallel=True))
            if not getattr(part, "tensor_model_parallel", False):
                group = parallel_state.get_tensor_model_parallel_group()
                kind, rank, ranks = "whole", rank * group.size() + group.rank(), ranks * group.size()
        held = self._bytes.setdefault(kind, [0] * ranks)
        turn = held.index(min(held))
        held[turn] += part.nbytes
        return turn == rank


def _of(group: dist.ProcessGroup) -> tuple[int, int]:
    return group.rank(), group.size()


def export(model: LogProbModel, hf_config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every weight as (Hugging Face name, whole contiguous tensor on the CPU); all ranks must walk it to its end.

    The tensors may share memory with the model: copy those you keep beyond the next step.
    """
    group = parallel_state.get_pipeline_model_parallel_group()
    some = next(model.parameters())
    for stage, table in enumerate(_tables(model, hf_config)):
        own = _own(model, hf_config) if stage == group.rank() else None
        for name, shape in table:
            tensor = (
                torch.empty(shape, dtype=stored_as(name, some.dtype), device=some.device)
                if own is None
                else next(own)[1]
            )
            if group.size() > 1:
                dist.broadcast(tensor, dist.get_global_rank(group, stage), group=group)
            yield name, tensor.cpu()
            del tensor  # before the next is gathered


def _tables(model: LogProbModel, hf_config: dict[str, Any]) -> list[list[tuple[str, torch.Size]]]:
    """Names and shapes of all stages' exports; collective over the pipeline stages."""
    own = [part for link, param in _linked(model, hf_config) if not _is_copy(param) for part in link.parts()]
    group = parallel_state.get_pipeline_model_parallel_group()
    tables = [own] * group.size()
    if group.size() > 1:
        dist.all_gather_object(tables, own, group=group)
    return tables


def expert_biases(model: LogProbModel, hf_config: dict[str, Any]) -> dict[str, Tensor]:
    """The biases of every layer's experts, fp32 [E] by name; empty where there are none.

    Collective over the pipeline stages.
    """
    names = expert_bias_names(hf_config)
    own = {names[r.layer_number - 1]: r.bias_E.cpu().clone() for r in model.routers if r.bias_E is not None}
    group = parallel_state.get_pipeline_model_parallel_group()
    stages = [own] * group.size()
    if group.size() > 1:
        dist.all_gather_object(stages, own, group=group)
    return {name: bias_E for stage in stages for name, bias_E in stage.items()}


def _load_expert_biases(model: LogProbModel, hf_config: dict[str, Any], biases: Mapping[str, Tensor]) -> None:
    names = expert_bias_names(hf_config)
    if biases:
        check_names(names.values(), biases)
    for router in model.routers:
        name = names[router.layer_number - 1]
        if router.bias_E is not None and not biases:
            router.bias_E.zero_()
        elif router.bias_E is not None:
            check_shape(name, biases[name].shape, router.bias_E.shape)
            router.bias_E.copy_(biases[name])
        elif biases:
            raise MoeError(f"the weights come with {name}, without which experts differ; set TrainerConfig.expert_bias")


@torch.no_grad()
def load(
    model: LogProbModel, hf_config: dict[str, Any], weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]
) -> None:
    """Set every weight and bias of experts of this rank's part of the model; not collective.

    Of experts only those that this rank holds are read or drawn, as they are most of a large mixture. Of a matrix that
    tensor parallelism cuts along its rows, only this rank's are. One that is cut along its columns is read whole, since
    every page of its file holds some of each rank's, and drawn whole.

    Args:
        model: the model.
        hf_config: its config.
        weights: whole tensors by Hugging Face name (see `moe.weights.hf_folder.FolderWeights`).
        biases: of experts, by name, perhaps among the weights, too; without any, those of the model become 0.

    Raises:
        MoeError: naming the first missing, extra or misshapen tensor; the model may be half set then.
    """
    wanted = shapes(hf_config)
    check_names(wanted, (name for name in weights if name not in biases))
    _load_expert_biases(model, hf_config, biases)

    experts = own_experts(hf_config)

    def read(name: str, shape: torch.Size, cut: RankCut | None) -> Tensor:
        """Read the rows of a tensor that this rank needs: its experts of a stack, its slice of a cut, or all."""
        first = 0 if shape == wanted[name] else experts.start
        if cut is not None:
            shape = torch.Size((shape[0] // cut.group.size(), *shape[1:]))
            first = cut.group.rank() * shape[0]
        if isinstance(weights, FolderWeights | InitialWeights):
            check_shape(name, weights.shapes[name], wanted[name])
            return weights.rows(name, first, shape)
        whole = weights[name]
        check_shape(name, whole.shape, wanted[name])
        return whole[first : first + shape[0]]

    own = {link.param: link for link in links(hf_config, experts) if link.experts}
    for link, param in _linked(model, hf_config):
        held, cut = own.get(link.param, link), _cut_by_rows(param, link)
        merged = held.merge(read(name, shape, cut) for name, shape in held.parts())
        param.copy_(cut_out(merged, within_experts(cuts_of(param, link))) if cut is None else merged)


def _cut_by_rows(param: Tensor, link: Link) -> RankCut | None:
    """The cut of a dense parameter along its rows, if there is one: it cuts each of its Hugging Face tensors alike."""
    return next((cut for cut in cuts_of(param, link) if cut.axis == 0 and not link.experts), None)


def own_experts(hf_config: dict[str, Any]) -> range:
    """Number the experts that this rank holds in every layer that has any."""
    group = parallel_state.get_expert_model_parallel_group()
    count = architecture(hf_config).fields.get("num_moe_experts") or 0
    return range(count * group.rank() // group.size(), count * (group.rank() + 1) // group.size())
