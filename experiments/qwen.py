"""Qwen models on math, on one and on ten nodes of 8 H100; they start from the published weights."""

from experiments.h100 import experiments as h100

_THINKS = {"MathDataset.chat": True}  # asked in the model's own chat template
_MODELS = {
    "qwen3_8b": ("model/qwen3_8b", "Qwen3-8B", _THINKS),
    "qwen25_7b": ("model/qwen25_7b", "Qwen2.5-7B, the base model", {}),
}
_ten, _one = (h100[name].with_fragments("evaluation/aime_24") for name in ("scalerl_8b", "scalerl_8b_node"))

experiments = {
    **{
        name: _ten.with_fragments(model, description=f"{what}, on ten nodes of 8 H100.").override(more)
        for name, (model, what, more) in _MODELS.items()
    },
    **{
        f"{name}_node": _one.with_fragments(model, description=f"{what}, on one node of 8 H100.").override(more)
        for name, (model, what, more) in _MODELS.items()
    },
    "qwen3_30b_a3b": _ten.with_fragments(
        "model/qwen3_30b_a3b", "cluster/gpus_80_h100_a3b", description="Qwen3-30B-A3B, on ten nodes of 8 H100."
    ).override(_THINKS),
    "qwen3_30b_a3b_node": _one.with_fragments(
        "model/qwen3_30b_a3b", "cluster/gpus_8_h100_a3b", description="Qwen3-30B-A3B, on one node of 8 H100."
    ).override(_THINKS),
}
