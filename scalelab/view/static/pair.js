// Head to head: two recipes, or sets of runs pooled by hand: verdict, curves, settings that differ, prompts that differ.
"use strict";
(function () {
  const { h, number, percent, quantity, select, checkbox, button, mark, visible, state } = Lab;
  const SIDES = ["first", "second"];
  const runOf = (id) => state.overview.runs.find((run) => run.id === id);
  const membersOf = (group) => state.overview.runs.filter((run) => run.group === group);

  /** The recipe whose runs are exactly those of a side, or null. */
  function whole(ids) {
    const group = ids.length ? runOf(ids[0]).group : null;
    return group !== null && membersOf(group).length === ids.length && ids.every((id) => runOf(id).group === group) ? group : null;
  }

  function title(ids) {
    const groups = [...new Set(ids.map((id) => runOf(id).group))];
    if (whole(ids)) return groups[0];
    return groups.map((group) => `${group} (${ids.filter((id) => runOf(id).group === group).length} of ${membersOf(group).length} seeds)`).join(" + ");
  }

  /** The two sides: as chosen, else the two that lead. */
  function sides() {
    const ranked = state.overview.comparisons.length ? state.overview.comparisons[0].entries.map((entry) => entry.run) : state.overview.groups.map((group) => group.name);
    SIDES.forEach((side, place) => {
      state.pair[side] = state.pair[side].filter(runOf);
      const other = whole(state.pair[SIDES[1 - place]]);
      if (!state.pair[side].length) state.pair[side] = membersOf(ranked.find((name) => name !== other && membersOf(name).length) || state.overview.groups[0].name).map((run) => run.id);
    });
  }

  async function view() {
    const groups = state.overview.groups.filter((group) => membersOf(group.name).length);
    if (state.overview.runs.length < 2) return [h("section", {}, h("h2", {}, "Head to head"), h("p", {}, state.overview.count > 1 ? "All runs are in one file: give each a file of its own." : "There is one run alone."))];
    sides();
    const place = h("div");
    const choose = (side) => {
      const ids = state.pair[side];
      const own = [...new Set(ids.map((id) => runOf(id).group))];
      const seeds = own.flatMap((group) => (membersOf(group).length > 1 || own.length > 1 ? membersOf(group) : []));
      const pick = (run) => checkbox(run.name, ids.includes(run.id), (on) => { set(side, on ? [...ids, run.id] : ids.filter((id) => id !== run.id)); });
      const more = groups.filter((group) => !own.includes(group.name));
      return h("div", { class: "side-of-pair" }, select(side === "first" ? "First" : "Second", groups.map((group) => [group.name, group.name]), own[0], (name) => set(side, membersOf(name).map((run) => run.id))),
        Lab.data.live ? Lab.fold("Choose and pool runs", () => [h("div", { class: "controls" }, seeds.map(pick)), more.length ? select("Pool with", [["", "choose"], ...more.map((group) => [group.name, group.name])], "", (name) => name && set(side, [...ids, ...membersOf(name).map((run) => run.id)])) : null], "") : null);
    };
    const set = (side, ids) => { if (ids.length) state.pair[side] = ids; Lab.show(); };
    const swap = button("swap", () => { [state.pair.first, state.pair.second] = [state.pair.second, state.pair.first]; Lab.show(); }, { class: "quiet small" });
    const head = h("section", { "aria-labelledby": "pair-title" }, h("h2", { id: "pair-title" }, `${title(state.pair.first)} against ${title(state.pair.second)}`),
      h("div", { class: "controls" }, SIDES.map(choose), swap), place);
    const found = await held(state.pair.first, state.pair.second).catch((error) => ({ problem: error.message }));
    if (found.problem) place.append(h("p", { class: "problem" }, visible(found.problem)));
    else if (found.tasks.length) place.append(...found.tasks.map(verdict));
    else place.append(h("p", { class: "note" }, "No task has a fit on both sides: three evaluations and a rise or a fall are needed."));
    return [head, found.problem ? null : curves(found), settings(), await prompts(), notes()];
  }

  /** What is known of two sides: {names, tasks: [{task, sentence, header, rows}]}; whole recipes are in the page already. */
  async function held(first, second) {
    const names = [whole(first), whole(second)];
    if (names[0] === names[1] && names[0] !== null) throw new Error("Choose two that differ.");
    const together = state.overview.comparisons.filter((one) => names.every((name) => one.entries.some((entry) => entry.run === name)));
    if (names.every(Boolean) && (together.length || !Lab.data.live)) {
      if (!together.length) throw new Error("These two are not compared: at least one of them carries no fit.");
      await Lab.curves.need(names);
      const tasks = await Promise.all(together.map(async (one) => {
        const table = (await Lab.data.comparison(one.task)).against[names[1]];
        const rows = names.map((name) => table.rows.find((row) => row.run === name));
        return { task: one.task, at: one.at, unit: one.unit, header: table.short_header, rows, family: one.entries.length };
      }));
      return { names, tasks };
    }
    const found = await Lab.data.pair(first, second);
    Lab.curves.adopt(found.curves);
    return { names: found.names, tasks: found.tasks };
  }

  const SAID = {
    better: (a, b) => `${a} is better than ${b}`, worse: (a, b) => `${a} is worse than ${b}`, equal: (a, b) => `${a} and ${b} are equal`,
    unstable: (a, b) => `${a} falls more often than ${b}, so no verdict holds`, "cannot tell": (a, b) => `It cannot be told whether ${a} or ${b} is better`,
  };

  /** The verdict on one task in a sentence, and its two rows. */
  function verdict(one) {
    const [a, b] = one.rows;
    const why = /\((.*)\)$/.exec(a.verdict_text);
    const rates = a.measured !== null && b.measured !== null ? ` Measured: ${a.measured.toFixed(3)} against ${b.measured.toFixed(3)}.` : "";
    const columns = one.header.map((head, index) => ({ title: head, numeric: !["run", "verdict"].includes(head), cell: (row) => row.short_cells[index] }));
    return h("div", { class: "verdict-of-pair" }, h("h3", {}, one.task || "pass rate"),
      h("p", {}, `${SAID[a.verdict](a.run, b.run)} at ${quantity(one.at, one.unit)}${why ? ` (${why[1]})` : ""}.${rates}`),
      Lab.table(`${one.task}: the two recipes`, columns, one.rows),
      one.family > 2 ? h("p", { class: "note" }, `The word holds for all ${one.family} recipes together, against ${b.run}.`) : null);
  }

  function curves(found) {
    const codes = state.overview.groups;
    const shown = found.names.map((name, index) => ({ ...(codes.find((group) => group.name === name) || codes[index]), name }));
    const charts = state.overview.tasks.map((task) => Lab.curves.taskChart(task, () => shown, Lab.narrow() ? 280 : 360, true).figure);
    return h("section", { "aria-labelledby": "pair-curves" }, h("h2", { id: "pair-curves" }, "Curves"), h("p", {}, shown.map((one) => [mark(one), one.name, " "])), h("div", { class: charts.length > 1 ? "pair" : "single" }, charts));
  }

  function settings() {
    const [a, b] = SIDES.map((side) => runOf(state.pair[side][0]).group);
    const rows = state.overview.differences.filter((row) => row.values[a] !== row.values[b]);
    const cell = (name) => (row) => h("code", {}, row.values[name] ?? "not set");
    return h("section", { "aria-labelledby": "pair-settings" }, h("h2", { id: "pair-settings" }, `Settings that differ (${rows.length})`), rows.length ? Lab.table("Settings of the two that differ", [
      { title: "setting", cell: (row) => h("code", {}, row.name), sort: (row) => row.name }, { title: a, cell: cell(a) }, { title: b, cell: cell(b) }], rows) : h("p", {}, "None, seeds apart."));
  }

  /** The prompts on which the two differ most at their last evaluation; a click shows a completion of each side by side. */
  async function prompts() {
    const [first, second] = SIDES.map((side) => state.pair[side].filter((id) => runOf(id).rollouts));
    if (!first.length || !second.length) return null;
    const found = await Lab.data.between(first, second);
    if (!found.rows.length && !(found.paired || []).length) return null;
    const place = h("div", { class: "compare" });
    const cell = (counts) => h("span", { class: "heat", style: Lab.heat(counts[0] / counts[1]) }, `${counts[0]}/${counts[1]}`);
    const show = (row) => Lab.completions.together(place, runOf(first[0]), runOf(second[0]), row.task, row.prompt_id);
    return h("section", { "aria-labelledby": "pair-prompts" }, h("h2", { id: "pair-prompts" }, "Prompts on which they differ most"),
      (found.paired || []).map((said) => h("p", {}, visible(said))),
      h("p", { class: "note" }, `Of ${number(found.common)} prompts that both answered at their last evaluation.`),
      Lab.table("Prompts on which the two differ most", [
        { title: "prompt", cell: (row) => button(visible(row.prompt || row.prompt_id), () => show(row), { class: "quiet small prompt", title: visible(row.prompt || row.prompt_id) }) },
        { title: "task", cell: (row) => row.task }, { title: title(state.pair.first), numeric: true, cell: (row) => cell(row.first) }, { title: title(state.pair.second), numeric: true, cell: (row) => cell(row.second) },
      ], found.rows), place);
  }

  function notes() {
    const noted = SIDES.flatMap((side) => state.pair[side]).map(runOf).filter((run) => run.note);
    return noted.length ? h("section", { "aria-labelledby": "pair-notes" }, h("h2", { id: "pair-notes" }, "Notes"), noted.map((run) => h("p", {}, h("a", { href: Lab.address.of("run", run.id) }, run.name), `: ${visible(run.note)}`))) : null;
  }

  Lab.pair = { view, whole, membersOf };
})();
