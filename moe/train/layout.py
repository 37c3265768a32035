"""Layouts that a model and a number of ranks allow; importable without torch, so that a run is refused early.

A rank outside the experts is one of tensor × pipeline × context × data, inside them of expert_tensor × expert ×
pipeline × expert-data ("folded" parallelism): both products are the number of ranks, so an expert-parallel group may
span tensor-, context- and data-parallel ranks.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

from moe.errors import MoeError
from moe.model.architectures import Architecture, architecture
from moe.settings import Layout


def check_layout(hf_config: dict[str, Any], layout: Layout, world: int) -> None:
    """Refuse a layout that does not cut this model, or that these ranks cannot form.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        layout: how the model is to be cut.
        world: number of trainer processes.

    Raises:
        MoeError: naming the rule broken and what is nearest among what is valid.
    """
    arch = architecture(hf_config)
    for axis, cut in _cuts(arch, hf_config).items():
        size = getattr(layout, axis)
        for what, count in cut:
            if count % size:
                near = " or ".join(f"{axis}={n}" for n in _around(size, _divisors(math.gcd(*(n for _, n in cut)))))
                raise MoeError(f"layout.{axis}={size} does not divide {count} {what}: nearest valid {near}")
    body = layout.tensor * layout.pipeline * layout.context
    if world % body:
        product = f"tensor × pipeline × context = {layout.tensor} × {layout.pipeline} × {layout.context}"
        raise MoeError(_misfit(hf_config, layout, world, product))
    if world % (layout.pipeline * layout.expert * layout.expert_tensor):
        product = f"pipeline × expert × expert_tensor = {layout.pipeline} × {layout.expert} × {layout.expert_tensor}"
        raise MoeError(_misfit(hf_config, layout, world, product))


def nearest_layout(hf_config: dict[str, Any], layout: Layout, world: int) -> Layout:
    """The valid layout of so many ranks whose sizes are, as ratios, closest to those wanted."""
    cuts = _cuts(architecture(hf_config), hf_config)
    wanted = asdict(layout)
    choices = []
    for axis in wanted:
        limit = math.gcd(*(count for _, count in cuts[axis])) if axis in cuts else world
        choices.append([size for size in _divisors(world) if limit % size == 0])
    valid = [
        found for sizes in itertools.product(*choices) if _fits(found := Layout(**dict(zip(wanted, sizes))), world)
    ]
    return min(valid, key=lambda found: sum(abs(math.log(n / wanted[axis])) for axis, n in asdict(found).items()))


def _cuts(arch: Architecture, hf_config: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Numbers that each axis of a layout has to divide; an axis without any can be cut freely."""
    fields = arch.fields
    tensor = [("key/value heads", fields["num_query_groups"]), ("words of the vocabulary", hf_config["vocab_size"])]
    if any(not layer.experts for layer in arch.layers):
        tensor.append(("inner features of the feed-forward", fields["ffn_hidden_size"]))
    if "kv_lora_rank" in fields:
        tensor.append(("latent attention", 1))
    if any(layer.qk_norm == "wide" for layer in arch.layers):
        tensor.append(("norm over all heads", 1))
    if fields.get("moe_shared_expert_intermediate_size"):
        tensor.append(("inner features of the shared expert", fields["moe_shared_expert_intermediate_size"]))
    # what has no experts has one feed-forward that layout.tensor cuts
    experts = fields.get("num_moe_experts", 1)
    inner = fields["moe_ffn_hidden_size"] if experts > 1 else 1
    return {
        "tensor": tensor,
        "pipeline": [("layers", len(arch.layers))],
        "expert": [("experts" if experts > 1 else "feed-forward of a model without experts", experts)],
        "expert_tensor": [("inner features of an expert" if experts > 1 else "expert of a model without any", inner)],
    }


def ranks_per_copy(layout: Layout) -> int:
    """Ranks that together hold the model once; trainers come in multiples of it.

    Experts are spread over ranks of a stage that the other layers use for tensors, sequences and data.
    """
    return layout.pipeline * math.lcm(layout.tensor * layout.context, layout.expert * layout.expert_tensor)


def _fits(layout: Layout, world: int) -> bool:
    body = layout.tensor * layout.pipeline * layout.context
    return world % body == 0 and world % (layout.pipeline * layout.expert * layout.expert_tensor) == 0


def _misfit(hf_config: dict[str, Any], layout: Layout, world: int, product: str) -> str:
    step = ranks_per_copy(layout)
    ranks = " or ".join(str(n) for n in (world // step * step, world // step * step + step) if n)
    sizes = ", ".join(f"{axis}={n}" for axis, n in asdict(nearest_layout(hf_config, layout, world)).items())
    return f"{world} trainer ranks are not a multiple of {product}; nearest valid {ranks} ranks, or Layout({sizes})"


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _around(size: int, valid: list[int]) -> list[int]:
    """The largest valid size below and the smallest above, as far as there are any."""
    return [n for n in valid if n < size][-1:] + [n for n in valid if n > size][:1]
