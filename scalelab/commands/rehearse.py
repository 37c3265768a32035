"""Rehearse every role of the real layout at full size on fake tensors, without a GPU; of several experiments, too.

Fake tensors have shapes but no numbers. A rank of every distinct kind is built, loaded, trained for a step and
exported, of the fine-tuning (the tuner) too, where a run begins with one. A device of an engine is configured, built
and loaded, and receives new weights. A verifier grades for real, on this machine. Ray starts on the loopback, with a
node's devices as numbers and an actor of each role. Printed are memory and FLOPs beside the plan's, every exchange
between ranks, what broke, and what could not be rehearsed (docs/rehearse.md). The exit code is 1 if a role would break,
or was rehearsed with another setting than the run's. Trainer ranks and Ray nodes that several experiments have
alike are rehearsed once.

Examples:
  scalelab rehearse scalerl_8b
  scalelab rehearse h100/scalerl_17bx16 --json
  scalelab rehearse h100/scalerl_8b h100/scalerl_17bx16 h200/scalerl_17bx16_least
  scalelab rehearse sft/scalerl_8b --only tuner
  scalelab rehearse scalerl_17bx16 --hardware gb200 --imbalance 1.5
  tools/rehearse/install.sh && scalelab rehearse scalerl_8b --devices yes
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.errors import LabError
from scalelab.hardware import DEVICES

if TYPE_CHECKING:
    from scalelab.hardware import Device
    from scalelab.rehearse.processes import RoleTask
    from scalelab.rehearse.result import RoleResult
    from scalelab.rehearse.roles import Role
    from scalelab.rehearse.setting import RehearsalSettings
    from scalelab.run.config import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser, "+")
    parser.add_argument("--hardware", metavar="NAME", help=f"{', '.join(DEVICES)} (Cluster.hardware)")
    spread = "tokens that each rank's experts get, as a multiple of their even share (default 1)"
    parser.add_argument("--imbalance", type=float, default=1.0, metavar="X", help=spread)
    devices = "simulate a CUDA device for trainers, which finds tensors on the wrong one (default: where it is set up)"
    parser.add_argument("--devices", choices=("auto", "yes", "no"), default="auto", help=devices)
    only = "rehearse this kind alone; may be repeated"
    kinds = ("tuner", "trainer", "engine", "verifier", "cluster")
    parser.add_argument("--only", action="append", choices=kinds, help=only)
    jobs = "roles at a time, and a node of Ray beside them"
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help=jobs)
    parser.add_argument("--deadline", type=float, default=900.0, metavar="S", help="seconds for a role (default 900)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Rehearse all roles and print their results."""
    from scalelab.commands.output import print_json
    from scalelab.rehearse.processes import rehearse_all
    from scalelab.signals import heed_signals

    for option in ("imbalance", "jobs", "deadline"):
        given = getattr(args, option)
        if given <= 0 or not math.isfinite(given):
            raise LabError(f"--{option} {given} must be a positive number")
    several = len(args.experiment) > 1
    rehearsals = [_rehearsal(args, experiment, several) for experiment in args.experiment]
    tasks = [task for rehearsal in rehearsals for task in rehearsal.tasks]
    of = [rehearsal for rehearsal in rehearsals for _ in rehearsal.tasks]

    def tell(number: int, result: RoleResult, seconds: float) -> None:
        role = f"{of[number].name}: {result.role}" if several else result.role
        took = f"{seconds:.0f} s" if seconds else "the same as another's"
        print(f"{role}: {result.verdict} ({took})", file=sys.stderr)

    heed_signals()  # a batch system's, too: processes and their folders are to be ended and removed
    started = time.monotonic()
    results = rehearse_all(tasks, args.jobs, args.deadline, tell)
    for rehearsal, result in zip(of, results, strict=True):
        _hold_against(result, rehearsal.setting.hardware, rehearsal.setting.run)
        rehearsal.results.append(result)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB on Linux
    took = time.monotonic() - started
    print(f"{took:.0f} s; {args.jobs} at a time, none with more than {most:.1f} GiB of memory", file=sys.stderr)
    ok = all(rehearsal.ok for rehearsal in rehearsals)
    if args.json:
        shown = [rehearsal.to_json() for rehearsal in rehearsals]
        print_json({"ok": ok, "experiments": shown} if several else shown[0])
    else:
        for number, rehearsal in enumerate(rehearsals):
            print("\n" * bool(number), end="")
            _print(rehearsal)
    return 0 if ok else 1


@dataclass
class _Rehearsal:
    """The rehearsal of one experiment.

    Attributes:
        name: of the experiment.
        setting: its run and the hardware.
        tasks: its roles.
        results: theirs, in the same order.
    """

    name: str
    setting: RehearsalSettings
    tasks: list[RoleTask]
    results: list[RoleResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if all roles would run, with the run's own settings."""
        return all(result.ok for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The experiment's entry in the output of `--json`."""
        roles = [result.to_json() for result in self.results]
        return {"experiment": self.name, "hardware": self.setting.hardware.name, "ok": self.ok, "roles": roles}


def _rehearsal(args: argparse.Namespace, experiment: str, several: bool) -> _Rehearsal:
    """Prepare the rehearsal of one experiment.

    Raises:
        LabError: it does not fit, or has nothing to rehearse; of several experiments it is named.
    """
    try:
        return _prepared(args, experiment)
    except LabError as problem:
        raise LabError(f"{experiment}: {problem}" if several else str(problem)) from None


def _prepared(args: argparse.Namespace, experiment: str) -> _Rehearsal:
    from scalelab.experiment import resolve
    from scalelab.hardware import Hardware, device
    from scalelab.plan.check import check, check_evaluation, usual
    from scalelab.rehearse.environment import how_to_set_up, interpreters, simulated_cuda
    from scalelab.rehearse.planned import micro_batches
    from scalelab.rehearse.processes import tasks_of
    from scalelab.rehearse.setting import RehearsalSettings

    resolved = resolve(experiment, args.sets)
    hardware = device(args.hardware or usual(resolved.run))
    # a core's memory in the table is a rule of thumb: runs that are made for cores may need more
    more = set(args.only or ["trainer"]) != {"tuner"}  # else `scalelab sft` may be all that is meant
    if more and (hardware.gpu or resolved.run.cluster.device == "gpu"):
        check(resolved.run, Hardware(hardware, resolved.run.devices)).demand()
    if more and hardware.gpu:
        check_evaluation(resolved.run, hardware)
    roles = _roles(resolved.run, hardware, args.only)
    simulated = simulated_cuda(hardware) if hardware.gpu and args.devices != "no" else None
    if simulated is None and args.devices == "yes":
        raise LabError(how_to_set_up() if hardware.gpu else "--devices yes is for GPUs: name one with --hardware")
    setting = RehearsalSettings(resolved.run, hardware, micro_batches(resolved.run), args.imbalance)
    return _Rehearsal(resolved.name, setting, tasks_of(setting, roles, interpreters(simulated)))


def _roles(run: Run, hardware: Device, only: Sequence[str] | None) -> list[Role]:
    """The roles that are asked for.

    Raises:
        LabError: there is none.
    """
    from scalelab.rehearse.roles import all_roles
    from scalelab.start.base_model import is_fine_tuned

    fine_tuned = (not only or "tuner" in only) and is_fine_tuned(run)
    roles = [role for role in all_roles(run, hardware, fine_tuned) if not only or role.kind in only]
    if not roles:
        start = "the model that RL starts from comes with the lab"
        if run.sft.pretrained is not None:
            start = f"SFT.pretrained = {run.sft.pretrained!r} is taken as it is"
        raise LabError(f"there is no fine-tuning to rehearse: {start}")
    return roles


def _hold_against(result: RoleResult, hardware: Device, run: Run) -> None:
    """Add a problem if the memory found, with the plan's reserve, does not fit, or the plan refuses a fine-tuning."""
    from scalelab.hardware import Hardware
    from scalelab.plan.check import fine_tuning_problem
    from scalelab.plan.memory import ENGINE_RESERVE, RESERVE

    if result.kind == "tuner" and hardware.gpu:
        result.problems += filter(None, [fine_tuning_problem(run, Hardware(hardware, run.devices))])
    if run.cluster.device != "gpu" or result.problems or not result.plan_memory_gib:
        return
    reserve = ENGINE_RESERVE if result.kind == "engine" else RESERVE
    if result.peak_gib + reserve > hardware.memory_gib:
        instead = "recompute more, cut the model further, or give a micro-batch fewer tokens"
        if result.kind == "engine":
            instead = "give it less KV cache"
        found = f"takes {result.peak_gib:.1f} GiB, and {reserve:.0f} are reserved, of {hardware.memory_gib:.1f}"
        result.problems.append(f"{found}: {instead}")


def _print(rehearsal: _Rehearsal) -> None:
    from scalelab.commands.output import print_table
    from scalelab.rehearse.result import differences

    results, setting = rehearsal.results, rehearsal.setting
    print(f"{rehearsal.name} rehearsed for {setting.run.devices} × {setting.hardware.name}\n")
    kinds = list(dict.fromkeys(kind for result in results for kind in result.plan_memory_gib))
    rows = []
    for result in results:
        apart = dict(differences(result))
        rows.append(
            [
                result.role,
                f"{result.stands_for}",
                result.verdict,
                *(f"{result.memory_gib[kind]:.2f}" if kind in result.memory_gib else "–" for kind in kinds),
                *(f"{gib:.2f}" if result.plan_memory_gib else "–" for gib in (result.peak_gib, result.plan_gib)),
                _signed_percent(apart.get("memory")),
                f"{result.flops / 1e12:.4g}" if result.flops else "–",
                f"{result.plan_flops / 1e12:.4g}" if result.plan_flops else "–",
                _signed_percent(apart.get("FLOPs")),
            ]
        )
    header = ["GiB on a device", "ranks", "", *(kind.replace("_", " ") for kind in kinds)]
    print_table(rows, [*header, "peak", "plan", "±", "TFLOP a row", "plan", "±"])
    print()
    of_tuner = [one for one in results if one.kind == "tuner"]
    _print_rows("longest row", [one for one in results if one.kind != "tuner"], f"{setting.micro_batches}")
    _print_rows("of the fine-tuning", of_tuner, f"at most {max((one.micro_batches for one in of_tuner), default=0)}")
    _print_exchanges(results, lambda result: result.collectives, "exchanges of", "GB a step")
    _print_exchanges(results, lambda result: result.publication, "to publish weights, exchanges of", "GB")
    for result in results:
        for line in result.problems:
            print(f"\n{result.verdict}: {result.role}: {line}")
    for line in dict.fromkeys(f"{result.kind}: {line}" for result in results for line in result.replaced):
        print(f"\nin part: {line}")
    seen = dict.fromkeys(f"{result.kind}: {line}" for result in results for line in result.not_rehearsed)
    if seen:
        print("\n* not rehearsed, so no verdict covers it")
    for line in seen:
        print(f"  {line}")


def _print_rows(title: str, results: Sequence[RoleResult], micro_batches: str) -> None:
    if longest := max((result.longest_row for result in results), default=0):
        step = f"exchanges are those of a step of {micro_batches} micro-batches a rank"
        print(f"{title}: {longest:,} tokens; {step}")


def _print_exchanges(
    results: Sequence[RoleResult], chosen: Callable[[RoleResult], list[dict[str, Any]]], title: str, unit: str
) -> None:
    from scalelab.commands.output import print_table

    for exchanges, alike in groupby(results, key=chosen):
        if exchanges:
            print(f"\n{title} {', '.join(result.role.partition(':')[0] for result in alike)}")
            print_table([_exchange(e) for e in exchanges], ["group", "operation", "calls", unit])


def _exchange(exchange: dict[str, Any]) -> list[str]:
    return [exchange["group"], exchange["op"], f"{exchange['calls']:,}", f"{exchange['bytes'] / 1e9:.3f}"]


def _signed_percent(share: float | None) -> str:
    return "–" if share is None else f"{share:+.1%}"
