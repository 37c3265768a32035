"""The page in a real browser: every control, live growth, hostile and broken runs, narrow and dark, axe-core.

They need Debian's chromium (`tools/install_browser.sh`) and count as skips without it. Nothing here waits for a time,
only for what the page shows.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from scalelab.cli import main
from scalelab.kept import Kept
from scalelab.report import write_report
from scalelab.store.lines import read_lines
from scalelab.store.status_file import StatusFile
from scalelab.view.lab import Lab
from scalelab.view.server import Refresher, make_app
from tests.helpers.view_runs import HOSTILE, add_rollouts, made_run

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
VIEWS = ("#/", "#/runs", "#/pair", "#/run/r0", "#/completions/r0", "#/completions/r0/prompts")
WAIT = 300_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves the live page of some runs until its test is over; returns its address."""
    started: list[Served] = []

    def start(folder: Path, read: threading.Event | None = None) -> str:
        started.append(Served(folder, read))
        return started[-1].address

    yield start
    for served in started:
        served.close()


@pytest.fixture
def visit(browser: Any, serve: Callable[..., str]) -> Iterator[Callable[..., Any]]:
    """Opens a page and collects what goes wrong on it; at the end nothing may have.

    It comes after `serve`, so that pages are closed before their servers: one that still asks would be refused.
    """
    contexts, wrong = [], []

    def open_page(address: str, width: int = 1400, scheme: str = "light", offline: bool = False) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
        if offline:
            page.on(
                "request",
                lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else wrong.append(asked.url),
            )
        page.goto(address)
        page.wait_for_selector("body[data-shown]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


class LateLab(Lab):
    """Runs that are not read before an event."""

    read: threading.Event | None = None

    def update(self, progress: Callable[[int, int], None] | None = None) -> bool:
        if self.read is not None:
            assert self.read.wait(WAIT / 1000)
        return super().update(progress)


class Served:
    """The live page of some runs on a free port; they are read at once, or after an event."""

    def __init__(self, folder: Path, read: threading.Event | None = None) -> None:
        import uvicorn

        lab = LateLab([folder], kept=Kept(None))
        lab.read = read
        self.refresher = Refresher(lab)
        self.refresher.start()
        self.server = uvicorn.Server(uvicorn.Config(make_app(self.refresher), port=0, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        until(lambda: self.server.started, "the server to start")
        self.address = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/"

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        self.refresher.stop()


def until(true: Callable[[], object], what: str, seconds: float = WAIT / 1000) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    made_run(folder / "best", A=0.85, evaluations=20, fall=12)
    made_run(folder / "worse", A=0.7, loss="other", seed=1, evaluations=20)
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    served = Served(runs)
    yield served
    served.close()


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALELAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        return write_report(runs, tmp_path_factory.mktemp("page") / "report.html").as_uri()


def go(page: Any, address: str, view: str) -> None:
    """Go to another view of an open page, and wait until it is shown instead of the one before."""
    before = page.get_attribute("body", "data-shown")
    page.goto(address + view)
    until(lambda: page.get_attribute("body", "data-shown") != before, f"{view} to be shown")


def fitted(page: Any) -> None:
    """Wait for the whole answer: all fits and comparisons are made."""
    page.wait_for_selector("#answer:not(:has(.working)) .card")


def drawn(page: Any) -> list[int]:
    """Numbers of series of the charts that are on the page; charts that are out of sight are scrolled to."""
    for figure in page.query_selector_all("figure .chart"):
        if figure.is_visible():
            figure.scroll_into_view_if_needed()
            until(partial(figure.evaluate, "box => !!echarts.getInstanceByDom(box)"), "a chart to be drawn")
    return page.evaluate(
        "() => [...document.querySelectorAll('figure .chart')].map(box => echarts.getInstanceByDom(box))"
        ".filter(Boolean).map(chart => chart.getOption().series.length)"
    )


def press_everything(page: Any) -> int:
    """Use every control of a view once: buttons, boxes, menus, sliders, folds; returns how many.

    A control may take others away, or change the view: what is gone by the time it is reached is left out.
    """
    for fold in page.query_selector_all("main details:not([open]) > summary"):
        fold.click()
    used = 0
    for control in reversed(page.query_selector_all("main button, main input, main select")):  # menus that leave: last
        try:
            used += press(control)
        except playwright.Error as error:
            if "not attached" not in str(error) and "not connected" not in str(error):
                raise
    return used


def press(control: Any) -> bool:
    """Use one control; whether it could be used."""
    if not control.evaluate("one => one.isConnected") or not control.is_visible() or not control.is_enabled():
        return False
    kind = control.evaluate("one => one.tagName + ' ' + (one.type || '')")
    if kind.startswith("SELECT"):
        for choice in control.evaluate("one => [...one.options].map(o => o.value)")[:4]:
            if control.evaluate("one => one.isConnected"):
                control.select_option(choice)
    elif kind in ("INPUT search", "INPUT number"):
        control.fill("0.5")
        control.fill("")
    elif kind == "INPUT range":
        control.evaluate("one => { one.value = one.max; one.dispatchEvent(new Event('input')); }")
    elif "Save" not in (control.get_attribute("aria-label") or ""):
        control.evaluate("one => one.click()")
    return True


def test_runs_of_one_table_are_counted_and_its_sources_called_so(visit: Callable[..., Any], tmp_path: Path) -> None:
    lines = [f"{run},{at},{0.2 + at * (2 + number) / 100}" for number, run in enumerate("ab") for at in range(12)]
    (tmp_path / "both.csv").write_text("\n".join(["run,gpu_hours,pass_rate", *lines]) + "\n")
    address = write_report(tmp_path / "both.csv", tmp_path / "report.html").as_uri()
    page = visit(address, offline=True)
    fitted(page)
    assert "2 recipes, 2 runs" in page.inner_text("header")
    go(page, address, "#/runs")
    assert "1 of 1 sources." in page.inner_text("main")
    go(page, address, "#/pair")
    assert "All runs are in one file: give each a file of its own." in page.inner_text("main")


@pytest.mark.parametrize(
    ("mode", "view"),
    [
        *(("written", view) for view in VIEWS),
        pytest.param("served", "#/", marks=pytest.mark.nightly),
        ("served", "#/completions/r0"),
    ],
)
def test_every_control_of_every_view_does_its_work(
    request: pytest.FixtureRequest, visit: Callable[..., Any], mode: str, view: str
) -> None:
    target = request.getfixturevalue(mode)
    address = target.address if mode == "served" else target
    page = visit(address, offline=mode == "written")
    fitted(page)
    go(page, address, view)
    assert press_everything(page) >= 3
    assert page.query_selector_all("main > .problem") == []


def test_the_answer_comes_first_then_the_ranking_then_what_is_unusual(
    visit: Callable[..., Any], served: Served
) -> None:
    page = visit(served.address)
    fitted(page)
    titles = [title.inner_text() for title in page.query_selector_all("main > section h2")]
    assert titles[:4] == ["The answer", "Ranking", "What is unusual", "Curves and forecast"]
    assert "best leads 2 recipes" in page.inner_text("#answer")
    assert "pass rate fell from" in page.inner_text(".unusual li >> nth=0"), "before alarms, of which there may be many"
    assert min(drawn(page)) >= 2


def test_a_task_that_is_forgotten_is_unusual_though_none_of_its_evaluations_falls_beyond_chance(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    falls = "".join(f"{at},{0.9 - 0.3 * at / (at + 8) + 0.01 * (-1) ** at},60\n" for at in range(21))
    (tmp_path / "forgetting.csv").write_text("step,pass_rate,n\n" + falls)
    page = visit(serve(tmp_path / "forgetting.csv"))
    fitted(page)
    said = page.inner_text("#unusual")
    assert "forgetting forgets: falls from" in said
    assert "Nothing" not in said


def test_why_a_run_failed_is_said_and_its_time_is_this_machine_s(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    run = made_run(tmp_path / "run", status="failed")
    manifest = json.loads((run / "manifest.json").read_text())
    more = {"reason": "no completion could be graded", "clock": "virtual", "wall_seconds": 80.0}
    (run / "manifest.json").write_text(json.dumps(manifest | more))
    address = serve(tmp_path / "run")
    page = visit(address)
    fitted(page)
    assert "the run failed: no completion could be graded" in page.inner_text("#unusual")
    go(page, address, "#/run")
    facts = page.inner_text(".facts")
    assert "failed: no completion could be graded" in facts
    assert "1 min on this machine" in facts, "not that of the simulated clock"


def addressed(page: Any, part: str) -> None:
    """Wait until the page's address holds a part: its script writes it after a control is used."""
    deadline = time.monotonic() + WAIT / 1000
    while part not in page.url:
        assert time.monotonic() < deadline, f"waited {WAIT / 1000:.0f} s for {part} in {page.url}"
        page.wait_for_timeout(20)


def test_an_address_shows_what_was_chosen_to_whoever_opens_it(visit: Callable[..., Any], written: str) -> None:
    """Axis, recipes, filters, the completion and the run that settings are compared with, each in a page of its own."""
    page = visit(written, offline=True)
    fitted(page)
    page.get_by_label("Horizontal axis").select_option("step")
    page.get_by_label("logarithmic").check()
    page.click(".toggle >> text=worse")
    addressed(page, "show=")
    again = visit(page.url, offline=True)
    assert again.get_by_label("Horizontal axis").input_value() == "step"
    assert again.get_by_label("logarithmic").is_checked()
    pressed = {one.inner_text(): one.get_attribute("aria-pressed") for one in again.query_selector_all(".toggle")}
    assert pressed == {"best": "true", "worse": "false"}

    page = visit(written + "#/completions/worse", offline=True)
    page.wait_for_selector(".reading pre")
    page.get_by_label("Outcome").select_option("not passed")
    addressed(page, "outcome=not+passed")
    page.wait_for_timeout(300)
    page.click(".item >> nth=2")
    addressed(page, "row=")
    chosen = page.get_attribute(".item >> nth=2", "data-row")
    again = visit(page.url, offline=True)
    again.wait_for_selector(f".item[data-row='{chosen}'][aria-pressed=true]")
    assert again.get_by_label("Outcome").input_value() == "not passed"
    assert again.locator("select").first.locator("option:checked").inner_text() == "worse"

    page = visit(written + "#/run/best", offline=True)
    page.get_by_label("Differences to").select_option(label="worse")
    addressed(page, "#/run/best?against=worse")
    again = visit(page.url, offline=True)
    again.wait_for_selector("text=Settings that differ from worse")


def test_two_recipes_stand_head_to_head_in_a_file_too_and_tables_are_copied(
    visit: Callable[..., Any], written: str
) -> None:
    page = visit(written + "#/pair?first=worse&second=best", offline=True)
    page.wait_for_selector("#pair-title >> text=worse against best")
    said = page.inner_text(".verdict-of-pair >> nth=0")
    assert "worse is worse than best at 1 GPU-hours" in said
    assert "Recipe.loss" in page.inner_text("section:has(#pair-settings)")
    page.click("section:has(#pair-prompts) td button, section:has(#pair-prompts) th button")
    page.wait_for_selector(".compare .pair")
    rows = [["run", "x_y"], ["=a&b", "0.5 [0.4, 0.6]"], ['c"', "<1% ×"]]
    made = {
        name: page.evaluate(f"rows => Lab.FORMATS.{name}(rows, 'T')", rows) for name in ("CSV", "Markdown", "LaTeX")
    }
    assert made["CSV"] == 'run,x_y\n"\'=a&b","0.5 [0.4, 0.6]"\n"c""",<1% ×\n'
    assert made["Markdown"].splitlines()[1:3] == ["|---|---|", "| =a&b | 0.5 [0.4, 0.6] |"]
    assert "  =a\\&b & 0.5 [0.4, 0.6] \\\\\n" in made["LaTeX"]
    assert "$<$1\\% $\\times$" in made["LaTeX"]


def test_two_recipes_without_a_fit_stand_side_by_side(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        made_run(tmp_path / "runs" / name, rollouts=False, evaluations=2, loss=name, seed=seed)
    page = visit(serve(tmp_path / "runs") + "#/pair")
    page.wait_for_selector("text=No task has a fit on both sides: three evaluations and a rise or a fall are needed.")
    assert page.query_selector("#pair-curves")


def test_an_address_that_a_stranger_wrote_ends_in_a_view(visit: Callable[..., Any], written: str) -> None:
    for strange in (
        "run/%E0%A4%A",
        "?show=%E0%A4%A&budget=x&x=nothing",
        "completions/nobody?row=1",
        "runs?chosen=,,r9",
    ):
        page = visit(f"{written}#/{strange}", offline=True)
        assert page.query_selector("main > section, main > .problem")


def test_a_fall_leads_to_the_prompts_that_fell(visit: Callable[..., Any], served: Served) -> None:
    page = visit(served.address)
    fitted(page)
    page.click(".unusual >> text=which prompts?")
    page.wait_for_selector("text=prompts pass less often")
    page.click(".heat >> nth=0")
    page.wait_for_selector(".reading pre")
    assert "What is" in page.inner_text(".reading")


def test_what_a_chart_draws_is_what_fit_says(
    visit: Callable[..., Any], runs: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points are the evaluations, the curve and its band those of `--json`."""
    assert main(["fit", str(runs / "best"), str(runs / "worse"), "--json"]) == 0
    fits = {(one["run"], one["task"]): one for one in json.loads(capsys.readouterr().out)["fits"]}
    page = visit(written + "#/curves")
    assert page.query_selector("#curves").is_visible()
    page.locator("label.check", has_text="bands").locator("input").check()
    drawn(page)
    whole = "() => [...document.querySelectorAll('#curves .chart')].every(box => echarts.getInstanceByDom(box)"
    page.wait_for_function(f"{whole}.getOption().series.filter(one => one.lineStyle?.width === 2).length === 2)")
    charts = page.evaluate(
        """() => [...document.querySelectorAll('#curves .chart')].map((box) => {
          const chart = echarts.getInstanceByDom(box);
          const band = (one) => {  // in units of the axes: the drawn outline, from pixels
            const points = [];
            one.renderItem({}, { coord: (pair) => { points.push(pair); return pair; } });
            return points;
          };
          const task = box.closest('figure').querySelector('figcaption').innerText.split(':')[0];
          return [task, chart.getOption().series.map((one) => ({
            kind: one.type, name: one.name, solid: one.type === 'line' && one.lineStyle.width === 2,
            data: one.type === 'custom' ? band(one) : one.data.map((each) => each.value || each),
          }))];
        })"""
    )
    assert {task for task, _ in charts} == {"math", "code"}
    for task, series in charts:
        points = {one["name"]: one["data"] for one in series if one["kind"] == "scatter"}
        curves = {one["name"]: one["data"] for one in series if one["solid"]}
        bands = [one["data"] for one in series if one["kind"] == "custom" and len(one["data"]) > 100]
        assert set(points) == set(curves) == {"best", "worse"}
        assert len(bands) == 2
        for (name, curve), outline in zip(curves.items(), bands, strict=True):
            lines = [line for line in read_lines(runs / name / "evals.jsonl") if line["task"] == task]
            evaluated = [[line["compute"], line["pass_rate"], line["stderr"]] for line in lines]
            assert [row[:3] for row in points[name]] == [pytest.approx(row) for row in evaluated]
            here = fits[name, task]["rates"][0]
            assert curve[-1] == pytest.approx([here["compute"], here["value"]], rel=1e-5)
            ends = sorted(y for x, y in outline if x == pytest.approx(here["compute"]))
            assert [ends[0], ends[-1]] == pytest.approx(here["interval"], rel=1e-5)


def test_compute_in_another_unit_is_drawn_on_no_shared_axis(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    made_run(tmp_path / "runs" / "here", rollouts=False)
    other = made_run(tmp_path / "runs" / "there", loss="other", rollouts=False)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"clock": "virtual"}))
    page = visit(serve(tmp_path / "runs"))
    fitted(page)
    names = """() => [...document.querySelectorAll('#curves .chart')].map((box) => [...new Set(
        echarts.getInstanceByDom(box).getOption().series.filter((one) => one.type === 'scatter' && one.data.length)
        .map((one) => one.name))])"""
    page.wait_for_function(f"() => ({names})().flat().length")
    assert page.evaluate(names) == [["here"], ["here"]]
    page.select_option("#curves select >> nth=0", "step")
    page.wait_for_function(f"() => ({names})().every((one) => one.length === 2)")


def test_the_page_forecasts_what_the_terminal_does(
    visit: Callable[..., Any], served: Served, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forecasts, gains, advice and the compute for a target, in the table that a reader sees."""
    page = visit(served.address)
    fitted(page)
    page.fill("input[type=number]", "0.6")
    page.wait_for_selector(".forecasts th >> text=compute for 0.6")
    rows = [row.split("\t") for row in page.inner_text(".forecasts tbody").splitlines()]
    told = {(row[0], row[1]): [cell.replace("−", "-") for cell in row[3:]] for row in rows}
    for path in (runs / "best", runs / "worse"):
        spent = max(line["compute"] for line in read_lines(path / "evals.jsonl"))
        assert main(["forecast", str(path), "--at", str(2 * spent), "--target", "0.6", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        for one, target, more in zip(said["forecasts"], said["targets"], said["extend"], strict=True):
            value, (low, high) = one["value"], one["interval"]
            needed = [target["compute"], *target["interval"]]
            assert told[one["run"], one["task"]][:3] == [
                f"{value:.3f} [{low:.3f}, {high:.3f}]",
                f"{more['gain_if_doubled']:+.3f}",
                more["reading"].partition(":")[0],
            ]
            cell = told[one["run"], one["task"]][3]
            shown = [float(number) / (60 if "min" in cell else 1) for number in re.findall(r"\d+\.?\d*", cell)]
            assert shown == pytest.approx([number for number in needed if number is not None], rel=5e-3)
    before = page.inner_text(".forecasts tbody tr >> nth=0")
    page.evaluate(
        "() => { const s = document.querySelector('[type=range]'); s.value = 2; s.dispatchEvent(new Event('input')); }"
    )
    until(lambda: page.inner_text(".forecasts tbody tr >> nth=0") != before, "the forecast to move")
    assert "100 × what is spent" in page.inner_text(".budget")


def test_a_run_that_is_being_written_is_followed(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    folder = made_run(tmp_path / "runs" / "young", rollouts=False, status="running", evaluations=12)
    lines = (folder / "evals.jsonl").read_text().splitlines(keepends=True)
    (folder / "evals.jsonl").write_text(lines[0] + lines[1][:20])
    address = serve(tmp_path / "runs")
    page = visit(address)
    page.wait_for_selector("#answer >> text=No fit yet")
    assert "running" in page.inner_text("#subtitle")
    with open(folder / "evals.jsonl", "a") as file:
        file.write(lines[1][20:])
        for line in lines[2:]:
            file.write(line)
            file.flush()
    page.wait_for_selector("#answer >> text=has reached")
    add_rollouts(folder, 110)
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text().replace("running", "finished"))
    page.wait_for_selector("nav >> text=Completions")
    until(lambda: "running" not in page.inner_text("#subtitle"), "the run to be finished")


def test_of_many_recipes_the_leaders_are_drawn_though_the_page_is_open_before_the_runs_are_read(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    for recipe in range(9):
        made_run(tmp_path / f"recipe{recipe}", A=0.6 + recipe / 40, loss=f"Loss{recipe}", rollouts=False)
    read = threading.Event()
    address = serve(tmp_path, read)
    page = visit(address)
    page.wait_for_selector("#answer >> text=Reading the runs")
    assert "show" not in page.url
    read.set()
    page.wait_for_selector("#answer:not(:has(.working)) >> text=leads 9 recipes")
    page.wait_for_selector(".toggle[aria-pressed=false]")
    assert "show" not in page.url
    assert 3 <= len(page.query_selector_all(".toggle[aria-pressed=true]")) <= 6


def test_what_every_actor_does_is_shown_and_followed_while_no_line_is_written(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    folder = made_run(tmp_path / "runs" / "young", rollouts=False, status="running")
    status, actor = StatusFile(folder), {"name": "trainer 1", "seconds": 31.0, "silent": 1.0, "node": "there", "pid": 7}
    status.write("RL", actors=[{**actor, "doing": "train step"}])
    address = serve(tmp_path / "runs")
    page = visit(address + "#/run/r0")
    page.wait_for_selector("#now >> text=train step")
    status.write("RL", actors=[{**actor, "doing": HOSTILE}], stragglers=[f"trainer 1 holds all up {HOSTILE}"])
    page.wait_for_selector("#now .problem >> text=Held up: trainer 1 holds all up")
    assert page.query_selector("#now img, #now script") is None


def test_nothing_that_a_run_says_is_executed(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    made_run(tmp_path / "runs" / "<img src=x onerror=alert(1)>", text=HOSTILE, name=HOSTILE)
    made_run(tmp_path / "runs" / "plain", loss="other", seed=2)
    address = serve(tmp_path / "runs")
    page = visit(address)
    fitted(page)
    for view in VIEWS:
        go(page, address, view)
        for fold in page.query_selector_all("main details > summary"):
            fold.click()
        drawn(page)
        assert page.evaluate("window.pwned") is None
        assert page.query_selector("main img, main script, main iframe") is None
    go(page, address, "#/completions/r0")
    page.wait_for_selector(".reading pre")
    text = page.inner_text(".reading")
    assert "<script>window.pwned=1</script>" in text
    assert "\u202e" not in text
    assert "⟨202e⟩" in text


def test_a_broken_run_is_said_and_the_others_are_shown(
    visit: Callable[..., Any], serve: Callable[..., str], tmp_path: Path
) -> None:
    made_run(tmp_path / "runs" / "good")
    broken = made_run(tmp_path / "runs" / "broken", loss="other")
    (broken / "manifest.json").write_text("{")
    (broken / "evals.jsonl").write_text('{"task": 1}\nnonsense\n')
    (broken / "rollouts" / "step_000000.parquet").write_bytes(b"PAR1")
    address = serve(tmp_path / "runs")
    page = visit(address)
    fitted(page)
    assert "good" in page.inner_text("#answer")
    assert "not JSON" in page.inner_text(".unusual")


def test_tokens_are_shaded_and_forced_ones_marked(visit: Callable[..., Any], written: str) -> None:
    page = visit(written + "#/completions/r0", offline=True)
    page.wait_for_selector(".reading pre")
    choices = page.get_by_label("Shade tokens by")
    for choice, words in (("logprob", "log-prob"), ("gap", "gap"), ("version", "version")):
        choices.select_option(choice)
        tokens = page.query_selector_all(".token")
        assert len(tokens) == 4
        assert words in (tokens[1].get_attribute("title") or "")
    assert len(page.query_selector_all(".token.forced")) == 1
    colors = {token.evaluate("one => one.style.background") for token in page.query_selector_all(".token")}
    assert len(colors) == 2  # two policy versions


def test_one_prompt_is_put_beside_itself(visit: Callable[..., Any], written: str) -> None:
    page = visit(written + "#/completions/r0", offline=True)
    page.wait_for_selector(".history .dot")
    page.click(".history .dot[aria-pressed=false] >> nth=-1")
    page.wait_for_selector(".compare .pair")
    assert len(page.query_selector_all(".compare pre")) == 2
    assert page.query_selector_all(".compare mark")


def test_settings_of_two_runs_are_compared(visit: Callable[..., Any], written: str) -> None:
    page = visit(written + "#/run/r0", offline=True)
    page.get_by_label("Differences to").select_option("r1")
    page.wait_for_selector("text=Settings that differ from worse")
    assert "Recipe.loss" in page.inner_text("main")


def test_the_chosen_runs_are_compared_at_a_click(visit: Callable[..., Any], written: str) -> None:
    page = visit(written + "#/runs", offline=True)
    page.get_by_label("Choose worse").check()
    page.click("text=Compare 1")
    page.wait_for_selector("#curves")
    pressed = [one.get_attribute("aria-pressed") for one in page.query_selector_all(".toggle")]
    assert pressed == ["false", "true"]


@pytest.mark.parametrize("kind", ["PNG", "SVG"])
def test_a_chart_is_saved(visit: Callable[..., Any], written: str, kind: str) -> None:
    page = visit(written, offline=True)
    fitted(page)
    drawn(page)
    with page.expect_download() as download:
        page.get_by_label(f"Save curves math as {kind}").click(force=True)
    content = Path(download.value.path()).read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "PNG" else b"<svg")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_down_only(visit: Callable[..., Any], written: str, scheme: str) -> None:
    page = visit(written, width=390, scheme=scheme, offline=True)
    fitted(page)
    for view in VIEWS:
        go(page, written, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(f"[{ground[4:-1]}]")) < 200) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit: Callable[..., Any], written: str, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python")
    axe = next(resources.files("axe_playwright_python").glob("**/axe.min.js")).read_text(encoding="utf-8")  # type: ignore[attr-defined]
    page = visit(written, scheme=scheme, offline=True)
    fitted(page)
    for view in VIEWS:
        go(page, written, view)
        for fold in page.query_selector_all("main details:not([open]) > summary"):
            fold.click()
        page.evaluate(axe)
        rules = "{resultTypes: ['violations'], rules: {'target-size': {enabled: true}}}"
        found = page.evaluate(f"async () => (await axe.run(document, {rules})).violations")
        bad = [(one["id"], one["nodes"][0]["html"][:120]) for one in found]
        assert bad == [], view


def test_two_axes_of_one_kind_are_told_apart(
    visit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    for loss in ("CISPO", "DAPO"):
        for tokens in (64, 128):
            made_run(tmp_path / "runs" / f"{loss}{tokens}", ("math",), loss=loss, tokens=tokens, rollouts=False)
    page = visit(write_report(tmp_path / "runs", tmp_path / "page.html").as_uri(), offline=True)
    fitted(page)
    page.click("summary >> text=Scaling axes")
    page.wait_for_selector("[role=region][aria-label*=along]")
    labels = page.evaluate("[...document.querySelectorAll('[role=region]')].map((one) => one.ariaLabel)")
    assert {one for one in labels if "along" in one} == {
        f"A along tokens per completion through {loss}64" for loss in ("CISPO", "DAPO")
    }
    assert len(set(labels)) == len(labels)


PRESSED = "main button, main input, main select, main summary, nav a, main table a"
SMALL = f"""() => [...document.querySelectorAll("{PRESSED}")]
    .filter((one) => one.offsetParent !== null && getComputedStyle(one).visibility !== "hidden")
    .map((one) => [one.outerHTML.slice(0, 100), (one.closest("label") || one).getBoundingClientRect()])
    .filter(([, box]) => box.width < 23.5 || box.height < 23.5).map(([html]) => html)"""


@pytest.mark.parametrize("width", [1400, 390])
def test_what_one_presses_is_at_least_24_pixels_wide_and_high(
    visit: Callable[..., Any], written: str, width: int
) -> None:
    """WCAG 2.2, success criterion 2.5.8."""
    page = visit(written, width=width, offline=True)
    fitted(page)
    for view in VIEWS:
        go(page, written, view)
        assert page.evaluate(SMALL) == [], view


def test_the_study_s_26_runs_are_one_page(
    visit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_report(REPOSITORY / "docs" / "first_study" / "runs", tmp_path / "study.html")
    page = visit(path.as_uri(), offline=True)
    fitted(page)
    assert len(page.query_selector_all(".toggle")) == 16
    assert 0 < len(page.query_selector_all(".toggle[aria-pressed=true]")) <= 8
    page.click(".legend >> text=all")
    assert len(page.query_selector_all(".toggle[aria-pressed=true]")) == 16
    assert max(drawn(page)) >= 16 * 3
    for choice in ("step", "completions", "hours"):
        page.get_by_label("Horizontal axis").select_option(choice)
    go(page, path.as_uri(), "#/runs")
    page.wait_for_selector("text=26 of 26 runs")
    page.get_by_label("Filter runs by name").fill("scalerl · seed")
    page.wait_for_selector("text=3 of 26 runs")
