"""A recipe is checked when it is written, without torch."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.recipe.length_control import ForcedInterruption, LengthPenalty
from scalelab.recipe.losses import CISPO
from scalelab.recipe.recipe import FP32Head, Recipe


def test_defaults_are_scalerl() -> None:
    recipe = Recipe()
    assert recipe.loss == CISPO(eps_max=5.0)
    assert (recipe.aggregation, recipe.advantage_norm, recipe.zero_variance) == ("prompt", "batch", "drop")
    assert (recipe.retire_at, recipe.fp32_head, recipe.completions_per_step) == (0.9, "both", 768)
    assert recipe.length_control == ForcedInterruption()


def test_a_batch_grows_along_a_line_and_never_falls() -> None:
    recipe = Recipe(prompts_per_step=48, prompts_at_start=7, prompts_grow_until=10)
    assert [recipe.prompts_at(step) for step in range(12)] == [7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 48, 48]
    assert {Recipe().prompts_at(step) for step in (0, 5, 10_000)} == {48}


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["Recipe.prompts_at_start=2"], "prompts_at_start = 2 with prompts_grow_until = None: bind both"),
        (
            ["Recipe.prompts_at_start=2000", "Recipe.prompts_grow_until=5"],
            "prompts_at_start = 2000 with prompts_grow_until = 5: bind both for a batch that grows to",
        ),
        (
            ["Recipe.aggregation='promt'"],
            "must be 'prompt' or 'sample' or 'token' or 'constant', not 'promt'",
        ),
        (
            ["Recipe.advantage_norm='group'"],
            "'batch' or 'prompt' or 'none' or AdvantageNorm, not 'group'; did you",
        ),
        (["Recipe.zero_variance=True"], "zero_variance must be 'drop' or 'keep' or 'refill', not True"),
        (["Recipe.fp32_head='off'"], "fp32_head must be 'both' or 'trainer' or 'generator' or 'none', not 'off'"),
        (["Recipe.retire_at=0.0"], "retire_at must be float above 0 and at most 1 or None, not 0.0"),
        (["Recipe.retire_at=90"], "retire_at must be float above 0 and at most 1 or None, not 90"),
        (["Recipe.prompts_per_step=0"], "prompts_per_step must be int above 0, not 0"),
        (["Recipe.generations_per_prompt=1"], "generations_per_prompt must be int at least 2, not 1"),
        (["Recipe.max_tokens=0"], "max_tokens must be int above 0, not 0"),
        (["Recipe.temperature=0.0"], "temperature must be float above 0, not 0.0"),
        (["Recipe.temperature=1e400"], "temperature must be float above 0, not inf: give a finite number"),
        (["Recipe.max_tokens=30"], "no room for an answer"),
        (["Recipe.length_control=@LengthPenalty()", "LengthPenalty.max_tokens=4000"], "beyond max_tokens"),
        (["ForcedInterruption.phrase='Stop.'"], "</think>"),
        (["ForcedInterruption.earliest=5", "ForcedInterruption.latest=4"], "need earliest ≤ latest"),
        (["ForcedInterruption.earliest=-1"], "earliest must be int at least 0, not -1"),
        (["CISPO.eps_max=0.5"], "CISPO.eps_max must be float at least 1, not 0.5"),
        (["CISPO.eps_max=1e400"], "CISPO.eps_max must be float at least 1, not inf: give a finite number"),
        (["Recipe.loss=@DAPO()", "DAPO.eps_low=1.0"], "DAPO.eps_low must be float above 0 and below 1, not 1.0"),
        (["Recipe.loss=@DAPO()", "DAPO.dual_clip=1"], "DAPO.dual_clip must be float above 1 or None, not 1"),
        (["Recipe.loss=@GRPO()", "GRPO.eps=-0.2"], "GRPO.eps must be float above 0 and below 1, not -0.2"),
        (["PipelineRL.k=-1"], "PipelineRL.k must be int at least 0, not -1"),
        (["Run.schedule=@PPOOffPolicy()", "PPOOffPolicy.k=0"], "PPOOffPolicy.k must be int above 0, not 0"),
    ],
)
def test_what_makes_no_recipe_is_refused_in_one_line(sets: list[str], says: str) -> None:
    with pytest.raises(LabError) as caught:
        resolve("quickstart", sets)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"aggregation": "promt"},
        {"zero_variance": True},
        {"retire_at": 90},
        {"generations_per_prompt": 1},
        {"temperature": float("nan")},
        {"max_tokens": 1024},
        {"length_control": LengthPenalty(), "max_tokens": 1024},
    ],
)
def test_what_makes_no_recipe_is_refused_in_python_too(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Recipe(**change)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Recipe(length_control=ForcedInterruption(phrase="Stop.")),
        lambda: ForcedInterruption(earliest=5, latest=4),
        lambda: ForcedInterruption(earliest=-1),
        lambda: LengthPenalty(max_tokens=10, cache_tokens=11),
        lambda: LengthPenalty(cache_tokens=0),
    ],
)
def test_length_controls_that_contradict_themselves_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"need|</think>|greater than"):
        build()


@pytest.mark.parametrize(
    ("where", "trainer", "generator"),
    [("both", True, True), ("trainer", True, False), ("generator", False, True), ("none", False, False)],
)
def test_fp32_head_names_its_sides(where: FP32Head, trainer: bool, generator: bool) -> None:
    recipe = Recipe(fp32_head=where)
    assert (recipe.trainer_fp32_head, recipe.generator_fp32_head) == (trainer, generator)


def test_the_recipe_imports_without_torch() -> None:
    code = "import sys; from scalelab.recipe import recipe, step; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=900).returncode == 0
