"""Sentences that cannot hold together: what is printed about one curve, and about two, is held against itself.

`tests/curves/test_draws.py` asks the same of random and of all committed runs; here it is asked of thousands.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from curve_tables.families import FAMILIES, simulate
from scalelab.curves import Analysis, FitError, Options, analyse, compare, compute_for, extend_or_stop, forecast
from scalelab.curves.comparison import Comparison
from scalelab.curves.forecast import band

TIMES = (0.1, 0.3, 1.0, 1.5, 2.0, 4.0, 20.0)
"""Multiples of the compute reached at which a curve is asked."""

NEAR = 1e-9


def of_fit(found: Analysis) -> list[str]:
    """Contradictions among the sentences about one curve."""
    wrong, end = [], found.fit.window[1]
    at = [times * end for times in TIMES]
    forecasts = forecast(found, at)
    low_C, middle_C, high_C = band(found, at)
    for one, low, middle, high in zip(forecasts, low_C, middle_C, high_C):
        if not low - NEAR <= middle <= high + NEAR:
            wrong.append(f"the median at {one.at:.3g} lies outside of the band")
        if (one.value, *one.curve_interval) != (middle, low, high):
            wrong.append(f"forecast and band differ at {one.at:.3g}")
        past = (found.params["A"] - one.value) if found.falls else (one.value - found.params["A"])
        if found.stands and past > NEAR and one.at <= 100 * end:
            wrong.append(f"the forecast at {one.at:.3g} lies beyond A")
    wrong += _parameters(found) + _way(found)
    inside, outside = band(found, [end * (1 - 1e-9)]), band(found, [end * (1 + 1e-9)])
    if np.abs(np.subtract(inside, outside)).max() > 1e-6:
        wrong.append("the band jumps where the window ends")
    on = -1 if found.falls else 1
    for rate in (0.5 * (middle_C[1] + middle_C[2]), middle_C[2] + on * 0.01, middle_C[2] + on * 0.1):
        wrong += _target(found, float(rate))
    gain = extend_or_stop(found, 0.01)
    if not gain.interval[0] - NEAR <= gain.gain_if_doubled <= gain.interval[1] + NEAR:
        wrong.append("the gain lies outside of its interval")
    word = gain.reading.split(":")[0]
    if (word == "extend" and gain.gain_if_doubled < 0.01) or (word == "stop" and gain.gain_if_doubled > 0.01):
        wrong.append(f"{word}, and a gain of {gain.gain_if_doubled:.4f}")
    return wrong


def _way(found: Analysis) -> list[str]:
    """The words of a fall against its parameters, its limits and its gain."""
    wrong, draws, gain = [], found.draws(), extend_or_stop(found)
    if (found.params["A"] < found.params["R0"]) != found.falls or draws.falls != found.falls:
        wrong.append(f"falls is {found.falls}, from {found.params['R0']:.3f} to {found.params['A']:.3f}")
    if (found.params["A"] < found.params["R0"]) != found.asymptote_text().startswith("forgets"):
        wrong.append(f"the words of the asymptote: {found.asymptote_text()}")
    to_go = float(np.median(draws.limit())) - found.rates()[0].value
    if draws.changed < 0.02 and (to_go > 1e-3 if found.falls else to_go < -1e-3):
        wrong.append(f"falls is {found.falls}, and its limit lies {to_go:+.3f} from the curve")
    if "makes this task worse" in gain.reading and not (found.falls and gain.interval[1] <= 0):
        wrong.append(gain.reading)
    return wrong


def _parameters(found: Analysis) -> list[str]:
    return [
        f"{name} = {found.params[name]:.4g} lies outside of [{low:.4g}, {high:.4g}]"
        for name, (low, high) in found.intervals.items()
        if not low - NEAR <= found.params[name] <= high + NEAR
    ]


def _target(found: Analysis, rate: float) -> list[str]:
    """A target's probability against its median, and its median against the curve."""
    if not 0 < rate < 1:
        return []
    goal, wrong = compute_for(found, rate), []
    if goal.compute is None and goal.probability > 0.5 + 1e-3:
        wrong.append(f"{rate:.3f} is reached with {goal.probability:.2f}, and no compute is named")
    if goal.compute is not None and goal.probability < 0.5 - 1e-3:
        wrong.append(f"{rate:.3f} is reached with {goal.probability:.2f}, and a compute is named")
    if goal.compute is not None and goal.compute > 0:
        before, after = (_farthest(found, goal.compute * factor) for factor in (0.99, 1.01))
        if not min(before, after) - 1e-3 <= rate <= max(before, after) + 1e-3:
            wrong.append(
                f"{rate:.3f} is reached at {goal.compute:.3g}, where the curve has {before:.3f} to {after:.3f}"
            )
    return wrong


def _farthest(found: Analysis, compute: float) -> float:
    """Median over the curves of the farthest that each has come by some compute: one that turns late was farther."""
    drawn_MC = found.draws().value(np.concatenate([[0.0], np.geomspace(compute / 1000, compute, 300)]))
    return float(np.median(drawn_MC.min(1) if found.falls else drawn_MC.max(1)))


def of_comparison(one: Comparison) -> list[str]:
    """Contradictions among the sentences about several curves."""
    wrong = []
    rates = [entry.rate[0] for entry in one.entries]
    if rates != sorted(rates, reverse=True):
        wrong.append("the ranking is not that of the rates beside it")
    for entry in one.entries:
        for other in entry.differences:
            wrong += [f"{entry.run} against {other}: {text}" for text in _difference(one, entry.run, other)]
    for item in one.crossings:
        if item.compute is None:
            continue
        entry = next(entry for entry in one.entries if entry.run == item.first)
        if entry.differences[item.second].verdict not in ("better", "worse"):
            wrong.append(f"{item.first} and {item.second} cross for sure, and which leads cannot be told")
        if (entry.differences[item.second].probability > 0.5) == (item.leader_before == item.first):
            wrong.append(f"{item.leader_before} leads before the crossing and after it")
        other = next((run for run in (item.first, item.second) if run != one.baseline), item.first)
        if one.baseline in (item.first, item.second) and one.verdicts[other] not in ("better", "worse"):
            wrong.append(f"{item.first} and {item.second} cross for sure, and the table says {one.verdicts[other]}")
    return wrong


def _difference(one: Comparison, run: str, other: str) -> list[str]:
    by_run = {entry.run: entry for entry in one.entries}
    gap = by_run[run].differences[other]
    back, wrong = by_run[other].differences[run], []
    if abs(gap.probability + back.probability - 1) > 1e-6:
        wrong.append("the two probabilities do not add up to one")
    if (gap.probability - 0.5) * gap.median < 0 and abs(gap.median) > 1e-4:
        wrong.append(f"probably {'above' if gap.probability > 0.5 else 'below'}, by {gap.median:+.4f}")
    if not gap.interval[0] <= gap.median <= gap.interval[1]:
        wrong.append("the difference lies outside of its interval")
    if (
        abs(gap.median - (by_run[run].rate[0] - by_run[other].rate[0]))
        > 0.5 * (gap.interval[1] - gap.interval[0]) + 1e-3
    ):
        wrong.append("the difference is not that of the rates beside it")
    mirror = {"better": "worse", "worse": "better"}
    if mirror.get(gap.claim, gap.claim) != back.claim and abs(gap.wrong - back.wrong) > 1e-2:
        wrong.append(f"{gap.claim} one way and {back.claim} the other")
    if gap.verdict == "equal" and gap.bound > one.margin + 1e-3:
        wrong.append(f"equal, and up to {gap.bound:.3f} apart")
    word = one.verdicts.get(run) if other == one.baseline else None
    if word in ("better", "worse", "equal") and word != gap.verdict:
        wrong.append(f"{word} in the table and {gap.verdict} for the pair")
    return wrong


SLOW = ("20,000 evaluations", "1,000 evaluations")
"""Families that are merged into 160 points, of which one log in a hundred is enough."""


def contradictions_section(logs: int, folder: Path) -> str:
    """Random logs of all families, in pairs: how many were read, and every contradiction; resumable."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "contradictions.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    with path.open("a") as file:
        for index in range(2 * len(found), logs, 2):
            found.append(_pair(index))
            file.write(json.dumps(found[-1]) + "\n")
            file.flush()
    count, refused = (sum(one[name] for one in found) for name in ("read", "refused"))
    wrong = [text for one in found for text in one["wrong"]]
    return "\n".join([f"{count} random logs read, {refused} refused, {len(wrong)} contradictions.", *wrong[:40]])


def _pair(index: int) -> dict[str, Any]:
    """Two random logs of one family, read and compared; of three pairs in turn both rise, both fall, and one falls."""
    names = [name for name in FAMILIES if name not in SLOW or index % 100 == 0]
    name, rng = names[index // 2 % len(names)], np.random.default_rng([31, index])
    pair: list[Analysis] = []
    for run, falls in zip("ab", ((False, False), (True, True), (False, True))[index // 2 // len(names) % 3]):
        item = replace(simulate(FAMILIES[name], rng).item, run=run)
        try:
            item = replace(item, pass_rate_N=1 - item.pass_rate_N) if falls else item
            pair.append(analyse(item, Options(checks=False)))
        except FitError:
            continue
    wrong = [text for found in pair for text in of_fit(found)]
    wrong += of_comparison(compare(pair)[0]) if len(pair) == 2 else []
    return {"read": len(pair), "refused": 2 - len(pair), "wrong": [f"{name} {index}: {text}" for text in wrong]}
