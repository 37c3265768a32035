"""Attention over packed sequences with torch's own kernels: rotary embedding, chunks, temperature.

Takes the place of Megatron's core attention, which on a CPU has neither packed sequences nor Llama-4's
chunked attention. It also rotates queries and keys itself: Megatron's rotation of packed sequences loops
over them one by one and recomputes sines per layer.

Axes: _T packed tokens, _P places of padded blocks, _D head size, _F half of it; heads are written h, key heads k.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from moe.cpu.operators import kernels_fit
from moe.exchange import earlier_rows
from moe.model.architectures import AttentionPlan
from moe.model.packing import Packed, Segments

SHORT = 1024
"""Tokens of a segment beyond which torch's attention, which works in tiles, is faster on a core."""


class PackedAttention(MegatronModule):
    """Megatron core attention for one packed row; built by the layer spec with its `AttentionPlan`."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        plan: AttentionPlan,
        kernel: str,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config)
        self.plan, self.kernel, self.ranks = plan, kernel, pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        packed_seq_params: Packed,
        **_: Any,
    ) -> Tensor:
        """Attend within the segments of ``packed_seq_params``.

        Args:
            query: [T, 1, h, D].
            key: [T, 1, k, D].
            value: [T, 1, k, V], V ≤ D.
            attention_mask: None; causality is built in.
            packed_seq_params: the micro-batch.

        Returns:
            [T, 1, h·V].
        """
        plan, batch = self.plan, packed_seq_params
        q_ThD, k_TkD, v_TkD = query.squeeze(1), key.squeeze(1), value.squeeze(1)
        narrower = q_ThD.shape[-1] - v_TkD.shape[-1]
        if narrower:  # kernels want one size of all three
            v_TkD = F.pad(v_TkD, (0, narrower))
        if plan.inv_freq is not None:
            turn = batch.turn(plan.inv_freq, plan.interleaved, plan.magnitude)
            q_ThD, k_TkD = (_rotate_part(x, plan.first, *turn, plan.interleaved) for x in (q_ThD, k_TkD))
        if plan.scale != 1:
            q_ThD = q_ThD * plan.scale
        if plan.temperature is not None:
            q_ThD = q_ThD * temperature(batch.positions_T, *plan.temperature).to(q_ThD.dtype)[:, None, None]
        layout = batch.layouts[plan.chunk]
        if layout.exchanged:
            context = attend_across(q_ThD, k_TkD, v_TkD, layout, self.ranks, self.kernel)
        else:
            context = attend(q_ThD, k_TkD, v_TkD, layout, self.kernel)
        if narrower:
            context = context[..., :-narrower]
        return context.flatten(1).unsqueeze(1)


def _rotate_part(x_ThD: Tensor, first: int, cos_T1D: Tensor, sin_T1F: Tensor, interleaved: bool) -> Tensor:
    """Rotate as many features of each head as there are cosines, and leave the others."""
    turning = cos_T1D.shape[-1]
    if turning == x_ThD.shape[-1]:
        return rotate(x_ThD, cos_T1D, sin_T1F, interleaved)
    before, part, behind = x_ThD.split([first, turning, x_ThD.shape[-1] - first - turning], dim=-1)
    return torch.cat([before, rotate(part, cos_T1D, sin_T1F, interleaved), behind], dim=-1)


def rotate(x_ThD: Tensor, cos_T1D: Tensor, sin_T1F: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding in fp32, from the cosine of every feature and the sine of every pair (F = D/2)."""
    return _Rotate.apply(x_ThD, cos_T1D, sin_T1F, interleaved)


class _Rotate(torch.autograd.Function):
    """Map pairs (a, b) to (a·cos − b·sin, b·cos + a·sin); the backward pass turns the other way."""

    @staticmethod
    def forward(ctx: Any, x_ThD: Tensor, cos_T1D: Tensor, sin_T1F: Tensor, interleaved: bool) -> Tensor:
        ctx.cos, ctx.sin, ctx.interleaved = cos_T1D, sin_T1F, interleaved
        return _rotated(x_ThD, cos_T1D, sin_T1F, 1, interleaved)

    @staticmethod
    def backward(ctx: Any, grad_ThD: Tensor) -> tuple[Tensor, None, None, None]:
        return _rotated(grad_ThD, ctx.cos, ctx.sin, -1, ctx.interleaved), None, None, None


def _rotated(x_ThD: Tensor, cos_T1D: Tensor, sin_T1F: Tensor, way: int, interleaved: bool) -> Tensor:
    if kernels_fit(x_ThD):
        from moe.cpu import kernels

        out_ThD = torch.empty(x_ThD.shape, dtype=x_ThD.dtype)
        given = kernels.arrays(x_ThD, cos_T1D.squeeze(1), sin_T1F.squeeze(1))
        kernels.rotate_pairs(*given, way, interleaved, *kernels.arrays(out_ThD))
        return out_ThD

    def pair(x: Tensor) -> tuple[Tensor, ...]:
        return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)

    wide = x_ThD.float()
    turned = torch.empty_like(wide, memory_format=torch.contiguous_format)
    (a, b), (to_a, to_b) = pair(wide), pair(turned)
    torch.mul(wide, cos_T1D, out=turned)
    to_a.addcmul_(b, sin_T1F, value=-way)
    to_b.addcmul_(a, sin_T1F, value=way)
    return turned.to(x_ThD.dtype)


def temperature(positions_T: Tensor, floor: float, scale: float) -> Tensor:
    """Llama-4's factor on the query of a layer without rotary embedding, growing with the position."""
    return torch.log1p(torch.floor((positions_T.float() + 1) / floor)) * scale + 1


def attend(q_ThD: Tensor, k_TkD: Tensor, v_TkD: Tensor, layout: Segments, kernel: str = "torch_sdpa") -> Tensor:
    """Causal attention within segments, [T, h, D]; several query heads share a key head (`moe.model.kernels`)."""
    if kernel != "torch_sdpa":
        return _flash(q_ThD, k_TkD, v_TkD, layout)
    if kernels_fit(q_ThD, k_TkD, v_TkD) and layout.longest <= SHORT:
        from moe.cpu.attention import attend_segments

        return attend_segments(q_ThD, k_TkD, v_TkD, layout.borders)
    if layout.even:
        q, k, v = (x.unflatten(0, layout.shapes[0]).transpose(1, 2) for x in (q_ThD, k_TkD, v_TkD))
        return _attend(q, k, v).transpose(1, 2).flatten(0, 1)
    sizes = [count * length for count, length in layout.shapes]
    outputs = []
    for shape, *qkv in zip(layout.shapes, *(_Pad.apply(x, layout).split(sizes) for x in (q_ThD, k_TkD, v_TkD))):
        q, k, v = (x.unflatten(0, shape).transpose(1, 2) for x in qkv)
        outputs.append(_attend(q, k, v).transpose(1, 2).flatten(0, 1))
    return _Unpad.apply(torch.cat(outputs), layout)


def _flash(q_ThD: Tensor, k_TkD: Tensor, v_TkD: Tensor, layout: Segments) -> Tensor:
    """Flash attention on the packed tokens without padding; CUDA only."""
    from torch.nn.attention.varlen import varlen_attn

    where = (layout.borders, layout.borders, layout.longest, layout.longest)
    return varlen_attn(q_ThD, k_TkD, v_TkD, *where, window_size=(-1, 0), enable_gqa=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's attention, [segments, heads, length, D]; causal, or masked by a bias."""
    # torch's CPU kernel takes 3.5 times as long backwards in bf16 as in fp32
    wide = [x.float() if x.device.type == "cpu" else x for x in (q, k, v)]
    out = F.scaled_dot_product_attention(
        wide[0], wide[1], wide[2], attn_mask=bias, is_causal=bias is None, enable_gqa=True
    )
    return out.to(q.dtype)


def attend_across(
    q_ThD: Tensor, k_TkD: Tensor, v_TkD: Tensor, layout: Segments, ranks: dist.ProcessGroup, kernel: str = "torch_sdpa"
) -> Tensor:
    """Causal attention under context parallelism: a rank's first tokens look back at earlier ranks' tokens.

    Keys and values of all ranks are gathered, layer by layer; only what the entering tokens need is kept.
    """
    kv_T2kD = torch.stack([k_TkD, v_TkD], dim=1)
    # also where no token enters: the other ranks wait for this one's gradient
    k, v = torch.cat([earlier_rows(kv_T2kD, layout.before, ranks), kv_T2kD]).unbind(1)
    new, seen = layout.entering, layout.before + layout.entering
    outputs = []
    if new:
        q1, k1, v1 = (x.transpose(0, 1).unsqueeze(0) for x in (q_ThD[:new], k[:seen], v[:seen]))
        outputs.append(_attend(q1, k1, v1, causal_lower_right(new, seen)).squeeze(0).transpose(0, 1))
    if new < len(q_ThD):
        outputs.append(attend(q_ThD[new:], k[seen:], v[seen:], layout, kernel))
    return torch.cat(outputs)


class _Pad(torch.autograd.Function):
    """Copy packed rows to padded places; padding receives no gradient, so the backward pass selects."""

    @staticmethod
    def forward(ctx: Any, x_T: Tensor, layout: Segments) -> Tensor:
        ctx.layout = layout
        return x_T.index_select(0, layout.packed_to_padded_P)

    @staticmethod
    def backward(ctx: Any, grad_P: Tensor) -> tuple[Tensor, None]:
        return grad_P.index_select(0, ctx.layout.padded_to_packed_T), None


class _Unpad(torch.autograd.Function):
    """Copy padded places back to packed rows."""

    @staticmethod
    def forward(ctx: Any, x_P: Tensor, layout: Segments) -> Tensor:
        ctx.layout = layout
        return x_P.index_select(0, layout.padded_to_packed_T)

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None]:
        layout = ctx.layout
        grad_P = grad_T.new_zeros(len(layout.packed_to_padded_P), *grad_T.shape[1:])
        return grad_P.index_copy_(0, layout.padded_to_packed_T, grad_T), None
