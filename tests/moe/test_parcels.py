"""Parcels hold every weight once, none of them more of a vocabulary than the limit, and experts one by one."""

import math

from hypothesis import given
from hypothesis import strategies as st

from moe.model.decoder import DecoderConfig
from moe.settings import Layout
from moe.weights.links import links, whole_and_first
from moe.weights.parcels import parcels
from tests.helpers.moe_models import DENSE, MIXTRAL, MOE, QWEN2, QWEN3, QWEN3_MOE

MODELS = (DENSE, QWEN2, QWEN3, MOE, QWEN3_MOE, MIXTRAL)


@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 2**16))
def test_parcels_hold_every_entry_once_in_order_and_no_more_rows_than_the_limit(
    model: DecoderConfig, tensor: int, expert: int, limit: int
) -> None:
    hf_config = model.to_hf()
    wanted = {name: shape for link in links(hf_config, single=True) for name, shape in link.parts()}
    rows: dict[str, int] = dict.fromkeys(wanted, 0)
    for parcel in parcels(hf_config, Layout(tensor=tensor, expert=expert), 4, limit):
        for name, shape in parcel.parts():
            whole, first = whole_and_first(name)
            assert first in (None, rows[whole])
            assert shape[1:] == wanted[whole][1:]
            assert first is None or 4 * math.prod(shape) <= max(limit, 4 * math.prod(shape[1:]))
            rows[whole] += shape[0]
    assert rows == {name: shape[0] for name, shape in wanted.items()}


@given(st.sampled_from([MOE, QWEN3_MOE, MIXTRAL]), st.sampled_from([1, 2, 4]))
def test_an_expert_comes_from_the_rank_that_holds_it(model: DecoderConfig, ranks: int) -> None:
    hf_config = model.to_hf()
    count = hf_config.get("num_local_experts") or hf_config["num_experts"]
    for parcel in parcels(hf_config, Layout(expert=ranks), 4, 2**30):
        if parcel.link.experts:
            assert parcel.link.shape[0] == 1
            assert parcel.holder == parcel.first // (count // ranks)
