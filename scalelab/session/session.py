"""Start or resume a run: checks, start-up, the loop, and an end in order whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe.durable import make_folder
from moe.errors import MoeError, kind_and_line
from scalelab.errors import LabError
from scalelab.imports import without_collector
from scalelab.plan.planner import step_hours
from scalelab.run.config import Run
from scalelab.run.disk import check_disk
from scalelab.session.facts import changed, facts, process_facts
from scalelab.session.native_output import native_stderr_to
from scalelab.session.signals import heed_signals, stops
from scalelab.session.tracked_fits import TrackedFits
from scalelab.store.copying import second_copy, take_back
from scalelab.store.earlier import last_epoch, read_account
from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease
from scalelab.store.manifest import CHECKPOINTS, RAY_LOG, TOKENIZER, check_config, read_run_manifest
from scalelab.store.places import clear, free_folder, made_nothing
from scalelab.store.publication import take_over
from scalelab.store.recovery import Return, choose
from scalelab.store.trunk import FROM
from scalelab.virtual.cluster import check_simulated
from scalelab.watch.progress import Progress
from scalelab.watch.trackers import Trackers, settings_of
from tasks.errors import TaskError
from tasks.limits import allow_files
from tasks.thinking import THINK_CLOSE

if TYPE_CHECKING:
    from scalelab.experiment import Resolved
    from scalelab.rollout.thinking import Transitions
    from scalelab.run.loop import Loop
    from scalelab.start.fine_tuning import StartTuner, Tuner
    from scalelab.start.traces import PreparedTraces


def execute(
    resolved: Resolved, out: Path | None, progress: Progress, take: Callable[[Path], None] = lambda path: None
) -> Path:
    """Run an experiment to its end and return its folder.

    Args:
        resolved: the experiment.
        out: the folder; None takes the next that is free.
        progress: takes lines for people.
        take: called with the folder once it is this process's.

    Raises:
        LabError: anything that a user can mend; what was recorded until then stays readable.
    """
    path = out or free_folder(resolved.name)
    check_simulated(resolved.run, path, {})
    check_disk(path, resolved.run, step_hours(resolved.run))
    if path.exists() and not made_nothing(path):
        raise LabError(f"{path} exists and is not empty: give another --out, move it away, or go on with --resume")
    with hold_folder(path, progress) as lease:
        take(path)
        if clear(path):
            progress.say(f"{path} is of a run that failed before it made anything: its files are replaced")
        folder, began = RunFolder(path, lease), time.time()
        here = {"since": began, **process_facts(resolved.run)}
        folder.begin(resolved.config_gin(), **facts(resolved), processes=[here], started=began, status="running")
        progress.say(f"{resolved.name}: writing to {path}")
        run_and_record(resolved, folder, progress)
    return path


def resume(
    path: Path,
    own: Resolved,
    asked: Resolved | None,
    progress: Progress,
    take: Callable[[Path], None] = lambda path: None,
    start: Run | None = None,
) -> None:
    """Resume a run from its newest checkpoint, with its own configuration.

    Args:
        path: the run's folder.
        own: the configuration that the folder holds.
        asked: what the user believes to resume; None takes whatever the folder holds.
        progress: takes lines for people.
        take: called with the folder once it is this process's.
        start: of a branch, the run that all began with; None for a run that is none.

    Raises:
        LabError: it is no run, it has finished, it is still running, or it is not what was asked for.
    """
    manifest = read_run_manifest(path)
    check_config(path, manifest)
    if manifest.get("status") == "finished":
        raise LabError(
            f"{path} is finished, there is nothing to resume: `scalelab report {path}` shows it, and "
            f"`scalelab run --from {path} --set Budget.steps=…` goes on with it for longer"
        )
    if asked is not None:
        _refuse_differences(path, own, asked)
    check_simulated(own.run, path, manifest)
    check_disk(path, own.run, step_hours(own.run))
    with hold_folder(path, progress) as lease:
        take(path)
        take_over(path / CHECKPOINTS, read_account(path))
        take_back(path, own.run.retention.copy_to, progress.say)
        chosen = _choose(path, own.run)  # report what is broken before anything starts
        for problem in (*chosen.problems, *filter(None, [chosen.lost])):
            progress.say(f"passed over: {problem}")
        folder = RunFolder(path, lease)
        if folder.mended:
            progress.say(f"did not agree with the journal, and written again from it: {', '.join(folder.mended)}")
        _describe_resumption(own.run, folder, progress)
        progress.say(f"{own.name}: going on with {path}")
        run_and_record(own, folder, progress, start)


def _describe_resumption(run: Run, folder: RunFolder, progress: Progress) -> None:
    """Add this process to the run's, and say what it has otherwise; what is known of the earlier ones stays."""
    manifest, now = folder.manifest, time.time()
    begun = {name: manifest[name] for name in ("versions", "git_commit", "hardware") if name in manifest}
    processes = manifest.get("processes") or [{"since": manifest.get("started"), **begun}]
    here = {"since": now, **process_facts(run)}
    others = changed(processes[-1], here)
    if others:
        progress.say(f"goes on with others than before: {'; '.join(others)} (the manifest keeps all)")
    before, processor = begun.get("hardware", {}).get("processor"), here["hardware"]["processor"]
    if run.virtual is not None and before not in (None, processor):
        progress.say(f"begun on another processor ({before}; here {processor}): from here on the last bits may differ")
    times = [*manifest.get("resumed", ()), now]
    folder.describe(processes=[*processes, here], resumed=times, status="running", reason=None)


def _choose(path: Path, run: Run) -> Return:
    """Choose the checkpoint to go on from; where none can be used, name the second copy if there is one."""
    try:
        return choose(path, run.model.to_hf())
    except LabError as error:
        copy = second_copy(path, run.retention.copy_to)
        if copy is None:
            raise
        raise LabError(f"{error}; its second copy can: scalelab run {copy.parents[1]} --resume") from error


def _refuse_differences(path: Path, own: Resolved, asked: Resolved) -> None:
    """Refuse to resume with another configuration: the curve would belong to neither."""
    differences = own.differences(asked)
    if differences:
        told = "; ".join(f"{one.path} is {one.value} in it, but {one.other_value} here" for one in differences[:3])
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise LabError(
            f"{path} is a run of another configuration: {told}{more}. Resume it as it is with "
            f"`scalelab run {path} --resume`, or start another run"
        )


def run_and_record(resolved: Resolved, folder: RunFolder, progress: Progress, start: Run | None = None) -> None:
    """Run to the end, and record how it ended.

    Args:
        resolved: the experiment.
        folder: of the run.
        progress: takes lines for people.
        start: of a branch, the run that all began with, which says what the base model is.
    """
    began, before = time.time(), folder.manifest.get("wall_seconds", 0.0)
    status, reason = "failed", None
    progress.tell = folder.status.note
    folder.status.write("starting")
    try:
        _observe(resolved.run, folder, progress)
        _run(resolved.run, start or resolved.run, folder, progress)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, LabError | TaskError | MoeError) else kind_and_line(error)
        raise
    finally:
        _end(folder, status=status, reason=reason, wall_seconds=before + time.time() - began)


def _observe(run: Run, folder: RunFolder, progress: Progress) -> None:
    """Show what the run writes in TensorBoard, and to its trackers.

    Raises:
        LabError: a tracker is not installed, or does not start.
    """
    from scalelab.watch.tensorboard_writer import TensorBoardWriter  # which the core install lacks

    folder.add_observer(TensorBoardWriter(folder.path / "tensorboard"))
    if run.trackers:
        settings, fits = settings_of(run), TrackedFits(folder.path)
        folder.add_observer(Trackers.start(run.trackers, folder.path, folder.manifest, progress.say, settings, fits))


@contextmanager
def hold_folder(path: Path, progress: Progress) -> Iterator[Lease]:
    """Hold a run's folder, so that no second process writes into it."""
    make_folder(path)
    lease = Lease(path, last_epoch(path), say=progress.say, written=partial(last_epoch, path))
    release = lease.keep()
    try:
        yield lease
    finally:
        release()


def _run(run: Run, start: Run, folder: RunFolder, progress: Progress) -> None:
    """Run in the world of the run's configuration, from the base model of `start`."""
    allow_files()
    from scalelab.run.data import describe_tasks
    from scalelab.run.overlap import check_overlap
    from scalelab.start.base_model import prepare_traces, pretrained
    from scalelab.start.traces import check_worked_examples

    if start.sft.pretrained is not None:
        pretrained(start, start.sft.pretrained)  # refuses another model before anything starts
    check_worked_examples(start)
    prepared = prepare_traces(start, progress)  # says what is wrong with them before anything starts
    if prepared is not None:
        folder.describe(traces=prepared.facts)
    folder.describe(tasks=describe_tasks(run))
    if overlap := check_overlap(run, progress.say):
        folder.describe(overlap=overlap)
    if run.virtual is not None:
        _run_virtual(run, start, folder, progress, prepared)
    else:
        with native_stderr_to(folder.path / RAY_LOG):
            _run_cluster(run, start, folder, progress, prepared)


def _run_cluster(run: Run, start: Run, folder: RunFolder, progress: Progress, prepared: PreparedTraces | None) -> None:
    """Start the actors, side by side, and hand over to the loop."""
    from scalelab.cluster.surroundings import check_surroundings, settle

    check_surroundings()
    settle(own_ray=run.cluster.address is None)
    import ray

    from scalelab.cluster.actors import end_ray, guard_ray, start_ray
    from scalelab.cluster.faults import Faults
    from scalelab.cluster.gpu_nodes import check_gpu_nodes
    from scalelab.cluster.trainer import ClusterTuner
    from scalelab.cluster.world import ClusterRun
    from scalelab.hardware import of_ray
    from scalelab.plan.check import check, check_fine_tuning, with_hardware
    from scalelab.start.base_model import base_model

    before = cpu_seconds()
    tuner: StartTuner = ClusterTuner
    start_ray(run.cluster, max(run.devices, run.sft.trainers))
    heed_signals()  # Ray has installed a handler of its own, which aborts
    unguard = guard_ray(partial(_broken_off, folder, progress))
    try:
        if run.cluster.device == "gpu":
            memory = check_gpu_nodes(run.trainer.packages, run.cluster.startup_seconds)
            hardware = of_ray(ray.nodes(), memory)
            if hardware.doubt:
                progress.say(hardware.doubt)
            check(run, hardware).demand()
            tuner = _after(partial(check_fine_tuning, run, hardware), tuner)
            run, start = with_hardware(run, hardware), with_hardware(start, hardware)
        faults = Faults(run.cluster, folder.add_fault, progress.say)
        base = base_model(
            start, progress, tuner, saved=folder.sft, retry=faults.retry_with_new_trainer, prepared=prepared
        )
        progress.say("RL: starting generators, trainer and verifiers")
        folder.status.write("starting generators, trainer and verifiers")
        tokenizer = _tokenizer(run, base, folder)
        world = ClusterRun(run, base, folder, tokenizer, *phrase_ids(run, tokenizer), progress, faults)
        if folder.manifest.keys() & {"resumed", FROM}:
            world.resume()
        with _counting(folder, before):
            drive(world.main, asyncio.new_event_loop, progress)
    finally:
        unguard()
        end_ray()


def _after(check: Callable[[], None], tuner: StartTuner) -> StartTuner:
    """A tuner that is checked when it is to start: a model that was made before needs none."""

    def start(run: Run) -> Tuner:
        check()
        return tuner(run)

    return start


def _run_virtual(run: Run, start: Run, folder: RunFolder, progress: Progress, prepared: PreparedTraces | None) -> None:
    """Start engine and trainer in this process, then run the loop on a simulated clock."""
    os.environ["OMP_NUM_THREADS"] = "1"  # two threads on busy cores fall to a twentieth of the speed
    with without_collector():
        import torch

        from scalelab.rollout.interruption import Phrases
        from scalelab.start.base_model import base_model
        from scalelab.start.fine_tuning import LocalTuner
        from scalelab.virtual.clock import VirtualLoop
        from scalelab.virtual.world import VirtualRun

    before = cpu_seconds()
    torch.set_num_threads(1)
    base = base_model(start, progress, LocalTuner, saved=folder.sft, prepared=prepared)
    progress.say("RL: starting one engine and one trainer that stand for the simulated cluster")
    tokenizer = _tokenizer(run, base, folder)
    phrase, end_think = phrase_ids(run, tokenizer)
    with closing(VirtualRun(run, base, folder, tokenizer, Phrases(tuple(phrase), end_think), progress)) as world:
        if folder.manifest.keys() & {"resumed", FROM}:
            world.load()
        with _counting(folder, before):
            drive(world.main, lambda: VirtualLoop(world.start), progress)


def _tokenizer(run: Run, base: Path, folder: RunFolder) -> Any:
    """The base model's tokenizer, after a check that all prompts fit; a copy goes where an export looks for it."""
    from scalelab.rollout.tokenizer import load_tokenizer, save_tokenizer
    from scalelab.run.data import check_prompts

    tokenizer = load_tokenizer(base)
    check_prompts(run, tokenizer)
    save_tokenizer(tokenizer, folder.checkpoints / TOKENIZER, base)
    folder.vouch(sorted(path for path in (folder.path / CHECKPOINTS / TOKENIZER).rglob("*") if path.is_file()))
    return tokenizer


@contextmanager
def _counting(folder: RunFolder, before: float) -> Iterator[None]:
    """Record processor time before RL and during RL, added to that of earlier processes of the run."""
    ready = cpu_seconds()
    earlier = folder.manifest.get("cpu_seconds", {"before_rl": 0.0, "rl": 0.0})
    try:
        yield
    finally:
        spent = {"before_rl": ready - before, "rl": cpu_seconds() - ready}
        folder.describe(cpu_seconds={part: earlier.get(part, 0.0) + seconds for part, seconds in spent.items()})


def drive(
    main: Callable[[Callable[[Loop], None]], Coroutine[Any, Any, None]],
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
    progress: Progress,
) -> None:
    """Run the loop on an event loop of its own; the first signal to stop ends it in order, the second at once.

    Args:
        main: the coroutine, which calls its argument with the loop before it begins.
        new_event_loop: of the wall clock, or of a simulated one.
        progress: takes lines for people.

    Raises:
        KeyboardInterrupt: the loop was asked to stop, and has.
        LabError: what ended the run.
    """
    loops: list[Loop] = []

    async def heeding() -> None:
        events, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None

        def ask(number: signal.Signals) -> None:
            [loop] = loops
            if loop.stopping:
                this.cancel()
            else:
                loop.stop()
                progress.say(f"{number.name}: finishing the step and saving; again to stop at once")

        def attach(loop: Loop) -> None:
            loops.append(loop)
            if threading.current_thread() is threading.main_thread():
                for number in stops():
                    events.add_signal_handler(number, ask, number)

        await main(attach)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(heeding())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as errors:
        raise unwrapped(errors) from errors
    finally:
        heed_signals()
    if loops[0].stopping:
        raise KeyboardInterrupt


def unwrapped(error: BaseException) -> BaseException:
    """The error to report from nested groups: an unexpected one first."""
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if not isinstance(one, LabError)), error.exceptions[0])
    return error


def cpu_seconds() -> float:
    """CPU time so far of this process and of all below it on this machine, ended ones that were waited for included."""
    import psutil

    this, total = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended since it was listed
            spent = process.cpu_times()
            total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


def phrase_ids(run: Run, tokenizer: Any) -> tuple[list[int], Transitions]:
    """Token ids of the interrupting phrase and the end of thinking's automaton; none if nothing interrupts."""
    from scalelab.rollout.thinking import by_text

    control = run.recipe.length_control
    if control is None or not control.phrase:
        return [], ()
    return tokenizer.encode(control.phrase, add_special_tokens=False), by_text(tokenizer, THINK_CLOSE)


def _broken_off(folder: RunFolder, progress: Progress, message: str) -> None:
    """Say and record what the process is about to be ended for."""
    progress.say(f"scalelab: {message}")
    _end(folder, status="failed", reason=message)


def _end(folder: RunFolder, **facts: Any) -> None:
    """Write the last facts; a full disk may refuse them, but then the error that ends the run says so already."""
    try:
        folder.describe(**facts)
    except OSError:
        if facts["status"] == "finished":
            raise
    finally:
        folder.close()
