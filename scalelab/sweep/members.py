"""The runs of a sweep: one per member, setting and seed, with its folder and its state."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalelab.errors import LabError
from scalelab.experiment import Experiment, Resolved, resolve, resolve_experiment
from scalelab.guarded import open_whole
from scalelab.store.earlier import claimed_manifest
from scalelab.store.manifest import CONFIG
from scalelab.store.places import holds_run
from scalelab.sweep.grid import Point

MemberState = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    spec: str
    """Argument of `scalelab run` for it."""
    name: str
    """Readable name: the member's, and its seed where there are several."""
    sets: tuple[str, ...]
    """Bindings for `--set`, the seed's among them."""
    resolved: Resolved
    path: Path
    """The run's folder."""

    @property
    def devices(self) -> int:
        """Devices that the run holds."""
        return int(self.resolved.run.devices)

    def state(self) -> MemberState:
        """State of the run by its folder: new, unfinished or finished.

        Raises:
            LabError: the folder holds something else, or a run with another configuration.
        """
        if not self.path.exists() or not any(self.path.iterdir()):
            return "new"
        config = self.path / CONFIG
        if not config.is_file() or not holds_run(self.path):
            raise LabError(f"{self.path} is not empty and no run: move it away, or give another --out")
        if self._differs(config):
            raise LabError(
                f"{self.path} holds a run with another configuration (`scalelab show {self.spec} --diff {config}` says "
                "where it differs): move it away, or give another --out"
            )
        return "finished" if claimed_manifest(self.path).get("status") == "finished" else "unfinished"

    def _differs(self, config: Path) -> bool:
        """True if a run's settings are others; those that a later version added count as what they are by default."""
        try:
            return bool(resolve(str(config), imports=True).differences(self.resolved))
        except LabError:  # it binds what there is no more
            return True

    def command(self) -> list[str]:
        """The command that starts the run, or resumes it."""
        scalelab = [sys.executable, "-m", "scalelab", "run"]
        if self.state() == "unfinished":
            return [*scalelab, str(self.path), "--resume"]
        sets = [part for binding in self.sets for part in ("--set", binding)]
        return [*scalelab, self.spec, "--out", str(self.path), *sets]

    def spent(self) -> float:
        """Device-hours spent so far, evaluation included."""
        newest = [record for file in ("evals.jsonl", "metrics.jsonl") for record in _lines(self.path / file)[-1:]]
        return max((float(sum(record["compute_by_role"].values())) for record in newest), default=0.0)

    def whole_compute(self) -> float | None:
        """Compute of the whole run by its budget: its hours, or its steps at the pace so far; None before any pace."""
        budget, newest = self.resolved.run.budget, next(iter(self.evaluations().values()), None)
        paces = [float(newest["compute"]) / newest["step"] * budget.steps] if newest and newest["step"] else []
        return min([*paces, *([] if budget.hours is None else [float(budget.hours)])], default=None)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The newest line of `evals.jsonl` of each task."""
        return {record["task"]: record for record in _lines(self.path / "evals.jsonl")}


def members(
    spec: str,
    experiments: Mapping[str, Experiment],
    sets: Sequence[str],
    seeds: Sequence[int] | None,
    out: Path | None,
    points: Sequence[Point] = (Point("", ()),),
) -> list[Member]:
    """The runs of a family (or of one experiment over several seeds), everything about them checked.

    Args:
        spec: what the user called the family.
        experiments: its members by name, `family/member`.
        sets: bindings for all.
        seeds: values of `Run.seed`; None takes each member's own.
        out: folder of the family; None is `runs/FAMILY`.
        points: combinations of settings, each run for every member and seed.

    Returns:
        In the order of the members, seed by seed: `OUT/MEMBER/POINT/seed_S`, without MEMBER for an experiment that is
        no member of a family and without POINT where no settings are combined.

    Raises:
        LabError: a member does not resolve, or its folder is a run's.
    """
    if seeds and len(set(seeds)) < len(seeds):
        raise LabError(f"--seeds {' '.join(map(str, seeds))}: name each seed once")
    found = []
    for (name, experiment), point in itertools.product(experiments.items(), points):
        family, _, member = name.partition("/")
        root = (out or Path("runs") / (f"{family}_sweep" if point.name else family)) / member / point.name
        if holds_run(root):
            raise LabError(f"{root} is a run itself, its seeds need a folder of their own: give another --out")
        own = spec if spec.endswith((".gin", f"/{member}")) or not member else f"{spec}/{member}"
        for seed in seeds or (None,):
            bindings = (*sets, *point.sets, *(() if seed is None else (f"Run.seed={seed}",)))
            resolved = resolve_experiment(name, experiment, bindings, imports=True)
            path = root / f"seed_{resolved.run.seed}"
            label = " ".join(filter(None, (member, point.name))) or family
            found.append(
                Member(own, f"{label} seed {seed}" if seeds and len(seeds) > 1 else label, bindings, resolved, path)
            )
    return sorted(found, key=lambda one: list(seeds).index(one.resolved.run.seed)) if seeds else found


def _lines(path: Path, tail: int = 65_536) -> list[dict[str, Any]]:
    """The whole lines among the last bytes of a file that may be growing."""
    if not path.is_file():
        return []
    with open_whole(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - tail))
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1].split(b"\n")
    try:
        return [json.loads(line) for line in (whole if size <= tail else whole[1:]) if line]
    except ValueError as error:
        raise LabError(f"{path}: a line is not JSON ({error}); `scalelab check {path.parent}` names it") from None
