"""The text of single tokens, by the tokenizer that a run keeps beside its checkpoints.

`tokenizer.json` is read as plain data and nothing of it is run, for a run may come from a stranger. Two ways of writing
bytes are known: byte-level BPE (GPT-2, Llama 3, Qwen, the lab's own) and SentencePiece's `▁` and `<0x0A>`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.guarded import inside, read_whole

FILE = "checkpoints/tokenizer/tokenizer.json"
LARGEST_FILE = 1 << 26
"""Bytes of a tokenizer above which it is not read; that of Llama 3 has 9 MB."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Pieces:
    """Text of each token of a vocabulary.

    Args:
        content: a `tokenizer.json`, decoded.

    Raises:
        LabError: it has no vocabulary.
    """

    def __init__(self, content: Any) -> None:
        try:
            vocabulary = content["model"]["vocab"]
            named = (
                vocabulary.items() if isinstance(vocabulary, dict) else ((v[0], i) for i, v in enumerate(vocabulary))
            )
            self._names = {int(number): str(name) for name, number in named}
            self._added = {int(one["id"]): str(one["content"]) for one in content.get("added_tokens") or ()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise LabError(f"{FILE} holds no vocabulary: tokens are shown by number") from None
        self._byte_level = '"ByteLevel"' in json.dumps([content.get("decoder"), content.get("pre_tokenizer")])

    def texts(self, ids: Sequence[Any]) -> list[str]:
        """The text that each token adds.

        A character whose bytes lie in several tokens stands with the last of them; bytes that are no UTF-8 are U+FFFD.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        last = len(ids) - 1
        return [decoder.decode(self._bytes(id), final=at == last) for at, id in enumerate(ids)]

    def _bytes(self, id: Any) -> bytes:
        if not isinstance(id, int):
            return b""
        if id in self._added:
            return self._added[id].encode("utf-8", "replace")
        name = self._names.get(id)
        if name is None:
            return f"⟨{id}⟩".encode()
        if self._byte_level:
            table = _byte_of()
            return b"".join(bytes([table[sign]]) if sign in table else sign.encode("utf-8", "replace") for sign in name)
        if byte := BYTE.fullmatch(name):
            return bytes.fromhex(byte[1])
        return name.replace("▁", " ").encode("utf-8", "replace")


def read_pieces(folder: Path) -> Pieces | None:
    """The vocabulary of a run; None if it keeps no tokenizer.

    Raises:
        LabError: the file leads elsewhere, is too large, or holds no vocabulary.
    """
    path = inside(folder, FILE)
    if path is None:
        return None
    try:
        return Pieces(json.loads(read_whole(path, LARGEST_FILE)))
    except (ValueError, RecursionError):
        raise LabError(f"{FILE} is not JSON: tokens are shown by number") from None


@cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    GPT-2's table (`bytes_to_unicode`): printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
