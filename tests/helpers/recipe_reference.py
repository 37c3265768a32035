"""The recipe's formulas once more, slowly: Python loops over Python floats, straight from the papers.

Nothing here shares code with `scalelab.recipe`. Numbers are float64; lists are nested as prompt → completion → token.
"""

from __future__ import annotations

import math

import numpy as np


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


def length_penalty(length: int, l_max: int, l_cache: int) -> float:
    return min(max((l_max - length) / l_cache - 1.0, -1.0), 0.0)


def advantages(rewards: list[list[float]], norm: str) -> list[list[float]]:
    """Â_i = r_i − mean(r), over the deviation of the batch, of the prompt, or of nothing; 0 / 0 is 0."""
    raw = []
    for group in rewards:
        centre = mean(group)
        raw.append([0.0 if len(set(group)) == 1 else r - centre for r in group])
    everything = [a for group in raw for a in group]
    result = []
    for group in raw:
        scale = {"batch": deviation(everything), "prompt": deviation(group), "none": 1.0}[norm]
        result.append([a / scale if a != 0.0 else 0.0 for a in group])
    return result


def aggregate(values: list[list[list[float]]], how: str, longest: int = 14 * 1024) -> float:
    """Average per-token values; completions are lists of the values of their sampled tokens."""
    if how == "constant":
        completions = [sum(c) / longest for group in values for c in group]
        return sum(completions) / len(completions)
    if how == "prompt":
        prompts = []
        for group in values:
            tokens = [v for completion in group for v in completion]
            prompts.append(sum(tokens) / len(tokens) if tokens else 0.0)
        return sum(prompts) / len(prompts)
    if how == "sample":
        completions = [sum(c) / len(c) if c else 0.0 for group in values for c in group]
        return sum(completions) / len(completions)
    tokens = [v for group in values for c in group for v in c]
    return sum(tokens) / len(tokens) if tokens else 0.0


def ratio(new: float, old: float) -> float:
    return math.exp(min(max(new - old, -20.0), 20.0))


def sequence_ratio(new: list[float], old: list[float]) -> float:
    """(π_train(y) / π_gen(y))^(1/|y|)."""
    return ratio(sum(new) / len(new), sum(old) / len(old))


def surrogate(rho: float, advantage: float, low: float, high: float, dual: float = math.inf) -> tuple[float, float]:
    """min(ρÂ, clip(ρ)Â), at least dual · Â where Â < 0, and its derivative by log ρ."""
    if advantage < 0 and rho > dual:
        return dual * advantage, 0.0
    clipped = min(max(rho, 1.0 - low), 1.0 + high)
    if clipped * advantage < rho * advantage:
        return clipped * advantage, 0.0
    return rho * advantage, rho * advantage


def objective_terms(
    loss: str, new: list[float], old: list[float], advantage: float, **eps: float
) -> tuple[list[float], np.ndarray]:
    """Per sampled token of one completion: the term of the objective, and d(term) / d(log π of token u), all u.

    Returns the terms [t] and their Jacobian [t][u].
    """
    size = len(new)
    terms, jacobian = [], np.zeros((size, size))
    for t in range(size):
        if loss == "cispo":
            weight = min(ratio(new[t], old[t]), eps["eps_max"])
            terms.append(weight * advantage * new[t])
            jacobian[t, t] = weight * advantage
        elif loss == "token":
            value, slope = surrogate(ratio(new[t], old[t]), advantage, **eps)
            terms.append(value)
            jacobian[t, t] = slope if abs(new[t] - old[t]) <= 20.0 else 0.0
        else:
            value, slope = surrogate(sequence_ratio(new, old), advantage, **eps)
            terms.append(value)
            bounded = abs(sum(new) / size - sum(old) / size) <= 20.0
            jacobian[t, :] = slope / size if bounded else 0.0
    return terms, jacobian
