"""The page itself: one template, live with its data behind addresses, or with everything inside of one file."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from scalelab import __version__
from scalelab.view.lab import Lab

STATIC = "scalelab.view.static"

SCRIPTS = (
    "echarts.min.js",
    "core.js",
    "address.js",
    "curve.js",
    "sample.js",
    "chart.js",
    "curves.js",
    "overview.js",
    "runs.js",
    "run.js",
    "completions.js",
    "pair.js",
    "main.js",
)
"""The page's scripts, in the order in which they are loaded."""


def page_html(lab: Lab, live: bool, data: dict[str, Any] | None = None) -> str:
    """The page.

    Args:
        lab: the runs; only their number and names are used.
        live: whether scripts and data are fetched from the server; without, everything is inside.
        data: what the page of a file shows.
    """
    scripts = {} if live else {name: _static(name) for name in SCRIPTS}
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    environment = Environment(
        loader=PackageLoader("scalelab.view", "templates"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        title=" · ".join(dict.fromkeys(run.member.group for run in list(lab.runs.values())[:3])) or "scalelab",
        version=__version__,
        live=live,
        names=SCRIPTS,
        scripts=scripts,
        style="" if live else _static("style.css"),
        policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'",
        data="" if data is None else embedded(data),
    )


def embedded(value: Any) -> str:
    """JSON that can stand between script tags: no character of it ends the tag or begins a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    text = text.encode("utf-8", "replace").decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _static(name: str) -> str:
    return resources.files(STATIC).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
