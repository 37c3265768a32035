"""Simulated sweeps: how often the best run is ended early; resumable."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curve_tables.common import markdown, sigmoid
from curve_tables.families import any_noise, log_uniform
from scalelab.curves import Analysis, Curve, FitError, Options, analyse, curve
from scalelab.curves.data import binomial_stderr
from scalelab.curves.stopping import SHARE, chances_to_be_best

QUICK = Options(checks=False)


@dataclass(frozen=True)
class Kind:
    """A kind of sweep; compute is in units of the budget.

    Attributes:
        recipes: how many.
        seeds: runs of each.
        effect: standard deviation of A between recipes; with 0 they have one curve.
        spread: standard deviation of A between runs of one recipe.
        points: evaluations of each run.
    """

    recipes: int
    seeds: int
    effect: float
    spread: float = 0.0125
    points: int = 16


STOPPED = {
    "five recipes, no difference": Kind(5, 1, 0.0),
    "five recipes, differences of 0.01": Kind(5, 1, 0.01),
    "five recipes, differences of 0.03": Kind(5, 1, 0.03),
}

ERRORS = (0.02, 0.05, 0.2)
"""Bounds on the chance to end the best, side by side on the same runs."""


@dataclass(frozen=True)
class SimulatedSweep:
    """The runs of a sweep, one curve for each recipe; pass rate of each recipe, and of its runs, at the budget."""

    curves: tuple[Curve, ...]
    truth: tuple[float, ...]
    own: tuple[float, ...]


def simulate_sweep(kind: Kind, rng: np.random.Generator) -> SimulatedSweep:
    """Draw the recipes of a sweep and the evaluations of their runs."""
    R0, A, B, C_mid = rng.uniform(0.1, 0.4), rng.uniform(0.55, 0.75), log_uniform(rng, 1.2, 2.4), 1 / rng.uniform(3, 8)
    compute, samples = np.arange(kind.points + 1) / kind.points, int(log_uniform(rng, 1000, 16000))
    curves, truth, own = [], [], []
    for index in range(kind.recipes):
        shift = kind.effect * rng.standard_normal()
        own_B, own_C_mid = B, C_mid
        if kind.effect:
            own_B, own_C_mid = B * np.exp(0.1 * rng.standard_normal()), C_mid * np.exp(0.15 * rng.standard_normal())
        clean = sigmoid(compute, R0, A + shift, own_B, own_C_mid)
        truth.append(float(clean[-1]))
        gain, rates, offsets = (clean - R0) / (A + shift - R0), [], kind.spread * rng.standard_normal(kind.seeds)
        own.append(float(clean[-1] + offsets.mean() * gain[-1]))
        for offset in offsets:
            rate = clean + offset * gain + any_noise(rng, compute)
            rates += (rng.binomial(samples, np.clip(rate, 0, 1)) / samples).tolist()
        seeds = np.repeat(np.arange(kind.seeds) + 10 * index, kind.points + 1)  # seeds of two recipes share nothing
        errors = [binomial_stderr(p, samples) for p in rates]
        curves.append(curve(np.tile(compute, kind.seeds), rates, errors, seed=seeds.tolist(), run=f"recipe {index}"))
    return SimulatedSweep(tuple(curves), tuple(truth), tuple(own))


def judge_stopping(name: str, index: int) -> dict[str, Any]:
    """Run recipes side by side, look after every evaluation, and end those that the rule ends, for every error."""
    kind = STOPPED[name]
    sweep = simulate_sweep(kind, np.random.default_rng([index, zlib.crc32(name.encode())]))
    cache: dict[tuple[int, int], Analysis | None] = {}

    def fitted(recipe: int, points: int) -> Analysis | None:
        if (recipe, points) not in cache:
            item = sweep.curves[recipe]
            try:
                cache[recipe, points] = analyse(item.select(np.arange(len(item)) <= points), QUICK)
            except FitError:
                cache[recipe, points] = None
        return cache[recipe, points]

    ended: dict[float, dict[int, int]] = {error: {} for error in ERRORS}
    for points in range(max(4, int(SHARE * kind.points)), kind.points):
        known: dict[tuple[int, ...], dict[str, float]] = {}
        for error in ERRORS:
            upto = tuple(ended[error].get(recipe, points) for recipe in range(kind.recipes))
            if upto not in known:
                present = [item for at in enumerate(upto) if (item := fitted(*at)) is not None]
                known[upto] = chances_to_be_best(present, 1.0) if len(present) > 1 else {}
            chances = known[upto]
            for recipe in range(kind.recipes):
                chance = chances.get(f"recipe {recipe}", 1.0)
                if recipe not in ended[error] and chance < error / (kind.recipes - 1):
                    ended[error][recipe] = points
    best = int(np.argmax(sweep.own))
    left = {error: sum(kind.points - points for points in found.values()) for error, found in ended.items()}
    return {
        "kind": name,
        "index": index,
        "best_ended": [best in ended[error] for error in ERRORS],
        "ended": [len(ended[error]) for error in ERRORS],
        "saved": [left[error] / (kind.points * kind.recipes) for error in ERRORS],
        "lost": [
            max(sweep.own) - max(sweep.own[one] for one in range(kind.recipes) if one not in ended[error])
            for error in ERRORS
        ],
    }


def run_kind(name: str, runs: int, folder: Path) -> None:
    """Simulate until the kind's file holds this many sweeps; what is there already is kept."""
    path = folder / f"sweep_{name.replace(' ', '_').replace(',', '').replace(':', '')}.jsonl"
    done = sum(1 for _ in path.open()) if path.exists() else 0
    with path.open("a") as file:
        for index in range(done, runs):
            file.write(json.dumps(judge_stopping(name, index)) + "\n")
            file.flush()


def _records(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.glob("sweep_*.jsonl")) for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return [one for one in found if one["kind"] in names and "refused" not in one]


def stopping_section(folder: Path) -> str:
    """Table of how often the best is ended, and what is saved."""
    rows = []
    for name in STOPPED:
        mine = _records(folder, [name])
        if not mine:
            continue
        for at, error in enumerate(ERRORS):
            rows.append(
                [
                    name,
                    len(mine),
                    f"{error:.0%}",
                    f"{np.mean([one['best_ended'][at] for one in mine]):.0%}",
                    f"{np.mean([one['ended'][at] for one in mine]):.1f}",
                    f"{np.mean([one['saved'][at] for one in mine]):.0%}",
                    f"{np.mean([one['lost'][at] for one in mine]):.4f}",
                ]
            )
    header = ["sweep", "sweeps", "stated error", "best ended", "recipes ended", "compute saved", "pass rate lost"]
    return markdown(header, rows)


def kinds_matching(words: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Kinds of sweeps whose name holds one of the words; all without any."""
    return [name for name in kinds if not words or any(word in name for word in words)]
