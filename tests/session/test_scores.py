"""Scores that `scalelab eval` prints of a task with partial credit: mean@k of rewards, pass@k of outcomes."""

from __future__ import annotations

import pytest

from scalelab.rollout.evaluation import Graded
from scalelab.session.evaluate_model import _scores

pytestmark = pytest.mark.slow  # `evaluate` takes seconds to import


def test_a_completion_passes_by_its_outcome_and_not_by_its_reward() -> None:
    """24 prompts with 4 completions each, all with a reward of 0.6 or more; one of 6 prompts' passed."""
    completions = [
        Graded(
            task="table",
            prompt_id=f"p{prompt}",
            reward=1.0 if passed else 0.6,
            outcome="passed" if passed else "failed",
            truncated=False,
            interrupted=False,
            tokens=10,
            detail="",
            parts={},
            answer="7",
        )
        for prompt in range(24)
        for passed in (prompt < 6, False, False, False)
    ]
    [scores] = _scores(completions, ["table"])
    assert scores.pass_at_k[4]["pass_at_k"] == pytest.approx(0.25)
    assert scores.pass_at_k[1]["pass_at_k"] == pytest.approx(6 / 96)
    assert scores.mean_at_k["mean_at_k"] == pytest.approx((6 * 1.0 + 90 * 0.6) / 96)
    assert scores.evaluation.pass_rate == scores.mean_at_k["mean_at_k"]
    assert scores.evaluation.measure == "mean reward", "rewards of 0.6 are no passes"
