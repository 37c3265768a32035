"""An optimiser of the user's own in AdamW's place."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moe.settings import OptimizerConfig
from tests.helpers.moe_models import MOE, OPTIMIZER, batch, trainer, weighted, weights

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class ByHand:
    """AdamW as its paper has it (arXiv 1711.05101, Algorithm 2), number by number."""

    beta: float = 0.9
    other: float = 0.95

    def update(
        self,
        values: torch.Tensor,
        gradient: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        *,
        step: int,
        lr: float,
        decay: float,
    ) -> None:
        first.copy_(self.beta * first + (1 - self.beta) * gradient)
        second.copy_(self.other * second + (1 - self.other) * gradient**2)
        mean, square = first / (1 - self.beta**step), second / (1 - self.other**step)
        values.copy_(values - lr * (mean / (square.sqrt() + 1e-15) + decay * values))


@dataclass(frozen=True)
class Sign:
    """The sign of the gradient, without memory."""

    def update(
        self,
        values: torch.Tensor,
        gradient: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        *,
        step: int,
        lr: float,
        decay: float,
    ) -> None:
        values.sub_(lr * gradient.sign())


def trained(steps: int, **optimizer: Any) -> dict[str, torch.Tensor]:
    ours = trainer(MOE, optimizer=replace(OPTIMIZER, **optimizer))
    for step in range(steps):
        ours.train_step(batch(step), weighted)
    found = weights(ours)
    ours.close()
    return found


def test_adamw_by_hand_takes_the_built_in_steps() -> None:
    built_in, own = trained(3), trained(3, rule=ByHand())
    for name, tensor in built_in.items():
        torch.testing.assert_close(own[name], tensor, rtol=0, atol=2e-6)


def test_a_rule_decides_every_step() -> None:
    before, after = trained(0), trained(1, rule=Sign(), warmup_steps=0, lr=0.01)
    moved = {name: (after[name] - before[name]).abs() for name in before}
    assert all(((m < 1e-8) | ((m - 0.01).abs() < 1e-6)).all() for m in moved.values())
    assert max(m.max() for m in moved.values()) > 0.009


def test_a_rule_s_memory_is_kept_in_checkpoints(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": replace(OPTIMIZER, rule=ByHand())}
    ours = trainer(MOE, **settings)
    ours.train_step(batch(0), weighted)
    ours.train_step(batch(1), weighted)
    ours.save(tmp_path / "step")
    ours.train_step(batch(2), weighted)
    wanted = weights(ours)
    ours.close()
    ours = trainer(MOE, **settings)
    ours.load(tmp_path / "step")
    ours.train_step(batch(2), weighted)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights(ours).items())
    ours.close()


def test_a_rule_and_a_saving_of_memory_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"OptimizerConfig.rule keeps its memory in float32"):
        OptimizerConfig(rule=Sign(), moments="bfloat16")
