"""The recipe on the real trainer: log-probs fit, and a step is the same however the trainer splits it."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scalelab.recipe import losses
from scalelab.recipe.losses import CISPO
from scalelab.recipe.step import StepLoss, summarise
from tests.helpers.moe_models import MOE, trainer
from tests.helpers.recipe_ranks import LOSSES, RECIPE, make_groups, steps, with_logprobs
from tests.helpers.recipe_step import build_step

pytestmark = pytest.mark.slow
DEADLINE = 200


Steps = list[tuple[float, float, dict[str, float | None]]]
"""Loss, norm of the gradient and figures of a step of every loss."""


@pytest.fixture(scope="module")
def whole() -> Steps:
    """One rank, all sequences in one micro-batch."""
    model = trainer(MOE)
    try:
        return steps(model)
    finally:
        model.close()


def assert_equal(one: Steps, other: Steps) -> None:
    for (loss, norm, figures), (split_loss, split_norm, split_figures), kind in zip(one, other, LOSSES, strict=True):
        assert split_loss == pytest.approx(loss, rel=1e-4, abs=1e-6), kind
        assert split_norm == pytest.approx(norm, rel=1e-4), kind
        assert split_figures == pytest.approx(figures, rel=1e-4, abs=1e-6), kind
        clipped = figures["ratio_clipped"]
        assert clipped is not None
        assert clipped > 0.0


def test_every_loss_of_the_lab_is_split_over_ranks() -> None:
    assert {type(loss) for loss in LOSSES} == set(losses.LOSSES)


def test_on_policy_ratios_are_one() -> None:
    model = trainer(MOE)
    try:
        sequences, _ = build_step(with_logprobs(make_groups(), model, 0.0), RECIPE, 0)
        result = model.train_step(sequences, StepLoss(CISPO()), lr=0.0)
    finally:
        model.close()
    figures = summarise(result.metrics)
    assert figures["ratio_min"] == pytest.approx(1.0, abs=1e-4)
    assert figures["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert figures["same_version_gap_mean"] == pytest.approx(0.0, abs=1e-5)
    assert figures["entropy"] is not None
    assert 0.0 < figures["entropy"] < np.log(MOE.vocab_size)
    assert result.grad_norm > 0.0


def test_a_step_does_not_depend_on_micro_batches_or_order(whole: Steps) -> None:
    model = trainer(MOE, tokens_per_micro_batch=64)
    try:
        split = steps(model, reverse=True)
    finally:
        model.close()
    assert_equal(whole, split)


def test_a_step_does_not_depend_on_context_parallelism(whole: Steps, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.recipe_ranks"]
    ranks = [subprocess.Popen([*command, str(rank), tmp_path], cwd=Path(__file__).parents[2]) for rank in range(2)]
    try:
        codes = [rank.wait(DEADLINE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0]
    for number in range(2):
        assert_equal(whole, pickle.loads((tmp_path / f"rank{number}.pkl").read_bytes()))
