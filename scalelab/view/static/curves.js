// Pass rate against compute: points with errors, fits, bands, forecast; choice of axis, runs, tasks; the budget.
"use strict";
(function () {
  const { h, number, interval, percent, chance, quantity, signed, select, checkbox, button, mark, tone, soon, state } = Lab;
  const { ink, base, axis, tip, frame } = Lab.chart;
  const AXES = { compute: null, step: "optimiser steps", completions: "completions", tokens: "tokens", flops: "FLOPs", hours: "wall-clock hours" };

  const DOUBLED = 2; // the budget as a multiple of what is spent, unless somebody sets one: advice is on doubling

  const held = new Map(); // recipe → its points and the tables of its fits, and the stamp under which they were asked for
  let index = { of: null, fits: new Map() };

  /** The fit of a recipe and task, with its table where that is here. */
  function fitted(run, task) {
    if (index.of !== state.overview) {
      index = { of: state.overview, fits: new Map() };
      for (const fit of state.overview.fits) if (!fit.refused) index.fits.set(fit.run + "\n" + fit.task, fit);
    }
    const fit = index.fits.get(run + "\n" + task) || (held.get(run) || { fits: {} }).fits?.[task];
    if (fit && !fit.table) fit.table = (held.get(run) || { tables: {} }).tables[task];
    return fit;
  }

  /** The fit of a recipe and task if it can be drawn: with its table. */
  function drawable(run, task) {
    const fit = fitted(run, task);
    return fit && fit.table ? fit : null;
  }

  /** Points of a recipe and task; on the axis of compute without runs that count it in another unit, or on another clock. */
  function pointsOf(group, task) {
    const { runs, counted_in } = state.overview;
    const alike = (points) => state.x !== "compute" || (runs.find((run) => run.id === points.run) || {}).counted_in === counted_in;
    return (held.get(group) || { points: [] }).points.filter((points) => points.task === task && alike(points));
  }

  /** Ask for the points and tables of recipes that are not here yet; whether anything came. */
  async function need(names) {
    const places = state.overview.groups.map((group, place) => [group.name, place]).filter(([name]) => names.includes(name) && (held.get(name) || {}).stamp !== state.overview.stamps[name]);
    if (!places.length) return false;
    const stamps = state.overview.stamps;
    const found = await Lab.data.curves(places.map(([, place]) => place));
    for (const [name, data] of Object.entries(found)) held.set(name, { ...data, stamp: stamps[name] });
    index.of = null;
    for (const fit of state.overview.fits) if (names.includes(fit.run)) delete fit.table;
    return true;
  }

  /** Take in recipes that were pooled by hand: {name: {points, tables, fits by task}}. */
  function adopt(found) {
    for (const [name, data] of Object.entries(found)) held.set(name, data);
  }
  /** Compute as the axis shows it: minutes where all of it is a small part of an hour. */
  const scale = () => (state.x === "compute" && unit().endsWith("-hours") && spent() > 0 && spent() < 0.5 ? 60 : 1);
  const unit = () => (state.overview.fits[0] || {}).unit || (state.overview.runs[0] || {}).curve_unit || "compute";
  const shownGroups = () => state.overview.groups.filter((group) => !state.hidden.has(group.name));
  const shownTasks = () => state.overview.tasks.filter((task) => !state.tasks || state.tasks.has(task.name));
  const bands = () => state.bands ?? shownGroups().length <= 4;

  function spent() {
    return Math.max(...state.overview.fits.filter((fit) => !fit.refused).map((fit) => fit.window[1]), 0);
  }

  /** Whose hours are counted, if no real device spent them. */
  const whose = () => (unit().endsWith("-hours") && state.overview.runs.some((run) => run.clock === "virtual") ? " of a simulated cluster" : "");

  /** The axes that some run has values for. */
  function choices() {
    const present = Object.keys(AXES).filter((name) => state.overview.axes_known.includes(name) && AXES[name] !== unit());
    return present.map((name) => [name, name === "compute" ? unit() + whose() : AXES[name]]);
  }

  function axisLabel() {
    return state.x === "compute" ? `compute (${scale() === 60 ? unit().replace("hours", "minutes") : unit()}${whose()})` : AXES[state.x];
  }

  /** One task's chart. */
  function taskChart(task, chosen = shownGroups, height = 420, together = false) {
    const single = state.overview.groups.length === 1;
    const horizonOf = (groups) => (!together && state.budget) || DOUBLED * (together ? Math.max(0, ...groups.map((group) => (fitted(group.name, task.name) || { window: [0, 0] }).window[1])) : spent());
    const make = () => {
      const groups = chosen();
      const series = [];
      const xs = [];
      const horizon = horizonOf(groups);
      let lowest = Infinity;
      const [factor, shaded] = [scale(), together || bands()];
      for (const group of groups) {
        const code = single ? task : group;
        const color = tone(code.color);
        const entries = pointsOf(group.name, task.name);
        const fit = drawable(group.name, task.name);
        const data = [];
        for (const points of entries) {
          const line = [];
          const y = Lab.smooth(points.y, state.smooth);
          (points.x[state.x] || []).forEach((x, index) => {
            if (x === null || (state.log && x <= 0)) return;
            line.push([x * factor, y[index]]);
            data.push({ value: [x * factor, points.y[index], points.stderr[index] || 0, points.x.step ? points.x.step[index] : null, points.x.compute ? points.x.compute[index] : null], run: points.run });
            xs.push(x * factor);
            if (x > 0) lowest = Math.min(lowest, x * factor);
          });
          if (state.smooth) series.push({ type: "line", name: group.name, data: line, showSymbol: false, silent: true, z: 3, lineStyle: { width: 1, color, opacity: 0.8 }, itemStyle: { color }, emphasis: { disabled: true } });
        }
        if (fit && entries.length) series.push(...fitSeries(fit, entries, color, code, group.name, horizon, xs, shaded));
        if (state.points || !fit) series.push(...pointSeries(data, color, code, group.name, fit));
      }
      const marks = state.budget && state.x === "compute" ? [{ xAxis: state.budget * scale(), name: "budget" }] : [];
      if (series.length && marks.length) series[0].markLine = { silent: true, symbol: "none", animation: false, label: { formatter: "budget", color: ink().muted }, lineStyle: { color: ink().muted, type: "dashed" }, data: marks };
      return base({
        grid: { left: 10, right: 22, top: 14, bottom: 66, containLabel: true },
        xAxis: axis(axisLabel(), { type: state.log ? "log" : "value", min: state.log ? (isFinite(lowest) ? lowest : 1) : 0, max: xs.length ? Math.max(...xs) : 1, nameLocation: "middle", nameGap: 26, scale: false, axisLabel: { color: ink().muted, formatter: (value) => number(value), hideOverlap: true, showMaxLabel: false } }),
        yAxis: axis("", { type: "value", min: (range) => Math.max(0, Math.floor(range.min * 20) / 20), max: (range) => Math.min(1, Math.ceil(range.max * 20) / 20) }),
        dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl" }, { type: "slider", filterMode: "none", bottom: 6, height: 20, labelFormatter: (value) => number(value) }],
        tooltip: { trigger: "item", formatter: (p) => pointTip(p) },
        series,
      });
    };
    const describe = () => {
      const words = chosen().map((group) => {
        const fit = fitted(group.name, task.name);
        return fit ? `${group.name} ${interval(fit.rates[0].value, fit.rates[0].interval, 3)} at the compute reached` : `${group.name} without a fit`;
      });
      return `${task.name || "pass rate"} against ${axisLabel()}: ${words.join("; ")}`;
    };
    const drawn = frame(`curves ${task.name}`, height, make, describe, { title: `${task.name || "Pass rate"}: held-out ${task.measure}`, ready: (chart) => chart.getZr().on("dblclick", (event) => setBudget(chart, event)) });
    return drawn;
  }

  function setBudget(chart, event) {
    if (state.x !== "compute") return;
    const [x] = chart.convertFromPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY]);
    if (x > 0) { state.budget = x / scale(); Lab.curves.refresh(); }
  }

  /** The band of a fit over its points, and beyond them up to some compute: [compute, [low, middle, high]] each. */
  function banded(fit, entries, horizon) {
    const first = state.log ? Math.min(...entries.flatMap((points) => (points.x.compute || []).filter((value) => value > 0))) : 0;
    const [start, last] = [Math.max(first, 0), fit.window[1]];
    const inside = Lab.curve.grid(start || last / 1000, last, 70, state.log);
    const outside = horizon > last ? Lab.curve.grid(last, horizon, 18, state.log) : [];
    return [inside, outside].map((grid) => grid.map((compute) => [compute, Lab.curve.band(fit, compute)]));
  }

  /** The fitted curve over its points, the forecast beyond them, and the band. */
  function fitSeries(fit, entries, color, code, name, horizon, xs, shaded) {
    const along = Lab.curve.axisOf(entries[0], state.x);
    if (!along) return [];
    const factor = scale();
    const place = (compute) => along(compute) * factor;
    const [within, beyond] = banded(fit, entries, horizon);
    xs.push(place(Math.max(horizon, fit.window[1])));
    const line = (rows, more) => ({ type: "line", name, data: rows.map(([compute, row]) => [place(compute), row[1]]), showSymbol: false, silent: true, z: 3, itemStyle: { color }, emphasis: { disabled: true }, ...more });
    const series = [line(within, { lineStyle: { width: 2, color, type: Lab.dash(code) } })];
    if (beyond.length) series.push(line(beyond, { lineStyle: { width: 1.5, color, type: [3, 5] } }));
    if (shaded) {
      const rows = [...within, ...beyond];
      const outline = [...rows.map(([compute, row]) => [place(compute), row[2]]), ...rows.reverse().map(([compute, row]) => [place(compute), row[0]])];
      series.push({
        type: "custom", silent: true, z: 1, clip: true, data: [[outline[0][0], outline[0][1]]],
        renderItem: (_, api) => ({ type: "polygon", shape: { points: outline.map((pair) => api.coord(pair)) }, style: { fill: color, opacity: 0.13 } }),
      });
    }
    return series;
  }

  /** Points with bars of one standard error; hollow ones were not fitted. */
  function pointSeries(data, color, code, name, fit) {
    const many = data.length > 60;
    const used = (row) => fit && (row.value[4] === 0 || (row.value[4] >= fit.window[0] && row.value[4] <= fit.window[1]));
    return [
      // All bars of a recipe are one path: a path for each point costs ten times as long to draw.
      { type: "custom", silent: true, z: 2, clip: true, data: data.length ? [[data[0].value[0], data[0].value[1]]] : [],
        renderItem: (_, api) => {
          const bars = data.map(({ value: [x, y, stderr] }) => {
            const [a, b] = [api.coord([x, y - stderr]), api.coord([x, y + stderr])];
            return `M${a[0].toFixed(1)} ${a[1].toFixed(1)}L${b[0].toFixed(1)} ${b[1].toFixed(1)}`;
          });
          return { type: "path", shape: { d: bars.join("") }, style: { stroke: color, fill: "none", opacity: 0.4 } };
        } },
      { type: "scatter", name, z: 4, symbol: Lab.symbol(code), symbolSize: many ? 5 : 7, data: data.map((row) => (used(row) ? row : { ...row, itemStyle: { color: ink().ground, borderColor: color, borderWidth: 1.2 } })), itemStyle: { color }, emphasis: { scale: 1.6 } },
    ];
  }

  function pointTip(p) {
    if (p.seriesType !== "scatter") return "";
    const [x, y, stderr, step, compute] = p.value;
    const run = state.overview.runs.find((one) => one.id === p.data.run);
    const rows = [["pass rate", `${y.toFixed(3)} ± ${stderr.toFixed(3)}`]];
    if (compute !== null) rows.push(["compute", quantity(compute, unit())]);
    if (step !== null) rows.push(["step", number(step)]);
    if (state.x !== "compute" && state.x !== "step") rows.push([AXES[state.x], number(x)]);
    return tip(run ? run.name : p.seriesName, rows);
  }

  /** Forecasts at the budget: a table, and for a target pass rate the compute it takes. */
  function forecastTable() {
    const rows = [];
    for (const task of shownTasks()) {
      for (const group of shownGroups()) {
        const fit = drawable(group.name, task.name);
        if (fit) rows.push({ task, group, fit, found: Lab.curve.forecast(fit, state.budget || DOUBLED * fit.window[1]) });
      }
    }
    const target = Math.round(100 * Number(state.target)) / 100;
    const wanted = target > 0 && target < 1;
    const columns = [
      { title: "recipe", cell: (row) => [mark(row.group), row.group.name], sort: (row) => row.group.name },
      { title: "task", cell: (row) => row.task.name || "–", sort: (row) => row.task.name },
      { title: "spent", numeric: true, cell: (row) => quantity(row.fit.window[1], row.fit.unit), sort: (row) => row.fit.window[1] },
      { title: "forecast", numeric: true, cell: (row) => interval(row.found.value, row.found.interval, 3), sort: (row) => row.found.value },
      { title: "gain", numeric: true, cell: (row) => signed(row.found.gain), sort: (row) => row.found.gain },
      { title: "advice", cell: (row) => verdict(row.found.advice), sort: (row) => row.found.worthwhile },
    ];
    if (wanted) columns.push({ title: `compute for ${target}`, numeric: true, cell: (row) => reachText(row.fit, target), sort: (row) => Lab.curve.reach(row.fit, target).compute ?? Infinity });
    return rows.length ? Lab.table("Forecasts at the budget", columns, rows) : h("p", { class: "note" }, "No fit yet: three evaluations and a rise or a fall are needed.");
  }

  function reachText(fit, target) {
    const found = Lab.curve.reach(fit, target);
    if (found.compute === null || (fit.forgets && found.compute === 0)) return found.reading.split(":")[0];
    const [low, high] = [found.low, found.high].map((end) => (end === null ? "never" : quantity(end, fit.unit)));
    return `${fit.forgets ? "falls to it at " : ""}${quantity(found.compute, fit.unit)} [${low}, ${high}]`;
  }

  function verdict(word) {
    return h("span", { class: `chip ${word}` }, { extend: "extend", stop: "stop", unclear: "unclear" }[word] || word);
  }

  /** The section: controls, one chart per task, legend, budget and forecasts. */
  function section() {
    begin();
    const slim = Lab.narrow();
    const tasks = shownTasks();
    const charts = (slim ? tasks.slice(0, 1) : tasks).map((task) => taskChart(task, shownGroups, slim ? 300 : 420));
    const legend = h("div", { class: "legend", role: "group", "aria-label": "Recipes shown" });
    const forecasts = h("div", { class: "forecasts" });
    const budgetText = h("output", { class: "budget", "aria-live": "polite" });
    const most = spent();
    const exponent = () => (state.budget && most ? Math.log10(state.budget / most) : Math.log10(DOUBLED));
    const slider = h("input", {
      type: "range", min: "-1", max: "2", step: "0.01", "aria-label": "Budget, as a multiple of what is spent",
      oninput: (event) => { state.budget = most * Math.pow(10, Number(event.target.value)); later(); },
    });
    let timer = null;
    const later = () => { showBudget(); clearTimeout(timer); timer = setTimeout(refresh, 40); };
    function showBudget() {
      slider.value = String(exponent());
      const at = state.budget || most * DOUBLED;
      budgetText.textContent = most ? `${quantity(at, unit())} (${number(at / most)} × what is spent)` : "–";
    }
    function mark_pressed() {
      for (const one of legend.querySelectorAll(".toggle")) one.setAttribute("aria-pressed", String(!state.hidden.has(one.title)));
    }
    function fillLegend() {
      const names = state.overview.groups.length > 1 ? state.overview.groups : [];
      const toggles = names.map((group) => h("button", {
        type: "button", class: "toggle", title: group.name, "aria-pressed": String(!state.hidden.has(group.name)),
        onclick: () => { state.hidden.has(group.name) ? state.hidden.delete(group.name) : state.hidden.add(group.name); mark_pressed(); refresh(); },
      }, mark(group), group.name));
      const many = (word, choose) => button(word, () => { choose(); mark_pressed(); refresh(); }, { class: "quiet small" });
      legend.replaceChildren(...(names.length ? [...toggles, many("all", () => state.hidden.clear()), many("leaders", leaders), many("none", () => names.forEach((group) => state.hidden.add(group.name)))] : []));
    }
    // The control that was used answers in the next frame; the charts follow one by one, in frames of their own. A frame
    // takes what is done in 30 ms, or one chart: the next click need not wait for all of it.
    let queue = [];
    function next() {
      for (const end = performance.now() + 30; queue.length && performance.now() < end;) queue.shift()();
      if (queue.length) soon(next);
    }
    function refresh() {
      const idle = queue.length === 0;
      queue = [...charts.flatMap((chart) => [() => chart.draw()]), () => forecasts.isConnected && forecasts.replaceChildren(forecastTable())];
      showBudget();
      if (idle) soon(next);
      need(shownGroups().map((group) => group.name)).then((came) => came && refresh(), () => null);
    }
    const again = () => soon(Lab.show);
    const controls = h("div", { class: "controls" },
      select("Horizontal axis", choices(), state.x, (value) => { state.x = value; refresh(); note.hidden = value === "compute"; }),
      select("Smoothing", Lab.SMOOTH, state.smooth, (value) => { state.smooth = value; refresh(); }),
      checkbox("logarithmic", state.log, (on) => { state.log = on; refresh(); }),
      checkbox("bands", bands(), (on) => { state.bands = on; refresh(); }),
      checkbox("points", state.points, (on) => { state.points = on; refresh(); }),
      state.overview.tasks.length > 1 ? h("span", { class: "field", role: "group", "aria-label": "Tasks" }, h("span", {}, "Tasks"), state.overview.tasks.map((task) => checkbox(task.name, !state.tasks || state.tasks.has(task.name), (on) => {
        const chosen = new Set(shownTasks().map((one) => one.name));
        on ? chosen.add(task.name) : chosen.delete(task.name);
        state.tasks = chosen.size === state.overview.tasks.length ? null : chosen;
        again();
      }))) : null,
      button("reset zoom", refresh, { class: "quiet small" }));
    const few = h("p", { class: "note" }, state.overview.groups.length > 8 ? "At first only the leaders of each task are shown: choose others above." : "");
    const note = h("p", { class: "note", hidden: state.x === "compute" }, `Curves are fitted against ${unit()}${whose()}; here they are drawn where that compute was spent.`);
    fillLegend();
    showBudget();
    Lab.curves.refresh = refresh;
    need(shownGroups().map((group) => group.name)).then(refresh, () => null);
    const drawn = h("div", { class: charts.length > 1 ? "pair" : "single" }, charts.map((chart) => chart.figure));
    const key = h("p", { class: "note" }, `Bars: one standard error. Shaded: ${percent(state.overview.level)} band of the curve. Dashed: forecast. Hollow points were not fitted. Ctrl and wheel zooms; a double click sets the budget.`);
    const budget = h("div", { class: "budgetbar" }, h("label", { class: "field wide" }, h("span", {}, "Budget"), slider), budgetText,
      button("reset", () => { state.budget = null; refresh(); }, { class: "quiet small" }),
      h("label", { class: "field" }, h("span", {}, "Target pass rate"), h("input", { type: "number", min: "0.01", max: "0.99", step: "0.01", value: state.target, oninput: (event) => { state.target = event.target.value; forecasts.replaceChildren(forecastTable()); } })));
    const heading = h("h2", { id: "curves-title" }, "Curves and forecast");
    const rest = () => [few, note, key, budget, forecasts];
    if (!slim) return h("section", { id: "curves", "aria-labelledby": "curves-title" }, heading, controls, legend, drawn, rest());
    const picked = tasks.length > 1 ? select("Task", state.overview.tasks.map((task) => [task.name, task.name || "pass rate"]), tasks[0].name, (value) => { state.tasks = new Set([value]); again(); }) : null;
    return h("section", { id: "curves", "aria-labelledby": "curves-title" }, heading, picked, drawn,
      Lab.fold("Recipes, axes and forecasts", () => { soon(refresh); return h("div", {}, controls, legend, rest()); }));
  }

  /** Of many recipes the best alone are shown at first. */
  function begin() {
    if (!state.begun && state.overview.comparisons.length) {
      state.begun = true;
      if (state.overview.groups.length > 8) leaders();
      Lab.address.begin();
    }
    if (state.atFirst === undefined) Lab.address.begin();
  }

  /** Leave only the best of each task. */
  function leaders() {
    const best = new Set();
    for (const one of state.overview.comparisons) one.entries.slice(0, 3).forEach((entry) => best.add(entry.run));
    if (!best.size) return;
    state.hidden = new Set(state.overview.groups.map((group) => group.name).filter((name) => !best.has(name)));
  }

  Lab.curves = { section, verdict, fitted, drawable, need, adopt, taskChart, choices, unit, whose, refresh() {} };
})();
