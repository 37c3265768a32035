"""Initial weights depend on the seed and the name alone, whatever part of a tensor is drawn."""

import hashlib
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from moe.model import init
from moe.model.init import STRETCH, InitialWeights, standard_deviation

NAME = "model.layers.3.mlp.experts.gate_up_proj"
SHAPES = st.lists(st.integers(1, 6), min_size=2, max_size=3).map(torch.Size)


def of(shape: tuple[int, ...], seed: int = 7) -> InitialWeights:
    return InitialWeights([(NAME, shape)], layers=4, seed=seed)


@given(SHAPES, st.integers(1, 60), st.data())
def test_any_rows_are_those_of_the_whole_tensor(shape: torch.Size, stretch: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, shape[0] - 1))
    rows = data.draw(st.integers(1, shape[0] - first))
    usual, init.STRETCH = init.STRETCH, stretch
    try:
        whole, part = of(shape)[NAME], of(shape).rows(NAME, first, (rows, *shape[1:]))
    finally:
        init.STRETCH = usual
    assert torch.equal(part, whole[first : first + rows])


def test_a_tensor_of_one_stretch_comes_from_one_stream() -> None:
    shape = torch.Size((8, 3, 5))
    seed = int.from_bytes(hashlib.sha256(f"7/{NAME}".encode()).digest()[:8], "little") >> 1
    expected = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * standard_deviation(NAME, shape, 4)
    assert torch.equal(of(shape)[NAME], expected)


def test_stretches_of_a_large_tensor_differ_and_have_the_same_spread() -> None:
    shape = torch.Size((3, STRETCH // 2**12, 2**12))
    drawn = of(shape)[NAME]
    assert not torch.equal(drawn[0], drawn[1])
    for part in drawn:
        assert abs(part.std() / standard_deviation(NAME, shape, 4) - 1) < 5 / math.sqrt(2 * STRETCH)
        assert abs(part.mean()) < 5 * part.std() / math.sqrt(STRETCH)


def test_norms_start_at_one_and_biases_at_zero() -> None:
    names = [("model.norm.weight", torch.Size((4,))), ("model.layers.0.self_attn.q_proj.bias", torch.Size((4,)))]
    norm, bias = InitialWeights(names, layers=4, seed=7).values()
    assert norm.tolist() == [1] * 4
    assert bias.tolist() == [0] * 4


def test_another_seed_gives_other_weights() -> None:
    assert not torch.equal(of(torch.Size((2, 2)), 1)[NAME], of(torch.Size((2, 2)), 2)[NAME])
