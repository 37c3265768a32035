"""The docs are true: the site builds without a dead link, and its tutorials and notebooks run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalelab.cli import COMMANDS
from tests.helpers.rooms import words_of_docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/howto/*.md")])
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}


@pytest.mark.slow
def test_the_site_builds_without_a_dead_link_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "glossary.html", "tutorials/first_curve.html", "commands.html"} <= pages.keys()
    for name, text in pages.items():
        fetched = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", text)
        assert not fetched, f"{name} fetches {fetched}"
    for page, said in (("settings", "generations_per_prompt"), ("curves", "extend_or_stop"), ("own", "RewardTask")):
        assert said in pages[f"api/{page}.html"]
    for command_name in COMMANDS:
        assert f"scalelab {command_name}" in pages["commands.html"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "requirements/README.md"])
def test_a_page_beside_the_site_links_to_files_that_are_there(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / name).read_text())
    gone = [link for link in links if "://" not in link and not (ROOT / name).parent.joinpath(link).exists()]
    assert not gone


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_tutorial_shows_is_what_its_commands_print(page: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "tutorials.py"), str(page)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 3
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code" if "=" not in cell["source"][-1])
    done = subprocess.run(
        [sys.executable, "-"],
        input="\n".join(code),
        cwd=notebook.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_that_are_linked_from_the_front_exist(name: str) -> None:
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#]+)", (ROOT / name).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_tutorials_that_are_not_true_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    cases = {
        "```sh\necho 1.00 b\n```\n```text\n1.05 b\n```\n": 0,
        "```sh\necho 1.00 b\n```\n```text\n1.5 b\n```\n": 1,
        "```sh\necho 1.00 b\n```\n```text\n1.00 c\n```\n": 1,
        "```sh\nprintf 'a\\nb\\nc\\n'\n```\n```text\na\n…\nc\n```\n": 0,
        "```sh\nprintf 'a\\nb\\nc\\n'\n```\n```text\na\nc\n```\n": 1,
        "```sh\nfalse\n```\n": 1,
        "```sh\nfalse\n# exit 1\n```\n": 0,
        "<!-- not run: a reason -->\n```sh\nfalse\n```\n": 0,
        '```csv title="a.csv"\nx\n```\n```sh\ncat a.csv\n```\n```text\nx\n```\n': 0,
        "```python\nassert False\n```\n": 1,
    }
    for text, code in cases.items():
        page.write_text(text)
        command = [sys.executable, str(ROOT / "tools" / "tutorials.py"), str(page)]
        assert subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=900).returncode == code, text


def test_the_docs_are_no_longer_than_a_reader_bears() -> None:
    words = words_of_docs(ROOT)
    assert words <= 30_000, f"{words} words: cut as many as you add"
