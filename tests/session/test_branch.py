"""A branch goes on from a run's checkpoint in a folder of its own; the books balance, and the run stays as it is."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from pyarrow.parquet import read_table

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import digest
from scalelab.cli import main
from scalelab.curves import pool_seeds, read_sources
from scalelab.curves.compare import LATE
from scalelab.curves.paired import PairedDifference
from scalelab.curves.prompts import variances
from scalelab.errors import LabError
from scalelab.experiment import Resolved
from scalelab.kept import Kept
from scalelab.reading.branches import counted_once, trunk_points
from scalelab.run.books import BooksState
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.session import branch as branches
from scalelab.session.worlds import record_base
from scalelab.store.audit import audit
from scalelab.store.chain import JOURNAL, read_chain
from scalelab.store.folder import RunFolder
from scalelab.store.lines import read_lines
from scalelab.store.trunk import read_trunk
from scalelab.view.discover import find_runs
from scalelab.view.lab import Lab
from scalelab.view.pair import between
from tests.helpers.crash_world import Quiet, World, live, settings
from tests.helpers.fake_world import World as FakeWorld

KEPT = {"CheckpointPolicy__keep_last": 9}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps, with checkpoints of steps 2 and 4."""
    path = tmp_path_factory.mktemp("branch") / "parent"
    live(path, settings(**KEPT))
    return path


def go_on(parent: Path, step: int | None, out: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[str]:
    """Branch a run in the world without a model; gives what was said."""

    def run(resolved: Resolved, folder: RunFolder, progress: Any, start: Any) -> None:
        world = World(resolved.run, folder)
        world.resume()
        asyncio.run(world.main())
        folder.describe(status="finished")
        folder.close()

    monkeypatch.setattr(branches, "run_and_record", run)
    said = Quiet()
    asked, before = settings(**KEPT, **more), settings(**KEPT)
    branches.branch(asked, before, (parent, step), before.run, out, said)  # type: ignore[arg-type]
    return said.said


CHANGES: dict[str, dict[str, Any]] = {
    "budget": {"Budget__steps": 7},
    "batch": {"Budget__steps": 5, "Recipe__prompts_per_step": 3},
    "schedule": {"Budget__steps": 5, "PipelineRL__k": 1},
    "loss": {"Budget__steps": 5, "Recipe__loss": "@GSPO()"},
    "mix": {"Budget__steps": 5, "Run__task_weights": "(0.9, 0.1)"},
    "task left out": {"Budget__steps": 5, "Run__tasks": "(@CodeMiniature(),)", "Run__task_weights": "None"},
    "benchmark": {
        "Budget__steps": 5,
        "Evaluation__sets": "(@HeldOut(), @Benchmark())",
        "Benchmark__task": "@hard/MathMiniature()",
        "Benchmark__name": "'hard'",
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_books_of_a_branch_balance_whatever_it_changes(
    change: str, parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "branch", {file: file.read_bytes() for file in parent.rglob("*") if file.is_file()}
    said = go_on(parent, None, out, monkeypatch, **CHANGES[change])
    found = audit(out)
    assert found.problems == []
    steps, evals = read_lines(out / "metrics.jsonl"), read_lines(out / "evals.jsonl")
    assert steps[:4] == read_lines(parent / "metrics.jsonl")
    assert evals[: len(read_lines(parent / "evals.jsonl"))] == read_lines(parent / "evals.jsonl")
    assert len(steps) == CHANGES[change]["Budget__steps"]
    assert steps[4]["compute"] > steps[3]["compute"], "compute goes on"
    assert steps[-1]["sampler"].get("drawn/code", 0) >= steps[3]["sampler"]["drawn/code"], "and so do the prompts"
    assert ("hard" in {line["task"] for line in evals}) == (change == "benchmark")
    assert any("goes on from step 4" in line for line in said)
    assert {file: file.read_bytes() for file in parent.rglob("*") if file.is_file()} == before


def test_the_first_line_of_the_journal_names_parent_step_and_checkpoint(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on(parent, 2, tmp_path / "branch", monkeypatch, Budget__steps=6)
    [first, *_] = read_chain((tmp_path / "branch" / JOURNAL).read_bytes()).entries
    sha256 = digest(parent / "checkpoints/step_000002" / CHECKPOINT)[1]
    head = read_chain((parent / JOURNAL).read_bytes()).head
    expected = {"run": str(parent.resolve()), "step": 2, "checkpoint": sha256, "journal": head}
    assert (first.kind, first.body["parent"]) == ("fork", expected)
    assert json.loads((tmp_path / "branch/manifest.json").read_text())["from"] == expected
    assert main(["show", str(tmp_path / "branch/config.gin"), "--diff", str(parent / "config.gin")]) == 0
    shown = capsys.readouterr().out
    assert f"# a branch: goes on from step 2 of {parent.resolve()}" in shown
    assert "budget.steps" in shown
    again = tmp_path / "again"
    go_on(tmp_path / "branch", 4, again, monkeypatch, Budget__steps=8)
    assert audit(again).problems == []
    assert (again / "start.gin").read_bytes() == (parent / "config.gin").read_bytes()


def test_a_run_that_goes_on_keeps_the_digest_of_the_base_model_that_it_began_with(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache may have been emptied meanwhile, and the base model made anew on another machine."""
    begun, out, base = tmp_path / "begun", tmp_path / "branch", tmp_path / "base"
    shutil.copytree(parent, begun)
    with closing(RunFolder(begun)) as folder:
        folder.describe(base_model="a" * 64)
    go_on(begun, 2, out, monkeypatch, Budget__steps=6)
    assert json.loads((out / "manifest.json").read_text())["base_model"] == "a" * 64
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"other")
    for facts, kept in (({"resumed": [1.0]}, True), ({"from": {}}, True), ({}, False)):
        told: dict[str, str] = {}
        record_base(SimpleNamespace(manifest=facts, describe=told.update), base)  # type: ignore[arg-type]
        assert (told == {}) == kept


def test_a_trunk_is_no_second_evidence(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(parent, None, tmp_path / "branch", monkeypatch, Budget__steps=8)
    curves = [item for item in read_sources([parent, tmp_path / "branch"]) if item.task == "math"]
    mine, longer = sorted(curves, key=len)
    assert np.flatnonzero(trunk_points(longer, [mine])).tolist() == list(range(len(mine)))
    assert any("evaluations up to step 4 are its trunk's" in note for note in longer.notes)
    assert not any("trunk" in note for note in mine.notes)
    longest = replace(longer, fork=2.0), replace(longer, run="other", fork=2.0)
    assert trunk_points(longest[0], longest[1:]).sum() == 2, "behind the fork points may agree by chance"
    once = counted_once([longer, mine])
    assert [len(item) for item in once] == [len(longer) - len(mine), len(mine)]
    [pooled], _ = pool_seeds([replace(item, recipe="the same") for item in curves])
    assert len(pooled) == len(longer), "the trunk counts once in what pools both"


def test_branches_are_compared_prompt_by_prompt_on_what_was_evaluated_after_the_fork(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    branch = tmp_path / "branch"
    go_on(parent, 2, branch, monkeypatch, Recipe__loss="@GSPO()", Budget__steps=8, Evaluation__every=1)
    main(["compare", str(parent), str(branch), "--json"])
    found = {one["found"]["task"]: one for one in json.loads(capsys.readouterr().out)["paired"]}
    assert set(found) == {"math", "code"}
    at = min(max(line["tokens"] for line in read_lines(out / "evals.jsonl")) for out in (branch, parent))
    for task, one in found.items():
        means = []
        for out in (branch, parent):
            lines = [one for one in read_lines(out / "evals.jsonl") if one["task"] == task and one["step"] > 2]
            steps = [line["step"] for line in lines if 0.75 * at <= line["tokens"] <= 1.001 * at][-LATE:]
            rows = [row for step in steps for row in read_table(out / f"rollouts/step_{step:06d}.parquet").to_pylist()]
            mine = [row for row in rows if row["task"] == task]
            prompts = sorted({row["prompt_id"] for row in mine})
            means.append([np.mean([row["reward"] for row in mine if row["prompt_id"] == name]) for name in prompts])
        assert (one["step"], one["at"]) == (2, at)
        gaps = np.subtract(means[0], means[1])
        assert one["found"]["difference"] == pytest.approx(np.mean(gaps))
        assert one["found"]["parts"][0] ** 2 == pytest.approx(variances(*(np.array([mean]) for mean in means))[0])
        assert len(means[0]) == one["found"]["prompts"] == 2
    assert any(one["found"]["difference"] for one in found.values()), "another number of evaluations"
    lab = Lab([branch, parent], kept=Kept(tmp_path / "kept"))
    lab.update()
    ids = {run.member.path.name: id for id, run in lab.runs.items()}
    told = between(lab, [ids["branch"]], [ids["parent"]])["paired"]
    assert all(
        re.match(r"from the fork at step 2 on, the last (\d+ (to \d+ )?)?evaluations?\b", one) for one in told
    ), told
    assert len(told) == 2, "one of each task"
    for file in (branch / "rollouts").glob("step_*"):
        file.unlink()
    main(["compare", str(parent), str(branch)])
    said = " ".join(capsys.readouterr().out.split())
    assert "branch and parent are not held together: the completions of step" in said


def test_runs_whose_curves_carry_no_fit_are_compared_prompt_by_prompt(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    live(other, settings(**KEPT, Recipe__loss="@GSPO()"))
    assert main(["compare", str(parent), str(other)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"without a fit of both, the last evaluation up to [\d,.e-]+ tokens: math", said), "in its unit"
    assert "math: other less parent +0.0000" in said, "engines that answer by hash answer alike"


def test_a_run_that_ends_at_the_fork_is_said_to_have_nothing_after_it(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on(parent, 4, tmp_path / "longer", monkeypatch, Budget__steps=6, Recipe__loss="@GSPO()")
    main(["compare", str(parent), str(tmp_path / "longer")])
    said = " ".join(capsys.readouterr().out.split())
    assert "has no evaluation of math after the fork at step 4 in the last quarter before" in said


def test_the_numbers_of_evaluations_that_a_difference_rests_on_are_told_where_runs_differ() -> None:
    rest: dict[str, Any] = {"found": mock.Mock(), "step": None, "at": 3.0, "unit": "GPU-hours"}
    assert "the last 1 to 2 evaluations up to 3 GPU-hours:" in PairedDifference(**rest, evaluations=1, most=2).text()
    assert "the last 2 evaluations up to" in PairedDifference(**rest, evaluations=2, most=2).text()


def test_a_branch_with_another_recipe_is_no_seed_of_a_run_that_had_it_throughout(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"branch": {"Recipe__loss": "@GSPO()"}, "other fork": {"Recipe__loss": "@GSPO()"}, "longer": {}}
    for name, changed in names.items():
        go_on(parent, 4 if name == "other fork" else 2, tmp_path / name, monkeypatch, Budget__steps=6, **changed)
    for name, changed in {"throughout": {"Recipe__loss": "@GSPO()"}, "long": {}}.items():
        live(tmp_path / name, settings(**KEPT, Budget__steps=6, **changed))
    recipe = {item.run: item.recipe for item in read_sources([tmp_path]) if item.task == "math"}
    assert recipe["longer"] == recipe["long"]
    assert len({recipe[name] for name in ("branch", "other fork", "throughout", "long")}) == 4
    shown = {run.path.name: run.group for run in find_runs([tmp_path])}
    assert shown["longer"] == shown["long"]
    assert len({shown[name] for name in ("branch", "other fork", "throughout", "long")}) == 4


def harmed(parent: Path, out: Path) -> Path:
    shutil.copytree(parent, out)
    content = (out / JOURNAL).read_bytes()
    (out / JOURNAL).write_bytes(content.replace(b'"step": 1', b'"step": 9', 1))
    return out


@pytest.mark.parametrize(
    ("source", "sets", "refusal"),
    [
        ("nowhere", [], "there is no run's folder nowhere"),
        ("{parent}@two", [], "'two' is no step of a run"),
        ("{parent}@3", [], "has no checkpoint of step 3; there are: 2, 4"),
        ("{harmed}", [], "changed since it was written"),
        ("{parent}/checkpoints", [], "is no folder of a run: it has no manifest.json"),
        ("{parent}", [], "has spent 4 steps"),
        ("{parent}", ["Budget.steps=9", "SFT.steps=3"], "SFT.steps differs from that of"),
        ("{parent}", ["Budget.steps=9", "Llama4Text.hidden_size=64"], "cannot go on with another model"),
        ("{parent}", ["Budget.steps=9", "Run.virtual=@Virtual()"], "the hours are not the same"),
        ("{parent}", ["Budget.steps=9", "PipelineRL.k=-1"], "PipelineRL.k"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_in_one_line(
    source: str,
    sets: Sequence[str],
    refusal: str,
    parent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = source.format(parent=parent, harmed=harmed(parent, tmp_path / "harmed"))
    more = [word for one in sets for word in ("--set", one)]
    assert main(["run", "--from", spec, "--out", str(tmp_path / "out"), *more]) == 1
    said = capsys.readouterr().err
    assert refusal in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_whose_manifest_was_lost_is_branched_by_its_journal(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Path(shutil.copytree(parent, tmp_path / "lost"))
    (lost / "manifest.json").unlink()
    go_on(lost, 2, tmp_path / "branch", monkeypatch, Budget__steps=6)
    assert audit(tmp_path / "branch").problems == []
    assert read_trunk(lost, 2, lambda _: True).manifest == read_trunk(parent, 2, lambda _: True).manifest


@pytest.mark.parametrize("option", [["--resume"], ["--seeds", "1"], ["--supervise"], ["--stop-losers"]])
def test_options_of_families_and_of_resuming_exclude_a_branch(
    option: list[str], parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--from", str(parent), *option]) == 1
    assert f"{option[0]} and --from exclude each other" in capsys.readouterr().err


def test_a_checkpoint_near_the_end_of_a_simulated_run_is_not_what_a_longer_run_would_have_passed() -> None:
    run = settings(**KEPT, Run__virtual="@Virtual()", Budget__steps=10).run
    state: dict[str, Any] = {"schedule": {"trainer_version": 6}, "drawn": 18, "dropped": {"zero_variance": 2}}
    state |= {"ledger": {"generator": 1.0}, "virtual": {"due": True}}
    assert branches.goes_on_alike(state, run)
    for change in (
        {"drawn": 21},  # two prompts a step: all that ten steps take, but for one
        {"schedule": {"trainer_version": 7}},  # no multiple of two
        {"virtual": {"due": False}},
    ):
        assert not branches.goes_on_alike(state | change, run)


def test_neither_an_experiment_nor_a_run_to_go_on_from_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 1
    assert "give an EXPERIMENT" in capsys.readouterr().err
    with pytest.raises(LabError, match="no run's folder"):
        branches.split("runs/none@3")


class Recording(FakeWorld):
    """A world on a simulated clock that keeps the books of every checkpoint."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.books_at: dict[int, BooksState] = {}
        super().__init__(*args, **settings)

    async def _save(self, state: BooksState) -> None:
        await super()._save(state)
        self.books_at[state["schedule"]["trainer_version"]] = state


@pytest.mark.parametrize("schedule", [PipelineRL(k=1), PipelineRL(k=4), PPOOffPolicy(k=2), Synchronous()], ids=str)
def test_a_checkpoint_that_a_run_is_extended_from_is_one_that_a_longer_run_passes_through(
    schedule: Any, tmp_path: Path
) -> None:
    """Both rest at every third step; whatever the books of the short one say there, those of the long one say, too."""
    used = 0
    for seed in range(6):
        short, long = (Recording(tmp_path, schedule, seed=seed, pauses=True, steps=steps) for steps in (12, 21))
        short.run()
        long.run()
        budget = SimpleNamespace(steps=12, hours=None)
        recipe = SimpleNamespace(prompts_per_step=3)
        parent: Any = SimpleNamespace(budget=budget, recipe=recipe, checkpoint_every=3, virtual=True)
        for step, state in short.books_at.items():
            if branches.goes_on_alike({**state, "virtual": {"due": True}}, parent):
                used += 1
                assert state == long.books_at[step], f"seed {seed}, step {step}"
            assert step < 12 or not branches.goes_on_alike({**state, "virtual": {"due": True}}, parent)
    assert used >= 6, "some checkpoints will do"
