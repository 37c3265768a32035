"""Rates of a simulated cluster follow the plan's formulas, and moments are those of what is drawn."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import DEVICES, device
from scalelab.plan.lengths import LogNormal, Recorded, lengths_of
from scalelab.plan.memory import message_memory, trainer_memory
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.prompts import verify_seconds
from scalelab.plan.rates import rates, slots, trainer_unit
from scalelab.plan.speed import Assumptions, publication
from scalelab.run.settings import Rates
from scalelab.virtual.cluster import check_simulated, clock_facts


@pytest.mark.parametrize(
    "lengths",
    [
        LogNormal(5000, 0.6, 14336),
        LogNormal(5000, 0.0, 14336),
        LogNormal(8000, 0.6, 14336, interrupt=(10240, 12288)),
        Recorded((np.array([3, 5, 9]), np.array([70, 90])), "here"),
    ],
    ids=["plain", "all alike", "interrupted", "recorded"],
)
def test_moments_are_those_of_what_is_drawn(lengths: LogNormal | Recorded) -> None:
    drawn = lengths.draw(np.random.default_rng(0), 40_000, 8).astype(float)
    found = lengths.moments()
    assert (found.mean, found.square) == pytest.approx((drawn.mean(), (drawn**2).mean()), rel=5e-3)
    assert drawn.max() <= found.most


def test_a_plan_and_rates_of_one_run_agree_on_its_speeds() -> None:
    run, gb200 = resolve("scalerl_8b").run, device("gb200")
    assumed = Assumptions()
    lengths = lengths_of(run, assumed.sigma, assumed.median)
    plan = plan_of(run, placement(run), gb200, assumed)
    found = rates(run, gb200, lengths, prompt_tokens=assumed.prompt)
    units = run.cluster.trainers // trainer_unit(run)
    tokens = run.recipe.completions_per_step * (lengths.moments().mean + assumed.prompt)
    trained = plan.seconds["train"] + plan.seconds["checkpoint"]
    assert found.train_token_seconds * tokens / units == pytest.approx(trained, rel=1e-6)
    assert found.host_seconds == verify_seconds(run, run.cluster.verifiers) > 0
    assert plan.seconds["checkpoint"] > 0
    at_once = slots(run, gb200, lengths, prompt_tokens=assumed.prompt)
    step = found.step_seconds + found.sequence_seconds * plan.decoding.sequences
    assert step == pytest.approx(plan.decoding.seconds, rel=0.02)
    assert plan.decoding.sequences <= at_once + 1


def test_a_task_that_counts_no_workers_has_one() -> None:
    own = SimpleNamespace(name="math", seconds_per_reward=2.0)
    run: Any = SimpleNamespace(tasks=(own,), task_weights=None)
    assert verify_seconds(run, 4) == 2.0 / 4
    own.workers = 5
    assert verify_seconds(run, 4) == pytest.approx(2.0 / 5 / 4)


def test_devices_that_are_shared_have_no_rates() -> None:
    run = resolve("smollm2_one_gpu").run
    with pytest.raises(LabError, match=r"one device is not estimated: bind Cluster.share_devices = False$"):
        rates(run, device("h100"), lengths_of(run, 0.5, median=100), prompt_tokens=100.0)


def test_two_messages_of_a_broadcast_take_room_on_an_engines_device() -> None:
    """A calculation by hand: of the tensors that are sent, a matrix of the feed-forward is the largest."""
    runs = [resolve("h100/scalerl_8b", [f"Cluster.publication={way}"]).run for way in ("files", "nccl")]
    updates = [plan_of(one, placement(one), device("h100"), Assumptions()).generator.update for one in runs]
    assert updates == [0.25, pytest.approx(2 * (0.25 + 14336 * 4096 * 2 / 2**30))]


def test_messages_take_room_on_a_rank_that_sends_them_where_nothing_else_does() -> None:
    """Three messages of 256 MiB and a matrix each; they count as far as activations and logits take less."""
    run = resolve("h100/scalerl_8b").run
    hf, config = run.model.to_hf(), replace(run.trainer_setup, tokens_per_micro_batch=1, head_chunk=1)
    sending = message_memory(hf, "bfloat16")
    assert sending.passing == 3 * (2**28 + 14336 * 4096 * 2)
    without, found = (trainer_memory(hf, config, 16, 1, True, one) for one in (None, replace(sending, passing=2**33)))
    assert found.export > without.export
    assert found.activations + found.logits + found.export == pytest.approx(8)


def test_publication_counts_the_bytes_of_every_hand() -> None:
    """A calculation by hand: 16.06 GB, two trainer machines, eight with engines."""
    hf, h100 = resolve("h100/scalerl_8b").run.model.to_hf(), device("h100")
    assumed = Assumptions(staging=1.0, sockets=2.0, loading=4.0, copying=8.0)
    found = publication(hf, "bfloat16", 16, (32, 2), h100, assumed)
    assert (found.standstill, found.transfer, found.pause) == pytest.approx(
        (16.06 / 16, 16.06 * 4 / 2 + 16.06 / 4, 16.06 / 2 / 8), rel=1e-3
    )
    assert publication(hf, "bfloat16", 4, (4, 1), h100, assumed).transfer == pytest.approx(16.06 / 4, rel=1e-3)
    broadcast = publication(hf, "bfloat16", 16, (32, 2), h100, assumed, "nccl")
    assert (broadcast.standstill, broadcast.transfer, broadcast.pause) == pytest.approx(
        (16.06 / 16 + max(16.06 / (50 * 0.4), 16.06 / 2 / 8), 0.0, 16.06 / 2 / 8), rel=1e-3
    )
    eight = publication(hf, "bfloat16", 16, (32, 8), h100, assumed, "nccl")
    assert eight.standstill == pytest.approx(16.06 / 16 + 16.06 / 20, rel=1e-3)


@pytest.mark.parametrize(
    "changed",
    [
        {"step_seconds": math.nan},
        {"step_seconds": math.inf},
        {"step_seconds": -1.0},
        {"step_seconds": 1e-9, "sequence_seconds": 0.0},
        {"train_token_seconds": 0.0},
        {"verify_seconds": math.nan},
        {"cores": 0},
    ],
    ids=str,
)
def test_rates_by_which_no_time_would_pass_or_none_is_known_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(LabError, match="give "):
        Rates(**{"step_seconds": 1.0, "sequence_seconds": 0.1, "train_token_seconds": 0.1, **changed})


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_rates_of_the_smallest_models_on_every_device_are_rates(name: str) -> None:
    run = resolve("quickstart", ["Run.virtual=@Virtual()", f"Virtual.hardware={name!r}"]).run
    check_simulated(run, Path("nowhere"), {})
    assert clock_facts(run)["rates"]["train_token_seconds"] > 0


def test_engines_that_the_simulated_hardware_could_not_hold_are_refused() -> None:
    sets = ["Run.virtual=@Virtual()", "Virtual.hardware='h100'", "GeneratorConfig.kv_cache_gib=100"]
    with pytest.raises(LabError, match="a generator device does not fit: 106 GiB of 79 on h100"):
        check_simulated(resolve("quickstart", sets).run, Path("nowhere"), {})
