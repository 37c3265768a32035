// The first view: the answer, the ranking, what is unusual, then curves, then detail.
"use strict";
(function () {
  const { h, number, interval, percent, chance, quantity, mark, tone, select, button, state } = Lab;

  const codeOf = (name) => state.overview.groups.find((group) => group.name === name) || state.overview.groups[0];

  const TOP = 12; // recipes of a ranking that are drawn before all are asked for

  function view() {
    const all = state.overview;
    const curves = all.axes_known.length ? Lab.curves.section() : null;
    const parts = Lab.narrow() ? [answer(), curves, forests(), unusual(), ranking()] : [answer(), forests(), unusual(), curves, ranking()];
    return [...parts, all.fits.length ? Lab.section("details", "Details", details) : null];
  }

  function answer() {
    const all = state.overview;
    const slim = Lab.narrow();
    const cards = all.answers.map((one) => h("article", { class: "card" },
      h("h3", {}, one.task || "pass rate", " ", one.verdict ? Lab.curves.verdict(one.verdict) : null), h("p", {}, slim ? one.lead : one.text)));
    const notes = () => [...new Set(all.answers.map((one) => one.note).filter(Boolean))].map((text) => h("p", { class: "note" }, text));
    const whole = () => [all.answers.map((one) => h("p", {}, h("b", {}, one.task), ` ${one.text}`)), notes()];
    const more = slim ? (all.answers.some((one) => one.text !== one.lead) ? Lab.fold("In full", whole, "") : null) : notes();
    return h("section", { id: "answer", "aria-labelledby": "answer-title" }, h("h2", { id: "answer-title" }, "The answer"),
      all.problems.map((text) => h("p", { class: "problem" }, text)), progress(all.stage),
      cards.length ? [h("div", { class: "cards" }, cards), more] : all.stage ? null : h("p", { class: "note" }, "No evaluations yet: the answer comes with the third."));
  }

  /** What the page is waiting for: how much of it is done, and how long the rest takes. */
  function progress(stage) {
    if (!stage) return null;
    const what = stage.doing === "reading" ? "Reading the runs" : "Fitting and comparing";
    const left = stage.left === null ? "" : stage.left < 90 ? `, about ${Math.max(1, Math.round(stage.left))} s left` : `, about ${Math.round(stage.left / 60)} min left`;
    return h("p", { class: "note working" }, h("progress", { max: String(stage.total || 1), value: stage.done, "aria-label": what }), ` ${what}: ${number(stage.done)} of ${number(stage.total)}${left}`);
  }

  function forests() {
    const single = state.overview.groups.length === 1;
    const fits = state.overview.fits.filter((fit) => !fit.refused);
    const tasks = single ? [null] : state.overview.tasks;
    const chart = (task) => {
      const ranked = task && state.overview.comparisons.find((one) => one.task === task.name);
      const places = new Map((ranked ? ranked.entries : []).map((entry, place) => [entry.run, place]));
      const rank = (fit) => (ranked ? places.get(fit.run) : -fit.rates[1].value);
      const mine = fits.filter((fit) => (!task || fit.task === task.name) && (!ranked || places.has(fit.run))).sort((a, b) => rank(a) - rank(b));
      const rows = mine.map((fit) => ({
        name: single ? fit.task || fit.run : fit.run, code: single ? state.overview.tasks.find((one) => one.name === fit.task) : codeOf(fit.run),
        ...rateOf(fit, ranked), note: `${fit.seeds} seed${fit.seeds > 1 ? "s" : ""}, ${fit.n_points} points`,
      }));
      const where = ranked ? `at ${quantity(ranked.at, ranked.unit)}` : "with twice the compute";
      const draw = (shown) => Lab.chart.forest(task ? `${task.name || "pass rate"} ${where}` : `Pass rate of each task ${where}`, shown, `pass rate ${where}`).figure;
      if (rows.length <= TOP + 2) return draw(rows);
      const box = h("div", {}, draw(rows.slice(0, TOP)));
      box.append(button(`show all ${rows.length}`, () => { box.replaceChildren(draw(rows)); }, { class: "quiet small" }));
      return box;
    };
    const shown = tasks.filter((task) => fits.some((fit) => (!task || fit.task === task.name) && (single || state.overview.comparisons.some((one) => one.task === fit.task))));
    if (!shown.length) return null;
    return Lab.section("forest", single ? "Where the tasks are heading" : "Ranking", () => [
      h("div", { class: shown.length > 1 ? "pair" : "single" }, shown.map(chart)), h("p", { class: "note" }, `Bars: ${percent(state.overview.level)} intervals.${single ? "" :  " Ranked by the pass rate at the largest compute that all have spent."}`)]);
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
    const rank = (one) => (one.kind === "fall" ? 0 : one.level === "bad" ? 1 : 2); // many runs have alarms that are alike
    found.sort((a, b) => rank(a) - rank(b));
    const item = (one) => h("li", { class: one.level }, h("b", {}, one.level === "bad" ? "▲ " : "△ "), state.overview.runs.length > 1 ? h("a", { href: link(one) }, one.run.name) : null,
      state.overview.runs.length > 1 ? ": " : "", one.text, one.kind === "fall" && one.run.rollouts ? [" ", h("a", { href: link(one) }, "which prompts?")] : null, sign(one));
    const list = (items) => h("ul", { class: "unusual" }, items.map(item));
    const few = 5;
    const forgotten = state.overview.fits.filter((fit) => !fit.refused && fit.forgets).map((fit) => h("li", { class: "bad" }, h("b", {}, "▲ "), `${fit.run}${fit.task ? ` · ${fit.task}` : ""} ${fit.fall_text}`));
    const count = found.length + forgotten.length;
    return Lab.section("unusual", count && Lab.narrow() ? `What is unusual (${count})` : "What is unusual", () => [
      forgotten.length ? h("ul", { class: "unusual" }, forgotten) : null,
      found.length ? list(found.slice(0, few)) : forgotten.length ? null : h("p", {}, "Nothing: no fall of a pass rate beyond chance, no alarm, no restart."),
      found.length > few ? Lab.fold(`${found.length - few} more`, () => list(found.slice(few)), "") : null,
      remarks.size ? h("details", {}, h("summary", {}, `Remarks on the fits (${remarks.size})`), h("ul", {}, [...remarks].map(([text, names]) =>
        h("li", {}, text, " ", h("span", { class: "quiet" }, `(${names.slice(0, 6).join(", ")}${names.length > 6 ? ` and ${names.length - 6} more` : ""})`))))) : null]);
  }

  /** What foretold a fall, as links to its charts. */
  function sign(one) {
    if (!one.foretold || !one.foretold.length) return null;
    return ["; before it ", one.foretold.map((each, index) => [index ? ", " : "", h("a", { href: `${Lab.address.of("run", one.run.id)}?metric=${encodeURIComponent(each.name.replace(/_/g, " "))}` }, each.name.replace(/_/g, " ")), ` ${number(each.value)} (usually ${number(each.usual)})`])];
  }

  function link(one) {
    if (one.kind === "fall" && one.run.rollouts) return `${Lab.address.of("completions", one.run.id, "prompts")}?task=${encodeURIComponent(one.task)}&second=${one.step}`;
    return Lab.address.of("run", one.run.id);
  }

  function ranking() {
    const { comparisons } = state.overview;
    if (!comparisons.length) return null;
    return Lab.section("ranking", "Who beats whom", () => {
      const names = [...new Set(comparisons.flatMap((one) => one.entries.map((entry) => entry.run)))].sort();
      const places = comparisons.map((one) => h("div", {}, task(one, null)));
      async function pin(name) {
        state.baseline = name;
        await Promise.all(comparisons.map(async (one, index) => {
          const found = name ? (await Lab.data.comparison(one.task)).against[name] : null;
          places[index].replaceChildren(...task(one, found).flat().filter(Boolean));
        }));
      }
      if (state.baseline) pin(state.baseline);
      return [h("div", { class: "controls" }, select("Baseline", [["", "the first"], ...names.map((name) => [name, name])], state.baseline, pin)), places];
    });
  }

  /** The comparison of one task, with the usual baseline or against another. */
  function task(one, found) {
    const held = found || one;
    const columns = (header, cells, keys) => header.map((title, index) => ({
      title, numeric: !["run", "verdict"].includes(title), sort: (row) => row[keys[index]],
      cell: (row) => (title === "run" ? [mark(codeOf(row.run)), row.run] : row[cells][index]),
    }));
    const short = columns(held.short_header, "short_cells", held.short_keys);
    const all = columns(one.header, "cells", one.keys);
    const refused = one.of - one.left_out - one.entries.length;
    const few = [one.left_out ? `These are the recipes with the highest measured rates; ${one.left_out} more are not compared.` : "", refused ? `${refused} of ${one.of} recipes carr${refused > 1 ? "y" : "ies"} no fit.` : ""].filter(Boolean).map((text) => h("p", { class: "note" }, text));
    return [h("h3", {}, one.task || "pass rate"), h("p", { class: "sentence" }, held.sentence), few, Lab.table(`Ranking of ${one.task}`, short, held.rows),
      found ? null : Lab.fold("All columns", () => Lab.table(`Ranking of ${one.task}, all columns`, all, one.rows), ""),
      Lab.fold("Win probabilities of every pair", () => later(one, matrix), ""),
      one.crossings.length ? Lab.fold(`Crossings (${one.crossings.length})`, () => h("ul", {}, one.crossings.map((item) => h("li", {},
        `${item.first} and ${item.second} cross at ${quantity(item.compute, one.unit)} (${chance(item.probability)}); before, ${item.leader_before} is ahead.`))), "") : null,
      one.notes.length > 2 ? Lab.fold(`Notes (${one.notes.length})`, () => one.notes.map((text) => h("p", { class: "note" }, text, ".")), "") : one.notes.map((text) => h("p", { class: "note" }, text, "."))];
  }

  /** A part of a comparison that is asked for when it is opened. */
  function later(one, make) {
    const place = h("div", {}, h("p", { class: "note" }, "…"));
    Lab.data.comparison(one.task).then((found) => place.replaceChildren(make(one, found.entries)), (error) => place.replaceChildren(h("p", { class: "problem" }, error.message)));
    return place;
  }

  function matrix(one, parts) {
    const names = one.entries.map((entry) => entry.run);
    const columns = [{ title: "probability that … is above", cell: (row) => row.run }, ...names.map((name, index) => ({
      title: h("span", { title: name }, String(index + 1)), numeric: true,
      cell: (row) => (row.run === name ? "·" : h("span", { class: "cell", style: Lab.heat(parts[row.run].beats[name] ?? 0) }, chance(parts[row.run].beats[name]))),
    }))];
    return Lab.table(`Win probabilities of ${one.task}; columns by rank`, columns, one.entries);
  }

  function details() {
    const all = state.overview;
    return [
      Lab.fold("Fitted parameters", () => fits()),
      all.comparisons.length ? Lab.fold("Efficiency: straight lines of slope B at the common A", () => h("div", { class: "pair" }, all.comparisons.map((one) => later(one, efficiency)))) : null,
      all.parallel.length ? Lab.fold("Do the tasks of a recipe rise or fall in parallel?", () => parallel()) : null,
      all.axes.length ? Lab.fold("Scaling axes", () => h("div", { class: "pair" }, all.axes.map(scaling))) : null,
      all.differences.length ? Lab.fold(`Settings that differ (${all.differences.length + all.more_differences})`, () => settings()) : null,
    ];
  }

  function fits() {
    const rows = state.overview.fits;
    const loose = (name, fit) => name === "A" && fit.A_stands === false; // no limit, as in the ranking
    const cell = (name) => (fit) => (fit.refused ? "–" : loose(name, fit) ? `(${interval(fit.parameters[name], fit.intervals[name])})` : interval(fit.parameters[name], fit.intervals[name]));
    const value = (name) => (fit) => (fit.refused ? null : fit.parameters[name]);
    const test = ({ backtest: one }) => (one ? `${interval(one.forecast, one.interval, 3)}, measured ${one.measured.toFixed(3)}${one.inside ? "" : ": missed"}` : "–");
    return h("div", {}, Lab.table("Fitted parameters", [
      { title: "recipe", cell: (fit) => [mark(codeOf(fit.run)), fit.run], sort: (fit) => fit.run },
      { title: "task", cell: (fit) => fit.task || "–", sort: (fit) => fit.task },
      ...["R0", "A", "B", "C_mid"].map((name) => ({ title: name, numeric: true, cell: cell(name), sort: value(name) })),
      { title: "points", numeric: true, cell: (fit) => fit.n_points ?? "–", sort: (fit) => fit.n_points },
      { title: "half-budget back-test", cell: (fit) => (fit.refused ? fit.refused : test(fit)) },
    ], rows), h("p", { class: "note" }, `In brackets: ${percent(state.overview.level)} intervals. C_mid in ${Lab.curves.unit()}${Lab.curves.whose()}. Back-test: mean of the second half, as the first half forecast it and as it was measured.`));
  }

  function efficiency(one, parts) {
    const { axis, base, tip, frame, ink } = Lab.chart;
    const make = () => base({
      grid: { left: 8, right: 20, top: 14, bottom: 26, containLabel: true },
      xAxis: axis(`compute (${one.unit}${Lab.curves.whose()})`, { type: "log", nameLocation: "middle", nameGap: 24, min: "dataMin", max: "dataMax" }),
      yAxis: axis("F(R) = C^B", { type: "log", min: "dataMin", max: "dataMax", nameGap: 6 }),
      tooltip: { trigger: "item", formatter: (p) => tip(p.seriesName, [["compute", quantity(p.value[0], one.unit)], ["F(R)", number(p.value[1])]]) },
      series: one.entries.flatMap((entry) => {
        const color = tone(codeOf(entry.run).color);
        const data = (values) => parts[entry.run].efficiency.compute.map((compute, index) => [compute, values[index]]).filter((pair) => pair[1] > 0);
        return [{ type: "line", name: entry.run, data: data(parts[entry.run].efficiency.line), showSymbol: false, silent: true, lineStyle: { color, width: 1.4, type: Lab.dash(codeOf(entry.run)) } },
          { type: "scatter", name: entry.run, data: data(parts[entry.run].efficiency.F), symbol: Lab.symbol(codeOf(entry.run)), symbolSize: 5, itemStyle: { color, borderColor: ink().ground } }];
      }),
    });
    return frame(`efficiency ${one.task}`, 360, make, () => `Efficiency of ${one.task}: ${one.entries.map((entry) => `${entry.run} B ${number(entry.B_at_common_A)}`).join("; ")}`, { title: `${one.task}: efficiency at the common A` }).figure;
  }

  function parallel() {
    const rows = state.overview.parallel.flatMap((one) => one.pairs);
    return Lab.table("Whether the tasks of each recipe rise or fall in parallel", [
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
    const several = state.overview.axes.filter((other) => other.name === one.name).length > 1;
    const title = `A along ${one.name}${several ? ` through ${rows[0].run}` : ""}`;
    return h("div", {}, Lab.chart.lines(title, lines, { x: one.name, logX: true, height: 260 }).figure,
      Lab.table(title, [{ title: one.name, numeric: true, cell: (row) => number(row.at) }, { title: "recipe", cell: (row) => row.run }, { title: "task", cell: (row) => row.task }, { title: "A", numeric: true, cell: (row) => interval(row.A, row.interval) }], rows, { plain: true }));
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

  Lab.overview = { view, answer, codeOf };
})();
