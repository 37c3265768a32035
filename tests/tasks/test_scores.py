"""mean@k and pass@k: against enumeration, and through `evaluate` without a network."""

import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tasks.metrics
from tasks.errors import TaskError
from tasks.scores import mean_at_k, pass_at_k

groups = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=7), min_size=1, max_size=5)


@given(groups, st.integers(1, 3))
def test_pass_at_k_is_the_share_of_subsets_in_which_one_passes(rewards: list[list[float]], k: int) -> None:
    chances = [np.mean([max(subset) for subset in combinations(group, k)]) for group in rewards]
    assert pass_at_k(rewards, k).value == pytest.approx(np.mean(chances))


@given(groups)
def test_mean_at_k_is_pass_at_1_and_its_error_is_that_of_a_mean(rewards: list[list[float]]) -> None:
    score, means = mean_at_k(rewards), [np.mean(group) for group in rewards]
    assert score.value == pytest.approx(pass_at_k(rewards, 1).value)
    if len(rewards) > 1:
        assert score.stderr == pytest.approx(np.std(means, ddof=1) / np.sqrt(len(means)))
    else:
        assert math.isnan(score.stderr)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: mean_at_k([]),
        lambda: mean_at_k([[]]),
        lambda: pass_at_k([[1.0]], 2),
        lambda: pass_at_k([[1.0]], 0),
        lambda: pass_at_k([[1.0, 0.6]], 1),
    ],
)
def test_what_cannot_be_scored_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(TaskError):
        wrong()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import evaluate.config

    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path)


REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]


@pytest.mark.slow
def test_as_evaluate_modules_they_need_no_network(offline: None, tmp_path: Path) -> None:
    import evaluate

    from tasks.metrics.mean_at_k import MeanAtK
    from tasks.metrics.pass_at_k import PassAtK

    folder = Path(tasks.metrics.__file__).parent
    for name, cls in (("mean_at_k", MeanAtK), ("pass_at_k", PassAtK)):
        loaded = evaluate.load(str(folder / f"{name}.py"), cache_dir=str(tmp_path))
        result = cls(cache_dir=str(tmp_path)).compute(predictions=REWARDS)
        assert result[name] == loaded.compute(predictions=REWARDS)[name] == 0.25
    assert PassAtK(cache_dir=str(tmp_path)).compute(predictions=REWARDS, k=2)["pass_at_k"] == pytest.approx(5 / 12)
