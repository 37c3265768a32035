"""Write a run's steps, evaluations and alarms, each once its data are on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moe.model.families import routed_experts
from moe.model.size import parameters
from scalelab.errors import LabError
from scalelab.hardware import device
from scalelab.recipe.step import METRICS, summarise
from scalelab.rollout.evaluation import Graded, evaluate
from scalelab.rollout.types import AnyCompletion, Request
from scalelab.run.books import RunBooks
from scalelab.run.config import Run
from scalelab.run.coroutines import in_own_thread
from scalelab.run.evaluations import EvaluationPoint
from scalelab.run.ports import Engines, Graders, WeightsT
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import completions_name
from scalelab.store.retention import prune_completions, prune_training
from scalelab.watch.monitors import Watch
from scalelab.watch.progress import Progress
from tasks.types import Prompt, Verdict

if TYPE_CHECKING:
    from moe.train.result import StepResult
    from scalelab.run.work import Step

Record = dict[str, Any]

STOOD_STILL = 30.0
"""Seconds between two charges after which the run is taken to have stood still: it charges every second."""


class Journal:
    """Writer of a run's lines, which also charges the ledger.

    Args:
        run: the run.
        books: its books.
        engines: for counters.
        graders: for counters.
        folder: takes the lines.
        progress: takes evaluations and alarms for people.
        clock: seconds of the world's time.
        simulated: whether that is no wall clock. Then the wall clock's fields go to `wall.jsonl`, so that all other
            files repeat to the last bit.
    """

    def __init__(
        self,
        run: Run,
        books: RunBooks,
        engines: Engines[Request, AnyCompletion, WeightsT],
        graders: Graders[Prompt, AnyCompletion, Verdict],
        folder: RunFolder,
        progress: Progress,
        clock: Callable[[], float],
        simulated: bool,
    ) -> None:
        self._run, self._books, self._engines, self._graders = run, books, engines, graders
        self._folder, self._progress, self._clock, self._simulated = folder, progress, clock, simulated
        self._size = parameters(run.model.to_hf())
        self._beside = run.evaluation.engines_of(run.cluster.generators) > 0
        self._watch: Watch
        self._charged = 0.0
        self._busy: dict[str, float] = {}
        self._began, self._earlier = time.monotonic(), folder.wall_seconds
        self._lost = 0.0
        self.broken = False
        """True while the whole run stands still for a fault, which is what the time is charged to."""
        self.begin()

    def begin(self) -> None:
        """Begin a stretch: charge from now on, with monitors that have seen no step."""
        self._charged, self._busy = self._clock(), self._engine_seconds()
        self._watch = Watch(self._run.monitors, self._run.cluster.generators, routed_experts(self._run.model))

    # The ledger.

    def charge(self, stepping: bool) -> None:
        """Charge the time since the last charge, split by the engines' counters.

        Args:
            stepping: whether the trainer was at work.
        """
        now, busy = self._clock(), self._engine_seconds()
        worked = {kind: busy[kind] - self._busy[kind] for kind in ("train", "eval")}
        total = sum(worked.values())
        share = worked["eval"] / total if total > 0 else 0.0
        if self._books.evaluated < 0 and not self._simulated and not self._beside:  # nothing is trained on before it
            share = 1.0
        seconds = now - self._charged
        self._lost += max(0.0, busy["lost"] - self._busy["lost"])
        self._lost -= self._books.ledger.advance(
            seconds,
            evaluation_share=share,
            trainer_idle=not stepping,
            lost=self._lost,
            broken=self.broken or (not self._simulated and seconds > STOOD_STILL),
        )
        self._charged, self._busy = now, busy

    def _engine_seconds(self) -> dict[str, float]:
        totals = self._engines.totals()
        busy = {kind: totals.get(f"busy_seconds_{kind}", 0.0) for kind in ("train", "eval")}
        return busy | {"lost": totals.get("lost_device_seconds", 0.0)}

    # The lines.

    async def keep(self, step: Step, result: StepResult | None) -> None:
        """Write the completions of a step that are to be kept, beside the event loop and before the step's line."""
        if result is not None and result.logprobs is not None:
            step_number, logprobs = self._books.version + 1, result.logprobs
            await in_own_thread(lambda: self._folder.keep_trained(step_number, step.rollouts, logprobs))

    def stepped(
        self, names: list[str], step: Step, result: StepResult | None, seconds: dict[str, float]
    ) -> LabError | None:
        """Write an optimiser step just after it was booked.

        Returns:
            The reason to stop the run, if there is one.
        """
        books = self._books
        totals = self._engines.totals()
        books.completions += step.completions
        books.tokens += step.tokens
        books.generated += step.generated
        record = {
            "step": books.version,
            "version": books.version,
            **_ledger(books.ledger.hours, self._run.compute_unit),
            **_trained(result),
            **step.metrics,
            "groups": names,
            "seconds": seconds,
            "generator_idle_seconds": totals.get("idle_seconds", 0.0),
            "update_bytes": totals.get("update_bytes", 0.0),
            "fetched_bytes": totals.get("fetched_bytes", 0.0),
            "recomputed_tokens": totals.get("recomputed_tokens", 0.0),
            "generator_lag": books.version - self._engines.version,
            "outstanding": {
                "groups": books.schedule.outstanding,
                "completions": self._engines.outstanding,
                "grading": self._graders.outstanding,
            },
            "refilled": dict(books.dropped),
            "sampler": books.sampler.metrics(),
            "verifiers": dict(self._graders.counts),
        }
        wall = {**self._wall(), "update_seconds": totals.get("update_seconds", 0.0)}
        if result is not None:
            wall |= {"trainer_seconds": result.seconds, "trainer_peak_gib": result.peak_gib}
            wall |= {} if self._simulated else self._speed(result)
        record, apart = self._with_clock(record, wall)
        self._folder.add_step(record, apart)
        prune_training(self._folder.path, self._run.retention, self._folder.check)
        return self._heed(record)

    def evaluated(self, point: EvaluationPoint, graded: list[Graded], of_sets: str = "") -> None:
        """Write the lines of an evaluation; its completions are on the disk already.

        Args:
            point: the policy and its compute.
            graded: the completions.
            of_sets: name of the sets, where the policy was evaluated on others before.
        """
        lines = evaluation_lines(self._run, point, graded, of_sets)
        timed = [self._with_clock(record, self._wall()) for record in lines]
        records = [record for record, _ in timed]
        folder = self._folder
        folder.add_evaluation(records, [apart for _, apart in timed if apart], of_sets)
        prune_completions(folder.path, self._run.retention, folder.evaluated_steps(), folder.check)
        self._progress.evaluated(records)

    def _speed(self, result: StepResult) -> dict[str, float]:
        """Model TFLOP/s of a trainer rank, and their share of the peak (MFU) where the device is known.

        6 N a token as in `_arithmetic`, so the true arithmetic is a little more.
        """
        cluster = self._run.cluster
        tflops = 6.0 * self._size.active * result.tokens / result.seconds / cluster.trainers / 1e12
        known = {} if cluster.hardware is None else {"mfu": tflops / device(cluster.hardware).tflops}
        return {"trainer_tflops": tflops, **known}

    def _heed(self, record: dict[str, Any]) -> LabError | None:
        """Log alarms; returns the reason to stop if `Monitors.stop_on` names one of them."""
        alarms = self._watch.step(record)
        for alarm in alarms:
            self._folder.add_alarm(alarm.record())
            self._progress.say(alarm.line)
        last = self._watch.must_stop(alarms)
        return LabError(f"stopped, as Monitors.stop_on asks, with a checkpoint: {last.line}") if last else None

    def _wall(self) -> dict[str, float]:
        """The wall clock's time, and the seconds of RL so far, over all processes of the run."""
        return {"time": time.time(), "wall_seconds": self._earlier + time.monotonic() - self._began}

    def _with_clock(self, record: Record, wall: Record) -> tuple[Record, Record | None]:
        """Add the wall clock's time; on a simulated clock add its own, and give the wall's apart."""
        if not self._simulated:
            return record | wall, None
        about = {name: record[name] for name in ("step", "task") if name in record}
        apart = {"of": "evaluation" if "task" in record else "step"} | about | wall
        return record | {"time": self._clock()}, apart


def evaluation_lines(run: Run, point: EvaluationPoint, graded: Sequence[Graded], of_sets: str = "") -> list[Record]:
    """Lines of `evals.jsonl` for an evaluation, one for each task of its sets, without the clock's time.

    Args:
        run: the run.
        point: the policy and its compute.
        graded: the completions.
        of_sets: name of the sets, where their completions are in a file of their own.
    """
    head = {
        "step": point.version,
        "version": point.version,
        **_ledger(point.hours, run.compute_unit),
        "completions": point.completions,
        "tokens": point.tokens,
        "flops": _arithmetic(parameters(run.model.to_hf()).active, point),
    }
    if of_sets:
        head["rollouts"] = completions_name(point.version, of_sets)
    by_task = evaluate(graded, {task.name: one.max_tokens for one in run.sets for task in one.tasks})
    return [
        head | {"set": one.name, "curves": list(one.metrics)} | by_task[task.name].record()
        for one in run.sets
        for task in one.tasks
        if task.name in by_task
    ]


def _arithmetic(active: int, point: EvaluationPoint) -> float:
    """Floating-point operations behind a policy: 6 N a token trained on, 2 N a token generated, N active parameters.

    Source: Kaplan et al., *Scaling Laws* (arXiv 2001.08361, §2.1): 2 N forward, 4 N backward; attention's own products
    are left out.
    """
    return active * (6.0 * point.tokens + 2.0 * point.generated)


def _trained(result: StepResult | None) -> dict[str, Any]:
    """The trainer's figures of a step; each is None if no rollout was left to train on."""
    if result is None:
        figures = dict.fromkeys(metric.name for metric in METRICS)
        return {"loss": None, "grad_norm": None, "skipped": False, **figures, "router": {}}
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "skipped": result.skipped,
        **summarise(result.metrics),
        "router": {name: value for name, value in result.metrics.items() if name.startswith("moe_")},
    }


def _ledger(hours: dict[str, float], unit: str) -> dict[str, Any]:
    undisturbed = hours["generator"] + hours["trainer"]
    return {
        "compute": undisturbed + hours["faults"],
        "compute_undisturbed": undisturbed,
        "compute_by_role": dict(hours),
        "compute_unit": unit,
    }
