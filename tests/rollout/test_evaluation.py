"""An evaluation's figures equal those of loops written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.rollout.evaluation import Score, evaluate, mean_at_k

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
    assert mean_at_k(np.array(rewards)) == pytest.approx((mean, slow), abs=1e-7)  # the slow root of rounding errors


def test_error_of_single_samples_is_the_textbook_one() -> None:
    rewards_P1 = np.random.default_rng(0).random((200, 1))
    assert mean_at_k(rewards_P1)[1] == pytest.approx(rewards_P1.std(ddof=1) / math.sqrt(200))


def test_copies_of_a_completion_leave_the_error_as_it_is() -> None:
    rewards_P1 = np.random.default_rng(1).random((50, 1))
    assert mean_at_k(np.repeat(rewards_P1, 16, axis=1)) == pytest.approx(mean_at_k(rewards_P1))


@given(st.data(), st.integers(2, 6), st.integers(1, 4))
def test_tasks_are_told_apart_whatever_the_order(data: st.DataObject, prompts: int, k: int) -> None:
    scores = [
        Score(
            task, f"{task}{prompt}", float(passed), "passed" if passed else "failed", truncated, not truncated, length
        )
        for task in ("math", "code")
        for prompt in range(prompts)
        for _ in range(k)
        for passed, truncated, length in [data.draw(st.tuples(st.booleans(), st.booleans(), st.integers(1, 99)))]
    ]
    for result in evaluate(data.draw(st.permutations(scores))):
        mine = [score for score in scores if score.task == result.task]
        assert (result.n_prompts, result.k) == (prompts, k)
        assert result.pass_rate == pytest.approx(sum(score.reward for score in mine) / len(mine))
        assert result.truncated == pytest.approx(sum(score.truncated for score in mine) / len(mine))
        assert result.interrupted == pytest.approx(1 - result.truncated)
        assert result.mean_length == pytest.approx(sum(score.length for score in mine) / len(mine))
        assert sum(result.outcomes.values()) == len(mine)
        assert result.outcomes.get("passed", 0) == sum(score.reward for score in mine)


def test_a_lost_completion_is_not_averaged_away() -> None:
    scores = [Score("math", prompt, 1.0, "passed", False, False, 5) for prompt in "aabbb"]
    with pytest.raises(LabError, match=r"math: 2 prompts with \[2, 3\] completions"):
        evaluate(scores)
