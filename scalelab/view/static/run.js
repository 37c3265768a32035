// One run: what it is, its time line, metrics, staleness, alarms and faults, settings and the diff to another run.
"use strict";
(function () {
  const { h, number, duration, quantity, select, state, visible } = Lab;
  const details = new Map();
  const NOW_EVERY = 5000;

  async function view(id) {
    const run = state.overview.runs.find((one) => one.id === id) || state.overview.runs[0];
    if (!run) return [h("p", {}, "There is no run.")];
    state.run = run.id;
    const found = await detail(run.id);
    return [h("section", { "aria-labelledby": "run-title" }, h("h2", { id: "run-title" }, run.name),
      h("div", { class: "controls" }, select("Run", state.overview.runs.map((one) => [one.id, one.name]), run.id, (value) => { location.hash = Lab.address.of("run", value); }),
        run.rollouts ? h("a", { class: "button", href: Lab.address.of("completions", run.id) }, "Completions") : null),
      facts(run, found), found.note ? [h("h3", {}, "Notes"), h("pre", { class: "text", tabindex: "0" }, visible(found.note))] : run.folder ? h("p", { class: "note" }, "Notes: write them into notes.md in the run's folder; they are shown here, in the table of runs and head to head.") : null), await now(run), timeline(found), said(found), metrics(found), held(found), settings(run, found)];
  }

  async function detail(id, fresh = false) {
    if (fresh || !details.has(id)) details.set(id, await Lab.data.run(id));
    return details.get(id);
  }

  function facts(run, found) {
    const versions = found.manifest.versions || {};
    const rows = [
      ["status", run.status + (typeof found.manifest.reason === "string" ? `: ${found.manifest.reason}` : "")], ["experiment", run.experiment], ["what", run.description], ["steps", number(run.step)], ["compute", quantity(run.compute, run.unit)],
      ["time", duration(run.wall_hours) + (run.clock === "virtual" ? " on this machine, whatever the simulated clock says" : "")], ["seed", run.seed], ["commit", String(found.manifest.git_commit || "").slice(0, 12)],
      ["versions", Object.entries(versions).slice(0, 12).map(([name, value]) => `${name} ${value}`).join(", ")], ["folder", found.path],
    ];
    return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–").map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))]));
  }

  /** What the run and its actors are doing, asked again every few seconds; a file shows what was, and has none. */
  async function now(run) {
    if (!Lab.data.now || !["running", "silent", "gone"].includes(run.status)) return null;
    const section = h("section", { id: "now" });
    async function fill() {
      const found = await Lab.data.now(run.id);
      section.replaceChildren(...(found ? [h("h2", {}, "Now"), ...doing(found)] : []));
    }
    async function again() {
      if (!section.isConnected) return;
      await fill().catch(() => null); // the page says by itself that the server does not answer
      setTimeout(again, NOW_EVERY);
    }
    await fill();
    setTimeout(again, NOW_EVERY);
    return section;
  }

  function doing(found) {
    const seconds = (value) => (value === null ? "–" : value < 60 ? `${Math.round(value)} s` : duration(value / 3600));
    const heard = found.age === null ? "" : `, ${seconds(found.age)} ago`;
    return [
      h("p", {}, `${visible(found.doing)} (process ${visible(found.process)}${heard})`),
      found.gone ? h("p", { class: "problem" }, "Its process is not there any more: scalelab run with --resume goes on with it.") : null,
      ...found.stragglers.map((line) => h("p", { class: "problem" }, `Held up: ${visible(line)}`)),
      ...found.waits.map((line) => h("p", { class: "note" }, `waits for ${visible(line)}`)),
      found.actors.length ? Lab.table("Actors", [
        { title: "actor", cell: (row) => visible(row.name) }, { title: "doing", cell: (row) => visible(row.doing) },
        { title: "for", numeric: true, cell: (row) => seconds(row.seconds), sort: (row) => row.seconds },
        { title: "heard", numeric: true, cell: (row) => seconds(row.silent), sort: (row) => row.silent },
        { title: "weights", numeric: true, cell: (row) => number(row.version) }, { title: "process", cell: (row) => visible(row.process) },
      ], found.actors) : null,
    ].filter(Boolean);
  }

  function timeline(found) {
    if (!found.timeline) return null;
    return h("section", {}, h("h2", {}, "Who waits for whom"), Lab.chart.timeline("Time line", found.timeline).figure);
  }

  function said(found) {
    const list = (title, rows) => (rows.length ? Lab.table(title, [
      { title: "step", numeric: true, cell: (row) => (row.step === null ? "–" : number(row.step)), sort: (row) => row.step },
      { title: "what", cell: (row) => `${row.name} ${row.level}`.trim() },
      { title: title === "Alarms" ? "message" : "how it was noticed", cell: (row) => visible(row.text) },
    ], rows, { plain: true, captioned: true }) : h("p", {}, `${title}: none.`));
    return h("section", {}, h("h2", {}, "Alarms and faults"), list("Alarms", found.alarms), list("Faults and restarts", found.faults));
  }

  function metrics(found) {
    if (!found.panels.length) return h("section", {}, h("h2", {}, "Training"), h("p", { class: "note" }, "This run has no metrics.jsonl."));
    const marks = found.alarms.filter((alarm) => alarm.level === "alarm" && alarm.step !== null).map((alarm) => alarm.step).slice(0, 40);
    const grid = h("div", { class: "grid" });
    const words = new Map(found.panels.map((panel) => [panel.title, [panel.title, ...panel.names].join(" ").toLowerCase().replace(/_/g, " ")]));
    let charts = [];
    const choose = () => charts.forEach((chart) => { chart.figure.hidden = !words.get(chart.name).includes(state.metric.toLowerCase()); });
    function draw() {
      charts = found.panels.map((panel) => Lab.chart.lines(panel.title, panel.lines.map((line) => ({ ...line, y: Lab.smooth(line.y, state.smooth) })), { log: panel.log, marks, dashed: true }));
      choose();
      grid.replaceChildren(...charts.map((chart) => chart.figure));
      if (grid.isConnected) Lab.chart.prune(); // before that, every chart of the view would be let go
    }
    draw();
    const filter = h("input", { type: "search", "aria-label": "Filter metrics", placeholder: "entropy, staleness …", value: state.metric, oninput: (event) => { state.metric = event.target.value; choose(); setTimeout(Lab.chart.redraw); } });
    const heat = found.staleness ? Lab.chart.heat("Staleness of the completions trained on", found.staleness.steps, found.staleness.highest, found.staleness.cells).figure : null;
    return h("section", {}, h("h2", {}, "Training"), h("div", { class: "controls" }, h("label", { class: "field" }, h("span", {}, "Filter"), filter), select("Smoothing", Lab.SMOOTH, state.smooth, (value) => { state.smooth = value; draw(); })), heat,
      grid, found.still.length ? h("p", { class: "note" }, `Zero throughout: ${found.still.join(", ").toLowerCase()}.`) : null);
  }

  function held(found) {
    if (!found.held_out.length) return null;
    return h("section", {}, h("h2", {}, "Held-out evaluations"), h("div", { class: "grid" }, found.held_out.map((panel) => Lab.chart.lines(panel.title, panel.lines, {}).figure)));
  }

  function settings(run, found) {
    const place = h("div");
    const others = state.overview.runs.filter((one) => one.id !== run.id && one.folder);
    async function compare(id) {
      state.other = id;
      if (!id) { place.replaceChildren(); return; }
      const other = await detail(id);
      const names = [...new Set([...Object.keys(found.settings), ...Object.keys(other.settings)])];
      const rows = names.filter((name) => found.settings[name] !== other.settings[name]);
      const name = state.overview.runs.find((one) => one.id === id).name;
      place.replaceChildren(rows.length ? Lab.table(`Settings that differ from ${name}`, [
        { title: "setting", cell: (key) => h("code", {}, key), sort: (key) => key }, { title: run.name, cell: (key) => h("code", {}, found.settings[key] ?? "not set") }, { title: name, cell: (key) => h("code", {}, other.settings[key] ?? "not set") },
      ], rows, { captioned: true }) : h("p", {}, `No setting differs from ${name}.`));
    }
    if (state.other && state.other !== run.id) compare(state.other);
    return h("section", {}, h("h2", {}, "Settings"),
      others.length ? h("div", { class: "controls" }, select("Differences to", [["", "choose a run"], ...others.map((one) => [one.id, one.name])], state.other === run.id ? "" : state.other, compare)) : null, place,
      found.config ? h("details", { class: "fold" }, h("summary", {}, "config.gin"), h("pre", { tabindex: "0" }, visible(found.config))) : null,
      h("details", { class: "fold" }, h("summary", {}, "manifest.json"), h("pre", { tabindex: "0" }, visible(JSON.stringify(found.manifest, null, 2)))));
  }

  Lab.run = { view, detail, forget: () => details.clear() };
})();
