"""A step's training sequences, laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe.sequences import TrainingSequence
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.step import plan_step
from scalelab.recipe.types import Group


def build_step(
    groups: Sequence[Group], recipe: Recipe, trainer_version: int
) -> tuple[list[TrainingSequence], dict[str, Any]]:
    """Plan a step, and lay its sequences out, as a trainer's rank does."""
    planned, metrics = plan_step(groups, recipe, trainer_version)
    return planned.built(), metrics
