"""Rows that come one after the other make the whole tensor, and anything else is refused by name."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moe.weights.parcels import rows_name
from scalelab.errors import LabError
from scalelab.transfer.rows import RowJoiner

WHOLE = torch.arange(60.0).view(12, 5)
NORM = ("model.norm.weight", torch.ones(5))


def rows(first: int, last: int) -> tuple[str, torch.Tensor]:
    return rows_name("model.embed_tokens.weight", first), WHOLE[first:last]


def joiner() -> RowJoiner:
    return RowJoiner({"model.embed_tokens.weight": WHOLE.shape, "model.norm.weight": torch.Size([5])})


@given(st.sets(st.integers(1, 11)), st.data())
def test_rows_make_the_whole_however_they_are_cut_and_dealt_to_messages(borders: set[int], data: st.DataObject) -> None:
    edges = [0, *sorted(borders), 12]
    sent = [NORM, *(rows(first, last) for first, last in itertools.pairwise(edges))]
    message = data.draw(st.integers(1, len(sent)))
    mine = joiner()
    found: list[tuple[str, torch.Tensor]] = []
    for begin in range(0, len(sent), message):
        found += mine.join(iter(sent[begin : begin + message]))
    mine.end(["model.norm.weight", "model.embed_tokens.weight"])
    assert [name for name, _ in found] == ["model.norm.weight", "model.embed_tokens.weight"]
    assert torch.equal(found[1][1], WHOLE)
    assert found[0][1] is NORM[1]


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        ([rows(0, 4), rows(8, 12)], "rows 8 to 12 of model.embed_tokens.weight came after 4 of 12"),
        ([rows(0, 4), rows(0, 4)], "rows 0 to 4 of model.embed_tokens.weight came after 4 of 12"),
        ([rows(4, 8)], "rows 4 to 8 of model.embed_tokens.weight came after 0 of 12"),
        ([rows(0, 12), rows(0, 12)], "model.embed_tokens.weight came twice"),
        ([NORM, NORM], "model.norm.weight came twice"),
        ([(rows_name("extra", 0), WHOLE)], "extra came in rows of shape (12, 5) and is None here"),
        ([(rows_name("model.embed_tokens.weight", 0), WHOLE[:, :3])], "came in rows of shape (12, 3) and is (12, 5)"),
        ([(rows_name("model.embed_tokens.weight", 0), torch.ones(13, 5))], "rows 0 to 13 of model.embed_tokens.weight"),
    ],
)
def test_rows_that_are_missing_doubled_or_of_another_model_are_refused(
    sent: list[tuple[str, torch.Tensor]], refusal: str
) -> None:
    with pytest.raises(LabError) as refused:
        list(joiner().join(sent))
    assert refusal in str(refused.value)


def test_a_tensor_that_is_missing_or_of_which_rows_are_missing_at_the_end_is_named() -> None:
    mine = joiner()
    assert list(mine.join([rows(0, 4), NORM])) == [NORM]
    with pytest.raises(LabError, match=r"^of model.embed_tokens.weight only 4 of 12 rows came$"):
        mine.end([])
    assert len(list(mine.join([rows(4, 12)]))) == 1
    mine.end(["model.embed_tokens.weight", "model.norm.weight"])
    with pytest.raises(LabError, match=r"^model.layers.0.mlp.experts.3.up_proj.weight and 0 more did not come$"):
        mine.end(["model.norm.weight", "model.layers.0.mlp.experts.3.up_proj.weight"])
