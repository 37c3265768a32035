"""Text as tokens and back: prompts, answers, the end of thinking, and a tokenizer for small models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from scalelab.errors import LabError
from scalelab.rollout.types import Completion
from tasks.text import clean
from tasks.thinking import THINK_CLOSE, THINK_OPEN
from tasks.types import Prompt

if TYPE_CHECKING:  # transformers takes seconds to import, and most of this module needs only its objects
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

GENERATION = "generation_config.json"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
"""Special tokens, with the ids 0, 1 and 2."""
MARKS = [THINK_OPEN, THINK_CLOSE]
"""Single tokens that are not special: special ones vanish from decoded text, and grading needs to see them."""
Transitions = tuple[tuple[int, int, int], ...]
"""(state, token, next state) for all pairs that do not lead back to state 0; the largest state is the last."""


def build_tokenizer(corpus: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE; the same corpus gives the same tokenizer.

    Every string is encoded and decoded without loss, whatever the corpus. Each digit is a token of its own, so
    that numbers of one length look alike to the model.

    Args:
        corpus: texts as the model will see them.
        vocab_size: tokens in all, at least 261 (256 bytes, three specials, two marks); a small corpus may give
            fewer.

    Raises:
        LabError: `vocab_size` is too small.
    """
    from transformers import PreTrainedTokenizerFast

    specials, marks = [PAD, BOS, EOS], MARKS
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(specials) + len(alphabet) + len(marks)
    if vocab_size < least:
        raise LabError(f"a byte-level tokenizer needs at least {least} tokens, got vocab_size {vocab_size}: raise it")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(marks),
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    # Without the marks, no merges are spent on their letters.
    mark = re.compile("|".join(map(re.escape, specials + marks)))
    tokenizer.train_from_iterator((piece for text in corpus for piece in mark.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in marks])
    _begin_with_bos(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model folder.

    One that `build_tokenizer` made before it wrote down that texts begin with `<bos>` is given that rule, since
    its model was trained so.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    inner = tokenizer.backend_tokenizer
    if not tokenizer.encode("") and [inner.id_to_token(n) for n in range(3)] == [PAD, BOS, EOS]:
        _begin_with_bos(inner)
    return tokenizer


def _begin_with_bos(tokenizer: Tokenizer) -> None:
    """Write into the tokenizer's own file the rule that a text begins with `<bos>`."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of a prompt: its text by the tokenizer's own rule, or its chat by the model's template.

    The rule says whether a text begins with a special token, as it does for whoever loads the model elsewhere; a chat
    template writes its special tokens itself. One that opens the thinking by itself is not made to open it twice.

    Raises:
        LabError: the prompt is a chat and the model has no chat template.
    """
    if not prompt.chat:
        return tuple(tokenizer.encode(prompt.text))
    if tokenizer.chat_template is None:
        raise LabError(
            f"task {prompt.task} asks in a chat, but the model's tokenizer has no chat template: "
            "bind chat = False for this task (scalelab eval: --ask plain), or use a model with one"
        )
    messages, opening = prompt.chat, ""
    if messages[-1]["role"] == "assistant":
        messages, opening = messages[:-1], messages[-1]["content"]
    text = tokenizer.apply_chat_template([dict(one) for one in messages], tokenize=False, add_generation_prompt=True)
    if opening.strip() and text.rstrip().endswith(opening.strip()):
        opening = ""
    return tuple(tokenizer.encode(text + opening, add_special_tokens=False))


def by_text(tokenizer: PreTrainedTokenizerBase, text: str) -> Transitions:
    """Recognise a text in whatever tokens spell it, parts of other words included.

    `</think>` is one token for some tokenizers; others merge its characters with what stands before or behind (`.</`,
    `>\\n\\n`). So a finite automaton reads the tokens: its state is how much of the text the tokens so far end with,
    and its last state, which nothing leaves, says that the text has occurred (Knuth, Morris and Pratt, 1977).

    Args:
        tokenizer: of transformers.
        text: ASCII, so that no character of it is split over tokens' bytes.
    """
    found = []
    for token, piece in enumerate(_pieces(tokenizer)):
        if not piece or (text[0] not in piece and piece[0] not in text):
            continue
        for state in range(len(text)):
            seen = text[:state] + piece
            if text in seen:
                found.append((state, token, len(text)))
                continue
            size = next(n for n in range(min(len(text) - 1, len(seen)), -1, -1) if seen.endswith(text[:n]))
            if size:
                found.append((state, token, size))
    return tuple(found)


def _pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Text that each token adds; decoders drop a space before a text's first token, so another token precedes each."""
    first = tokenizer.encode("a", add_special_tokens=False)
    before = len(tokenizer.decode(first))
    texts = tokenizer.batch_decode([[*first, token] for token in range(len(tokenizer))])
    return [text[before:] for text in texts]


def answer_texts(tokenizer: PreTrainedTokenizerBase, completions: Sequence[Completion]) -> list[str]:
    """Texts of completions without the special tokens that end them (a model may have several)."""
    special = set(tokenizer.all_special_ids)
    written = [one.token_ids.tolist() for one in completions]
    for ids in written:
        while ids and ids[-1] in special:
            ids.pop()
    return [clean(text) for text in tokenizer.batch_decode(written)]


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str | Path, model: str | Path | None = None) -> None:
    """Write what goes with a model into its folder, for transformers, vLLM and `load_tokenizer`.

    That is the tokenizer with its chat template, and how to sample by default: what the folder of the `model` that the
    weights began as says, else as they are trained, at temperature 1 from all tokens.

    Args:
        tokenizer: the model's.
        folder: where to.
        model: the model's own folder.
    """
    tokenizer.save_pretrained(str(folder))
    own = None if model is None else Path(model) / GENERATION
    if own is not None and own.is_file():
        shutil.copyfile(own, Path(folder) / GENERATION)
        return
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"pad_token_id": tokenizer.pad_token_id}
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    known = {name: value for name, value in ids.items() if value is not None}
    (Path(folder) / GENERATION).write_text(json.dumps(known | sampling, indent=2) + "\n")


def with_texts(tokenizer: PreTrainedTokenizerBase, completions: Sequence[Completion]) -> list[Completion]:
    """Add texts to completions."""
    texts = answer_texts(tokenizer, completions)
    return [replace(completion, text=text) for completion, text in zip(completions, texts, strict=True)]
