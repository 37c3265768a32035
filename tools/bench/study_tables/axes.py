"""Axes on which the study's runs are judged: hours, steps, tokens, and hours where decoding costs less or more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from scalelab.commands.pricing import priced, step_price
from scalelab.curves import Curve
from scalelab.reading import Reading, read_with

HOURS = "hours"
"""Axis of the runs' own budget, on which all else is judged."""

DECODING = {"hours, decoding × ¼": 0.25, "hours, decoding × 4": 4.0}
"""Clusters on which a decoding step costs so many times what it cost in the runs."""

COLUMNS = {"steps": "step", "tokens": "tokens"}
"""Axes that are columns of the runs."""

AXES = (HOURS, *COLUMNS, *DECODING)


def read_axis(sources: Sequence[Path], axis: str) -> list[Curve]:
    """The curves of runs over one of `AXES`."""
    if axis in DECODING:
        return read_with(sources, Reading(), _repriced(DECODING[axis]))
    return read_with(sources, Reading({"compute": COLUMNS[axis]} if axis in COLUMNS else {}))


def _repriced(factor: float) -> Callable[[list[Curve]], list[Curve]]:
    """Puts the curves of one run over what its steps cost if decoding takes `factor` times as long."""

    def change(curves: list[Curve]) -> list[Curve]:
        recorded = json.loads((Path(curves[0].source) / "manifest.json").read_text())["rates"]
        rates = {name: seconds for name, seconds in recorded.items() if seconds is not None}
        rates |= {name: factor * rates[name] for name in ("step_seconds", "sequence_seconds")}
        price = step_price(curves, "h100", rates)  # the device gives no rate that is not named here
        return [priced(item, price) for item in curves]

    return change
