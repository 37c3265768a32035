// The mathematics of a fit's draws: the same formulas as scalelab.curves, on the draws that the page holds.
"use strict";
(function () {
  const logistic = (z) => 1 / (1 + Math.exp(-z));
  const logAddExp = (z) => (z > 30 ? z : Math.log1p(Math.exp(z)));

  /** Share of the gain at z = B ln(C / C_mid), by shape: as scalelab.curves.fitting.shapes has them. */
  const GROWTH = {
    sigmoid: (z) => logistic(z),
    weibull: (z) => -Math.expm1(-Math.LN2 * Math.exp(Math.min(z / (2 * Math.LN2), 50))),
    gompertz: (z) => Math.exp(-Math.LN2 * Math.exp(Math.min(-z / (2 * Math.LN2), 50))),
    burr: (z, tail) => {
      const steep = 0.5 / (tail * (1 - Math.pow(2, -1 / tail)));
      return -Math.expm1(-tail * Math.log1p((Math.pow(2, 1 / tail) - 1) * Math.exp(Math.min(steep * z, 300))));
    },
    two: (z, share, apart) => share * logistic(z + apart / 2) + (1 - share) * logistic(z - apart / 2),
    endless: (z, power, start, factor) => {
      const log = logAddExp(Math.min(start + z, 300));
      return factor * (power ? Math.expm1(power * log) / power : log);
    },
  };

  const clip = (value) => Math.min(1, Math.max(0, value));

  /** Share of its gain that a draw has made at some compute. */
  function rise(d, index, compute) {
    if (compute <= 0) return 0;
    const [name, numbers] = d.shapes[d.shape[index]];
    return GROWTH[name](d.B[index] * Math.log(compute / d.C_mid[index]), ...numbers);
  }

  /** Value of every draw at some compute; `evaluation` adds what an evaluation there would miss the curve by. */
  function values(fit, compute, evaluation = false) {
    const d = fit.draws;
    return d.A.map((_, index) => {
      const share = rise(d, index, compute);
      const change = compute > 0 && d.height[index] ? d.height[index] * logistic(d.steep[index] * Math.log(compute / d.at[index])) : 0;
      const value = clip(d.R0[index] + (d.A[index] - d.R0[index]) * share + change);
      if (!evaluation) return value;
      const grown = Math.sqrt(1 - d.walk[index] + (d.walk[index] * compute) / fit.window[1]);
      return clip(value + d.noise[index] * grown + d.spread[index] * Math.min(share, 1));
    });
  }

  /** Quantiles of unsorted values, linear between neighbours (as NumPy's default). */
  function quantiles(list, shares) {
    const sorted = Float64Array.from(list).sort();
    return shares.map((share) => {
      const at = share * (sorted.length - 1);
      const low = Math.floor(at);
      const high = Math.min(low + 1, sorted.length - 1);
      if (!isFinite(sorted[high])) return at - low > 0 ? sorted[high] : sorted[low];
      return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
    });
  }

  function tails(fit) {
    return [(1 - fit.level) / 2, (1 + fit.level) / 2];
  }

  const bands = new WeakMap(); // draws → bands by grid: they last as long as the draws, whatever else is sent anew

  /** The band of a curve along some compute: [low, middle, high] per point. */
  function band(fit, grid) {
    const key = grid.length + ":" + grid[0] + ":" + grid[grid.length - 1];
    if (!bands.has(fit.draws)) bands.set(fit.draws, new Map());
    const known = bands.get(fit.draws);
    if (!known.has(key)) {
      if (known.size >= 8) known.delete(known.keys().next().value);
      const [lower, upper] = tails(fit);
      known.set(key, grid.map((compute) => quantiles(values(fit, compute), [lower, 0.5, upper])));
    }
    return known.get(key);
  }

  /** Median at some compute, where an evaluation there would fall, and the gain over what is spent. */
  function forecast(fit, compute) {
    const [lower, upper] = tails(fit);
    const curve = values(fit, compute);
    const measured = values(fit, compute, true);
    const here = values(fit, fit.window[1]);
    const gain = curve.map((value, index) => value - here[index]);
    const [low, middle, high] = quantiles(gain, [lower, 0.5, upper]);
    return {
      value: quantiles(curve, [0.5])[0],
      interval: quantiles(measured, [lower, upper]),
      gain: middle,
      gainInterval: [low, high],
      worthwhile: gain.filter((one) => one >= 0.01).length / gain.length,
    };
  }

  /** Compute at which the curve first reaches a pass rate: median and interval, Infinity for never (up to 1,000 times the window). */
  function reach(fit, target) {
    const [lower, upper] = tails(fit);
    const list = fit.draws.A.map(() => Infinity);
    for (const compute of [0, ...grid(fit.window[0] / 10, 1000 * fit.window[1], 240, true)]) {
      values(fit, compute).forEach((value, index) => { if (value >= target && compute < list[index]) list[index] = compute; });
    }
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

  Object.assign(Lab, { curve: { values, quantiles, band, forecast, reach, advice, grid, axisOf } });
})();
