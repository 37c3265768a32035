"""Checkpoints of a run are evaluated afterwards on further sets; the points join its curves, and the books balance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest

from scalelab.curves import read_sources
from scalelab.errors import LabError
from scalelab.recipe.types import AnyRollout
from scalelab.run.evaluations import HeldOutPrompt
from scalelab.session import evaluate_run as module
from scalelab.session.evaluate_run import evaluate_run
from scalelab.store.audit import audit
from scalelab.store.folder import RunFolder
from scalelab.store.lines import read_lines
from tasks.stream import stable_number
from tasks.types import Verdict
from tests.helpers.crash_world import Letters, Quiet, _completion, live, settings

KEPT = {"CheckpointPolicy__keep_last": 9, "Budget__steps": 6, "PipelineRL__k": 0}
HARD = {
    "Evaluation__sets": "(@HeldOut(), @Benchmark())",
    "Benchmark__task": "@hard/MathMiniature()",
    "Benchmark__name": "'hard'",
    "Benchmark__prompts": 3,
    "Benchmark__metrics": "('pass@2',)",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of six steps, and engines that answer by hash in place of vLLM."""
    path = tmp_path / "run"
    live(path, settings(**KEPT))

    def sample(
        folder: Any, config: Any, tokenizer: Any, named: Mapping[str, HeldOutPrompt], *rest: Any
    ) -> list[AnyRollout]:
        found: list[AnyRollout] = []
        for name, asked in named.items():
            completions = [_completion(one, 0) for one in asked.work.requests(name, asked.prompt, "eval")]
            passed = [stable_number(one.text) % 2 == 0 for one in completions]
            verdicts = [Verdict("passed" if one else "failed", float(one)) for one in passed]
            found += asked.work.rollouts(asked.prompt, completions, verdicts)
        return found

    model = SimpleNamespace(tokenizer=Letters, hf_folder=lambda scratch: scratch)
    monkeypatch.setattr(module, "find_model", lambda *_: model)
    monkeypatch.setattr(module, "engine_config", lambda *_: None)
    monkeypatch.setattr(module, "sample", sample)
    return path


def test_points_of_a_further_set_join_the_curves_of_a_run(run: Path) -> None:
    before, asked = read_lines(run / "evals.jsonl"), settings(**KEPT, **HARD)
    assert {line["step"] for line in evaluate_run(run, asked, [6, 4], Quiet())} == {4, 6}  # type: ignore[arg-type]
    evaluate_run(run, asked, None, Quiet())  # type: ignore[arg-type]
    lines = read_lines(run / "evals.jsonl")
    assert lines[: len(before)] == before
    added = lines[len(before) :]
    assert [(line["task"], line["step"], line["n_prompts"], line["k"]) for line in added] == [
        ("hard", step, 3, 2) for step in (4, 6, 2)
    ]
    own = {line["step"]: line for line in before if line["task"] == "math"}
    for line in added:
        same = ("compute", "compute_by_role", "completions", "tokens", "flops")
        assert {name: line[name] for name in same} == {name: own[line["step"]][name] for name in same}
        rows = pyarrow.parquet.read_table(run / f"rollouts/step_{line['step']:06d}_hard.parquet").to_pylist()
        assert sum(row["reward"] for row in rows) / len(rows) == pytest.approx(line["pass_rate"])
    assert audit(run).problems == []
    curves = {item.task: item for item in read_sources([run])}
    assert curves["hard"].other_N["step"].tolist() == [2, 4, 6], "a later point of an earlier step is no resumption"
    assert curves["hard pass@2"].measure == "pass@2"
    assert len(curves["math"]) == len(own)


def test_what_was_evaluated_is_not_evaluated_again_and_what_cannot_be_is_one_line(run: Path) -> None:
    with pytest.raises(LabError, match=r"every checkpoint of .* was evaluated on held_out: add a set"):
        evaluate_run(run, settings(**KEPT), None, Quiet())  # type: ignore[arg-type]
    with pytest.raises(LabError, match="has no checkpoint of step 3; there are: 2, 4, 6"):
        evaluate_run(run, settings(**KEPT, **HARD), [3], Quiet())  # type: ignore[arg-type]
    next((run / "checkpoints/step_000004").glob("weights")).write_text("7")
    with pytest.raises(LabError, match="leave it out with --steps"):
        evaluate_run(run, settings(**KEPT, **HARD), None, Quiet())  # type: ignore[arg-type]
    assert audit(run).evaluations == len({line["step"] for line in read_lines(run / "evals.jsonl")})


def test_an_evaluation_made_afterwards_is_none_of_the_run_s_own(run: Path) -> None:
    evaluate_run(run, settings(**KEPT, **HARD), [4], Quiet())  # type: ignore[arg-type]
    folder = RunFolder(run)
    assert set(folder.evaluated_on()) == {"held_out"}
    folder.close()
