"""Run an experiment from Python: in a process of its own, with its progress printed as it goes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scalelab.errors import LabError
from scalelab.experiment import Experiment, resolve_experiment
from scalelab.notebook import Runs, load

UNNAMED = "notebook"
"""Name of an `Experiment` that has no file: its run is `runs/notebook`, `runs/notebook-2` and so on."""


def launch(
    experiment: str | Path | Experiment, sets: Mapping[str, object], out: str | Path | None, virtual: bool
) -> Runs:
    """Run an experiment to its end; see `scalelab.run_experiment`."""
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(experiment, Experiment):
            source = Path(scratch) / f"{UNNAMED}.gin"
            source.write_text(resolve_experiment(UNNAMED, experiment).config_gin(), encoding="utf-8")
        else:
            source = Path(experiment)
        options = [word for item in sets.items() for word in ("--set", _binding(*item))]
        options += ["--virtual"] if virtual else []
        options += ["--out", str(out)] if out is not None else []
        command = [sys.executable, "-m", "scalelab", "run", str(source), "--json", *options]
        return load([one["run"] for one in json.loads(_followed(command))["runs"]])


def _binding(key: str, value: object) -> str:
    """A setting as `--set` takes it; text may be a bare word or an object such as `@DAPO()`."""
    return f"{key}={value if isinstance(value, str) else repr(value)}"


def _followed(command: list[str]) -> str:
    """Run a command, print its lines as they come, and return what it prints in the end.

    Raises:
        LabError: its last line, where it fails.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last = ""
        try:
            for line in process.stderr:
                last = line.strip() or last
                if not last.startswith("scalelab: "):
                    print(line, end="", flush=True)
            printed = process.stdout.read()  # one object, once the run has ended
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # the run ends in order, with a checkpoint
            process.wait()
            raise
    if process.returncode:
        raise LabError(last.removeprefix("scalelab: ") or f"{' '.join(command)} ended with code {process.returncode}")
    return printed
