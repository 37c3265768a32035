"""Claims of the paper, one by one: what it says, what the runs of the study say, and whether that agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalelab.curves.comparison import Difference
from scalelab.numbers import with_interval
from study_tables.questions import SAME, Compared
from study_tables.runs import BASELINE, table

Quantity = Literal["A", "B", "C_mid", "compute"]

FIELDS: dict[Quantity, str] = {"A": "A", "B": "log_B", "C_mid": "log_C_mid", "compute": "log_reach"}
"""Field of `Difference` for each quantity; `compute` is that to reach the same pass rate."""

EQUAL_FACTOR = 1.2
"""B, C_mid and compute within this factor are the same."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper about one difference.

    Attributes:
        source: section or figure of ScaleRL.
        says: in words, with the size there.
        member: what is compared.
        baseline: what it is compared with.
        quantity: in what they differ.
        direction: +1 if the member has more of it, −1 if less, 0 if both have the same.
        differs: why a miniature may differ.
    """

    source: str
    says: str
    member: str
    quantity: Quantity
    direction: Literal[-1, 0, 1]
    differs: str
    baseline: str = BASELINE


OWN_START = "one short run; both start from a model that already knows the form"
ADDITION = "baseline_and_baseline"
CLAIMS = (
    Claim("§4, Fig. 2", "GRPO ends below ScaleRL", "deepseek_grpo", "A", -1, OWN_START),
    Claim("§4, Fig. 2", "DAPO ends below ScaleRL", "qwen25_dapo", "A", -1, OWN_START),
    Claim("§4, Fig. 2", "Magistral ends below ScaleRL", "magistral", "A", -1, OWN_START),
    Claim("§4, Fig. 2", "MiniMax ends as high (A 0.61 both)", "minimax_m1", "A", 0, OWN_START),
    Claim("§4, Fig. 2", "MiniMax is less efficient (B 1.77 to 1.97)", "minimax_m1", "B", -1, "B needs the whole bend"),
    Claim("§3.1", "PPO-off-policy-8 needs more compute than PipelineRL-8", "without_schedule", "compute", 1, "none"),
    Claim("§3.1", "and ends as high", "without_schedule", "A", 0, "none"),
    Claim(
        *("§3.2", "The fp32 head lifts the baseline (A 0.52 to 0.61)", "baseline_and_fp32_head", "A", 1),
        *("a vocabulary of 384 loses less in bf16 than one of 128,256", ADDITION),
    ),
    Claim("§3.2", "CISPO lifts the baseline's ceiling", "baseline_and_loss", "A", 1, OWN_START, ADDITION),
    Claim("§4, Fig. 5", "Without CISPO as high", "without_loss", "A", 0, "none"),
    Claim("§4, Fig. 5", "and less efficient (B 1.77 to 2.01)", "without_loss", "B", -1, "B needs the whole bend"),
    Claim("§4, Fig. 5", "Without batch norm as high", "without_advantage_norm", "A", 0, "none"),
    Claim(
        *("§4, Fig. 5", "and less efficient (B 1.82 to 2.01)", "without_advantage_norm", "B", -1),
        "B needs the whole bend",
    ),
    Claim(
        "§3.2", "The prompt average is best", "baseline_and_aggregation", "A", 1, "lengths differ little here", ADDITION
    ),
    Claim("§3.2", "Dropping zero-variance prompts helps", "baseline_and_zero_variance", "A", 1, "none", ADDITION),
    Claim(
        "§3.2",
        "Retiring learnt prompts helps",
        "baseline_and_curriculum",
        "A",
        1,
        "few prompts come back here",
        ADDITION,
    ),
    Claim("§4, Fig. 5", "A length penalty does as well", "without_length_control", "A", 0, "few are cut here"),
    Claim("§5, Table 1", "A larger batch ends higher (0.605 to 0.645)", "batch_256", "A", 1, "shorter runs"),
    Claim("§5, Table 1", "and later (C_mid 2.5k to 10.9k)", "batch_256", "C_mid", 1, "none"),
    Claim(
        "§5, Table 1", "Longer generations end higher (0.61 to 0.645)", "length_160", "A", 1, "short answers do here"
    ),
    Claim("§5, Table 1", "More generations per prompt end as high", "generations_16", "A", 0, "none"),
    Claim(
        "§5, Table 1",
        "A mixture of experts ends higher (0.61 to 0.71)",
        "model_moe",
        "A",
        1,
        "as active, 4 times as large",
    ),
    Claim("§3.1", "k = 4 is as good as k = 8", "pipeline_4", "compute", 0, "none"),
)


def judge(claim: Claim, found: Difference) -> str:
    """Agrees, disagrees or cannot tell, by the interval; a claim of no difference by the margins as well."""
    low, high = getattr(found, f"{FIELDS[claim.quantity]}_interval")
    if claim.direction:
        agrees, against = (low > 0, high < 0) if claim.direction > 0 else (high < 0, low > 0)
        return "agrees" if agrees else "disagrees" if against else "cannot tell"
    margin = SAME if claim.quantity == "A" else float(np.log(EQUAL_FACTOR))
    if -margin <= low and high <= margin:
        return "agrees"
    return "disagrees" if low > margin or high < -margin else "cannot tell"


def claims_table(questions: Sequence[Compared]) -> str:
    """Every claim beside what each task says of it."""
    rows = []
    for claim in CLAIMS:
        same_baseline = [one for one in questions if claim.baseline == one.question.baseline]
        asked = [one for one in same_baseline if claim.member in one.names]
        if not asked:
            same = any(claim.member in one.unchanged for one in same_baseline)
            said = ("both", "the same runs", "**cannot tell**") if same else ("–", "not run", "–")
            rows.append([claim.source, claim.says, f"`{claim.member}`", *said, claim.differs])
        for comparison in asked[0].wide if asked else ():
            entry = next((entry for entry in comparison.entries if entry.run == claim.member), None)
            found = entry.differences.get(claim.baseline) if entry else None
            here = ("no fit", "cannot tell") if found is None else (_size(claim, found), judge(claim, found))
            told = [claim.source, claim.says, f"`{claim.member}`", comparison.task, here[0], f"**{here[1]}**"]
            rows.append([*told, claim.differs])
    header = ("paper", "claim", "member", "task", "difference here, 95 %", "verdict", "why a miniature may differ")
    return table(header, rows)


def _size(claim: Claim, found: Difference) -> str:
    name = FIELDS[claim.quantity]
    middle, interval = getattr(found, name), getattr(found, f"{name}_interval")
    if claim.quantity == "A":
        return f"A {with_interval(middle, interval)}"
    return f"{claim.quantity} × {with_interval(float(np.exp(middle)), np.exp(interval).tolist())}"
