"""The exchange of weights that a GPU makes: into the very tensors of the engine, in the form that its kernels read.

No GPU is here: the same copies run from host memory to host memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from scalelab.transfer import twin as module
from scalelab.transfer.twin import Twin

pytestmark = pytest.mark.slow


class Transposing(QuantizeMethodBase):
    """A method whose kernels read a weight the other way round; what packs experts is for a CPU's kernel alone."""

    moe_kernel = SimpleNamespace(
        fused_experts=SimpleNamespace(process_weights_after_loading=lambda layer: pytest.fail("packed for a CPU"))
    )

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        """Make none: the test does."""

    def apply(self, layer: nn.Module, *args: Any, **_: Any) -> torch.Tensor:
        """Multiply."""
        return args[0] @ layer.weight

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Turn the weight around."""
        layer.register_parameter("weight", Parameter(layer.weight.data.t().contiguous(), requires_grad=False))


def loaded(value: float) -> torch.Tensor:
    return value + torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("method", [None, Transposing()])
def test_new_weights_go_into_the_tensors_that_graphs_were_captured_with(
    method: QuantizeMethodBase | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    pinned: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    layer, other = nn.Module(), nn.Module()
    for one in (layer, other):
        one.quant_method = method
        one.register_parameter("weight", Parameter(loaded(0.0), requires_grad=False))
        module._process(one)
    forms = {"weight": Parameter(torch.empty(2, 3, device="meta"), requires_grad=False)}
    twin = object.__new__(Twin)
    twin._layers, twin._model, twin._tied = [(layer, other, forms)], other, False
    captured, place = layer.weight, layer.weight.data_ptr()
    for step in (1.0, 2.0):  # the second exchange finds host memory again, not what the device got
        twin.begin()
        with torch.no_grad():
            other.weight.copy_(loaded(step))
        twin._loaded.add("weight")
        twin.end()
        expected = loaded(step) if method is None else loaded(step).t()
        assert not torch.equal(layer.weight, expected), "nothing changes before the exchange"
        twin.exchange()
        assert layer.weight is captured
        assert layer.weight.data_ptr() == place
        assert torch.equal(layer.weight, expected)
        assert other.weight.shape == (2, 3), "the host's room stays in the form that loaders fill"
    assert len(pinned) == 2
