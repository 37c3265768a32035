// A fit at any compute, from its table: the page computes no curve of its own.
"use strict";
(function () {
  /** A column of a fit's table at some compute: between its points linear in the logarithm. */
  function at(table, name, compute) {
    const [points, values] = [table.compute, table[name]];
    let [low, high] = [0, points.length - 1];
    if (compute >= points[high]) return values[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle] <= compute) low = middle; else high = middle;
    }
    const share = low ? Math.log(compute / points[low]) / Math.log(points[high] / points[low]) : compute / points[high];
    return share ? values[low] + share * (values[high] - values[low]) : values[low];
  }

  /** Low end, middle and high end of the curve's band at some compute. */
  const band = (fit, compute) => ["low", "middle", "high"].map((name) => at(fit.table, name, compute));

  /** Median at some compute, where an evaluation there would fall, the gain over what is spent, and what to do. */
  function forecast(fit, compute) {
    const [value, low, high, gain, worthwhile] = ["middle", "measured_low", "measured_high", "gain", "worthwhile"].map((name) => at(fit.table, name, compute));
    const [stop, extend] = fit.table.advice;
    return { value, interval: [low, high], gain, worthwhile, advice: worthwhile >= extend ? "extend" : worthwhile <= stop ? "stop" : "unclear" };
  }

  /** Compute at which the curve first reaches a pass rate, or falls to it, in hundredths: median and ends, null for never; and in words. */
  function reach(fit, target) {
    const { targets } = fit.table;
    const place = Math.round(100 * target) - 1;
    return { compute: targets.compute[place], low: targets.low[place], high: targets.high[place], reading: targets.reading[place] };
  }

  /** Points from `from` to `to`, evenly spaced (or in the logarithm). */
  function grid(from, to, count, log) {
    const list = [];
    for (let index = 0; index < count; index += 1) {
      const share = index / (count - 1);
      list.push(log ? from * Math.pow(to / from, share) : from + share * (to - from));
    }
    return list;
  }

  /** A function from compute to another x-axis by a run's own evaluations: linear between them, and on as at the end. */
  function axisOf(points, axis) {
    if (axis === "compute") return (compute) => compute;
    const pairs = [];
    (points.x.compute || []).forEach((compute, index) => {
      const value = (points.x[axis] || [])[index];
      if (compute !== null && value !== null && value !== undefined) pairs.push([compute, value]);
    });
    pairs.sort((a, b) => a[0] - b[0]);
    if (pairs.length < 2) return null;
    return (compute) => {
      let at = pairs.findIndex((pair) => pair[0] >= compute);
      if (at < 0) at = pairs.length - 1;
      const wide = compute > pairs[pairs.length - 1][0] ? Math.max(1, Math.floor(pairs.length / 2)) : 1;
      const [a, b] = [pairs[Math.max(0, Math.max(at, 1) - wide)], pairs[Math.max(at, 1)]];
      return b[0] === a[0] ? b[1] : a[1] + ((compute - a[0]) / (b[0] - a[0])) * (b[1] - a[1]);
    };
  }

  Object.assign(Lab, { curve: { band, forecast, reach, grid, axisOf } });
})();
