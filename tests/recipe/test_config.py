"""A recipe is checked when it is written, without torch."""

import subprocess
import sys

import pytest

from scalelab.recipe.length_control import ForcedInterruption, LengthPenalty
from scalelab.recipe.losses import CISPO
from scalelab.recipe.recipe import Recipe


def test_defaults_are_scalerl():
    recipe = Recipe()
    assert recipe.loss == CISPO(eps_max=5.0)
    assert (recipe.aggregation, recipe.advantage_norm, recipe.zero_variance) == ("prompt", "batch", "drop")
    assert (recipe.retire_at, recipe.fp32_head, recipe.completions_per_step) == (0.9, "both", 768)
    assert recipe.length_control == ForcedInterruption()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"aggregation": "promt"}, "aggregation 'promt' is not one of prompt, sample, token"),
        ({"advantage_norm": "group"}, "advantage_norm"),
        ({"zero_variance": True}, "zero_variance"),
        ({"fp32_head": "off"}, "fp32_head"),
        ({"retire_at": 0.0}, "retire_at"),
        ({"retire_at": 90}, "retire_at"),
        ({"prompts_per_step": 0}, "prompts_per_step"),
        ({"generations_per_prompt": 1}, "compares a completion"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 0.0}, "temperature"),
        ({"max_tokens": 1024}, "no room for an answer"),
        ({"length_control": LengthPenalty(), "max_tokens": 1024}, "beyond max_tokens"),
    ],
)
def test_what_makes_no_recipe_is_refused_in_one_line(change, cause):
    with pytest.raises(ValueError, match=cause) as caught:
        Recipe(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ForcedInterruption(phrase="Stop."),
        lambda: ForcedInterruption(earliest=5, latest=4),
        lambda: ForcedInterruption(earliest=-1),
        lambda: LengthPenalty(max_tokens=10, cache_tokens=11),
        lambda: LengthPenalty(cache_tokens=0),
    ],
)
def test_length_controls_that_contradict_themselves_are_refused(build):
    with pytest.raises(ValueError, match=r"need|</think>"):
        build()


@pytest.mark.parametrize(
    ("where", "trainer", "generator"),
    [("both", True, True), ("trainer", True, False), ("generator", False, True), ("none", False, False)],
)
def test_fp32_head_names_its_sides(where, trainer, generator):
    recipe = Recipe(fp32_head=where)
    assert (recipe.trainer_fp32_head, recipe.generator_fp32_head) == (trainer, generator)


def test_the_recipe_imports_without_torch():
    code = "import sys; from scalelab.recipe import recipe, step; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
