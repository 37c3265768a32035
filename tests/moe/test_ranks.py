"""Four processes train as one, however the model is cut, and hand checkpoints from one layout to the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moe.model.head import token_logprobs
from moe.weights.convert import export_checkpoint
from moe.weights.hf_folder import FolderWeights, read_biases
from tests.helpers.moe_models import batch, trainer, weighted, weights
from tests.helpers.moe_ranks import (
    BIAS_RATE,
    CHOSEN,
    FOUR,
    FOUR_AT_NIGHT,
    MODELS,
    OVERLAPPED,
    TRAVELS,
    Case,
    largest_difference,
    probe,
    spawn,
    vocabulary_problem,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of one process and of four, started on the same checkpoint."""
    folder = tmp_path_factory.mktemp("ranks")
    straight = trainer(MODELS["Llama-4"], expert_bias=BIAS_RATE)
    for step in range(2):
        straight.train_step(batch(step), weighted)
    start = weights(straight)
    straight.save(folder / "station0")
    results = [straight.train_step(batch(step), weighted) for step in range(2, 2 + len(TRAVELS))]
    end = weights(straight)
    straight.close()
    items: list[Any] = [one for one in request.session.items if one.path == request.path and hasattr(one, "callspec")]
    asked = [(item.originalname, item.callspec.params.get("case")) for item in items]
    chosen = [case for case in (*FOUR, *FOUR_AT_NIGHT) if (test_four_processes_learn_as_one.__name__, case) in asked]
    (folder / CHOSEN).write_text("\n".join(case.name for case in chosen))
    single_rank = {case: probe(case) for case in {case.single_rank for case in chosen}}
    return {
        "folder": folder,
        "alone": single_rank,
        "all": spawn(4, folder),
        "straight": {"start": start, "results": results, "end": end},
    }


@pytest.mark.parametrize(
    "case",
    [*FOUR, *(pytest.param(case, marks=pytest.mark.nightly) for case in FOUR_AT_NIGHT)],
    ids=lambda case: case.name,
)
def test_four_processes_learn_as_one(told: dict[str, Any], case: Case) -> None:
    single_rank = told["alone"][case.single_rank]
    for rank in told["all"]:
        mine = rank[case.name]
        assert list(mine["start"]) == list(single_rank["start"])
        assert all(torch.equal(tensor, single_rank["start"][name]) for name, tensor in mine["start"].items())
        assert mine["back"]
        assert mine["arrived"]
        assert mine["read"] == mine["needed"], "no rank reads what another holds"
        assert mine["published"]
        assert mine["sent"]
        assert largest_difference(single_rank, mine) < 5e-6
        assert all(torch.equal(bias_E, single_rank["biases"][name]) for name, bias_E in mine["biases"].items())
        assert len(mine["biases"]) == len(single_rank["biases"]) == 4 * case.biased
        assert mine["result"].loss == pytest.approx(single_rank["result"].loss, abs=1e-5)
        assert mine["result"].grad_norm == pytest.approx(single_rank["result"].grad_norm, rel=1e-5)
        assert mine["result"].metrics == pytest.approx(single_rank["result"].metrics, rel=1e-6, abs=1e-4)
        assert mine["result"].tokens == single_rank["result"].tokens
        for a, b in zip(single_rank["logprobs"], mine["logprobs"], strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=2e-5)
        assert mine["later"] == pytest.approx(single_rank["later"], rel=1e-5, abs=1e-4)
        if case.reference:
            first, later = mine["result"].metrics, mine["later"]
            assert first["apart_max"] < 2e-5
            assert later["apart_max"] > 0.1, "weights that changed are far from the first"
            assert later["reference_sum"] == pytest.approx(first["reference_sum"], rel=1e-5)
        kept = mine["result"].logprobs
        for a, b in zip(mine["logprobs"][-len(kept) :], kept, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", OVERLAPPED, ids=lambda case: case.name)
def test_parameters_that_arrive_after_the_step_are_waited_for_wherever_they_are_read(
    told: dict[str, Any], case: Case
) -> None:
    for rank in told["all"]:
        late = rank["late"][case.name]
        assert late["under way"]["after"] > 0
        within, after = late["weights"]["within"], late["weights"]["after"]
        assert all(torch.equal(tensor, after[name]) for name, tensor in within.items())
        assert late["under way"]["lazily"] == 0
        for gathered in ("after", "lazily"):
            for a, b in zip(late["logprobs"]["within"], late["logprobs"][gathered], strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_checkpoint_goes_on_at_any_layout_as_if_never_moved(told: dict[str, Any]) -> None:
    straight = told["straight"]
    for rank in told["all"]:
        first, last = rank["travels"]
        assert all(torch.equal(tensor, straight["start"][name]) for name, tensor in first["loaded"].items())
        assert all(torch.equal(tensor, first["weights"][name]) for name, tensor in last["loaded"].items())
        for travel, result in zip(rank["travels"], straight["results"]):
            assert travel["result"].loss == pytest.approx(result.loss, abs=1e-5)
        for name, tensor in straight["end"].items():
            torch.testing.assert_close(last["weights"][name], tensor, rtol=0, atol=2e-5)
    back = trainer(MODELS["Llama-4"], seed=3, expert_bias=BIAS_RATE)
    try:
        back.load(told["folder"] / "station2")
        assert all(torch.equal(tensor, last["weights"][name]) for name, tensor in back.export_weights())
        back.load_weights(told["folder"] / "station1.hf")
        assert all(torch.equal(tensor, last["loaded"][name]) for name, tensor in back.export_weights())
    finally:
        back.close()


def test_what_ranks_saved_is_exported_whole_without_them(told: dict[str, Any], tmp_path: Path) -> None:
    for station, name in ((1, "loaded"), (2, "weights")):
        export_checkpoint(told["folder"] / f"station{station}", tmp_path / f"{station}", expert_bias=True)
        exported = {**FolderWeights(tmp_path / f"{station}"), **read_biases(tmp_path / f"{station}")}
        live = told["all"][0]["travels"][-1][name]
        assert set(exported) == set(live)
        assert all(torch.equal(exported[name], tensor) for name, tensor in live.items())


def test_a_vocabulary_cut_over_ranks_gives_the_same_logprobs(told: dict[str, Any]) -> None:
    problem = vocabulary_problem()
    hidden, weight = problem["hidden"].requires_grad_(), problem["weight"].requires_grad_()
    whole = torch.stack(token_logprobs(hidden, weight, problem["targets"], chunk=13))
    whole.backward(problem["grads"])
    parts = [rank["vocabulary"] for rank in told["all"]]
    for part in parts:
        torch.testing.assert_close(part["out"], whole.detach())
        torch.testing.assert_close(part["hidden"], hidden.grad)
    torch.testing.assert_close(torch.cat([part["weight"] for part in parts]), weight.grad)


def test_a_rank_left_alone_says_what_it_was_waiting_for(told: dict[str, Any]) -> None:
    assert "rank 0 of 4 lost the others in train_step (deadline 60 s)" in told["all"][0]["lost"]
