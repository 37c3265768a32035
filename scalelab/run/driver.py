"""The driver: the loop that is ScaleRL, and the books it keeps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moe.checkpoint.folder import finished, newest, read_state, step_folder
from moe.model.config import routed_experts
from scalelab.errors import LabError
from scalelab.recipe.length_control import ForcedInterruption
from scalelab.recipe.step import StepLoss, build_step, drop_reason, pass_rate
from scalelab.rollout.tokenizer import answer_texts, prompt_ids
from scalelab.rollout.types import Completion, Kind, Request
from scalelab.run.actors import Head
from scalelab.run.config import Run
from scalelab.run.faults import Faults
from scalelab.run.folder import RunFolder
from scalelab.run.generators import Generators
from scalelab.run.ledger import Ledger
from scalelab.run.monitors import Watch
from scalelab.run.progress import Progress, Status
from scalelab.run.records import Graded, eval_records, rollout_row, step_record
from scalelab.run.state import Group, capture, prune_rollouts, restore
from scalelab.run.trainers import TrainerLostError, Trainers
from scalelab.run.verifiers import Verifiers
from scalelab.run.waits import Waits
from tasks.sampler import MixtureSampler
from tasks.stream import stable_number
from tasks.types import Prompt, Verdict


@dataclass
class Measurement:
    """One evaluation while it runs: the weights it measures, and what they had cost when it began."""

    version: int
    hours: dict[str, float]
    expected: int
    graded: list[Graded] = field(default_factory=list)


class Driver:
    """One run: draws prompts, hands work to the actors, and writes down what comes back."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        tokenizer: Any,
        trainers: Trainers,
        generators: Generators,
        verifiers: Verifiers,
        progress: Progress,
    ) -> None:
        self.run, self.folder, self.tokenizer, self.progress = run, folder, tokenizer, progress
        self.trainers, self.generators, self.verifiers = trainers, generators, verifiers
        self.recipe = run.recipe
        self.schedule = run.schedule.start(run.recipe.prompts_per_step, run.budget.steps)
        weights = dict(zip((t.name for t in run.tasks), run.task_weights, strict=True)) if run.task_weights else None
        self.sampler = MixtureSampler(run.tasks, weights, run.seed, run.recipe.retire_at)
        self.held_out = [prompt for task in run.tasks for prompt in task.held_out(run.evaluation.prompts)]
        self.ledger = Ledger(run.generator_devices, run.cluster.trainers)
        self.watch = Watch(run.monitors, run.cluster.generators, routed_experts(run.model))
        self.waits, self.head = Waits(run.cluster.stall_seconds), Head()
        self.groups: dict[str, Group] = {}
        self.refilled: Counter[str] = Counter()
        self.drawn = 0
        self.training = self.updating = self.returning = self.stopping = False
        self.measurement: Measurement | None = None
        self.measure_from: int | None = None
        self.measured = self.saved = -1
        self.life = 0
        self.faults = Faults(run.cluster, folder.add_fault, progress.say)
        self.first = capture(self, folder.checkpoints)
        self.clock = self.step_ended = time.monotonic()
        self.busy: dict[Kind, float] = {"train": 0.0, "eval": 0.0}
        self.unit = run.cluster.compute_unit

    # The loop.

    def train(self) -> None:
        """Run to the end of the budget: draw → generate → verify → filter → advantages → loss → step → publish."""
        self.generators.attach(self.waits, self.verify, self.faults)
        self.begin()
        while not self.finished():
            try:
                self.generate()
                self.step()
                self.wait()
            except TrainerLostError as error:
                self.return_to_checkpoint(error)
        self.save()
        self.finish_saving()

    def generate(self) -> None:
        """Draw prompts and start their completions, as far as the schedule admits and the engines have room."""
        if self.measured < 0 or self.returning or self.stopping or self.budget_spent():
            return
        if self.run.reproducible and self.measurement:
            return
        count = self.schedule.may_start(self.generators.version)
        if not self.run.reproducible:
            # What is generated must be graded: while the verifiers are full, nothing new is started.
            count = min(count, self.generators.free // self.recipe.generations_per_prompt) if self.verifiers.room else 0
        requests: list[Request] = []
        for _ in range(count):
            prompt, name = next(self.sampler), f"group{self.drawn}"
            self.groups[name] = Group(prompt)
            self.schedule.started(name, self.generators.version)
            self.drawn += 1
            requests += self.requests(prompt, self.recipe.generations_per_prompt, "train", name)
        if requests:
            self.generators.submit(requests)

    def verify(self, completions: Sequence[Completion]) -> None:
        """Send finished completions to the verifiers."""
        self.charge()
        if not completions:
            return
        texts = answer_texts(self.tokenizer, completions)
        items = [(completion.request.meta["prompt"], text) for completion, text in zip(completions, texts, strict=True)]

        def graded(place: int, verdict: Verdict) -> None:
            completion = completions[place]
            self.book(Graded(completion.request.meta["prompt"], completion, texts[place], verdict))

        self.verifiers.verify(items, self.waits, graded)

    def book(self, graded: Graded) -> None:
        """Book a verdict: of an evaluation, or of a group, which is ready to train on once it is whole."""
        if graded.completion.request.meta["life"] != self.life:  # of before a return to a checkpoint
            return
        if self.measurement and graded.completion.request.kind == "eval":
            self.measurement.graded.append(graded)
            if len(self.measurement.graded) == self.measurement.expected:
                self.record_measurement(self.measurement)
            return
        name = graded.completion.request.meta["group"]
        group = self.groups[name]
        group.by_number[graded.completion.request.meta["number"]] = graded.rollout()
        if len(group.by_number) == self.recipe.generations_per_prompt:
            self.book_group(name, group)

    def book_group(self, name: str, group: Group) -> None:
        """Book a whole group: its pass rate for the curriculum, and whether it waits for a step or is made up for."""
        rollouts = group.rollouts
        rate = pass_rate(rollouts)
        if rate is not None:
            self.sampler.observe(group.prompt.id, rate)
        reason = drop_reason(rollouts, self.recipe) if self.recipe.zero_variance == "refill" else None
        if reason is None:
            self.schedule.finished(name)
        else:
            self.schedule.dropped(name)
            self.refilled[reason] += 1
            del self.groups[name]

    def step(self) -> None:
        """Start an optimiser step when the trainer is free and the schedule has a batch for it.

        Weights on their way to an evaluation are not overtaken, so that runs are measured at the same steps.
        """
        awaited = self.measure_from is not None and self.updating
        idle = not (self.training or awaited or self.returning or self.stopping or self.budget_spent())
        names = self.schedule.batch() if idle else None
        if names is None:
            return
        version, began = self.schedule.trainer_version, time.monotonic()
        groups = [self.groups.pop(name).rollouts for name in names]
        sequences, metrics = build_step(groups, self.recipe, version)
        seconds = {"wait": began - self.step_ended, "build": time.monotonic() - began}

        def stepped(result: Any) -> None:
            self.training, self.step_ended = False, time.monotonic()
            self.schedule.trained(names)
            self.charge()
            metrics["groups"] = names
            record = step_record(self, metrics, result, seconds | {"step": self.step_ended - began})
            self.folder.add_step(record)
            self.heed(record)
            if self.schedule.trainer_version % self.run.evaluation.every == 0 or self.budget_spent():
                self.measure_from = self.schedule.trainer_version
            self.publish()
            self.check_saving()
            if self.schedule.trainer_version % self.run.checkpoint_every == 0:
                self.save()

        self.training = True
        if sequences:
            loss = StepLoss(self.recipe.loss)
            refs = self.trainers.start_step(sequences, loss)
            self.trainers.watch(refs, f"optimiser step {version + 1}", self.waits, stepped)
        else:
            stepped(None)

    def heed(self, record: dict[str, Any]) -> None:
        """Say and write down what the monitors make of a step, and stop with a checkpoint where they are to.

        Raises:
            LabError: a monitor named in `Monitors.stop_on` is in alarm.
        """
        alarms = self.watch.step(record)
        for alarm in alarms:
            self.folder.add_alarm(alarm.record())
            self.progress.say(alarm.line)
        if last := self.watch.must_stop(alarms):
            self.save()
            self.finish_saving()
            raise LabError(f"stopped, as Monitors.stop_on asks, with a checkpoint: {last.line}")

    def publish(self) -> None:
        """Send the newest weights to the generators once the schedule allows; unfinished completions go on with them.

        While an evaluation runs, the generators keep the weights that it measures; they get the newest after it.
        """
        version = self.schedule.trainer_version
        if self.training or self.updating or self.measurement or self.generators.version == version:
            return
        if self.schedule.may_publish() or self.budget_spent():
            self.send_weights()

    def send_weights(self) -> None:
        """Export the weights once, and let all generators fetch them; then measure them if that is due."""
        self.updating, version = True, self.schedule.trainer_version
        exported, buckets = self.trainers.start_export()

        def arrived() -> None:
            self.updating = False
            if self.returning:
                self.resume_generation()
            if self.measure_from is not None and self.generators.version >= self.measure_from:
                self.measure()
            self.publish()

        def send(_: Any) -> None:
            self.generators.update(version, buckets, arrived)

        self.trainers.watch(exported, f"weights {version} to be exported", self.waits, send)

    def measure(self) -> None:
        """Start an evaluation of the weights that the generators hold."""
        samples, version = self.run.evaluation.samples, self.generators.version
        requests = [
            request
            for prompt in self.held_out
            for request in self.requests(prompt, samples, "eval", f"{version}/{prompt.id}")
        ]
        self.measure_from = None
        self.measurement = Measurement(version, dict(self.ledger.hours), len(requests))
        self.generators.submit(requests)

    def record_measurement(self, measurement: Measurement) -> None:
        """Write an evaluation down, and let the generators have the newest weights again."""
        records = eval_records(self, measurement)
        for record in records:
            self.folder.add_evaluation(record)
        self.folder.keep_rollouts(f"step_{measurement.version:06d}", [rollout_row(g) for g in measurement.graded])
        self.progress.measured(records)
        self.measurement, self.measured = None, measurement.version
        self.publish()

    def wait(self) -> None:
        """Wait for something to happen; whatever is waited for has a deadline of its own."""
        self.head.check()
        self.waits.run_ready(1.0)
        budget, under_way = self.run.budget, self.measurement
        self.progress.show(
            Status(
                step=self.schedule.trainer_version,
                steps=budget.steps,
                compute=self.ledger.compute,
                unit=self.unit,
                completions=int(self.generators.total("completions")),
                hours=budget.hours,
                evaluated=(len(under_way.graded), under_way.expected) if under_way else None,
            )
        )

    # What the loop asks.

    def budget_spent(self) -> bool:
        """Whether no further step may start."""
        budget = self.run.budget
        return self.schedule.trainer_version >= budget.steps or (
            budget.hours is not None and self.ledger.compute >= budget.hours
        )

    def finished(self) -> bool:
        """Whether the budget is spent and the policy that it bought is measured, or the run was asked to stop."""
        if self.stopping:
            return not self.training
        if not self.budget_spent() or self.training or self.updating or self.measurement:
            return False
        if self.measured == self.schedule.trainer_version:
            return True
        self.measure_from = self.schedule.trainer_version
        if self.generators.version == self.measure_from:
            self.measure()
        else:
            self.publish()
        return False

    def requests(self, prompt: Prompt, count: int, kind: Kind, group: str) -> list[Request]:
        """`count` requests for completions of one prompt, each with its own place for an interruption.

        What is random about them depends on the run's seed and on the group's name alone.
        """
        control = self.recipe.length_control
        seed = stable_number(self.run.seed, kind, group)
        rng = np.random.default_rng(seed)
        ids = prompt_ids(self.tokenizer, prompt)
        return [
            Request(
                id=f"{kind}/{self.life}/{group}/{number}",
                prompt_ids=ids,
                max_tokens=self.recipe.max_tokens,
                seed=seed + number if self.run.reproducible else None,
                temperature=self.recipe.temperature,
                interrupt_at=control.draw(rng) if isinstance(control, ForcedInterruption) else None,
                kind=kind,
                meta={"prompt": prompt, "group": group, "number": number, "life": self.life},
            )
            for number in range(count)
        ]

    # The books.

    def charge(self) -> None:
        """Charge the wall time since the last charge, by what the generators did in it."""
        now = time.monotonic()
        busy = {kind: self.generators.total(f"busy_seconds_{kind}") for kind in self.busy}
        worked = {kind: seconds - self.busy[kind] for kind, seconds in busy.items()}
        total = worked["train"] + worked["eval"]
        share = 1.0 if self.measured < 0 else worked["eval"] / total if total > 0 else 0.0
        self.ledger.advance(now - self.clock, evaluation_share=share, trainer_idle=not self.training)
        self.clock, self.busy = now, busy

    # Checkpoints, and the way back to them.

    def save(self) -> None:
        """Take a checkpoint of everything; it is written while the loop goes on."""
        version, policy = self.schedule.trainer_version, self.run.checkpoints
        if self.saved == version:
            return
        folder = self.folder.checkpoints
        state = capture(self, folder)
        refs = self.trainers.start_call("save", str(step_folder(folder, version)), state, policy.background, policy)
        what, seconds = f"checkpoint {version} to be taken", self.run.trainer.save_deadline
        self.trainers.watch(refs, what, self.waits, lambda _: prune_rollouts(folder, state["rollouts"]), seconds)
        self.saved = version

    def check_saving(self) -> None:
        """Notice soon when a checkpoint could not be written."""
        self.trainers.watch(self.trainers.start_call("saving"), "the last checkpoint", self.waits, lambda _: None)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self.trainers.call("finish_saving", seconds=self.run.trainer.save_deadline)
        prune_rollouts(self.folder.checkpoints)

    def begin(self) -> None:
        """Start with an evaluation of the base model, or where the checkpoint that was loaded stands."""
        if self.measured < 0:
            self.measure_from = self.schedule.trainer_version
        if self.schedule.trainer_version or self.life:
            self.returning = True
            self.send_weights()
        elif self.measure_from is not None:
            self.measure()

    def load(self) -> None:
        """Put trainer and books back to the newest checkpoint that is whole, or to the beginning if there is none.

        The ledger goes on: what was spent is spent. Lines of steps that are undone leave the files of the run.
        """
        state = self.first
        if finished(self.folder.checkpoints):
            looked_at = newest(self.folder.checkpoints, self.run.model.to_hf(), fallback=True, contents=False)
            seconds = self.run.trainer.save_deadline
            read = self.trainers.call("load", str(looked_at.path), True, seconds=seconds)
            for problem in (*looked_at.passed_over, *read.passed_over):
                self.progress.say(f"passed over: {problem}")
            state = read_state(read.path)
        restore(self, state, self.folder.checkpoints)
        for hours in (state["ledger"], self.folder.spent()):
            self.ledger.at_least(hours)
        version = self.saved = self.schedule.trainer_version
        undone = self.folder.go_back(version, [task.name for task in self.run.tasks])
        self.measured = max([self.measured, *self.folder.measured()])
        if self.measure_from is not None and self.measure_from <= self.measured:
            self.measure_from = None
        self.progress.say(f"going on from step {version}" + (f"; {undone} later steps are undone" if undone else ""))

    def return_to_checkpoint(self, error: LabError) -> None:
        """Replace a trainer that lost a rank, and go on from the newest checkpoint."""
        self.faults.lost("trainer", "the trainer", error, step=self.schedule.trainer_version)
        self.charge()
        self.life += 1
        self.generators.forget()
        self.trainers.restart()
        self.load()
        self.faults.recovered("trainer", "the trainer")
        self.begin()

    def resume_generation(self) -> None:
        """Ask again for what was in flight when the checkpoint was taken; whole completions are kept."""
        self.returning = False
        for name in self.schedule.in_flight:
            group = self.groups[name]
            requests = self.requests(group.prompt, self.recipe.generations_per_prompt, "train", name)
            self.generators.submit([one for one in requests if one.meta["number"] not in group.by_number])
