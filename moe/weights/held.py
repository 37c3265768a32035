"""Weights that a rank holds, for transfers in which every rank gives its own.

A rank gathers matrices of a layer that others cut with it, one at a time. Experts it gives one by one, and of the
vocabulary's matrices the rows that it has: nothing larger than a layer without its other experts is whole anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from moe.model.gpt import LogProbModel
from moe.model.layers import BIAS
from moe.weights.cuts import cuts_of, gather, within_experts
from moe.weights.hf_weights import own_experts, own_parameters
from moe.weights.links import Link, held_links
from moe.weights.parcels import VOCABULARY, by_rows


def held_parts(hf_config: dict[str, Any], ranks: int, biased: bool = False) -> list[tuple[str, torch.Size]]:
    """Name and shape of every tensor that one rank or another gives, layer after layer.

    Args:
        hf_config: the model's.
        ranks: that share a matrix (tensor parallelism).
        biased: with the biases of experts.
    """
    return [part for link in held_links(hf_config, biased=biased) for part in _parts(link, ranks)]


def held_names(model: LogProbModel, hf_config: dict[str, Any]) -> list[str]:
    """The names of `export_held`, in its order; not collective."""
    return [name for link, _ in _held(model, hf_config) for name in _own_names(link)]


def export_held(model: LogProbModel, hf_config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every weight of this rank's pipeline stage and of its experts, each expert by itself, and the experts' biases.

    Collective over the ranks that cut matrices between them, which all must walk it to its end: matrices are gathered
    from those, one at a time, and from nobody else. Of the vocabulary's, nothing is gathered.

    Returns:
        (Name as in `held_parts`, tensor on the model's device), layer after layer; the tensors may share memory with
        the model.
    """
    for link, param in _held(model, hf_config):
        if link.param in VOCABULARY:
            yield _own_names(link)[0], param.detach()
        else:
            yield from zip(link.names, link.split(gather(param, within_experts(cuts_of(param, link)))), strict=True)


def _parts(link: Link, ranks: int) -> list[tuple[str, torch.Size]]:
    """A link's tensors, or the rows of each rank."""
    if link.param not in VOCABULARY:
        return list(link.parts())
    return [part for parcel in by_rows(link, ranks, most=link.shape[0]) for part in parcel.parts()]


def _own_names(link: Link) -> list[str]:
    """The names of what this rank gives of a link."""
    group = parallel_state.get_tensor_model_parallel_group()
    names = [name for name, _ in _parts(link, group.size())]
    return [names[group.rank()]] if link.param in VOCABULARY else names


def _held(model: LogProbModel, hf_config: dict[str, Any]) -> list[tuple[Link, Tensor]]:
    """The parameters and biases of this rank, beside links of what it holds of them."""
    params = own_parameters(model, hf_config)
    biases = {f"decoder.layers.{one.layer_number - 1}.mlp.{BIAS}": one.bias_E for one in model.routers}
    biases = {name: bias_E for name, bias_E in biases.items() if bias_E is not None}
    everything = held_links(hf_config, own_experts(hf_config), biased=bool(biases))
    found = params | biases
    return [(link, found[link.param]) for link in everything if link.param in found]
