// Elements, numbers, state and data of the page. Text from runs only ever becomes a text node, never HTML.
"use strict";
window.Lab = {};

(function () {
  const SVG = new Set(["svg", "path", "g", "circle", "rect", "line", "text"]);

  /** An element: h("p", {class: "note", onclick: f}, "text", child, [more]). */
  function h(tag, attributes, ...children) {
    const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(element.style, value);
      else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
      else element.setAttribute(name, value === true ? "" : value);
    }
    append(element, children);
    return element;
  }

  function append(element, children) {
    for (const child of children) {
      if (Array.isArray(child)) append(element, child);
      else if (child !== null && child !== undefined && child !== false) element.append(child.nodeType ? child : String(child));
    }
  }

  /** Text with invisible and direction-changing characters made visible, so that it shows what is really there. */
  function visible(text) {
    return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g,
      (character) => "⟨" + character.codePointAt(0).toString(16).padStart(4, "0") + "⟩");
  }

  /** A number as people read it, with so many significant digits. */
  function number(value, digits = 3) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    const size = Math.abs(value);
    const minus = value < 0 ? "−" : "";
    if (size === 0) return "0";
    if (size >= 1e15 || size < 1e-4) {
      const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
      return `${minus}${mantissa}·10${superscript(Number(exponent))}`;
    }
    for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= limit) return minus + trim((size / (unit === "k" ? 1e3 : limit)).toPrecision(digits)) + unit;
    }
    if (size >= 1000) return minus + fixed(size, 0);
    return minus + trim(size.toPrecision(digits));
  }

  function trim(text) {
    if (text.includes("e")) return String(Number(text));
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }

  function superscript(value) {
    return String(value).replace(/./g, (sign) => ({ "-": "⁻" }[sign] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(sign)]));
  }

  /** A value with its interval, as the terminal prints it: two digits of the interval's width. */
  function interval(value, ends, digits) {
    if (value === null || value === undefined) return "–";
    if (!ends) return number(value);
    const known = ends.filter((end) => end !== null), far = Math.max(0, ...known.map((end) => Math.abs(end - value)));
    const largest = Math.max(...[value, ...known].map(Math.abs));
    if (known.length && !far) return number(value);
    const decimals = digits ?? (far ? Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(2 * far)))) : 3);
    const show = (one) => (largest >= 1e9 || (far && far < 5e-6) ? number(one) : fixed(one, decimals));
    return `${show(value)} [${ends.map((end) => (end === null ? "…" : show(end))).join(", ")}]`;
  }

  const formats = new Map(); // a formatter takes longer to make than a thousand numbers to format

  function fixed(value, decimals) {
    if (!formats.has(decimals)) formats.set(decimals, new Intl.NumberFormat("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
    const text = formats.get(decimals).format(Math.abs(value));
    return (value < 0 && /[1-9]/.test(text) ? "−" : "") + text;
  }

  function signed(value, decimals = 3) {
    if (value === null || value === undefined) return "–";
    return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(decimals);
  }

  /** A probability: a share of finitely many draws is never said to be certain. */
  function chance(share) {
    if (share === null || share === undefined) return "–";
    if (share > 0.99) return ">99%";
    if (share < 0.01) return "<1%";
    return percent(share);
  }

  function percent(share) {
    if (share === null || share === undefined) return "–";
    if (share > 0.995 && share < 1) return ">99%";
    if (share < 0.005 && share > 0) return "<1%";
    return `${Math.round(share * 100)}%`;
  }

  /** Compute with its unit; small parts of an hour in minutes. */
  function quantity(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit && unit.endsWith("-hours") && value > 0 && value < 0.5) return `${number(value * 60)} ${unit.replace("hours", "minutes")}`;
    return `${number(value)} ${unit || ""}`.trim();
  }

  function duration(hours) {
    if (hours === null || hours === undefined) return "–";
    const minutes = Math.round(hours * 60);
    if (minutes < 60) return `${minutes} min`;
    return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${number(hours / 24)} days`;
  }

  const MOST = 300; // rows of a table that are made before all are asked for

  /** A table. Columns: {title, cell(row) → text or element, sort(row) → value, numeric}. */
  function table(caption, columns, rows, options = {}) {
    let order = options.order || null;
    let most = rows.length > MOST + 20 ? MOST : Infinity;
    const body = h("tbody");
    const heads = columns.map((column, index) => {
      const label = column.sort
        ? h("button", { type: "button", class: "sort", onclick: () => { order = order && order[0] === index ? [index, -order[1]] : [index, column.numeric ? -1 : 1]; fill(); } }, column.title)
        : column.title;
      return h("th", { scope: "col", class: column.numeric ? "numeric" : null }, label);
    });
    const made = new Map(); // row → its element: another order moves it
    const line = (row) => {
      if (!made.has(row)) made.set(row, h("tr", { class: options.rowClass && options.rowClass(row) }, columns.map((column, index) =>
        h(index === 0 && !options.plain ? "th" : "td", { scope: index === 0 && !options.plain ? "row" : null, class: column.numeric ? "numeric" : null }, column.cell(row)))));
      return made.get(row);
    };
    function fill() {
      const shown = [...rows];
      if (order) {
        const value = columns[order[0]].sort;
        shown.sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === y) return 0;
          if (x === null || x === undefined) return 1;
          if (y === null || y === undefined) return -1;
          return (x < y ? -1 : 1) * order[1];
        });
      }
      heads.forEach((head, index) => {
        if (order && order[0] === index) head.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      });
      body.replaceChildren(...shown.slice(0, most).map(line));
    }
    fill();
    const more = most < rows.length ? button(`show all ${number(rows.length)}`, () => { all(); }, { class: "quiet small" }) : null;
    const all = () => { if (most < Infinity) { most = Infinity; more.remove(); fill(); } };
    const whole = h("table", {}, h("caption", { class: options.captioned ? null : "hidden" }, caption), h("thead", {}, h("tr", {}, heads)), body);
    return h("div", { class: "tabled" }, h("div", { class: rows.length > 12 && !options.whole ? "scroll long" : "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole),
      more, rows.length > 1 ? copies(caption, whole, all) : null);
  }

  /** Buttons that copy a table as it is sorted now. */
  function copies(caption, whole, all) {
    const read = () => all() || [...whole.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.innerText.replace(/\s+/g, " ").trim()));
    const said = h("span", { role: "status", class: "quiet" });
    const copy = (name) => button(name, async () => { said.textContent = (await clip(FORMATS[name](read(), caption))) ? ` ${name} copied` : " not copied: the browser forbids it"; }, { class: "quiet small", "aria-label": `Copy ${caption} as ${name}` });
    return h("div", { class: "export copy" }, "Copy as ", Object.keys(FORMATS).map(copy), said);
  }

  const TEX = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "&": "\\&", "%": "\\%", $: "\\$", "#": "\\#", _: "\\_", "{": "\\{", "}": "\\}",
    "−": "$-$", "×": "$\\times$", "–": "--", "·": "$\\cdot$", "±": "$\\pm$", "<": "$<$", ">": "$>$",
  };
  const tex = (text) => text.replace(/[\\~^&%$#_{}−×–·±<>]/g, (sign) => TEX[sign]);
  const quoted = (text) => (/[",\n]/.test(text) || /^[=+@]/.test(text) ? `"${(/^[=+@]/.test(text) ? "'" : "") + text.replace(/"/g, '""')}"` : text);
  const FORMATS = {
    CSV: (rows) => rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n",
    Markdown: (rows) => rows.map((row, at) => `| ${row.map((text) => text.replace(/[\\|`*_<>]/g, "\\$&")).join(" | ")} |${at ? "" : "\n|" + "---|".repeat(row.length)}`).join("\n") + "\n",
    LaTeX: (rows, caption) => {
      const lines = rows.map((row) => `  ${row.map(tex).join(" & ")} \\\\`);
      return [`% ${caption}; needs \\usepackage{booktabs}`, `\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "  \\toprule", lines[0], "  \\midrule", ...lines.slice(1), "  \\bottomrule", "\\end{tabular}", ""].join("\n");
    },
  };

  /** Put a text into the clipboard; whether that was possible. */
  async function clip(text) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* older browsers, and pages without the right */ }
    const box = h("textarea", { value: text, style: { position: "fixed", opacity: "0" } });
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }

  function select(label, choices, value, change) {
    const box = h("select", { onchange: (event) => change(event.target.value) },
      choices.map(([key, text]) => h("option", { value: key }, text)));
    box.value = value;
    return h("label", { class: "field" }, h("span", {}, label), box);
  }

  function checkbox(label, checked, change) {
    return h("label", { class: "check" }, h("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) }), label);
  }

  function button(label, press, attributes = {}) {
    return h("button", { type: "button", onclick: press, ...attributes }, label);
  }

  const SHAPES = {
    circle: "M7 2a5 5 0 1 0 .01 0z", square: "M2.5 2.5h9v9h-9z", triangle: "M7 1.5l5.5 10.5h-11z", diamond: "M7 1l5 6-5 6-5-6z",
    down: "M1.5 2h11l-5.5 10.5z", plus: "M5.3 1.5h3.4v3.8h3.8v3.4H8.7v3.8H5.3V8.7H1.5V5.3h3.8z", star: "M7 .8l1.8 4.2 4.6.4-3.5 3 1.1 4.5-4-2.4-4 2.4 1.1-4.5-3.5-3 4.6-.4z",
    left: "M1.5 7l10.5-5.5v11z", right: "M12.5 7l-10.5-5.5v11z", cross: "M4 1.8L7 4.8l3-3L12.2 4l-3 3 3 3L10 12.2l-3-3-3 3L1.8 10l3-3-3-3z", hexagon: "M7 1l5.2 3v6L7 13l-5.2-3V4z",
  };

  /** The dash of a run's line for ECharts. */
  function dash(code) {
    return code.dash === "dashdot" ? [9, 3, 2, 3] : code.dash;
  }

  /** The mark of a run in tables and legends: its symbol in its colour. */
  function mark(code) {
    return h("svg", { class: "mark", width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" }, h("path", { d: SHAPES[code.symbol] || SHAPES.circle, fill: tone(code.color) }));
  }

  /** The same symbol for ECharts. */
  function symbol(code) {
    return code.symbol in SHAPES ? `path://${SHAPES[code.symbol]}` : "circle";
  }

  /** A colour for the present theme: on dark ground lighter, in the same order of lightness. */
  function tone(color) {
    if (!dark()) return color;
    let [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255);
    const lift = 0.38;
    [r, g, b] = [r, g, b].map((part) => Math.round((part + (1 - part) * lift) * 255));
    return "#" + [r, g, b].map((part) => part.toString(16).padStart(2, "0")).join("");
  }

  function dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  /** Background and text of a cell that shows a share: tints below one half, strong colours above, both readable. */
  function heat(share) {
    if (share <= 0.5) return { background: `rgba(0, 84, 147, ${0.05 + 0.5 * share})` };
    const part = (low, high) => Math.round(low + (high - low) * (share - 0.5) * 2);
    return { background: `rgb(${part(52, 0)}, ${part(116, 68)}, ${part(170, 125)})`, color: "#fff" };
  }

  /** Data: from the server, or from what is inside this file. */
  function source() {
    const inside = document.getElementById("data");
    if (inside) return Lab.fileSource(JSON.parse(inside.textContent));
    let tag = null;
    const get = async (path, parameters = {}) => {
      const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
      const answer = await fetch(`api/${path}${query.size ? "?" + query : ""}`);
      const content = await answer.json();
      if (!answer.ok) throw new Error(content.error || `the server answered ${answer.status}`);
      return content;
    };
    return {
      live: true,
      async overview() {
        const answer = await fetch("api/overview", { headers: tag ? { "if-none-match": tag } : {} });
        if (answer.status === 304) return null;
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        tag = answer.headers.get("etag");
        return answer.json();
      },
      curves: (places) => get("curves", { groups: places.join(",") }),
      comparison: (task) => get("comparison", { task }),
      pair: (first, second) => get("pair", { first: first.join(","), second: second.join(",") }),
      between: (first, second) => get("between", { first: first.join(","), second: second.join(",") }),
      run: (id) => get(`run/${id}`),
      now: (id) => get(`now/${id}`),
      steps: (id) => get(`steps/${id}`),
      completions: (id, filter) => get(`completions/${id}`, filter),
      completion: (id, row) => get(`completion/${id}`, { row }),
      prompt: (id, task, prompt) => get(`prompt/${id}`, { task, prompt }),
      prompts: (id, filter) => get(`prompts/${id}`, filter),
    };
  }

  /** What the visitor chose; kept while the page is open. */
  const state = {
    overview: null, x: "compute", log: false, bands: null, points: true, smooth: "", hidden: new Set(), tasks: null, budget: null, target: "",
    baseline: "", metric: "", selected: new Set(), run: null, other: "", filter: { text: "", status: "" }, grouped: true, pair: { first: [], second: [] },
  };

  /** Screens on which all but the answer and the first chart is folded. */
  const narrow = () => window.matchMedia("(max-width: 599px)").matches;

  /** A section; on a narrow screen folded, and made when it is opened. `make` gives its content. */
  function section(id, title, make, options = {}) {
    const heading = h("h2", { id: `${id}-title` }, title);
    if (!narrow() || options.open) return h("section", { id, "aria-labelledby": `${id}-title` }, heading, make());
    return h("section", { id, class: "folded", "aria-labelledby": `${id}-title` }, fold(heading, make, "whole"));
  }

  /** A part that is made when it is opened. */
  function fold(title, make, kind = "fold") {
    const body = h("div");
    const box = h("details", { class: kind }, h("summary", {}, title), body);
    box.addEventListener("toggle", () => { if (box.open && !body.childNodes.length) append(body, [make()]); });
    return box;
  }

  /** Do some work after the next frame, which shows what the visitor did. */
  const soon = (work) => requestAnimationFrame(() => setTimeout(work));

  /** Running means over so many neighbours; null stays null. */
  function smooth(list, width) {
    const half = Math.floor(Number(width) / 2);
    if (!half) return list;
    return list.map((one, at) => {
      const near = list.slice(Math.max(0, at - half), at + half + 1).filter((value) => value !== null && value !== undefined);
      return one === null || one === undefined || !near.length ? one : near.reduce((sum, value) => sum + value, 0) / near.length;
    });
  }

  const SMOOTH = [["", "none"], ["3", "3 values"], ["5", "5 values"], ["9", "9 values"], ["25", "25 values"]];

  Object.assign(Lab, { h, visible, number, interval, fixed, signed, percent, chance, quantity, duration, table, select, checkbox, button, mark, symbol, dash, tone, dark, heat, source, state, narrow, section, fold, soon, smooth, SMOOTH, FORMATS });
})();
