"""Clicks and seconds to an answer on the page, for the five questions of docs/view.md, as the number of runs grows.

    PYTHONPATH=. .venv/bin/python tools/bench/questions.py                       # 2, 26, 138 and 1,000 made-up runs
    PYTHONPATH=. .venv/bin/python tools/bench/questions.py --runs 138 --out docs/view.md

The runs are made up: recipes of two, three or four seeds with 20 evaluations of two tasks, completions of three
evaluations, and one fall. Each size has a live page with nothing kept from before. A click is a click, a choice in a
menu or a number typed in; the seconds are those that the browser takes from the first one (or from the address) until
the answer stands on the page. It needs Debian's chromium and Playwright.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from sections import replace_section
from view import ARGUMENTS, serving

from scalelab.kept import Kept
from scalelab.view.lab import Lab
from scalelab.view.server import Refresher
from tests.helpers.view_runs import made_run

BEGIN, END = "<!-- made by tools/bench/questions.py -->", "<!-- end of the questions -->"
SIZES = (2, 26, 138, 1000)
PATIENCE = 600_000
"""Milliseconds that the slowest answer may take."""


def make_runs(folder: Path, count: int) -> Path:
    """Make run folders: one seed a recipe for two runs, two to four seeds a recipe for more."""
    seeds = {2: 1, 26: 2, 138: 3}.get(count, 4)
    for at in range(count):
        recipe, seed = divmod(at, seeds)
        made_run(
            folder / f"recipe{recipe:03d}" / f"seed_{seed}",
            A=0.6 + 0.25 * ((37 * recipe) % 101) / 101,
            seed=seed,
            loss=f"Loss{recipe:03d}",
            evaluations=20,
            fall=12 if at == 0 else None,
        )
    return folder


def best(page: Page) -> int:
    """Read which recipe is better, and how sure that is: the sentence of the answer."""
    page.wait_for_selector("#answer .card")
    return 0


def compared(page: Page) -> int:
    """Read the same once every fit and comparison is made."""
    page.wait_for_selector("#answer:not(:has(.working)) .card")
    return 0


def reach(page: Page) -> int:
    """Ask whether more compute helps: where a pass rate is reached."""
    field = page.get_by_label("Target pass rate").first
    field.fill("0.83")
    page.wait_for_selector("th >> text=compute for 0.83")
    return 1


def fell(page: Page) -> int:
    """Ask why the pass rate fell: which prompts failed more often."""
    page.click(".unusual >> text=which prompts?")
    page.wait_for_selector("text=prompts pass less often")
    return 1


def wrong(page: Page) -> int:
    """Look at a wrong answer, then and now: beside the first of the same prompt."""
    page.click("#tabs >> text=Completions")
    page.wait_for_selector(".reading pre")
    page.get_by_label("Outcome").select_option("not passed")
    page.wait_for_selector(".item[aria-pressed=true]")
    page.click("button >> text=What changed")
    page.wait_for_selector("mark")
    return 3


def differ(page: Page) -> int:
    """Ask what differs between two: verdict, curves and settings head to head."""
    page.click("#tabs >> text=Head to head")
    page.wait_for_selector("#pair-settings")
    return 1


QUESTIONS: tuple[tuple[str, Callable[[Page], int]], ...] = (
    ("which is better, by measured rates", best),
    ("which is better, all fits made", compared),
    ("will more compute help", reach),
    ("why did it fall", fell),
    ("a wrong answer, then and now", wrong),
    ("what differs between two", differ),
)


def asked(browser: Any, address: str) -> list[str]:
    """A cell for each question, in order: clicks, and seconds."""
    cells = []
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    began = time.perf_counter()
    page.goto(address)
    for question, answer in QUESTIONS:
        if answer not in (best, compared):
            page.goto(f"{address}#/")
            page.wait_for_selector("body[data-view='overview'] #answer .card")
            began = time.perf_counter()
        clicks = answer(page)
        cells.append(f"{clicks}, {time.perf_counter() - began:.1f} s")
        print(f"  {question}: {cells[-1]}", flush=True)
    page.context.close()
    return cells


def table(sizes: Sequence[int]) -> str:
    """The table of all sizes, in Markdown."""
    columns = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for count in sizes:
            with tempfile.TemporaryDirectory() as scratch:
                folder = make_runs(Path(scratch) / "runs", count)
                print(f"{count} runs", flush=True)
                with serving(Refresher(Lab([folder], kept=Kept(None)))) as address:
                    columns.append(asked(browser, address))
        browser.close()
    rows = [["clicks, seconds", *(f"{count:,} runs" for count in sizes)], ["---"] * (len(sizes) + 1)]
    rows += [[question, *(column[at] for column in columns)] for at, (question, _) in enumerate(QUESTIONS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=SIZES, metavar="N", help="how many runs a page has")
    parser.add_argument("--out", type=Path, help="a document whose table this replaces")
    args = parser.parse_args()
    found = table(args.runs)
    print(found)
    if args.out:
        replace_section(args.out, BEGIN, END, found)


if __name__ == "__main__":
    main()
