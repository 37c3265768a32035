"""Runs in the virtual world that are as small as the loop allows and still learn: a coin decides what is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from smallest_run import SMALLEST

COIN = '''
from dataclasses import dataclass
from tasks.math.miniature import MathMiniature
from tasks.types import verdict


class Coin:
    """Rewards a completion by its text's parity: something to learn from, where the smallest model solves nothing."""

    def verify(self, items):
        return [verdict("passed" if sum(text.encode()) % 2 else "failed") for _, text in items]

    def close(self):
        pass


@dataclass(frozen=True)
class CoinMath(MathMiniature):
    def verifier(self):
        return Coin()
'''

EXPERIMENT = '''
"""Quickstart with a coin for a verifier."""
from scalelab.experiment import Experiment

experiment = Experiment(
    fragments=(
        "model/scout_miniature", "recipe/scalerl", "tasks/math_code_miniature", "scale/miniature", "cluster/laptop",
        "budget/quickstart", "cluster/virtual_80",
    ),
)
'''

SETTINGS = {
    **SMALLEST,
    "Retention.train_every": 3,
    "Run.tasks": "(@coin.CoinMath(),)",
    "Run.task_weights": "None",
    "Cluster.generators": 4,
    "Cluster.trainers": 2,
    "GeneratorConfig.max_sequences": 4,
    "Run.checkpoint_every": 3,
    "Budget.steps": 7,
    "Evaluation.every": 2,
    "Evaluation.prompts": 4,
    "Evaluation.samples": 2,
    "CheckpointPolicy.keep_last": 9,
    "OptimizerConfig.lr": "3e-3",
}


def command(folder: Path, out: Path, *more: str) -> list[str]:
    """The command line of a run; `folder` gets the experiment's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coin.py").write_text(COIN)
    (folder / "coins.py").write_text(EXPERIMENT)
    chosen = any(one.startswith(("Run.schedule", "PipelineRL.k")) for one in more)
    given = {setting.split("=")[0] for setting in more}
    settings = {name: value for name, value in SETTINGS.items() if name not in given}
    settings |= {} if chosen else {"PipelineRL.k": 2}
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "scalelab", "run", str(folder / "coins.py"), "--out", str(out), *sets, *more]


def environment(folder: Path) -> dict[str, str]:
    """With a cache for base models of the test's own."""
    return {**os.environ, "SCALELAB_CACHE": str(folder / "cache")}


def run(folder: Path, name: str, *more: str, timeout: float = 900) -> Path:
    """A finished run."""
    return run_all(folder, {name: more}, timeout)[name]


IN_TURN = """
import json, sys
from scalelab.cli import main
sys.exit(next((code for one in json.loads(sys.argv[1]) if (code := main(one))), 0))
"""


def run_all(folder: Path, members: Mapping[str, Sequence[str]], timeout: float = 900) -> dict[str, Path]:
    """Finished runs, made in turn by one process."""
    outs = {name: folder / name for name in members}
    in_turn(folder, [command(folder, outs[name], *more)[3:] for name, more in members.items()], timeout)
    return outs


def in_turn(folder: Path, commands: Sequence[Sequence[str]], timeout: float = 900) -> None:
    """Command lines that succeed in one process: to import all that a run needs takes longer than a small run."""
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, json.dumps(commands)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
