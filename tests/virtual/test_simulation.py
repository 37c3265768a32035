"""The simulator against closed forms and against a slow engine that goes token by token."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.plan.lengths import LogNormal, Recorded
from scalelab.plan.rates import Rates, decoding_line
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.virtual.drawn_evaluations import EvaluationLoad
from scalelab.virtual.engines import DrawnDecoder
from scalelab.virtual.simulation import Shape, Simulation, drawn
from scalelab.virtual.simulation_figures import SimulationSettings, best_split, climb, simulate

# Four groups of two completions a step; 6 tokens of prompt.
SHAPE = Shape(generators=1, trainers=1, groups_per_step=4, generations=2, slots=8, prompt_tokens=6)
RATES = Rates(
    step_seconds=0.5,
    sequence_seconds=0.25,
    train_token_seconds=0.125,
    train_step_seconds=1.0,
    export_seconds=0.5,
    transfer_seconds=0.25,
    pause_seconds=0.125,
    verify_seconds=2.0,
)
TEN = Recorded((np.array([10]),), "ten tokens each")
GENERATION = 10 * (0.5 + 8 * 0.25)  # all eight side by side
STEP = 1 + 8 * (6 + 10) * 0.125
UPDATE = 0.5 + 0.25 + 0.125


def test_synchronous_takes_the_sum_of_its_parts() -> None:
    figures = simulate(SimulationSettings(Synchronous(), RATES, TEN, SHAPE), 1, 1, steps=20)
    assert figures.seconds_per_step == pytest.approx(GENERATION + 2 + STEP + UPDATE)
    assert figures.trainer_idle == pytest.approx(1 - (STEP + 0.5) / figures.seconds_per_step)
    assert figures.staleness == {0: 1.0}
    assert figures.tokens_per_second == pytest.approx(80 / figures.seconds_per_step)


def test_ppo_off_policy_pays_for_generation_and_update_once_a_round() -> None:
    shape = replace(SHAPE, slots=32)
    figures = simulate(SimulationSettings(PPOOffPolicy(4), RATES, TEN, shape), 1, 1, steps=40)
    everything = 10 * (0.5 + 32 * 0.25) + 2 + 4 * STEP + UPDATE
    assert figures.seconds_per_step == pytest.approx(everything / 4)
    assert figures.staleness == {late: 0.25 for late in range(4)}


def test_pipelinerl_hides_the_faster_side_behind_the_slower() -> None:
    setting = SimulationSettings(PipelineRL(8), RATES, TEN, SHAPE)
    slow_trainer = simulate(replace(setting, rates=replace(RATES, train_step_seconds=100.0)), 1, 1, steps=40)
    assert slow_trainer.seconds_per_step == pytest.approx(STEP + 99 + 0.5)
    assert slow_trainer.trainer_idle == pytest.approx(0)
    slow_generator = replace(setting, rates=replace(RATES, step_seconds=50.0, pause_seconds=0.0))
    assert simulate(slow_generator, 1, 1, steps=40).seconds_per_step == pytest.approx(10 * (50 + 2.0), rel=0.02)


def test_shared_cores_slow_what_runs_side_by_side() -> None:
    apart = SimulationSettings(PipelineRL(8), replace(RATES, train_step_seconds=100.0), TEN, SHAPE)
    one_core = replace(apart, rates=replace(apart.rates, cores=1))
    assert simulate(one_core, 1, 1, steps=30).seconds_per_step > 1.1 * simulate(apart, 1, 1, steps=30).seconds_per_step
    synchronous = replace(one_core, schedule=Synchronous())
    same = replace(apart, schedule=Synchronous())
    assert simulate(synchronous, 1, 1, steps=9).seconds_per_step == simulate(same, 1, 1, steps=9).seconds_per_step


@settings(max_examples=30)
@given(
    config=st.sampled_from([Synchronous(), PPOOffPolicy(3), PipelineRL(0), PipelineRL(3)]),
    generators=st.integers(1, 4),
    trainers=st.integers(1, 2),
    seed=st.integers(0, 3),
)
def test_whatever_the_split_all_that_is_drawn_is_trained_on_in_time(
    config: Synchronous | PPOOffPolicy | PipelineRL, generators: int, trainers: int, seed: int
) -> None:
    lengths = LogNormal(20, 1.0, 200)
    setting = SimulationSettings(config, replace(RATES, host_seconds=0.05, cores=2), lengths, SHAPE, seed=seed)
    figures = simulate(setting, generators, trainers, steps=13)
    assert figures == simulate(setting, generators, trainers, steps=13), "the same seed gives the same run"
    bound = 0 if isinstance(config, Synchronous) else config.k - isinstance(config, PPOOffPolicy)
    assert sum(figures.staleness.values()) == pytest.approx(1)
    assert max(figures.staleness) <= bound
    assert 0 <= figures.generators_idle < 1
    assert 0 <= figures.trainer_idle < 1
    assert 0 < figures.occupancy <= 1


def test_a_driver_that_takes_longer_than_both_sides_sets_the_pace() -> None:
    setting = SimulationSettings(PipelineRL(8), RATES, TEN, SHAPE)
    each = simulate(setting, 1, 1, steps=60).seconds_per_step / (SHAPE.groups_per_step * SHAPE.generations)
    slow = simulate(replace(setting, driver_seconds=3 * each), 1, 1, steps=60)
    assert slow.seconds_per_step == pytest.approx(3 * each * SHAPE.groups_per_step * SHAPE.generations, rel=0.02)
    assert (
        simulate(replace(setting, driver_seconds=each / 10), 1, 1, steps=60).seconds_per_step
        < 1.1 * slow.seconds_per_step / 3
    )


def load(every: int, prompts: int, aside: int) -> EvaluationLoad:
    def due(step: int, since: float, compute: float) -> tuple[str, ...]:
        return () if step % every else ("held_out",)

    counts = {"held_out": prompts}, {"held_out": 4}
    return EvaluationLoad(due, lambda hours: every, lambda engines: aside, *counts, TEN, 0)


@settings(max_examples=20)
@given(
    config=st.sampled_from([Synchronous(), PPOOffPolicy(2), PipelineRL(0), PipelineRL(3)]),
    every=st.integers(1, 8),
    prompts=st.integers(1, 30),
    aside=st.integers(0, 2),
)
def test_evaluations_take_the_engines_time_and_nothing_is_lost(
    config: Synchronous | PPOOffPolicy | PipelineRL, every: int, prompts: int, aside: int
) -> None:
    shape = replace(SHAPE, generators=3)
    plain = Simulation(config.start(shape.groups_per_step, 40), shape, RATES, drawn(TEN, shape, 0))
    evaluated = Simulation(
        config.start(shape.groups_per_step, 40), shape, RATES, drawn(TEN, shape, 0), None, load(every, prompts, aside)
    )
    plain.run()
    evaluated.run()
    assert evaluated.evaluated, "at least one fell due long before the end"
    both = evaluated.engines.usage, evaluated.apart.usage
    held_out = sum(one.completions for one in both) - evaluated.history[-1].completions
    assert held_out >= 4 * prompts * len(evaluated.evaluated)
    assert (evaluated.apart.usage.completions > 0) == (aside > 0)
    assert evaluated.apart.engines in (0, aside)
    assert evaluated.engines.engines + evaluated.apart.engines == 3
    assert evaluated.history[-1].wall >= 0.95 * plain.history[-1].wall, "no evaluation makes a run faster"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "hours", "each", "apart"),
    [
        (["h100/scalerl_17bx16"], "30", 0.05, 0.25),
        pytest.param(["scalerl_8b"], "3.4", 0.05, 0.25, marks=pytest.mark.nightly),
        pytest.param(["h100/scalerl_8b", "--set", "Evaluation.engines=0"], "24", 0.08, 0.4, marks=pytest.mark.nightly),
    ],
)
def test_what_evaluations_add_is_what_the_plan_says(
    words: list[str], hours: str, each: float, apart: float, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> dict[str, Any]:
        assert main([*command, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    planned = said("plan", *words)
    split = said("simulate", *words, "--hours", hours, "--no-search")["split"]
    without = said("simulate", *words, "--hours", hours, "--no-search", "--no-evaluations")["split"]
    assert split["evaluations"] >= 2
    assert split["evaluation_seconds"] == pytest.approx(planned["evaluation"]["seconds"], rel=each)
    assert split["seconds_per_step"] == pytest.approx(planned["seconds_per_step"], rel=0.05)
    added = split["seconds_per_step"] - without["seconds_per_step"]
    assert added == pytest.approx(planned["seconds"]["evaluations"], rel=apart)


def test_hours_without_a_whole_period_of_evaluations_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    for hours in ("0.5", "4"):  # none of them, and one
        assert main(["simulate", "scalerl_17bx16", "--hours", hours, "--no-search"]) == 0
        said = re.search(
            r"do not begin and end with evaluations .* --hours ([\d.]+) has several", capsys.readouterr().out
        )
        assert said is not None, hours
    assert said is not None
    assert main(["simulate", "scalerl_17bx16", "--hours", said[1], "--no-search"]) == 0
    assert "do not begin and end" not in capsys.readouterr().out
    assert main(["simulate", "scalerl_17bx16", "--hours", "0.5", "--no-search", "--no-evaluations"]) == 0
    assert "do not begin and end" not in capsys.readouterr().out


def test_a_miniature_ends_after_so_many_steps_and_takes_the_hours_that_are_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """24 hours of it are 60,000 steps."""

    def told(*more: str) -> tuple[str, int]:
        command = ["simulate", "quickstart", "--no-search", "--no-evaluations", *more]
        main([*command])
        head = capsys.readouterr().out.splitlines()[0]
        main([*command, "--json"])
        return head, json.loads(capsys.readouterr().out)["split"]["steps"]

    head, steps = told()
    assert "24 h, at most 2,000 steps; " in head
    assert 1000 <= steps <= 2000
    head, asked = told("--hours", "0.1")
    assert ", 0.1 h; " in head
    assert asked < steps


def test_hours_in_which_the_pipeline_only_fills_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of a run's first five steps stood beside a plan's of many, and were three times as long."""
    asked = ["simulate", "h100/scalerl_8b", "--no-search", "--no-evaluations", "--hours"]
    assert main([*asked, "0.2"]) == 0
    said = re.search(r"the beginning was simulated, \d+ steps .*: --hours ([\d.]+) has enough", capsys.readouterr().out)
    assert said is not None
    assert main([*asked, said[1], "--json"]) == 0
    split = json.loads(capsys.readouterr().out)["split"]
    assert split["settled"]
    assert main(["plan", "h100/scalerl_8b", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["seconds"]
    assert split["seconds_per_step"] == pytest.approx(seconds["step"] - seconds["evaluations"], rel=0.05)


def test_evaluations_that_all_engines_make_hold_a_synchronous_run_up() -> None:
    shape = replace(SHAPE, generators=3)
    parts = Synchronous().start(shape.groups_per_step, 40), shape, RATES, drawn(TEN, shape, 0), None
    plain, evaluated = (
        Simulation(*parts),
        Simulation(
            Synchronous().start(shape.groups_per_step, 40), *parts[1:3], drawn(TEN, shape, 0), None, load(4, 30, 0)
        ),
    )
    plain.run()
    evaluated.run()
    assert evaluated.history[-1].wall > plain.history[-1].wall + 0.5 * sum(evaluated.evaluated)


@settings(max_examples=10)
@given(every=st.integers(1, 40), prompts=st.integers(1, 3), aside=st.integers(0, 5))
def test_the_best_split_is_found_with_evaluations_of_any_size(every: int, prompts: int, aside: int) -> None:
    shape = replace(SHAPE, generators=6, trainers=2)
    evaluations = replace(load(every, prompts, 0), aside=lambda engines: min(aside, engines - 1))
    setting = SimulationSettings(PipelineRL(3), RATES, TEN, shape, evaluations=evaluations)
    plain = simulate(setting, 6, 2, steps=60)
    best = best_split(setting, plain, 22, steps=60)
    assert best.seconds_per_step <= plain.seconds_per_step
    assert best.devices == plain.devices


@pytest.mark.parametrize("asked", ["Evaluation.engines=40", "Evaluation.engines=32"])
def test_more_engines_set_aside_than_a_smaller_cluster_has_leave_one(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = ["h100/scalerl_8b", "--set", asked, "--gpus", "40"]
    assert main(["plan", *fewer, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["evaluation"]["engines"] == planned["engines"] - 1 == 31
    assert main(["simulate", *fewer, "--hours", "0.6", "--no-search"]) == 0


def test_evaluations_of_a_virtual_run_take_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for more in ([], ["--no-evaluations"]):
        command = ["simulate", "schedules_miniature/pipeline_8", "--hours", "0.02", "--no-search", "--json", *more]
        assert main(command) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]


@given(low=st.integers(1, 5), top=st.integers(1, 400), high=st.integers(5, 400), start=st.integers(1, 400))
def test_climbing_finds_the_top_of_a_hill(low: int, top: int, high: int, start: int) -> None:
    found = climb(lambda x: -abs(x - top), min(max(start, low), high), low, high)
    best = min(max(top, low), high)
    assert abs(found - best) <= max(1, best // 32)


def test_the_best_split_is_that_of_an_exhaustive_search() -> None:
    setting = SimulationSettings(PipelineRL(4), RATES, LogNormal(20, 0.5, 100), SHAPE)
    best = best_split(setting, simulate(setting, 9, 1, steps=20), 20, steps=20)
    by_hand = [simulate(setting, 10 - trainers, trainers, steps=20) for trainers in range(1, 10)]
    assert best.seconds_per_step == min(figures.seconds_per_step for figures in by_hand)


@pytest.mark.slow
def test_a_large_cluster_is_searched_in_small() -> None:
    setting = SimulationSettings(PipelineRL(2), RATES, LogNormal(20, 0.5, 100), replace(SHAPE, groups_per_step=480))
    plain = simulate(setting, 108, 20, steps=9)
    best = best_split(setting, plain, 9, steps=9)
    assert best.seconds_per_step <= plain.seconds_per_step
    assert best.devices == 128
    for trainers in (best.trainers // 2, best.trainers * 3 // 2, best.trainers * 2):
        assert best.seconds_per_step < 1.05 * simulate(setting, 128 - trainers, trainers, steps=9).seconds_per_step


def test_log_normal_lengths_have_their_median_and_prompts_resemble_themselves() -> None:
    rng = np.random.default_rng(0)
    tokens_PG = LogNormal(100, 0.5, 10_000).draw(rng, 4000, 4)
    logs_PG = np.log(tokens_PG)
    assert np.exp(np.median(logs_PG)) == pytest.approx(100, rel=0.03)
    assert logs_PG.std() == pytest.approx(0.5, rel=0.03)
    assert logs_PG.mean(axis=1).var() == pytest.approx(0.25 * (0.5 + 0.5 / 4), rel=0.1)
    cut = LogNormal(100, 0.5, 200, interrupt=(120, 160)).draw(rng, 500, 4)
    assert cut.max() == 160 + (200 - 160) / 2
    with pytest.raises(LabError, match="median must lie"):
        LogNormal(300, 0.5, 200)


def test_recorded_lengths_come_from_one_prompt_a_group(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    (tmp_path / "rollouts").mkdir()
    rows = {"prompt_id": ["a", "a", "b", "b"], "tokens": [3, 5, 70, 90], "text": ["", "", "", ""]}
    parquet.write_table(pa.table(rows), tmp_path / "rollouts" / "step_000000.parquet")
    tokens_PG = Recorded.read(tmp_path).draw(np.random.default_rng(0), 50, 8)
    assert {frozenset(row) <= {3, 5} or frozenset(row) <= {70, 90} for row in tokens_PG.tolist()} == {True}
    assert set(np.unique(tokens_PG)) == {3, 5, 70, 90}
    with pytest.raises(LabError, match="evaluated at least once"):
        Recorded.read(tmp_path / "rollouts")


def test_a_decoding_line_takes_two_loads() -> None:
    assert decoding_line([(8, 0.5 + 8 * 0.25), (32, 0.5 + 32 * 0.25)]) == pytest.approx((0.5, 0.25))
    with pytest.raises(LabError, match="measure at two"):
        decoding_line([(8, 1.0), (8, 2.0)])


@pytest.mark.slow
def test_the_command_prints_both_splits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "scalerl_8b", "--hours", "0.3", "--json", "--gpus", "40"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["split"]["devices"] == said["best"]["devices"] == 40
    assert said["best"]["seconds_per_step"] <= 1.05 * said["split"]["seconds_per_step"]
    assert main(["simulate", "quickstart", "--hours", "0.01", "--no-search"]) == 0
    assert "trainer idle" in capsys.readouterr().out


ENDLESS = (("hours", "inf"), ("hours", "nan"), ("median", "0"), ("sigma", "-1"), ("prompt-tokens", "-5"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "speed=1"], "there is no rate 'speed'"),
        (["--rate", "step_seconds=fast"], "give a number"),
        (["--kept", "0"], "share above 0"),
        *(([f"--{name}", value], f"--{name} {float(value):g}: give a number above 0") for name, value in ENDLESS),
        (["--gpus", "1"], "1 devices are too few for 2 trainer ranks"),
    ],
)
def test_wrong_options_are_said_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "scalerl_8b", *arguments]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [96, 144, 200])
def test_simulate_splits_devices_as_the_plan_does(gpus: int, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["h100/scalerl_17bx16", "--gpus", str(gpus), "--json"]
    main(["plan", *asked])
    roles = json.loads(capsys.readouterr().out)["roles"]
    main(["simulate", *asked, "--no-search", "--hours", "0.2", "--no-evaluations"])
    found = json.loads(capsys.readouterr().out)
    split, each = found["split"], (found["devices_per_generator"], found["devices_per_trainer"])
    assert (split["generators"] * each[0], split["trainers"] * each[1]) == (roles["generator"], roles["trainer"])


def test_engines_with_too_few_places_for_a_group_are_refused() -> None:
    shape = replace(SHAPE, slots=2, generations=4)
    with pytest.raises(LabError, match="a group has 4 completions, and all engines together take 3 at a time"):
        Simulation(PipelineRL(1).start(4, 5), shape, RATES, drawn(TEN, shape, 0))


def test_the_virtual_worlds_engines_and_the_simulators_agree_to_the_tick_on_the_same_lengths() -> None:
    """Engines that must look at every token see the same steps, versions and times as those that count."""

    class ByToken(DrawnDecoder):
        """Cannot know when a sequence ends, as a real engine cannot."""

        def steps_to_end(self) -> int:
            return 1

    lengths, shape = LogNormal(12, 0.7, 60), replace(SHAPE, generators=3, slots=4, groups_per_step=5)
    for config in (PipelineRL(3), PPOOffPolicy(4), Synchronous()):
        histories = []
        for decoder in (DrawnDecoder, ByToken):
            simulation = Simulation(config.start(5, 25), shape, RATES, drawn(lengths, shape, 7))
            simulation.engines._decoder = decoder()
            histories.append(simulation.run())
        assert histories[0] == histories[1], config
