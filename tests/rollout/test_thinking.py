"""The end of the thinking is found wherever its text occurs, however the tokens cut it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scalelab.rollout.interruption import DeviceReader, Reader
from scalelab.rollout.tokenizer import by_text
from tests.helpers.automata import by_ids

pytestmark = pytest.mark.slow

END = "</think>"
MERGED = [
    "</",
    ".</",
    "think",
    "thi",
    "nk",
    ">\n\n",
    ">",
    "think>",
    "</think",
    "<<",
    " <",
    "</think>\n",
    "k>a",
    "a",
    "</t",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges run over the edges of the text, as those of real tokenizers do."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = ["".join(piece for piece, _ in byte_level.pre_tokenize_str(text)) for text in MERGED]
    inner = Tokenizer(models.BPE(vocab={**letters, **_numbered(pieces, letters)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = byte_level, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)


def _numbered(pieces: list[str], letters: dict[str, int]) -> dict[str, int]:
    new = [piece for piece in pieces if piece not in letters]
    return {piece: len(letters) + number for number, piece in enumerate(new)}


@given(data=st.data())
def test_the_text_is_found_in_whatever_tokens_spell_it(tokenizer: PreTrainedTokenizerFast, data: st.DataObject) -> None:
    edges = [number for number in range(len(tokenizer)) if set(tokenizer.decode([number])) & set(END)]
    token_ids = data.draw(st.lists(st.sampled_from(edges), max_size=9))
    transitions = by_text(tokenizer, END)
    found = Reader(transitions).closes(token_ids)
    assert found == (END in tokenizer.decode(token_ids))
    device = DeviceReader(transitions, len(tokenizer), torch.device("cpu"))
    assert bool(device.closes(torch.tensor(token_ids, dtype=torch.int32))) == found


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_a_sequence_of_ids_is_found_where_it_occurs(token_ids: list[int], wanted: list[int]) -> None:
    slow = any(token_ids[at : at + len(wanted)] == wanted for at in range(len(token_ids)))
    transitions = by_ids(wanted)
    assert Reader(transitions).closes(token_ids) == slow
    device = DeviceReader(transitions, 3, torch.device("cpu"))
    assert bool(device.closes(torch.tensor(token_ids, dtype=torch.int32))) == slow


def test_nothing_to_find_is_never_found() -> None:
    assert not Reader(()).closes([1, 2])
    assert not bool(DeviceReader((), 3, torch.device("cpu")).closes(torch.tensor([1, 2])))
