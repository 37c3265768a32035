// The address of a view: what the visitor chose stands behind the hash, so that a link shows the same to another.
"use strict";
(function () {
  const { state } = Lab;
  const flag = (name, usual) => ({ read: (text) => { state[name] = text === null ? usual : text === "1"; }, write: () => (state[name] === usual ? null : state[name] ? "1" : "0") });
  const text = (name) => ({ read: (value) => { state[name] = value ?? ""; }, write: () => state[name] || null });
  const part = (name) => ({ read: (value) => { state.filter[name] = value ?? ""; }, write: () => state.filter[name] || null });
  const list = (names) => [...names].map(encodeURIComponent).join(",");
  const names = (value) => value.split(",").filter(Boolean).map(plain);
  const groups = () => state.overview.groups.map((group) => group.name);
  const shown = () => groups().filter((name) => !state.hidden.has(name));

  /** What each view puts into its address; a part that is as at first is left out. */
  const FIELDS = {
    x: { read: (value) => { state.x = Lab.curves.choices().some(([key]) => key === value) ? value : "compute"; }, write: () => (state.x === "compute" ? null : state.x) },
    baseline: text("baseline"), smooth: text("smooth"), metric: text("metric"), log: flag("log", false), points: flag("points", true), bands: flag("bands", null), target: text("target"),
    budget: { read: (value) => { state.budget = Number(value) > 0 ? Number(value) : null; }, write: () => (state.budget ? String(Number(state.budget.toPrecision(4))) : null) },
    tasks: { read: (value) => { state.tasks = value === null ? null : new Set(names(value)); }, write: () => (state.tasks ? list(state.tasks) : null) },
    show: {
      read: (value) => {
        if (value === null) return;
        const chosen = new Set(names(value));
        state.begun = true;
        state.hidden = new Set(groups().filter((name) => !chosen.has(name)));
      },
      write: () => (state.atFirst === undefined || list(shown()) === state.atFirst ? null : list(shown())),
    },
    filter: part("text"), status: part("status"), together: flag("grouped", true),
    chosen: {
      read: (value) => { if (value !== null) state.selected = new Set(names(value).map((one) => find(one)?.id).filter(Boolean)); },
      write: () => (state.selected.size ? [...state.selected].map(name).join(",") : null),
    },
    against: { read: (value) => { state.other = value === null ? "" : find(value)?.id ?? ""; }, write: () => (state.other ? decodeURIComponent(name(state.other)) : null) },
  };
  for (const side of ["first", "second"]) FIELDS[side] = { read: (value) => { state.pair[side] = value === null ? [] : members(value); }, write: () => (state.pair[side].length ? written(state.pair[side]) : null) };
  const CHARTS = ["x", "log", "points", "bands", "smooth", "tasks", "budget", "target", "show", "baseline"];
  const VIEWS = { overview: CHARTS, curves: CHARTS, runs: ["filter", "status", "together", "chosen"], run: ["against", "smooth", "metric"], pair: ["first", "second"] };

  /** The runs of one side of a pair: those of a recipe, or those that are named. */
  function members(value) {
    const named = names(value);
    const group = named.length === 1 && groups().includes(named[0]) ? Lab.pair.membersOf(named[0]) : [];
    return group.length ? group.map((run) => run.id) : named.map((one) => find(one)?.id).filter(Boolean);
  }

  function written(ids) {
    const group = Lab.pair.whole(ids);
    return group === null ? ids.map(name).join(",") : list([group]);
  }

  /** A run by its name, as addresses have it, or by its place in this page. */
  function find(wanted) {
    return state.overview.runs.find((run) => run.name === wanted) || state.overview.runs.find((run) => run.id === wanted);
  }

  /** The name of a run for an address. */
  function name(id) {
    const run = state.overview.runs.find((one) => one.id === id);
    return encodeURIComponent(run && find(run.name) === run ? run.name : id);
  }

  /** The address of a view of a run. */
  function of(kind, id, ...more) {
    return [`#/${kind}/${name(id)}`, ...more].join("/");
  }

  /** The parts of the present address, decoded, and its query. */
  function read() {
    const [path, query] = location.hash.slice(1).split("?");
    const parts = path.split("/").filter(Boolean).map(plain);
    return { parts, query: new URLSearchParams(query || ""), kind: parts[0] || "overview" };
  }

  function plain(value) {
    try { return decodeURIComponent(value); } catch { return value; } // a stranger's address may hold anything
  }

  /** Take what the address says into the state, before a view is made; one that says nothing changes nothing. */
  function take() {
    const { query, kind } = read();
    if (!query.size) return;
    for (const field of VIEWS[kind] || []) FIELDS[field].read(query.get(field));
  }

  /** Put the state into the address, without a new entry in the browser's history. */
  function put() {
    if (!state.overview) return;
    const fields = VIEWS[read().kind];
    if (fields) write(fields.map((field) => [field, FIELDS[field].write()]));
  }

  /** Put pairs of names and values into the address; empty values are left out. */
  function write(pairs) {
    const wanted = new URLSearchParams(pairs.filter(([, value]) => value !== null && value !== undefined && value !== ""));
    const hash = (location.hash.split("?")[0] || "#/") + (wanted.size ? `?${wanted}` : "");
    if (hash !== (location.hash || "#/")) history.replaceState(null, "", hash);
  }

  /** Remember what is shown before the visitor chooses. */
  function begin() {
    state.atFirst = list(shown());
  }

  for (const kind of ["change", "input", "click", "dblclick"]) document.addEventListener(kind, () => setTimeout(put));

  Lab.address = { read, take, put, write, list, begin, find, of };
})();
