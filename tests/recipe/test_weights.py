"""Rewards → advantages → token weights, against slow references."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.recipe.advantages import NORMS, centred, signed
from scalelab.recipe.aggregation import AVERAGES, constant_length, token_weights
from scalelab.recipe.filters import zero_variance
from scalelab.recipe.length_control import ForcedInterruption, LengthPenalty
from tests.helpers import recipe_reference as slow

# 0/1 rewards, their ±1 form, and penalised ones; few distinct values, so that equal groups are common.
HOW = [*sorted(AVERAGES), "constant"]
reward = st.sampled_from([-1.0, 1.0, 1.0, 0.7, 1.0 / 3.0])
reward_batches = st.lists(st.lists(reward, min_size=2, max_size=6), min_size=1, max_size=6)
length_batches = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), min_size=1, max_size=5)


def arrays(batch: Iterable[Sequence[float]]) -> list[np.ndarray]:
    return [np.array(group) for group in batch]


def flat(batch: Iterable[Iterable[float]]) -> np.ndarray:
    return np.array([value for group in batch for value in group])


@given(reward_batches, st.sampled_from(sorted(NORMS)))
def test_advantages_are_the_formula(rewards: list[list[float]], norm: str) -> None:
    got = NORMS[norm]([centred(group) for group in arrays(rewards)])
    np.testing.assert_allclose(flat(got), flat(slow.advantages(rewards, norm)), rtol=1e-9, atol=1e-12)


@given(reward_batches)
def test_advantages_of_a_group_add_up_to_zero(rewards: list[list[float]]) -> None:
    for group in arrays(rewards):
        assert abs(centred(group).sum()) < 1e-12


@given(st.floats(-1, 1), st.integers(2, 50), st.sampled_from(sorted(NORMS)))
def test_equal_rewards_give_exactly_zero_whatever_the_norm(value: float, size: int, norm: str) -> None:
    got = NORMS[norm]([centred(np.full(size, value))])[0]
    assert np.all(got == 0.0)


@given(reward_batches)
def test_batch_norm_gives_unit_deviation_unless_there_is_nothing_to_norm(rewards: list[list[float]]) -> None:
    got = flat(NORMS["batch"]([centred(group) for group in arrays(rewards)]))
    assert np.all(got == 0.0) or got.std() == pytest.approx(1.0)


@given(reward_batches, st.floats(0.01, 100.0), st.sampled_from(["batch", "prompt"]))
def test_normalised_advantages_do_not_depend_on_the_scale_of_rewards(
    rewards: list[list[float]], scale: float, norm: str
) -> None:
    plain = NORMS[norm]([centred(group) for group in arrays(rewards)])
    scaled = NORMS[norm]([centred(group * scale) for group in arrays(rewards)])
    np.testing.assert_allclose(flat(plain), flat(scaled), rtol=1e-6, atol=1e-9)


def test_rewards_are_trained_on_as_plus_and_minus_one() -> None:
    np.testing.assert_array_equal(signed(np.array([0.0, 1.0, 0.5])), [-1.0, 1.0, 0.0])


def test_no_prompts_give_no_advantages_and_no_weights() -> None:
    assert all(norm([]) == [] for norm in NORMS.values())
    assert all(token_weights(how, [], 8) == [] for how in HOW)


@given(length_batches, st.sampled_from(HOW), st.integers(0, 2**32 - 1))
def test_weighted_sums_are_the_averages(lengths: list[list[int]], how: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [[rng.normal(size=length).tolist() for length in group] for group in lengths]
    weights = token_weights(how, arrays(lengths), 50)
    total = sum(
        weight * sum(tokens)
        for weights_G, group in zip(weights, values, strict=True)
        for weight, tokens in zip(weights_G, group, strict=True)
    )
    assert total == pytest.approx(slow.aggregate(values, how, 50), abs=1e-12)
    assert np.all(np.isfinite(flat(weights)))


@given(length_batches, st.sampled_from(sorted(AVERAGES)))
def test_weights_of_all_tokens_add_up_to_the_share_of_what_has_tokens(lengths: list[list[int]], how: str) -> None:
    weights = AVERAGES[how](arrays(lengths))
    total = float((flat(weights) * flat(lengths)).sum())
    with_tokens = {
        "prompt": np.mean([sum(group) > 0 for group in lengths]),
        "sample": np.mean(flat(lengths) > 0),
        "token": float(flat(lengths).sum() > 0),
    }[how]
    assert total == pytest.approx(with_tokens)


@given(length_batches, st.integers(1, 100))
def test_a_constant_gives_every_token_the_same_weight_in_every_step(lengths: list[list[int]], longest: int) -> None:
    weights = flat(constant_length(arrays(lengths), longest))
    assert np.all(weights == 1 / (len(weights) * longest))
    total = float((weights * flat(lengths)).sum())
    assert total == pytest.approx(float(np.mean(flat(lengths))) / longest)


@given(st.lists(reward, min_size=2, max_size=8))
def test_zero_variance_is_the_condition_on_the_mean(rewards: list[float]) -> None:
    reason = zero_variance(np.array(rewards))
    assert (reason is None) == (len(set(rewards)) > 1)
    if set(rewards) <= {-1.0, 1.0}:
        passing = float(np.mean(signed_back(rewards)))
        assert reason == {0.0: "all_failed", 1.0: "all_passed"}.get(passing)


def signed_back(rewards: Iterable[float]) -> list[float]:
    return [(value + 1.0) / 2.0 for value in rewards]


@given(st.integers(0, 40), st.booleans(), st.integers(1, 30), st.integers(0, 10))
def test_length_penalty_is_the_formula_on_correct_completions_only(
    length: int, correct: bool, cache: int, more: int
) -> None:
    control = LengthPenalty(max_tokens=cache + more, cache_tokens=cache)
    got = control.penalty(np.array([length]), np.array([correct]))[0]
    assert got == (slow.length_penalty(length, cache + more, cache) if correct else 0.0)


def test_length_penalty_of_the_paper() -> None:
    lengths = np.array([0, 12 * 1024, 13 * 1024, 14 * 1024, 20 * 1024])
    np.testing.assert_array_equal(LengthPenalty().penalty(lengths, np.full(5, True)), [0.0, 0.0, -0.5, -1.0, -1.0])


@given(st.integers(0, 50), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_interruptions_fall_inside_the_window_and_repeat_with_the_seed(earliest: int, width: int, seed: int) -> None:
    control = ForcedInterruption(earliest=earliest, latest=earliest + width)
    draws = [control.draw(rng) for rng in [np.random.default_rng(seed)] for _ in range(20)]
    assert all(earliest <= draw <= earliest + width for draw in draws)
    again = np.random.default_rng(seed)
    assert draws == [control.draw(again) for _ in range(20)]


def test_both_ends_of_the_interruption_window_occur() -> None:
    control, rng = ForcedInterruption(earliest=3, latest=5), np.random.default_rng(0)
    assert {control.draw(rng) for _ in range(100)} == {3, 4, 5}
