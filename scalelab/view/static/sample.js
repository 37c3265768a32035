// The data of a page that is one file: the same questions as the server answers, over the completions that were sampled.
"use strict";
(function () {
  Lab.fileSource = function (data) {
    const kept = (id) => (data.completions && data.completions[id]) || [];
    const preview = (text) => String(text || "").slice(0, 160);
    const matches = (row, f) =>
      (!f.kind || row.kind === f.kind) && (f.step === null || f.step === undefined || f.step === "" || row.step === Number(f.step)) &&
      (!f.task || row.task === f.task) && (!f.prompt || row.prompt_id === f.prompt) && outcome(row, f.outcome) &&
      (!f.text || [row.completion, row.prompt, row.detail].some((text) => String(text || "").toLowerCase().includes(f.text.toLowerCase())));
    const outcome = (row, wanted) => {
      if (!wanted) return true;
      if (wanted === "truncated" || wanted === "interrupted") return Boolean(row[wanted]);
      return wanted === "not passed" ? row.outcome !== "passed" : row.outcome === wanted;
    };
    const count = (rows) => rows.reduce((counts, row) => ({ ...counts, [row.outcome]: (counts[row.outcome] || 0) + 1 }), {});
    const bySteps = (rows) => {
      const found = new Map();
      for (const row of rows) {
        const key = row.kind + row.step;
        if (!found.has(key)) found.set(key, { kind: row.kind, step: row.step, rows: [] });
        found.get(key).rows.push(row);
      }
      return [...found.values()].sort((a, b) => a.step - b.step);
    };
    return {
      live: false,
      sampled: true,
      async overview() { return data.overview; },
      async curves(places) {
        const names = places.map((place) => data.overview.groups[place].name);
        return Object.fromEntries(names.map((name) => [name, data.curves[name]]));
      },
      async comparison(task) {
        if (!data.comparisons[task]) throw new Error("this file holds no comparison of that task");
        return data.comparisons[task];
      },
      async pair() { throw new Error("this file holds whole recipes; the live page (scalelab view) pools by hand"); },
      async between(first, second) {
        const tally = (ids) => {
          const found = new Map();
          for (const id of ids) {
            const table = data.prompts && data.prompts[id];
            if (!table || !table.rows.length) continue;
            const at = table.steps.length - 1;
            for (const row of table.rows) {
              const key = JSON.stringify([row.task, row.prompt_id]);
              const sum = found.get(key) || { ...row, counts: [0, 0] };
              found.set(key, { ...sum, counts: [sum.counts[0] + row.passed[at], sum.counts[1] + row.n[at]] });
            }
          }
          return found;
        };
        const [a, b] = [tally(first), tally(second)];
        const share = ([passed, n]) => passed / n;
        const rows = [...a].filter(([key, one]) => b.has(key) && one.counts[1] && b.get(key).counts[1])
          .map(([key, one]) => ({ task: one.task, prompt_id: one.prompt_id, prompt: one.prompt, first: one.counts, second: b.get(key).counts }));
        rows.sort((x, y) => Math.abs(share(y.first) - share(y.second)) - Math.abs(share(x.first) - share(x.second)));
        return { rows: rows.slice(0, 20), common: rows.length };
      },
      async run(id) {
        if (!data.details[id]) throw new Error("this file does not hold that run");
        return data.details[id];
      },
      async steps(id) {
        return bySteps(kept(id)).map((group) => {
          const tasks = {};
          for (const row of group.rows) (tasks[row.task] = tasks[row.task] || []).push(row);
          return { kind: group.kind, step: group.step, rows: group.rows.length, tasks: Object.fromEntries(Object.entries(tasks).map(([name, rows]) => [name, count(rows)])) };
        });
      },
      async completions(id, filter) {
        const rows = kept(id).filter((row) => matches(row, filter));
        const page = rows.slice(filter.offset || 0, (filter.offset || 0) + (filter.limit || 50));
        return { total: rows.length, outcomes: count(rows), rows: page.map((row) => ({ ...row, prompt: preview(row.prompt), completion: preview(row.completion) })) };
      },
      async completion(id, row) {
        const found = kept(id).find((one) => one.id === row);
        if (!found) throw new Error("this file does not hold that completion");
        return found;
      },
      async prompt(id, task, prompt) {
        return bySteps(kept(id).filter((row) => row.task === task && row.prompt_id === prompt))
          .map((group) => ({ ...group, rows: group.rows.map((row) => ({ id: row.id, outcome: row.outcome })) }));
      },
      async prompts(id, filter) {
        const table = (data.prompts && data.prompts[id]) || { steps: [], rows: [] };
        const rows = table.rows.filter((row) => !filter.task || row.task === filter.task);
        const known = (value) => value !== null && value !== undefined && value !== "" && table.steps.includes(Number(value));
        const first = known(filter.first) ? Number(filter.first) : table.steps[0];
        const second = known(filter.second) ? Number(filter.second) : table.steps[table.steps.length - 1];
        const share = (row, step) => { const at = table.steps.indexOf(step); return row.n[at] ? row.passed[at] / row.n[at] : 0; };
        const change = (row) => share(row, second) - share(row, first);
        const fell = rows.filter((row) => change(row) < 0).length;
        const order = (row) => (change(row) < 0 ? change(row) - 2 : change(row) > 0 ? -change(row) : 1);
        const sorted = [...rows].sort((a, b) => order(a) - order(b));
        return { steps: table.steps, first: first ?? null, second: second ?? null, fell, rose: rows.filter((row) => change(row) > 0).length, rows: sorted.slice(0, 60) };
      },
    };
  };
})();
