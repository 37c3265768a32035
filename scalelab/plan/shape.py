"""A model's architecture and its parameter counts, remembered: a search for a layout asks thousands of times."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from moe.model.architectures import Architecture, architecture
from moe.model.size import Parameters, parameters


def shape(hf_config: dict[str, Any]) -> Architecture:
    """A model's architecture, cached; see `moe.model.architectures.architecture`."""
    return _shape(json.dumps(hf_config, sort_keys=True))


def parameter_counts(hf_config: dict[str, Any]) -> Parameters:
    """A model's parameter counts, cached; see `moe.model.size.parameters`."""
    return _counts(json.dumps(hf_config, sort_keys=True))


@lru_cache(maxsize=4)
def _shape(text: str) -> Architecture:
    return architecture(json.loads(text))


@lru_cache(maxsize=4)
def _counts(text: str) -> Parameters:
    return parameters(json.loads(text))
