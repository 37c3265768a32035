"""One adapter per tracker: Weights & Biases, MLflow, Trackio, and alerts by webhook and mail.

Where a run goes is said by each tracker's own environment variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, …); the
project is called scalelab unless they name another. A package is imported by the adapter that needs it alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalelab.watch.alerts import Alerts, channel
from scalelab.watch.tracker import COLUMNS, Rows, Tracker, Values

PROJECT = "scalelab"


@dataclass
class Opening:
    """Facts of the run for an adapter.

    Attributes:
        folder: the run's folder.
        facts: its manifest.
        settings: its configuration.
        identity: what the tracker calls the run, if it was open before; adapters put a new one here.
    """

    folder: Path
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    identity: str | None

    @property
    def name(self) -> str:
        """The run's readable name: the path below `runs`, such as recipes/dapo/seed_0."""
        parts = self.folder.resolve().parts
        below = parts[parts.index("runs") + 1 :] if "runs" in parts[:-1] else parts[-1:]
        return "/".join(below)

    @property
    def config(self) -> dict[str, Any]:
        """Settings and facts, as plain values."""
        facts = {key: value for key, value in self.facts.items() if isinstance(value, str | int | float | bool)}
        return {**facts, **self.settings}


class WandB:
    """Weights & Biases, online or (`WANDB_MODE=offline`) in the run's folder, to be sent with `wandb sync`.

    Pass rates and fits are drawn against compute, everything else against the optimiser step. W&B cannot forget: steps
    that are undone are drawn twice, and `rollbacks` in the summary counts how often.
    """

    def __init__(self, opening: Opening) -> None:
        import wandb

        self._wandb, self._rollbacks = wandb, 0
        opening.identity = opening.identity or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", opening.name),
            id=opening.identity,
            resume="allow",
            dir=str(opening.folder),
            config=opening.config,
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("compute")
        self._run.define_metric("train/*", step_metric="step")
        self._run.define_metric("eval/*", step_metric="compute")
        self._run.define_metric("fit/*", step_metric="compute")
        self._compute = 0.0

    def numbers(self, step: int, values: Values) -> None:
        """Log numbers beside their step, and those of an evaluation beside their compute."""
        self._compute = next((value for name, value in values.items() if name.endswith("/compute")), self._compute)
        if values:
            self._run.log({**values, "step": step, "compute": self._compute})

    def alarm(self, step: int, name: str, text: str) -> None:
        """Raise a W&B alert."""
        self._run.alert(title=f"{name} at step {step}", text=text)

    def completions(self, step: int, rows: Rows) -> None:
        """Log a table."""
        table = self._wandb.Table(columns=list(COLUMNS), data=[[row[name] for name in COLUMNS] for row in rows])
        self._run.log({"completions": table, "step": step})

    def go_back(self, step: int) -> None:
        """Count the return in the summary."""
        self._rollbacks += 1
        self._run.summary.update({"rollbacks": self._rollbacks, "rolled_back_to": step})

    def close(self, status: str) -> None:
        """Finish, with an exit code that W&B shows as finished, crashed or failed."""
        self._run.summary.update({"status": status})
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """An MLflow tracking server or store, as `MLFLOW_TRACKING_URI` says; the experiment is `MLFLOW_EXPERIMENT_NAME`."""

    def __init__(self, opening: Opening) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        if opening.identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else self._client.create_experiment(name)
            opening.identity = self._client.create_run(number, run_name=opening.name).info.run_id
            params = [Param(_word(key), str(value)[:6000]) for key, value in opening.config.items()]
            for first in range(0, len(params), 100):  # the most that MLflow takes at once
                self._client.log_batch(opening.identity, params=params[first : first + 100])
        else:
            self._client.update_run(opening.identity, status="RUNNING")
        self._client.log_batch(opening.identity, tags=[RunTag("scalelab.folder", str(opening.folder.resolve()))])
        self._id = opening.identity

    def numbers(self, step: int, values: Values) -> None:
        """Log metrics at their step."""
        now = _milliseconds()
        metrics = [self._metric(_word(name), value, now, step) for name, value in values.items()]
        for first in range(0, len(metrics), 1000):  # the most that MLflow takes at once
            self._client.log_batch(self._id, metrics=metrics[first : first + 1000])

    def alarm(self, step: int, name: str, text: str) -> None:
        """Keep the newest alarm of each kind as a tag."""
        self._client.set_tag(self._id, f"alarm.{name}", text[:5000])

    def completions(self, step: int, rows: Rows) -> None:
        """Log the rows as a JSON artifact."""
        text = json.dumps(list(rows), ensure_ascii=False, indent=1)
        self._client.log_text(self._id, text, f"completions/step_{step:06d}.json")

    def go_back(self, step: int) -> None:
        """Mark the return by a tag: MLflow keeps both values of a repeated step."""
        self._client.set_tag(self._id, "rolled_back_to", str(step))

    def close(self, status: str) -> None:
        """Set the run's status."""
        kinds = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, kinds.get(status, "FAILED"))


class Trackio:
    """Trackio's local database (`TRACKIO_DIR`), or the Space that `TRACKIO_SPACE_ID` names."""

    def __init__(self, opening: Opening) -> None:
        import trackio

        self._trackio = trackio
        opening.identity = opening.identity or opening.name
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=opening.identity,
            config={key: value for key, value in opening.config.items() if not key.startswith("_")},
            resume="allow",
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def numbers(self, step: int, values: Values) -> None:
        """Log numbers at their step."""
        if values:
            self._run.log(dict(values), step=step)

    def alarm(self, step: int, name: str, text: str) -> None:
        """Raise a Trackio alert."""
        self._run.alert(title=f"{name} at step {step}", text=text)

    def completions(self, step: int, rows: Rows) -> None:
        """Log a table."""
        table = self._trackio.Table(columns=list(COLUMNS), data=[[row[name] for name in COLUMNS] for row in rows])
        self._run.log({"completions": table}, step=step)

    def go_back(self, step: int) -> None:
        """Mark the return: Trackio keeps both values of a repeated step."""
        self._run.log({"rolled_back_to": step}, step=step)

    def close(self, status: str) -> None:
        """Send the rest."""
        self._run.finish()


ADAPTERS: dict[str, Callable[[Opening], Tracker]] = {
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
    "webhook": lambda opening: Alerts(opening.name, channel("webhook")),
    "mail": lambda opening: Alerts(opening.name, channel("mail")),
}
"""Adapter of each name that `Run.trackers` takes."""


def _word(name: str) -> str:
    """A name that MLflow takes: letters, digits, and `_-./ :`."""
    return re.sub(r"[^\w\-./ :]", "_", name, flags=re.ASCII)


def _milliseconds() -> int:
    return round(time.time() * 1000)
