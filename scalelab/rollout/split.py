"""Numbers of devices over which vLLM can split a model; importable without it, so that a run is refused early."""

from __future__ import annotations

from typing import Any

from moe.model.architectures import architecture

VOCABULARY_STEP = 64
"""vLLM pads a vocabulary to a multiple of this."""


def split_problem(hf_config: dict[str, Any], devices: int) -> str | None:
    """Say why an engine's devices cannot share a model, and the nearest numbers that can; None if they can.

    Attention heads, inner features and the padded vocabulary are cut evenly (`vllm.distributed.utils.divide`).
    Key-value heads are cut, or copied where there are more devices than heads. vLLM's Qwen3-MoE
    wants at least as many experts.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        devices: of one engine (`GeneratorConfig.tensor_parallel`).
    """
    problem = _broken(hf_config, devices)
    if problem is None:
        return None
    valid = [n for n in range(1, hf_config["num_attention_heads"] + 1) if _broken(hf_config, n) is None]
    near = [*(n for n in valid if n < devices)][-1:] + [n for n in valid if n > devices][:1]
    return f"GeneratorConfig.tensor_parallel ({devices}) {problem}: nearest valid {' or '.join(map(str, near))}"


def _broken(hf_config: dict[str, Any], devices: int) -> str | None:
    """The first rule that a number of devices breaks."""
    arch = architecture(hf_config)
    heads = arch.fields["num_query_groups"]
    for what, count in _cut(hf_config):
        if count % devices:
            return f"does not divide the model's {count} {what}"
    if heads % devices and devices % heads:
        return f"neither divides the model's {heads} key-value heads nor is a multiple of them"
    experts = arch.fields.get("num_moe_experts", devices)
    if hf_config["model_type"] == "qwen3_moe" and devices > experts:
        return f"is more than the model's {experts} experts"
    return None


def _cut(hf_config: dict[str, Any]) -> list[tuple[str, int]]:
    """Parts of the model that vLLM cuts evenly, with their sizes."""
    arch = architecture(hf_config)
    fields = arch.fields
    cut = [("attention heads", fields["num_attention_heads"])]
    if any(not layer.experts for layer in arch.layers):
        cut.append(("inner features of the feed-forward", fields["ffn_hidden_size"]))
    if any(layer.experts for layer in arch.layers):
        cut.append(("inner features of an expert", fields["moe_ffn_hidden_size"]))
    if shared := fields.get("moe_shared_expert_intermediate_size"):
        cut.append(("inner features of the shared expert", shared))
    padded = -(-hf_config["vocab_size"] // VOCABULARY_STEP) * VOCABULARY_STEP
    return [*cut, ("words of the padded vocabulary", padded)]
