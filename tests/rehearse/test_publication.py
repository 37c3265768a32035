"""A rank stages no more of a model than its share, whatever its layout: checked on fake tensors, rank by rank."""

import math
import tempfile
from dataclasses import replace
from typing import Any

import pytest

from moe.model.families import Model
from moe.settings import Layout
from moe.weights.hf_weights import own_parts
from moe.weights.links import shapes
from scalelab.hardware import device
from scalelab.rehearse.simulate import Answers, SimulatedDevice, simulated
from scalelab.rehearse.watching import Watching
from tests.helpers.rehearsals import MODELS, run_of

from moe.train.trainer import Trainer  # isort: skip  (torch's environment first, which `simulate` sets)

pytestmark = pytest.mark.slow


def staged(model: Model, layout: Layout, world: int, rank: int) -> dict[tuple[str, Any], int]:
    """Bytes of the parts that a rank publishes, by name and place in the whole parameter."""
    config = replace(run_of(model, layout, world).trainer_setup, device="auto")
    simulation = SimulatedDevice(device("h100"))
    with tempfile.TemporaryDirectory() as folder, simulated(simulation), Watching(Answers(simulation)):
        trainer = Trainer(model.to_hf(), config, rank, world, f"file://{folder}/meeting")
        parts = {(name, cuts): part.nbytes for name, cuts, part in own_parts(trainer.model, trainer.hf_config)}
        trainer.close()
    return parts


@pytest.mark.parametrize(
    ("family", "layout", "world"),
    [
        ("llama", Layout(), 4),
        ("llama", Layout(tensor=2), 4),
        pytest.param("llama", Layout(tensor=2, pipeline=2), 8, marks=pytest.mark.nightly),
        pytest.param("mixtral", Layout(tensor=2, expert=4), 8, marks=pytest.mark.nightly),
        ("mixtral", Layout(expert=2, expert_tensor=2), 8),
    ],
    ids=str,
)
def test_ranks_stage_the_model_once_in_equal_shares(family: str, layout: Layout, world: int) -> None:
    model = MODELS[family]
    ranks = [staged(model, layout, world, rank) for rank in range(world)]
    everything = [part for parts in ranks for part in parts]
    assert len(everything) == len(set(everything)), "no part is staged twice"
    whole = 2 * sum(math.prod(shape) for shape in shapes(model.to_hf()).values())  # bfloat16
    assert sum(sum(parts.values()) for parts in ranks) == whole
    of_a_stage = world // layout.pipeline
    for first in range(0, world, of_a_stage):
        shares = [sum(parts.values()) for parts in ranks[first : first + of_a_stage]]
        largest = max(size for parts in ranks[first : first + of_a_stage] for size in parts.values())
        assert max(shares) <= sum(shares) / of_a_stage + largest, "parts are dealt out, not cut"
