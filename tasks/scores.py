"""mean@k, pass@k and majority@k of graded completions, with standard errors over prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.errors import TaskError


@dataclass(frozen=True)
class Score:
    """An estimate over prompts.

    Attributes:
        value: mean over prompts.
        stderr: standard error of that mean, prompts taken as i.i.d.; nan with fewer than two.
        prompts: number of prompts.
    """

    value: float
    stderr: float
    prompts: int


def mean_at_k(rewards: Sequence[Sequence[float]]) -> Score:
    """Mean reward of a completion: the expected pass rate (ScaleRL §2.1 uses k = 16).

    Completions of one prompt are alike, so they do not count as independent samples: with the prompts' own means m_p,
    the error is sqrt(Σ_p (m_p − mean)² / (P − 1) / P). It is the cluster-robust error of Miller, *Adding Error Bars to
    Evals* (arXiv 2411.00640, §2.2) with the factor P / (P − 1) for few clusters, and it says how far another draw of
    prompts *and* completions might land.

    Args:
        rewards: per prompt, the reward of each of its completions, from 0 to 1.

    Raises:
        TaskError: no prompts, or one without completions.
    """
    _check(rewards, 1)
    return _score([sum(of_prompt) / len(of_prompt) for of_prompt in rewards])


def passed(outcome: str) -> bool:
    """True if a completion counts as passed: by the outcome that its task gave, whatever the reward."""
    return outcome == "passed"


def pass_at_k(passes: Sequence[Sequence[float]], k: int) -> Score:
    """Chance that at least one of `k` completions passes, without bias: 1 − C(n−c, k) / C(n, k) (Chen et al., 2021).

    Args:
        passes: per prompt, for each of its n ≥ k completions 1 if it passed (c of them) and 0 if not (`passed`).
        k: number of completions.

    Raises:
        TaskError: no prompts, one with fewer than `k` completions, `k` below 1, or a value that is neither.
    """
    if k < 1:
        raise TaskError(f"pass@{k} means nothing: give k of at least 1")
    _check(passes, k)
    if partial := next((one for of_prompt in passes for one in of_prompt if one not in (0, 1)), None):
        raise TaskError(f"pass@{k} takes 1 for a completion that passed and 0 for another, not {partial:g}")
    return _score([1 - _all_fail(len(of_prompt), int(sum(of_prompt)), k) for of_prompt in passes])


def majority_at_k(answers: Sequence[Sequence[tuple[str | None, float]]], k: int) -> Score:
    """Mean reward of the answer that most of `k` completions agree on (Wang et al., *Self-Consistency*, 2203.11171).

    A prompt's n completions make ⌊n/k⌋ votes of k, one after the other, so that the estimate has no bias. Completions
    without an answer do not vote. Answers with equally many votes count the mean of theirs; without any, it is 0.

    Args:
        answers: per prompt, for each of its n ≥ k completions the answer (None: it has none) and its reward.
        k: number of completions that vote.

    Raises:
        TaskError: no prompts, one with fewer than `k` completions, or `k` below 1.
    """
    if k < 1:
        raise TaskError(f"majority@{k} means nothing: give k of at least 1")
    _check(answers, k)
    values = []
    for of_prompt in answers:
        votes = [_vote(of_prompt[start : start + k]) for start in range(0, len(of_prompt) - k + 1, k)]
        values.append(sum(votes) / len(votes))
    return _score(values)


def _vote(answers: Sequence[tuple[str | None, float]]) -> float:
    """Mean reward of the answers that most completions give; 0 if none gives one."""
    rewards: dict[str, list[float]] = {}
    for answer, reward in answers:
        if answer is not None:
            rewards.setdefault(answer, []).append(reward)
    most = max(map(len, rewards.values()), default=0)
    won = [sum(given) / most for given in rewards.values() if len(given) == most]
    return sum(won) / len(won) if won else 0.0


def _all_fail(n: int, passed: int, k: int) -> float:
    return math.comb(n - passed, k) / math.comb(n, k)


def _check(rewards: Sequence[Sequence[object]], at_least: int) -> None:
    if not len(rewards):
        raise TaskError("a score needs the rewards of one prompt at least")
    fewest = min(map(len, rewards))
    if fewest < at_least:
        raise TaskError(f"a prompt has {fewest} completions, {at_least} are needed: sample more, or lower k")


def _score(values: list[float]) -> Score:
    count = len(values)
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else math.nan
    return Score(mean, math.sqrt(variance / count), count)
