"""The scaling axes, one setting changed at a time: batch, length, generations per prompt, model, tasks (ScaleRL §5)."""

from collections.abc import Mapping, Sequence

from experiments.scalerl_8b import experiment as scalerl_8b
from scalelab.experiment import Experiment


def batches(base: Experiment, prompts: Sequence[int], generations: int) -> dict[str, Experiment]:
    """Prompts per step, at fixed generations per prompt."""
    return {
        f"batch_{count * generations}": base.override(
            {"Recipe.prompts_per_step": count, "Recipe.generations_per_prompt": generations},
            f"{count} prompts of {generations} completions a step.",
        )
        for count in prompts
    }


def generations(base: Experiment, completions: int, sizes: Sequence[int]) -> dict[str, Experiment]:
    """Generations per prompt, at fixed completions per step."""
    return {
        f"generations_{size}": base.override(
            {"Recipe.prompts_per_step": completions // size, "Recipe.generations_per_prompt": size},
            f"{size} completions of each of {completions // size} prompts a step.",
        )
        for size in sizes
    }


def length(base: Experiment, tokens: int, answer: int, window: int, prompt: int) -> Experiment:
    """Tokens of one completion, the last of them kept for the answer; thinking is interrupted in a window before."""
    return base.override(
        {
            "Recipe.max_tokens": tokens,
            "GeneratorConfig.max_model_len": tokens + prompt,
            "ForcedInterruption.earliest": tokens - answer - window,
            "ForcedInterruption.latest": tokens - answer,
        },
        f"{tokens:,} tokens of thinking and answer.",
    )


def mixtures(base: Experiment, shares: Mapping[str, tuple[float, float]]) -> dict[str, Experiment]:
    """Shares of math and code among the prompts drawn."""
    return {
        f"tasks_{name}": base.override(
            {"Run.task_weights": weights}, f"Math and code drawn {weights[0]:.0%} and {weights[1]:.0%}."
        )
        for name, weights in shares.items()
    }


_base = scalerl_8b.with_fragments("budget/axis_50k", "evaluation/aime_24")
_mixed = _base.with_fragments("tasks/math_code")

experiments = {
    "base": _base.override({}, "Where the axes meet: 48 prompts of 16 completions, 14k tokens, the dense model, math."),
    **batches(_base, (32, 128), generations=16),
    "length_32k": length(_base, tokens=30 * 1024, answer=2 * 1024, window=2 * 1024, prompt=2 * 1024),
    **generations(_base, 768, (8, 24, 32)),
    "model_moe": _base.with_fragments(
        "model/scout_17bx16", "cluster/gpus_80_scout", description="The 17Bx16 mixture of experts."
    ),
    **mixtures(_mixed, {"even": (0.5, 0.5), "math_heavy": (0.75, 0.25), "code_heavy": (0.25, 0.75)}),
}
