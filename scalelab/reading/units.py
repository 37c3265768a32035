"""Hours of several devices as hours of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from scalelab.arrays import Array
from scalelab.errors import LabError
from scalelab.hardware import DEVICES
from scalelab.reading.settings import Reading

DEVICE_HOURS = re.compile(r"(.+?)[-_ ]hours", re.IGNORECASE)


def convert_units(
    units: Sequence[str], run: str, reading: Reading, place: Callable[[int], str]
) -> tuple[str, Array, list[str]]:
    """Bring compute to one unit.

    Without `Reading.hours_of` all of it has to be in one unit already. With it, hours of other devices count by their
    speed: the rate that the user gives for the run or for the device, or else the ratio of the dense bf16 FLOP/s in the
    makers' data sheets.

    Args:
        units: unit of each evaluation; one for all if it is a single one.
        run: name of the run, which may have a rate of its own.
        reading: the device and its rates.
        place: file and row of an evaluation, by its index, for messages.

    Returns:
        The unit, the factor of each of `units` to it, and remarks on what was converted.

    Raises:
        LabError: units differ and none was named to convert them to, or a speed is not known.
    """
    present = list(dict.fromkeys(units))
    if reading.hours_of is None:
        if len(present) > 1:
            row = units.index(present[1])
            raise LabError(
                f"{place(row)}: mixed units, {present[1]} after {present[0]}; convert one, or count all in hours of "
                "one device: --hours-of h100"
            )
        return present[0], np.ones(len(units)), []
    factors = {unit: _factor(unit, run, reading, place(units.index(unit))) for unit in present}
    notes = [
        f"{unit} counted as {factor:.3g} {reading.hours_of.upper()}-hours each"
        for unit, factor in factors.items()
        if factor != 1
    ]
    return f"{reading.hours_of.upper()}-hours", np.array([factors[unit] for unit in units]), notes


def _factor(unit: str, run: str, reading: Reading, where: str) -> float:
    """Hours of `Reading.hours_of` that one hour of a unit is worth."""
    assert reading.hours_of is not None
    rates = {name.lower(): rate for name, rate in reading.device_rates.items()}
    if run.lower() in rates:
        return rates[run.lower()]
    hours = DEVICE_HOURS.fullmatch(unit)
    device = hours[1].lower() if hours else ""
    if device == reading.hours_of:
        return 1.0
    if device in rates:
        return rates[device]
    if device in DEVICES and reading.hours_of in DEVICES:
        return DEVICES[device].tflops / DEVICES[reading.hours_of].tflops
    raise LabError(
        f"{where}: how many {reading.hours_of.upper()}-hours one of {unit} is, is not known; give it: --hours-of "
        f"{reading.hours_of},{device or 'RUN'}=NUMBER (a device or a run), or one of {', '.join(DEVICES)}"
    )
