"""A rank reads or draws no more than its share, checked on fake tensors, whatever the size of the model."""

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from moe.model.init import STRETCH, InitialWeights
from moe.settings import Layout
from moe.weights.hf_folder import FolderWeights
from moe.weights.links import shapes
from scalelab.hardware import device
from scalelab.rehearse.simulate import Answers, SimulatedDevice, simulated
from scalelab.rehearse.watching import Watching
from tests.helpers.rehearsals import MODELS, run_of

from moe.train.trainer import Trainer  # isort: skip  (torch's environment first, which `simulate` sets)

pytestmark = pytest.mark.slow


CUT_BY_ROWS = tuple(
    f"{name}.weight" for name in ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
)
"""Other matrices are cut by columns and read whole, or not cut."""


class Counted(FolderWeights):
    """A folder that is not there: it counts what is read of it."""

    def __init__(self, found: Mapping[str, torch.Size]) -> None:
        self.found = {name: tuple(shape) for name, shape in found.items()}
        self.read: dict[str, int] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.found

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.rows(name, 0, self.found[name])

    def rows(self, name: str, first: int, shape: tuple[int, ...]) -> torch.Tensor:
        assert 0 <= first <= self.found[name][0] - shape[0], name
        self.read[name] = self.read.get(name, 0) + math.prod(shape)
        return torch.empty(shape, dtype=torch.bfloat16)


class CountedDraws(InitialWeights):
    """Initial weights that are not drawn but counted."""

    def __init__(self, found: Mapping[str, torch.Size]) -> None:
        super().__init__(found.items(), 2, seed=1)
        self.drawn = dict.fromkeys(found, 0)

    def _draw(self, name: str, begin: int, shape: tuple[int, ...]) -> torch.Tensor:
        self.drawn[name] += math.prod(shape)
        return torch.empty(shape)


PLACES = pytest.mark.parametrize(
    ("family", "layout", "world", "rank"),
    [
        ("llama", Layout(tensor=4), 4, 3),
        ("llama", Layout(tensor=2, pipeline=2), 4, 2),
        ("qwen3_moe", Layout(expert=8), 8, 5),
        ("llama4", Layout(tensor=4, expert=16), 16, 9),
    ],
    ids=str,
)


def build(family: str, layout: Layout, world: int, rank: int, weights: Any) -> None:
    """Build a rank's model from the weights."""
    model = MODELS[family]
    config = replace(run_of(model, layout, world).trainer_setup, device="auto")
    simulation = SimulatedDevice(device("h100"))
    with tempfile.TemporaryDirectory() as folder, simulated(simulation), Watching(Answers(simulation)):
        trainer = Trainer(model.to_hf(), config, rank, world, f"file://{folder}/meeting", weights=weights)
        trainer.close()


def dense_share(family: str, layout: Layout, world: int, rank: int) -> dict[str, int]:
    """Entries of each matrix and norm outside the experts that the rank holds, or must have whole to cut its own."""
    model = MODELS[family]
    stage = rank * layout.pipeline // world

    def here(name: str) -> bool:
        if name.startswith("model.layers."):
            return int(name.split(".")[2]) * layout.pipeline // model.num_hidden_layers == stage
        return stage == (0 if name.startswith("model.embed_tokens.") else layout.pipeline - 1)

    whole = {name: math.prod(shape) for name, shape in shapes(model.to_hf()).items()}
    dense = {name: size for name, size in whole.items() if here(name) and ".experts." not in name}
    return {name: size // layout.tensor if name.endswith(CUT_BY_ROWS) else size for name, size in dense.items()}


def of_experts(sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if ".experts." in name)


@PLACES
def test_a_rank_reads_its_experts_its_layers_and_its_rows(family: str, layout: Layout, world: int, rank: int) -> None:
    folder = Counted(shapes(MODELS[family].to_hf()))
    build(family, layout, world, rank, folder)
    expected = dense_share(family, layout, world, rank)
    assert {name: size for name, size in folder.read.items() if ".experts." not in name} == expected
    whole = {name: math.prod(shape) for name, shape in folder.found.items()}
    assert of_experts(folder.read) == of_experts(whole) // layout.expert


@PLACES
def test_a_rank_draws_its_experts_and_its_rows_and_at_most_a_stretch_beside_them(
    family: str, layout: Layout, world: int, rank: int
) -> None:
    draws = CountedDraws(shapes(MODELS[family].to_hf()))
    build(family, layout, world, rank, draws)
    expected = dense_share(family, layout, world, rank)
    for name, count in draws.drawn.items():
        if ".experts." not in name:
            assert count <= (expected[name] + 2 * STRETCH if name in expected else 0), name
    whole = {name: math.prod(shape) for name, shape in draws.shapes.items()}
    assert of_experts(draws.drawn) == of_experts(whole) // layout.expert
