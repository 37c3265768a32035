"""A loss sees what its class attribute names of every token's completion, and nothing where a token is masked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.recipe.losses import CISPO, GRPO, check_sees
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.step import StepLoss, summarise
from scalelab.recipe.types import Rollout
from tests.helpers.recipe_step import build_step

torch = pytest.importorskip("torch")


@dataclass(frozen=True)
class Nosy(CISPO):  # type: ignore[misc]  # pydantic's dataclass
    """CISPO that keeps what it was shown."""

    sees: ClassVar[tuple[str, ...]] = ("reward", "staleness", "part digits", "task math", "task code")
    shown: ClassVar[list[Any]] = []

    def __call__(self, tokens: Any) -> Any:
        self.shown.append(tokens)
        return super().__call__(tokens)


def rollout(reward: float, **more: Any) -> Rollout:
    """Three sampled tokens after a prompt of two, the last of them forced; of versions 3, 4 and 4."""
    return Rollout(
        prompt_id="math/1",
        task="math",
        prompt_ids=np.array([1, 2]),
        completion_ids=np.array([3, 4, 5]),
        logprobs_T=np.full(3, -1.0, np.float32),
        forced_T=np.array([False, False, True]),
        spans=((3, 0, 1), (4, 1, 3)),
        reward=reward,
        outcome="passed" if reward == 1 else "failed",
        **more,
    )


def test_a_loss_sees_reward_staleness_parts_task_and_entropy_of_unmasked_tokens() -> None:
    recipe = Recipe(prompts_per_step=1, generations_per_prompt=2, loss=Nosy(), length_control=None)
    [first, second], _ = build_step([[rollout(0.25, parts={"digits": 0.75}), rollout(1.0)]], recipe, 6)
    expected = {
        "reward": [0, 0, 0.25, 0.25, 0],
        "staleness": [0, 0, 3, 2, 0],
        "part digits": [0, 0, 0.75, 0.75, 0],
        "task math": [0, 0, 1, 1, 0],
        "task code": [0, 0, 0, 0, 0],
    }
    assert {name: first.extras[name].tolist() for name in expected} == expected
    assert second.extras["reward"].tolist() == [0, 0, 1, 1, 0]
    assert second.extras["part digits"].tolist() == [0] * 5
    extras = {name: torch.tensor(values) for name, values in first.extras.items()}
    entropy_T = torch.arange(5.0)
    StepLoss(recipe.loss)(torch.full((5,), -1.5, requires_grad=True), entropy_T, extras)
    [tokens] = Nosy.shown
    assert {name: values.tolist() for name, values in tokens.seen.items()} == expected
    assert tokens.entropy_T is entropy_T


def test_the_kl_to_the_first_policy_is_deepseek_s_estimate_of_every_unmasked_token() -> None:
    recipe = Recipe(prompts_per_step=1, generations_per_prompt=2, loss=GRPO(beta=0.25), length_control=None)
    [first, _], _ = build_step([[rollout(0.0), rollout(1.0)]], recipe, 6)
    assert "reference" not in first.extras, "the trainer knows it"
    extras = {name: torch.tensor(values) for name, values in first.extras.items()}
    extras["reference"] = torch.tensor([float("nan"), 9.0, -1.2, -0.4, 9.0])
    logprobs_T = torch.tensor([0.0, -1.0, -1.0, -0.7, -2.0], requires_grad=True)
    loss, metrics = StepLoss(recipe.loss)(logprobs_T, torch.zeros(5), extras)
    plain, _ = StepLoss(GRPO())(logprobs_T, torch.zeros(5), extras)
    wanted = [math.exp(r - p) - (r - p) - 1 for r, p in ((-1.2, -1.0), (-0.4, -0.7))]
    weights = first.extras["weights"][2:4]
    assert (loss - plain).item() == pytest.approx(0.25 * sum(weights * wanted), rel=1e-5)
    assert metrics["reference_kl_sum"].item() == pytest.approx(sum(wanted), rel=1e-5)
    assert summarise({name: float(value) for name, value in metrics.items()})["reference_kl"] == pytest.approx(
        sum(wanted) / 2, rel=1e-5
    )
    [gradient] = torch.autograd.grad(loss - plain, logprobs_T)
    slopes = [1 - math.exp(r - p) for r, p in ((-1.2, -1.0), (-0.4, -0.7))]
    assert gradient.tolist() == pytest.approx([0, 0, *(0.25 * weights * slopes), 0], abs=1e-6)


def test_built_in_losses_carry_nothing_more_to_the_trainer() -> None:
    recipe = Recipe(prompts_per_step=1, generations_per_prompt=2, length_control=None)
    [one, _], _ = build_step([[rollout(0.0), rollout(1.0)]], recipe, 6)
    assert one.extras.keys() == {"old_logprobs", "advantages", "weights", "sequence_ids", "same_version"}


@pytest.mark.parametrize("name", ["rewards", "task maths", "part", "references"])
def test_what_there_is_not_to_see_is_refused_before_a_run(name: str) -> None:
    @dataclass(frozen=True)
    class Blind(CISPO):  # type: ignore[misc]
        sees = (name,)

    with pytest.raises(ValueError, match="there are: reward, staleness, reference, part NAME, task math, task code"):
        check_sees(Blind(), ["math", "code"])
    run = resolve("quickstart").run
    with pytest.raises((ValueError, LabError), match=r"Blind\.sees"):
        replace(run, recipe=replace(run.recipe, loss=Blind()))
