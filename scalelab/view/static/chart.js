// Charts on Apache ECharts: frame with caption, export and description; forest, lines, heat map, time line.
"use strict";
(function () {
  const { h, number, tone, dark, interval, button } = Lab;
  const open = new Map();

  function ink() {
    return dark()
      ? { text: "#e6e9ee", muted: "#a8b2c0", rule: "#39424f", ground: "#1a2029" }
      : { text: "#1f2733", muted: "#566171", rule: "#e1e6ed", ground: "#ffffff" };
  }

  /** A chart in a frame. `make` gives the ECharts option, `describe` a sentence for those who do not see it. */
  function frame(name, height, make, describe, options = {}) {
    const box = h("div", { class: "chart", role: "img", "aria-label": describe(), style: { height: `${height}px` } });
    const figure = h("figure", { class: options.class },
      h("figcaption", {}, h("span", {}, options.title ?? name), options.bare ? null : h("span", { class: "export" },
        button("PNG", () => save(name, make, height, "png"), { class: "quiet small", "aria-label": `Save ${name} as PNG` }),
        button("SVG", () => save(name, make, height, "svg"), { class: "quiet small", "aria-label": `Save ${name} as SVG` }))),
      box, options.below);
    let chart = null;
    const drawn = {
      figure, box, name,
      draw() {
        if (!box.isConnected || !box.clientWidth) return;
        if (!chart) {
          chart = window.echarts.init(box, null, { renderer: "canvas" });
          if (options.ready) options.ready(chart);
          open.set(box, drawn);
        }
        box.style.height = `${height}px`;
        if (chart.getWidth() !== box.clientWidth || chart.getHeight() !== box.clientHeight) chart.resize();
        chart.setOption(make(box.clientWidth), { notMerge: true, lazyUpdate: false });
        box.setAttribute("aria-label", describe());
      },
      resize(newHeight) { height = newHeight; },
      close() { if (chart) chart.dispose(); chart = null; open.delete(box); },
      get chart() { return chart; },
    };
    watcher.observe(box);
    waiting.set(box, drawn);
    return drawn;
  }

  const waiting = new Map();
  // Charts far below are drawn when they come near: the first view is there at once.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && waiting.has(entry.target)) {
        const drawn = waiting.get(entry.target);
        waiting.delete(entry.target);
        watcher.unobserve(entry.target);
        drawn.draw();
      }
    }
  }, { rootMargin: "300px" });

  function redraw() {
    for (const [box, drawn] of open) {
      if (box.isConnected) drawn.draw();
      else drawn.close();
    }
  }

  /** Let go of the charts that are no longer on the page. */
  function prune() {
    for (const [box, drawn] of [...open]) if (!box.isConnected) drawn.close();
    for (const box of [...waiting.keys()]) {
      if (!box.isConnected) { waiting.delete(box); watcher.unobserve(box); }
    }
  }

  function save(name, make, height, kind) {
    const [width, tall] = [960, Math.max(height, 360)];
    const option = { ...make(width), animation: false, backgroundColor: ink().ground };
    delete option.dataZoom;
    const link = h("a", { download: `${name.replace(/[^\w-]+/g, "_")}.${kind}` });
    let chart;
    if (kind === "svg") {
      chart = window.echarts.init(null, null, { renderer: "svg", ssr: true, width, height: tall });
      chart.setOption(option);
      link.href = URL.createObjectURL(new Blob([chart.renderToSVGString()], { type: "image/svg+xml" }));
    } else {
      const box = h("div", { style: { width: `${width}px`, height: `${tall}px`, position: "absolute", left: "-9999px" } });
      document.body.append(box);
      chart = window.echarts.init(box, null, { renderer: "canvas", devicePixelRatio: 2 });
      chart.setOption(option);
      link.href = chart.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: ink().ground });
      box.remove();
    }
    chart.dispose();
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function axis(name, more = {}) {
    const c = ink();
    return {
      name, nameTextStyle: { color: c.muted }, axisLine: { lineStyle: { color: c.muted } }, axisTick: { lineStyle: { color: c.rule } },
      axisLabel: { color: c.muted, formatter: (value) => number(value), hideOverlap: true }, splitLine: { lineStyle: { color: c.rule } }, scale: true, ...more,
    };
  }

  function base(more = {}) {
    const c = ink();
    return {
      animation: false, textStyle: { color: c.text, fontFamily: "system-ui, sans-serif" }, backgroundColor: "transparent",
      grid: { left: 8, right: 18, top: 18, bottom: 8, containLabel: true },
      tooltip: { confine: true, backgroundColor: c.ground, borderColor: c.rule, textStyle: { color: c.text, fontSize: 13 }, ...(more.tooltip || {}) },
      ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "tooltip")),
    };
  }

  /** A tooltip made of elements, so that names from runs stay text. */
  function tip(title, rows) {
    return h("div", { class: "tip" }, h("b", {}, title), rows.map(([name, value]) => h("div", {}, name ? `${name}: ` : "", value)));
  }

  /** A ± interval of every recipe, the best on top. rows: {name, code, value, interval, note}. */
  function forest(name, rows, label) {
    const values = rows.flatMap((row) => [row.value, ...(row.interval || []).filter((end) => end !== null)]);
    const make = (width) => base({
      grid: { left: labelWidth(rows.map((row) => row.name), width), right: 24, top: 8, bottom: 44 },
      xAxis: axis(label, { type: "value", min: Math.max(0, Math.floor((Math.min(...values) - 0.01) * 20) / 20), max: Math.min(1, Math.ceil((Math.max(...values) + 0.01) * 20) / 20), nameLocation: "middle", nameGap: 26 }),
      yAxis: { type: "category", inverse: true, data: rows.map((row) => row.name), axisTick: { show: false }, axisLine: { show: false },
        axisLabel: { color: ink().text, interval: 0, width: labelWidth(rows.map((row) => row.name), width) - 14, overflow: "truncate" } },
      tooltip: { trigger: "item", formatter: (p) => { const row = rows[p.dataIndex]; return tip(row.name, [[label, interval(row.value, row.interval)], ["", row.note || ""]]); } },
      series: [
        { type: "custom", data: rows.map((row, index) => [index, ...(row.interval || [row.value, row.value]).map((end) => end ?? row.value)]), encode: { x: [1, 2], y: 0 },
          renderItem: (_, api) => {
            const [a, b] = [api.coord([api.value(1), api.value(0)]), api.coord([api.value(2), api.value(0)])];
            return { type: "line", shape: { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }, style: { stroke: tone(rows[api.value(0)].code.color), lineWidth: 4, opacity: 0.55, lineCap: "round" } };
          } },
        { type: "scatter", data: rows.map((row, index) => ({ value: [row.value, index], symbol: Lab.symbol(row.code), itemStyle: { color: tone(row.code.color), borderColor: ink().ground, borderWidth: 1 } })), symbolSize: 12 },
      ],
    });
    const describe = () => `${name}: ${rows.map((row) => `${row.name} ${interval(row.value, row.interval)}`).join("; ")}`;
    return frame(name, 58 + 26 * rows.length, make, describe);
  }

  /** Room for the labels of a category axis: what the longest needs, at most two fifths of the chart. */
  function labelWidth(names, width) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "12px system-ui, sans-serif";
    return Math.min(Math.max(...names.map((name) => pen.measureText(name).width)) + 18, width * 0.42);
  }

  /** Lines against the step or another axis. lines: {label, x, y, code}. */
  function lines(name, series, options = {}) {
    const codes = (index) => series[index].code || Lab.state.overview.tasks[index] || Lab.state.overview.groups[index] || { color: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9"][index % 6], dash: ["solid", "dashed", "dotted"][Math.floor(index / 6) % 3], symbol: "circle" };
    const make = () => base({
      grid: { left: 4, right: 12, top: series.length > 1 ? 34 : 14, bottom: 4, containLabel: true },
      legend: series.length > 1 ? { top: 0, left: 0, type: "scroll", itemWidth: 18, itemHeight: 8, textStyle: { color: ink().muted, fontSize: 11 }, pageIconSize: 9 } : undefined,
      xAxis: axis("", { type: options.logX ? "log" : "value", min: "dataMin", max: "dataMax", splitLine: { show: false } }),
      yAxis: axis("", options.log ? { type: "log", min: "dataMin", max: "dataMax" } : { type: "value" }),
      tooltip: { trigger: "axis", formatter: (points) => tip(`${options.x || "step"} ${number(points[0].value[0])}`, points.map((p) => [series.length > 1 ? p.seriesName : "", number(p.value[1])])) },
      series: series.map((line, index) => ({
        name: line.label || name, type: "line", showSymbol: line.x.length < 30, symbol: Lab.symbol(codes(index)), symbolSize: 5, data: line.x.map((x, at) => [x, line.y[at]]),
        lineStyle: { width: 1.6, type: options.dashed ? ["solid", "dashed", "dotted"][index % 3] : Lab.dash(codes(index)), color: tone(codes(index).color) }, itemStyle: { color: tone(codes(index).color) }, large: true, sampling: "none",
        markLine: index === 0 && options.marks && options.marks.length ? { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: "#c2410c", type: "dotted" }, data: options.marks.map((x) => ({ xAxis: x })) } : undefined,
      })),
    });
    const last = () => series.map((line) => `${line.label || ""} ${number(line.y[line.y.length - 1])}`.trim()).join(", ");
    return frame(name, options.height || 190, make, () => `${name} against the ${options.x || "step"}; at the end ${last()}`, { title: options.title ?? name, class: options.class });
  }

  /** A heat map: cells [column, row, share]. */
  function heat(name, columns, highest, cells) {
    const rows = Array.from({ length: highest + 1 }, (_, value) => String(value));
    const make = () => base({
      grid: { left: 8, right: 12, top: 8, bottom: 28, containLabel: true },
      xAxis: { type: "category", data: columns.map((step) => number(step)), name: "step", nameLocation: "middle", nameGap: 24, nameTextStyle: { color: ink().muted }, axisLabel: { color: ink().muted } },
      yAxis: { type: "category", data: rows, name: "", axisLabel: { color: ink().muted } },
      visualMap: { show: false, min: 0, max: 1, inRange: { color: dark() ? ["#1a2029", "#2f6fa3", "#cfe8ff"] : ["#ffffff", "#6baed6", "#08306b"] } },
      tooltip: { formatter: (p) => tip(`step ${number(columns[p.value[0]])}`, [[`staleness ${p.value[1]}`, Lab.percent(p.value[2]) + " of completions"]]) },
      series: [{ type: "heatmap", data: cells, itemStyle: { borderWidth: 0 } }],
    });
    return frame(name, 60 + 16 * Math.min(rows.length, 20), make, () => `${name}: share of completions by staleness 0 to ${highest} along the run`);
  }

  const PHASES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#7a3db8", "#5c5c5c"];
  const WAITING = "#d0d5dd";

  /** Who waits for whom: the trainer's phases, idle generators, evaluations, faults and alarms on one clock. */
  function timeline(name, data) {
    const rows = ["trainer", "generators idle", "evaluations", "faults", "alarms"];
    const minutes = (seconds) => seconds / 60;
    const color = (phase) => (data.phases[phase] === "wait" ? (dark() ? "#566171" : WAITING) : tone(PHASES[phase % PHASES.length]));
    const segments = [];
    let before = null;
    for (const block of data.blocks) {
      const total = block.seconds.reduce((sum, one) => sum + one, 0);
      let at = block.end - total;
      if (before !== null) at = Math.max(at, before);
      const scale = total > 0 ? Math.min(1, (block.end - at) / total) : 0;
      block.seconds.forEach((seconds, phase) => {
        if (seconds > 0) segments.push([minutes(at), minutes(at + seconds * scale), 0, phase, seconds, block.steps[0], block.steps[1]]);
        at += seconds * scale;
      });
      if (block.idle !== null && before !== null) segments.push([minutes(before), minutes(block.end), 1, -1, block.idle, block.steps[0], block.steps[1]]);
      before = block.end;
    }
    const faults = data.faults.map((fault) => [minutes(fault.time), minutes(fault.until ?? fault.time), 3, fault.text]);
    const end = before || 0;
    const bar = (api, fill, opacity = 1) => {
      const [a, b] = [api.coord([api.value(0), api.value(2)]), api.coord([api.value(1), api.value(2)])];
      const tall = api.size([0, 1])[1] * 0.62;
      return { type: "rect", shape: { x: a[0], y: a[1] - tall / 2, width: Math.max(b[0] - a[0], 0.7), height: tall }, style: { fill, opacity } };
    };
    const make = () => base({
      grid: { left: labelWidth(rows, 1e4), right: 18, top: 8, bottom: 72 },
      xAxis: axis("minutes since training began", { type: "value", min: 0, max: Math.ceil(minutes(end) * 10) / 10, nameLocation: "middle", nameGap: 24, scale: false }),
      yAxis: { type: "category", inverse: true, data: rows, axisTick: { show: false }, axisLabel: { color: ink().text } },
      dataZoom: [{ type: "slider", bottom: 4, height: 18, labelFormatter: (value) => number(value) }, { type: "inside", zoomOnMouseWheel: "ctrl" }],
      tooltip: { formatter: (p) => {
        if (p.seriesIndex === 0) {
          const [from, , row, phase, value, first, last] = p.value;
          const steps = first === last ? `step ${number(first)}` : `steps ${number(first)}–${number(last)}`;
          return tip(`${steps}, at ${number(from)} min`, [[row ? "generators idle" : data.phases[phase], row ? Lab.percent(value) : `${number(value)} s`]]);
        }
        return tip(p.seriesIndex === 1 ? p.value[3] : p.value[2] || "", [["", `at ${number(p.value[0])} min`]]);
      } },
      series: [
        { type: "custom", data: segments, encode: { x: [0, 1], y: 2 }, clip: true, renderItem: (_, api) => (api.value(2) === 1 ? bar(api, tone("#d55e00"), api.value(4)) : bar(api, color(api.value(3)))) },
        { type: "custom", data: faults, encode: { x: [0, 1], y: 2 }, clip: true, renderItem: (_, api) => bar(api, tone("#b91c1c")) },
        { type: "scatter", symbol: "diamond", symbolSize: 9, data: data.evaluations.map(([time, step]) => [minutes(time), 2, `evaluation at step ${number(step)}`]), itemStyle: { color: tone("#7a3db8") } },
        { type: "scatter", symbol: "triangle", symbolSize: 12, data: data.alarms.map((alarm) => [minutes(alarm.time), 4, alarm.text]), itemStyle: { color: tone("#d55e00") } },
      ],
    });
    const key = h("p", { class: "key" }, data.phases.map((phase, index) => h("span", {}, h("i", { style: { background: color(index) } }), phase === "wait" ? "trainer waits for a batch" : phase)),
      h("span", {}, h("i", { style: { background: tone("#d55e00") } }), "share of time that generators stand idle (darker: more)"));
    const sums = data.phases.map((phase, index) => `${phase} ${number(data.blocks.reduce((sum, block) => sum + block.seconds[index], 0))} s`);
    return frame(name, 270, make, () => `${name}: ${sums.join(", ")}; ${data.evaluations.length} evaluations, ${data.faults.length} faults, ${data.alarms.length} alarms`, { below: key });
  }

  window.addEventListener("resize", () => { clearTimeout(window.labResize); window.labResize = setTimeout(redraw, 120); });

  Lab.chart = { frame, forest, lines, heat, timeline, redraw, prune, axis, base, tip, ink };
})();
