"""The step that a run tries first is such a step as its trainer will get: lengths, weights and records of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from moe.model.architectures import architecture
from moe.model.choice import check_replay
from scalelab.cluster.trial import made_up_step
from scalelab.experiment import resolve
from scalelab.recipe.types import NOT_RECORDED
from scalelab.run.config import Run


@dataclass
class Held:
    record: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record.shape


def held(records: list[np.ndarray]) -> list[Held]:
    return [Held(record) for record in records]


def run_of(name: str, *sets: str) -> Run:
    return resolve(name, sets=sets).run


@pytest.mark.parametrize("name", ["quickstart", "scalerl_17bx16"])
def test_a_mixture_s_trial_replays_records_that_its_trainer_takes_for_its_own(name: str) -> None:
    run = run_of(name, "Recipe.router_replay=True")
    step, config = made_up_step(run, held), run.model.to_hf()
    assert len(step.records) == len(step.sequences) >= run.cluster.trainers
    pairs = zip(step.sequences.built(), step.records, strict=True)
    whole = [replace(one, routed_TLK=key.record) for one, key in pairs]  # type: ignore[union-attr]
    check_replay(whole, config, run.trainer_setup)
    with_experts = [plan.experts for plan in architecture(config).layers]
    for one in whole:
        assert one.routed_TLK is not None
        recorded_TL = (one.routed_TLK != NOT_RECORDED).all(axis=2)
        assert (recorded_TL[:-1] == with_experts).all(), "of the layers that have experts"
        assert not recorded_TL[-1].any(), "and of every token but the last one, which no engine computes"
        assert (np.diff(np.sort(one.routed_TLK[:-1][:, with_experts]), axis=2) > 0).all(), "no expert twice"


@pytest.mark.parametrize(("name", "sets"), [("quickstart", "Recipe.router_replay=False"), ("scalerl_8b", "Run.seed=1")])
def test_without_replay_the_trial_has_no_records(name: str, sets: str) -> None:
    run = run_of(name, sets)
    step = made_up_step(run, held)
    assert len(step.sequences) >= run.cluster.trainers
    assert step.records == []
