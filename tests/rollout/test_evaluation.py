"""An evaluation's figures equal those of loops written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.recipe.types import Rollout
from scalelab.rollout.evaluation import Graded, evaluate
from tasks.scores import mean_at_k

rewards = st.integers(2, 8).flatmap(
    lambda prompts: st.integers(1, 5).flatmap(
        lambda k: st.lists(
            st.lists(st.sampled_from([0.0, 1.0]), min_size=k, max_size=k), min_size=prompts, max_size=prompts
        )
    )
)


@given(rewards)
def test_error_is_the_cluster_robust_error_of_the_literature(rewards: list[list[float]]) -> None:
    samples = [(prompt, reward) for prompt, of_prompt in enumerate(rewards) for reward in of_prompt]
    mean = sum(reward for _, reward in samples) / len(samples)
    covariance = sum((a - mean) * (b - mean) for p, a in samples for q, b in samples if p == q) / len(samples) ** 2
    slow = math.sqrt(covariance * len(rewards) / (len(rewards) - 1))
    score = mean_at_k(rewards)
    assert (score.value, score.stderr) == pytest.approx((mean, slow), abs=1e-7)  # the slow root of rounding errors


def test_error_of_single_samples_is_the_textbook_one() -> None:
    rewards_P1 = np.random.default_rng(0).random((200, 1))
    assert mean_at_k(rewards_P1.tolist()).stderr == pytest.approx(rewards_P1.std(ddof=1) / math.sqrt(200))


def test_copies_of_a_completion_leave_the_error_as_it_is() -> None:
    rewards_P1 = np.random.default_rng(1).random((50, 1))
    one, many = mean_at_k(rewards_P1.tolist()), mean_at_k(np.repeat(rewards_P1, 16, axis=1).tolist())
    assert (many.value, many.stderr) == pytest.approx((one.value, one.stderr))


def rollout(
    task: str, prompt: str, passed: bool, truncated: bool = False, length: int = 5, outcome: str | None = None
) -> Graded:
    tokens = np.zeros(length, np.int32)
    whole = Rollout(
        prompt_id=f"{task}{prompt}",
        task=task,
        prompt_ids=np.zeros(1, np.int32),
        completion_ids=tokens,
        logprobs_T=tokens.astype(np.float32),
        forced_T=tokens.astype(bool),
        spans=((0, 0, length),),
        reward=float(passed),
        outcome=outcome or ("passed" if passed else "failed"),
        truncated=truncated,
        interrupted=not truncated,
    )
    return Graded.of(whole)


@given(st.data(), st.integers(2, 6), st.integers(1, 4))
def test_tasks_are_told_apart_whatever_the_order(data: st.DataObject, prompts: int, k: int) -> None:
    rollouts = [
        rollout(task, str(prompt), passed, truncated, length)
        for task in ("math", "code")
        for prompt in range(prompts)
        for _ in range(k)
        for passed, truncated, length in [data.draw(st.tuples(st.booleans(), st.booleans(), st.integers(1, 99)))]
    ]
    for task, result in evaluate(data.draw(st.permutations(rollouts))).items():
        mine = [one for one in rollouts if one.task == task]
        assert (result.task, result.n_prompts, result.k) == (task, prompts, k)
        assert result.pass_rate == pytest.approx(sum(one.reward for one in mine) / len(mine))
        assert result.truncated == pytest.approx(sum(one.truncated for one in mine) / len(mine))
        assert result.interrupted == pytest.approx(1 - result.truncated)
        assert result.mean_length == pytest.approx(sum(one.tokens for one in mine) / len(mine))
        assert sum(result.outcomes.values()) == len(mine)
        assert result.outcomes.get("passed", 0) == sum(one.reward for one in mine)


def test_a_lost_completion_is_not_averaged_away() -> None:
    with pytest.raises(LabError, match="math: 2 prompts with 2 or 3 completions each could"):
        evaluate([rollout("math", prompt, True) for prompt in "aabbb"])
    with pytest.raises(LabError, match="math: no completion could be graded; it takes two"):
        evaluate([rollout("math", prompt, False, outcome="error") for prompt in "aabb"])


def test_prompts_that_the_verifier_failed_on_are_left_out_and_counted() -> None:
    rollouts = [rollout("math", prompt, prompt != "a") for prompt in "aabbcc"]
    rollouts[2] = rollout("math", "b", False, outcome="error")
    result = evaluate(rollouts)["math"]
    assert (result.n_prompts, result.pass_rate) == (2, 0.5)
    assert result.outcomes == {"failed": 2, "error": 1, "passed": 3}
