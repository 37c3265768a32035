"""The losses: value and gradient against the formulas, under masks, garbage, extremes, packing and splits."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalelab.recipe import losses
from scalelab.recipe.losses import CISPO, DAPO, GRPO, GSPO, Loss, Tokens
from tests.helpers import recipe_reference as slow
from tests.recipe import test_step

LOSSES: dict[str, tuple[Loss, str, dict[str, float]]] = {
    "cispo": (CISPO(1.5), "cispo", {"eps_max": 1.5}),
    "dapo": (DAPO(0.1, 0.3), "token", {"low": 0.1, "high": 0.3}),
    "dapo_dual": (DAPO(0.1, 0.3, dual_clip=1.4), "token", {"low": 0.1, "high": 0.3, "dual": 1.4}),
    "grpo": (GRPO(0.2), "token", {"low": 0.2, "high": 0.2}),
    "grpo_dual": (GRPO(0.2, dual_clip=3.0), "token", {"low": 0.2, "high": 0.2, "dual": 3.0}),
    "gspo": (GSPO(0.05, 0.1), "sequence", {"low": 0.05, "high": 0.1}),
}
every_loss = pytest.mark.parametrize("name", sorted(LOSSES))
GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30]

token = st.tuples(
    st.floats(-5.0, 0.0),  # log π_gen
    st.one_of(st.floats(-0.6, 0.6), st.floats(-40.0, 40.0)),  # log ρ
    st.booleans(),  # in the loss
)
completion = st.tuples(
    st.lists(token, min_size=1, max_size=6), st.sampled_from([-1.3, 0.0, 0.4, 2.0]), st.floats(0.01, 1.0)
)
Batch = list[tuple[list[tuple[float, float, bool]], float, float]]
"""Completions: tokens as above, their advantage and their weight."""
batches = st.lists(completion, min_size=1, max_size=5)


def pack(batch: Batch) -> list[torch.Tensor]:
    """Lay completions end to end: logprobs, old_logprobs, advantages, weights, sequence ids."""
    rows = [
        (old + log_ratio, old, advantage, weight if sampled else 0.0, sequence_id)
        for sequence_id, (tokens, advantage, weight) in enumerate(batch)
        for old, log_ratio, sampled in tokens
    ]
    *floats, ids = zip(*rows, strict=True)
    return [torch.tensor(column, dtype=torch.float64) for column in floats] + [torch.tensor(ids)]


def evaluate(loss: Loss, columns: list[torch.Tensor]) -> tuple[float, torch.Tensor, dict[str, float]]:
    logprobs_T = columns[0].clone().requires_grad_()
    value, metrics = loss(Tokens.masked(logprobs_T, *columns[1:]))
    value.backward()
    return value.item(), logprobs_T.grad, {key: tensor.item() for key, tensor in metrics.items()}


def reference(batch: Batch, formula: str, eps: dict[str, float]) -> tuple[float, torch.Tensor]:
    """Loss and gradient from the formulas, completion by completion over sampled tokens only."""
    loss, gradient = 0.0, []
    for tokens, advantage, weight in batch:
        rows = [(old + log_ratio, old) for old, log_ratio, sampled in tokens if sampled]
        slope = iter(())
        if rows:
            new, old = (list(column) for column in zip(*rows, strict=True))
            terms, jacobian = slow.objective_terms(formula, new, old, advantage, **eps)
            loss -= weight * sum(terms)
            slope = iter(-weight * jacobian.sum(axis=0))
        gradient += [next(slope) if sampled else 0.0 for _, _, sampled in tokens]
    return loss, torch.tensor(gradient, dtype=torch.float64)


@pytest.mark.slow
@every_loss
@given(batch=batches)
def test_loss_and_gradient_are_the_formula(name: str, batch: Batch) -> None:
    loss, formula, eps = LOSSES[name]
    value, gradient, _ = evaluate(loss, pack(batch))
    expected, expected_gradient = reference(batch, formula, eps)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@every_loss
@given(batch=batches, garbage=st.lists(st.sampled_from(GARBAGE), min_size=3, max_size=3))
def test_masked_tokens_reach_neither_loss_nor_gradient_nor_metrics(
    name: str, batch: Batch, garbage: list[float]
) -> None:
    columns = pack(batch)
    masked_T = columns[3] == 0
    spoilt = [column.masked_fill(masked_T, bad) for column, bad in zip(columns[:3], garbage, strict=True)] + columns[3:]
    value, gradient, metrics = evaluate(LOSSES[name][0], columns)
    spoilt_value, spoilt_gradient, spoilt_metrics = evaluate(LOSSES[name][0], spoilt)
    assert spoilt_value == value
    assert spoilt_metrics == metrics
    torch.testing.assert_close(spoilt_gradient, gradient, rtol=0, atol=0)
    assert torch.all(gradient[masked_T] == 0.0)


@every_loss
def test_a_nan_at_a_sampled_token_is_not_hidden(name: str) -> None:
    columns = pack([([(-1.0, float("nan"), True), (-1.0, 0.0, True)], 1.0, 0.5)])
    value, _, _ = evaluate(LOSSES[name][0], columns)
    assert np.isnan(value)


@every_loss
@pytest.mark.parametrize("log_ratio", [-1e30, -100.0, 100.0, 1e30])
@pytest.mark.parametrize("advantage", [-2.0, 2.0])
def test_extreme_ratios_stay_finite_in_single_precision(name: str, log_ratio: float, advantage: float) -> None:
    columns = pack([([(-1.0, log_ratio, True), (-1.0, 0.1, True)], advantage, 0.5)])
    value, gradient, metrics = evaluate(
        LOSSES[name][0], [column.float() if column.is_floating_point() else column for column in columns]
    )
    assert np.isfinite(value)
    assert torch.all(torch.isfinite(gradient))
    assert all(np.isfinite(metric) for metric in metrics.values())


def joined(parts: list[dict[str, float]]) -> dict[str, float]:
    """Combine metrics of several micro-batches by their suffix."""
    combine: dict[str, Callable[..., float]] = {"sum": sum, "min": min, "max": max}
    return {key: combine[key.rsplit("_", 1)[1]](part[key] for part in parts) for key in parts[0]}


@pytest.mark.slow
@every_loss
@given(batch=batches, order_seed=st.integers(0, 999), cuts=st.sets(st.integers(1, 4)))
def test_packing_order_and_micro_batches_change_nothing(
    name: str, batch: Batch, order_seed: int, cuts: set[int]
) -> None:
    loss = LOSSES[name][0]
    columns = pack(batch)
    value, gradient, metrics = evaluate(loss, columns)
    order = np.random.default_rng(order_seed).permutation(len(batch))
    where = [torch.nonzero(columns[4] == sequence_id).flatten() for sequence_id in range(len(batch))]
    edges = [0, *sorted(cut for cut in cuts if cut < len(batch)), len(batch)]
    values, split_gradient, parts = [], torch.zeros_like(gradient), []
    for start, end in itertools.pairwise(edges):
        index_T = torch.cat([where[sequence_id] for sequence_id in order[start:end]])
        part_value, part_gradient, part_metrics = evaluate(loss, [column[index_T] for column in columns])
        values.append(part_value)
        split_gradient[index_T] = part_gradient
        parts.append(part_metrics)
    assert sum(values) == pytest.approx(value, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-9, atol=1e-12)
    assert joined(parts) == pytest.approx(metrics, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cispo", "dapo", "dapo_dual", "grpo"])
@given(batch=batches, seed=st.integers(0, 999), ranks=st.integers(2, 4))
def test_token_losses_may_be_split_inside_a_completion(name: str, batch: Batch, seed: int, ranks: int) -> None:
    loss = LOSSES[name][0]
    columns = pack(batch)
    value, gradient, _ = evaluate(loss, columns)
    rank_T = torch.from_numpy(np.random.default_rng(seed).integers(0, ranks, len(columns[0])))
    total, split_gradient = 0.0, torch.zeros_like(gradient)
    for rank in rank_T.unique():
        part_value, part_gradient, _ = evaluate(loss, [column[rank_T == rank] for column in columns])
        total += part_value
        split_gradient[rank_T == rank] = part_gradient
    assert total == pytest.approx(value, rel=1e-9, abs=1e-9)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@every_loss
@given(batch=batches)
def test_on_policy_gradient_is_that_of_reinforce(name: str, batch: Batch) -> None:
    on_policy = [([(old, 0.0, sampled) for old, _, sampled in tokens], a, w) for tokens, a, w in batch]
    columns = pack(on_policy)
    _, gradient, metrics = evaluate(LOSSES[name][0], columns)
    torch.testing.assert_close(gradient, -columns[3] * columns[2], rtol=1e-9, atol=1e-12)
    assert metrics["clipped_sum"] == 0.0


@pytest.mark.slow
@every_loss
@given(batch=batches)
def test_ratio_metrics_are_those_of_the_sampled_tokens(name: str, batch: Batch) -> None:
    loss, formula, eps = LOSSES[name]
    _, _, metrics = evaluate(loss, pack(batch))
    ratios, clipped = [], 0
    for tokens, advantage, _ in batch:
        rows = [(old + log_ratio, old) for old, log_ratio, sampled in tokens if sampled]
        if not rows:
            continue
        whole = slow.sequence_ratio(*(list(column) for column in zip(*rows, strict=True)))
        for new, old in rows:
            rho = whole if formula == "sequence" else slow.ratio(new, old)
            ratios.append(rho)
            if formula == "cispo":
                clipped += rho > eps["eps_max"]
            else:
                clipped += advantage > 0 and rho > 1 + eps["high"]
                clipped += advantage < 0 and (rho < 1 - eps["low"] or rho > eps.get("dual", np.inf))
    assert metrics["clipped_sum"] == clipped
    assert metrics["ratio_sum"] == pytest.approx(sum(ratios), rel=1e-9)
    assert metrics["ratio_min"] == pytest.approx(min(ratios, default=np.inf), rel=1e-9)
    assert metrics["ratio_max"] == pytest.approx(max(ratios, default=-np.inf), rel=1e-9)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CISPO(0.5),
        lambda: CISPO(float("nan")),
        lambda: CISPO(float("inf")),
        lambda: DAPO(0.0, 0.2),
        lambda: DAPO(1.0, 0.2),
        lambda: GRPO(-0.2),
        lambda: GSPO(3e-3, float("nan")),
        lambda: DAPO(dual_clip=1.0),
    ],
)
def test_clips_that_mean_nothing_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"CISPO|DAPO|GRPO|GSPO"):
        build()


def test_a_dual_clip_bounds_what_one_stale_token_can_do() -> None:
    """Without it, a token with Â < 0 that the policy has come to like pulls with its whole ratio."""
    stale = pack([([(-4.0, 3.9, True)], -1.0, 1.0)])
    free, _, _ = evaluate(DAPO(), stale)
    bounded, gradient, metrics = evaluate(DAPO(dual_clip=3.0), stale)
    assert free == pytest.approx(np.exp(3.9))
    assert bounded == pytest.approx(3.0)
    assert gradient.item() == 0.0
    assert metrics["clipped_sum"] == 1


def test_every_loss_of_the_lab_is_held_against_the_formulas_here_and_in_whole_steps() -> None:
    for cases in (LOSSES, test_step.LOSSES):
        assert {type(loss) for loss, *_ in cases.values()} == set(losses.LOSSES)
