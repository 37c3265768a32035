"""The answer in one sentence for each task: who leads, how sure that is, and what more compute would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.numbers import percent, quantity, with_interval

SURE = 0.95
LIKELY = 0.8


def answers(
    tasks: Sequence[str], fits: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """One entry `{"task", "text", "verdict", "note"}` for each task.

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
            reasons = "; ".join(dict.fromkeys(str(fit["refused"]) for fit in mine if "refused" in fit))
            text = f"No fit yet: {reasons or 'no evaluations'}."
            found.append({"task": task, "text": text, "verdict": "", "note": ""})
            continue
        if task in ranked:
            leader = ranked[task]["entries"][0]
            [fit] = [fit for fit in fitted if fit["run"] == leader["run"]]
            text = _lead(ranked[task])
        else:
            fit = fitted[0]
            text = _alone(fit)
        text += " " + _outlook(fit, name=task in ranked)
        single = task in ranked and any(entry["seeds"] == 1 for entry in ranked[task]["entries"])
        note = "Recipes with a single seed are judged by an assumed spread between runs." if single else ""
        verdict = fit["extension"]["reading"].partition(":")[0]
        found.append({"task": task, "text": text, "verdict": verdict, "note": note})
    return found


def _lead(one: Mapping[str, Any]) -> str:
    """The leader of a ranking by the rate at the common compute, and its probability against the strongest rival."""
    leader, *others = one["entries"]
    beats = {run: chance for run, chance in leader["beats"].items() if chance is not None}
    rate = with_interval(leader["value"], leader["value_interval"])
    start = f"{leader['run']} leads {len(others) + 1} recipes at {quantity(one['at'], one['unit'])} with {rate}"
    if not beats:
        return f"{start}."
    rival = min(beats, key=lambda run: beats[run])
    chance = beats[rival]
    sure = "surely" if chance >= SURE else "probably" if chance >= LIKELY else "not surely"
    text = f"{start}; it is {sure} better than {rival} ({percent(chance)})"
    close = [run for run, chance in beats.items() if chance < SURE and run != rival]
    if close:
        text += f", and not surely better than {_few(close)} either"
    return text + "."


def _alone(fit: Mapping[str, Any]) -> str:
    here = fit["rates"][0]
    text = (
        f"{fit['run']} has reached {with_interval(here['value'], here['interval'])} after "
        f"{quantity(here['compute'], fit['unit'])}"
    )
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
