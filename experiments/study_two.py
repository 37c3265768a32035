"""The second study: a miniature in which every ingredient has something to do.

All seeds of a member begin from one base model. Where every seed had its own, ends of one recipe differed by
0.26 to 0.33 on math, and no difference between recipes could be told: comparisons do not pair seeds
(docs/study/design.md). Members `base_1_…` and `base_2_…` ask whether differences hold for other base models.
"""

from experiments.additions import additions
from experiments.axes import batches, generations, length, mixtures
from experiments.leave_one_out import leave_one_out
from experiments.recipes import recipes
from scalelab.experiment import Experiment
from scalelab.recipe.losses import DAPO

LENGTHS = {
    # Interruption ends the longest sums, and the limit cuts off the longest programs: both set a ceiling.
    "MathMiniature.max_terms": 8,
    "MathMiniature.max_value": 19,
    "Recipe.max_tokens": 64,
    "ForcedInterruption.earliest": 34,
    "ForcedInterruption.latest": 40,
    "LengthPenalty.max_tokens": 64,
    "LengthPenalty.cache_tokens": 24,
}

DATA = {"MathMiniature.size": 256, "CodeMiniature.size": 256}  # prompts come back after a third of the budget

scalerl = Experiment(
    fragments=(
        "model/dense_miniature",
        "recipe/scalerl",
        "tasks/math_code_study",
        "cluster/virtual_80",
        "scale/study",  # after the cluster, whose precision it changes
        "budget/study",
    ),
    overrides={
        **LENGTHS,
        **DATA,
        "Virtual.portable": True,
        "Budget.hours": 120.0,  # 60 showed 62 to 79 % of the gain on math
        "Evaluation.every_hours": 8.0,
        "Evaluation.samples": 2,
    },
    description="ScaleRL, the point where all questions of the second study meet.",
)


def _named(prefix: str, members: dict[str, Experiment]) -> dict[str, Experiment]:
    return {f"{prefix}_{name}": member for name, member in members.items()}


def _off_policy() -> dict[str, Experiment]:
    """Staleness × learning rate × loss: when do runs fall, and what foretells it?"""
    cells = {}
    for k in (1, 8, 32):
        for name, lr in (("slow", 1e-4), ("fast", 2e-4)):
            for loss, more in (("cispo", {}), ("dapo", {"Recipe.loss": DAPO})):
                settings = {"PipelineRL.k": k, "OptimizerConfig.lr": lr, **more}
                cells[f"k{k}_{name}_{loss}"] = scalerl.override(
                    settings, f"Rollouts at most {k} steps old, learning rate {lr:g}, the loss of {loss}."
                )
    del cells["k8_slow_cispo"], cells["k8_slow_dapo"]  # `scalerl` and `without_loss`
    return cells


def _prompts(size: int) -> Experiment:
    sizes = {"MathMiniature.size": size, "CodeMiniature.size": size}
    return scalerl.override(sizes, f"{size:,} training prompts a task.")


def _with_many_prompts() -> dict[str, Experiment]:
    """Recipes, ingredients, lengths and batches where few prompts come back: no run starves, ends are ceilings."""
    many = _prompts(1024)
    changed = leave_one_out(many)
    del changed["curriculum"], changed["fp32_head"]  # not run (docs/study/design.md)
    chosen = recipes(many, prompts_to_drop_from=27)
    del chosen["scalerl"]  # `prompts_1024`
    members = {
        **chosen,
        **_named("without", changed),
        "k4": many.override({"PipelineRL.k": 4}, "Rollouts at most 4 steps old."),
        "length_56": length(many, tokens=56, answer=24, window=6, prompt=80),
        "length_96": length(many, tokens=96, answer=24, window=6, prompt=80),
        **batches(many, (8, 32), generations=8),
        **generations(many, 128, (4, 16, 32)),
        **{f"width_{width}": _wide(many, width) for width in (64, 192)},
    }
    return {name: one.override({}, f"1,024 prompts a task. {one.description}") for name, one in members.items()}


def _with_long_budgets() -> dict[str, Experiment]:
    """Recipes, loss, length control and length for twice the hours: math sees nine tenths of its gain."""
    base = _prompts(4096).override({"Budget.hours": 240.0})  # with 1,024 a third of the draws is refused by 120
    changed = leave_one_out(base)
    members = {
        **recipes(base, prompts_to_drop_from=27),
        **{f"without_{name}": changed[name] for name in ("loss", "length_control")},
        "length_96": length(base, tokens=96, answer=24, window=6, prompt=80),
    }
    told = "4,096 prompts a task, 240 GPU-hours."
    return {name: one.override({}, f"{told} {one.description}") for name, one in members.items()}


def _from_other_bases() -> dict[str, Experiment]:
    """Recipes and length control from two more base models, with 1,024 prompts: do differences hold for those?"""
    members = {}
    for seed in (1, 2):
        base = _prompts(1024).override({"SFT.seed": seed})
        chosen = recipes(base, prompts_to_drop_from=27)
        chosen["without_length_control"] = leave_one_out(base)["length_control"]
        told = f"The base model of seed {seed}, 1,024 prompts a task."
        for name, one in chosen.items():
            members[f"base_{seed}_{name}"] = one.override({}, f"{told} {one.description}")
    return members


def _noisy() -> dict[str, Experiment]:
    """Verdicts that err in training: do they cost rate or asymptote?"""
    base = scalerl.with_fragments("verdicts/noisy")
    kinds = (("false_pass", "wrong answers passed"), ("false_refusal", "right answers refused"))
    return {
        f"{kind}_{100 * share:.0f}": base.override(
            {f"NoisyVerdicts.{kind}": share}, f"In training {share:.0%} of {told}."
        )
        for kind, told in kinds
        for share in (0.1, 0.2)
    }


def _wide(base: Experiment, width: int) -> Experiment:
    heads = {"Llama.num_attention_heads": width // 32, "Llama.num_key_value_heads": width // 64}
    sizes = {"Llama.hidden_size": width, "Llama.intermediate_size": width * 3 // 2, **heads}
    return base.override(sizes, f"A model {width} wide.")


experiments = {
    **recipes(scalerl, prompts_to_drop_from=27),  # 80 : 48, as in the paper
    **_named("without", leave_one_out(scalerl)),
    **_off_policy(),
    **generations(scalerl, 128, (4, 16, 32)),
    **{f"prompts_{size}": _prompts(size) for size in (64, 1024, 4096)},
    "length_56": length(scalerl, tokens=56, answer=24, window=6, prompt=80),
    "length_96": length(scalerl, tokens=96, answer=24, window=6, prompt=80),
    # As good as alone, with the same base model, and the other task is measured, too.
    **mixtures(scalerl, {"math": (0.999, 0.001), "code": (0.001, 0.999)}),
    **_noisy(),
    "benchmark": scalerl.with_fragments("evaluation/harder_sums").override(
        {}, "ScaleRL; sums of seven and eight terms are evaluated, too."
    ),
    "width_64": _wide(scalerl, 64),
    "width_192": _wide(scalerl, 192),
    **batches(scalerl, (8, 32), generations=8),
    **_named("baseline_and", additions(scalerl)),
    **_named("many", _with_many_prompts()),
    **_named("long", _with_long_budgets()),
    **_from_other_bases(),
}
