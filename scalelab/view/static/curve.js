// The mathematics of a fit's draws: the same formulas as scalelab.curves, on the draws that the page holds.
"use strict";
(function () {
  /** R0 + (A − R0) / (1 + (C_mid / C)^B): ScaleRL's sigmoid (arXiv 2510.13786, Eq. 1). Pass rates; compute in the fit's unit. */
  function sigmoid(p, compute) {
    return p.R0 + (p.A - p.R0) * rise(p, compute);
  }

  function rise(p, compute) {
    return compute > 0 ? 1 / (1 + Math.pow(p.C_mid / compute, p.B)) : 0;
  }

  function draw(fit, index) {
    const d = fit.draws;
    return { R0: d.R0 ? d.R0[index] : fit.parameters.R0, A: d.A[index], B: d.B[index], C_mid: d.C_mid[index] };
  }

  /** Value of every draw at some compute; `evaluation` adds what an evaluation there would miss the curve by. */
  function values(fit, compute, evaluation = false) {
    return fit.draws.A.map((_, index) => {
      const p = draw(fit, index);
      const value = sigmoid(p, compute);
      if (!evaluation) return value;
      return Math.min(1, Math.max(0, value + fit.draws.noise[index] + fit.draws.spread[index] * rise(p, compute)));
    });
  }

  /** Quantile of unsorted values, linear between neighbours (as NumPy's default). */
  function quantile(list, share) {
    const sorted = Float64Array.from(list).sort();
    const at = share * (sorted.length - 1);
    const low = Math.floor(at);
    const high = Math.min(low + 1, sorted.length - 1);
    if (!isFinite(sorted[high])) return at - low > 0 ? sorted[high] : sorted[low];
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
  }

  function tails(fit) {
    return [(1 - fit.level) / 2, (1 + fit.level) / 2];
  }

  /** The band of a curve along some compute: {low, high} per point; kept with the fit. */
  function band(fit, grid) {
    const key = grid.length + ":" + grid[0] + ":" + grid[grid.length - 1];
    if (!fit.band || fit.band.key !== key) {
      const [lower, upper] = tails(fit);
      const rows = grid.map((compute) => {
        const list = values(fit, compute);
        return [quantile(list, lower), quantile(list, 0.5), quantile(list, upper)];
      });
      Object.defineProperty(fit, "band", { value: { key, rows }, configurable: true, writable: true });
    }
    return fit.band.rows;
  }

  /** Median at some compute, where an evaluation there would fall, and the gain over what is spent. */
  function forecast(fit, compute) {
    const [lower, upper] = tails(fit);
    const curve = values(fit, compute);
    const measured = values(fit, compute, true);
    const here = values(fit, fit.window[1]);
    const gain = curve.map((value, index) => value - here[index]);
    return {
      value: quantile(curve, 0.5),
      interval: [quantile(measured, lower), quantile(measured, upper)],
      gain: gain.reduce((sum, one) => sum + one, 0) / gain.length,
      gainInterval: [quantile(gain, lower), quantile(gain, upper)],
      worthwhile: gain.filter((one) => one >= 0.01).length / gain.length,
    };
  }

  /** Compute at which the curve reaches a pass rate: median and interval, Infinity for never. */
  function reach(fit, target) {
    const [lower, upper] = tails(fit);
    const list = fit.draws.A.map((_, index) => {
      const p = draw(fit, index);
      if (target <= p.R0) return 0;
      if (target >= p.A) return Infinity;
      return p.C_mid / Math.pow((p.A - target) / (target - p.R0), 1 / p.B);
    });
    const sorted = Float64Array.from(list).sort();
    const pick = (share) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
    return { compute: pick(0.5), interval: [pick(lower), pick(upper)], probability: list.filter(isFinite).length / list.length };
  }

  /** What to do at some budget, in a word. */
  function advice(found) {
    if (found.worthwhile >= 0.8) return "extend";
    return found.worthwhile <= 0.2 ? "stop" : "unclear";
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

  Object.assign(Lab, { curve: { sigmoid, values, quantile, band, forecast, reach, advice, grid, axisOf } });
})();
