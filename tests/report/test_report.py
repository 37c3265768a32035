"""The page as one file, figures, the Markdown summary, and numbers as people read them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scalelab.cli import main
from scalelab.numbers import share, with_interval, with_interval_of_ratio
from scalelab.report import write_report
from scalelab.report.page import SAMPLED
from tests.helpers.curve_points import run_points, table
from tests.helpers.view_runs import HOSTILE, made_run

REPOSITORY = Path(__file__).resolve().parents[2]
VOID = {"meta", "br", "img", "link", "input"}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALELAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Page(HTMLParser):
    """Checks that tags nest; keeps tags, links, scripts and the data inside."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(self.text)
        assert not self.open, f"left open: {self.open}"
        self.data = json.loads(next(text for text in self.scripts if text.lstrip().startswith("{")))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.links += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def test_the_page_of_a_run_is_one_file_with_everything_in_it(tmp_path: Path) -> None:
    page = Page(write_report(made_run(tmp_path / "quickstart"), tmp_path / "out" / "report.html"))
    assert set(page.links) == {"data:,", "#content"}
    assert "src" not in dict(page.attributes)
    data = page.data
    assert [run["name"] for run in data["overview"]["runs"]] == ["quickstart"]
    assert {fit["task"] for fit in data["overview"]["fits"]} == {"math", "code"}
    assert data["details"]["r0"]["panels"]
    assert data["details"]["r0"]["timeline"]["blocks"]
    assert "CISPO" in data["details"]["r0"]["config"]
    assert data["prompts"]["r0"]["steps"] == [0, 80, 150]
    steps = {row["step"] for row in data["completions"]["r0"]}
    assert steps == {0, 80, 150}


def test_the_policy_of_the_page_names_its_scripts_and_no_others(tmp_path: Path) -> None:
    page = Page(write_report(made_run(tmp_path / "run", rollouts=False), tmp_path / "r.html"))
    policy = next(value for name, value in page.attributes if name == "content" and value and "script-src" in value)
    allowed = set(re.findall(r"sha256-([\w+/=]+)", policy))
    scripts = [text for text in page.scripts if not text.lstrip().startswith("{")]
    assert allowed == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert policy.startswith("default-src 'none'")


@pytest.mark.slow
def test_nothing_that_a_run_says_becomes_a_tag(tmp_path: Path) -> None:
    plain = Page(write_report(made_run(tmp_path / "plain"), tmp_path / "plain.html"))
    hostile = Page(write_report(made_run(tmp_path / "<b>&'\"", text=HOSTILE, name=HOSTILE), tmp_path / "r.html"))
    assert hostile.tags == plain.tags
    assert hostile.data["overview"]["runs"][0]["experiment"] == HOSTILE
    assert HOSTILE in hostile.data["completions"]["r0"][0]["completion"]


@pytest.mark.slow
def test_the_study_s_26_runs_fit_into_five_megabytes(tmp_path: Path) -> None:
    path = write_report(REPOSITORY / "docs" / "first_study" / "runs", tmp_path / "study.html")
    assert path.stat().st_size < 5_000_000
    overview = Page(path).data["overview"]
    assert len(overview["runs"]) == 26
    assert len(overview["groups"]) == 16
    assert [one["task"] for one in overview["answers"]] == ["code", "math"]


@pytest.mark.slow
def test_many_completions_are_sampled_alike_from_every_run(tmp_path: Path) -> None:
    for number in range(4):
        made_run(tmp_path / "runs" / str(number), loss=f"loss_{number}", per_task=1500, evaluations=6)
    path = write_report(tmp_path / "runs", tmp_path / "r.html")
    assert path.stat().st_size < 5_000_000
    kept = Page(path).data["completions"]
    sizes = [len(json.dumps(rows)) for rows in kept.values()]
    assert all(0.5 * SAMPLED / 4 < size < 1.2 * SAMPLED / 4 for size in sizes)
    assert {row["task"] for row in kept["r0"]} == {"math", "code"}


def test_a_run_that_has_hardly_begun_still_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "young"
    folder.mkdir()
    line = {"step": 0, "compute": 0.0, "task": "math", "pass_rate": 0.2, "stderr": 0.02}
    (folder / "evals.jsonl").write_text(json.dumps(line) + "\n")
    data = Page(write_report(folder, tmp_path / "r.html")).data
    assert "No fit yet" in data["overview"]["answers"][0]["text"]


def test_a_source_without_points_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evals.jsonl").write_text("")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == 1
    assert "no evaluations yet" in capsys.readouterr().err
    made_run(tmp_path / "run", rollouts=False)
    for more in ([], ["--task", "math"]):
        asked = ["report", str(tmp_path / "run"), "--task", "nosuch", *more, "-o", str(tmp_path / "r.html")]
        assert main(asked) == 1
        assert ("no task 'nosuch'" if more else "no evaluations of nosuch yet") in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_tables_of_others_have_a_page(tmp_path: Path) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("<base>", 0.7), ("worse", 0.55))]
    assert main(["report", *sources, "-o", str(tmp_path / "r.html")]) == 0
    overview = Page(tmp_path / "r.html").data["overview"]
    assert overview["answers"][0]["text"].startswith("<base> leads 2 recipes")


@pytest.mark.slow
def test_a_pool_is_one_recipe(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made_run(tmp_path / name, loss=name, seed=ord(name), rollouts=False)
    sources = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["report", *sources, "--pool", "both", "-o", str(tmp_path / "r.html")]) == 0
    overview = Page(tmp_path / "r.html").data["overview"]
    assert {fit["run"] for fit in overview["fits"]} == {"both"}
    assert [group["name"] for group in overview["groups"]] == ["both"]


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "begins"), [(".pdf", b"%PDF"), (".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_figures_for_papers(tmp_path: Path, ending: str, begins: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "base.csv")
    path = tmp_path / f"curves{ending}"
    assert main(["report", source, "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(begins)
    assert capsys.readouterr().out == f"{path}\n"


def test_a_figure_is_as_wide_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "run", rollouts=False, tasks=("math",))
    assert main(["report", str(tmp_path / "run"), "--figure", str(tmp_path / "a.svg"), "--width", "3.3"]) == 0
    assert f'width="{3.3 * 72:.1f}pt"' in (tmp_path / "a.svg").read_text()
    assert main(["report", str(tmp_path / "run"), "--figure", str(tmp_path / "b.svg"), "--width", "-1"]) == 1
    assert "give 2 to 20" in capsys.readouterr().err


def test_a_figure_that_cannot_be_drawn_is_refused_before_the_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "nowhere", "--figure", str(tmp_path / "curves.docx")]) == 1
    assert "use .png, .svg, .pdf" in capsys.readouterr().err


def test_the_summary_is_markdown_that_nothing_escapes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "a|b <i>", text=HOSTILE, fall=12, evaluations=24, rollouts=False)
    assert main(["report", str(tmp_path / "a|b <i>"), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "has reached" in printed
    assert "pass rate fell" in printed
    assert "<i>" not in printed
    assert "<script>" not in printed
    rows = [line for line in printed.splitlines() if line.startswith("| ") and "spent" not in line]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [7, 7]


def test_a_printed_A_is_one_and_falls_are_placed_on_the_log_s_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A that is no limit is bracketed in both tables; a fall names its recipe and the unit of the axis."""
    rows = ["run,gpu_hours,pass_rate,n"]
    for run, rise in (("up", 1), ("down", -1)):
        for at in range(21):
            way = 1 / (1 + (900.0 / max(50.0 * at, 1e-9)) ** 1.2)
            rows.append(f"{run},{50.0 * at},{0.5 + rise * 0.4 * way + 0.004 * (-1) ** at},2000")
    (tmp_path / "two.csv").write_text("\n".join(rows) + "\n")
    assert main(["report", str(tmp_path / "two.csv"), "--markdown"]) == 0
    text = capsys.readouterr().out.replace("\\", "")
    assert "## 2 recipes, 2 runs\n" in text
    compared = re.search(r"^\| 1 \| up \|.*?(\(0\.\d+ \[.*?\]\))", text, re.MULTILINE)
    assert compared, "A of a curve that is half way up is no limit"
    assert f"| up | – | {compared[1]} |" in text
    assert re.search(r"- two: down: pass rate fell from 0\.50 to 0\.\d+ at [\d,]+ GPU-hours", text)
    assert "at step" not in text


def test_what_is_left_out_of_the_summary_is_said_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe without a fit and one in another unit are named, and only those that are ranked are led."""
    rows = ["run,seed,gpu_hours,pass_rate,n"]
    for run, A in (("better", 0.7), ("worse", 0.55)):
        for seed in range(2):
            compute, points = run_points(noise=0.004, seed=seed, A=A)
            rows += [f"{run},{seed},{1000 * at},{point},2000" for at, point in zip(compute, points)]
    rows += [f"flat,0,{50 * at},{0.3 + 0.002 * (-1) ** at},2000" for at in range(21)]
    (tmp_path / "three.csv").write_text("\n".join(rows) + "\n")
    lines = [f"{10 * at},{point}" for at, point in enumerate(run_points()[1])]
    (tmp_path / "other.csv").write_text("\n".join(["step,pass_rate", *lines]) + "\n")
    sources = [str(tmp_path / name) for name in ("three.csv", "other.csv")]
    assert main(["report", *sources, "--markdown", "-o", str(tmp_path / "r.html")]) == 0
    text = capsys.readouterr().out.replace("\\", "")
    assert text.startswith("## 3 recipes, 5 runs\n")
    assert "better leads 2 recipes of 3 (1 without a fit) at " in text
    left_out = text.partition("**Left out**")[2].split("\n\n")[1]
    assert re.fullmatch(r"- other counts compute in steps.*\n- flat: the pass rate neither rises nor falls.*", left_out)
    overview = Page(tmp_path / "r.html").data["overview"]
    assert (overview["title"], overview["count"]) == ("3 recipes, 5 runs", 5)
    assert overview["answers"][0]["text"].partition(".")[0] in text


def test_recipes_without_a_fit_are_counted_in_the_answer_and_its_reasons_are_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = [
        (run, at, 0.3 + 0.01 * number + 0.002 * (-1) ** at) for number, run in enumerate("abcde") for at in range(9)
    ]
    rises = [("up", *point) for point in zip(*run_points())]
    log = tmp_path / "log.csv"
    for rows, said in (
        (rises + flat, "5 other recipes have no fit. Twice"),
        (rises + flat[:9], "1 other recipe has no"),
    ):
        log.write_text("run,step,pass_rate\n" + "".join(f"{run},{at},{rate}\n" for run, at, rate in rows))
        assert main(["report", str(log), "--markdown"]) == 0
        printed = capsys.readouterr().out
        assert said in printed, "a recipe that alone has a fit is not the best for it"
        assert "C_mid in steps." in printed, "which spent need not be in"
    log.write_text("run,step,pass_rate\n" + "".join(f"{run},{at},{rate}\n" for run, at, rate in flat))
    main(["report", str(log), "--markdown"])
    assert "; and 2 more." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["empty.csv", "empty.jsonl", "empty.json"])
def test_an_empty_log_is_named_once_and_called_so(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / name
    log.write_text("[]" if name == "empty.json" else "")
    assert main(["report", str(log), "--markdown"]) == 1
    said = capsys.readouterr().err
    assert said.count(str(log)) == 1
    assert "the file is empty" in said or "no evaluations in it yet" in said


def test_a_ratio_is_never_0_and_a_share_of_a_few_is_a_count() -> None:
    assert with_interval_of_ratio(1.1, (0.017, 8.04)) == "1.1 [0.017, 8.0]"
    assert with_interval_of_ratio(0.98, (0.95, 1.02)) == with_interval(0.98, (0.95, 1.02))
    assert with_interval_of_ratio(1.0, (2e-7, 12345.6)) == "1.0 [2.0e-07, 12,346]"
    assert (share(0.0, 10), share(1.0, 10), share(0.0, 100), share(1.0, 200)) == ("0 of 10", "10 of 10", "<1%", ">99%")


def test_numbers_as_people_read_them() -> None:
    assert with_interval(0.61234, (0.6, 0.63)) == "0.612 [0.600, 0.630]"
    assert with_interval(40_000.0, (30_000.0, None)) == "40,000 [30,000, …]"
