"""Rotary embeddings of a Hugging Face config: frequencies, and how they are stretched; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from moe.errors import MoeError


def rope_parameters(hf: dict[str, Any]) -> dict[str, Any]:
    """Read ``rope_parameters``, or the fields of older configs (before transformers 5)."""
    rope = hf.get("rope_parameters") or {"rope_theta": hf["rope_theta"], **(hf.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _STRETCHED:
        known = ", ".join(sorted(_STRETCHED))
        raise MoeError(
            f"{hf['model_type']} with rotary scaling {str(kind)[:60]!r} is not supported; supported are {known}"
        )
    return {**rope, "rope_type": kind}


def inverse_frequencies(rope: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    """Inverse frequencies for the ``rope_parameters`` of a Hugging Face config.

    Args:
        rope: with a ``rope_type`` that is a key of `_STRETCHED`.
        head_dim: size of a head, D.

    Returns:
        D/2 numbers, radians per token.
    """
    base = [rope["rope_theta"] ** (-i / head_dim) for i in range(0, head_dim, 2)]
    return tuple(_STRETCHED[rope.get("rope_type", "default")](base, rope))


def _llama3(base: list[float], rope: dict[str, Any]) -> list[float]:
    """Stretch slow waves by ``factor``, keep fast ones, and blend those between."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]

    def stretched(frequency: float) -> float:
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        blend = (turns - low) / (high - low) if low < turns < high else float(turns >= high)  # Scout: low is high
        return (1 - blend) * frequency / rope["factor"] + blend * frequency

    return [stretched(frequency) for frequency in base]


def _yarn(base: list[float], rope: dict[str, Any]) -> list[float]:
    """Stretch slow waves by ``factor``, keep fast ones, and blend those between by their place (YaRN, §3.2)."""

    def place(turns: float) -> float:
        """Find the pair, perhaps between two, that turns so often within the original length."""
        longest = rope["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return len(base) * math.log(longest) / math.log(rope["rope_theta"])

    first, last = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * len(base) - 1)
    stretch = [min(max((i - first) / (last - first or 0.001), 0.0), 1.0) for i in range(len(base))]
    return [frequency * ((1 - share) + share / rope["factor"]) for frequency, share in zip(base, stretch, strict=True)]


_STRETCHED: dict[str, Callable[[list[float], dict[str, Any]], list[float]]] = {
    "default": lambda base, rope: base,
    "llama3": _llama3,
    "yarn": _yarn,
}


def rope_magnitude(rope: dict[str, Any]) -> float:
    """Factor on rotated queries and keys: 1, or YaRN's √(1/t) = 0.1 ln(factor) + 1 (arXiv 2309.00071, Eq. 22).

    Args:
        rope: ``rope_parameters``; ``attention_factor`` is taken where it is given, else ``mscale`` over
            ``mscale_all_dim`` (DeepSeek).
    """
    if rope.get("rope_type", "default") != "yarn":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    log, scale, all_dim = math.log(max(rope["factor"], 1.0)), rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and all_dim:
        return (0.1 * scale * log + 1) / (0.1 * all_dim * log + 1)
    return 0.1 * log + 1
