"""Bindings in the `config.gin` files of runs as text for the page, and the differences between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalelab.experiment import SEED, settings_in

PROMPTS, GENERATIONS, TOKENS = "Recipe.prompts_per_step", "Recipe.generations_per_prompt", "Recipe.max_tokens"

MOVES_ALONG = (
    PROMPTS,
    GENERATIONS,
    TOKENS,
    "GeneratorConfig.max_model_len",
    "ForcedInterruption.earliest",
    "ForcedInterruption.latest",
    "LengthPenalty.max_tokens",
    "LengthPenalty.cache_tokens",
    SEED,
)
"""Bindings that may differ between runs on one scaling axis: they follow the axis, or do not matter for scale."""


def bindings(config: str) -> dict[str, str]:
    """The bindings of a configuration, by key, each value as gin writes it.

    Args:
        config: the text; whoever wrote it.

    Raises:
        LabError: it cannot be read as gin.
    """
    return {key: _written(value) for key, value in settings_in(config, "config.gin").items()}


def _written(value: Any) -> str:
    """A value as gin writes it; objects and macros are known by the sign that they begin with."""
    if isinstance(value, str):
        return value if value.startswith(("@", "%")) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_written, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    return repr(value)


def differences(settings: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """The bindings in which runs differ, seeds apart.

    Args:
        settings: the bindings of each run, by the run's name; a run without a configuration has none.

    Returns:
        Rows `{"name", "values": {run: text, or None where the run does not have the binding}}`.
    """
    known = {run: found for run, found in settings.items() if found}
    names = dict.fromkeys(name for found in known.values() for name in found)
    rows = []
    for name in names:
        values = {run: found.get(name) for run, found in known.items()}
        if len(set(values.values())) > 1 and name != SEED:
            rows.append({"name": name, "values": values})
    return rows


@dataclass(frozen=True)
class _AxesPlace:
    """A run's place on the scaling axes, and the rest of its configuration."""

    values: dict[str, int]
    rest: frozenset[tuple[str, str]]


def axes(settings: Mapping[str, Mapping[str, str]], fits: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The axes along which at least two runs lie that differ in nothing else (ScaleRL §5).

    Args:
        settings: the bindings of each run, by the run's name.
        fits: records of fits, with `run`, `task`, `parameters` and `intervals`.

    Returns:
        `{"name", "points": [{"at", "run", "task", "A", "interval"}]}`, points by their place on the axis.
    """
    places = {run: place for run, found in settings.items() if (place := _place(found)) is not None}
    found_axes = []
    for name in ("completions per step", "generations per prompt", "tokens per completion"):
        groups: dict[object, list[str]] = {}
        for run, place in places.items():
            others = tuple(value for axis, value in place.values.items() if axis != name)
            groups.setdefault((others, place.rest), []).append(run)
        for runs in groups.values():
            if len({places[run].values[name] for run in runs}) > 1:
                points = [
                    {
                        "at": places[fit["run"]].values[name],
                        "run": fit["run"],
                        "task": fit["task"],
                        "A": fit["parameters"]["A"],
                        "interval": fit["intervals"]["A"],
                    }
                    for fit in fits
                    if fit["run"] in runs and "A" in fit.get("intervals", {})
                ]
                if len({point["at"] for point in points}) > 1:
                    found_axes.append({"name": name, "points": sorted(points, key=lambda point: point["at"])})
    return found_axes


def _integer(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _place(found: Mapping[str, str]) -> _AxesPlace | None:
    prompts, generations, tokens = (_integer(found, name) for name in (PROMPTS, GENERATIONS, TOKENS))
    if prompts is None or generations is None or tokens is None:
        return None
    values = {
        "completions per step": prompts * generations,
        "generations per prompt": generations,
        "tokens per completion": tokens,
    }
    return _AxesPlace(values, frozenset(pair for pair in found.items() if pair[0] not in MOVES_ALONG))
