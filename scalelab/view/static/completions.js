// Completions: a filtered list, one in full with its tokens shaded, one prompt through the run, two side by side.
"use strict";
(function () {
  const { h, number, percent, select, button, visible, state } = Lab;
  const PAGE = 30;
  const OUTCOMES = [["", "any"], ["passed", "passed"], ["not passed", "not passed"], ["failed", "failed"], ["timeout", "timeout"], ["memory", "memory"], ["error", "error"], ["truncated", "truncated"], ["interrupted", "interrupted"]];
  const SHOWN = 20000;
  let shade = "plain";

  async function view(id, part, query) {
    const runs = state.overview.runs.filter((run) => run.rollouts);
    if (!runs.length) return [h("section", {}, h("h2", {}, "Completions"), h("p", {}, "None of these runs kept completions (rollouts/*.parquet)."))];
    const run = runs.find((one) => one.id === (id || state.run)) || runs[0];
    state.run = run.id;
    const steps = await Lab.data.steps(run.id);
    const pick = select("Run", runs.map((one) => [one.id, one.name]), run.id, (value) => { location.hash = Lab.address.of("completions", value, ...(part ? [part] : [])); });
    const tabs = h("div", { class: "subtabs" }, [["", "Completions"], ["prompts", "Prompts through the run"]].map(([key, name]) =>
      h("a", { href: Lab.address.of("completions", run.id, ...(key ? [key] : [])), "aria-current": (part || "") === key ? "page" : null }, name)));
    const head = h("section", { "aria-labelledby": "completions-title" }, h("h2", { id: "completions-title" }, "Completions"), h("div", { class: "controls" }, pick, tabs),
      Lab.data.sampled ? h("p", { class: "note" }, "This file holds a sample of the completions; the live page (scalelab view) has all.") : null);
    if (!steps.length) return [head, h("p", {}, "No evaluation's completions are there yet.")];
    return part === "prompts" ? [head, await prompts(run, steps, query)] : [head, await list(run, steps, query)];
  }

  /** The list on the left, the chosen completion on the right. */
  async function list(run, steps, query) {
    const filter = { kind: query.get("kind") || "", step: query.get("step") || "", task: query.get("task") || "", outcome: query.get("outcome") || "", prompt: query.get("prompt") || "", text: query.get("text") || "", offset: 0, limit: PAGE };
    const tasks = [...new Set(steps.flatMap((one) => Object.keys(one.tasks)))];
    const kinds = [...new Set(steps.map((one) => one.kind))];
    const items = h("ul", { class: "items" });
    const counts = h("p", { class: "note", role: "status" });
    const detail = h("div", { class: "reading", "aria-live": "polite" });
    const pager = h("div", { class: "controls" });
    const stepChoices = [["", "all"], ...steps.filter((one) => !filter.kind || one.kind === filter.kind).map((one) => [String(one.step), one.step + (one.kind === "step" ? "" : ` (${one.kind})`)])];

    /** Say in the address what is filtered, and the completion that was chosen. */
    function point(row = "") {
      const { kind, step, task, outcome, prompt, text } = filter;
      Lab.address.write(Object.entries({ kind, step, task, outcome, prompt, text, row }));
    }

    async function fill(open = true) {
      const found = await Lab.data.completions(run.id, filter);
      items.replaceChildren(...found.rows.map((row) => h("li", {}, h("button", { type: "button", class: "item", "data-row": row.id, onclick: () => show(row.id) },
        outcome(row), h("span", { class: "quiet" }, ` ${row.task} · ${row.kind === "step" ? "" : row.kind + " "}step ${row.step} · ${number(row.tokens)} tokens${row.truncated ? " · truncated" : ""}${row.interrupted ? " · interrupted" : ""}`),
        h("span", { class: "preview" }, visible(row.prompt)), h("span", { class: "preview quiet" }, visible(row.completion))))));
      const outcomes = Object.entries(found.outcomes).map(([name, count]) => `${count.toLocaleString("en-US")} ${name}`).join(", ");
      counts.textContent = found.total ? `${found.total.toLocaleString("en-US")} completions: ${outcomes}` : "No completion passes these filters.";
      const last = Math.max(0, Math.floor((found.total - 1) / PAGE));
      const at = filter.offset / PAGE;
      pager.replaceChildren(button("← before", () => { filter.offset -= PAGE; fill(); }, { disabled: at === 0 }), h("span", { class: "quiet" }, `${at + 1} of ${last + 1}`),
        button("next →", () => { filter.offset += PAGE; fill(); }, { disabled: at >= last }));
      if (open && found.rows.length) await show(found.rows[0].id, false);
      else if (!found.rows.length) detail.replaceChildren();
    }
    async function show(row, follow = true) {
      if (follow) point(row);
      const found = await Lab.data.completion(run.id, row);
      detail.replaceChildren(...(await reading(run, found, show)));
      items.querySelectorAll(".item").forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.row === row)));
      if (follow && window.innerWidth < 900) detail.scrollIntoView({ block: "start" });
    }
    const change = (name) => (value) => { filter[name] = value; filter.offset = 0; point(); fill(); };
    let timer = null;
    const words = h("input", { type: "search", value: filter.text, placeholder: "in prompt, answer, verdict", "aria-label": "Search in completions", oninput: (event) => { clearTimeout(timer); timer = setTimeout(() => change("text")(event.target.value), 200); } });
    const box = h("section", { class: "browser", "aria-label": "Browser of completions" }, h("div", { class: "controls" },
      kinds.length > 1 ? select("Kind", [["", "all"], ...kinds.map((kind) => [kind, kind === "step" ? "evaluation" : kind])], filter.kind, change("kind")) : null,
      select("Step", stepChoices, filter.step, change("step")), select("Task", [["", "all"], ...tasks.map((task) => [task, task])], filter.task, change("task")),
      select("Outcome", OUTCOMES, filter.outcome, change("outcome")), h("label", { class: "field" }, h("span", {}, "Search"), words),
      filter.prompt ? button(`prompt ${filter.prompt} ×`, () => { location.hash = Lab.address.of("completions", run.id); }, { class: "quiet" }) : null),
      counts, h("div", { class: "split" }, h("div", { class: "side" }, items, pager), detail));
    await fill(!query.get("row"));
    if (query.get("row")) await show(query.get("row"), false);
    return box;
  }

  function outcome(row) {
    const good = row.outcome === "passed";
    return h("span", { class: `chip ${good ? "passed" : row.outcome === "failed" ? "failed" : "other"}` }, good ? "✓ passed" : `✗ ${row.outcome}`);
  }

  /** A completion in full: prompt, thinking, answer, verdict, and the same prompt through the run. */
  async function reading(run, row, show) {
    const through = await Lab.data.prompt(run.id, row.task, row.prompt_id);
    const place = h("div", { class: "compare" });
    const others = state.overview.runs.filter((one) => one.rollouts && one.id !== run.id);
    return [
      h("header", { class: "verdict" }, outcome(row), h("span", { class: "quiet" }, ` ${row.task} · prompt ${visible(row.prompt_id)} · step ${row.step} · ${number(row.tokens)} tokens · reward ${number(row.reward)}`)),
      h("h3", {}, "Prompt"), h("pre", { class: "text", tabindex: "0" }, long(row.prompt)),
      ...answerParts(row), row.remark ? h("p", { class: "note" }, visible(row.remark)) : null,
      ...expected(row),
      h("h3", {}, "Verdict"), h("p", {}, outcome(row), " ", row.detail ? null : "the verifier gave no detail", ...parts(row)), row.detail ? h("pre", { class: "text", tabindex: "0" }, long(row.detail)) : null,
      h("h3", {}, "The same prompt through the run"), history(through, row, show, (id) => beside(place, run, row, run, id)),
      changed(through, row, (id) => beside(place, run, row, run, id)),
      others.length ? h("div", { class: "controls" }, select("Beside another run", [["", "choose"], ...others.map((one) => [one.id, one.name])], "", (id) => other(place, run, row, id))) : null,
      place,
    ].flat().filter(Boolean);
  }

  /** The named parts of a reward. */
  function parts(row) {
    let found = {};
    try { found = JSON.parse(row.parts || "{}") || {}; } catch { return []; } // a stranger's file may hold anything
    return Object.entries(found).slice(0, 20).map(([name, value]) => h("span", { class: "chip" }, `${visible(name)} ${number(value)}`));
  }

  /** Buttons that put the nearest completions of the other outcome beside this one: what changed between two steps. */
  function changed(through, row, put) {
    const [same, evaluations] = [row.outcome === "passed", through.filter((one) => one.kind === row.kind)];
    const other = (list) => list.flatMap((one) => one.rows.map((each) => ({ ...each, step: one.step }))).find((one) => (one.outcome === "passed") !== same);
    const found = [other(evaluations.filter((one) => one.step < row.step).reverse()), other(evaluations.filter((one) => one.step > row.step))].filter(Boolean);
    return found.length ? h("div", { class: "controls" }, found.map((one) => button(`What changed ${one.step < row.step ? "since" : "until"} step ${one.step}, where it ${same ? "did not pass" : "passed"}`, () => put(one.id), { class: "small" }))) : null;
  }

  /** What a right answer is, where the run wrote it down. */
  function expected(row) {
    return row.gold ? [h("h3", {}, "Expected"), h("pre", { class: "text", tabindex: "0" }, long(row.gold))] : [];
  }

  function long(text) {
    const all = visible(text ?? "");
    if (all.length <= SHOWN) return all;
    const rest = h("span", {}, all.slice(0, SHOWN), "… ", button(`show ${number(all.length - SHOWN)} more characters`, () => rest.replaceWith(all), { class: "quiet small" }));
    return rest;
  }

  /** Thinking and answer; the tokens shaded where the run kept them. */
  function answerParts(row) {
    const text = row.completion || "";
    const tokens = tokenList(row);
    const out = h("div");
    function fill() {
      if (tokens && shade !== "plain") { out.replaceChildren(shaded(row, tokens)); return; }
      const close = text.indexOf("</think>");
      if (close < 0) { out.replaceChildren(h("h3", {}, "Completion"), h("pre", { class: "text", tabindex: "0" }, text ? long(text) : "(empty)")); return; }
      out.replaceChildren(h("h3", {}, "Thinking"), h("pre", { class: "text thinking", tabindex: "0" }, long(text.slice(0, close + 8))), h("h3", {}, "Answer"), h("pre", { class: "text", tabindex: "0" }, long(text.slice(close + 8).replace(/^\n/, ""))));
    }
    fill();
    if (!tokens) return [out];
    const choices = [["plain", "nothing"], row.logprobs && ["logprob", "log-probability"], row.trainer_logprobs && ["gap", "generator–trainer gap"], (row.spans || []).length && ["version", "policy version"]].filter(Boolean);
    if (!choices.some(([key]) => key === shade)) shade = "plain";
    return [h("div", { class: "controls" }, select("Shade tokens by", choices, shade, (value) => { shade = value; fill(); })), out];
  }

  /** What is known of each token: {text, logprob, gap, version, forced}. */
  function tokenList(row) {
    const count = (row.pieces || row.token_ids || row.logprobs || []).length;
    if (!count) return null;
    const versions = new Array(count).fill(null);
    for (const span of row.spans || []) for (let at = span[1]; at < Math.min(span[2], count); at += 1) versions[at] = span[0];
    return Array.from({ length: count }, (_, at) => {
      const [mine, trainers] = [(row.logprobs || [])[at] ?? null, (row.trainer_logprobs || [])[at] ?? null];
      return { text: row.pieces ? row.pieces[at] : null, id: (row.token_ids || [])[at], logprob: mine, gap: mine === null || trainers === null ? null : Math.abs(trainers - mine), version: versions[at], forced: Boolean((row.forced || [])[at]) };
    });
  }

  function shaded(row, tokens) {
    const versions = [...new Set(tokens.map((token) => token.version).filter((one) => one !== null))];
    const color = (token) => {
      if (shade === "logprob" && token.logprob !== null) return `rgba(213, 94, 0, ${Math.min(0.75, -token.logprob / 6)})`;
      if (shade === "gap" && token.gap !== null) return `rgba(122, 61, 184, ${Math.min(0.75, token.gap / 0.5)})`;
      if (shade === "version" && token.version !== null) return ["rgba(0,114,178,.18)", "rgba(230,159,0,.32)", "rgba(0,158,115,.25)", "rgba(204,121,167,.32)"][versions.indexOf(token.version) % 4];
      return "transparent";
    };
    const say = (token, at) => [`token ${at}`, token.id === undefined ? "" : `id ${token.id}`, token.logprob === null ? "" : `log-prob ${token.logprob.toFixed(3)} (${percent(Math.exp(token.logprob))})`, token.gap === null ? "" : `gap ${token.gap.toFixed(4)}`, token.version === null ? "" : `version ${token.version}`, token.forced ? "forced" : ""].filter(Boolean).join(" · ");
    const marks = tokens.map((token, at) => h("span", { class: token.forced ? "token forced" : "token", style: { background: color(token) }, title: say(token, at) }, token.text === null ? "▯" : visible(token.text)));
    const key = shade === "version" ? `Versions ${versions.join(", ")}: a new shade where new weights arrived in flight.` : shade === "gap" ? "Darker: generator and trainer differ more (full at 0.5 nats)." : "Darker: less likely (full at −6 nats).";
    return h("div", {}, h("h3", {}, "Completion by token"), h("pre", { class: "text tokens", tabindex: "0" }, marks), row.pieces ? null : h("pre", { class: "text", tabindex: "0" }, long(row.completion)),
      h("p", { class: "note" }, key, tokens.some((token) => token.forced) ? " Underlined: forced by the interruption." : ""));
  }

  /** The outcomes of a prompt at every step; a click puts one of them beside. */
  function history(through, row, show, put) {
    return h("ol", { class: "history" }, through.map((one) => h("li", {}, h("span", { class: "quiet" }, `${one.kind === "step" ? "" : one.kind + " "}${one.step}`),
      one.rows.map((other, index) => h("button", {
        type: "button", class: `dot ${other.outcome === "passed" ? "passed" : "failed"}`, "aria-pressed": String(other.id === row.id), "aria-label": `step ${one.step}, completion ${index + 1}: ${other.outcome}; put beside`, title: `${other.outcome}: put beside`,
        onclick: () => (other.id === row.id ? show(row.id) : put(other.id)),
      }, other.outcome === "passed" ? "✓" : "✗")))));
  }

  async function other(place, run, row, id) {
    if (!id) { place.replaceChildren(); return; }
    const found = await Lab.data.prompt(id, row.task, row.prompt_id);
    const there = found.find((one) => one.step === row.step && one.kind === row.kind) || found[found.length - 1];
    const name = state.overview.runs.find((one) => one.id === id);
    if (!there) { place.replaceChildren(h("p", { class: "note" }, `${name.name} has no completion of this prompt${Lab.data.sampled ? " in this file" : ""}.`)); return; }
    await beside(place, run, row, name, there.rows[0].id);
  }

  /** Two completions of one prompt, side by side; the words that differ are marked. */
  async function beside(place, run, row, otherRun, id) {
    const second = await Lab.data.completion(otherRun.id, id);
    const [left, right] = differ(row.completion || "", second.completion || "");
    const side = (of, which, parts) => h("div", {}, h("h4", {}, `${of.name}, step ${which.step} `, outcome(which)), h("pre", { class: "text", tabindex: "0" }, parts), which.detail ? h("p", { class: "note" }, visible(which.detail)) : null);
    place.replaceChildren(h("div", { class: "pair" }, side(run, row, left), side(otherRun, second, right)), button("close", () => place.replaceChildren(), { class: "quiet small" }));
    place.scrollIntoView({ block: "nearest" });
  }

  /** The words of two texts, those marked that are not in a longest common subsequence of both. */
  function differ(first, second) {
    const words = (text) => text.slice(0, 6000).match(/\s+|[\w.]+|[^\w\s]/g) || [];
    const [a, b] = [words(first), words(second)];
    const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    const [left, right] = [[], []];
    const changed = (word) => h("mark", {}, visible(word));
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { left.push(visible(a[i])); right.push(visible(b[j])); i += 1; j += 1; }
      else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) { left.push(changed(a[i])); i += 1; }
      else { right.push(changed(b[j])); j += 1; }
    }
    return [left, right];
  }

  /** Every prompt at every evaluation: how many of its completions passed; those that changed most first. */
  async function prompts(run, steps, query) {
    const evaluations = steps.filter((one) => one.kind === "step");
    const tasks = [...new Set(evaluations.flatMap((one) => Object.keys(one.tasks)))];
    const numbers = evaluations.map((one) => one.step);
    const second = query.get("second") || "";
    const before = second ? numbers[Math.max(0, numbers.indexOf(Number(second)) - 1)] : "";
    const filter = { task: query.get("task") || "", first: String(query.get("first") || before), second };
    const place = h("div");
    const choices = (word) => [["", word], ...numbers.map((step) => [String(step), String(step)])];
    async function fill() {
      const found = await Lab.data.prompts(run.id, filter);
      const shown = columns(found.steps, found.first, found.second);
      const head = `${found.fell} prompts pass less often at step ${found.second} than at step ${found.first}, ${found.rose} more often. Those that fell come first, then those that rose.`;
      const cells = shown.map((step) => {
        const at = found.steps.indexOf(step);
        return { title: String(step), numeric: true, cell: (row) => cell(run, row, step, at, step === found.first || step === found.second) };
      });
      place.replaceChildren(h("p", { role: "status" }, head), Lab.table("Passes of each prompt at every evaluation", [
        { title: "prompt", cell: (row) => h("span", { class: "prompt", title: visible(row.prompt || row.prompt_id) }, visible(row.prompt || row.prompt_id)) }, { title: "task", cell: (row) => row.task }, ...cells,
      ], found.rows));
    }
    const change = (name) => (value) => { filter[name] = value; Lab.address.write(Object.entries(filter)); fill(); };
    await fill();
    return h("section", { "aria-label": "Prompts through the run" }, h("div", { class: "controls" }, select("Task", [["", "all"], ...tasks.map((task) => [task, task])], filter.task, change("task")),
      select("From step", choices("the first"), filter.first, change("first")), select("to step", choices("the last"), filter.second, change("second"))), place);
  }

  /** At most 16 steps: the two that are compared, and others evenly. */
  function columns(steps, first, second) {
    if (steps.length <= 16) return steps;
    const chosen = new Set([first, second]);
    for (let index = 0; index < 14; index += 1) chosen.add(steps[Math.round((index * (steps.length - 1)) / 13)]);
    return steps.filter((step) => chosen.has(step));
  }

  function cell(run, row, step, at, compared) {
    const [passed, n] = [row.passed[at], row.n[at]];
    if (!n) return "";
    const share = passed / n;
    const address = `${Lab.address.of("completions", run.id)}?${new URLSearchParams({ task: row.task, prompt: row.prompt_id, step })}`;
    return h("a", { href: address, class: compared ? "heat compared" : "heat", style: Lab.heat(share), title: `step ${step}: ${passed} of ${n} passed` }, `${passed}/${n}`);
  }

  /** A completion of one prompt by each of two runs, at their last evaluations. */
  async function together(place, first, second, task, prompt) {
    const [one, two] = await Promise.all([first, second].map((run) => Lab.data.prompt(run.id, task, prompt)));
    const last = (found) => found.filter((each) => each.kind === "step").at(-1);
    if (!last(one) || !last(two)) { place.replaceChildren(h("p", { class: "note" }, "This file does not hold their completions of that prompt.")); return; }
    const row = await Lab.data.completion(first.id, last(one).rows[0].id);
    await beside(place, first, row, second, last(two).rows[0].id);
    place.prepend(h("h3", {}, "Prompt"), h("pre", { class: "text", tabindex: "0" }, long(row.prompt)), ...expected(row));
  }

  Lab.completions = { view, together };
})();
