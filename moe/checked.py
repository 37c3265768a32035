"""Strict checks of configuration classes by pydantic."""

from __future__ import annotations

from pydantic import ConfigDict

CHECKED = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""Settings of pydantic's `dataclass(frozen=True, config=CHECKED)`: a bool is no number, floats are finite, and only an
int is converted, to a float."""
