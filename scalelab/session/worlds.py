"""Bring up the world of a run, on the cluster or on a simulated clock, and hand over to the loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from moe.cpu.portable import hide_wider
from scalelab.environment import ONE_THREAD
from scalelab.imports import quick_imports
from scalelab.run.config import Run
from scalelab.session.drive import drive
from scalelab.session.start_up import StartUp
from scalelab.signals import heed_signals
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import CHECKPOINTS, TOKENIZER
from scalelab.store.trunk import FROM
from scalelab.watch.progress import Progress
from tasks.thinking import THINK_CLOSE

if TYPE_CHECKING:
    from scalelab.rollout.tokenizer import Transitions
    from scalelab.start.fine_tuning import StartTuner, Tuner
    from scalelab.start.traces import PreparedTraces

T = TypeVar("T")


def run_on_cluster(
    run: Run, start: Run, folder: RunFolder, progress: Progress, prepared: PreparedTraces | None, start_up: StartUp
) -> str | None:
    """Start the actors, side by side, and hand over to the loop; returns why the run ended early, if it did."""
    from scalelab.cluster.surroundings import check_surroundings, settle

    check_surroundings()
    settle(own_ray=run.cluster.address is None)
    from scalelab.cluster.actors import end_ray, guard_ray, start_ray
    from scalelab.cluster.faults import Faults
    from scalelab.cluster.trainer_ranks import ClusterTuner
    from scalelab.cluster.world import ClusterRun
    from scalelab.start.base_model import base_model, taken_as_is, tokenizer_and_key

    tuner: StartTuner = ClusterTuner
    # Not the start of Ray beside it: its processes end with the thread that starts them.
    looked_up = None if taken_as_is(start) else _beside(partial(tokenizer_and_key, start, prepared))
    start_ray(run.cluster, max(run.devices, run.sft.trainers))
    heed_signals()  # Ray has installed a handler of its own, which aborts
    start_up.done("Ray")
    unguard = guard_ray(partial(_broken_off, folder, progress))
    try:
        if run.cluster.device == "gpu":
            run, start, tuner = _on_gpus(run, start, tuner, folder, progress)
        faults = Faults(run.cluster, folder.add_fault, progress.say)
        base = base_model(
            start,
            progress,
            tuner,
            saved=folder.sft_names(),
            retry=faults.retry_with_new_trainer,
            prepared=prepared,
            looked_up=None if looked_up is None else looked_up.result(),
        )
        record_base(folder, base)
        start_up.done("base model")
        progress.say("RL: starting generators, trainer and verifiers")
        folder.status.write("starting generators, trainer and verifiers")
        tokenizer = _tokenizer(run, base, folder)
        world = ClusterRun(run, base, folder, tokenizer, *phrase_ids(run, tokenizer), progress, faults)
        if _goes_on(folder):
            world.resume()
        start_up.done("generators, trainer and verifiers")
        progress.say(start_up.line)
        with start_up.counting(folder):
            return drive(world.main, asyncio.new_event_loop, progress)
    finally:
        unguard()
        end_ray()


def _beside(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that no ending waits for, as it may wait for the hub."""
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=do, name="beside Ray's start", daemon=True).start()
    return done


def _on_gpus(
    run: Run, start: Run, tuner: StartTuner, folder: RunFolder, progress: Progress
) -> tuple[Run, Run, StartTuner]:
    """The run, its start and its tuner with the GPUs that Ray's nodes have, once these are checked.

    Raises:
        LabError: the run does not fit them.
    """
    import ray

    from scalelab.cluster.gpu_nodes import check_gpu_nodes
    from scalelab.cluster.placement import await_devices
    from scalelab.hardware import of_ray
    from scalelab.plan.check import check, check_evaluation, check_fine_tuning, with_hardware

    if run.cluster.address is not None:
        await_devices(run.cluster, run.devices, "resumed" in folder.manifest, progress.say)
    memory = check_gpu_nodes(run.trainer.packages, run.cluster.startup_seconds, progress.say)
    hardware = of_ray(ray.nodes(), memory)
    if hardware.doubt:
        progress.say(hardware.doubt)
    check(run, hardware).demand()
    check_evaluation(run, hardware.device)
    tuner = _after(partial(check_fine_tuning, run, hardware), tuner)
    return with_hardware(run, hardware), with_hardware(start, hardware), tuner


def _goes_on(folder: RunFolder) -> bool:
    """True if the run's weights come from a checkpoint: it is resumed, or branches off another."""
    return bool(folder.manifest.keys() & {"resumed", FROM})


def record_base(folder: RunFolder, base: Path) -> None:
    """Record the digest of the weights that a run starts from, unless it goes on: then it began with those recorded.

    The cache may hold others by then, made anew on another machine.
    """
    from scalelab.start.base_model import weights_digest

    if not _goes_on(folder):
        folder.describe(base_model=weights_digest(base))


def _after(check: Callable[[], None], tuner: StartTuner) -> StartTuner:
    """A tuner that is checked when it is to start: a model that was made before needs none."""

    def start(run: Run) -> Tuner:
        check()
        return tuner(run)

    return start


def run_on_simulated_clock(
    run: Run, start: Run, folder: RunFolder, progress: Progress, prepared: PreparedTraces | None, start_up: StartUp
) -> str | None:
    """Start engine and trainer in this process, and hand over to the loop on a simulated clock, as `run_on_cluster`."""
    os.environ.update(ONE_THREAD)
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # warns that a CPU has no Triton
    with quick_imports():
        import torch

        hide_wider()  # before vLLM is imported
        from scalelab.rollout.interruption import Phrases
        from scalelab.start.base_model import base_model
        from scalelab.start.fine_tuning import LocalTuner
        from scalelab.virtual.clock import VirtualLoop
        from scalelab.virtual.world import VirtualRun

    torch.set_num_threads(1)
    start_up.done("vLLM and Megatron")
    base = base_model(start, progress, LocalTuner, saved=folder.sft_names(), prepared=prepared)
    record_base(folder, base)
    start_up.done("base model")
    progress.say("RL: starting one engine and one trainer that stand for the simulated cluster")
    tokenizer = _tokenizer(run, base, folder)
    phrase, end_think = phrase_ids(run, tokenizer)
    with closing(VirtualRun(run, base, folder, tokenizer, Phrases(tuple(phrase), end_think), progress)) as world:
        if _goes_on(folder):
            world.load()
        start_up.done("engine and trainer")
        progress.say(start_up.line)
        with start_up.counting(folder):
            return drive(world.main, lambda: VirtualLoop(world.start), progress)


def _tokenizer(run: Run, base: Path, folder: RunFolder) -> Any:
    """The base model's tokenizer, after a check that all prompts fit; a copy goes where an export looks for it."""
    from scalelab.rollout.tokenizer import load_tokenizer, save_tokenizer
    from scalelab.session.problems import check_prompts

    tokenizer = load_tokenizer(base)
    check_prompts(run, tokenizer)
    save_tokenizer(tokenizer, folder.checkpoints / TOKENIZER, base)
    folder.vouch(sorted(path for path in (folder.path / CHECKPOINTS / TOKENIZER).rglob("*") if path.is_file()))
    return tokenizer


def phrase_ids(run: Run, tokenizer: Any) -> tuple[list[int], Transitions]:
    """Token ids of the interrupting phrase and the end of thinking's automaton; none if nothing interrupts."""
    from scalelab.rollout.tokenizer import by_text

    control = run.recipe.length_control
    if control is None or not control.phrase:
        return [], ()
    return tokenizer.encode(control.phrase, add_special_tokens=False), by_text(tokenizer, THINK_CLOSE)


def _broken_off(folder: RunFolder, progress: Progress, message: str) -> None:
    """Say and record what the process is about to be ended for."""
    progress.say(f"scalelab: {message}")
    end_run(folder, status="failed", reason=message)


def end_run(folder: RunFolder, **facts: Any) -> None:
    """Write the last facts; a full disk may refuse them, but then the error that ends the run says so already."""
    try:
        folder.describe(**facts)
    except OSError:
        if facts["status"] == "finished":
            raise
    finally:
        folder.close()
