// The first view: the answer, the ranking, what is unusual, then curves, then detail.
"use strict";
(function () {
  const { h, number, interval, percent, chance, quantity, mark, tone, state } = Lab;

  const codeOf = (name) => state.overview.groups.find((group) => group.name === name) || state.overview.groups[0];

  function view() {
    const all = state.overview;
    return [answer(), forests(), unusual(), all.points.length ? Lab.curves.section() : null, ranking(), h("section", {}, h("h2", {}, "Details"), details())];
  }

  function answer() {
    const all = state.overview;
    const cards = all.answers.map((one) => h("article", { class: "card" },
      h("h3", {}, one.task || "pass rate", " ", one.verdict ? Lab.curves.verdict(one.verdict) : null), h("p", {}, one.text)));
    const empty = all.pending ? `Fitting ${all.pending} curves …` : "No evaluations yet: the answer comes with the third.";
    return h("section", { id: "answer", "aria-labelledby": "answer-title" }, h("h2", { id: "answer-title" }, "The answer"),
      all.problems.map((text) => h("p", { class: "problem" }, text)),
      cards.length ? [h("div", { class: "cards" }, cards), [...new Set(all.answers.map((one) => one.note).filter(Boolean))].map((text) => h("p", { class: "note" }, text))] : h("p", { class: "note" }, empty),
      all.pending && cards.length ? h("p", { class: "note" }, `Fitting ${all.pending} curves that changed …`) : null);
  }

  function forests() {
    const single = state.overview.groups.length === 1;
    const fits = state.overview.fits.filter((fit) => !fit.refused);
    const tasks = single ? [null] : state.overview.tasks;
    const charts = tasks.map((task) => {
      const ranked = task && state.overview.comparisons.find((one) => one.task === task.name);
      const rank = (fit) => (ranked ? ranked.entries.findIndex((entry) => entry.run === fit.run) : -fit.rates[1].value);
      const mine = fits.filter((fit) => !task || fit.task === task.name).sort((a, b) => rank(a) - rank(b));
      if (!mine.length) return null;
      const rows = mine.map((fit) => ({
        name: single ? fit.task || fit.run : fit.run, code: single ? state.overview.tasks.find((one) => one.name === fit.task) : codeOf(fit.run),
        ...rateOf(fit, ranked), note: `${fit.seeds} seed${fit.seeds > 1 ? "s" : ""}, ${fit.n_points} points`,
      }));
      const where = ranked ? `at ${quantity(ranked.at, ranked.unit)}` : "with twice the compute";
      return Lab.chart.forest(task ? `${task.name || "pass rate"} ${where}` : `Pass rate of each task ${where}`, rows, `pass rate ${where}`).figure;
    }).filter(Boolean);
    return charts.length ? h("section", { "aria-labelledby": "forest-title" }, h("h2", { id: "forest-title" }, single ? "Where the tasks are heading" : "Ranking"),
      h("div", { class: charts.length > 1 ? "pair" : "single" }, charts), h("p", { class: "note" }, `Bars: ${percent(state.overview.level)} intervals.${single ? "" :  " Ranked by the pass rate at the largest compute that all have spent."}`)) : null;
  }

  /** What the forest shows of a fit: its rate where recipes are compared, or at twice the compute. */
  function rateOf(fit, ranked) {
    const entry = ranked && ranked.entries.find((one) => one.run === fit.run);
    return entry ? { value: entry.value, interval: entry.value_interval } : { value: fit.rates[1].value, interval: fit.rates[1].interval };
  }

  function unusual() {
    const found = state.overview.runs.flatMap((run) => run.unusual.map((one) => ({ ...one, run })));
    const remarks = new Map();
    for (const fit of state.overview.fits) {
      for (const text of fit.refused ? [] : fit.warnings) {
        if (!remarks.has(text)) remarks.set(text, []);
        remarks.get(text).push(fit.task ? `${fit.run} · ${fit.task}` : fit.run);
      }
    }
    found.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
    const item = (one) => h("li", { class: one.level }, h("b", {}, one.level === "bad" ? "▲ " : "△ "), state.overview.runs.length > 1 ? h("a", { href: link(one) }, one.run.name) : null,
      state.overview.runs.length > 1 ? ": " : "", one.text, one.kind === "fall" && one.run.rollouts ? [" ", h("a", { href: link(one) }, "which prompts?")] : null);
    const list = (items) => h("ul", { class: "unusual" }, items.map(item));
    return h("section", { "aria-labelledby": "unusual-title" }, h("h2", { id: "unusual-title" }, "What is unusual"),
      found.length ? list(found.slice(0, 8)) : h("p", {}, "Nothing: no fall of a pass rate beyond chance, no alarm, no restart."),
      found.length > 8 ? h("details", {}, h("summary", {}, `${found.length - 8} more`), list(found.slice(8))) : null,
      remarks.size ? h("details", {}, h("summary", {}, `Remarks on the fits (${remarks.size})`), h("ul", {}, [...remarks].map(([text, names]) =>
        h("li", {}, text, " ", h("span", { class: "quiet" }, `(${names.slice(0, 6).join(", ")}${names.length > 6 ? ` and ${names.length - 6} more` : ""})`))))) : null);
  }

  function link(one) {
    if (one.kind === "fall" && one.run.rollouts) return `${Lab.address.of("completions", one.run.id, "prompts")}?task=${encodeURIComponent(one.task)}&second=${one.step}`;
    return Lab.address.of("run", one.run.id);
  }

  function ranking() {
    const { comparisons } = state.overview;
    if (!comparisons.length) return null;
    return h("section", { "aria-labelledby": "ranking-title" }, h("h2", { id: "ranking-title" }, "Who beats whom"), comparisons.map((one) => {
      const columns = (header, cells, keys) => header.map((title, index) => ({
        title, numeric: !["run", "verdict"].includes(title), sort: (row) => row[keys[index]],
        cell: (row) => (title === "run" ? [mark(codeOf(row.run)), row.run] : row[cells][index]),
      }));
      const short = columns(one.short_header, "short_cells", ["run", "measured", "difference", "probability", "verdict"]);
      const all = columns(one.header, "cells", ["rank", "run", "measured", "value", "measured_difference", "difference", "probability", "compute_factor", "A", "B", "C_mid"]);
      return [h("h3", {}, one.task || "pass rate"), h("p", {}, one.sentence), Lab.table(`Ranking of ${one.task}`, short, one.rows),
        h("details", {}, h("summary", {}, "All columns"), Lab.table(`Ranking of ${one.task}, all columns`, all, one.rows)),
        h("details", {}, h("summary", {}, "Win probabilities of every pair"), matrix(one)),
        one.crossings.length ? h("details", {}, h("summary", {}, `Crossings (${one.crossings.length})`), h("ul", {}, one.crossings.map((item) => h("li", {},
          `${item.first} and ${item.second} cross at ${quantity(item.compute, one.unit)} (${chance(item.probability)}); before, ${item.leader_before} is ahead.`)))) : null,
        one.notes.map((text) => h("p", { class: "note" }, text, "."))];
    }));
  }

  function matrix(one) {
    const names = one.entries.map((entry) => entry.run);
    const columns = [{ title: "probability that … is above", cell: (row) => row.run }, ...names.map((name, index) => ({
      title: h("span", { title: name }, String(index + 1)), numeric: true,
      cell: (row) => (row.run === name ? "·" : h("span", { class: "cell", style: Lab.heat(row.beats[name] ?? 0) }, chance(row.beats[name]))),
    }))];
    return Lab.table(`Win probabilities of ${one.task}; columns by rank`, columns, one.entries);
  }

  function details() {
    const all = state.overview;
    return [
      fold("Fitted parameters", () => fits()),
      all.comparisons.length ? fold("Efficiency: straight lines of slope B at the common A", () => h("div", { class: "pair" }, all.comparisons.map(efficiency))) : null,
      all.parallel.length ? fold("Do the tasks of a recipe rise in parallel?", () => parallel()) : null,
      all.axes.length ? fold("Scaling axes", () => h("div", { class: "pair" }, all.axes.map(scaling))) : null,
      all.differences.length ? fold(`Settings that differ (${all.differences.length + all.more_differences})`, () => settings()) : null,
    ];
  }

  /** A section that is made when it is opened. */
  function fold(title, make) {
    const body = h("div");
    const box = h("details", { class: "fold" }, h("summary", {}, title), body);
    box.addEventListener("toggle", () => { if (box.open && !body.childNodes.length) body.append(make()); });
    return box;
  }

  function fits() {
    const rows = state.overview.fits;
    const cell = (name) => (fit) => (fit.refused ? "–" : interval(fit.parameters[name], fit.intervals[name]));
    const value = (name) => (fit) => (fit.refused ? null : fit.parameters[name]);
    const test = (fit) => (fit.backtest ? `${Lab.signed(fit.backtest.mean_error)}; ${Math.round(fit.backtest.covered * fit.backtest.n_scored)} of ${fit.backtest.n_scored}` : "–");
    return h("div", {}, Lab.table("Fitted parameters", [
      { title: "recipe", cell: (fit) => [mark(codeOf(fit.run)), fit.run], sort: (fit) => fit.run },
      { title: "task", cell: (fit) => fit.task || "–", sort: (fit) => fit.task },
      ...["R0", "A", "B", "C_mid"].map((name) => ({ title: name, numeric: true, cell: cell(name), sort: value(name) })),
      { title: "points", numeric: true, cell: (fit) => fit.n_points ?? "–", sort: (fit) => fit.n_points },
      { title: "half-budget back-test", cell: (fit) => (fit.refused ? fit.refused : test(fit)) },
    ], rows), h("p", { class: "note" }, `In brackets: ${percent(state.overview.level)} intervals. C_mid in ${Lab.curves.unit()}${Lab.curves.whose()}. Back-test: the first half of the budget was fitted; mean error of its forecast of the rest, and how many of those evaluations fell inside their intervals.`));
  }

  function efficiency(one) {
    const { axis, base, tip, frame, ink } = Lab.chart;
    const make = () => base({
      grid: { left: 8, right: 20, top: 14, bottom: 26, containLabel: true },
      xAxis: axis(`compute (${one.unit}${Lab.curves.whose()})`, { type: "log", nameLocation: "middle", nameGap: 24, min: "dataMin", max: "dataMax" }),
      yAxis: axis("F(R) = C^B", { type: "log", min: "dataMin", max: "dataMax", nameGap: 6 }),
      tooltip: { trigger: "item", formatter: (p) => tip(p.seriesName, [["compute", quantity(p.value[0], one.unit)], ["F(R)", number(p.value[1])]]) },
      series: one.entries.flatMap((entry) => {
        const color = tone(codeOf(entry.run).color);
        const data = (values) => entry.efficiency.compute.map((compute, index) => [compute, values[index]]).filter((pair) => pair[1] > 0);
        return [{ type: "line", name: entry.run, data: data(entry.efficiency.line), showSymbol: false, silent: true, lineStyle: { color, width: 1.4, type: Lab.dash(codeOf(entry.run)) } },
          { type: "scatter", name: entry.run, data: data(entry.efficiency.F), symbol: Lab.symbol(codeOf(entry.run)), symbolSize: 5, itemStyle: { color, borderColor: ink().ground } }];
      }),
    });
    return frame(`efficiency ${one.task}`, 360, make, () => `Efficiency of ${one.task}: ${one.entries.map((entry) => `${entry.run} B ${number(entry.B_at_common_A)}`).join("; ")}`, { title: `${one.task}: efficiency at the common A` }).figure;
  }

  function parallel() {
    const rows = state.overview.parallel.flatMap((one) => one.pairs);
    return Lab.table("Whether the tasks of each recipe rise in parallel", [
      { title: "recipe", cell: (row) => [mark(codeOf(row.run)), row.run], sort: (row) => row.run },
      { title: "tasks", cell: (row) => row.tasks.join(", "), sort: (row) => row.tasks.join() },
      { title: "parallel?", cell: (row) => (row.verdict === "parallel" ? `within ${number(row.margin)}` : row.verdict), sort: (row) => row.verdict },
      { title: "ratio of B", numeric: true, cell: (row) => interval(row.B_ratio, row.B_interval), sort: (row) => row.B_ratio },
      { title: "ratio of C_mid", numeric: true, cell: (row) => interval(row.C_mid_ratio, row.C_mid_interval), sort: (row) => row.C_mid_ratio },
    ], rows);
  }

  function scaling(one) {
    const tasks = [...new Set(one.points.map((point) => point.task))];
    const lines = tasks.map((task) => {
      const mine = one.points.filter((point) => point.task === task);
      return { label: task, x: mine.map((point) => point.at), y: mine.map((point) => point.A) };
    });
    const rows = one.points;
    return h("div", {}, Lab.chart.lines(`A along ${one.name}`, lines, { x: one.name, logX: true, height: 260 }).figure,
      Lab.table(`A along ${one.name}`, [{ title: one.name, numeric: true, cell: (row) => number(row.at) }, { title: "recipe", cell: (row) => row.run }, { title: "task", cell: (row) => row.task }, { title: "A", numeric: true, cell: (row) => interval(row.A, row.interval) }], rows, { plain: true }));
  }

  function settings() {
    const names = [...new Set(state.overview.differences.flatMap((row) => Object.keys(row.values)))];
    const rows = state.overview.differences;
    const usual = (row) => {
      const counts = new Map();
      for (const value of Object.values(row.values)) counts.set(value, (counts.get(value) || 0) + 1);
      return [...counts].sort((a, b) => b[1] - a[1])[0][0];
    };
    return h("div", {}, Lab.table("Settings in which the recipes differ", [
      { title: "setting", cell: (row) => h("code", {}, row.name) },
      { title: "most recipes", cell: (row) => h("code", {}, usual(row) ?? "–") },
      { title: "others", cell: (row) => {
        const most = usual(row);
        const others = new Map();
        for (const name of names) {
          const value = row.values[name];
          if (value !== undefined && value !== most) others.set(value, [...(others.get(value) || []), name]);
        }
        return [...others].map(([value, runs]) => h("div", {}, h("code", {}, value ?? "not set"), " ", h("span", { class: "quiet" }, runs.join(", "))));
      } },
    ], rows), state.overview.more_differences ? h("p", { class: "note" }, `${state.overview.more_differences} more are not listed.`) : null);
  }

  Lab.overview = { view, fold, codeOf };
})();
