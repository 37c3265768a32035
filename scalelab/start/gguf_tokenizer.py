"""The tokenizer that a GGUF file describes."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scalelab.errors import LabError

_CONTROL = 3
"""GGUF's type of tokens that are no text."""
_SPLITS: dict[str, list[Any]] = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
}
"""Patterns that cut text before merging, by llama.cpp's names."""


def gguf_tokenizer(facts: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Rebuild a byte-level BPE tokenizer, with its chat template.

    Args:
        facts: the file's metadata, by llama.cpp's names.

    Raises:
        LabError: the file describes a tokenizer of another kind.
    """
    kind, cut = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in _SPLITS:
        raise LabError(f"the GGUF's tokenizer is {kind!r} cut as {cut!r}: only gpt2 with {', '.join(_SPLITS)} is read")
    texts = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[cut])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    special = [text for text, kind in zip(texts, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    numbers = {role: facts.get(f"tokenizer.ggml.{name}_token_id") for role, name in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{role}_token": texts[number] for role, number in numbers.items() if number is not None},
        additional_special_tokens=special,
        chat_template=facts.get("tokenizer.chat_template"),
        model_max_length=facts["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
