"""The learning rate of every step equals that of torch's own schedulers, and settings that contradict are refused."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from moe.settings import OptimizerConfig
from scalelab.experiment import resolve

pytestmark = pytest.mark.slow  # torch


def of_torch(config: OptimizerConfig, steps: int) -> list[float]:
    """Learning rates of torch's schedulers in a row: a linear warm-up, then the decay."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    assert config.decay_until is not None
    after, end = config.decay_until - config.warmup_steps, config.lr_at_end
    stable = round(0.8 * after)
    decays: dict[str, list[LRScheduler]] = {
        "linear": [LinearLR(optimizer, 1.0, end, after)],
        "cosine": [CosineAnnealingLR(optimizer, after, end * config.lr)],
        "wsd": [LinearLR(optimizer, 1.0, 1.0, stable), LinearLR(optimizer, 1.0, end, after - stable)],
    }
    parts, borders = decays[config.decay], [config.warmup_steps + stable] if config.decay == "wsd" else []
    if config.warmup_steps:
        # SequentialLR restarts every part at its own first step, which is the warm-up's last step plus one
        parts = [LinearLR(optimizer, 1 / config.warmup_steps, 1.0, config.warmup_steps - 1 or 1), *parts]
        borders = [config.warmup_steps, *borders]
    schedule = SequentialLR(optimizer, parts, borders)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(
    st.sampled_from(["linear", "cosine", "wsd"]),
    st.sampled_from([0, 2, 5, 20]),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_every_step_s_learning_rate_is_that_of_torch_s_schedulers(
    decay: Literal["linear", "cosine", "wsd"], warmup: int, fifths: int, end: float
) -> None:
    config = OptimizerConfig(lr=1e-3, warmup_steps=warmup, decay=decay, decay_until=warmup + 5 * fifths, lr_at_end=end)
    ours = [config.rate(step) for step in range(warmup + 5 * fifths)]
    assert ours == pytest.approx(of_torch(config, len(ours)), rel=1e-9, abs=1e-15)
    assert config.rate(10**6) == pytest.approx(1e-3 * end)


def test_a_decay_needs_an_end_after_the_warm_up() -> None:
    for settings, said in (
        ({"decay": "cosine"}, "bind both"),
        ({"decay_until": 10}, "or neither"),
        ({"decay": "wsd", "decay_until": 100, "warmup_steps": 100}, "must come after warmup_steps"),
    ):
        with pytest.raises(ValueError, match=said):
            OptimizerConfig(**settings)


def test_an_experiment_binds_its_decay_and_keeps_its_base_model() -> None:
    from scalelab.rollout.tokenizer import build_tokenizer
    from scalelab.start.base_model import cache_key

    plain = resolve("quickstart").run
    decaying = resolve("quickstart", sets=["OptimizerConfig.decay=cosine", "OptimizerConfig.decay_until=150"]).run
    assert decaying.trainer.optimizer.rate(149) < 0.2 * decaying.trainer.optimizer.lr
    tokenizer = build_tokenizer(["1 + 1 = 2"], 261)
    assert cache_key(plain, tokenizer) == cache_key(decaying, tokenizer)
