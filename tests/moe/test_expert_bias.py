"""Biases spread tokens over experts without a loss: they decide who is chosen and nothing else.

Axes: `_T` tokens, `_E` experts, `_K` experts of a token, `_H` hidden size.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moe.errors import MoeError
from moe.model.choice import Choice
from moe.model.decoder import DecoderConfig
from moe.model.families import Model
from moe.settings import OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer
from moe.weights.convert import export_checkpoint, import_folder
from moe.weights.hf_folder import read_biases
from moe.weights.links import EXPERT_BIAS
from tests.helpers.moe_models import DENSE, MIXTRAL, MOE, QWEN3_MOE, batch, trainer, weighted, weights

pytestmark = pytest.mark.slow

RATE = 0.02


@pytest.fixture
def make() -> Iterator[Callable[..., Trainer]]:
    """Trainers that are closed at the end."""
    made = []

    def build(model: Model, **settings: Any) -> Trainer:
        made.append(trainer(model, **settings))
        return made[-1]

    yield build
    for one in made:
        one.close()


def biases_of(one: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights(one).items() if name.endswith(EXPERT_BIAS)}


@given(
    st.lists(st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5), min_size=1, max_size=8),
    st.lists(st.floats(-5, 5, width=32), min_size=5, max_size=5),
    st.integers(1, 5),
)
def test_the_best_by_score_and_bias_are_chosen_with_their_own_scores(
    scores: list[list[float]], biases: list[float], k: int
) -> None:
    choice = Choice()
    choice.bias_E = torch.tensor(biases)
    top_TK, chosen_TK = choice.choose(torch.tensor(scores), k)
    for score_E, top_K, chosen_K in zip(torch.tensor(scores), top_TK, chosen_TK):
        assert len(set(chosen_K.tolist())) == k
        biased_E = score_E + torch.tensor(biases)
        left_out = [biased_E[e] for e in range(5) if e not in chosen_K]
        assert not left_out or max(left_out) <= min(biased_E[chosen_K])
        assert torch.equal(top_K, score_E[chosen_K])


@pytest.mark.parametrize("model", [MOE, QWEN3_MOE, MIXTRAL], ids=lambda model: model.model_type)
def test_a_chosen_expert_weighs_what_its_logit_says(make: Callable[..., Trainer], model: DecoderConfig) -> None:
    router = make(model, expert_bias=RATE).model.routers[0]
    hidden_T1H = torch.randn(40, 1, model.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert router.bias_E is not None
        bias_E = router.bias_E
        bias_E.copy_(torch.linspace(-1, 1, len(bias_E)))
        probs_TE, chosen_TE = router(hidden_T1H)
        logits_TE = hidden_T1H.squeeze(1) @ router.weight.T
    moved = 0
    for logit_E, prob_E, chosen_E in zip(logits_TE, probs_TE, chosen_TE):
        best = sorted(range(len(logit_E)), key=lambda e: -(logit_E[e] + bias_E[e]))[: router.topk]
        assert sorted(best) == chosen_E.nonzero().flatten().tolist()
        wanted = logit_E[best].sigmoid() if model is MOE else logit_E[best].softmax(0)
        torch.testing.assert_close(prob_E[best], wanted)
        moved += set(best) != set(logit_E.topk(router.topk).indices.tolist())
    assert moved > 10


def test_a_step_moves_each_bias_by_the_rate_toward_the_mean_load(make: Callable[..., Trainer]) -> None:
    router = make(MOE, expert_bias=RATE).model.routers[0]
    load_E = torch.arange(16.0)
    load_E[7] = load_E[8] = load_E.mean()
    router.move_bias(load_E, RATE)
    for expert, load in enumerate(load_E):
        wanted = RATE if load < load_E.mean() else -RATE if load > load_E.mean() else 0.0
        assert router.bias_E is not None
        assert router.bias_E[expert].item() == pytest.approx(wanted)


def test_biases_alone_spread_tokens_over_the_experts(make: Callable[..., Trainer]) -> None:
    one = make(MOE, expert_bias=RATE)
    told = [one.train_step(batch(0, 60), weighted, lr=0.0).metrics["moe_imbalance"] for _ in range(20)]
    assert told[-1] < 0.7 * told[0]


def test_a_skipped_step_moves_no_bias(make: Callable[..., Trainer]) -> None:
    one = make(MOE, expert_bias=RATE, optimizer=OptimizerConfig(max_skipped=0))
    result = one.train_step(batch(0), lambda logprobs_T, *_: (logprobs_T.sum() * float("nan"), {}))
    assert result.skipped
    assert all(not bias_E.any() for bias_E in biases_of(one).values())


def test_biases_travel_with_weights_folders_and_checkpoints(make: Callable[..., Trainer], tmp_path: Path) -> None:
    one = make(MOE, expert_bias=RATE)
    one.train_step(batch(0), weighted)
    held, biases = weights(one), biases_of(one)
    assert len(biases) == MOE.num_hidden_layers
    assert all(bias_E.any() for bias_E in biases.values())
    one.save(tmp_path / "step_000001")
    one.save_hf(tmp_path / "folder")
    one.load_weights({name: tensor for name, tensor in held.items() if name not in biases})
    assert all(not bias_E.any() for bias_E in biases_of(one).values())
    for back in (lambda: one.load_weights(held), lambda: one.load(tmp_path / "step_000001")):
        back()
        assert all(torch.equal(tensor, held[name]) for name, tensor in weights(one).items())
        one.load_weights(tmp_path / "folder")
        assert all(torch.equal(tensor, held[name]) for name, tensor in weights(one).items())
    one.close()
    export_checkpoint(tmp_path / "step_000001", tmp_path / "exported", expert_bias=True)
    assert all(torch.equal(bias_E, biases[name]) for name, bias_E in read_biases(tmp_path / "exported").items())


def test_a_checkpoint_without_biases_begins_with_none(make: Callable[..., Trainer], tmp_path: Path) -> None:
    plain = make(MOE)
    plain.save(tmp_path / "step_000001")
    plain.close()
    one = make(MOE, expert_bias=RATE)
    one.train_step(batch(0), weighted)
    one.load(tmp_path / "step_000001")
    assert all(not bias_E.any() for bias_E in biases_of(one).values())


def test_biases_are_never_lost_in_silence(make: Callable[..., Trainer], tmp_path: Path) -> None:
    one = make(MOE, expert_bias=RATE)
    one.train_step(batch(0), weighted)
    one.save(tmp_path / "step_000001")
    one.save_hf(tmp_path / "folder")
    one.close()
    plain = make(MOE)
    with pytest.raises(MoeError, match=r"has biases of experts; set TrainerConfig\.expert_bias"):
        plain.load(tmp_path / "step_000001")
    with pytest.raises(MoeError, match=r"without which experts differ; set TrainerConfig\.expert_bias"):
        plain.load_weights(tmp_path / "folder")
    plain.close()
    with pytest.raises(MoeError, match="this package alone, with --expert-bias"):
        export_checkpoint(tmp_path / "step_000001", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    with pytest.raises(MoeError, match=r"start a run from it as it is, with SFT\.pretrained"):
        import_folder(tmp_path / "folder", tmp_path / "step_000002")


def test_biases_that_could_not_work_are_refused(make: Callable[..., Trainer]) -> None:
    with pytest.raises(ValueError, match="two ways"):
        TrainerSetup(expert_bias=0.1, balance=0.01)
    with pytest.raises(MoeError, match="this model is dense"):
        make(DENSE, expert_bias=RATE)
    with pytest.raises(MoeError, match="norm_topk_prob"):
        make(replace(QWEN3_MOE, norm_topk_prob=False), expert_bias=RATE)
