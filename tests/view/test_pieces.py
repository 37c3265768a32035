"""Texts of tokens, against the tokenizers library; files that a stranger wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from scalelab.errors import LabError
from scalelab.view.pieces import FILE, Pieces, read_pieces
from scalelab.view.rollouts import Rollouts
from tests.helpers.view_runs import add_rollouts

CORPUS = ["Compute 3 plus 4 mod 7.\nso 0. </think> 0", "naïve café 日本 🙂 🙃"] * 3


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["</think>"])
    return tokenizer


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(CORPUS))
def test_the_pieces_of_a_text_are_the_text(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text).ids
    pieces = Pieces(json.loads(byte_level.to_str())).texts(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


def test_marks_stand_by_themselves_and_unknown_numbers_say_so(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("so </think> 0").ids
    assert "</think>" in Pieces(json.loads(byte_level.to_str())).texts(ids)
    assert Pieces(json.loads(byte_level.to_str())).texts([0, 99999, None, "x"]) == ["<eos>", "⟨99999⟩", "", ""]


def test_pieces_of_sentencepiece_are_its_words_and_bytes() -> None:
    words = {"▁so": 0, "▁": 1, "<0xC3>": 2, "<0xA9>": 3, "x": 4}
    assert Pieces({"model": {"vocab": words}}).texts([0, 1, 4, 2, 3]) == [" so", " ", "x", "", "é"]
    unigram = {"model": {"vocab": [["▁so", -1.0], ["x", -2.0]]}}
    assert Pieces(unigram).texts([1, 0]) == ["x", " so"]


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"vocab": 3}}', '{"model": {"vocab": [7]}}', "[" * 100_000])
def test_a_strange_tokenizer_is_refused_in_a_line_and_the_completion_is_shown(tmp_path: Path, content: str) -> None:
    add_rollouts(tmp_path, 10, tokens_only=True)
    assert "remark" not in Rollouts(tmp_path).row("step_000010.0")
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(content)
    with pytest.raises(LabError, match="shown by number"):
        read_pieces(tmp_path)
    row = Rollouts(tmp_path).row("step_000010.0")
    assert "shown by number" in row["remark"]
    assert row["completion"]


def test_tokens_of_a_run_have_texts_by_its_own_tokenizer(tmp_path: Path, byte_level: Tokenizer) -> None:
    add_rollouts(tmp_path, 10, tokens_only=True)
    (tmp_path / FILE).parent.mkdir(parents=True)
    byte_level.save(str(tmp_path / FILE))
    row = Rollouts(tmp_path).row("step_000010.0")
    assert row["pieces"] == [byte_level.decode([id]) for id in row["token_ids"]]


@pytest.mark.parametrize(
    ("record", "added"),
    [
        ({"token_ids": [1, 2]}, True),
        ({"token_ids": [1, 2], "pieces": ["its", "own"]}, False),
        ({"pieces": ["its", "own"]}, False),
        ({"completion": "neither"}, False),
    ],
)
def test_only_tokens_without_texts_of_their_own_are_given_some(
    tmp_path: Path, byte_level: Tokenizer, record: dict[str, Any], added: bool
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    byte_level.save(str(tmp_path / FILE))
    texts = {"pieces": [byte_level.decode([id]) for id in record["token_ids"]]} if added else {}
    assert Rollouts(tmp_path)._with_texts(record) == record | texts
