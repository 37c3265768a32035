"""Start or resume a run: checks, start-up, the loop, and an end in order whatever happens."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe.durable import make_folder
from moe.errors import MoeError, kind_and_line
from scalelab.errors import LabError
from scalelab.plan.disk import check_disk
from scalelab.plan.planner import step_hours
from scalelab.run.config import Run
from scalelab.session.facts import changed, facts, process_facts
from scalelab.session.native_output import append_error, libraries_to
from scalelab.session.start_up import StartUp
from scalelab.session.tracked_fits import TrackedFits
from scalelab.session.worlds import end_run, run_on_cluster, run_on_simulated_clock
from scalelab.store.copying import second_copy, take_back
from scalelab.store.earlier import claimed_manifest, last_epoch, read_account
from scalelab.store.folder import RunFolder
from scalelab.store.lease import Lease
from scalelab.store.manifest import CHECKPOINTS, LIBRARIES_LOG, check_config, read_run_manifest
from scalelab.store.places import clear, free_folder, made_nothing
from scalelab.store.publication import take_over
from scalelab.store.recovery import Return, choose
from scalelab.terminal import shell_path
from scalelab.virtual.cluster import check_simulated
from scalelab.watch.progress import Progress
from scalelab.watch.trackers import Trackers, settings_of
from tasks.errors import TaskError
from tasks.open_files import allow_files

if TYPE_CHECKING:
    from scalelab.experiment import Resolved


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
    manifest = claimed_manifest(path)
    check_config(path, manifest)
    shown: dict[str, Any] = {}
    with suppress(LabError):
        shown = read_run_manifest(path)
    if shown.get("status") == manifest.get("status"):  # else the file is written again first
        _refuse_finished(path, manifest)
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
        _refuse_finished(path, folder.manifest)  # by its journal: the machine failed before the manifest was written
        _describe_resumption(own.run, folder, progress)
        progress.say(f"{own.name}: going on with {path}")
        run_and_record(own, folder, progress, start)


def _refuse_finished(path: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("status") == "finished":
        raise LabError(
            f"{path} is finished, there is nothing to resume: `scalelab report {shell_path(path)}` shows it, and "
            f"`scalelab run --from {shell_path(path)} --set Budget.steps=…` goes on with it for longer"
        )


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
    if run.virtual is not None and not run.virtual.portable and before not in (None, processor):
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
        command = f"scalelab run {shell_path(copy.parents[1])} --resume"
        raise LabError(f"{error}; its second copy can: {command}") from error


def _refuse_differences(path: Path, own: Resolved, asked: Resolved) -> None:
    """Refuse to resume with another configuration: the curve would belong to neither."""
    differences = own.differences(asked)
    if differences:
        told = "; ".join(f"{one.path} is {one.value} in it, but {one.other_value} here" for one in differences[:3])
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise LabError(
            f"{path} is a run of another configuration: {told}{more}. Resume it as it is with "
            f"`scalelab run {shell_path(path)} --resume`, or start another run"
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
        reason = _run(resolved.run, start or resolved.run, folder, progress)
        if reason is not None:
            progress.say(f"the run ends early: {reason}")
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        _say_how_it_goes_on(folder.path, progress)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _say_how_it_goes_on(folder.path, progress)
        reason = str(error) if isinstance(error, LabError | TaskError | MoeError) else kind_and_line(error)
        if len(str(error.__cause__ or "").splitlines()) > 1:  # of which the reason is one line
            with suppress(OSError):  # a full disk, say, must not take the error's place
                progress.say(f"all of the error is in {append_error(folder.path / LIBRARIES_LOG, error)}")
        raise
    finally:
        end_run(folder, status=status, reason=reason, wall_seconds=before + time.time() - began)


def _say_how_it_goes_on(path: Path, progress: Progress) -> None:
    with suppress(OSError):  # of a terminal that was closed
        progress.say(f"`scalelab run {shell_path(path)} --resume` goes on with it")


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


def _run(run: Run, start: Run, folder: RunFolder, progress: Progress) -> str | None:
    """Run in the world of the run's configuration, from the base model of `start`; returns why it ended early."""
    allow_files()
    start_up = StartUp()
    from scalelab.session.problems import check_overlap, describe_tasks
    from scalelab.start.base_model import prepare_traces, pretrained
    from scalelab.start.traces import check_worked_examples

    start_up.done("imports and settings")
    if start.sft.pretrained is not None:
        pretrained(start, start.sft.pretrained)  # refuses another model before anything starts
    check_worked_examples(start)
    prepared = prepare_traces(start, progress)  # says what is wrong with them before anything starts
    if prepared is not None:
        folder.describe(traces=prepared.facts)
    folder.describe(tasks=describe_tasks(run))
    if overlap := check_overlap(run, progress.say):
        folder.describe(overlap=overlap)
    start_up.done("problems and traces")
    world = run_on_cluster if run.virtual is None else run_on_simulated_clock
    with libraries_to(folder.path / LIBRARIES_LOG):
        return world(run, start, folder, progress, prepared, start_up)
