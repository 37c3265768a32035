"""Text that can be written down: no lone surrogates, which neither UTF-8 nor Parquet can hold."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Replace every lone surrogate by U+FFFD; other text comes back as it is."""
    return text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text)
