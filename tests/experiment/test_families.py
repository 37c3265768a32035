"""The lab's families: what their members differ in, and that a miniature differs from its twin in scale alone."""

from __future__ import annotations

import pytest

from scalelab.errors import LabError
from scalelab.experiment import load, resolve, resolve_experiment
from scalelab.experiment.definition import Experiment
from scalelab.experiment.resolved import Resolved
from scalelab.recipe.length_control import ForcedInterruption, LengthPenalty
from scalelab.recipe.losses import CISPO, DAPO, GRPO
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy

SCALE = {"model", "tasks", "scale", "cluster", "budget", "evaluation"}
"""Kinds of fragments that may differ between an experiment and its miniature."""

INGREDIENTS = {
    "loss": "recipe.loss",
    "aggregation": "recipe.aggregation",
    "advantage_norm": "recipe.advantage_norm",
    "schedule": "schedule",
    "fp32_head": "recipe.fp32_head",
    "zero_variance": "recipe.zero_variance",
    "curriculum": "recipe.retire_at",
    "length_control": "recipe.length_control",
}


def family(name: str) -> dict[str, Resolved]:
    return {member.rpartition("/")[2]: resolve_experiment(member, e) for member, e in load(name).items()}


def only(name: str) -> Experiment:
    [experiment] = load(name).values()
    return experiment


@pytest.mark.parametrize(
    ("name", "baseline"), [("leave_one_out", "scalerl_8b"), ("leave_one_out_miniature", "quickstart")]
)
def test_each_leave_one_out_variant_changes_exactly_its_ingredient(name: str, baseline: str) -> None:
    other = resolve(baseline)
    changed = {member: [d.path for d in variant.differences(other)] for member, variant in family(name).items()}
    assert changed == {member: [path] for member, path in INGREDIENTS.items()}


def test_each_addition_to_the_baseline_is_one_choice_of_scalerl() -> None:
    members, scalerl = family("additions"), resolve("scalerl_8b")
    baseline = members.pop("baseline")
    assert {difference.path for difference in baseline.differences(scalerl)} == set(INGREDIENTS.values()) - {
        "recipe.length_control"
    }
    for member, variant in members.items():
        assert [difference.path for difference in variant.differences(baseline)] == [INGREDIENTS[member]]
        assert INGREDIENTS[member] not in {difference.path for difference in variant.differences(scalerl)}


def test_the_members_of_the_study_share_one_base_model_and_one_clock() -> None:
    members = family("study")
    first = members["scalerl"].run
    assert first.virtual is not None
    for name, resolved in members.items():
        run = resolved.run
        shared = (run.tasks, run.sft, run.evaluation, run.seed, run.trainer.dtype, run.generator.dtype, run.budget)
        assert shared == (
            *(first.tasks, first.sft, first.evaluation, first.seed),
            *(first.trainer.dtype, first.generator.dtype, first.budget),
        )
        assert (run.virtual == first.virtual) == (not name.startswith(("fast", "slow")))
        assert (run.model == first.model) == (name != "model_moe")
    assert first.sft.seed is not None
    assert (first.trainer.dtype, first.generator.dtype) == ("bfloat16", "bfloat16")
    assert (first.budget.hours or 0.0) / (first.evaluation.every_hours or 1e9) >= 20
    assert first.evaluation.prompts * first.evaluation.samples >= 1000


def test_the_recipes_are_those_of_the_paper() -> None:
    members = {name: resolved.run for name, resolved in family("recipes").items()}
    chosen = {
        name: (
            run.recipe.loss,
            run.recipe.aggregation,
            run.recipe.fp32_head,
            run.recipe.zero_variance,
            run.schedule,
            run.recipe.prompts_per_step,
        )
        for name, run in members.items()
    }
    assert chosen == {
        "deepseek_grpo": (GRPO(0.2), "sample", "none", "keep", PPOOffPolicy(8), 48),
        "qwen25_dapo": (DAPO(0.2, 0.26), "prompt", "none", "drop", PPOOffPolicy(8), 80),
        "magistral": (DAPO(0.2, 0.26), "prompt", "none", "drop", PipelineRL(8), 80),
        "minimax_m1": (CISPO(5.0), "prompt", "both", "drop", PPOOffPolicy(8), 80),
        "scalerl": (CISPO(5.0), "prompt", "both", "drop", PipelineRL(8), 48),
    }
    assert all(run.recipe.generations_per_prompt == 16 for run in members.values())
    scalerl = members["scalerl"].recipe
    assert (scalerl.advantage_norm, scalerl.retire_at) == ("batch", 0.9)
    assert all(
        (run.recipe.advantage_norm, run.recipe.retire_at) == ("prompt", None)
        for name, run in members.items()
        if name != "scalerl"
    )


def test_scalerl_8b_has_the_papers_figures() -> None:
    run = resolve("scalerl_8b").run
    assert (run.recipe.completions_per_step, run.generator.max_model_len) == (768, 16_384)
    assert run.recipe.length_control == ForcedInterruption(earliest=10_240, latest=12_288)
    assert resolve("leave_one_out/length_control").run.recipe.length_control == LengthPenalty(14_336, 2_048)
    optimizer = run.trainer.optimizer
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.eps, optimizer.weight_decay) == (5e-7, 100, 1e-15, 0.01)
    assert (run.evaluation.every, run.evaluation.prompts, run.evaluation.samples) == (100, 1000, 16)
    assert (run.cluster.generators, run.cluster.trainers) == (64, 16)
    assert (run.budget.hours, run.evaluation.fit_since, run.evaluation.fit_until) == (16_000, 1_500, 8_000)
    assert resolve("scalerl_8b_long").run.budget.hours == 100_000
    assert resolve("scalerl_17bx16").run.budget.hours == 50_000


DEADLINES = (
    *("generator.start_timeout", "generator.update_timeout"),
    *("cluster.startup_seconds", "cluster.stall_seconds", "cluster.hang_seconds"),
)
"""Larger weights take longer to load and to send; a deadline changes nothing of a run that keeps it."""


@pytest.mark.parametrize("name", ["axes", "axes_miniature"])
def test_every_point_of_an_axis_differs_from_the_base_along_that_axis_alone(name: str) -> None:
    along = {
        "batch": ("recipe.prompts_per_step",),
        "length": ("recipe.max_tokens", "generator.max_model_len", "recipe.length_control"),
        "generations": ("recipe.prompts_per_step", "recipe.generations_per_prompt"),
        "model": (
            "model",
            "sft.pretrained",
            "cluster.generators",
            "trainer.layout",
            "trainer.recompute",
            "generator.tensor_parallel",
            *DEADLINES,
        ),
        "tasks": ("tasks", "task_weights"),
    }
    members = family(name)
    base = members.pop("base")
    assert {member.partition("_")[0] for member in members} == set(along)
    for member, point in members.items():
        paths = [difference.path for difference in point.differences(base)]
        assert paths
        assert all(path.startswith(along[member.partition("_")[0]]) for path in paths), (member, paths)
    sizes = {point.run.recipe.completions_per_step for member, point in members.items() if "generations" in member}
    assert sizes == {base.run.recipe.completions_per_step}


@pytest.mark.parametrize(
    ("twin", "name"),
    [
        ("scalerl_8b_miniature", "scalerl_8b"),
        ("scalerl_17bx16_miniature", "scalerl_17bx16"),
        ("math_code_miniature", "math_code"),
        ("quickstart", "scalerl_8b"),
        ("recipes_miniature", "recipes"),
        ("leave_one_out_miniature", "leave_one_out"),
    ],
)
def test_a_miniature_shares_all_but_the_fragments_of_scale(twin: str, name: str) -> None:
    small, large = load(twin), load(name)
    for (small_name, one), (large_name, other) in zip(small.items(), large.items(), strict=True):
        if "/" in small_name:
            assert small_name.partition("/")[2] == large_name.partition("/")[2]
        shared = [[f for f in e.fragments if f.partition("/")[0] not in SCALE] for e in (one, other)]
        assert shared[0] == shared[1]
        assert set(one.overrides) == set(other.overrides)


def test_the_miniatures_share_one_base_model() -> None:
    runs = [*family("recipes_miniature").values(), *family("leave_one_out_miniature").values()]
    first = resolve("quickstart").run
    for resolved in runs:
        run = resolved.run
        assert (run.model, run.tasks, run.sft, run.seed, run.trainer.dtype) == (
            first.model,
            first.tasks,
            first.sft,
            first.seed,
            first.trainer.dtype,
        )


@pytest.mark.parametrize(
    ("name", "sets", "says"),
    [
        ("math_code", ["Run.task_weights=(1.0,)"], "for 2 tasks: give each a share"),
        ("math_code", ["Run.task_weights=(1.0, 0.0)"], "must be a tuple of float above 0 or None, not"),
        ("scalerl_8b", ["Evaluation.prompts=2000"], "exceeds held_out_size"),
        ("scalerl_8b", ["ForcedInterruption.latest=14336"], "no room for an answer"),
        ("leave_one_out/length_control", ["LengthPenalty.max_tokens=20000"], "beyond max_tokens"),
        ("scalerl_8b", ["GSPO.eps_low=1e-3"], "has no effect"),
        (
            "scalerl_8b",
            ["Recipe.loss=@GSPO()", "GSPO.eps_low=0.0"],
            "must be float above 0 and below 1, not 0.0",
        ),
        ("scalerl_8b", ["Evaluation.fit_since=9000.0"], "leave no window"),
        ("scalerl_8b", ["TrainerConfig.fp32_head=False"], "bind Recipe.fp32_head"),
        ("scalerl_8b", ["TrainerConfig.expert_bias=0.01"], "this model is dense"),
        ("scalerl_17bx16", ["GeneratorConfig.expert_bias=True"], r"bind TrainerConfig\.expert_bias"),
    ],
)
def test_choices_that_contradict_each_other_are_refused_in_one_line(name: str, sets: list[str], says: str) -> None:
    with pytest.raises(LabError, match=says) as refusal:
        resolve(name, sets)
    assert "\n" not in str(refusal.value)
