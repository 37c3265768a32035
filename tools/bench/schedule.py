"""The three schedules against each other, measured and simulated; writes its tables into docs/schedule.md.

    .venv/bin/python tools/bench/schedule.py --only measured   # two cores: completions per hour, and the prediction
    .venv/bin/python tools/bench/schedule.py --only simulated  # 80 GPUs, 14k-token generations

The measured runs are the quickstart's model and tasks, untrained, with imposed long-tailed lengths: a request's limit
is drawn from a log-normal by its group's name, so that every schedule gets the same work, and nothing is learnt, so
that it stays the same. Generator and trainer are then measured alone, and the simulator predicts the runs from that.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sections import replace_section
from watched import WatchedRun, watched

from scalelab.experiment import resolve
from scalelab.plan.lengths import Recorded, fitting_prompt, lengths_of
from scalelab.plan.rates import decoding_line
from scalelab.recipe.types import AnyRollout
from scalelab.rollout.tokenizer import load_tokenizer
from scalelab.rollout.types import AnyCompletion, Kind, Request
from scalelab.run.config import Run
from scalelab.run.settings import Rates
from scalelab.run.work import RolloutWork
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.session.worlds import phrase_ids
from scalelab.store.folder import RunFolder
from scalelab.store.lines import read_lines
from scalelab.virtual.simulation import Shape
from scalelab.virtual.simulation_figures import Figures, SimulationSettings, best_split, simulate
from scalelab.virtual.simulation_settings import build
from tasks.stream import stable_number
from tasks.types import Prompt, Verdict

DOCS = Path(__file__).resolve().parents[2] / "docs" / "schedule.md"
MEDIAN, SIGMA, LIMIT = 64, 0.8, 448
SETS = (
    "SFT.steps=0",
    f"Recipe.max_tokens={LIMIT}",
    "Recipe.length_control=None",
    'Recipe.zero_variance="keep"',
    "GeneratorConfig.max_model_len=512",
    "Evaluation.every=100000",
    "Evaluation.prompts=2",
    "Evaluation.samples=1",
    "Run.checkpoint_every=100000",
)
# Steps of each measured run, and those at its beginning that are left out.
STEPS = {"synchronous": (12, 2), "PPO-off-policy-8": (24, 8), "PipelineRL-8": (32, 10)}
SCHEDULES = {"synchronous": Synchronous(), "PPO-off-policy-8": PPOOffPolicy(8), "PipelineRL-8": PipelineRL(8)}


class ImposedLengths(RolloutWork):
    """Groups with imposed lengths, which are kept as they came out."""

    def __init__(self, run: Run, tokenizer: Any) -> None:
        super().__init__(run.recipe, tokenizer, run.seed, seeded=False)
        self.lengths: list[np.ndarray] = []

    def requests(self, name: str, prompt: Prompt, kind: Kind = "train") -> list[Request]:
        """Requests with limits drawn by the group's name."""
        asked, rng = super().requests(name, prompt, kind), np.random.default_rng(stable_number("lengths", name))
        limits = np.clip(np.rint(MEDIAN * np.exp(SIGMA * rng.standard_normal(len(asked)))), 1, LIMIT).astype(int)
        return [replace(one, max_tokens=int(limit)) for one, limit in zip(asked, limits, strict=True)]

    def rollouts(
        self, prompt: Prompt, completions: Sequence[AnyCompletion], verdicts: Sequence[Verdict]
    ) -> list[AnyRollout]:
        """The graded completions of one prompt."""
        self.lengths.append(np.array([one.tokens for one in completions]))
        return super().rollouts(prompt, completions, verdicts)


class MeteredFolder(RunFolder):
    """A run's folder that looks at the processor time at every step."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metered: list[dict[str, float]] = []

    def add_step(self, record: dict[str, Any], wall: dict[str, Any] | None = None) -> None:
        """Write an optimiser step down."""
        self.metered.append(processor_seconds())
        super().add_step(record, wall)


@dataclass
class Measured:
    """One run."""

    steps: list[dict[str, Any]]
    completions: int
    seconds: float
    tokens: int
    lengths: list[np.ndarray]
    host_seconds: float
    """Processor seconds of everything but generator and trainer, per completion."""
    pause: float
    sides: dict[str, Any]

    @property
    def per_hour(self) -> float:
        return 3600 * self.completions / self.seconds

    def staleness(self, warm: int) -> float:
        """Mean staleness of the groups trained on after some steps, in versions."""
        groups = [(int(late), count) for step in self.steps[warm:] for late, count in step["staleness"].items()]
        return sum(late * count for late, count in groups) / sum(count for _, count in groups)


def processor_seconds() -> dict[str, float]:
    """Processor time so far of this process and its children: of the two sides, and of all others together."""
    spent: dict[str, float] = defaultdict(float)
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), " ".join(process.cmdline()[:1])
        except psutil.Error:  # it has ended meanwhile
            continue
        side = next((side for side in ("EngineActor", "TrainerRank") if side in name), "host")
        spent[side] += times.user + times.system
    return spent


def measure(name: str, sets: Sequence[str], *, both: bool = False) -> Measured:
    """Run one schedule; with `both`, its two sides afterwards, each with nobody else at work."""
    steps, warm = STEPS[name]
    run = replace(resolve("quickstart", [*SETS, f"Budget.steps={steps}", *sets]).run, schedule=SCHEDULES[name])
    sides: dict[str, Any] = {}
    with watched(run, MeteredFolder) as lab:
        work = ImposedLengths(run, load_tokenizer(lab.base))

        async def then() -> None:
            if both:
                sides["trainer"] = await lab.train_again(10)
                sides["export"] = await export_alone(lab)

        lab.train(then, work)
        files, totals = lab.world.folder, lab.world.engines.totals()
        assert isinstance(files, MeteredFolder)
        records, spent = read_lines(files.path / "metrics.jsonl"), files.metered
    if both:
        sides["generator"] = generator_alone(run, lab.base)
    completions = (steps - warm) * run.recipe.completions_per_step
    tasks = [task for record in records[warm:] for task in record["tasks"].values()]
    measured = Measured(
        steps=records,
        completions=completions,
        seconds=records[-1]["time"] - records[warm - 1]["time"],
        tokens=round(sum(task["completions"] * task["mean_length"] for task in tasks)),
        lengths=work.lengths,
        host_seconds=(spent[-1]["host"] - spent[warm - 1]["host"]) / completions,
        pause=totals["update_seconds"] / max(1.0, totals["updates"]),
        sides=sides,
    )
    print(f"{name}: {measured.per_hour:.0f} completions/h, host {1e3 * measured.host_seconds:.2f} ms each", flush=True)
    return measured


async def export_alone(lab: WatchedRun) -> float:
    """Seconds in which the trainer lays its weights out."""
    began = time.monotonic()
    for version in range(5):
        await lab.world.trainer.publish(version)
    return (time.monotonic() - began) / 5


def generator_alone(run: Run, base: Path) -> dict[int, tuple[float, float, float]]:
    """By sequences side by side: (mean of those, seconds a decoding step, completions/s), each at steady load."""
    from scalelab.rollout.generator import Generator

    tokenizer = load_tokenizer(base)
    generator = Generator(str(base), run.generator_setup, *phrase_ids(run, tokenizer), seed=7)
    work, group, tasks = ImposedLengths(run, tokenizer), run.recipe.generations_per_prompt, run.tasks
    measured = {}
    with closing(generator):
        for load, count in ((8, 64), (32, 160), (run.generator.max_sequences, 1024)):
            prompts = [tasks[n % len(tasks)].prompt(n // len(tasks)) for n in range(count // group)]
            requests = [one for n, prompt in enumerate(prompts) for one in work.requests(f"alone{load}/{n}", prompt)]
            measured[load] = at_load(generator, requests, load)
    return measured


def at_load(generator: Any, requests: list[Request], load: int) -> tuple[float, float, float]:
    """Keep `load` requests at an engine until they run out, and look at the time in which it was full."""
    queue, out = list(requests), 0
    marks: list[dict[str, float]] = []
    while queue or out:
        ready = queue[: load - out]
        generator.submit(ready)
        out, queue = out + len(ready), queue[len(ready) :]
        out -= len(generator.collect(1024, 10.0, linger=0.0))
        if queue:
            marks.append(generator.stats())
    first, last = marks[len(marks) // 5], marks[-1]
    did = {name: last[name] - first[name] for name in ("steps", "busy_seconds_train", "completions_train")}
    busy = did["busy_seconds_train"]
    return float(load), busy / did["steps"], did["completions_train"] / busy


def calibrated(reference: Measured, run: Run) -> Rates:
    """Rates of both sides alone, and the host's work of the synchronous run."""
    seconds, tokens, _ = reference.sides["trainer"]
    step, sequence = decoding_line([(load, each) for load, each, _ in reference.sides["generator"].values()])
    return Rates(
        step_seconds=step,
        sequence_seconds=sequence,
        train_token_seconds=seconds / tokens,
        export_seconds=reference.sides["export"],
        pause_seconds=reference.pause,
        host_seconds=reference.host_seconds,
        cores=os.cpu_count(),
    )


def predict(name: str, measured: Measured, rates: Rates, run: Run) -> Figures:
    """Simulate a run on the lengths that it produced."""
    prompt_tokens = 20.0
    shape = Shape(1, 1, run.recipe.prompts_per_step, run.recipe.generations_per_prompt, 128, prompt_tokens)
    lengths = Recorded(tuple(measured.lengths), name)
    return simulate(SimulationSettings(SCHEDULES[name], rates, lengths, shape), 1, 1, steps=160)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def measured_section(sets: Sequence[str]) -> str:
    runs = {name: measure(name, sets, both=name == "synchronous") for name in SCHEDULES}
    run = resolve("quickstart", [*SETS, *sets]).run
    rates = calibrated(runs["synchronous"], run)
    best = runs["PipelineRL-8"].per_hour
    rows = []
    for name, measured in runs.items():
        simulated = predict(name, measured, rates, run)
        predicted = simulated.completions_per_hour
        waits = sum(step["seconds"]["wait"] for step in measured.steps[STEPS[name][1] :]) / measured.seconds
        rows.append(
            (
                name,
                f"{measured.per_hour:,.0f}",
                f"{best / measured.per_hour:.2f}",
                f"{waits:.0%}",
                f"{predicted:,.0f}",
                f"{predicted / measured.per_hour - 1:+.0%}",
                f"{measured.staleness(STEPS[name][1]):.1f}",
                f"{simulated.mean_staleness:.1f}",
            )
        )
    seconds, _, completions = runs["synchronous"].sides["trainer"]
    *_, (_, _, generated) = runs["synchronous"].sides["generator"].values()
    sides = {"generator": 3600 * generated, "trainer": 3600 * completions / seconds}
    slower = min(sides, key=sides.__getitem__)
    header = ["", "completions/h", "PipelineRL-8 is faster by", "trainer waits", "simulator says", "off by"]
    header += ["mean staleness", "simulator says"]
    lengths = np.concatenate(runs["PipelineRL-8"].lengths)
    return "\n\n".join(
        [
            table(header, rows),
            f"Alone, the generator makes {sides['generator']:,.0f} completions/h and the trainer takes "
            f"{sides['trainer']:,.0f}; PipelineRL-8 is at {best / sides[slower]:.2f} of the {slower}, the slower side. "
            f"Completions had {lengths.mean():.0f} tokens in the mean, {np.percentile(lengths, 99):.0f} at the 99th "
            f"percentile. Rates for the simulator: {worded(rates)}.",
        ]
    )


def worded(rates: Rates) -> str:
    return ", ".join(f"`{name}` {value:.3g}" for name, value in vars(rates).items() if value)


def simulated_section(sets: Sequence[str]) -> str:
    began = time.monotonic()
    run = resolve("scalerl_8b", list(sets)).run
    lengths = lengths_of(run, 0.6)
    setting = build(run, lengths, device="gb200", overrides={}, prompt_tokens=fitting_prompt(run), kept=1.0)
    schedules = [
        Synchronous(),
        *(PPOOffPolicy(k) for k in (1, 2, 4, 8, 16)),
        *(PipelineRL(k) for k in (1, 2, 4, 8, 16)),
    ]
    rows = []
    for schedule in schedules:
        one = replace(setting, schedule=schedule)
        steps = 6 * one.period + 12
        at_64 = simulate(one, one.shape.generators, one.shape.trainers, steps=steps)
        best = best_split(one, at_64, 4 * one.period + 4, steps=steps)
        rows.append(
            (
                named(schedule),
                f"{at_64.completions_per_hour:,.0f}",
                f"{at_64.generators_idle:.0%}",
                f"{at_64.occupancy:.0%}",
                f"{at_64.trainer_idle:.0%}",
                f"{at_64.mean_staleness:.1f}",
                f"{best.generators * one.devices_per_generator} + {best.trainers * one.devices_per_trainer}",
                f"{best.completions_per_hour:,.0f}",
            )
        )
    header = (
        *("64 + 16 GPUs", "completions/h", "generators idle", "places filled", "trainer idle", "mean staleness"),
        *("best split", "completions/h there"),
    )
    seconds = time.monotonic() - began
    return f"{table(header, rows)}\n\nLengths: {lengths.describe()}. Rates: {worded(setting.rates)}. {seconds:.0f} s."


def named(schedule: Any) -> str:
    names = {PipelineRL: "PipelineRL", PPOOffPolicy: "PPO-off-policy"}
    return f"{names[type(schedule)]}-{schedule.k}" if type(schedule) in names else "synchronous"


SECTIONS = {"measured": measured_section, "simulated": simulated_section}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="default: both")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="CLASS.FIELD=VALUE")
    parser.add_argument("--print", action="store_true", help="print the tables only, leave the docs alone")
    args = parser.parse_args()
    for name in args.only or SECTIONS:
        text = SECTIONS[name](args.sets)
        print(f"\n{text}\n", flush=True)
        if not args.print:
            replace_section(DOCS, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", text)


if __name__ == "__main__":
    main()
