"""Speed of the page in a browser, and its pictures for the docs.

    python tools/bench/view.py docs/first_study/runs                        # size, first paint, every view and control
    python tools/bench/view.py --completions 20000                    # one run with many completions, live
    python tools/bench/view.py RUN... --pictures docs/pictures        # take the docs' pictures again

It needs Debian's chromium and Playwright. A click lasts until the frame that shows its effect, by the browser's Event
Timing. Beside it stands the longest task that followed: so long would the next click wait at most.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from scalelab.report import write_report
from scalelab.view.lab import Lab
from scalelab.view.server import Refresher, make_app

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

WATCH = """() => {
  window.watched = { press: 0, task: 0 };
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (one.interactionId) watched.press = Math.max(watched.press, one.duration);
  }).observe({ type: "event", durationThreshold: 16 });
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) watched.task = Math.max(watched.task, one.duration);
  }).observe({ type: "longtask" });
}"""
"""Keeps the longest interaction (Event Timing: from the input to the frame that shows its effect) and longest task."""

SHOTS = (
    ("overview", "#/", 1400, "light", ""),
    ("dark", "#/", 1400, "dark", ""),
    ("curves", "#/curves", 1400, "light", "#curves"),
    ("ranking", "#/", 1400, "light", "#ranking"),
    ("runs", "#/runs", 1400, "dark", ""),
    ("pair", "#/pair", 1400, "light", ""),
    ("run", "#/run/r0", 1400, "light", ""),
    ("completions", "#/completions/r0", 1400, "light", ""),
    ("prompts", "#/completions/r0/prompts", 1400, "dark", ""),
    ("narrow", "#/", 390, "light", ""),
    ("narrow_pair", "#/pair", 390, "dark", ""),
    ("narrow_completions", "#/completions/r0", 390, "light", ""),
)
"""Name, view, width, scheme, and what to scroll to."""


@contextmanager
def serving(refresher: Refresher) -> Iterator[str]:
    """The live page of some runs, whose fits have just begun; gives its address."""
    import uvicorn

    refresher.start()
    server = uvicorn.Server(uvicorn.Config(make_app(refresher), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    _until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)
    refresher.stop()


@contextmanager
def served(sources: Sequence[Path]) -> Iterator[str]:
    """The live page of some runs; gives its address once all fits are made."""
    refresher = Refresher(Lab(sources))
    with serving(refresher) as address:
        _until(lambda: not json.loads(refresher.overview()[1])["stage"])
        yield address


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit("the server or its fits took more than ten minutes")
        time.sleep(0.1)


def opened(browser: Any, address: str, width: int = 1400, scheme: str = "light") -> Page:
    """A page that shows its view."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.goto(address)
    page.wait_for_selector("main section")
    page.wait_for_timeout(300)
    return page


def first_paint(page: Page) -> float:
    """Milliseconds to the first content."""
    return page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")


def to_answer(browser: Any, address: str) -> float:
    """Milliseconds from the address to the answer on the screen."""
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    before = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("#answer .card")
    spent = time.perf_counter() - before
    page.context.close()
    return 1000 * spent


def clicks(page: Page) -> list[tuple[float, float, str]]:
    """Press every control of a view: milliseconds to the next frame, those of the longest task until it rests, name.

    Event Timing counts in steps of 8 ms, and tells of interactions from 16 ms on alone: shorter ones are 0 here.
    """
    page.evaluate(WATCH)
    what, found = "main button, main input[type=checkbox], main summary", []
    for index in range(len(page.query_selector_all(what))):
        controls = page.query_selector_all(what)  # a click may make its neighbours anew
        if index < len(controls) and controls[index].is_visible() and controls[index].is_enabled():
            if "Save" in (controls[index].get_attribute("aria-label") or ""):
                continue
            label = " ".join(controls[index].evaluate("one => one.innerText || one.ariaLabel || one.type").split())[:30]
            controls[index].scroll_into_view_if_needed()
            page.wait_for_timeout(300)  # what came into view is drawn
            page.evaluate("() => { watched.press = watched.task = 0; }")
            controls[index].click(timeout=10_000)
            page.wait_for_timeout(700)
            press, task = page.evaluate("() => [watched.press, watched.task]")
            found.append((press, task, label))
    return found


def measure(browser: Any, address: str, views: Sequence[str]) -> None:
    """Print what the views of a page take."""
    page = opened(browser, address)
    print(f"first paint {first_paint(page):.0f} ms; to the answer {to_answer(browser, address):.0f} ms")
    print("| view | to show it (ms) | controls | median click (ms) | slowest (ms) | longest task (ms) |")
    print("|---|---|---|---|---|---|")
    for view in views:
        page = opened(browser, address)
        shown = page.get_attribute("body", "data-shown")
        before = time.perf_counter()
        page.evaluate("view => { location.hash = view; }", view)
        kind = view.split("/")[1] or "overview"  # a refresh of the live page may show the old view once more
        page.wait_for_selector(f"body[data-view='{kind}']:not([data-shown='{shown}'])")
        shown_in = 1000 * (time.perf_counter() - before)
        times = clicks(page)
        if not times:
            print(f"| {view} | {shown_in:.0f} | 0 | – | – | – |", flush=True)
            continue
        middle = f"{statistics.median(spent for spent, _, _ in times):.0f}"
        slowest, _, slow = max(times)
        _, longest, busy = max(times, key=lambda one: one[1])
        columns = f"{len(times)} | {middle} | {slowest:.0f} ({slow}) | {longest:.0f} ({busy})"
        print(f"| {view} | {shown_in:.0f} | {columns} |", flush=True)


def many_completions(folder: Path, count: int) -> Path:
    """A run folder with one evaluation of so many completions, 400 characters each."""
    import pyarrow
    import pyarrow.parquet

    (folder / "rollouts").mkdir(parents=True)
    lines = [
        {"step": 10 * step, "compute": step / 10, "task": "math", "pass_rate": 0.2 + 0.05 * step, "stderr": 0.01}
        for step in range(10)
    ]
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}))
    rows = [
        {"task": "math", "prompt_id": f"math/{index // 16}", "prompt": f"What is {index // 16} + {index % 16}?",
         "completion": f"{index} " + "think " * 60 + "</think> 42", "outcome": "passed" if index % 3 else "failed",
         "reward": float(index % 3 > 0), "detail": f"expected {index}", "tokens": 64, "truncated": False,
         "interrupted": False}
        for index in range(count)
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rollouts" / "step_000090.parquet")
    return folder


def pictures(browser: Any, address: str, folder: Path) -> None:
    """Take the docs' pictures as WebP."""
    from io import BytesIO

    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for name, view, width, scheme, place in SHOTS:
        page = opened(browser, address + view, width, scheme)
        page.wait_for_timeout(800)
        if place:
            page.evaluate("place => document.querySelector(place).scrollIntoView()", place)
            page.evaluate("window.scrollBy(0, -70)")
            page.wait_for_timeout(500)
        image = Image.open(BytesIO(page.screenshot()))
        target = folder / f"view_{name}.webp"
        image.save(target, quality=55, method=6)
        print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--completions", type=int, metavar="N", help="measure a made-up run with N completions")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take pictures instead of times")
    args = parser.parse_args()
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as scratch:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        if args.completions:
            run = many_completions(Path(scratch) / "run", args.completions)
            with served([run]) as address:
                measure(browser, address, ["#/completions/r0", "#/completions/r0/prompts"])
        elif args.pictures:
            with served(args.sources) as address:
                pictures(browser, address, args.pictures)
        else:
            before = time.process_time(), time.perf_counter()
            path = write_report(args.sources, Path(scratch) / "report.html")
            spent = time.process_time() - before[0], time.perf_counter() - before[1]
            print(f"file: {path.stat().st_size / 1e6:.2f} MB, {spent[0]:.1f} s of CPU, {spent[1]:.1f} s")
            measure(browser, path.as_uri(), ["#/", "#/runs", "#/pair", "#/run/r0"])
        browser.close()


if __name__ == "__main__":
    main()
