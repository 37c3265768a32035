"""Activations computed again in the backward pass change neither loss, gradients nor the count of expert loads."""

from collections.abc import Callable

import pytest
import torch
from megatron.core.transformer.moe.moe_layer import MoELayer

from moe.model.decoder import DecoderConfig
from moe.train.trainer import Trainer
from tests.helpers.moe_models import DENSE, MOE, batch, weighted, weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_recomputing_changes_nothing(make: Callable[..., Trainer], model: DecoderConfig) -> None:
    told, runs = {}, {}
    for how in ("none", "selective", "full"):
        one = make(model, recompute=how, balance=0.1 if model is MOE else 0.0)
        attention = one.model.decoder.layers[0].self_attention.core_attention
        calls: list[None] = []
        attention.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        result = one.train_step(batch(0), weighted)
        layers = [module for module in one.model.modules() if isinstance(module, MoELayer)]
        assert len(layers) == (0 if model is DENSE else len(one.model.routers))
        assert not any(layer.token_dispatcher.probs.requires_grad for layer in layers), "a graph outlives its step"
        runs[how] = len(calls)
        told[how] = (result, {name: p.main_grad.clone() for name, p in one.model.named_parameters()}, weights(one))
    assert runs["selective"] == runs["full"] == 2 * runs["none"]
    result, gradients, after = told["none"]
    for other, other_gradients, other_after in (told["selective"], told["full"]):
        assert other.loss == result.loss
        assert other.metrics == result.metrics
        assert other.grad_norm == pytest.approx(result.grad_norm, rel=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-5, atol=1e-7)
        for name, tensor in after.items():
            torch.testing.assert_close(other_after[name], tensor, rtol=0, atol=1e-6)
