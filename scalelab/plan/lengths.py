"""Lengths of completions, for plans and simulations: a log-normal, or what a run recorded.

Axes: `_P` prompts, `_G` the generations of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from scalelab.errors import LabError
from scalelab.parquet import take_rows
from scalelab.recipe.length_control import ForcedInterruption
from scalelab.run.config import Run
from scalelab.run.settings import TaskLimits, limits_of, task_shares

# The share of an answer in the room that the limit leaves after the last place for an interruption.
ANSWER_SHARE = 0.5

PROMPT = 256
"""Tokens of a prompt, as assumed of every run whose engines have room for it."""

# The share of the variance of log length that lies between prompts.
PROMPT_SHARE = 0.5

# Quantiles of the length, and of the place of an interruption, that moments are computed from.
LEVELS, PLACES = 4096, 32


@dataclass(frozen=True)
class Moments:
    """Moments of a completion's length in tokens.

    Attributes:
        mean: E[L].
        square: E[L²].
        most: the longest there is.
    """

    mean: float
    square: float
    most: int


class Lengths(Protocol):
    """A distribution of completion lengths."""

    def draw(self, rng: np.random.Generator, groups: int, generations: int) -> np.ndarray:
        """Draw int[groups, generations]: tokens of each completion, at least 1."""

    def moments(self) -> Moments:
        """Compute mean, mean square and maximum."""

    def describe(self) -> str:
        """Describe the distribution in words."""


@dataclass(frozen=True)
class LogNormal:
    """Long-tailed lengths; the completions of one prompt resemble each other, since prompts differ in difficulty.

    log length = log median + sigma · (√share · z_prompt + √(1 − share) · z_completion), cut at `max_tokens`. With an
    interruption, what would be longer than its drawn place ends there, plus half of the room left for the answer.
    """

    median: float
    sigma: float
    max_tokens: int
    interrupt: tuple[int, int] | None = None
    """First and last place of a forced interruption, in tokens."""

    def __post_init__(self) -> None:
        if not (0 < self.median <= self.max_tokens and self.sigma >= 0):
            raise LabError(
                f"lengths with a median of {self.median:g} and sigma {self.sigma:g}, up to {self.max_tokens} tokens: "
                "the median must lie between 0 and the limit, and sigma be 0 or more"
            )

    @classmethod
    def of_limits(cls, limits: TaskLimits, median: float, sigma: float) -> LogNormal:
        """The lengths of a task's completions."""
        control = limits.control
        interrupt = (control.earliest, control.latest) if isinstance(control, ForcedInterruption) else None
        return cls(median, sigma, limits.max_tokens, interrupt=interrupt)

    def draw(self, rng: np.random.Generator, groups: int, generations: int) -> np.ndarray:
        """Draw int[groups, generations]: tokens of each completion, at least 1."""
        z_P, z_PG = rng.standard_normal((groups, 1)), rng.standard_normal((groups, generations))
        log_PG = self.sigma * (np.sqrt(PROMPT_SHARE) * z_P + np.sqrt(1 - PROMPT_SHARE) * z_PG)
        tokens_PG = self.median * np.exp(log_PG)
        if self.interrupt is not None:
            place_PG = rng.integers(*self.interrupt, size=tokens_PG.shape, endpoint=True)
            tokens_PG = self.interrupted(tokens_PG, place_PG)
        return np.clip(np.rint(tokens_PG), 1, self.max_tokens).astype(np.int64)

    def moments(self) -> Moments:
        """Compute the moments from `LEVELS` evenly spaced quantiles of the length and `PLACES` of the interruption."""
        return _moments(self)

    def interrupted(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        """End what is longer than its place there, plus the answer."""
        assert self.interrupt is not None
        return np.where(tokens > places, places + ANSWER_SHARE * (self.max_tokens - self.interrupt[1]), tokens)

    def describe(self) -> str:
        """Describe the distribution in words."""
        return f"log-normal, median {self.median:g}, sigma {self.sigma:g}, at most {self.max_tokens} tokens"


@lru_cache(maxsize=512)
def _moments(of: LogNormal) -> Moments:
    from scipy.special import ndtri

    tokens = of.median * np.exp(of.sigma * ndtri((np.arange(LEVELS) + 0.5) / LEVELS))
    if of.interrupt is not None:
        first, last = of.interrupt
        places = first + (last - first) * (np.arange(PLACES) + 0.5) / PLACES
        tokens = of.interrupted(tokens, places[:, None])
    tokens = np.clip(tokens, 1, of.max_tokens)
    return Moments(float(tokens.mean()), float((tokens**2).mean()), of.max_tokens)


@dataclass(frozen=True)
class Mixture:
    """Lengths of several tasks; a group is of one of them.

    Attributes:
        parts: lengths and share of each task, by its name.
    """

    parts: tuple[tuple[str, LogNormal, float], ...]

    def draw(self, rng: np.random.Generator, groups: int, generations: int) -> np.ndarray:
        """Draw int[groups, generations]: tokens of each completion, at least 1."""
        of_P = rng.choice(len(self.parts), size=groups, p=[share for _, _, share in self.parts])
        tokens_PG = np.empty((groups, generations), dtype=np.int64)
        for number, (_, lengths, _) in enumerate(self.parts):
            tokens_PG[of_P == number] = lengths.draw(rng, int((of_P == number).sum()), generations)
        return tokens_PG

    def moments(self) -> Moments:
        """Compute the moments: those of the parts, each by its share."""
        found = [(lengths.moments(), share) for _, lengths, share in self.parts]
        mean, square = (sum(share * getattr(one, name) for one, share in found) for name in ("mean", "square"))
        return Moments(float(mean), float(square), max(one.most for one, _ in found))

    def describe(self) -> str:
        """Describe the distribution in words."""
        return "; ".join(f"{name} ({share:.0%}): {lengths.describe()}" for name, lengths, share in self.parts)


def fitting_prompt(run: Run, prompt: int = PROMPT) -> int:
    """Mean tokens of a run's prompts: as given if engines have room for them, else a quarter of that room."""
    room = run.generator.max_model_len - run.recipe.max_tokens
    return prompt if prompt <= room else round(room / 4)


def lengths_of(run: Run, sigma: float, share: float = 0.5, median: float | None = None) -> LogNormal | Mixture:
    """The lengths of a run's completions, by what its tasks say of theirs.

    Args:
        run: the run.
        sigma: standard deviation of the log length.
        share: median as a share of a task's limit, where neither the task nor `median` says it.
        median: median of all tasks, in tokens.
    """
    shares, parts = task_shares([task.name for task in run.tasks], run.task_weights), []
    for task in run.tasks:
        limits = limits_of(task, run.recipe)
        middle = median or limits.typical or share * limits.max_tokens
        parts.append((task.name, LogNormal.of_limits(limits, middle, sigma), shares[task.name]))
    return parts[0][1] if len({lengths for _, lengths, _ in parts}) == 1 else Mixture(tuple(parts))


@dataclass(frozen=True, eq=False)
class Recorded:
    """Lengths that a run recorded: a group draws one of its prompts, and then of that prompt's completions."""

    by_prompt: tuple[np.ndarray, ...]
    source: str

    @classmethod
    def read(cls, run: Path) -> Recorded:
        """The lengths in `rollouts/*.parquet` of a run folder.

        Raises:
            LabError: there are none, or a file does not say how many tokens they have.
        """
        files = sorted((run / "rollouts").glob("*.parquet"))
        if not files:
            raise LabError(f"{run}/rollouts holds no *.parquet: name the folder of a run that evaluated at least once")
        by_prompt: dict[str, list[int]] = {}
        for file in files:
            columns = take_rows(file, None, ["prompt_id", "tokens"])
            if len(columns) < 2 or not all(isinstance(tokens, int) for tokens in columns["tokens"]):
                raise LabError(f"{file} does not say how many tokens each completion of a prompt has")
            for prompt, tokens in zip(columns["prompt_id"], columns["tokens"], strict=True):
                by_prompt.setdefault(f"{file.stem}/{prompt}", []).append(max(1, tokens))
        if not by_prompt:
            raise LabError(f"{run}/rollouts holds no completions: name the folder of another run")
        return cls(tuple(np.array(tokens, np.int64) for tokens in by_prompt.values()), str(run))

    def draw(self, rng: np.random.Generator, groups: int, generations: int) -> np.ndarray:
        """Draw int[groups, generations]: tokens of each completion, at least 1."""
        chosen_P = rng.integers(len(self.by_prompt), size=groups)
        return np.stack([rng.choice(self.by_prompt[prompt], size=generations) for prompt in chosen_P])

    def moments(self) -> Moments:
        """Compute the moments over what `draw` gives: every prompt alike, and every completion of a prompt."""
        mean = np.mean([tokens.mean() for tokens in self.by_prompt])
        square = np.mean([(tokens.astype(float) ** 2).mean() for tokens in self.by_prompt])
        return Moments(float(mean), float(square), int(max(tokens.max() for tokens in self.by_prompt)))

    def describe(self) -> str:
        """Describe the distribution in words."""
        return f"as recorded in {self.source}, {len(self.by_prompt)} groups"
