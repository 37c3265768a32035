// Views by address, the theme, and the live page's questions to the server.
"use strict";
(function () {
  const { h, state, chart } = Lab;
  const content = document.getElementById("content");
  const TABS = [["#/", "Overview"], ["#/runs", "Runs"], ["#/pair", "Head to head"], ["#/run", "Run"], ["#/completions", "Completions"]];
  const [EVERY, SOON] = [2000, 700]; // milliseconds between two questions, and while fits are being made
  let asked = 0;
  let whole = null; // the last overview with all its fits

  async function show() {
    const ticket = ++asked;
    const { parts, query, kind } = Lab.address.read();
    Lab.address.take();
    document.getElementById("tabs").replaceChildren(...TABS.filter(([href]) => (href !== "#/completions" || state.overview.runs.some((run) => run.rollouts)) && (href !== "#/pair" || state.overview.runs.length > 1)).map(([href, name]) =>
      h("a", { href, "aria-current": href.slice(2) === (kind === "overview" || kind === "curves" ? "" : kind) ? "page" : null }, name)));
    let made;
    try {
      if (kind === "runs") made = Lab.runs.view();
      else if (kind === "pair") made = await Lab.pair.view();
      else if (kind === "run") made = await Lab.run.view(Lab.address.find(parts[1])?.id || state.run);
      else if (kind === "completions") made = await Lab.completions.view(Lab.address.find(parts[1])?.id, parts[2], query);
      else made = Lab.overview.view();
    } catch (error) {
      made = [h("p", { class: "problem" }, error.message)];
    }
    if (ticket !== asked) return;
    content.replaceChildren(...made.flat().filter(Boolean));
    chart.prune();
    if (kind === "curves") document.getElementById("curves")?.scrollIntoView();
    Lab.address.put();
    document.body.dataset.view = kind;
    document.body.dataset.shown = String(ticket);
  }

  function header() {
    const all = state.overview;
    document.getElementById("title").textContent = all.title;
    const running = all.runs.filter((run) => run.status === "running").length;
    const parts = [`${all.count} run${all.count === 1 ? "" : "s"}`, all.tasks.map((task) => task.name).filter(Boolean).join(", ")];
    if (Lab.data.live) parts.push(running ? `live: ${running} running` : "live");
    if (all.stage) parts.push(all.stage.doing === "reading" ? "reading" : `fitting: ${all.stage.done} of ${all.stage.total}`);
    if (!Lab.data.live) parts.push(`written ${new Date(all.made * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`);
    document.getElementById("subtitle").textContent = parts.filter(Boolean).join(" · ");
  }

  /** The parts of an overview that its first view is made of: while only the progress changes, the charts stay. */
  function signature(all) {
    return JSON.stringify([all.runs, all.comparisons.map((one) => [one.task, one.entries.length, one.of]), all.axes_known, all.stage ? 0 : all.stamps]);
  }

  /** Ask for what is new; while new evaluations are fitted, the last whole ranking stays. */
  async function refresh() {
    try {
      const fresh = await Lab.data.overview();
      document.body.classList.remove("lost");
      if (fresh) {
        if (fresh.stage && whole && whole.comparisons.length) for (const key of ["answers", "comparisons", "parallel"]) fresh[key] = whole[key];
        const before = state.overview && signature(state.overview);
        state.overview = fresh;
        if (!fresh.stage) whole = fresh;
        Lab.run.forget();
        header();
        const busy = content.contains(document.activeElement) && document.activeElement !== content;
        if (before === signature(fresh)) {
          document.getElementById("answer")?.replaceWith(Lab.overview.answer());
        } else if (before === null || !(busy || ["completions", "pair"].includes(document.body.dataset.view))) {
          const at = window.scrollY;
          const open = [...content.querySelectorAll("details")].map((one) => one.open);
          await show();
          if (before !== null) {
            content.querySelectorAll("details").forEach((one, index) => { if (open[index]) one.open = true; });
            window.scrollTo(0, at);
          }
        } else if (busy) Lab.curves.refresh();
      }
    } catch (error) {
      document.body.classList.add("lost");
      document.getElementById("subtitle").textContent = `The server does not answer (${error.message}); what is shown may be old.`;
    }
    if (Lab.data.live) setTimeout(refresh, state.overview && state.overview.stage ? SOON : EVERY);
  }

  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = Lab.dark() ? "light" : "dark";
    if (state.overview) show();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.overview) show(); });
  window.addEventListener("hashchange", () => { show().then(() => { if (!location.hash.startsWith("#/curves")) window.scrollTo(0, 0); }); });
  Lab.show = show;
  Lab.data = Lab.source();
  refresh();
})();
