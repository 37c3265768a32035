"""The tokenizer loses nothing, keeps the marks of thinking, and is the same every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from vllm.tokenizers import get_tokenizer

from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.generator import Generator
from scalelab.rollout.tokenizer import answer_texts, build_tokenizer, load_tokenizer, prompt_ids, save_tokenizer
from scalelab.rollout.types import Completion, Request
from tasks.types import Prompt
from tests.helpers.rollout_models import DENSE, generate, write_model

pytestmark = pytest.mark.slow

CORPUS = [f"<think> {n} + {3 * n} = {4 * n}; so return x * {n} </think> {4 * n}<eos>" for n in range(60)]
TOKENIZER = build_tokenizer(CORPUS, 320)
MARKS = st.sampled_from(["<think>", "</think>", "<eos>", "<bos>", " ", "\n", "12", "</th"])


@given(st.lists(st.text() | MARKS).map("".join))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    # Lone surrogates are no text: they cannot be written as UTF-8 at all.
    text = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


@given(st.integers(0, 10**12))
def test_every_digit_is_a_token_of_its_own(number: int) -> None:
    assert len(TOKENIZER.encode(str(number), add_special_tokens=False)) == len(str(number))


def test_marks_of_thinking_are_single_tokens_that_decoding_keeps() -> None:
    ids = TOKENIZER.encode("<think> 7 </think> 7<eos>", add_special_tokens=False)
    assert [TOKENIZER.convert_tokens_to_ids(mark) in ids for mark in ("<think>", "</think>")] == [True, True]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think> 7 </think> 7"
    assert len(TOKENIZER.encode("<think></think>", add_special_tokens=False)) == 2


def test_special_tokens_have_the_ids_that_models_expect() -> None:
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (0, 1, 2)
    assert len(TOKENIZER) <= 320


def test_no_part_of_the_vocabulary_is_spent_on_letters_of_the_marks() -> None:
    assert {token for token in TOKENIZER.get_vocab() if "hin" in token} == {"<think>", "</think>"}


def test_same_corpus_gives_same_tokenizer_also_from_disk(tmp_path: Path) -> None:
    again = build_tokenizer(iter(CORPUS), 320)
    save_tokenizer(again, tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert TOKENIZER.get_vocab() == again.get_vocab() == loaded.get_vocab()
    text = "<think> 60 + 180 = 240 </think> é"
    assert TOKENIZER.encode(text) == loaded.encode(text)
    assert loaded.decode(loaded.encode(text)) == f"<bos>{text}"
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(LabError, match="at least 261 tokens, got vocab_size 200"):
        build_tokenizer(CORPUS, 200)


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_prompt_begins_once_and_a_chat_in_the_models_own_words() -> None:
    tokenizer = build_tokenizer(["Compute 1+1"], 320)
    plain = Prompt("math/1", "math", "Compute 1+1\n<think>", "2")
    ids = prompt_ids(tokenizer, plain)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == plain.text
    chat = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"})
    opened = replace(plain, chat=(*chat, {"role": "assistant", "content": "<think>\n"}))
    with pytest.raises(LabError, match="no chat template"):
        prompt_ids(tokenizer, opened)
    tokenizer.chat_template = CHATML
    asked = "<|system|>Be brief.<end><|user|>1+1?<end><|assistant|>"
    assert tokenizer.decode(prompt_ids(tokenizer, opened)) == f"{asked}<think>\n"
    assert tokenizer.decode(prompt_ids(tokenizer, replace(plain, chat=chat))) == asked
    tokenizer.chat_template = CHATML.replace("<|assistant|>", "<|assistant|><think>\n")
    assert tokenizer.decode(prompt_ids(tokenizer, opened)) == f"{asked}<think>\n"


def test_the_tokenizers_own_rule_decides_what_a_text_begins_with(tmp_path: Path) -> None:
    """Models of GPT-2's and SmolLM2's kind have a token of that name and begin no text with it."""
    tokenizer = build_tokenizer(["Compute 1+1"], 320)
    prompt = Prompt("math/1", "math", "Compute 1+1", "2")
    ids = prompt_ids(tokenizer, prompt)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    assert tokenizer.bos_token_id is not None
    assert prompt_ids(tokenizer, prompt) == ids[1:]


def test_a_tokenizer_written_before_the_rule_was_is_read_as_its_model_was_trained(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(CORPUS, 320)
    save_tokenizer(tokenizer, tmp_path)
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    assert file["post_processor"] is not None
    (tmp_path / "tokenizer.json").write_text(json.dumps(file | {"post_processor": None}))
    assert load_tokenizer(tmp_path).encode("60 + 180") == tokenizer.encode("60 + 180")


def test_what_goes_with_a_model_says_the_same_to_transformers_and_to_vllm(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(CORPUS, 320)
    tokenizer.chat_template = "{{ bos_token }}" + CHATML
    save_tokenizer(tokenizer, tmp_path)
    plain = Prompt("math/1", "math", "60 + 180\n<think>", "240")
    chat = replace(plain, chat=({"role": "user", "content": "60 + 180"},))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for other in (theirs, get_tokenizer(str(tmp_path))):
        assert tuple(other.encode(plain.text)) == prompt_ids(tokenizer, plain)
        asked = other.apply_chat_template([dict(one) for one in chat.chat], tokenize=False, add_generation_prompt=True)
        assert tuple(other.encode(asked, add_special_tokens=False)) == prompt_ids(tokenizer, chat)
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 0)
    assert (generation.do_sample, generation.temperature, generation.top_k) == (True, 1.0, 0)


def test_a_models_own_way_to_generate_travels(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": [2, 7], "top_k": 20}')
    save_tokenizer(TOKENIZER, tmp_path / "run", tmp_path / "model")
    assert GenerationConfig.from_pretrained(tmp_path / "run").eos_token_id == [2, 7]


def test_an_exported_folder_answers_in_plain_transformers_as_in_the_lab(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(CORPUS, 320)
    shape = replace(DENSE, vocab_size=320, bos_token_id=1, eos_token_id=2)
    folder = write_model(tmp_path / "model", shape, seed=3)
    save_tokenizer(tokenizer, folder)
    prompts = [Prompt(f"math/{n}", "math", f"{n} + 180\n<think>", "") for n in range(4)]
    requests = [Request(one.id, prompt_ids(tokenizer, one), 12, temperature=0.0, kind="eval") for one in prompts]
    config = GeneratorSetup(max_model_len=64, max_sequences=8, kv_cache_gib=0.01)
    generator = Generator(folder, config, threads=1)
    try:
        ours = {one.request.id: one.token_ids.tolist() for one in generate(generator, requests)}
    finally:
        generator.close()
    model, theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), AutoTokenizer.from_pretrained(folder)
    for prompt in prompts:
        asked = theirs(prompt.text, return_tensors="pt")
        answer = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
        assert answer.tolist() == ours[prompt.id]


@pytest.mark.parametrize("end", ["", "<eos>", "<pad>", "<eos><eos>"])
def test_what_ends_an_answer_is_no_part_of_it(end: str) -> None:
    ids = np.array(TOKENIZER.encode(f"<think> 4</think> 4{end}", add_special_tokens=False), np.int32)
    request = Request("1", (1,), 64)
    empty = np.zeros(len(ids))
    completion = Completion(request, ids, empty, ((0, 0, len(ids)),), empty > 0, False, False)
    assert answer_texts(TOKENIZER, [completion]) == ["<think> 4</think> 4"]
