"""One function says which kernels a model gets and why; what cannot run is refused, and nothing but speed changes."""

import inspect
import itertools
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from megatron.core.extensions import transformer_engine as megatron_te
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.transformer_config import TransformerConfig

from moe.cpu.operators import rms_norm, swiglu
from moe.errors import MoeError
from moe.model.attention import attend
from moe.model.kernels import Host, choose, this_host
from moe.model.packing import segments
from moe.settings import KernelChoice

pytestmark = pytest.mark.slow

H200 = Host("H200", (9, 0), (("transformer_engine", "2.9.0"),))
BARE = Host("H200", (9, 0))


def test_a_gpu_with_the_packages_gets_them_all() -> None:
    kernels = choose("auto", "bfloat16", H200)
    assert (kernels.layers, kernels.attention, kernels.experts) == ("transformer_engine", "torch_varlen", "cuda")
    assert kernels.dispatcher == "alltoall"
    assert "moe_permute_fusion" in kernels.fusions


def test_packages_that_no_run_and_no_rehearsal_has_had_change_nothing() -> None:
    more = (("flash_attn", "2.8.3"), ("fused_weight_gradient_mlp_cuda", "0"))
    assert choose("auto", "bfloat16", Host("H200", (9, 0), (*H200.packages, *more))) == choose("auto", "bfloat16", H200)


def test_a_gpu_without_packages_gets_torchs_own() -> None:
    kernels = choose("auto", "bfloat16", BARE)
    assert (kernels.layers, kernels.attention, kernels.experts) == ("local", "torch_varlen", "cuda")
    assert "Transformer Engine is not installed" in kernels.reasons["layers"]
    assert choose("auto", "float32", BARE).attention == "torch_sdpa"
    assert choose("auto", "bfloat16", Host("V100", (7, 0))).attention == "torch_sdpa"
    assert choose("local", "bfloat16", H200).layers == "local"


def test_what_cannot_run_is_refused() -> None:
    for host in (BARE, Host()):
        with pytest.raises(MoeError, match=r"kernels='transformer_engine' cannot run here: .*; use 'auto'"):
            choose("transformer_engine", "bfloat16", host)


def test_this_machine_has_an_answer() -> None:
    for line in choose("auto", "float32", this_host()).lines():
        assert line.count("(") >= 1
    assert set(get_args(KernelChoice)) == {"auto", "local", "transformer_engine"}


def test_megatron_has_what_the_choices_name() -> None:
    """Transformer Engine itself cannot be imported here; the names and arguments that Megatron gives it can be seen."""
    fields = TransformerConfig.__dataclass_fields__
    assert all(name in fields for name in choose("auto", "bfloat16", H200).fusions)
    wanted = {"config", "hidden_size", "eps"}
    assert wanted <= set(inspect.signature(megatron_te.TENorm.__new__).parameters)
    assert {"num_experts", "moe_grouped_gemm"} <= set(
        inspect.signature(get_gpt_layer_with_transformer_engine_spec).parameters
    )


@pytest.mark.parametrize("chunk", [None, 7])
def test_segment_borders_cut_the_packed_row_where_attention_ends(chunk: int | None) -> None:
    """Flash attention on a GPU is told these borders: attending between them one by one is the same."""
    layout = segments([5, 1, 20, 9], chunk)
    q, k, v = (torch.randn(35, heads, 8, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    pairs = list(itertools.pairwise(layout.borders.tolist()))
    slow = []
    for start, end in pairs:
        one_q, one_k, one_v = (x[start:end].transpose(0, 1) for x in (q, k, v))
        one = F.scaled_dot_product_attention(one_q, one_k, one_v, is_causal=True, enable_gqa=True)
        slow.append(one.transpose(0, 1))
    torch.testing.assert_close(attend(q, k, v, layout), torch.cat(slow))
    assert layout.longest == max(end - start for start, end in pairs) == (chunk or 20)


def slow_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, borders: list[int]) -> torch.Tensor:
    """softmax(q kᵀ / √D) v of every segment in fp64, with all scores in memory."""
    outs = []
    for start, end in itertools.pairwise(borders):
        for_q, for_k, for_v = (x[start:end].transpose(0, 1) for x in (q, k, v))
        for_k, for_v = (x.repeat_interleave(len(for_q) // len(x), 0) for x in (for_k, for_v))
        scores = for_q @ for_k.transpose(1, 2) / q.shape[2] ** 0.5
        late = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
        outs.append((scores.masked_fill(late, -torch.inf).softmax(-1) @ for_v).transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_on_one_core_equals_its_formula(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    stream = torch.Generator().manual_seed(0)
    layout = segments([5, 1, 40, 9], 16)
    # strided, as a linear layer leaves them side by side, and with scores of dozens
    rows = (1 if dtype is torch.bfloat16 else 3) * torch.randn(55, 8, 8, generator=stream)
    inputs = [x.to(dtype).requires_grad_() for x in rows.split([4, 2, 2], dim=1)]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    (q, k, v), (exact_q, exact_k, exact_v) = inputs, exact_inputs
    fast, exact = attend(q, k, v, layout), slow_attention(exact_q, exact_k, exact_v, layout.borders.tolist())
    grad = torch.randn(55, 4, 8, generator=stream).to(dtype)
    close = {"rtol": 2e-2, "atol": 8e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(fast.double(), exact, **close)
    grads = torch.autograd.grad(fast, inputs, grad), torch.autograd.grad(exact, exact_inputs, grad.double())
    for ours, theirs in zip(*grads):
        torch.testing.assert_close(ours.double(), theirs, **close)


def test_what_is_not_a_number_stays_so_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose gradient is not finite has to be seen, and skipped."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for at in range(3):
        qkv = [torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(at)) for _ in range(3)]
        qkv[at][0, 0, 0] = torch.nan
        q, k, v = (x.requires_grad_() for x in qkv)
        out = attend(q, k, v, segments([6]))
        out.sum().backward()
        assert not all(x.grad.isfinite().all() for x in qkv)
    for bad in (torch.nan, torch.inf):
        assert not swiglu(torch.tensor([[bad, 1.0, 1.0, 1.0]])).isfinite().all()
        assert not rms_norm(torch.tensor([[bad, 1.0]]), torch.ones(2), 1e-5).isfinite().all()
