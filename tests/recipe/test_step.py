"""A whole step, from graded groups to gradient, against the recipe's objective written as loops."""

import itertools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.sequences import TrainingSequence
from scalelab.errors import LabError
from scalelab.recipe.length_control import LengthPenalty
from scalelab.recipe.losses import CISPO, DAPO, GRPO, GSPO, Loss
from scalelab.recipe.recipe import Aggregation, Recipe, ZeroVariance
from scalelab.recipe.step import StepLoss, drop_reason, pass_rate, plan_step, rewards, summarise
from scalelab.recipe.types import Rollout
from tests.helpers import recipe_reference as slow
from tests.helpers.recipe_step import build_step

VERSION = 7
LOSSES: dict[str, tuple[Loss, str, dict[str, float]]] = {
    "cispo": (CISPO(1.2), "cispo", {"eps_max": 1.2}),
    "dapo": (DAPO(0.1, 0.2), "token", {"low": 0.1, "high": 0.2}),
    "grpo": (GRPO(0.15), "token", {"low": 0.15, "high": 0.15}),
    "gspo": (GSPO(0.05, 0.05), "sequence", {"low": 0.05, "high": 0.05}),
}
CHOICES = list(
    itertools.product(sorted(LOSSES), ["prompt", "sample", "token", "constant"], ["batch", "prompt", "none"])
)


@dataclass(frozen=True)
class Late(CISPO):
    """A loss that sees how stale tokens are."""

    sees: ClassVar[tuple[str, ...]] = ("staleness", "reward")


def rollout(
    rng: np.random.Generator,
    prompt: str,
    reward: float,
    length: int | None = None,
    outcome: str | None = None,
    task: str = "math",
) -> Rollout:
    """A completion of random length with a forced stretch, garbage log-probs in it, and two versions."""
    length = int(rng.integers(0, 9)) if length is None else length
    edge = int(rng.integers(0, length + 1))
    forced_T = rng.random(length) < 0.2
    logprobs_T = np.where(forced_T, np.nan, rng.uniform(-4, 0, length)).astype(np.float32)
    return Rollout(
        prompt_id=prompt,
        task=task,
        prompt_ids=rng.integers(3, 50, rng.integers(1, 5)),
        completion_ids=rng.integers(3, 50, length),
        logprobs_T=logprobs_T,
        forced_T=forced_T,
        spans=((VERSION - int(rng.integers(0, 4)), 0, edge), (VERSION, edge, length)),
        reward=reward,
        outcome=outcome or ("passed" if reward == 1.0 else "failed"),
        interrupted=bool(forced_T.any()),
    )


@st.composite
def steps(draw: st.DrawFn, generations: int = 3, **choices: Any) -> list[list[Rollout]]:
    """Groups of rollouts; rewards are drawn one by one, the rest from a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    patterns = draw(
        st.lists(
            st.lists(st.sampled_from([0.0, 1.0]), min_size=generations, max_size=generations), min_size=1, max_size=5
        )
    )
    return [[rollout(rng, f"p{p}", reward) for reward in pattern] for p, pattern in enumerate(patterns)]


def noise(sequence_id: int, size: int) -> np.ndarray:
    """log π_train − log π_gen of a sequence, the same wherever it is packed."""
    return np.random.default_rng(sequence_id).normal(0, 0.3, size)


def run(sequences: list[TrainingSequence], loss: Loss) -> tuple[float, dict[int, torch.Tensor], dict[str, float]]:
    """Call the loss on one packed micro-batch; return its value, the gradient per sequence id, and the metrics."""
    extras = {key: torch.from_numpy(np.concatenate([s.extras[key] for s in sequences])) for key in sequences[0].extras}
    extras = {key: value.double() if value.is_floating_point() else value for key, value in extras.items()}
    ids = [int(s.extras["sequence_ids"][0]) for s in sequences]
    noise_T = np.concatenate([noise(i, len(s.tokens_T)) for i, s in zip(ids, sequences, strict=True)])
    logprobs_T = (extras["old_logprobs"] + torch.from_numpy(noise_T)).requires_grad_()
    value, metrics = StepLoss(loss)(logprobs_T, torch.full_like(logprobs_T, 2.0), extras)
    value.backward()
    gradients = torch.split(logprobs_T.grad, [len(s.tokens_T) for s in sequences])
    return value.item(), dict(zip(ids, gradients, strict=True)), {k: float(v) for k, v in metrics.items()}


def slow_step(
    groups: list[list[Rollout]], recipe: Recipe, formula: str, eps: dict[str, float]
) -> tuple[list[list[Rollout]], list[Any], list[Any]]:
    """The objective and its gradient by group, completion and sampled token, from the formulas."""
    if recipe.zero_variance != "keep":
        groups = [group for group in groups if len({r.reward for r in group}) > 1]
    assert isinstance(recipe.advantage_norm, str)
    advantages = slow.advantages([[2 * r.reward - 1 for r in group] for group in groups], recipe.advantage_norm)
    terms: list[list[list[float]]] = []
    jacobians, sequence_ids = [], itertools.count()
    for group, advantages_G in zip(groups, advantages, strict=True):
        terms.append([])
        for completion, advantage in zip(group, advantages_G, strict=True):
            delta = noise(next(sequence_ids), len(completion.prompt_ids) + len(completion.completion_ids))
            delta = delta[len(completion.prompt_ids) :]
            sampled = [t for t in range(len(delta)) if not completion.forced_T[t]]
            old = [float(completion.logprobs_T[t]) for t in sampled]
            new = [float(completion.logprobs_T[t]) + delta[t] for t in sampled]
            values, jacobian = slow.objective_terms(formula, new, old, advantage, **eps) if sampled else ([], None)
            terms[-1].append(values)
            jacobians.append((jacobian, sampled))
    return groups, terms, jacobians


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "aggregation", "norm"), CHOICES)
@settings(max_examples=20)
@given(groups=steps(), zero_variance=st.sampled_from(["drop", "keep", "refill"]))
def test_a_step_is_the_recipes_objective(
    loss: str,
    aggregation: Aggregation,
    norm: Literal["batch", "prompt", "none"],
    groups: list[list[Rollout]],
    zero_variance: ZeroVariance,
) -> None:
    policy_loss, formula, eps = LOSSES[loss]
    recipe = Recipe(
        loss=policy_loss,
        aggregation=aggregation,
        advantage_norm=norm,
        zero_variance=zero_variance,
        generations_per_prompt=3,
        length_control=None,
        max_tokens=16,
    )
    sequences, _ = build_step(groups, recipe, VERSION)
    kept, terms, jacobians = slow_step(groups, recipe, formula, eps)
    assert len(sequences) == 3 * len(kept)
    if not sequences:
        return
    value, gradients, _ = run(sequences, policy_loss)
    assert value == pytest.approx(-slow.aggregate(terms, aggregation, 16), rel=1e-5, abs=1e-6)
    for sequence_id, (jacobian, sampled) in enumerate(jacobians):
        # d(aggregate)/d(log π_u): average the completion's Jacobian rows with every other term at zero.
        expected = np.zeros(len(gradients[sequence_id]))
        offset = len(expected) - len(kept[sequence_id // 3][sequence_id % 3].completion_ids)
        for u, t in enumerate(sampled):
            column = [[[0.0] * len(c) for c in group] for group in terms]
            column[sequence_id // 3][sequence_id % 3] = list(jacobian[:, u])
            expected[offset + t] = -slow.aggregate(column, aggregation, 16)
        np.testing.assert_allclose(gradients[sequence_id].numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(LOSSES))
@given(groups=steps(), seed=st.integers(0, 999), parts=st.integers(1, 4))
def test_the_split_of_a_step_into_micro_batches_does_not_matter(
    loss: str, groups: list[list[Rollout]], seed: int, parts: int
) -> None:
    policy_loss = LOSSES[loss][0]
    recipe = Recipe(loss=policy_loss, zero_variance="keep", generations_per_prompt=3)
    sequences, _ = build_step(groups, recipe, VERSION)
    value, gradients, metrics = run(sequences, policy_loss)
    order = np.random.default_rng(seed).permutation(len(sequences))
    results = [run([sequences[i] for i in part], policy_loss) for part in np.array_split(order, parts) if len(part)]
    assert sum(result[0] for result in results) == pytest.approx(value, rel=1e-9, abs=1e-9)
    for _, part_gradients, _ in results:
        for sequence_id, gradient in part_gradients.items():
            torch.testing.assert_close(gradient, gradients[sequence_id], rtol=1e-9, atol=1e-12)
    combine: dict[str, Callable[..., float]] = {"sum": sum, "min": min, "max": max}
    joined = {k: combine[k.rsplit("_", 1)[1]](result[2][k] for result in results) for k in metrics}
    assert joined == pytest.approx(metrics, rel=1e-9, abs=1e-12)


@given(groups=steps())
def test_the_order_of_groups_and_of_completions_does_not_matter(groups: list[list[Rollout]]) -> None:
    recipe = Recipe(generations_per_prompt=3, zero_variance="keep")

    def by_content(groups: list[list[Rollout]]) -> list[Any]:
        sequences, _ = build_step(groups, recipe, VERSION)
        rows = [(s.tokens_T.tolist(), s.extras["advantages"].tolist(), s.extras["weights"].tolist()) for s in sequences]
        return sorted(rows)

    for one, other in zip(by_content(groups), by_content([group[::-1] for group in groups[::-1]]), strict=True):
        assert one[0] == other[0]
        np.testing.assert_allclose(one[1:], other[1:], rtol=1e-5)


@given(groups=steps(), loss=st.sampled_from(["plain", "staleness"]))
def test_what_is_pickled_of_a_planned_sequence_comes_out_laid_out(groups: list[list[Rollout]], loss: str) -> None:
    policy_loss = LOSSES[sorted(LOSSES)[0]][0] if loss == "plain" else Late()
    recipe = Recipe(loss=policy_loss, generations_per_prompt=3, zero_variance="keep")
    planned, metrics = plan_step(groups, recipe, VERSION)
    built, same = build_step(groups, recipe, VERSION)
    assert metrics == same
    assert metrics["tokens_in_loss"] == sum(np.count_nonzero(one.extras["weights"]) for one in built)
    sent = pickle.loads(pickle.dumps(planned))
    assert planned.lengths == [len(one) for one in sent] == [len(one) for one in built]
    for one, whole in zip(sent, built, strict=True):
        assert isinstance(one, TrainingSequence)
        assert one.tokens_T.tobytes() == whole.tokens_T.tobytes()
        assert list(one.extras) == list(whole.extras)
        for name, values in whole.extras.items():
            assert (one.extras[name].dtype, one.extras[name].tobytes()) == (values.dtype, values.tobytes()), name


def test_a_step_travels_at_half_the_size_of_its_sequences_and_without_their_text() -> None:
    rng = np.random.default_rng(0)
    long = [replace(rollout(rng, "p", reward, 2000), text="secret " * 2000) for reward in (0.0, 1.0)]
    planned, _ = plan_step([long], Recipe(generations_per_prompt=2), VERSION)
    sent = pickle.dumps(planned)
    assert b"secret" not in sent
    assert len(sent) < 0.5 * len(pickle.dumps(planned.built()))


@given(groups=steps())
def test_extras_stand_at_sampled_tokens_and_nowhere_else(groups: list[list[Rollout]]) -> None:
    recipe = Recipe(generations_per_prompt=3, zero_variance="keep")
    sequences, metrics = build_step(groups, recipe, VERSION)
    rollouts = [rollout for group in groups for rollout in group]
    for sequence, rollout_ in zip(sequences, rollouts, strict=True):
        n_prompt = len(rollout_.prompt_ids)
        sampled_T = np.concatenate([np.zeros(n_prompt, dtype=bool), ~rollout_.forced_T])
        assert sequence.tokens_T.tolist() == [*rollout_.prompt_ids, *rollout_.completion_ids]
        assert sequence.tokens_T.dtype == np.int32
        np.testing.assert_array_equal(sequence.extras["weights"] != 0, sampled_T)
        for key in ("old_logprobs", "advantages", "weights", "same_version"):
            assert sequence.extras[key].dtype == np.float32
            assert np.all(sequence.extras[key][~sampled_T] == 0)
        np.testing.assert_array_equal(
            sequence.extras["old_logprobs"][sampled_T], rollout_.logprobs_T[~rollout_.forced_T]
        )
        versions_T = [v for v, start, end in rollout_.spans for _ in range(start, end)]
        expected = [v == VERSION and not forced for v, forced in zip(versions_T, rollout_.forced_T, strict=True)]
        np.testing.assert_array_equal(sequence.extras["same_version"][n_prompt:], expected)
    assert metrics["tokens_in_loss"] == sum(int((~r.forced_T).sum()) for r in rollouts)
    assert metrics["tokens"] == sum(len(r.prompt_ids) + len(r.completion_ids) for r in rollouts)


def group_of(*reward_values: float, prompt: str = "p", **fields: Any) -> list[Rollout]:
    rng = np.random.default_rng(0)
    return [rollout(rng, prompt, reward, length=5, **fields) for reward in reward_values]


def test_kept_zero_variance_groups_have_no_gradient_but_count_in_the_average() -> None:
    equal, mixed = group_of(1.0, 1.0, prompt="a"), group_of(1.0, 0.0, prompt="b")
    keep = Recipe(generations_per_prompt=2, zero_variance="keep", advantage_norm="none")
    drop = Recipe(generations_per_prompt=2, zero_variance="drop", advantage_norm="none")
    kept, _ = build_step([equal, mixed], keep, VERSION)
    dropped, _ = build_step([equal, mixed], drop, VERSION)
    _, gradients, _ = run(kept, keep.loss)
    assert torch.all(gradients[0] == 0)
    assert torch.all(gradients[1] == 0)
    np.testing.assert_allclose(2 * kept[2].extras["weights"], dropped[0].extras["weights"])


def test_batch_deviation_is_over_the_groups_in_the_loss() -> None:
    equal, mixed = group_of(1.0, 1.0, prompt="a"), group_of(1.0, 0.0, prompt="b")
    deviations: dict[ZeroVariance, float] = {"drop": 1.0, "refill": 1.0, "keep": np.sqrt(2.0)}
    for policy, expected in deviations.items():
        sequences, _ = build_step([equal, mixed], Recipe(generations_per_prompt=2, zero_variance=policy), VERSION)
        assert max(np.abs(s.extras["advantages"]).max() for s in sequences) == pytest.approx(expected)


def test_every_reason_for_dropping_is_counted() -> None:
    groups = [
        group_of(1.0, 1.0, prompt="a"),
        group_of(0.0, 0.0, prompt="b"),
        group_of(0.0, 0.0, prompt="c"),
        group_of(0.5, 0.5, prompt="d"),
        group_of(1.0, 0.0, prompt="e"),
        group_of(0.0, 0.0, prompt="f", outcome="error"),
    ]
    sequences, metrics = build_step(groups, Recipe(generations_per_prompt=2), VERSION)
    assert metrics["filtered"] == {"all_failed": 2, "all_passed": 1, "equal_rewards": 1, "ungraded": 1}
    assert metrics["prompts"] == 6
    assert metrics["prompts_in_loss"] == 1
    assert len(sequences) == 2
    json.dumps(metrics, allow_nan=False)


def test_a_step_without_anything_to_learn_is_empty() -> None:
    sequences, metrics = build_step([group_of(1.0, 1.0)], Recipe(generations_per_prompt=2), VERSION)
    assert sequences == []
    assert metrics["tokens"] == 0


def test_completions_that_could_not_be_graded_count_for_nothing() -> None:
    group = [*group_of(1.0, 0.0), *group_of(0.0, outcome="error")]
    sequences, metrics = build_step([group], Recipe(generations_per_prompt=3), VERSION)
    without, _ = build_step([group[:2]], Recipe(generations_per_prompt=2), VERSION)
    for one, other in zip(sequences, without, strict=True):
        np.testing.assert_array_equal(one.extras["weights"], other.extras["weights"])
        np.testing.assert_array_equal(one.extras["advantages"], other.extras["advantages"])
    assert pass_rate(group) == 0.5
    assert metrics["tasks"]["math"]["pass_rate"] == 0.5
    assert metrics["tasks"]["math"]["outcomes"] == {"error": 1, "failed": 1, "passed": 1}
    assert pass_rate(group[2:]) is None
    assert drop_reason(group[1:], Recipe(zero_variance="keep")) == "ungraded"


def test_dropped_groups_are_counted_and_change_nothing_else() -> None:
    recipe = Recipe(generations_per_prompt=2, zero_variance="refill")
    teaching, dropped = group_of(1.0, 0.0, prompt="a"), group_of(1.0, 1.0, prompt="b")
    by_itself, _ = build_step([teaching], recipe, VERSION)
    together, metrics = build_step([dropped, teaching], recipe, VERSION)
    assert drop_reason(dropped, recipe) == "all_passed"
    assert metrics["filtered"] == {"all_passed": 1}
    for one, other in zip(by_itself, together, strict=True):
        assert {key: values.tolist() for key, values in one.extras.items()} == {
            key: values.tolist() for key, values in other.extras.items()
        }


def test_length_penalty_separates_correct_completions() -> None:
    rng = np.random.default_rng(0)
    recipe = Recipe(generations_per_prompt=3, max_tokens=10, length_control=LengthPenalty(10, 4))
    group = [rollout(rng, "p", 1.0, length=5), rollout(rng, "p", 1.0, length=8), rollout(rng, "p", 0.0, length=9)]
    np.testing.assert_allclose(rewards(group, recipe), [1.0, 0.5, -1.0])
    assert drop_reason([group[0], group[1], group[1]], recipe) is None


def test_staleness_is_counted_from_the_oldest_version() -> None:
    rng = np.random.default_rng(0)
    base = rollout(rng, "p", 1.0, length=4)
    groups = [
        [
            Rollout(**{**vars(base), "spans": ((5, 0, 1), (7, 1, 4))}),
            Rollout(**{**vars(base), "spans": ((7, 0, 4),), "reward": 0.0}),
        ]
    ]
    _, metrics = build_step(groups, Recipe(generations_per_prompt=2), VERSION)
    assert metrics["staleness"] == {"0": 1, "2": 1}


def test_tasks_are_told_apart() -> None:
    groups = [group_of(1.0, 0.0, prompt="a", task="math"), group_of(0.0, 0.0, prompt="b", task="code")]
    _, metrics = build_step(groups, Recipe(generations_per_prompt=2), VERSION)
    assert {task: figures["pass_rate"] for task, figures in metrics["tasks"].items()} == {"code": 0.0, "math": 0.5}
    assert metrics["tasks"]["math"]["mean_length"] == 5.0


@given(groups=steps())
def test_summary_figures_are_means_over_sampled_tokens(groups: list[list[Rollout]]) -> None:
    recipe = Recipe(generations_per_prompt=3, zero_variance="keep")
    sequences, _ = build_step(groups, recipe, VERSION)
    _, _, metrics = run(sequences, recipe.loss)
    assert isinstance(recipe.loss, CISPO)
    delta, same = [], []
    for sequence in sequences:
        noise_T = noise(int(sequence.extras["sequence_ids"][0]), len(sequence.tokens_T))
        for t, weight in enumerate(sequence.extras["weights"]):
            if weight:
                delta.append(noise_T[t])
                same += [noise_T[t]] if sequence.extras["same_version"][t] else []
    expected = {
        "entropy": 2.0,
        "ratio_min": np.exp(min(delta, default=0)),
        "ratio_mean": np.mean(np.exp(delta)) if delta else None,
        "ratio_max": np.exp(max(delta, default=0)),
        "ratio_clipped": np.mean(np.exp(delta) > recipe.loss.eps_max) if delta else None,
        "effective_sample": sum(np.exp(delta)) ** 2 / len(delta) / sum(np.exp(2 * np.array(delta))) if delta else None,
        "kl": np.mean(np.exp(delta) - 1 - np.array(delta)) if delta else None,
        "gap_mean": np.mean(np.abs(delta)) if delta else None,
        "gap_max": max(map(abs, delta), default=0.0),
        "same_version_gap_mean": np.mean(np.abs(same)) if same else None,
    }
    if not delta:
        expected |= {"entropy": None, "ratio_min": None, "ratio_max": None}
    got = summarise(metrics)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert got[key] == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), key
    json.dumps(got, allow_nan=False)


def test_groups_of_another_size_or_of_two_prompts_are_refused() -> None:
    recipe = Recipe(generations_per_prompt=2)
    with pytest.raises(ValueError, match="3 completions of prompt p"):
        build_step([group_of(1.0, 0.0, 0.0)], recipe, VERSION)
    with pytest.raises(ValueError, match="prompt a, b"):
        build_step([[*group_of(1.0, prompt="a"), *group_of(0.0, prompt="b")]], recipe, VERSION)


def test_a_sampled_token_without_log_prob_stops_the_run() -> None:
    group = group_of(1.0, 0.0)
    group[1].logprobs_T[~group[1].forced_T] = np.nan
    with pytest.raises(LabError, match="not finite"):
        build_step([group], Recipe(generations_per_prompt=2), VERSION)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"prompt_ids": np.array([], dtype=int)}, "no tokens"),
        ({"logprobs_T": np.zeros(3)}, "one length"),
        ({"forced_T": np.zeros(6, dtype=bool)}, "one length"),
        ({"spans": ((1, 0, 4),)}, "tile"),
        ({"spans": ((1, 0, 3), (2, 4, 5))}, "tile"),
        ({"spans": ((1, 1, 5),)}, "tile"),
        ({"spans": ((1, 0, 7), (2, 7, 5))}, "tile"),
        ({"reward": -1.0}, "outside"),
        ({"reward": float("nan")}, "outside"),
    ],
)
def test_a_rollout_that_contradicts_itself_is_refused(change: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        Rollout(**{**vars(group_of(1.0)[0]), **change})


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_step_loss_can_be_sent_to_another_process(name: str) -> None:
    loss = StepLoss(LOSSES[name][0])
    assert pickle.loads(pickle.dumps(loss)) == loss
