"""Router replay: tokens go through the experts prescribed, weighed by the trainer's own logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from moe.errors import MoeError
from moe.model.choice import check_replay
from moe.model.families import Model
from moe.sequences import TrainingSequence
from moe.settings import Layout, TrainerSetup
from tests.helpers.moe_models import DENSE, MOE, QWEN3_MOE, batch, routed, trainer, weighted, weights

pytestmark = pytest.mark.slow

QWEN3_UNNORMED = replace(QWEN3_MOE, norm_topk_prob=False)


@torch.no_grad()
def reference(model: Model, folder: Path, sequence: TrainingSequence) -> np.ndarray:
    """transformers' log-probs [T] with routers that take the prescribed experts."""
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    assert sequence.routed_TLK is not None
    for layer, block in enumerate(theirs.model.layers):
        router = (block.feed_forward if hasattr(block, "feed_forward") else block.mlp).__dict__["_modules"]
        gate = router.get("router") or router["gate"]
        gate.forward = choosing(gate, torch.from_numpy(sequence.routed_TLK[:, layer].astype(np.int64)), model)
    ids = torch.from_numpy(sequence.tokens_T).long()[None]
    logits = theirs(ids).logits[0, :-1].log_softmax(-1)
    return np.concatenate([[0.0], logits.gather(1, ids[0, 1:, None])[:, 0].numpy()])


def choosing(gate: Any, experts_TK: torch.Tensor, model: Model) -> Any:
    """A gate of transformers that takes the prescribed experts."""

    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = hidden.reshape(-1, hidden.shape[-1])
        logits_TE = hidden @ gate.weight.T
        own_TK = logits_TE.topk(experts_TK.shape[1], dim=1).indices
        chosen_TK = torch.where(experts_TK < 0, own_TK, experts_TK)
        if isinstance(model, type(MOE)):
            scores_TE = torch.zeros_like(logits_TE).scatter(1, chosen_TK, logits_TE.gather(1, chosen_TK).sigmoid())
            return scores_TE, logits_TE
        weights_TK = logits_TE.softmax(-1).gather(1, chosen_TK)
        if model.norm_topk_prob:  # type: ignore[union-attr]
            weights_TK = weights_TK / weights_TK.sum(1, keepdim=True)
        return logits_TE, weights_TK, chosen_TK

    return forward


@pytest.mark.parametrize("model", [MOE, QWEN3_MOE, QWEN3_UNNORMED], ids=["llama4", "qwen3", "qwen3 unnormed"])
def test_prescribed_experts_give_the_logprobs_of_a_reference_that_chooses_them(model: Model, tmp_path: Path) -> None:
    sequences = routed(batch(3, count=4, longest=40), model)
    one = trainer(model)
    try:
        one.save_hf(tmp_path)
        mine = one.logprobs(sequences)
        free = one.logprobs([replace(s, routed_TLK=None) for s in sequences])
    finally:
        one.close()
    for sequence, logprobs_T in zip(sequences, mine):
        np.testing.assert_allclose(logprobs_T, reference(model, tmp_path, sequence), atol=1e-5)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(mine, free))


def test_nothing_prescribed_changes_nothing_and_the_weights_learn_either_way() -> None:
    one = trainer(MOE)
    try:
        sequences = batch(5)
        nothing = [replace(s, routed_TLK=np.full((len(s), 4, 1), -1, np.int16)) for s in sequences]
        for a, b in zip(one.logprobs(sequences), one.logprobs(nothing)):
            np.testing.assert_array_equal(a, b)
        before = weights(one)
        one.train_step(routed(sequences, MOE), weighted)
        after = weights(one)
        routers = [name for name in before if "router" in name]
        assert len(routers) == 4
        assert all(not torch.equal(before[name], after[name]) for name in routers)
        assert all(a == b for a, b in zip(map(len, one.logprobs(sequences)), map(len, sequences)))
    finally:
        one.close()


def test_experts_that_cannot_be_replayed_are_refused() -> None:
    hf, config = MOE.to_hf(), TrainerSetup()
    sequences = batch(1)
    with pytest.raises(MoeError, match="1 of 12 sequences"):
        check_replay([*routed(sequences[:1], MOE), *sequences[1:]], hf, config)
    with pytest.raises(MoeError, match="this model has none"):
        check_replay(routed(sequences, MOE), DENSE.to_hf(), config)
    with pytest.raises(MoeError, match=r"4 layers, 1 experts per token and experts 0 to 15"):
        check_replay(routed(sequences, QWEN3_MOE), hf, config)
    staged = replace(config, layout=Layout(pipeline=2), recompute="full")
    with pytest.raises(MoeError, match="cannot recompute"):
        check_replay(routed(sequences, MOE), hf, staged)
    with pytest.raises(MoeError, match="their sequence has 60 tokens"):
        replace(sequences[1], routed_TLK=np.zeros((3, 4, 1), np.int16))
