"""A small tree of configurable classes with every kind of field, for the tests of `scalelab.experiment`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalelab.experiment.registry import Registry


@dataclass(frozen=True)
class ToyOptimizer:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr {self.lr} must not be negative: raise it")


@dataclass(frozen=True)
class ToyClip:
    low: float = 0.2
    high: float = 0.2


@dataclass(frozen=True)
class ToyTruncate:
    limit: float = 5.0


@dataclass(frozen=True)
class ToyTask:
    name: str
    weight: float = 1.0
    levels: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class ToyTrainer:
    steps: int
    optimizer: ToyOptimizer = field(default_factory=ToyOptimizer)
    warmup: ToyOptimizer = ToyOptimizer(lr=0.5)
    dtype: Literal["float32", "bfloat16"] = "float32"
    fused: bool = False


@dataclass(frozen=True)
class ToyRun:
    loss: ToyClip | ToyTruncate
    trainer: ToyTrainer
    tasks: tuple[ToyTask, ...] = (ToyTask("a"), ToyTask("b", 2.0))
    shares: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.tasks) > self.trainer.steps:
            raise ValueError(
                f"{len(self.tasks)} tasks need more than {self.trainer.steps} steps: raise ToyTrainer.steps"
            )


TOYS = Registry(ToyRun, (ToyOptimizer, ToyClip, ToyTruncate, ToyTask, ToyTrainer))
