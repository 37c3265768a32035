"""One node of a run's Ray cluster, for real and on the loopback: its devices are numbers to Ray, which counts them.

Ray is started by the words of `scalelab launch`, with a token of its own. The run's own reservations are made, and an
actor of each role starts on them with the environment of its role.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from moe.settings import TrainerSetup
from scalelab.cluster.actors import actor_class, end_ray, join_cluster
from scalelab.cluster.engine_actor import EngineActor
from scalelab.cluster.graders import GraderActor
from scalelab.cluster.placement import Reservation, shared
from scalelab.cluster.trainer_ranks import TrainerRank
from scalelab.environment import ALLOCATOR, ProcessRole, environment
from scalelab.errors import LabError
from scalelab.hardware import packed
from scalelab.launcher.scripts import CPUS_PER_DEVICE
from scalelab.launcher.slurm_job import last_line, ray_start
from scalelab.rehearse.explain import explain
from scalelab.rehearse.looking import Unstarted, that_looks
from scalelab.rehearse.result import Phase, RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.run.config import Run
from scalelab.run.settings import Cluster
from scalelab.start.base_model import is_fine_tuned
from scalelab.waiting import LateError, wait_for

HOST = "127.0.0.1"
UP_SECONDS, END_SECONDS = 60.0, 20.0
"""Deadlines of Ray's head, a reservation and an actor's answer; and of the end of Ray's processes."""
STORE_BYTES = 80 * 2**20
"""Size of Ray's store of objects, nearly the least that it takes."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
NOT_REHEARSED = (
    "nodes that join over a network: one is there, on the loopback",
    "the start of vLLM in its actor, and of a trainer's ranks together",
)


@dataclass(frozen=True)
class RehearsedNode:
    """A node of Ray, and the actors that start on it: all that its rehearsal depends on.

    Attributes:
        devices: of the node.
        gpu: whether they are GPUs.
        cluster: the run's, with the trainer's ranks of this node, and one engine if that shares no device with one.
        tuner: ranks of the fine-tuning that the node has; 0 without one.
        engine: devices of an engine.
        tasks: tasks that a grader is made for.
        run: the run, of which actors get what they keep unread until they build: model and settings.
    """

    devices: int
    gpu: bool
    cluster: Cluster
    tuner: int
    engine: int
    tasks: tuple[Any, ...]
    run: Run = field(compare=False)


def subject(setting: RehearsalSettings) -> RehearsedNode:
    """The first node of a run, as far as a rehearsal sees it; it waits no longer for devices than that does."""
    run = setting.run
    cluster, gpu = run.cluster, run.cluster.device == "gpu"
    ranks = packed(cluster.trainers, cluster.devices_per_node)[0]
    of_node = Cluster(
        device=cluster.device,
        devices_per_node=cluster.devices_per_node,
        share_devices=cluster.share_devices,
        trainers=ranks,
        generators=ranks if cluster.share_devices else 1,
        startup_seconds=UP_SECONDS,
    )
    return RehearsedNode(
        devices=setting.hardware.per_node if gpu else run.devices,
        gpu=gpu,
        cluster=of_node,
        tuner=packed(run.sft.trainers, cluster.devices_per_node)[0] if is_fine_tuned(run) else 0,
        engine=run.generator.tensor_parallel,
        tasks=run.graded_tasks,
        run=run,
    )


def rehearse(setting: RehearsalSettings, role: Role) -> RoleResult:
    """Start Ray and an actor of each role as a run does; errors are recorded, not raised."""
    result = RoleResult(role.name, "cluster", role.stands_for, not_rehearsed=[*NOT_REHEARSED])
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as folder:
        _NodeRehearsal(subject(setting), result, Path(folder)).run()
    return result


class _NodeRehearsal:
    def __init__(self, node: RehearsedNode, result: RoleResult, folder: Path) -> None:
        self.node, self.result, self.folder = node, result, folder
        self.address = f"{HOST}:{free_port()}"

    def run(self) -> None:
        with _ended_after():
            if not self._phase("start", self._start):
                return
            try:
                if self.node.tuner:
                    self._phase("tuner", self._tuner)
                self._phase("trainer", self._trainer)
                if not self.node.cluster.share_devices:
                    self._phase("engine", self._engine)
                self._phase("grader", self._grader)
            finally:
                end_ray()

    def _phase(self, name: str, do: Callable[[], None]) -> bool:
        began, found = time.perf_counter(), len(self.result.problems)
        try:
            do()
        except Exception as error:  # whatever breaks is what a rehearsal is for
            self.result.problems.append(f"{name}: {explain(error)}")
        ok = len(self.result.problems) == found
        self.result.phases.append(Phase(name, ok, time.perf_counter() - began))
        return ok

    def _start(self) -> None:
        """Start Ray's head as a job's first node does, and join it as a run does."""
        ray_program = str(Path(sys.executable).with_name("ray"))
        words = ray_start(ray_program, self.address, head=True) + _size(self.node.devices, self.node.gpu, self.folder)
        with (self.folder / "said").open("w+b") as said:
            head = subprocess.Popen(
                words, stdout=said, stderr=subprocess.STDOUT, env=_of_node(self.node.devices, self.node.gpu)
            )
            ends = time.monotonic() + UP_SECONDS
            while not answers(self.address):
                if head.poll() is not None:
                    raise LabError(f"Ray's head did not start: {last_line(said)}")
                if time.monotonic() > ends:
                    raise LabError(f"Ray's head did not answer at {self.address} within {UP_SECONDS:.0f} s")
                time.sleep(0.1)
        join_cluster(self.address)

    def _tuner(self) -> None:
        """A rank of the fine-tuning in the place of the first; its devices are given back before RL takes them."""
        run, ranks = self.node.run, self.node.tuner
        held = _of_one_node(self.node.cluster, ranks)
        rank, _ = self._rank_on(held, run.tuner_setup, run.sft.trainers)
        ray.kill(rank)
        held.release()

    def _trainer(self) -> None:
        """A trainer rank in the place of the first, and on its device the first engine, where both share it."""
        run, cluster = self.node.run, self.node.cluster
        both = shared(cluster)
        held = both or _of_one_node(cluster, cluster.trainers)
        rank, seen = self._rank_on(held, run.trainer_setup, run.cluster.trainers)
        if both is not None and self._engine_on(both) != seen:
            self.result.problems.append("engine: it is not on the device of the trainer rank that it shares one with")
        ray.kill(rank)
        held.release()

    def _rank_on(self, held: Reservation, setup: TrainerSetup, world: int) -> tuple[Any, str]:
        """Start a trainer rank; returns it and the devices that it sees."""
        cls = actor_class(
            that_looks(TrainerRank), "trainer", self.node.cluster, devices=held.share, strategy=held.strategy(0)
        )
        rank = cls.remote(self.node.run.model.to_hf(), setup, 0, world)
        seen = self._look(rank, "trainer", 1)
        meeting = _answer(rank.address.remote(False), "the first trainer rank to find a port")
        if not meeting.startswith(f"tcp://{HOST}:"):
            self.result.problems.append(f"trainer: its ranks would meet at {meeting}, and its node is {HOST}")
        return rank, seen

    def _engine(self) -> None:
        held = Reservation(self.node.cluster, [self.node.engine], "a generator")
        self._engine_on(held)
        held.release()

    def _engine_on(self, held: Reservation) -> str:
        run, devices = self.node.run, self.node.engine
        strategy = held.strategy(0)
        cls = actor_class(Unstarted, "engine", self.node.cluster, devices=devices * held.share, strategy=strategy)
        engine = cls.remote(EngineActor, "model", run.generator_setup, (), (), run.seed)
        seen = self._look(engine, "engine", devices)
        ray.kill(engine)
        return seen

    def _grader(self) -> None:
        node = NodeAffinitySchedulingStrategy(ray.nodes()[0]["NodeID"], soft=False)
        cls = actor_class(that_looks(GraderActor), "verifier", self.node.cluster, strategy=node)
        grader = cls.remote(self.node.tasks)
        self._look(grader, "verifier", 0)
        ray.kill(grader)

    def _look(self, actor: Any, role: ProcessRole, devices: int) -> str:
        """Hold what an actor sees against what it needs; returns the devices that it may use."""
        wanted = environment(role)
        sight = _answer(actor.look.remote([*wanted, *ALLOCATOR, VISIBLE]), f"an actor of the role {role} to start")
        self.result.problems += [f"{role}: {problem}" for problem in wrong_variables(role, wanted, sight.variables)]
        seen: str = sight.variables.get(VISIBLE, "")
        count = len(seen.split(",")) if seen else 0
        if self.node.gpu and count != devices:
            self.result.problems.append(f"{role}: {VISIBLE}={seen} has {count} devices, and its actor holds {devices}")
        if sight.address != HOST:
            self.result.problems.append(f"{role}: its node says that it is {sight.address}, and Ray started at {HOST}")
        return seen


def wrong_variables(role: ProcessRole, wanted: Mapping[str, str], seen: Mapping[str, str]) -> Iterator[str]:
    """Say what is wrong with the environment of an actor: variables that did not arrive, or that break its role.

    Args:
        role: of the actor.
        wanted: its role's variables.
        seen: the variables in its process.
    """
    for name, value in wanted.items():
        if seen.get(name) != value:
            yield f"{name} is {seen.get(name, 'not set')} in its actor, and its role has {value}"
    expandable = [name for name in ALLOCATOR if "expandable_segments:True" in seen.get(name, "")]
    if role != "trainer" and expandable:
        yield (
            f"{expandable[0]} asks for expandable segments, for which the driver gives no handle (cudaIpcGetMemHandle) "
            "that other processes could use: only a trainer may"
        )
    if role == "trainer" and not expandable:
        yield "no expandable segments, without which rows of changing lengths fragment its memory"
    if seen.get("OMP_NUM_THREADS") != "1":
        yield f"OMP_NUM_THREADS is {seen.get('OMP_NUM_THREADS', 'not set')}, and more than one thread a process is slow"


def _of_one_node(cluster: Cluster, ranks: int) -> Reservation:
    """Devices of a node for so many ranks of a trainer."""
    return Reservation(cluster, [ranks], "the trainer")


def _answer(ref: Any, what: str) -> Any:
    try:
        return wait_for(ref, UP_SECONDS, what)
    except LateError:  # whose log is gone when this is read
        raise LabError(f"waited {UP_SECONDS:.0f} s for {what}: is this machine overloaded?") from None


def _size(devices: int, gpu: bool, folder: Path) -> list[str]:
    """Options of `ray start` for a node with counted devices, whose ports are nobody else's."""
    cores = CPUS_PER_DEVICE * devices if gpu else max(devices, os.cpu_count() or 1)
    ports = {name: free_port() for name in ("ray-client-server-port", "dashboard-agent-listen-port")}
    options = {
        "num-cpus": cores,
        "num-gpus": devices if gpu else 0,
        "object-store-memory": STORE_BYTES,
        "temp-dir": folder,
        "min-worker-port": 0,  # the system's choice
        "max-worker-port": 0,
        **ports,
    }
    return [f"--{name}={value}" for name, value in options.items()]


def _of_node(devices: int, gpu: bool) -> dict[str, str]:
    """The environment of a node, which has no role's variables and, to Ray, so many devices."""
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "RAY_ADDRESS")}
    return others | ({VISIBLE: ",".join(map(str, range(devices)))} if gpu else {})


def free_port() -> int:
    """Find a port of the loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(address: str) -> bool:
    """True if somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def _ended_after() -> Iterator[None]:
    """End all processes that were started in a block; Ray's workers outlive their parent for a moment."""
    try:
        yield
    finally:
        started: Sequence[psutil.Process] = psutil.Process().children(recursive=True)
        for process in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
