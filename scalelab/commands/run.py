"""Run an experiment, or every member of a family, then fit its curves and write a report.

Each member of a family is a run of its own, in runs/FAMILY/MEMBER/seed_S. On a machine they run one after the other
(--jobs N: N virtual ones side by side), on a cluster side by side as far as its devices go. Given again, the command
skips finished members and resumes broken-off ones. A member that fails does not stop the others, but makes the exit
code 1. Ctrl-C stops everything in order, and all records stay readable.

Examples:
  scalelab run quickstart --set Run.seed=1
  scalelab run leave_one_out_miniature --only 'fp32_*' --seeds 0 1 2
  scalelab run quickstart --sweep OptimizerConfig.lr=1e-4,3e-4 --seeds 0 1
  scalelab run recipes --hours 50000 --stop-losers
  scalelab run quickstart --virtual --hardware h100
  scalelab run schedules_miniature --seeds 0 1 --jobs 2
  scalelab run --from runs/quickstart --set Budget.steps=300
  scalelab run --from runs/quickstart@100 --set Recipe.loss=@GSPO()
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.defaults import STOP_ERROR
from scalelab.doctor import demand_engines
from scalelab.errors import FAILED, INTERRUPTED, LabError
from scalelab.signals import heed_signals

if TYPE_CHECKING:
    from scalelab.experiment import Experiment, Resolved
    from scalelab.run.config import Run
    from scalelab.sweep.members import Member
    from scalelab.sweep.sweep import Ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser, nargs="?")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="RUN[@STEP]",
        help="go on from a run's checkpoint in a folder of its own: for longer, or with other settings (docs/run.md)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the run (runs/NAME, or the next free) or family (runs/FAMILY)",
    )
    _add_family_arguments(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with a run that was broken off: EXPERIMENT is its folder, or --out names it (docs/run.md)",
    )
    parser.add_argument(
        "--supervise",
        action="store_true",
        help="resume a run by itself when its process is killed or its machine fails",
    )
    parser.add_argument(
        "--virtual",
        action="store_true",
        help="simulate the cluster: one process, a simulated clock, runs that repeat to the last bit (docs/virtual.md)",
    )
    parser.add_argument(
        "--hardware", metavar="NAME", help="with --virtual: the devices that are simulated, such as h100"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="virtual runs of a family side by side, one core each (1); results do not depend on it",
    )
    parser.add_argument("--attended", type=int, help=argparse.SUPPRESS)  # the parent's, see scalelab.session.told
    add_json(parser)


def _add_family_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which runs a family has, and when they end."""
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="members of a family to run, such as 'fp32_*'; may be given several times",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="CLASS.FIELD=A,B,…",
        help="run once per value, in runs/NAME_sweep; given twice, once per combination",
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="S", help="run each once per value of Run.seed")
    parser.add_argument("--hours", type=float, metavar="H", help="device-hours after which the family's runs end")
    parser.add_argument(
        "--stop-losers",
        action="store_true",
        help="end members early whose forecast says that they cannot win (docs/experiments.md)",
    )
    parser.add_argument(
        "--stop-error",
        type=float,
        default=STOP_ERROR,
        metavar="P",
        help="largest chance that --stop-losers ends the best (default %(default)s)",
    )


def run(args: argparse.Namespace) -> int | None:
    """Run in a process of its own, whose end its parent sees; here, where this is that process or no command."""
    if args.experiment is None and args.source is None:
        raise LabError("give an EXPERIMENT (`scalelab list` shows them), or --from a run")
    if args.source is not None:
        _refuse_beside_from(args)
    if args.supervise:
        return _supervise(args)
    if args.from_shell and args.attended is None:
        from scalelab.session.supervise import attend

        return attend([sys.executable, "-m", "scalelab", *sys.argv[1:]], _say)[0]
    from scalelab.session.told import show_life, tell_reason

    if args.attended is not None:
        show_life(args.attended)
    try:
        return _run(args)
    except Exception as error:  # which the command line says
        tell_reason(args.attended, error)
        raise


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _supervise(args: argparse.Namespace) -> int:
    """Check that there is one run to supervise, make its folder, and supervise it."""
    from scalelab.experiment import load
    from scalelab.session.supervise import supervise
    from scalelab.store.places import clear, free_folder, holds_run, latest_folder, made_nothing

    path, begin = Path(args.experiment), [word for word in sys.argv[1:] if word != "--supervise"]
    if not (args.resume and holds_run(path)):
        [name, *others] = load(args.experiment)
        if others or args.seeds or args.only or args.sweep:
            raise LabError(
                "--supervise restarts one run; a family resumes its members when it is run again: leave it out"
            )
        path = args.out or (latest_folder(name) if args.resume else free_folder(name))
        begin = begin if args.out else [*begin, "--out", str(path)]
        if not args.resume and path.is_dir() and made_nothing(path):
            clear(path)  # what is left of a refused run must not be taken for one to go on with
    command = [sys.executable, "-m", "scalelab"]
    resume = [*command, "run", str(path), "--resume", *(["--json"] if args.json else [])]
    return supervise([*command, *begin], resume, path, _say)


def _run(args: argparse.Namespace) -> int | None:
    """Resolve everything first, so that a mistake shows before anything starts; then run."""
    from scalelab.experiment import load, resolve_experiment

    if args.hardware is not None and not args.virtual:
        raise LabError("--hardware names simulated devices: add --virtual")
    if args.virtual:
        args.sets = [*args.sets, "Run.virtual=@Virtual()"]
    if args.hardware is not None:
        args.sets = [*args.sets, f"Virtual.hardware={args.hardware!r}"]
    if args.source is not None:
        _branch(args)
        return None
    if args.resume:
        _refuse_beside_resume(args)
        _resume(args)
        return None
    members = load(args.experiment)
    if args.only:
        members = chosen(members, args.only, args.experiment)
    [(name, experiment), *others] = members.items()
    if others or args.seeds or args.only or args.sweep or ("/" in name and args.out is None):
        from scalelab.sweep.grid import grid
        from scalelab.sweep.members import members as sweep_members

        found = sweep_members(args.experiment, members, args.sets, args.seeds, args.out, grid(args.sweep))
        return _sweep(args, found)
    if args.jobs is not None:
        raise LabError(f"--jobs is for families and several seeds; {name} is one run")
    if args.hours is not None or args.stop_losers:
        raise LabError(f"--hours and --stop-losers are for families; end {name} with --set Budget.hours=…")
    _run_one(args, resolve_experiment(name, experiment, args.sets, imports=True))
    return None


def _refuse_beside_from(args: argparse.Namespace) -> None:
    """Refuse options that say nothing of one run that goes on from another."""
    for option in ("resume", "supervise", "only", "sweep", "seeds", "hours", "stop_losers", "jobs"):
        value = getattr(args, option)
        if not (value is None or value is False or value == []):
            raise LabError(f"--{option.replace('_', '-')} and --from exclude each other: leave one of them out")


def chosen(members: dict[str, Experiment], patterns: Sequence[str], family: str) -> dict[str, Experiment]:
    """The members whose names match a pattern, in the family's order; every pattern has to match one."""
    matched = {one: [name for name in members if fnmatch.fnmatchcase(name.rpartition("/")[2], one)] for one in patterns}
    if vain := [one for one, names in matched.items() if not names]:
        raise LabError(f"no member of {family} matches --only {vain[0]}: `scalelab list {family}` shows them")
    wanted = {name for names in matched.values() for name in names}
    return {name: member for name, member in members.items() if name in wanted}


def _refuse_beside_resume(args: argparse.Namespace) -> None:
    """Refuse options of families, which say nothing of one run that goes on as it is."""
    for option in ("only", "sweep", "seeds", "hours", "stop_losers", "jobs"):
        value = getattr(args, option)
        if not (value is None or value is False or value == []):
            raise LabError(
                f"--{option.replace('_', '-')} is for families, and --resume goes on with one run as it is: leave one "
                "of them out (a family that is run again resumes its members)"
            )


def _prepare(args: argparse.Namespace, run: Run) -> None:
    """Check that engines are installed, and see that this process has the arithmetic that a run asks for."""
    from scalelab.virtual.cluster import take_arithmetic

    demand_engines(run.cluster.device)
    if args.attended is not None:
        os.set_inheritable(args.attended, True)  # a process that is started anew is attended as this one is
    take_arithmetic(run)
    if args.attended is not None:
        os.set_inheritable(args.attended, False)


def _run_one(args: argparse.Namespace, experiment: Resolved) -> None:
    _prepare(args, experiment.run)  # before imports that a process which is started anew would make again
    from scalelab.session.live_page import live_page
    from scalelab.session.native_output import python_stderr_apart
    from scalelab.session.session import execute
    from scalelab.session.told import tell
    from scalelab.store.places import free_folder
    from scalelab.watch.progress import Progress

    heed_signals()
    out = args.out or free_folder(experiment.name)
    with python_stderr_apart(), Progress() as progress, live_page(out, progress.say, sys.stderr.isatty()):
        path = execute(experiment, out, progress, partial(tell, args.attended))
    _present(args, experiment, path)


def _branch(args: argparse.Namespace) -> None:
    from scalelab.experiment import load, resolve, resolve_experiment
    from scalelab.session.branch import branch, split
    from scalelab.session.live_page import live_page
    from scalelab.session.native_output import python_stderr_apart
    from scalelab.session.told import tell
    from scalelab.store.earlier import claimed_manifest
    from scalelab.store.manifest import CONFIG
    from scalelab.store.places import free_folder
    from scalelab.watch.progress import Progress

    heed_signals()
    path, step = split(args.source)
    claimed_manifest(path)  # says what is no run's folder
    parent = resolve(str(path / CONFIG), imports=True)
    [(name, experiment), *others] = load(args.experiment or str(path / CONFIG)).items()
    if others:
        raise LabError(f"{args.experiment} has {len(others) + 1} members: name the one that goes on from {path}")
    asked = resolve_experiment(name, experiment, args.sets, imports=True)
    _prepare(args, asked.run)
    out = args.out or free_folder(asked.name)
    start = _start_of(path) or parent.run
    with python_stderr_apart(), Progress() as progress, live_page(out, progress.say, sys.stderr.isatty()):
        branch(asked, parent, (path, step), start, out, progress, partial(tell, args.attended))
    _present(args, asked, out)


def _start_of(path: Path) -> Run | None:
    """The run that a branch and its parents began with; None for a run that is no branch."""
    from scalelab.experiment import resolve
    from scalelab.store.manifest import START

    return resolve(str(path / START), imports=True).run if (path / START).exists() else None


def _resume(args: argparse.Namespace) -> None:
    from scalelab.experiment import load, resolve, resolve_experiment
    from scalelab.session.live_page import live_page
    from scalelab.session.native_output import python_stderr_apart
    from scalelab.session.session import resume
    from scalelab.session.told import tell
    from scalelab.store.earlier import claimed_manifest
    from scalelab.store.manifest import CONFIG
    from scalelab.store.places import holds_run, latest_folder
    from scalelab.watch.progress import Progress

    heed_signals()
    path, asked = Path(args.experiment), None
    path = path.parent if path.name == CONFIG else path
    if not holds_run(path) or args.sets:
        source = path / CONFIG if holds_run(path) else args.experiment
        [(name, experiment), *others] = load(str(source)).items()
        if others:
            raise LabError(
                f"{args.experiment} has {len(others) + 1} members; running them again resumes them: leave --resume out"
            )
        asked = resolve_experiment(name, experiment, args.sets, imports=True)
        path = args.out or (path if holds_run(path) else latest_folder(name))
    elif args.out is not None and args.out.resolve() != path.resolve():
        raise LabError(f"{path} is the run that --resume goes on with, in its own folder: leave --out {args.out} out")
    claimed_manifest(path)  # says what is no run's folder
    own = resolve(str(path / CONFIG), imports=True)
    _prepare(args, own.run)
    with python_stderr_apart(), Progress() as progress, live_page(path, progress.say, sys.stderr.isatty()):
        resume(path, own, asked, progress, partial(tell, args.attended), _start_of(path))
    _present(args, own, path)


def _present(args: argparse.Namespace, experiment: Resolved, path: Path) -> None:
    """Write the report of a run that has ended, and print its fits."""
    from scalelab.commands.ending import closing_lines
    from scalelab.commands.fit import print_fits
    from scalelab.commands.output import print_json
    from scalelab.curves import analyse_all, read_sources
    from scalelab.report import write_report

    report = write_report([path], path / "report.html")
    if args.json:
        print_json({"runs": [{"experiment": experiment.name, "run": str(path), "report": str(report)}]})
        return
    curves = read_sources([path])
    analyses, refused = analyse_all(curves)
    print_fits(analyses, [])  # the closing lines say why others are refused
    print("", *closing_lines(curves, analyses, refused), f"report: {report}", sep="\n")


def _sweep(args: argparse.Namespace, members: list[Member]) -> int:
    from scalelab.commands.output import print_json
    from scalelab.report import write_report
    from scalelab.sweep.sweep import Sweep, SweepOptions, cluster_devices

    if args.jobs is not None:
        _check_jobs(args.jobs, members)
    for device in sorted({member.resolved.run.cluster.device for member in members}):
        demand_engines(device)
    heed_signals()  # its runs must not outlive it
    clusters = {(m.resolved.run.cluster.address, m.resolved.run.cluster.device) for m in members}
    [(address, device), *more] = clusters
    together = not more and address is not None and len(members) > 1
    devices = cluster_devices(address, device) if together else None
    options = SweepOptions(args.hours, args.stop_losers, args.stop_error, devices, args.jobs or 1)
    outcomes = Sweep(members, options, lambda line: print(line, file=sys.stderr, flush=True)).run()
    root = args.out or Path(*members[0].path.parts[:2])  # runs/FAMILY
    evaluated = [outcome for outcome in outcomes if outcome.member.evaluations()]
    report = write_report([root], root / "report.html") if evaluated else None
    endings = {outcome.ending for outcome in outcomes}
    if args.json:
        print_json({"runs": [_summary(outcome) for outcome in outcomes], "report": report and str(report)})
    else:
        _print_summary(outcomes)
        if len({outcome.member.path.parent for outcome in evaluated}) > 1:
            _rank(root)
        if report is not None:
            print(f"\nreport: {report}")
    return FAILED if "failed" in endings else INTERRUPTED if "interrupted" in endings else 0


def _rank(root: Path) -> None:
    """Print the ranking of a family's runs; those of one recipe are pooled, and one recipe alone has no ranking."""
    from scalelab.commands.compare import print_comparisons
    from scalelab.commands.curve_options import print_remarks
    from scalelab.curves import analyse_all, compare, pool_seeds, read_sources

    curves, pooled = pool_seeds(read_sources([root]))
    if len({curve.run for curve in curves}) > 1:
        analyses, refused = analyse_all(curves)
        print()
        try:
            print_comparisons(compare(analyses, baseline=curves[0].run), pooled)
        except LabError as error:  # the runs are made, whether they can be compared or not
            print(f"no comparison: {error}")
        print_remarks(analyses, refused)


def _check_jobs(jobs: int, members: list[Member]) -> None:
    """Refuse a number of runs side by side that would disturb each other.

    Raises:
        LabError: it is not positive, or a member holds cores on the wall clock.
    """
    if jobs < 1:
        raise LabError(f"--jobs {jobs}: at least one run has to go on")
    real = next((member for member in members if member.resolved.run.virtual is None), None)
    if jobs > 1 and real is not None:
        raise LabError(
            f"--jobs {jobs}: {real.name} runs on the wall clock, where runs side by side slow each other down: add "
            "--virtual, or share a cluster by Cluster.address"
        )


def _summary(outcome: Ended) -> dict[str, object]:
    member = outcome.member
    return {
        "experiment": member.resolved.name,
        "seed": member.resolved.run.seed,
        "run": str(member.path),
        "ending": outcome.ending,
        "reason": outcome.reason,
        "device_hours": member.spent(),
        "pass_rate": {task: record["pass_rate"] for task, record in member.evaluations().items()},
    }


def _print_summary(outcomes: list[Ended]) -> None:
    from scalelab.commands.output import print_table
    from scalelab.sweep.sweep import progress_line

    print()
    print_table(
        [(o.member.name, o.ending, progress_line(o.member), f"{o.member.spent():.4g}", o.reason) for o in outcomes],
        ("run", "ending", "last evaluation", "device-hours", "why"),
    )
