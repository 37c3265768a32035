"""The HTML page of one or several runs: one file, no scripts, nothing fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from scalelab.curves.analysis import Analysis, Options, analyse_all
from scalelab.curves.compare import Comparison, compare
from scalelab.curves.data import Curve, same_unit
from scalelab.curves.forecast import extend_or_stop
from scalelab.curves.reading import read_json_lines, read_sources
from scalelab.curves.sharing import SharingTest, sharing_test
from scalelab.report.axes import scaling_axes
from scalelab.report.metrics import held_out_charts, metric_charts
from scalelab.report.plots import colors, efficiency_charts, fit_charts
from scalelab.report.style import STYLE
from scalelab.report.svg import draw
from scalelab.report.tables import with_error, with_interval


def write_report(sources: Path | Sequence[Path], path: Path, options: Options | None = None) -> Path:
    """Write the page of some runs.

    Args:
        sources: a run folder, or several sources.
        path: the HTML file to write; its folder is made.
        options: how to fit.

    Returns:
        `path`.

    Raises:
        LabError: a source cannot be read.
    """
    sources = [Path(sources)] if isinstance(sources, str | Path) else [Path(item) for item in sources]
    return write_page(read_sources(sources), sources, path, options)


def write_page(curves: Sequence[Curve], sources: Sequence[Path], path: Path, options: Options | None = None) -> Path:
    """Write the page of curves that were read already; `sources` are looked through for metrics and settings."""
    analyses, refused = analyse_all(curves, options)
    runs = list(dict.fromkeys(item.run for item in curves))
    several = len(runs) > 1
    palette = colors(runs if several else [item.task for item in curves])
    charts = fit_charts(curves, analyses)
    sections = [_section("Pass rate against compute", "".join(map(_figure, charts)) + _chart_note(analyses))]
    sections.append(_section("Fitted curves", _parameters(analyses, palette, several) + _remarks(analyses, refused)))
    if analyses:
        sections.append(_section("What more compute would bring", _outlook(analyses)))
    sections += _parallel_sections(analyses)
    if several:
        sections += _comparison_sections(analyses, palette)
        sections += _axis_sections(analyses, palette)
    for source in sources:
        sections += _run_sections(source, colors([item.task for item in curves]), several=len(sources) > 1)
    title = runs[0] if not several else f"{len(runs)} runs compared"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(title, _subtitle(curves), sections), encoding="utf-8")
    return path


def _page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{subtitle}</p></header>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _figure(chart: tuple[str, object]) -> str:
    title, content = chart
    caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    return f"<figure>{caption}{content if isinstance(content, str) else draw(content)}</figure>"  # type: ignore[arg-type]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _subtitle(curves: Sequence[Curve]) -> str:
    spent, unit = max(item.compute_N.max() for item in curves), same_unit(curves)
    evaluations = max(len(item) for item in curves)
    tasks = ", ".join(dict.fromkeys(item.task for item in curves if item.task))
    return escape(" · ".join(filter(None, [tasks, f"{evaluations} evaluations", f"{spent:,.4g} {unit}"])))


def _chart_note(analyses: Sequence[Analysis]) -> str:
    if not analyses:
        return ""
    return (
        f'<p class="note">Bars are one standard error. Shaded: where the curve lies with {analyses[0].level:.0%} '
        "probability. Dashed: median forecast beyond the evaluations. Hollow points were not fitted.</p>"
    )


def _name(analysis: Analysis, palette: Mapping[str, str], several: bool) -> list[str]:
    curve = analysis.fit.curve
    swatch = _swatch(palette[curve.run if several else curve.task])
    if several:
        return [swatch + escape(curve.run), escape(curve.task or "–")]
    return [swatch + escape(curve.task or curve.run)]


def _swatch(color: str) -> str:
    return f'<span class="swatch" style="background:{color}"></span>'


def _interval(value: float, interval: Sequence[float | None] | None) -> str:
    """A value with its interval in a quieter tone after it."""
    number, bracket, rest = with_interval(value, interval).partition(" [")
    return f'{escape(number)}<span class="quiet">{escape(bracket + rest)}</span>'


def _parameters(analyses: Sequence[Analysis], palette: Mapping[str, str], several: bool) -> str:
    if not analyses:
        return ""
    names = analyses[0].fit.model.parameters
    rows = []
    for item in analyses:
        fit, test = item.fit, item.backtest
        cells = [_interval(fit.parameters[name], item.intervals.get(name)) for name in names]
        scored = f"{test.mean_error:+.3f}; {round(test.covered * test.n_scored)} of {test.n_scored}" if test else "–"
        rows.append([*_name(item, palette, several), *cells, str(len(fit.curve)), scored])
    header = [*(["run", "task"] if several else ["task"]), *names, "points", "half-budget back-test"]
    note = (
        f'<p class="note">In brackets: {analyses[0].level:.0%} intervals. '
        f"C_mid in {escape(analyses[0].fit.curve.unit)}. Back-test: the first half of the budget was fitted; mean "
        "error of its forecast of the second half, and how many of those evaluations fell inside their intervals.</p>"
    )
    return _table(header, rows) + note


def _remarks(analyses: Sequence[Analysis], refused: Sequence[dict[str, str]]) -> str:
    lines = [f"{item.fit.curve.name}: {warning}" for item in analyses for warning in item.warnings]
    lines += [item["reason"] for item in refused]
    return "<ul class='remarks'>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _outlook(analyses: Sequence[Analysis]) -> str:
    items = [
        f"<li><b>{escape(item.fit.curve.name)}</b> – {escape(extend_or_stop(item).reading)}</li>" for item in analyses
    ]
    return f"<ul class='plain'>{''.join(items)}</ul>"


def _parallel_sections(analyses: Sequence[Analysis]) -> list[str]:
    """Do the tasks of a run share B?"""
    sections = []
    for run in dict.fromkeys(item.fit.curve.run for item in analyses):
        fits = [item.fit for item in analyses if item.fit.curve.run == run]
        if len(fits) > 1:
            sections.append(
                _section(f"Do the tasks of {run} rise in parallel?", _parallel(sharing_test(fits, name=run)))
            )
    return sections


def _parallel(test: SharingTest) -> str:
    verdict = {
        "shared": "The points support one B for all tasks.",
        "separate": "The points want a B for each task.",
        "undecided": "The points do not decide between one B and one for each task.",
    }[test.supported]
    rows = []
    for label, joint in (("one B", test.together), ("separate", test.apart)):
        for _, task, values, errors in joint.rows():
            cells = [escape(with_error(values[name], errors[name])) for name in values]
            rows.append([label, escape(task), *cells])
    return (
        f"<p><b>{verdict}</b> Likelihood ratio {test.ratio:.2f}, p = {test.p_value:.2g}; one B minus separate: "
        f"AIC {test.together.aic - test.apart.aic:+.1f}, BIC {test.together.bic - test.apart.bic:+.1f}.</p>"
        + _table(["fit", "task", "R0", "A", "B", "C_mid"], rows)
        + '<p class="note">± one standard error, without a prior.</p>'
    )


def _comparison_sections(analyses: Sequence[Analysis], palette: Mapping[str, str]) -> list[str]:
    comparisons = compare(analyses)
    sections = []
    for one, (_, chart) in zip(comparisons, efficiency_charts(comparisons, palette)):
        title = f"Comparison: {one.task}" if one.task else "Comparison"
        sections.append(_section(title, _ranking(one, palette) + "<h3>Efficiency at the common A</h3>" + draw(chart)))
    return sections


def _ranking(one: Comparison, palette: Mapping[str, str]) -> str:
    rows = []
    for entry in one.entries:
        fit, found = entry.analysis.fit, entry.analysis.intervals
        tied = escape(", ".join(entry.tied_with)) or "–"
        rows.append(
            [
                str(entry.rank),
                _swatch(palette[entry.run]) + escape(entry.run),
                _interval(fit.parameters["A"], found["A"]),
                tied,
                _interval(entry.B_at_common_A, entry.B_interval),
                _interval(*entry.rate),
                ", ".join(f"{escape(run)} {chance:.0%}" for run, chance in entry.beats.items()) or "–",
            ]
        )
    header = ["rank", "run", "A", "ties with", "B at the common A", f"pass rate at {one.at:,g}", "probability to beat"]
    unit = one.entries[0].analysis.fit.curve.unit
    crossings = [
        f"{item.first} and {item.second} cross at {with_interval(item.compute, item.interval)} {unit}, "
        f"{item.leader_before} being ahead before (probability {item.probability:.0%})"
        for item in one.crossings
        if item.compute is not None
    ]
    listed = "".join(f"<li>{escape(line)}</li>" for line in crossings)
    notes = "".join(f'<p class="note">{escape(line)}.</p>' for line in one.notes)
    return _table(header, rows) + (f"<ul class='plain'>{listed}</ul>" if listed else "") + notes


def _axis_sections(analyses: Sequence[Analysis], palette: Mapping[str, str]) -> list[str]:
    """What runs that differ in one setting of scale alone come to along it."""
    sections = []
    for axis in scaling_axes(analyses):
        rows = [
            [
                f"{value:,}",
                *_name(item, palette, several=True),
                *(_interval(item.fit.parameters[name], item.intervals[name]) for name in ("A", "B", "C_mid")),
            ]
            for value, item in axis.points
        ]
        note = f'<p class="note">Bars: {analyses[0].level:.0%} intervals. The runs differ in nothing else.</p>'
        body = _figure(("", axis.chart())) + note + _table([axis.name, "run", "task", "A", "B", "C_mid"], rows)
        sections.append(_section(f"Along {axis.name}", body))
    return sections


def _run_sections(source: Path, palette: Mapping[str, str], several: bool) -> list[str]:
    """Metrics and settings of one run folder."""
    name = f"{source.resolve().name}: " if several else ""
    sections = []
    if (source / "alarms.jsonl").exists():
        sections.append(_section(name + ("alarms" if name else "Alarms"), _alarms(source / "alarms.jsonl")))
    for title, file, charts in (
        ("held-out evaluations", "evals.jsonl", held_out_charts),
        ("training metrics", "metrics.jsonl", metric_charts),
    ):
        if (source / file).exists():
            drawn, still = charts(source / file, palette)
            body = f'<div class="grid">{"".join(map(_figure, drawn))}</div>'
            if still:
                body += f'<p class="note">Zero throughout: {escape(", ".join(still).lower())}.</p>'
            sections.append(_section(name + (title if name else title.capitalize()), body))
    settings = ""
    if (source / "config.gin").exists():
        config = (source / "config.gin").read_text(encoding="utf-8")
        settings += f"<details open><summary>config.gin</summary><pre>{escape(config)}</pre></details>"
    if (source / "manifest.json").exists():
        manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        settings += f"<details><summary>manifest.json</summary><pre>{escape(text)}</pre></details>"
    if settings:
        sections.append(_section(f"{name}settings" if name else "Settings", settings))
    return sections


def _alarms(path: Path) -> str:
    """What the run's monitors said, in order."""
    rows, _ = read_json_lines(path)
    items = "".join(f"<li>{escape(str(row.values['message']))}</li>" for row in rows)
    return f"<ul class='remarks'>{items}</ul>" if items else "<p>None.</p>"
