"""Rehearse one rank of the fine-tuning that a run begins with: the trainer's rehearsal with another setup and loss."""

from __future__ import annotations

from scalelab.rehearse.trainer import Training, rehearse_training  # isort: skip  (sets torch's environment first)

from moe.sequences import TrainingSequence
from scalelab.rehearse.planned import tuner_micro_batches
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.start.fine_tuning import cross_entropy, learning_rate
from scalelab.start.traces import trace_sequence


def rehearse(setting: RehearsalSettings, role: Role) -> RoleResult:
    """Run all phases of one rank of the fine-tuning; errors are recorded, not raised."""
    return rehearse_training(subject(setting), role)


def subject(setting: RehearsalSettings) -> Training:
    """The fine-tuning, as far as a rehearsal sees it."""
    run, sft = setting.run, setting.run.sft
    return Training(
        hf=run.model.to_hf(),
        hardware=setting.hardware,
        imbalance=setting.imbalance,
        setup=run.tuner_setup,
        ranks=sft.trainers,
        folder=sft.pretrained,
        at_random=sft.pretrained is None,
        longest=run.longest_trace,
        sequence=_trace,
        loss=cross_entropy if sft.steps else None,
        lr=learning_rate(0, sft.steps, sft.learning_rate),
        held_out=sft.public is not None and sft.public.held_out > 0,
        publication="files",
        micro_batches=tuner_micro_batches(run),
    )


def _trace(tokens: int, number: int) -> TrainingSequence:
    """An example as a fine-tuning hands it to the trainer: a prompt of one token, and what follows it."""
    return trace_sequence([0], [0] * (tokens - 1), tokens - 1)
