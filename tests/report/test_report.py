"""The page: one file, nothing fetched, every part of a run in it; and the small charts it is made of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from curve_points import run_points, table
from hypothesis import assume, given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.report import write_report
from scalelab.report.metrics import flatten, smooth
from scalelab.report.svg import Chart, Line, Points, draw, number, ticks
from scalelab.report.tables import with_error, with_interval

numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)

VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps tags, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def make_run(folder: Path, tasks=("math", "code"), steps: int = 80) -> Path:
    folder.mkdir(parents=True)
    records = []
    for seed, task in enumerate(tasks):
        compute, points = run_points(20, noise=0.01, seed=seed)
        records += [
            {"step": 4 * i, "compute": c, "compute_unit": "core-hours", "task": task, "n_prompts": 100, "k": 4,
             "pass_rate": p, "stderr": 0.02, "truncated": 0.01 * i, "outcomes": {"passed": 3, "timeout": i}}
            for i, (c, p) in enumerate(zip(compute.tolist(), points.tolist()))
        ]  # fmt: skip
    (folder / "evals.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    metrics = [
        {"step": s, "loss": 0.1 / s, "entropy": 1.0 - s / 100, "ratio_min": 0.5, "ratio_mean": 1.0, "ratio_max": 2.0,
         "staleness": {"0": 3, "4": 1}, "tasks": {task: {"pass_rate": s / 100, "truncated": 0.1} for task in tasks},
         "seconds": {"wait": 0.1, "step": 0.5}, "skipped": False, "strange_metric": s}
        for s in range(1, steps + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics) + '{"torn')
    alarm = {"step": 7, "name": "truncated", "level": "alarm", "message": "alarm at step 7: math truncated is 0.2"}
    (folder / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    (folder / "config.gin").write_text('Model.name = "<tiny & odd>"\n')
    (folder / "manifest.json").write_text(json.dumps({"seed": 0, "versions": {"numpy": "2"}}))
    return folder


def test_the_page_of_a_run_is_self_contained_and_complete(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path / "quickstart"), tmp_path / "out" / "report.html")
    text = path.read_text()
    page = Page(text)
    assert not page.links
    assert "script" not in page.tags
    assert "http" not in text.replace("http-equiv", "")
    assert page.tags.count("svg") > 8
    for words in (
        "Pass rate against compute", "Fitted curves", "What more compute would bring", "rise in parallel",
        "Held-out evaluations", "Training metrics", "Settings", "Entropy (nats)", "Staleness (steps)", "Timeouts",
        "strange_metric", "<tiny & odd>", "core-hours", "Alarms", "math truncated is 0.2",
    ):  # fmt: skip
        assert words in page.text, words


def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("<base>", 0.7), ("worse", 0.55))]
    assert main(["report", *sources, "-o", str(tmp_path / "r.html")]) == 0
    page = Page((tmp_path / "r.html").read_text())
    assert "2 runs compared" in page.text
    assert "Efficiency at the common A" in page.text
    assert "<base>" in page.text


def test_a_run_that_has_hardly_begun_still_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "young"
    folder.mkdir()
    line = {"step": 0, "compute": 0.0, "task": "math", "pass_rate": 0.2, "stderr": 0.02}
    (folder / "evals.jsonl").write_text(json.dumps(line) + "\n")
    page = Page(write_report(folder, tmp_path / "r.html").read_text())
    assert "1 point in the window" in page.text


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    high = low + span
    assume(span > 1e-6 * abs(low))
    found = ticks(low, high)
    assert len(found) <= 8
    assert all(low - 1e-6 * span <= at <= high + 1e-6 * span for at in found)


@given(st.floats(1e-9, 1e9), st.floats(1.5, 1e9))
def test_log_ticks_lie_inside(low: float, ratio: float) -> None:
    assert all(low <= at * 1.001 and at <= low * ratio * 1.001 for at in ticks(low, low * ratio, log=True))


@given(st.lists(st.tuples(numbers, numbers), max_size=6), st.booleans(), st.booleans())
def test_any_data_can_be_drawn(points, log_x: bool, log_y: bool) -> None:
    x, y = [a for a, _ in points], [b for _, b in points]
    chart = Chart([Line(x, y, "#000", "a <b>"), Points(x, y, "#111", "c", [0.1] * len(x))], "x", "y", log_x, log_y)
    svg = draw(chart)
    Page(svg)
    assert "nan" not in svg
    assert "inf" not in svg


def test_numbers_as_people_read_them() -> None:
    assert with_error(0.61234, 0.0081) == "0.6123 ± 0.0081"
    assert with_error(12345.6, 321.0) == "12,346 ± 321"
    assert with_error(1.0, 0.0) == "1"
    assert with_interval(0.61234, (0.6, 0.63)) == "0.612 [0.600, 0.630]"
    assert with_interval(40_000.0, (30_000.0, None)) == "40,000 [30,000, …]"
    assert [number(at) for at in (0, 12_000, 2e6, 0.25, 3e-5)] == ["0", "12k", "2M", "0.25", "3e-5"]


def test_nested_metrics_become_dotted_names() -> None:
    flat = flatten({"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "name": "x", "staleness": {"0": 1, "4": 3}})
    assert flat["b.c"] == 2.5
    assert flat["b.d.e"] == 1.0
    assert (flat["staleness.mean"], flat["staleness.max"]) == (3.0, 4.0)
    assert "name" not in flat


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(0, 5))
def test_the_moving_mean_is_a_mean(values: list[float], reach: int) -> None:
    for index, smoothed in enumerate(smooth(values, reach)):
        near = values[max(index - reach, 0) : index + reach + 1]
        assert smoothed == pytest.approx(sum(near) / len(near), abs=1e-9)
