"""From folders to the page's records: discovery, points, what is unusual, settings, metrics, time line."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import time
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.commands.demo import RECORDED
from scalelab.curves import curve
from scalelab.curves.stability import stability
from scalelab.errors import LabError
from scalelab.reading import Reading, read_with
from scalelab.store.run_status import SILENT
from scalelab.store.status_file import StatusFile
from scalelab.view.answer import measured
from scalelab.view.bindings import GENERATIONS, PROMPTS, TOKENS, axes, bindings, differences
from scalelab.view.discover import find_runs
from scalelab.view.metrics import MOST_PANELS, MOST_POINTS, flatten, held_out_panels, metric_panels, thin
from scalelab.view.now import status_and_age
from scalelab.view.run import ViewedRun, _said
from scalelab.view.timeline import timeline
from scalelab.view.unusual import falls, foretold, unusual
from tests.helpers.view_runs import made_run, metrics_line, write_lines


def names(*sources: Path) -> list[tuple[str, str]]:
    return [(run.group, run.name) for run in find_runs(sources)]


def test_seed_folders_and_settings_that_differ_in_seeds_alone_are_one_recipe(tmp_path: Path) -> None:
    for seed in (0, 1):
        made_run(tmp_path / "family" / "a" / f"seed_{seed}", seed=seed, rollouts=False)
    made_run(tmp_path / "one", seed=0, loss="GSPO", rollouts=False)
    made_run(tmp_path / "two", seed=1, loss="GSPO", rollouts=False)
    made_run(tmp_path / "three", seed=1, loss="DAPO", rollouts=False)
    found = names(tmp_path / "family", tmp_path / "one", tmp_path / "two", tmp_path / "three")
    groups = [group for group, _ in found]
    assert groups == ["a", "a", "one", "one", "three"]
    assert found[0] == ("a", "a · seed_0")
    assert found[4] == ("three", "three")


def test_a_run_is_there_before_its_first_evaluation(tmp_path: Path) -> None:
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "manifest.json").write_text('{"status": "running"}')
    assert names(tmp_path) == [("young", "young")]


def test_links_that_lead_out_of_a_source_are_not_followed(tmp_path: Path) -> None:
    made_run(tmp_path / "elsewhere" / "secret", rollouts=False)
    made_run(tmp_path / "runs" / "own", rollouts=False)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "secret")
    assert names(tmp_path / "runs") == [("own", "own")]


def test_a_source_that_is_not_there_is_said() -> None:
    with pytest.raises(LabError, match="no such file"):
        find_runs([Path("nowhere")])


def test_points_have_every_axis_that_the_lines_hold(tmp_path: Path) -> None:
    run = ViewedRun(find_runs([made_run(tmp_path / "run", rollouts=False)])[0], Reading())
    assert run.update()
    math = next(points for points in run.points if points["task"] == "math")
    assert set(math["x"]) == {"compute", "step", "completions", "tokens", "flops", "hours"}
    assert math["x"]["completions"][1] == 320
    assert math["x"]["hours"][0] == pytest.approx(10 / 3600)
    assert not run.update()


def test_old_lines_get_completions_by_the_batch_size_and_tokens_by_the_steps(tmp_path: Path) -> None:
    write_lines(tmp_path / "evals.jsonl", [{"step": s, "compute": s, "task": "t", "pass_rate": 0.5} for s in (0, 2, 4)])
    write_lines(tmp_path / "metrics.jsonl", [{"step": step, "tokens": 100} for step in (1, 2, 3, 4)])
    (tmp_path / "config.gin").write_text("Recipe.prompts_per_step = 8\nRecipe.generations_per_prompt = 4\n")
    run = ViewedRun(find_runs([tmp_path])[0], Reading())
    run.update()
    [points] = run.points
    assert points["x"]["completions"] == [0, 64, 128]
    assert points["x"]["tokens"] == [0, 200, 400]
    assert "hours" not in points["x"]


def flat_points(y: list[float], stderr: float) -> dict:
    return {"task": "t", "x": {"step": list(range(len(y)))}, "y": y, "stderr": [stderr] * len(y)}


def test_a_fall_is_found_with_its_return() -> None:
    y = [0.90, 0.91, 0.90, 0.92, 0.94, 0.78, 0.91, 0.93, 0.92, 0.93]
    [fall] = falls(flat_points(y, 0.012))
    assert (fall["step"], fall["from"], fall["to"], fall["back_at"]) == (5, 0.94, 0.78, 6)
    [entry] = unusual([flat_points(y, 0.012)], [], [], [], "finished")
    assert "fell from 0.94 to 0.78 at step 5" in entry["text"]
    assert entry["level"] == "warn"


def test_a_fall_is_placed_on_the_axis_of_its_log_and_names_its_run_and_seed() -> None:
    y = [0.90, 0.91, 0.90, 0.92, 0.94, 0.78, 0.91, 0.93, 0.92, 0.93]
    compute = [1000.0 * at for at in range(len(y))]
    one = {"task": "", "run": "a", "seed": "0", "unit": "GPU-hours", "x": {"compute": compute}, "y": y}
    one["stderr"] = [0.012] * len(y)
    [single] = unusual([one], [], [], [], "table")
    assert single["text"].startswith("pass rate fell from 0.94 to 0.78 at 5,000 GPU-hours (")
    assert single["text"].endswith("; back at 6,000 GPU-hours")
    assert (single["step"], single["foretold"]) == (None, []), "compute is no step to look metrics up by"
    three = [one, one | {"seed": "1"}, one | {"run": "b", "unit": "compute"}]
    starts = ["a, seed 0: pass rate", "a, seed 1: pass rate", "b: pass rate"]
    texts = [entry["text"] for entry in unusual(three, [], [], [], "table")]
    assert [text.startswith(start) for text, start in zip(texts, starts, strict=True)] == [True] * 3
    assert "at compute 5,000" in texts[2]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30), st.floats(0.001, 0.2))
def test_falls_are_those_of_a_slow_search(y: list[float], stderr: float) -> None:
    """By loops: 0.05 below the best before, and beyond 1 % of chance shared by all pairs of evaluations."""
    chance = 0.01 / math.comb(len(y), 2)
    beyond = NormalDist().inv_cdf(1 - chance) * stderr * 2**0.5
    expected: list[list[Any]] = []
    fallen = False
    for at, rate in enumerate(y):
        depth = max(y[: at + 1]) - rate
        assume(abs(depth - 0.05) > 1e-9 and abs(depth - beyond) > 1e-9 and abs(depth - 2**1.5 * stderr) > 1e-9)
        if fallen and depth <= 2**1.5 * stderr:
            fallen = False
            expected[-1][2] = at
        elif not fallen and depth > 0.05 and depth > beyond:
            fallen = True
            expected.append([at, depth, None])
        elif fallen:
            expected[-1][1] = max(expected[-1][1], depth)
    found = sorted(falls(flat_points(y, stderr)), key=lambda fall: fall["begins"])
    assert len(found) == min(len(expected), 8)
    if len(expected) <= 8:
        assert [fall["begins"] for fall in found] == [begins for begins, _, _ in expected]
        assert [fall["from"] - fall["to"] for fall in found] == pytest.approx([depth for _, depth, _ in expected])
        assert [fall["back_at"] for fall in found] == [back for _, _, back in expected]


def test_the_page_tells_a_fall_where_compare_says_unstable_and_nowhere_else() -> None:
    rng = np.random.default_rng(1)
    for depth in (0.0, 0.02, 0.06, 0.1, 0.3):
        for _ in range(20):
            y = np.clip(0.8 + 0.012 * rng.standard_normal(20), 0, 1)
            y[12:15] -= depth
            item = curve(np.arange(1.0, 21), y, stderr=np.full(20, 0.012))
            assert stability(item).unstable == bool(falls(flat_points(y.tolist(), 0.012)))


def test_noise_alone_is_seldom_called_a_fall() -> None:
    rng = np.random.default_rng(0)
    runs = 300
    seen = sum(bool(falls(flat_points((0.8 + 0.015 * rng.standard_normal(40)).tolist(), 0.015))) for _ in range(runs))
    assert seen <= 6


def test_an_axis_has_fits_at_two_places_of_it() -> None:
    settings = {name: {PROMPTS: "8", GENERATIONS: "4", TOKENS: tokens} for name, tokens in (("a", "64"), ("b", "128"))}
    fits = [{"run": run, "task": "math", "parameters": {"A": 0.5}, "intervals": {"A": [0.4, 0.6]}} for run in "ab"]
    assert [axis["name"] for axis in axes(settings, fits)] == ["tokens per completion"]
    assert axes(settings, fits[:1]) == [], "the other run carries no fit"


def test_alarms_are_told_once_with_their_count(tmp_path: Path) -> None:
    alarms = [{"step": s, "name": "gap", "level": level, "subject": "", "message": f"gap {s}"}
              for s, level in ((1, "alarm"), (2, "over"), (3, "alarm"))]  # fmt: skip
    [entry] = unusual([], alarms, [], [], "finished")
    assert entry["text"] == "gap 3 (2 times)"
    assert entry["level"] == "bad"


def test_a_run_that_stopped_writing_is_called_silent(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False, status="running")
    written = max(path.stat().st_mtime for path in folder.iterdir())
    run = ViewedRun(find_runs([folder])[0], Reading(), clock=lambda: written + SILENT + 1)
    run.update()
    assert run.summary()["status"] == "silent"
    run = ViewedRun(find_runs([folder])[0], Reading(), clock=lambda: written + 1)
    run.update()
    assert run.summary()["status"] == "running"


def test_page_and_terminal_find_the_same_runs_under_the_same_names(tmp_path: Path) -> None:
    members = ("a/x", "b/x", "a/x/inner", "deep/c/x", "other/c/x", "family/m/seed_0", "family/m/seed_1")
    for number, name in enumerate(members):
        made_run(tmp_path / "runs" / name, rollouts=False, seed=number, loss=f"Loss{number}")
    (tmp_path / "runs" / "link").symlink_to(made_run(tmp_path / "elsewhere", rollouts=False))
    for some in ([tmp_path / "runs"], [tmp_path / "runs" / name for name in ("a", "b", "deep", "other", "family")]):
        page, read = find_runs(some), read_with(some, Reading())
        read = [one for one in read if not one.source.endswith("link")]  # which the page does not serve from elsewhere
        assert {str(one.path) for one in page} == {path for one in read for path in one.source.split(", ")}
        assert {str(one.path.relative_to(tmp_path / "runs")) for one in page} == set(members) - {"a/x/inner"}
        assert {one.group for one in page} == {one.run for one in read}


@pytest.mark.parametrize("quiet", [0.0, SILENT + 60], ids=["fresh", "quiet"])
@pytest.mark.parametrize("said", ["running", "finished", "interrupted"])
@pytest.mark.parametrize("note", [None, {}, {"pid": os.getpid()}, {"pid": 2**22 + 1}, {"node": "elsewhere"}])
def test_page_and_terminal_call_a_run_the_same(
    tmp_path: Path, note: dict[str, Any] | None, said: str, quiet: float, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(tmp_path / "run", rollouts=False, status=said)
    if note is not None:
        StatusFile(folder).write("RL", step=1)
        written = json.loads((folder / "status.json").read_text())
        (folder / "status.json").write_text(json.dumps(written | note | {"time": time.time() - quiet}))
    for file in folder.iterdir():
        os.utime(file, (time.time() - quiet,) * 2)
    run = ViewedRun(find_runs([folder])[0], Reading())
    run.update()
    assert main(["status", str(folder), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)["state"]
    there = not note or note.get("pid") == os.getpid() or ("node" in note and not quiet)
    assert state == (said if said != "running" else "gone" if not there else "silent" if quiet else "running")
    assert run.summary()["status"] == state
    assert (run.now() is not None) == (note is not None and said == "running")


def test_the_demo_s_run_that_was_killed_is_called_gone_however_new_its_files_are(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "recorded", copy_function=shutil.copyfile)
    runs = [ViewedRun(one, Reading()) for one in find_runs([tmp_path / "recorded"])]
    for run in runs:
        run.update()
    assert sorted(run.summary()["status"] for run in runs) == [*["finished"] * 6, "gone"]
    [killed] = [run for run in runs if run.status == "gone"]
    assert [one["text"] for one in killed.unusual() if "process is not there any more" in one["text"]]
    assert (killed.now() or {})["gone"]


@pytest.mark.parametrize("name", ["manifest.json", "evals.jsonl", "config.gin", "metrics.jsonl"])
def test_a_broken_file_is_a_problem_of_its_run_alone(tmp_path: Path, name: str) -> None:
    folder = made_run(tmp_path / "run", rollouts=False)
    (folder / name).write_bytes(b"\xff\xfe{]\n\x00\n" * 3)
    run = ViewedRun(find_runs([folder])[0], Reading())
    run.update()
    json.dumps(run.summary(), allow_nan=False)
    json.dumps(run.detail(), allow_nan=False)


def test_settings_that_differ_are_listed_without_seeds() -> None:
    settings = {
        "a": bindings("Run.seed = 0\nX.lr = 1\nX.b = 2  # laptop.gin:3"),
        "b": bindings("Run.seed = 1\nX.lr = 2\nX.b = 2"),
    }
    assert differences(settings) == [{"name": "X.lr", "values": {"a": "1", "b": "2"}}]


def test_settings_are_read_as_gin_has_them() -> None:
    """Values over several lines, blocks, scopes, and signs of a comment inside of text."""
    config = (
        "Run.tasks = (\n    @A(),\n    @b/B(),\n)\n"
        'X:\n    text = "a  # no comment"\n    one = (0.5,)\nb/B.lr = 1e-4  # fragment:3\nY.f = @f\n'
    )
    assert bindings(config) == {
        "Run.tasks": "(@A(), @b/B())", "X.text": '"a  # no comment"', "X.one": "(0.5,)", "b/B.lr": "0.0001", "Y.f": "@f"
    }  # fmt: skip
    with pytest.raises(LabError, match=r"config.gin:1: .*value"):
        bindings("X.y = no value")


def test_metrics_have_panels_and_the_rest_gets_its_own() -> None:
    lines = [metrics_line(step) | {"strange": step} for step in range(1, 9)]
    panels, still = metric_panels(lines)
    titles = [panel["title"] for panel in panels]
    assert {"Staleness (steps)", "Entropy (nats)", "strange"} <= set(titles)
    assert "Truncated share" in still
    assert not any("skipped" in title for title in titles)


def test_nested_metrics_become_dotted_names() -> None:
    flat = flatten({"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "name": "x", "staleness": {"0": 1, "4": 3}})
    assert flat["b.c"] == 2.5
    assert flat["b.d.e"] == 1.0
    assert (flat["staleness.mean"], flat["staleness.max"]) == (3.0, 4.0)
    assert "name" not in flat


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=36), st.integers(1500, 3000), st.integers(0, 99))
def test_thinning_keeps_the_extremes(spikes: list[float], others: int, seed: int) -> None:
    """Hypothesis makes no list of thousands: these have its spikes among small values."""
    rng = np.random.default_rng(seed)
    values = rng.permutation([*spikes, *rng.uniform(-1, 1, others)]).tolist()
    points = list(enumerate(values))
    kept = thin(points)
    assert len(kept) <= MOST_POINTS + 2
    assert thin(points[:MOST_POINTS]) == points[:MOST_POINTS]
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            {"level": "alarm", "name": "gap", "message": "wide", "step": 3, "time": 9.5},
            (3, 9.5, "alarm", "gap", "wide"),
        ),
        ({"event": "lost", "role": "trainer", "error": "died"}, (None, None, "lost", "trainer", "died")),
        ({"event": "lost", "name": "engine 1", "role": "engine"}, (None, None, "lost", "engine 1", "lost")),
        ({"level": "over", "message": "a", "error": "b", "event": "c"}, (None, None, "over", "", "a")),
        ({"step": "x"}, (None, None, "", "", "?")),
    ],
)
def test_a_line_of_alarms_or_faults_is_told_by_the_first_words_that_it_has(
    record: dict[str, Any], told: tuple[Any, ...]
) -> None:
    assert tuple(_said(record).values()) == told


def test_the_time_line_lays_phases_out_and_pairs_faults(tmp_path: Path) -> None:
    metrics = [metrics_line(step) for step in range(1, 5)]
    faults = [
        {"time": 1001.0, "event": "lost", "name": "generator 1", "error": "died"},
        {"time": 1002.0, "event": "missing", "name": "generator 1", "error": "no device"},
        {"time": 1003.0, "event": "overdue", "name": "generator 1", "error": "its node stays"},
        {"time": 1009.0, "event": "recovered", "name": "generator 1"},
        {"time": 1010.0, "event": "unsent", "name": "weights", "error": "weights 3 were not broadcast: late"},
    ]
    found = timeline(metrics, [{"time": 1010.0, "step": 1}], faults, [{"step": 2, "message": "loud"}], generators=2)
    assert found is not None
    assert found["phases"] == ["wait", "build", "step"]
    zero = 1006.0 - 5.1
    assert found["blocks"][0]["end"] == pytest.approx(5.1)
    assert found["blocks"][1]["idle"] == pytest.approx(1 / 6 / 2, abs=1e-4)
    loss, unsent = found["faults"]
    assert (loss["time"], loss["until"]) == (pytest.approx(1001.0 - zero), pytest.approx(1009.0 - zero))
    assert unsent["time"] == unsent["until"] == pytest.approx(1010.0 - zero)
    assert unsent["text"] == "weights 3 were not broadcast: late"
    assert found["alarms"] == [{"time": pytest.approx(1012.0 - zero), "text": "loud"}]


@pytest.mark.parametrize(
    ("hardware", "generators"), [({"devices": {"generator": 3}}, 3), ({"devices": {}}, 1), ({}, 1)]
)
def test_the_idle_share_is_of_the_generators_that_the_manifest_names_or_of_one(
    tmp_path: Path, hardware: dict[str, Any], generators: int
) -> None:
    folder = made_run(tmp_path / "run", evaluations=2, rollouts=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "hardware": hardware}))
    run = ViewedRun(find_runs([folder])[0], Reading())
    run.update()
    assert run.detail()["timeline"]["blocks"][1]["idle"] == pytest.approx(1 / 6 / generators, abs=1e-4)


def test_a_long_run_s_time_line_is_bounded() -> None:
    found = timeline([metrics_line(step) for step in range(1, 5001)], [], [], [])
    assert found is not None
    assert len(found["blocks"]) <= 400
    assert sum(sum(block["seconds"]) for block in found["blocks"]) == pytest.approx(5000 * 5.1, rel=1e-3)


def test_lines_of_the_wrong_kinds_are_survived(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    odd: list[Any] = [None, "x", [], {}, True, 1e400, -1, {"a": {"b": [1]}}]
    keys = ("step", "task", "compute", "pass_rate", "stderr", "outcomes", "time", "seconds", "staleness", "tasks")
    records = [dict.fromkeys(keys, value) for value in odd]
    for name in ("evals.jsonl", "metrics.jsonl", "alarms.jsonl", "faults.jsonl"):
        write_lines(folder / name, records)
    (folder / "manifest.json").write_text(json.dumps({key: [1] for key in ("status", "hardware", "versions")}))
    run = ViewedRun(find_runs([folder])[0], Reading())
    run.update()
    json.dumps([run.summary(), run.detail(), run.points], allow_nan=False)


def test_a_simulated_clock_gives_no_axis_of_wall_hours(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"clock": "virtual"}))
    for name in ("evals.jsonl", "metrics.jsonl"):  # its lines count seconds from the start of the run
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        (folder / name).write_text("".join(json.dumps(line | {"time": line["time"] - 1000}) + "\n" for line in lines))
    run = ViewedRun(find_runs([folder])[0], Reading())
    assert run.update()
    for points in run.points:
        assert set(points["x"]) == {"compute", "step", "completions", "tokens", "flops"}


def test_a_fall_names_the_metrics_that_were_off_before_it_and_none_that_were_as_usual() -> None:
    rng = np.random.default_rng(0)
    lines = [
        {
            "step": step,
            "entropy": 1 + 0.01 * rng.standard_normal() - 0.05 * max(step - 95, 0),
            "loss": rng.standard_normal(),
        }
        for step in range(1, 140)
    ]
    found = foretold(lines, 100)
    assert [one["name"] for one in found] == ["entropy"]
    assert found[0]["value"] < 0.98 < found[0]["usual"]
    assert foretold(lines, 60) == []
    assert foretold(lines[:15], 15) == []
    shortest = [{**line, "step": step} for step, line in enumerate(lines[85:105], 1)]
    assert [one["name"] for one in foretold(shortest, 20)] == ["entropy"], "ten steps say what is usual"
    assert foretold(shortest[1:], 20) == [], "nine do not"
    assert foretold([{"step": "x"}, {"entropy": None}], 5.0) == []


def test_staleness_and_the_truncated_share_of_a_task_are_among_the_signs_of_a_fall() -> None:
    lines = [
        {
            "step": step,
            "staleness": {"1": 100} if step < 92 else {"1": 50, "9": 50},
            "tasks": {"math": {"truncated": 0.02 if step < 92 else 0.3}, "code": {"truncated": 0.02}},
        }
        for step in range(1, 101)
    ]
    found = {one["name"]: (one["usual"], one["value"]) for one in foretold(lines, 100)}
    assert found.keys() == {"staleness.mean", "tasks.math.truncated"}
    assert found["staleness.mean"] == (1.0, pytest.approx(0.1 * 1 + 0.9 * 5))


@pytest.mark.parametrize(("here", "before"), [(2, 50), (3, 50), (10, 50), (10, 9), (10, 10), (3, 10), (10, 60)])
@given(st.sampled_from([0, 8]), st.integers(0, 9), st.integers(0, 8), st.randoms())
def test_what_was_off_before_a_fall_is_what_a_slow_count_says(
    here: int, before: int, off: int, scatter: int, after: int, random: Random
) -> None:
    """Ten steps before a fall, of which `here` have the metric, moved by `off`, and so many before those."""
    usual = [random.randint(5, 5 + scatter) for _ in range(before)]
    moved = [random.randint(5, 5 + scatter) + off for _ in range(here)]
    values = [*usual, *[None] * (10 - here), *moved, *(random.randint(0, 99) for _ in range(after))]
    lines = [{"step": at} | ({} if one is None else {"entropy": one}) for at, one in enumerate(values, 1)]
    step, late, early = before + 10, moved, usual[-50:]
    expected = []
    if len(late) >= 3 and len(early) >= 10:
        middle = statistics.median(early)
        spread = max(1.4826 * statistics.median(abs(one - middle) for one in early), abs(middle) / 100, 1e-9)
        if abs(z := (statistics.fmean(late) - middle) / spread) >= 4:
            expected = [("entropy", statistics.fmean(late), middle, z)]
    found = [(one["name"], one["value"], one["usual"], one["z"]) for one in foretold(lines, step)]
    assert [one[0] for one in found] == [one[0] for one in expected]
    assert [one[1:] for one in found] == [pytest.approx(one[1:]) for one in expected]


def test_notes_are_read_from_the_run_s_folder(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False)
    run = ViewedRun(find_runs([folder])[0], Reading())
    run.update()
    assert run.summary()["note"] == ""
    (folder / "notes.md").write_text("Looks good.\nMore.\n")
    assert run.update()
    assert (run.summary()["note"], run.detail()["note"]) == ("Looks good.", "Looks good.\nMore.")


def test_evaluations_without_a_step_or_a_figure_are_left_out_of_its_chart() -> None:
    found = ({"step": 0, "mean_length": 20.0}, {"step": 10}, {"mean_length": 9.0}, {"step": 20, "mean_length": 30.0})
    [chart] = held_out_panels([{**one, "task": "math"} for one in found])
    [line] = chart["lines"]
    assert (chart["title"], line["x"], line["y"]) == ("Mean completion length (tokens)", [0, 20], [20.0, 30.0])


def test_the_measured_order_names_the_first_three_of_many_recipes() -> None:
    recipes = [curve([0, 1, 2], [0.1, rate, rate], run=name) for name, rate in zip("abcd", (0.3, 0.5, 0.4, 0.2))]
    text = measured("", recipes)["text"]
    assert "b has the highest pass rate of 4 recipes, 0.500; next c 0.400 and a 0.300." in text


def test_as_many_metrics_are_drawn_as_the_page_holds_and_the_others_are_named() -> None:
    panels, left_out = metric_panels([{"step": 1, **{f"own_{number}": 1.0 for number in range(MOST_PANELS + 1)}}])
    assert (len(panels), left_out) == (MOST_PANELS, [f"own_{MOST_PANELS} (not drawn)"])


def test_the_age_of_a_status_is_that_of_its_file_and_never_below_zero(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"time": 100.0}')
    assert [status_and_age(tmp_path, at)[1] for at in (100.25, 99.0)] == [0.25, 0.0]
