"""Supervised fine-tuning without RL: make the model that an experiment's RL would start from, and keep it."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

from moe.durable import append, put_in_place
from scalelab.errors import LabError
from scalelab.plan.disk import check_fine_tuning_disk
from scalelab.run.config import Run
from scalelab.start.fine_tuning import SUMMARY, LocalTuner, Retry, StartTuner, once
from scalelab.store.publication import CheckpointNames, take_over
from scalelab.watch.progress import Progress


def fine_tune(run: Run, out: Path, progress: Progress) -> dict[str, Any]:
    """Make the model that a run's RL starts from, and write it into a folder.

    What is not finished lies in a hidden folder beside it, from whose newest checkpoint the same call goes on.

    Args:
        run: the run.
        out: the Hugging Face folder to write.
        progress: takes lines for people.

    Returns:
        The summary that is written beside the weights, as `sft.json`.

    Raises:
        LabError: the folder exists, there is nothing to fine-tune, or what a user can mend.
    """
    from scalelab.start.base_model import base_model, prepare_traces

    if out.exists():
        raise LabError(f"{out} exists: give another --out, or move it away")
    if run.sft.pretrained is not None and run.sft.traces is None:
        raise LabError(
            f"there is nothing to fine-tune: SFT.pretrained = {run.sft.pretrained!r} is taken as it is; bind "
            "SFT.traces = @PublicTraces()"
        )
    check_fine_tuning_disk(out.absolute(), run)
    prepared = prepare_traces(run, progress)
    work = out.absolute().with_name(f".{out.name}.sft")
    work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ending:
        tuner, retry = _tuner(run, work, progress, ending)
        take_over(work / "checkpoints", None)
        names = CheckpointNames(work / "checkpoints", 1, lambda: None)
        made = base_model(run, progress, tuner, work / "model", names, retry, prepared)
        put_in_place(made, out)
    shutil.rmtree(work)
    summary: dict[str, Any] = json.loads((out / SUMMARY).read_text())
    return summary


def _tuner(run: Run, work: Path, progress: Progress, ending: ExitStack) -> tuple[StartTuner, Retry]:
    """The trainer: in this process where one core is enough, else ranks on Ray, which is left at the end."""
    if run.virtual is not None or (run.cluster.device == "cpu" and run.sft.trainers == 1):
        import torch

        torch.set_num_threads(1)
        return LocalTuner, once
    from scalelab.cluster.surroundings import check_surroundings, settle

    check_surroundings()
    settle(own_ray=run.cluster.address is None)
    import ray

    from scalelab.cluster.actors import end_ray, start_ray
    from scalelab.cluster.faults import Faults
    from scalelab.cluster.gpu_nodes import check_gpu_nodes
    from scalelab.cluster.trainer_ranks import ClusterTuner
    from scalelab.hardware import of_ray
    from scalelab.plan.check import check_fine_tuning
    from scalelab.signals import heed_signals

    start_ray(run.cluster, run.sft.trainers)
    ending.callback(end_ray)
    heed_signals()  # Ray has put a handler of its own in their place, which aborts
    if run.cluster.device == "gpu":
        memory = check_gpu_nodes(run.trainer.packages, run.cluster.startup_seconds, progress.say)
        check_fine_tuning(run, of_ray(ray.nodes(), memory))
    file = ending.enter_context(FileIO(work / "faults.jsonl", "a"))

    def write(line: dict[str, Any]) -> None:
        append(file, (json.dumps(line) + "\n").encode())

    return ClusterTuner, Faults(run.cluster, write, progress.say).retry_with_new_trainer
