"""The Hugging Face tensors that make up every Megatron parameter.

Axes: _E experts, _F gate and up rows of a feed-forward (2·I), _I its inner size, _H hidden size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.model.architectures import LayerPlan, architecture, latent_matrices, latent_norms

_ROWS = "@row:"


@dataclass(frozen=True)
class Link:
    """One Megatron parameter and its Hugging Face tensors.

    Attributes:
        param: Megatron's name.
        shape: of the whole Megatron tensor.
        names: Hugging Face's names.
        split: the whole Megatron tensor to the Hugging Face tensors, in the order of ``names``.
        merge: and back; takes the tensors one by one, so that they need not all exist at the same time. If tensor
            parallelism cuts the Megatron tensor along its rows, it also makes a slice from the same slice of each.
        experts: the parameter holds this rank's slice of the experts along axis 0.
    """

    param: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    split: Callable[[Tensor], tuple[Tensor, ...]] = lambda whole: (whole,)
    merge: Callable[[Iterable[Tensor]], Tensor] = lambda parts: _only(parts)
    experts: bool = False

    def parts(self) -> Iterator[tuple[str, torch.Size]]:
        """(Hugging Face name, shape) of each of its tensors."""
        for name, part in zip(self.names, self.split(torch.empty(self.shape, device="meta")), strict=True):
            yield name, part.shape


def shapes(hf_config: dict[str, Any]) -> dict[str, torch.Size]:
    """Every Hugging Face name and the shape of its tensor, in the order of the layers."""
    return {name: shape for link in links(hf_config) for name, shape in link.parts()}


EXPERT_BIAS = ".expert_bias"
"""Suffix of a router's name in the name of its biases, which are no weights of a Hugging Face model."""


CORRECTION = ".e_score_correction_bias"
"""Ending of the names of routers' own biases, which are fp32 whatever the other weights are."""


def stored_as(name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of a tensor in a model whose weights are of a type."""
    return torch.float32 if name.endswith(CORRECTION) else dtype


def expert_bias_names(hf_config: dict[str, Any]) -> dict[int, str]:
    """Names of the biases of every layer with experts, by its number from 0."""
    routers = (link for link in links(hf_config) if link.param.endswith(".router.weight"))
    return {int(link.param.split(".")[2]): link.names[0].removesuffix(".weight") + EXPERT_BIAS for link in routers}


def check_names(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Refuse tensors that are not those of a model.

    Raises:
        MoeError: naming the first missing or extra one.
    """
    wanted, found = set(wanted), set(found)
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    if missing:
        raise MoeError(f"the weights lack {missing[0]} and {len(missing) - 1} more; give their own config.json")
    if extra:
        raise MoeError(f"the weights hold {extra[0]} and {len(extra) - 1} more that this model has no place for")


def check_shape(name: str, found: Iterable[int], wanted: Iterable[int]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        MoeError: naming it.
    """
    if tuple(found) != tuple(wanted):
        raise MoeError(
            f"{name} has shape {tuple(found)}, but this model needs {tuple(wanted)}; give the weights' own config.json"
        )


def links(hf_config: dict[str, Any], experts: range | None = None, single: bool = False) -> list[Link]:
    """The links of the whole model, in the order of the layers; Megatron's names count them from the model's first.

    Args:
        hf_config: the model's.
        experts: leave out all others: parameters of experts are shorter then, and so are tensors that stack them.
        single: a tensor for each matrix of every expert, also in families whose files stack all experts; vLLM takes
            both.
    """
    arch = architecture(hf_config)
    hidden = arch.fields["hidden_size"]
    words = (hf_config["vocab_size"], hidden)
    found = [Link("embedding.word_embeddings.weight", words, ("model.embed_tokens.weight",))]
    for number, plan in enumerate(arch.layers):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        found += _attention_links(here, there, plan, arch.fields)
        names = _NAMES.get(hf_config["model_type"], _Names())
        if single and names.expert is None:
            names = replace(names, expert=_Names.expert)
        found += _feed_forward_links(f"{here}mlp.", there, names, plan, arch.fields, experts)
    found.append(Link("decoder.final_layernorm.weight", (hidden,), ("model.norm.weight",)))
    if not arch.tied:
        found.append(Link("output_layer.weight", words, ("lm_head.weight",)))
    return found


_LATENT = {
    "linear_q_proj": "q_proj",
    "linear_q_down_proj": "q_a_proj",
    "linear_q_up_proj": "q_b_proj",
    "linear_kv_down_proj": "kv_a_proj_with_mqa",
    "linear_kv_up_proj": "kv_b_proj",
    "q_layernorm": "q_a_layernorm",
    "kv_layernorm": "kv_a_layernorm",
}
"""Names of the parameters within latent attention: Megatron's, and Hugging Face's."""


def _latent_links(here: str, there: str, fields: dict[str, Any]) -> list[Link]:
    hidden, values = fields["hidden_size"], fields["num_attention_heads"] * fields["v_head_dim"]
    inner: dict[str, tuple[int, ...]] = {**latent_matrices(fields)}
    inner |= {name: (width,) for name, width in latent_norms(fields).items()}
    return [
        Link(f"{here}input_layernorm.weight", (hidden,), (f"{there}input_layernorm.weight",)),
        *(
            Link(f"{here}self_attention.{name}.weight", shape, (f"{there}self_attn.{_LATENT[name]}.weight",))
            for name, shape in inner.items()
        ),
        Link(f"{here}self_attention.linear_proj.weight", (hidden, values), (f"{there}self_attn.o_proj.weight",)),
        Link(f"{here}pre_mlp_layernorm.weight", (hidden,), (f"{there}post_attention_layernorm.weight",)),
    ]


def _attention_links(here: str, there: str, plan: LayerPlan, fields: dict[str, Any]) -> list[Link]:
    if "kv_lora_rank" in fields:
        return _latent_links(here, there, fields)
    groups, size, hidden = fields["num_query_groups"], fields["kv_channels"], fields["hidden_size"]
    heads = fields["num_attention_heads"]
    queries = heads // groups * size

    def split(whole: Tensor) -> tuple[Tensor, ...]:
        """Split Megatron's fused tensor, which keeps the queries, key and value of each group together."""
        parts = whole.unflatten(0, (groups, -1)).split([queries, size, size], dim=1)
        return tuple(part.flatten(0, 1) for part in parts)

    def merge(qkv: Iterable[Tensor]) -> Tensor:
        """Merge the tensors, or the rows of each that belong to some of the groups."""
        rows = (queries, size, size)
        return torch.cat([part.unflatten(0, (-1, each)) for part, each in zip(qkv, rows)], dim=1).flatten(0, 1)

    def projections(kind: str) -> tuple[str, ...]:
        return tuple(f"{there}self_attn.{x}_proj.{kind}" for x in "qkv")

    rows = (heads + 2 * groups) * size
    biases = [Link(f"{here}self_attention.linear_qkv.bias", (rows,), projections("bias"), split, merge)]
    widths = {"rms": (size, size), "wide": (heads * size, groups * size)}.get(plan.qk_norm, ())
    norms = [
        Link(f"{here}self_attention.{x}_layernorm.weight", (width,), (f"{there}self_attn.{x}_norm.weight",))
        for x, width in zip("qk", widths, strict=False)
    ]
    if plan.norm_behind:
        first = ("self_attention.norm_behind", "post_attention_layernorm")
        second = ("mlp.norm_behind", "post_feedforward_layernorm")
    else:
        first, second = ("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")
    return [
        Link(f"{here}{first[0]}.weight", (hidden,), (f"{there}{first[1]}.weight",)),
        Link(f"{here}self_attention.linear_qkv.weight", (rows, hidden), projections("weight"), split, merge),
        *(biases if fields.get("add_qkv_bias") else []),
        Link(f"{here}self_attention.linear_proj.weight", (hidden, heads * size), (f"{there}self_attn.o_proj.weight",)),
        *norms,
        Link(f"{here}{second[0]}.weight", (hidden,), (f"{there}{second[1]}.weight",)),
    ]


def _gated_links(here: str, there: str, inner: int, hidden: int) -> list[Link]:
    """A gated feed-forward: Megatron stacks gate over up."""
    gate_up = (f"{there}.gate_proj.weight", f"{there}.up_proj.weight")
    return [
        Link(
            f"{here}linear_fc1.weight",
            (2 * inner, hidden),
            gate_up,
            lambda fc1: fc1.chunk(2),
            lambda parts: _stack(parts, 2).flatten(0, 1),
        ),
        Link(f"{here}linear_fc2.weight", (hidden, inner), (f"{there}.down_proj.weight",)),
    ]


@dataclass(frozen=True)
class _Names:
    """Names of a family's mixtures of experts.

    Attributes:
        block: the feed-forward of a layer.
        router: the router, in the block.
        expert: gate, up and down projection of one expert; None where all experts are stacked.
        shared: the shared experts, in the block.
    """

    block: str = "mlp"
    router: str = "gate"
    expert: tuple[str, str, str] | None = ("gate_proj", "up_proj", "down_proj")
    shared: str = "shared_experts"


_NAMES = {
    "llama4_text": _Names("feed_forward", "router", None, "shared_expert"),
    "mixtral": _Names("block_sparse_moe", expert=("w1", "w3", "w2")),
}


def _feed_forward_links(
    here: str, there: str, names: _Names, plan: LayerPlan, fields: dict[str, Any], some: range | None
) -> list[Link]:
    block, hidden = f"{there}{names.block}", fields["hidden_size"]
    if not plan.experts:
        return _gated_links(here, block, fields["ffn_hidden_size"], hidden)
    experts, inner = fields["num_moe_experts"], fields["moe_ffn_hidden_size"]
    router = Link(f"{here}router.weight", (experts, hidden), (f"{block}.{names.router}.weight",))
    own = Link(f"{here}router.correction_E", (experts,), (f"{block}.{names.router}{CORRECTION}",))
    held = range(experts) if some is None else some
    if names.expert is None:
        stacks = _stacked_expert_links(f"{here}experts.", f"{block}.experts.", len(held), inner, hidden)
    else:
        stacks = _single_expert_links(f"{here}experts.", f"{block}.experts.", names.expert, held, inner, hidden)
    shared = fields.get("moe_shared_expert_intermediate_size")
    beside = _gated_links(f"{here}shared_experts.", f"{block}.{names.shared}", shared, hidden) if shared else []
    return [router, *([own] if plan.corrected else []), *stacks, *beside]


def _stacked_expert_links(here: str, there: str, experts: int, inner: int, hidden: int) -> list[Link]:
    """All experts in one tensor, [E, in, out]."""

    def swapped(stack: Tensor) -> tuple[Tensor]:
        return (stack.transpose(1, 2),)

    def back(parts: Iterable[Tensor]) -> Tensor:
        return _only(parts).transpose(1, 2)

    return [
        Link(f"{here}fc1_EFH", (experts, 2 * inner, hidden), (f"{there}gate_up_proj",), swapped, back, experts=True),
        Link(f"{here}fc2_EHI", (experts, hidden, inner), (f"{there}down_proj",), swapped, back, experts=True),
    ]


def _single_expert_links(
    here: str, there: str, names: tuple[str, str, str], numbers: range, inner: int, hidden: int
) -> list[Link]:
    """Three matrices for every expert, each [out, in]."""
    (gate, up, down), experts = names, len(numbers)

    def halves(fc1_EFH: Tensor) -> tuple[Tensor, ...]:
        return tuple(half for expert in fc1_EFH for half in expert.chunk(2))

    return [
        Link(
            f"{here}fc1_EFH",
            (experts, 2 * inner, hidden),
            tuple(f"{there}{expert}.{name}.weight" for expert in numbers for name in (gate, up)),
            halves,
            lambda parts: _stack(parts, 2 * experts).view(experts, 2 * inner, hidden),
            experts=True,
        ),
        Link(
            f"{here}fc2_EHI",
            (experts, hidden, inner),
            tuple(f"{there}{expert}.{down}.weight" for expert in numbers),
            lambda fc2_EHI: fc2_EHI.unbind(),
            lambda parts: _stack(parts, experts),
            experts=True,
        ),
    ]


def _only(parts: Iterable[Tensor]) -> Tensor:
    (part,) = parts
    return part


def _stack(parts: Iterable[Tensor], count: int) -> Tensor:
    """`torch.stack`, which holds one part at a time."""
    parts = iter(parts)
    first = next(parts)
    whole = first.new_empty((count, *first.shape))
    for number, part in enumerate(itertools.chain((first,), parts)):
        whole[number] = part
    return whole


def rows_name(name: str, first: int) -> str:
    """Name under which rows of a tensor are sent."""
    return f"{name}{_ROWS}{first}"


def whole_and_first(name: str) -> tuple[str, int | None]:
    """Name of the whole tensor, and the first of the rows that came under a name; None if it is the whole."""
    found, mark, first = name.partition(_ROWS)
    return found, int(first) if mark else None
