"""Strict checks of configuration classes by pydantic."""

from __future__ import annotations

from pydantic import ConfigDict

CHECKED = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""For pydantic's `dataclass(frozen=True, config=CHECKED)`: a bool is no number, floats are finite, and nothing is
converted but an int to a float."""
