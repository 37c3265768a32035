"""Output of commands about runs in every state, and of those that train or generate, with that part stood in for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scalelab.store.lines import read_lines
from tests.helpers.small_runs import step_line
from tests.helpers.view_runs import made_run, write_lines

NOW = 2e9
"""The time that the texts are written at."""

GOES_ON: dict[str, Any] = {
    "time": NOW - 3, "doing": "trains step 7", "node": "elsewhere", "pid": 7, "started": "1", "step": 6, "steps": 40,
    "compute": 0.75, "unit": "GPU-hours", "evaluation": None, "waits": ["groups of step 7, for 2:31"],
    "stragglers": ["generator 1: it has made no token for 95 s"],
    "actors": [
        {"name": "generator 0", "doing": "generates", "seconds": 61.0, "silent": 0.4, "version": 6, "node": "n1",
         "pid": 11},
        {"name": "generator 1", "doing": "pauses", "seconds": 86_400.0, "silent": 95.0, "version": 5, "node": "n2",
         "pid": 12},
        {"name": "trainer", "doing": "waits", "seconds": None, "silent": -1.0},
        "no actor",
    ],
}  # fmt: skip
PACED = {"budget": {"steps": 40, "hours": None, "hour_price": 2.5}, "planned_step_compute": 0.1}
PRICED_OUT = {"budget": {"steps": 40, "hours": 2.0}, "planned_step_compute": None, "compute_unit": "H100-hours"}
STATES: dict[str, tuple[int, dict[str, Any], dict[str, Any] | None, float]] = {
    "going": (6, {"status": "running"}, GOES_ON, 3),
    "paced": (12, {"status": "running", **PACED}, GOES_ON, 3),
    "priced_out": (12, {"status": "interrupted", **PRICED_OUT}, None, 3),
    "too_few_steps": (7, {"status": "interrupted", **PACED}, None, 3),
    "enough_steps": (8, {"status": "interrupted", **PACED}, None, 3),
    "silent": (6, {"status": "running"}, GOES_ON, 601),
    "not_silent": (6, {"status": "running"}, GOES_ON, 600),
    "silent_without_status": (6, {"status": "running"}, None, 4000),
    "late": (6, {"status": "running"}, {**GOES_ON, "time": NOW - 60}, 3),
    "gone_here": (6, {"status": "running"}, {**GOES_ON, "node": "here", "pid": 2**22 + 1}, 3),
    "failed": (6, {"status": "failed", "reason": "the disk is full"}, GOES_ON, 90),
    "finished": (6, {"status": "finished", **PACED}, {**GOES_ON, "step": "six", "steps": 2.5}, 90),
}
"""Runs by name: their steps, facts of the manifest, `status.json`, and the seconds since the last line."""


def printed(command: str) -> str:
    """A command and all that it prints, as `approved` writes it."""
    from tests.helpers.approved import printed as of_command

    return of_command(command)


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """A folder of the current one that is gone afterwards."""
    path = Path(name)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def states() -> dict[str, str]:
    """Output of `status` and `list` about runs in every state."""
    from scalelab.view.run import ViewedRun

    viewed = mock.patch.object(ViewedRun.__init__, "__defaults__", (lambda: NOW,))  # its clock
    now, here = mock.patch("time.time", return_value=NOW), mock.patch("socket.gethostname", return_value="here")
    with folder("states") as root, now, here, viewed:
        for name, (steps, facts, status, quiet) in STATES.items():
            run = shutil.copytree("whole", root / name)
            write_lines(run / "metrics.jsonl", [step_line(step) for step in range(1, steps + 1)])
            manifest = json.loads((run / "manifest.json").read_text())
            (run / "manifest.json").write_text(json.dumps(manifest | facts))
            if status is not None:
                (run / "status.json").write_text(json.dumps(status))
            for file in (one for one in run.iterdir() if one.is_file()):
                os.utime(file, (NOW - quiet, NOW - quiet))
        lost = [{"time": 60.0 * n, "event": "lost", "name": f"generator {n}", "error": "it died"} for n in range(7)]
        write_lines(root / "failed/faults.jsonl", [*lost, {"time": None, "event": "lost", "name": "last"}, {}])
        asked = [f"status states/{name}{' --wide' * (name == 'going')}" for name in STATES]
        asked += ["status states/paced --json", "status states/gone_here --json", "list --runs states"]
        return {command: printed(command) for command in asked}


@contextmanager
def stood_in(**modules: Mapping[str, Any]) -> Iterator[None]:
    """Put other modules in the place of those that load engines, and leave the process's signals alone."""
    made = {f"scalelab.session.{name}": SimpleNamespace(**held) for name, held in modules.items()}
    with (
        mock.patch.dict(sys.modules, made),
        mock.patch("scalelab.commands.run.heed_signals"),
        mock.patch("scalelab.commands.run._prepare"),
        mock.patch("scalelab.commands.run.demand_engines"),
    ):
        yield


def runs() -> dict[str, str]:
    """Output of `run` about runs that have ended, and about families."""
    told: dict[str, str] = {}
    notes: list[str] = []

    def made(out: Path, resolved: Any, **more: Any) -> Path:
        shutil.rmtree(out, ignore_errors=True)
        made_run(out, rollouts=False, **more)
        (out / "config.gin").write_text(resolved.config_gin())
        return out

    def execute(resolved: Any, out: Path, *_: Any) -> Path:
        return made(out, resolved, seed=resolved.run.seed, evaluations=2 * resolved.run.seed or 16)

    def branch(asked: Any, parent: Any, at: tuple[Path, int | None], start: Any, out: Path, *_: Any) -> None:
        notes.append(f"{asked.name} from step {at[1]} of {at[0]}, which is {parent.name}: {start is parent.run}")
        made(out, asked, evaluations=3)

    def resume(path: Path, own: Any, asked: Any, *_: Any) -> None:
        notes.append(f"{path} of seed {own.run.seed} goes on, asked for {asked and asked.run.seed}")

    with (
        folder("ended"),
        stood_in(
            session={"execute": execute, "resume": resume},
            branch={"branch": branch, "split": _split},
            live_page={"live_page": lambda *_: nullcontext()},
        ),
    ):
        for command in (
            "run quickstart --out ended/one",
            "run quickstart --out ended/two --set Run.seed=1",
            "run quickstart --out ended/one --json",
            "run ended/one --resume --json",
            "run ended/one/config.gin --resume --set Run.seed=3 --json",
            "run quickstart --resume --out ended/one --json",
            "run --from ended/one@150 --out ended/three --json",
            "run recipes_miniature --from ended/one",
            "run recipes_miniature/scalerl --from ended/one --out ended/four --json",
        ):
            told[command] = printed(command) + "".join(f"done: {note}\n" for note in notes)
            notes.clear()
        told |= _families(lambda member, **more: made(member.path, member.resolved, **more))
    return told


def _split(source: str) -> tuple[Path, int | None]:
    path, _, step = source.partition("@")
    return Path(path), int(step) if step else None


def _families(made: Callable[..., Path]) -> dict[str, str]:
    """Output of `run` about families whose members are finished, and about one whose members end in every way."""
    from scalelab.experiment import load
    from scalelab.sweep.members import members
    from scalelab.sweep.sweep import Ended, Sweep

    told = {}
    family = {name: one for name, one in load("recipes_miniature").items() if name.endswith(("scalerl", "magistral"))}
    found = members("recipes_miniature", family, (), [0, 1], Path("ended/family"))
    for place, member in enumerate(found):
        run = made(member, seed=place, A=0.6 + 0.1 * (place % 2), evaluations=16)
        for name in ("evals.jsonl", "metrics.jsonl"):
            hours = {"compute_by_role": {"trainer": 0.75, "generator": 0.375 + place}}
            write_lines(run / name, [line | hours for line in read_lines(run / name)])
    asked = "run recipes_miniature --only scalerl --only magistral --out ended/family"
    told[f"{asked} --seeds 0 1"] = printed(f"{asked} --seeds 0 1")
    told["--json"] = printed(f"{asked} --json")
    told["one recipe"] = printed("run recipes_miniature --only scalerl --seeds 0 1 --out ended/family")
    for endings in (("failed", "finished"), ("interrupted", "not started"), ("stopped", "finished before")):
        ended = [Ended(member, ending, f"why {ending}") for member, ending in zip(found, endings)]  # type: ignore[arg-type]
        with mock.patch.object(Sweep, "run", return_value=ended):
            told[" ".join(endings)] = printed(f"{asked}{' --json' * (endings[0] != 'failed')}")
    return told


def evaluations() -> dict[str, str]:
    """Output of `eval` and `sft` about what engines made."""
    lines = [
        {"step": step, "task": task, "n_prompts": 40, "k": k, "pass_rate": 0.3 + step / 1000, "stderr": 0.0312,
         "mean_length": 81.6, "metrics": {f"pass@{k}": {"value": 0.75}, "passed": {"value": 0.5}} if k > 1 else
         {"passed": {"value": 0.5}}}
        for step in (0, 150) for task, k in (("gsm8k", 4), ("aime", 1))
    ]  # fmt: skip
    scores = [
        SimpleNamespace(
            task="math",
            evaluation=SimpleNamespace(
                n_prompts=40, k=4, truncated=0.0125, mean_length=81.6, outcomes={"passed": 90, "failed": 70}
            ),
            mean_at_k={"mean_at_k": 0.5625, "stderr": 0.0312},
            pass_at_k={k: {"pass_at_k": 0.5 + k / 10, "stderr": 0.02 * k} for k in (1, 4, 2)},
            record=lambda: {"pass_rate": 0.5625},
        )
    ]
    told: dict[str, str] = {}

    def evaluate_model(model: Any, asked: Any, out: Path | None) -> list[Any]:
        told["asked"] = f"{model.run and model.run.seed} {vars(asked)} {out}"
        return scores

    def evaluate_run(path: Path, resolved: Any, steps: list[int] | None, _: Any) -> list[Any]:
        told["asked"] = f"{path} {resolved.run.seed} {steps}"
        return lines

    def fine_tune(run: Any, out: Path, _: Any) -> dict[str, Any]:
        return {"steps": 30, "held_out_loss": [[0, 2.5], [30, 1.25]] if run.seed else []}

    model = SimpleNamespace(run=None)
    with (
        stood_in(
            evaluate_run={"evaluate_run": evaluate_run},
            evaluate_model={"evaluate_model": evaluate_model, "EvaluationRequest": SimpleNamespace},
            only_sft={"fine_tune": fine_tune},
        ),
        mock.patch("scalelab.start.model_folder.find_model", return_value=model),
        mock.patch("scalelab.commands.sft.demand_engines"),
        mock.patch("scalelab.commands.sft.heed_signals", create=True),
        mock.patch("scalelab.signals.heed_signals"),
    ):
        for number, command in enumerate((
            "eval recorded/scalerl/seed_0",
            "eval recorded/scalerl/seed_0 --steps 50 100 --json",
            "eval models --task gsm8k gsm8k math_500",
            "eval models",
            "eval models --task gsm8k --k 4 --prompts 2 --seed 3 --max-tokens 1 --temperature 0.5 --ask chat --think",
            "eval models --task gsm8k --ask plain --no-think --temperature 0 --out found.jsonl --json",
            "eval models --task gsm8k --set A.b=1",
            "sft scalerl_8b_miniature --out models",
            "sft scalerl_8b_miniature --out models --set Run.seed=1",
            "sft scalerl_8b_miniature --out models --json",
        )):  # fmt: skip
            said = printed(command)
            told[f"{number}"] = said + (f"asked {told.pop('asked')}\n" if "asked" in told else "")
    return told
