"""Shares of right and wrong verdicts of `compare`, on simulated pairs of recipes; resumable.

A pair has 25 evaluations of each seed on 250 fixed prompts of unequal difficulty with 8 samples each, and AR(1) drift
of 0.004. The generator uses none of the product's code.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from curve_tables.common import markdown, sigmoid
from scalelab.curves import Analysis, FitError, Options, analyse, compare, curve
from scalelab.reading.curve import binomial_stderr

CELLS = [
    *((seeds, spread, 0.0) for seeds in (2, 4, 8) for spread in (0.0125, 0.03)),
    *((seeds, 0.0125, 0.02) for seeds in (2, 4, 8)),
]
"""Seeds of each recipe, spread of A between seeds, difference of the curves at the end."""

PROMPTS, SAMPLES, MARGIN = 250, 8, 0.02


def verdicts_section(pairs: int, folder: Path) -> str:
    """Words by seeds, spread and true difference; simulates what the folder lacks, cell after cell in turns."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdicts.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(one["cell"], one["pair"]) for one in found}
    with path.open("a") as file:
        for pair in range(pairs):
            for cell in range(len(CELLS)):
                if (cell, pair) not in done:
                    found.append(judged(cell, pair))
                    file.write(json.dumps(found[-1]) + "\n")
                    file.flush()
    return _table(found)


def judged(cell: int, pair: int) -> dict[str, Any]:
    """The verdict on one simulated pair, and if its interval and its bound hold."""
    seeds, spread, difference = CELLS[cell]
    rng = np.random.default_rng([77, pair, cell])
    R0, B, ratio = rng.uniform(0.1, 0.4), rng.uniform(1.2, 2.2), rng.uniform(2.5, 8)
    A, compute = R0 + rng.uniform(0.2, 0.45), np.arange(26) / 25 * ratio
    gain = difference / float(sigmoid(compute[-1:], 0, 1, B, 1.0)[0])
    hard = rng.normal(0, 2.0, PROMPTS)
    try:
        fits = [
            _recipe(name, rng, compute, (R0, top, B), hard, seeds, spread)
            for name, top in (("base", A), ("other", A + gain))
        ]
    except FitError:
        return {"cell": cell, "pair": pair, "word": "refused"}
    [found] = compare(fits, margin=MARGIN)
    gap = next(entry for entry in found.entries if entry.run == "other").differences["base"]
    held = gap.interval[0] <= difference <= gap.interval[1]
    verdict = {"word": found.verdicts["other"], "holds": held, "bound": gap.bound >= difference}
    return {"cell": cell, "pair": pair, **verdict}


def _recipe(
    name: str,
    rng: np.random.Generator,
    compute: np.ndarray,
    shape: tuple[float, float, float],
    hard: np.ndarray,
    seeds: int,
    spread: float,
) -> Analysis:
    R0, A, B = shape
    rates = []
    for _ in range(seeds):
        clean = sigmoid(compute, R0, A + spread * rng.standard_normal(), B, 1.0)
        drift = np.zeros(len(compute))
        for at in range(1, len(compute)):
            drift[at] = 0.7 * drift[at - 1] + np.sqrt(1 - 0.49) * rng.normal(0, 0.004)
        rates.append(_evaluations(rng, hard, np.clip(clean + drift, 0.001, 0.999)))
    rate = np.concatenate(rates)
    errors = [binomial_stderr(one, PROMPTS * SAMPLES) for one in rate.tolist()]
    names = [f"{name} {seed}" for seed in range(seeds) for _ in compute]
    return analyse(curve(np.tile(compute, seeds), rate, errors, seed=names, run=name), Options(checks=False))


def _evaluations(rng: np.random.Generator, hard: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Measured pass rates on these prompts: logits of the prompts, shifted so that their mean is the rate."""
    low, high = np.full(len(rate), -15.0), np.full(len(rate), 15.0)
    for _ in range(26):
        middle = (low + high) / 2
        below = (1 / (1 + np.exp(-(middle[:, None] + hard)))).mean(1) < rate
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return rng.binomial(SAMPLES, 1 / (1 + np.exp(-(middle[:, None] + hard)))).mean(1) / SAMPLES


def _table(found: list[dict[str, Any]]) -> str:
    rows = []
    for at, (seeds, spread, difference) in enumerate(CELLS):
        mine = [one for one in found if one["cell"] == at and one["word"] != "refused"]
        words, count = Counter(one["word"] for one in mine), max(len(mine), 1)
        shares = [f"{words[word] / count:.0%}" for word in ("better", "worse", "equal", "cannot tell")]
        kept = [f"{np.mean([one[key] for one in mine] or [np.nan]):.0%}" for key in ("holds", "bound")]
        rows.append([seeds, spread, f"{difference:g}", *shares, *kept, len(mine)])
    header = ["seeds", "spread", "difference", "better", "worse", "equal", "cannot tell"]
    return markdown([*header, "80 % interval holds", "stated bound holds", "pairs"], rows)
