"""TensorBoard event files as tables: one column for each tag, one row for each step."""

from __future__ import annotations

from pathlib import Path

from scalelab.errors import LabError
from scalelab.guarded import LONGEST_FILE, check_table, inside
from scalelab.reading.table import Table


def is_tensorboard(path: Path) -> bool:
    """True for an event file, or a folder with event files in it."""
    return "tfevents" in path.name if path.is_file() else path.is_dir() and any(path.glob("*tfevents*"))


def read_tensorboard(path: Path) -> Table:
    """Scalars of TensorBoard event files.

    Raises:
        LabError: tensorboard is not installed, or a file is too long or leads out of the folder.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise LabError(f"{path}: reading TensorBoard events needs tensorboard: pip install tensorboard") from None
    files = [path] if path.is_file() else sorted(path.glob("*tfevents*"))
    for file in files:
        real = inside(file.parent, file.name)
        if real is not None and real.stat().st_size > LONGEST_FILE:
            raise LabError(f"{file}: more than {LONGEST_FILE:,} bytes, which is not read: export the scalars as CSV")
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    scalars: dict[str, dict[int, float]] = {}
    for tag in events.Tags()["scalars"]:
        scalars[tag] = {event.step: float(event.value) for event in events.Scalars(tag)}
    for tag in events.Tags()["tensors"]:  # newer writers store scalars as tensors
        values = {
            event.step: float(event.tensor_proto.float_val[0])
            for event in events.Tensors(tag)
            if event.tensor_proto.float_val
        }
        scalars |= {tag: values} if values else {}
    steps = sorted({step for values in scalars.values() for step in values})
    check_table(path, len(steps), len(scalars) + 1)
    cells = {"step": steps} | {tag: [values.get(step) for step in steps] for tag, values in scalars.items()}
    run = path.resolve().name if path.is_dir() else path.resolve().parent.name
    return Table(path, "TensorBoard events", cells, steps, run, counted="step")
