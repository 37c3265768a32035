"""Write the job script that takes an experiment from an empty cluster to its run, and submit it.

`slurm` prints a script for sbatch: it starts Ray on every node, counts the nodes that joined, watches them, and resumes
the run when the job is queued again. `ray` prints a file for `ray up`, `k8s` a RayJob for KubeRay. Number of nodes and
time to end in order come from the experiment's plan, which has to fit.

Examples (SFT.pretrained is the model that RL starts from):
  scalelab launch slurm h100/scalerl_8b --out /shared/runs/8b --time 2-00:00:00 --set SFT.pretrained=/shared/models/8b
  scalelab launch slurm sft/scalerl_8b --sft --out /shared/models/8b_sft --set SFT.pretrained=/shared/models/8b --submit
  scalelab launch ray h100/scalerl_8b_node --out /shared/runs/8b --hosts 10.0.0.1 --user me \\
      --set SFT.pretrained=/shared/models/8b > cluster.yaml
  scalelab launch k8s h100/scalerl_8b --out /runs/8b --image scalelab --claim runs \\
      --set SFT.pretrained=/runs/models/8b > job.yaml
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.arguments import add_experiment
from scalelab.errors import LabError
from scalelab.numbers import counted

if TYPE_CHECKING:
    from scalelab.launcher.scripts import LaunchJob
    from scalelab.run.config import Run

SUBMIT = {"slurm": ["sbatch"], "k8s": ["kubectl", "create", "-f", "-"]}
"""Commands that take a script on standard input."""
RAY = Path(sys.executable).with_name("ray")
USED_BY = {
    "cpus": ("slurm", "k8s"),
    **dict.fromkeys(("time", "partition", "setup", "container", "mounts", "network"), ("slurm",)),
    **dict.fromkeys(("hosts", "user"), ("ray",)),
    **dict.fromkeys(("image", "claim"), ("k8s",)),
}
"""Options that not every kind uses."""
POD_WAIT = "30m"
"""Time for the pod that looks at the volume to start: its node may have to pull the image."""
CHECKOUT = Path(__file__).parents[2]
VOLUME, IMAGE = Path("/runs"), Path("/scalelab")
"""Folders that pods see: of the volume, and of the image's checkout."""
FILE = re.compile(r".*\.(py|gin)(?=/|$)")
"""The file in what names an experiment, FILE or FILE/MEMBER."""
UNSAFE = re.compile(r"""[\s'"\\`$;&|<>(){}*?!]""")
"""Characters that shells and YAML read in ways of their own."""
READ_BY_SHELLS = re.compile(r"[\\`$]")
"""Characters that a shell reads within double quotes, too, in which `ray job submit` puts a job's words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", choices=("slurm", "ray", "k8s"), help="what starts the cluster")
    add_experiment(parser)
    parser.add_argument("--out", type=Path, required=True, help="the run's folder, which all nodes see")
    parser.add_argument("--sft", action="store_true", help="launch the fine-tuning alone (scalelab sft)")
    parser.add_argument(
        "--submit", action="store_true", help="submit it (sbatch, ray up, kubectl create) in place of printing"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="in place of printing, look whether the disk of --out has room here, and the model fits the run "
        "(with k8s, --submit does it first, in a pod without devices)",
    )
    parser.add_argument("--cpus", type=int, metavar="N", help="processor cores of a node (default: 8 for each device)")
    parser.add_argument("--time", default="", help="slurm: time limit")
    parser.add_argument("--partition", default="", help="slurm: partition")
    parser.add_argument("--setup", type=Path, metavar="FILE", help="slurm: sourced first (modules, NCCL's variables)")
    parser.add_argument(
        "--container", default="", metavar="IMAGE", help="slurm: image for Pyxis (tools/cluster/Dockerfile)"
    )
    parser.add_argument("--mounts", default="", metavar="FROM:TO,…", help="slurm: further mounts of the container")
    parser.add_argument("--network", default="", metavar="10.1.", help="slurm: beginning of the nodes' addresses")
    parser.add_argument("--hosts", default="", metavar="A,B,…", help="ray: the machines, the head first")
    parser.add_argument("--user", default="", help="ray: user of ssh")
    parser.add_argument("--image", default="", help="k8s: image that tools/cluster/Dockerfile has made")
    parser.add_argument("--claim", default="", help="k8s: volume claim that is mounted at /runs")


def run(args: argparse.Namespace) -> int:
    """Check the experiment, then print or submit its script."""
    from scalelab.experiment import resolve
    from scalelab.launcher import scripts

    experiment = resolve(args.experiment, args.sets).run
    _check(args, experiment)
    job = _job(args, experiment)
    if args.check:
        model = _folder(experiment)
        print(f"{args.out} has room" + (f", and {model} is the run's model" if model is not None else ""))
        return 0
    if args.where == "slurm":
        text = scripts.slurm(
            job,
            CHECKOUT,
            time=args.time,
            partition=args.partition,
            cpus=args.cpus,
            setup=args.setup,
            container=args.container,
            mounts=",".join(filter(None, [*_seen_inside(args, experiment), args.mounts])),
            network=args.network,
        )
    elif args.where == "ray":
        text = scripts.ray_yaml(job, CHECKOUT, args.user, args.hosts.split(","))
    else:
        text = scripts.kuberay(job, args.image, args.claim, _memory_gib(experiment, sft=args.sft), args.cpus)
    if not args.submit:
        print(text, end="")
        return 0
    if args.where == "ray":
        return _start(job, text)
    command = SUBMIT[args.where]
    if shutil.which(command[0]) is None:
        raise LabError(
            f"there is no {command[0]} here: leave --submit out, and submit what is printed where there is one"
        )
    if args.where == "k8s" and (code := _look(job, args.image, args.claim)):
        return code
    done = subprocess.run(command, input=text, text=True, stdout=sys.stdout, check=False)
    return done.returncode


def _look(job: LaunchJob, image: str, claim: str) -> int:
    """Say `--check` in a pod that has the volume and no device, before any device is taken; returns its exit code."""
    from scalelab.launcher import scripts

    pod = f"{job.name_of_folder}-check-{secrets.token_hex(3)}"
    print(f"looking at the volume from the pod {pod}, for which kubectl waits {POD_WAIT}", file=sys.stderr)
    code = subprocess.run(
        scripts.check_pod(job, image, claim, pod, POD_WAIT), stdout=sys.stderr, check=False
    ).returncode
    if code:
        print("no RayJob was submitted: see above", file=sys.stderr)
    return code


def _start(job: LaunchJob, text: str) -> int:
    """Bring Ray up on machines of one's own, and leave the run to its head; returns the exit code."""
    from scalelab.launcher import scripts

    file, token = Path(f"{job.name_of_folder}.yaml").absolute(), Path("~/.ray/auth_token").expanduser()
    if not RAY.exists():
        raise LabError(f"there is no {RAY}: leave --submit out, or install the packages for runs")
    if file.exists():
        raise LabError(
            f"{file} is there: a run may go on that was started with it, and `ray up` would end it; remove it to start"
        )
    if not token.exists():
        subprocess.run([RAY, "get-auth-token", "--generate"], stdout=subprocess.DEVNULL, check=False)
    if not token.exists():
        raise LabError(f"`ray get-auth-token` made no {token}: make one, or leave --submit out")
    token.chmod(0o600)
    file.write_text(text)
    if code := subprocess.run([RAY, "up", "--yes", str(file)], check=False).returncode:
        file.unlink()  # no run was started with it
        print("`ray up` failed: see above; without --submit the file that it was given is printed", file=sys.stderr)
        return code
    if code := subprocess.run([RAY, "exec", str(file), scripts.left_on_head(job, CHECKOUT)], check=False).returncode:
        print(f"Ray is up, and `ray exec` failed: see above; {file} tells how to start the run", file=sys.stderr)
        return code
    print(f"started on the head: it writes {job.out}.log; {file} is the cluster, and its first lines say how to end it")
    return 0


def _check(args: argparse.Namespace, run: Run) -> None:
    """Refuse what the cluster would refuse later."""
    if run.cluster.device != "gpu":
        raise LabError(f"{args.experiment} runs on cores (Cluster.device): `scalelab run` starts it on this machine")
    for name, text in (
        ("EXPERIMENT", args.experiment),
        ("--out", str(args.out)),
        *(("--set", one) for one in args.sets),
    ):
        if not text.isprintable():
            raise LabError(f"{name} {text!r} has a character that no line of a script can carry: leave it out")
        if args.where == "k8s" and (strange := READ_BY_SHELLS.search(text)):
            raise LabError(f"{name} has {strange[0]!r} in it, which a shell of Ray's jobs would read: leave it out")
    if args.where != "k8s" and not args.container and " " in str(CHECKOUT):
        raise LabError(f"{CHECKOUT} has a space in it, and Ray's nodes start nothing by such a path: move the checkout")
    if not args.out.is_absolute():
        raise LabError(f"--out {args.out} is relative, and every node has a folder of its own there: give a whole path")
    if args.cpus is not None and args.cpus < 1:
        raise LabError(f"--cpus {args.cpus}: give the processor cores of a node")
    for option, kinds in USED_BY.items():
        if getattr(args, option) not in (None, "") and args.where not in kinds:
            raise LabError(f"--{option} is for launch {' and '.join(kinds)}, and {args.where} has no use for it")
    if args.mounts and not args.container:
        raise LabError("--mounts is for a --container, and there is none: give both, or neither")
    if run.cluster.address not in (None, "auto"):
        raise LabError(
            f"Cluster.address is {run.cluster.address!r}, and launch starts a Ray of its own: leave it out, or join "
            "that one with `scalelab run`"
        )
    needed = {"slurm": (), "ray": ("hosts", "user"), "k8s": ("image", "claim")}[args.where]
    if missing := [option for option in needed if not getattr(args, option)]:
        raise LabError(f"launch {args.where} needs --{missing[0]}")
    if args.where == "k8s":
        _check_pods(args, run)
    for option in ("partition", "container", "mounts", "image", "claim", "user"):
        if strange := UNSAFE.search(getattr(args, option)):
            raise LabError(f"--{option} has {strange[0]!r} in it, which the script cannot carry: leave it out")
    if args.setup is not None:
        if not args.setup.is_file():
            raise LabError(f"--setup {args.setup} is no file here: give the path by which the nodes see it, too")
        args.setup = args.setup.absolute()
    if args.check and args.submit:
        raise LabError("--check submits nothing: leave --check or --submit out")
    if args.where != "k8s" or args.check:
        _check_disk(args.out, run, sft=args.sft, seen=args.check)
    if args.hosts:
        _check_hosts(args.hosts.split(","))
    if args.network and not set(args.network) <= set("0123456789abcdefABCDEF.:"):
        raise LabError(f"--network {args.network!r} begins no address: give its first numbers, such as 10.1.")
    if f"{args.network}.".startswith(("127.", "169.254.", "::1.")):
        raise LabError(f"--network {args.network} is the loopback or of one link, which no other machine reaches")
    folder = _folder(run)
    if folder is not None and not folder.is_absolute():
        raise LabError(
            f"SFT.pretrained is {str(folder)!r}, which every node has elsewhere: give a whole path with "
            "--set SFT.pretrained=…"
        )
    if args.where != "k8s" or args.check:
        _check_model(run, seen=args.check)


def _seen_inside(args: argparse.Namespace, run: Run) -> list[str]:
    """Mounts of a container for what the run reads: the model that it starts from, data, and the experiment's folder.

    Raises:
        LabError: a path has a character that parts mounts.
    """
    if not args.container:
        return []
    file = FILE.match(args.experiment)
    read = [Path(run.sft.pretrained or ""), *([Path(file[0]).parent] if file else [])]
    read += [Path(str(getattr(task, "file", ""))).parent for task in run.graded_tasks]
    seen, found = {args.out.parent, CHECKOUT}, dict.fromkeys(path for path in read if path.is_absolute())
    found = {path: None for path in found if len(path.parts) > 1 and not seen & {path, *path.parents}}
    for path in found:
        if {",", ":"} & set(str(path)):
            raise LabError(f"{path} has a comma or a colon in it, which no mount of a container can carry: move it")
    return [f"{path}:{path}" for path in found]


def _check_pods(args: argparse.Namespace, run: Run) -> None:
    """Refuse files that pods do not see; `--out` is left without `..`."""
    given, args.out = args.out, Path(os.path.normpath(args.out))
    if VOLUME not in args.out.parents:
        raise LabError(f"--out {given} is not on the volume, which is mounted at {VOLUME}: give a folder below it")
    file, folder = FILE.match(args.experiment), _folder(run)
    if file and not _in_pods(file[0]):
        raise LabError(
            f"EXPERIMENT {file[0]} is a file that pods do not see: put it below {VOLUME} of the volume, or into "
            f"{IMAGE}/experiments of the image, and give that path (or its name)"
        )
    if folder is not None and folder.is_absolute() and not _in_pods(str(folder)):
        raise LabError(
            f"SFT.pretrained is {folder}, which pods do not see: put the model on the volume, and give a folder below "
            f"{VOLUME}"
        )


def _in_pods(path: str) -> bool:
    return not {VOLUME, IMAGE}.isdisjoint(Path(os.path.normpath(path)).parents)


def _check_disk(out: Path, run: Run, *, sft: bool, seen: bool) -> None:
    """Refuse a disk without room for the run or the fine-tuning; `seen` says that this machine should see it."""
    from scalelab.plan.disk import check_disk, check_fine_tuning_disk
    from scalelab.plan.planner import step_hours

    if not any(parent.exists() and len(parent.parts) > 1 for parent in (out, *out.parents)):
        if seen:
            raise LabError(f"no folder of --out {out} is here, so that nobody knows its room: look where it is mounted")
        return
    if sft:
        check_fine_tuning_disk(out, run)
    else:
        check_disk(out, run, step_hours(run))


def _folder(run: Run) -> Path | None:
    """The folder of the model that a run starts from; None where it is downloaded or made."""
    name = run.sft.pretrained
    return Path(name) if name and ":" not in name else None


def _check_model(run: Run, *, seen: bool) -> None:
    """Refuse a model that is not the run's, where this machine sees it; `seen` says that it should."""
    folder = _folder(run)
    if folder is not None and folder.is_dir():
        if not seen and importlib.util.find_spec("torch") is None:  # a login node may have only what plans
            return
        from scalelab.start.base_model import checked_model

        checked_model(run, folder)
    elif folder is not None and seen:
        raise LabError(f"SFT.pretrained: there is no folder {folder} here: put the model there")


def _check_hosts(hosts: list[str]) -> None:
    """Refuse machines that are none, are named twice, or cannot be reached by the others."""
    for host in hosts:
        if not host.strip() or host != host.strip():
            raise LabError(f"--hosts names {host!r} among others: give the machines with a comma between two alone")
        if strange := UNSAFE.search(host):
            raise LabError(f"--hosts has {strange[0]!r} in it, which the script cannot carry: leave it out")
        if hosts.count(host) > 1:
            raise LabError(f"--hosts names {host} twice")
        if _is_here_alone(host):
            raise LabError(f"--hosts {host} is an address that no other machine reaches: give the one that they see")


def _is_here_alone(host: str) -> bool:
    """True if an address is a loopback or of no machine, or a name stands for none but such addresses here."""
    text = host.strip("[]")
    try:
        addresses = [ipaddress.ip_address(text)]
    except ValueError:
        try:
            found = socket.getaddrinfo(text, None)
        except (OSError, UnicodeError):  # a name that the cluster alone knows
            return False
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return all(one.is_loopback or one.is_unspecified or one.is_link_local or one.is_multicast for one in plain)


def _job(args: argparse.Namespace, run: Run) -> LaunchJob:
    """The job's size by the plan.

    Raises:
        LabError: the run does not fit, or on other nodes than were given.
    """
    from moe.checkpoint.size import checkpoint_bytes
    from scalelab.hardware import Hardware, device
    from scalelab.launcher.scripts import LaunchJob, grace_seconds
    from scalelab.plan.check import check, check_evaluation, check_fine_tuning, usual
    from scalelab.plan.placement import placement
    from scalelab.plan.planner import fine_tuning_seconds, plan_of
    from scalelab.plan.speed import Assumptions

    hardware, devices = device(usual(run)), run.sft.trainers if args.sft else run.devices
    per_node = min(run.cluster.devices_per_node, devices)
    nodes = -(-devices // per_node)  # all whole
    there = Hardware(replace(hardware, per_node=min(hardware.per_node, per_node)), nodes * per_node)
    if args.sft:
        check_fine_tuning(run, there)
    else:
        check(run, there).demand()
        check_evaluation(run, hardware)
    if args.where == "ray" and len(args.hosts.split(",")) != nodes:
        given = len(args.hosts.split(","))
        raise LabError(
            f"the run takes {counted(devices, 'device')}, {counted(nodes, 'machine')} of {per_node}; "
            f"--hosts names {given}"
        )
    if args.sft:
        seconds = fine_tuning_seconds(run, hardware, Assumptions())
    else:
        seconds = plan_of(run, placement(run), hardware, Assumptions()).seconds["step"]
    grace = grace_seconds(seconds, checkpoint_bytes(run.model.to_hf(), run.trainer.dtype))
    limit = _limit_seconds(args.time) if args.time else None
    if limit is not None and limit <= grace:
        raise LabError(
            f"--time {args.time} is {limit:,.0f} s, and a step and a checkpoint may take {grace:,} of them at its end: "
            "give more"
        )
    command = "sft" if args.sft else "run"
    return LaunchJob(args.experiment, tuple(args.sets), args.out, devices, per_node, nodes, grace, command)


def _limit_seconds(text: str) -> float | None:
    """Seconds of a time limit in Slurm's words; None without end.

    Raises:
        LabError: they are none.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise LabError(f"--time {text}: give minutes, hours:minutes:seconds, or days-hours:minutes:seconds")
    days, *parts = (None if part is None else int(part) for part in found.groups())
    given = [part for part in parts if part is not None]
    # Slurm reads M, M:S and H:M:S, and after days H, H:M and H:M:S.
    hours_first = days is not None or len(given) == 3
    units = (3600, 60, 1) if hours_first else (60, 1)
    return 86_400.0 * (days or 0) + sum(unit * part for unit, part in zip(units, given))


def _memory_gib(run: Run, *, sft: bool = False) -> int:
    """GiB of host memory of the fullest node, in whole 64.

    Of an engine, the weights, once more in /dev/shm for all of a node's. Of a trainer rank, its part of the checkpoint
    that is being written and, with `OptimizerConfig.offload`, its optimiser. 128 for the rest.
    """
    from moe.checkpoint.size import OPTIMIZER_BYTES, checkpoint_bytes
    from moe.model.size import BYTES, parameters
    from scalelab.plan.sizes import optimizer_elements

    setup, world = (run.tuner_setup, run.sft.trainers) if sft else (run.trainer_setup, run.cluster.trainers)
    hf_config, per_node = run.model.to_hf(), run.cluster.devices_per_node
    of_rank = checkpoint_bytes(hf_config, setup.dtype) / world
    if setup.optimizer.offload:
        share = optimizer_elements(hf_config, setup.layout, world)
        of_rank += share * (OPTIMIZER_BYTES + BYTES["float32"])  # and the gradient
    weights, most = BYTES["bfloat16"] * parameters(hf_config).total, min(world, per_node)
    nodes = []
    for ranks in (most,) if sft or run.cluster.share_devices else (0, most):
        free = 0 if sft else per_node if run.cluster.share_devices else per_node - ranks
        nodes.append(weights * (free // run.generator.tensor_parallel + 1) + of_rank * ranks)
    return int(-(-(max(nodes) / 2**30 + 128) // 64) * 64)
