"""The answer in one sentence for each task: who leads, how sure that is, and what more compute would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.curves import Curve
from scalelab.curves.compare import measured_rate
from scalelab.numbers import counted, percent, quantity, with_interval

CLEAR = 0.95
"""Probability below which a run is named as close to the leader. Words such as `better` are the comparison's alone."""

REASONS = 3
"""Reasons for which curves carry no fit that are told; a page has all of them beside its curves."""


def answers(
    tasks: Sequence[str], fits: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """One entry `{"task", "text", "lead", "verdict", "note"}` for each task; `lead` is the first half of the text.

    Args:
        tasks: the tasks, in order.
        fits: records of `Judge.fit`, refused ones included.
        comparisons: records of `Judge.compare`.

    `verdict` is `extend`, `stop`, `unclear` or "" where no curve of the task carries a fit.
    """
    ranked = {one["task"]: one for one in comparisons}
    found = []
    for task in tasks:
        mine = [fit for fit in fits if fit["task"] == task]
        fitted = [fit for fit in mine if "refused" not in fit]
        if not fitted:
            reasons = list(dict.fromkeys(str(fit["refused"]) for fit in mine if "refused" in fit))
            told = "; ".join(reasons[:REASONS]) + f"; and {len(reasons) - REASONS} more" * (len(reasons) > REASONS)
            text = f"No fit yet: {told or 'no evaluations'}."
            found.append({"task": task, "text": text, "lead": text, "verdict": "", "note": ""})
            continue
        if task in ranked:
            leader = ranked[task]["entries"][0]
            [fit] = [fit for fit in fitted if fit["run"] == leader["run"]]
            lead, more = _lead(ranked[task])
        else:
            fit = fitted[0]
            others = len(mine) - len(fitted)
            lead = _entry_of_one(fit)
            more = f" {counted(others, 'other recipe')} {'have' if others > 1 else 'has'} no fit." * (others > 0)
        if task in ranked and (forgetting := [f"{one['run']} {one['fall_text']}" for one in fitted if one["forgets"]]):
            more += f" {'; '.join(forgetting[:3])}{'; …' * (len(forgetting) > 3)}."
        text = f"{lead}{more} {_outlook(fit, name=task in ranked)}"
        note = _spread_note(ranked[task]) if task in ranked else ""
        verdict = fit["extension"]["reading"].partition(":")[0]
        found.append({"task": task, "text": text, "lead": lead, "verdict": verdict, "note": note})
    return found


def _spread_note(one: Mapping[str, Any]) -> str:
    """Source of the spread by which recipes with a single seed are judged, in a sentence; empty without any."""
    if all(entry["seeds"] > 1 for entry in one["entries"]):
        return ""
    spread = "the spread of the others' seeds" if one["spread_measured"] else "an assumed spread between runs"
    return f"Recipes with a single seed are judged by {spread}."


def by_measured_rate(curves: Sequence[Curve]) -> list[Curve]:
    """The curves of one task, the highest measured rate at the largest compute that all have reached first."""
    at = _common(curves)
    return sorted(curves, key=lambda item: -np.nan_to_num(measured_rate(item, at), nan=-1.0))


def measured(task: str, curves: Sequence[Curve]) -> dict[str, str]:
    """An entry of `answers` from the evaluations alone, for the time until the curves are fitted."""
    at = _common(curves)
    ranked = [(item, rate) for item in by_measured_rate(curves) if np.isfinite(rate := measured_rate(item, at))]
    if not ranked:
        text = (
            "No fit yet: no evaluations." if not curves else f"Measured so far: {len(curves)} curves, none to the end."
        )
        return {"task": task, "text": text, "lead": text, "verdict": "", "note": ""}
    (leader, rate), others = ranked[0], ranked[1:]
    where = f"Measured so far ({quantity(at, leader.unit)})"
    text = f"{where}: {leader.run} has a pass rate of {rate:.3f}."
    if others:
        after = _few([f"{item.run} {value:.3f}" for item, value in others[:2]])
        text = f"{where}: {leader.run} has the highest pass rate of {len(curves)} recipes, {rate:.3f}; next {after}."
    note = "These are means of the last evaluations; how sure the order is, the fits will say."
    return {"task": task, "text": text, "lead": text, "verdict": "", "note": note}


def _common(curves: Sequence[Curve]) -> float:
    """The largest compute that all curves have reached."""
    return min((float(item.compute_N.max(initial=0.0)) for item in curves), default=0.0)


def _lead(one: Mapping[str, Any]) -> tuple[str, str]:
    """The leader of a ranking and its probability against the strongest rival; then the others that are close."""
    leader = one["entries"][0]
    beats = {run: chance for run, chance in leader["beats"].items() if chance is not None}
    rate = with_interval(leader["value"], leader["value_interval"])
    start = f"{leader['run']} leads {_rivals(one)} at {quantity(one['at'], one['unit'])} with {rate}"
    if not beats:
        return f"{start}.", ""
    rival = min(beats, key=lambda run: beats[run])
    chance = beats[rival]
    close = [f"{run} ({percent(chance)})" for run, chance in beats.items() if chance < CLEAR and run != rival]
    more = f" It is also close to {_few(close)}." if close else ""
    return f"{start}, above {rival} with a probability of {percent(chance)}.", more


def _rivals(one: Mapping[str, Any]) -> str:
    """Number of recipes that are ranked, and of those that are not, with the reason."""
    ranked = len(one["entries"])
    unfitted = one["of"] - one["left_out"] - ranked
    others = ((unfitted, "without a fit"), (one["left_out"], "not compared"))
    apart = [f"{count} {why}" for count, why in others if count]
    return f"{ranked} recipes" + (f" of {one['of']} ({', '.join(apart)})" if apart else "")


def _entry_of_one(fit: Mapping[str, Any]) -> str:
    here = fit["rates"][0]
    text = (
        f"{fit['run']} has reached {with_interval(here['value'], here['interval'])} after "
        f"{quantity(here['compute'], fit['unit'])}"
    )
    if fit["forgets"]:
        return f"{text}. It {fit['fall_text']}; {fit['gain_seen']:.0%} of a sigmoid's fall was seen."
    if fit["A_stands"]:
        A = with_interval(fit["parameters"]["A"], fit["intervals"].get("A"))
        return f"{text} and heads for A = {A}, {fit['gain_seen']:.0%} of the gain seen."
    return f"{text}; where it ends cannot be told yet ({fit['gain_seen']:.0%} of a sigmoid's gain seen)."


def _outlook(fit: Mapping[str, Any], name: bool) -> str:
    """Gain of doubling the compute."""
    extension = fit["extension"]
    low, high = extension["interval"]
    gain = f"{extension['gain_if_doubled']:+.3f} ({low:+.3f} to {high:+.3f})".replace("-", "\u2212")
    who = f" {fit['run']}" if name else ""
    verdict = extension["reading"].partition(":")[0]
    advice = {"extend": "worth going on", "stop": "not worth going on", "unclear": "too close to call"}
    return f"Twice the compute would bring{who} {gain}: {advice.get(verdict, verdict)}."


def _few(names: Sequence[str]) -> str:
    shown = list(names)[:3]
    rest = len(names) - len(shown)
    if rest:
        return ", ".join(shown) + f" and {rest} more"
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
