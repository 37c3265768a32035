"""A plan is within twice of what others measured, or the docs say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import published
import pytest

from scalelab.hardware import device
from scalelab.plan.lengths import Moments
from scalelab.plan.speed import Assumptions, training_seconds


@pytest.mark.parametrize("row", published.rows(), ids=lambda row: row.what)
def test_a_plan_is_within_twice_of_what_others_measured_or_says_why(row: published.Published) -> None:
    ratio = row.planned() / row.measured
    assert row.note or 1 / published.WITHIN <= ratio <= published.WITHIN


def test_the_docs_show_the_plan_beside_what_others_measured(capsys: pytest.CaptureFixture[str]) -> None:
    published.main()
    assert capsys.readouterr().out in (Path(__file__).parents[2] / "docs/plan.md").read_text()


@pytest.mark.parametrize(
    ("name", "slower"), [("qwen/qwen3_30b_a3b", (2048 / 768) ** 0.5), ("h100/scalerl_17bx16", 1.0)]
)
def test_narrow_experts_are_trained_at_a_smaller_share_of_the_peak(name: str, slower: float) -> None:
    run, length = published.run_of(name, {}), Moments(1000, 1000**2, 1000)
    batch: dict[str, Any] = {"ranks": run.cluster.trainers, "completions": 64, "length": length}
    batch["device"] = device("h100")
    hf_config, setup = run.model.to_hf(), run.trainer_setup
    free = Assumptions(exchange=1e9)  # exchanges take no time
    usual, wide = (
        training_seconds(hf_config, setup, **batch, assumed=assumed)
        for assumed in (free, Assumptions(exchange=1e9, narrow=1))
    )
    assert usual / wide == pytest.approx(slower, rel=1e-3)
