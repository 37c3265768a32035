"""Layouts that do not cut the model or fit the ranks are refused, with the nearest that would."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.errors import MoeError
from moe.model.families import Llama, Llama4Text
from moe.settings import Layout
from moe.train.layout import check_layout, nearest_layout
from scalelab.errors import LabError
from scalelab.experiment import resolve

DENSE, MOE = Llama(num_key_value_heads=4).to_hf(), Llama4Text().to_hf()
sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 16])


@pytest.mark.parametrize(
    ("model", "layout", "world", "message"),
    [
        (DENSE, Layout(tensor=3), 3, "tensor=3 does not divide 4 key/value heads: nearest valid tensor=2 or tensor=4"),
        (DENSE, Layout(pipeline=5), 5, "pipeline=5 does not divide 4 layers: nearest valid pipeline=4"),
        (DENSE, Layout(expert=2), 2, "expert=2 does not divide 1 feed-forward of a model without experts"),
        (MOE, Layout(expert=3), 3, "expert=3 does not divide 16 experts: nearest valid expert=2 or expert=4"),
        (MOE, Layout(expert_tensor=5), 5, "expert_tensor=5 does not divide 96 inner features of an expert"),
        (MOE, Layout(tensor=2, pipeline=2), 6, r"6 trainer .* 2 × 2 × 1; nearest valid 4 or 8 ranks, or Layout"),
        (MOE, Layout(expert=4), 6, "6 trainer .* pipeline × expert × expert_tensor = 1 × 4 × 1"),
        (replace(Llama(), vocab_size=511).to_hf(), Layout(tensor=2), 2, "does not divide 511 words of the vocabulary"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why_and_what_is_nearest(
    model: dict[str, Any], layout: Layout, world: int, message: str
) -> None:
    with pytest.raises(MoeError, match=message):
        check_layout(model, layout, world)


@given(st.sampled_from([DENSE, MOE]), st.builds(Layout, sizes, sizes, sizes, sizes, sizes), st.integers(1, 32))
def test_the_nearest_layout_is_valid_and_a_valid_one_is_its_own(
    model: dict[str, Any], layout: Layout, world: int
) -> None:
    nearest = nearest_layout(model, layout, world)
    check_layout(model, nearest, world)
    if nearest == layout:
        return
    with pytest.raises(MoeError, match=r"nearest valid (\w+=)?\d"):
        check_layout(model, layout, world)


def test_expert_groups_may_span_tensor_and_context_ranks() -> None:
    check_layout(MOE, Layout(tensor=2, context=2, expert=2, expert_tensor=2), 4)


def test_a_run_is_refused_before_it_starts() -> None:
    with pytest.raises(LabError, match=r"Cluster.trainers = 1 .* does not divide 2 key/value heads: .* tensor=2"):
        resolve("quickstart", ["Layout.tensor=3"])
