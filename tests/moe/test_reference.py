"""The policy that training began with, beside the one that learns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moe.model.families import Model
from tests.helpers.moe_models import DENSE, MOE, batch, routed, trainer, weighted

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", [DENSE, MOE], ids=lambda model: model.model_type)
def test_a_loss_sees_the_first_weights_logprobs_at_every_step_and_after_a_checkpoint(
    model: Model, tmp_path: Path
) -> None:
    sequences, seen = batch(4), []
    first = trainer(model)
    wanted = np.concatenate(first.logprobs(sequences))
    first.save_hf(tmp_path / "start")
    first.close()

    def loss(
        logprobs_T: torch.Tensor, entropy_T: torch.Tensor, extras: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        seen.append((logprobs_T.detach().numpy().copy(), extras["reference"].numpy().copy()))
        return weighted(logprobs_T, entropy_T, extras)

    given = sequences if model is DENSE else routed(sequences, model)
    settings: dict[str, Any] = {"reference": True, "tokens_per_micro_batch": 10**6, "weights": tmp_path / "start"}
    ours = trainer(model, **settings)
    for _ in range(2):
        ours.train_step(given, loss)
    ours.save(tmp_path / "step")
    ours.close()
    ours = trainer(model, **settings)
    ours.load(tmp_path / "step")
    ours.train_step(given, loss)
    ours.close()
    for _, reference in seen:
        np.testing.assert_allclose(reference, wanted, rtol=1e-6, atol=1e-6)
    assert np.abs(seen[2][0] - wanted).max() > 1e-3


def test_steps_are_the_same_with_a_reference_that_the_loss_does_not_look_at() -> None:
    found = []
    for reference in (False, True):
        ours = trainer(DENSE, reference=reference)
        ours.train_step(batch(1), weighted)
        ours.train_step(batch(2), weighted)
        found.append({name: tensor.clone() for name, tensor in ours.export_weights()})
        ours.close()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
