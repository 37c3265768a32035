"""Text that can be written down: no lone surrogates, which neither UTF-8 nor Parquet can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# Values nested deeper than this are written as their type's name.
_DEEPEST = 100


def clean(text: str) -> str:
    """Replace every lone surrogate by U+FFFD; other text comes back as it is."""
    return text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text)


def writable(value: Any) -> Any:
    """Copy a JSON-like value with every string cleaned, so that Parquet and JSON writers take it.

    Mappings become dicts and tuples lists; what is nested too deeply becomes the name of its type.
    """
    return _writable(value, _DEEPEST)


def _writable(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not levels:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        return {_writable(key, levels - 1): _writable(item, levels - 1) for key, item in value.items()}
    return [_writable(item, levels - 1) for item in value]
