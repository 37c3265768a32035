"""A summary of some runs in Markdown, for a chat or an issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.numbers import asymptote, quantity, with_interval

MOST = 12
"""Rows of a table, and lines of a list."""


def markdown(overview: Mapping[str, Any]) -> str:
    """Write the answer, what is left out of it, the fitted curves and unusual events.

    Args:
        overview: what `Lab.overview` gives.
    """
    parts = [f"## {_text(overview['title'])}", ""]
    for one in overview["answers"]:
        parts += [f"**{_text(one['task'] or 'pass rate')}**: {_text(one['text'])}", ""]
    for one in overview["comparisons"]:
        parts += ["| " + " | ".join(map(_text, one["header"])) + " |", "|" + "---|" * len(one["header"])]
        parts += ["| " + " | ".join(map(_text, row["cells"])) + " |" for row in one["rows"][: 2 * MOST]] + [""]
    fits = [fit for fit in overview["fits"] if "refused" not in fit]
    fitted = {fit["task"] for fit in fits}  # the answer of a task without any fit has the reasons
    refused = [fit["refused"] for fit in overview["fits"] if "refused" in fit and fit["task"] in fitted]
    parts += _list("Left out", [*overview["problems"], *refused])
    if fits:
        parts += ["| recipe | task | A | B | C_mid | spent |", "|---|---|---|---|---|---|"]
        ranked = sorted(fits, key=lambda fit: (fit["task"], -fit["parameters"]["A"]))
        parts += [_row(fit) for fit in ranked[: 2 * MOST]]
        if len(ranked) > 2 * MOST:
            parts.append(f"\n{len(ranked) - 2 * MOST} more curves are not listed.")
        bracketed = any(fit.get("A_stands") is False for fit in ranked)
        loose = "; an A in round ones is no limit, as curves of other shapes go beyond it" * bracketed
        units = ", ".join(dict.fromkeys(_text(fit["unit"]) for fit in ranked))
        parts += ["", f"In brackets: {overview['level']:.0%} intervals{loose}. C_mid in {units}."]
        if any(run["clock"] == "virtual" for run in overview["runs"]):
            parts += ["", "Compute is that of a simulated cluster, on a simulated clock."]
        parts.append("")
    parts += _list("Unusual", [f"{run['name']}: {one['text']}" for run in overview["runs"] for one in run["unusual"]])
    return "\n".join(parts).rstrip("\n") + "\n"


def _list(title: str, lines: Sequence[str]) -> list[str]:
    """A list under a title, and an empty line; nothing where there are no lines."""
    if not lines:
        return []
    more = [f"- and {len(lines) - MOST} more"] * (len(lines) > MOST)
    return [f"**{title}**", "", *(f"- {_text(line)}" for line in lines[:MOST]), *more, ""]


def _row(fit: Mapping[str, Any]) -> str:
    cells = [_text(fit["run"]), _text(fit["task"] or "–")]
    cells += [asymptote(fit["parameters"]["A"], fit["intervals"].get("A"), fit.get("A_stands"))]
    cells += [with_interval(fit["parameters"][name], fit["intervals"].get(name)) for name in ("B", "C_mid")]
    return "| " + " | ".join([*cells, quantity(fit["window"][1], fit["unit"])]) + " |"


def _text(text: object) -> str:
    """A run's text on one line, with everything escaped that Markdown or HTML would interpret."""
    line = " ".join(str(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_|[]#!~":
        line = line.replace(character, "\\" + character)
    return line
