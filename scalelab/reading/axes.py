"""A run's place on the axes of a scaling law, from the numbers in its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_LAYERS = 10_000
"""Layers beyond which a model is not counted: no model has as many."""


def config_axes(settings: Mapping[str, Any], tasks: Sequence[str] = ()) -> dict[str, float]:
    """Numbers that a run's configuration binds, and the paper's axes by the names they have there (ScaleRL §5).

    Besides `batch`, `length` and `generations` these are `active` and `parameters`, counted from the model's shape, and
    `share_TASK`, the share of each task among the prompts.

    Args:
        settings: values of the run's `config.gin` by key.
        tasks: names of the run's tasks, in their order.
    """
    found = {
        name: float(value)
        for name, value in settings.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    }
    prompts, generations = found.get("Recipe.prompts_per_step"), found.get("Recipe.generations_per_prompt")
    if prompts and generations:
        found |= {"batch": prompts * generations, "generations": generations}
    if "Recipe.max_tokens" in found:
        found["length"] = found["Recipe.max_tokens"]
    return found | _model_axes(settings) | _shares(settings, tasks)


def _model_axes(settings: Mapping[str, Any]) -> dict[str, float]:
    """Parameters of the model in all, and those that a token uses; nothing where its shape makes no sense."""
    from moe.errors import MoeError
    from moe.model import families as models  # pydantic, which fits of tables do without
    from moe.model.size import parameters

    name = str(settings.get("Run.model", "")).removeprefix("@").removesuffix("()").rpartition(".")[2]
    family = getattr(models, name, None)
    if not (isinstance(family, type) and issubclass(family, models.DecoderConfig)):
        return {}
    prefix = f"{family.__name__}."
    fields = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    fields = {name: value for name, value in fields.items() if not (isinstance(value, str) and value.startswith("@"))}
    try:
        model = family(**fields)
        if model.num_hidden_layers > MOST_LAYERS:
            return {}
        counted = parameters(model.to_hf())
        return {"active": float(counted.active), "parameters": float(counted.total)}
    except (ValueError, TypeError, ArithmeticError, MoeError):
        return {}


def _shares(settings: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, float]:
    """Share of each task among the prompts drawn; without weights all are drawn alike."""
    bound = settings.get("Run.tasks")
    if not isinstance(bound, tuple) or len(bound) != len(tasks):
        return {}
    count = len(tasks)
    weights = settings.get("Run.task_weights")
    if weights is None:
        weights = (1.0,) * count
    if not isinstance(weights, tuple) or len(weights) != count:
        return {}
    if not all(isinstance(weight, int | float) and 0 < weight < 1e300 for weight in weights):
        return {}
    return {f"share_{task}": weight / sum(weights) for task, weight in zip(tasks, weights)}
