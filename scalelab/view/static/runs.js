// The table of runs: filter, group by recipe, choose some and compare them.
"use strict";
(function () {
  const { h, number, duration, quantity, percent, select, checkbox, button, mark, soon, state } = Lab;

  function view() {
    const place = h("div");
    const text = h("input", { type: "search", value: state.filter.text, placeholder: "name, experiment, setting", "aria-label": "Filter runs by name", oninput: (event) => { state.filter.text = event.target.value; fill(); } });
    const statuses = [...new Set(state.overview.runs.map((run) => run.status))];
    const choose = h("span", { class: "field" });
    function chosen() {
      choose.replaceChildren(
        button(`Compare ${state.selected.size || "the chosen"}`, compare, { disabled: !state.selected.size, class: "primary" }),
        button("Head to head", pair, { disabled: state.selected.size < 2 }),
        button("clear", () => { state.selected.clear(); fill(); }, { disabled: !state.selected.size, class: "quiet small" }));
    }
    function fill() {
      const rows = state.overview.runs.filter(matches);
      chosen();
      place.replaceChildren(state.grouped ? grouped(rows, chosen) : list(rows, chosen), h("p", { class: "note" }, `${rows.length} of ${state.overview.runs.length} ${state.overview.count > state.overview.runs.length ? "sources" : "runs"}.`));
    }
    fill();
    const going = new Set(state.overview.runs.filter((run) => run.progress > 0.02 && run.progress < 1).map((run) => run.group));
    Lab.curves.need([...going].slice(0, 40)).then((came) => came && place.isConnected && fill(), () => null);
    return [h("section", { "aria-labelledby": "runs-title" }, h("h2", { id: "runs-title" }, "Runs"), h("div", { class: "controls" },
      h("label", { class: "field" }, h("span", {}, "Filter"), text),
      select("Status", [["", "any"], ...statuses.map((status) => [status, status])], state.filter.status, (value) => { state.filter.status = value; soon(fill); }),
      checkbox("seeds together", state.grouped, (on) => { state.grouped = on; soon(fill); }), choose), place)];
  }

  function matches(run) {
    const wanted = state.filter.text.toLowerCase();
    const words = [run.name, run.group, run.experiment, run.description, run.status].join(" ").toLowerCase();
    return (!wanted || words.includes(wanted)) && (!state.filter.status || run.status === state.filter.status);
  }

  /** Leave the recipes of the chosen runs in the charts, and go there. */
  function compare() {
    const groups = new Set(state.overview.runs.filter((run) => state.selected.has(run.id)).map((run) => run.group));
    state.begun = true;
    state.hidden = new Set(state.overview.groups.map((group) => group.name).filter((name) => !groups.has(name)));
    location.hash = `#/curves?${new URLSearchParams({ show: Lab.address.list(groups) })}`;
  }

  /** Put the chosen runs against each other: of two recipes one against the other, else the first against the rest. */
  function pair() {
    const runs = state.overview.runs.filter((run) => state.selected.has(run.id));
    const groups = [...new Set(runs.map((run) => run.group))];
    const first = runs.filter((run) => (groups.length > 1 ? run.group === groups[0] : run === runs[0]));
    state.pair = { first: first.map((run) => run.id), second: runs.filter((run) => !first.includes(run)).map((run) => run.id) };
    location.hash = "#/pair";
  }

  function columns(changed, several) {
    const tasks = state.overview.tasks, finished = state.overview.runs.every((run) => run.progress === 1);
    const pick = (row) => h("input", {
      type: "checkbox", checked: row.members.every((run) => state.selected.has(run.id)), "aria-label": `Choose ${row.name}`,
      onchange: (event) => { row.members.forEach((run) => (event.target.checked ? state.selected.add(run.id) : state.selected.delete(run.id))); changed(); },
    });
    return [
      { title: several ? "recipe" : "run", cell: (row) => h("span", { class: "name" }, pick(row), mark(Lab.overview.codeOf(row.group)), several && row.members.length > 1 ? h("span", {}, broken(row.name)) : h("a", { href: Lab.address.of("run", row.members[0].id) }, broken(row.name))), sort: (row) => row.name },
      ...(several ? [{ title: "seeds", cell: (row) => (row.members.length > 1 ? h("span", { class: "seeds" }, row.members.map((run, index) => h("a", { href: Lab.address.of("run", run.id), title: run.name }, run.seed ?? index))) : "1"), sort: (row) => row.members.length }] : []),
      { title: "status", cell: (row) => status(row), sort: (row) => row.members[0].status },
      ...(finished ? [] : [{ title: "progress", cell: (row) => progress(row), sort: (row) => mean(row, (run) => run.progress) }]),
      ...tasks.map((task) => ({ title: task.name || "pass rate", numeric: true, cell: (row) => last(row, task.name), sort: (row) => mean(row, (run) => (run.last[task.name] || [null])[0]) })),
      ...(finished ? [] : tasks).map((task) => ({ title: `${task.name} at the end`, numeric: true, cell: (row) => ending(row, task.name), sort: (row) => endValue(row, task.name) })),
      { title: "compute", numeric: true, cell: (row) => quantity(mean(row, (run) => run.compute), row.members[0].unit), sort: (row) => mean(row, (run) => run.compute) },
      { title: "steps", numeric: true, cell: (row) => number(mean(row, (run) => run.step)), sort: (row) => mean(row, (run) => run.step) },
      { title: "time", numeric: true, cell: (row) => [duration(mean(row, (run) => run.wall_hours)), row.members.some((run) => run.clock === "virtual") ? h("span", { class: "quiet" }, " virtual") : ""], sort: (row) => mean(row, (run) => run.wall_hours) },
      { title: "unusual", numeric: true, cell: (row) => sum(row, (run) => run.unusual.length) || "–", sort: (row) => sum(row, (run) => run.unusual.length) },
      { title: "alarms", numeric: true, cell: (row) => sum(row, (run) => run.alarms) || "–", sort: (row) => sum(row, (run) => run.alarms) },
    ];
  }

  /** A name that wraps between its words. */
  const broken = (name) => name.split(/(?<=[_/])/).map((part) => [part, h("wbr")]);

  const mean = (row, value) => {
    const known = row.members.map(value).filter((one) => one !== null && one !== undefined);
    return known.length ? known.reduce((total, one) => total + one, 0) / known.length : null;
  };
  const sum = (row, value) => row.members.reduce((total, run) => total + value(run), 0);

  function status(row) {
    const counts = new Map();
    for (const run of row.members) counts.set(run.status, (counts.get(run.status) || 0) + 1);
    return [...counts].map(([name, count]) => h("span", { class: `chip status-${name}` }, counts.size > 1 || count > 1 ? `${count} ${name}` : name));
  }

  function progress(row) {
    const share = mean(row, (run) => run.progress);
    if (share === null) return "–";
    return h("span", { class: "progress" }, h("progress", { max: "1", value: share, "aria-label": `Progress of ${row.name}` }), percent(share));
  }

  function last(row, task) {
    const known = row.members.map((run) => run.last[task]).filter(Boolean);
    if (!known.length) return "–";
    const value = known.reduce((total, one) => total + one[0], 0) / known.length;
    return known.length > 1 ? value.toFixed(3) : `${value.toFixed(3)} ± ${(known[0][1] || 0).toFixed(3)}`;
  }

  function endValue(row, task) {
    const fit = Lab.curves.drawable(row.group, task);
    const share = mean(row, (run) => run.progress);
    return fit && share > 0.02 && share < 1 ? Lab.curve.forecast(fit, fit.window[1] / share).value : null;
  }

  /** The forecast of the pass rate when the budget is spent, while a run goes on. */
  function ending(row, task) {
    const value = endValue(row, task);
    return value === null ? "–" : value.toFixed(3);
  }

  function list(runs, changed) {
    const rows = runs.map((run) => ({ name: run.name, group: run.group, members: [run] }));
    return Lab.table("Runs", columns(changed, false), rows, { whole: true });
  }

  function grouped(runs, changed) {
    const groups = new Map();
    for (const run of runs) groups.set(run.group, [...(groups.get(run.group) || []), run]);
    return Lab.table("Runs, seeds together", columns(changed, true), [...groups].map(([name, members]) => ({ name, group: name, members })), { whole: true });
  }

  Lab.runs = { view };
})();
