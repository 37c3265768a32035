"""Bring a Ray cluster up inside of a Slurm job, and run one command of the lab on it.

Runs on the job's first node, outside of any container, with the standard library alone. One step of Slurm a node holds
`ray start --block`. Every one of them is watched: a node that cannot join is named within seconds, not after the run
has waited for its devices for an hour.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

BROKEN_OFF = 75
"""Exit code of a run that `--resume` goes on with (`scalelab.errors`, which this program does without)."""
HEAD_SECONDS = 120.0
CHECK_SECONDS = 30.0
"""Longest wait for one answer of Ray's head: one that hangs is asked again."""
ATTEMPTS, PAUSE = 3, 5.0
"""Starts of a node's Ray before the job gives up, and seconds between two."""
RESTARTS = 3
"""Restarts of a job after which one that broke off without a new checkpoint is not queued again."""
REJOIN_SECONDS = 60.0
"""Seconds between two attempts to take a lost node back while the run goes on."""
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.5
LONGEST_MANIFEST = 1 << 20
"""Bytes of a manifest above which it is none (`scalelab.guarded`, which this program does without)."""
_COUNT = (
    "import ray; ray.init(address='auto', log_to_driver=False, logging_level='ERROR'); "
    "print('joined', *(node['NodeManagerHostname'] for node in ray.nodes() if node['Alive']))"
)


class JobError(Exception):
    """Reason why the job cannot go on, in one line."""


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job.

    Attributes:
        nodes: names; the first is this one.
        bin: folder of `python`, `ray` and `scalelab`, as a step sees it.
        inside: options of `srun` that put a step into a container.
        port: of Ray's head.
        network: beginning of the address that nodes reach each other by; empty takes the first that is no loopback.
        join_seconds: longest wait until all nodes have joined.
    """

    nodes: tuple[str, ...]
    bin: str
    inside: tuple[str, ...] = ()
    port: int = 6379
    network: str = ""
    join_seconds: float = 600.0


class NodeStep:
    """One step of Slurm on one node, and what it said."""

    def __init__(
        self, settings: JobSettings, node: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.node, self._said = node, tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*srun(settings, node), *command], stdout=self._said, stderr=subprocess.STDOUT, env=dict(environment)
        )

    @property
    def ended(self) -> bool:
        """True if it is over."""
        return self.process.poll() is not None

    def last_line(self) -> str:
        """The last line that it printed."""
        return last_line(self._said)

    def stop(self) -> None:
        """End it."""
        if not self.ended:
            self.process.terminate()


def listed_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of this job.

    Raises:
        JobError: this is no job of Slurm's, or its nodes cannot be listed.
    """
    if not {"SLURM_JOB_NODELIST", "SLURM_JOB_ID"} <= environment.keys():
        raise JobError("this runs inside a job of Slurm's: submit what `scalelab launch slurm` prints with sbatch")
    command = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HEAD_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise JobError(f"`{' '.join(command)}` failed: {error}") from None
    return tuple(done.stdout.split())


def ray_start(ray: str, address: str, *, head: bool) -> list[str]:
    """The command that holds one node's Ray.

    Args:
        ray: the program.
        address: of Ray's head, with its port.
        head: whether this node has the head.
    """
    words = [ray, "start", "--disable-usage-stats", "--block"]
    if not head:
        return [*words, f"--address={address}"]
    host, _, port = address.rpartition(":")
    return [*words, "--head", f"--node-ip-address={host.strip('[]')}", f"--port={port}", "--include-dashboard=false"]


def srun(settings: JobSettings, node: str) -> list[str]:
    """The beginning of a command that runs on one node beside other steps."""
    return ["srun", "--nodes=1", "--ntasks=1", "--overlap", f"--nodelist={node}", *settings.inside]


def last_line(said: IO[bytes]) -> str:
    """The last line of a file that has text."""
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing"


def reachable(addresses: Sequence[str], network: str) -> str:
    """The address by which other nodes reach this one.

    Raises:
        JobError: there is none.
    """
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        address = getattr(address, "ipv4_mapped", None) or address
        nowhere = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
        if not nowhere and text.startswith(network):
            return text
    which = f"begins with {network}" if network else "other nodes can reach"
    raise JobError(
        f"the first node has no address that {which} (it has {' '.join(addresses) or 'none'}): mend it, or name "
        "the beginning of the right address with --network"
    )


def missing(nodes: Sequence[str], joined: Sequence[str]) -> list[str]:
    """The nodes that have not joined, by their names without a domain."""
    there = {name.partition(".")[0] for name in joined}
    return [node for node in nodes if node.partition(".")[0] not in there]


def begun(out: Path) -> bool:
    """True if a run is in its folder that is to be resumed; one that was refused before it made anything is not."""
    files = (*(out / name for name in ("evals.jsonl", "metrics.jsonl")), *out.glob("checkpoints/*"), *out.glob("sft/*"))
    made = any(one.is_dir() or (one.is_file() and one.stat().st_size > 0) for one in files)
    manifest, status = out / "manifest.json", None
    with suppress(OSError, ValueError, AttributeError, RecursionError):  # the last of brackets within brackets
        if manifest.is_file():  # a pipe would be waited for without end
            with manifest.open("rb") as file:
                status = json.loads(file.read(LONGEST_MANIFEST)).get("status")
    if status is None:  # `--resume` makes a lost manifest again
        return made and (out / "journal.jsonl").is_file()
    return status != "failed" or made


def saved(out: Path) -> set[Path]:
    """The checkpoints of a run or, beside its folder, of a fine-tuning."""
    return {*out.glob("checkpoints/*"), *out.with_name(f".{out.name}.sft").glob("checkpoints/*")}


def say(line: str) -> None:
    """Print a line for people, with the time."""
    print(f"{time.strftime('%H:%M:%S')} launch: {line}", file=sys.stderr, flush=True)


class RayOnNodes:
    """Ray on the nodes of a job."""

    def __init__(self, settings: JobSettings) -> None:
        self.settings, self.steps = settings, dict[str, NodeStep]()
        self.environment = os.environ | {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token")}
        self.address = ""
        self._tried: dict[str, float] = {}

    def up(self) -> None:
        """Start Ray everywhere and wait until all nodes have joined.

        Raises:
            JobError: a node does not come up, or cannot join.
        """
        if " " in self.settings.bin:  # Ray hands the path of its Python to a shell as it is
            raise JobError(
                "Ray's nodes start nothing by a path with a space in it, and the environment is in "
                f"{self.settings.bin}: move the checkout"
            )
        head = self.settings.nodes[0]
        found = self._here(["hostname", "--all-ip-addresses"], contained=False).split()
        host = reachable(found, self.settings.network)
        self.address = f"[{host}]:{self.settings.port}" if ":" in host else f"{host}:{self.settings.port}"
        if self.environment["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in self.environment:
            # Nodes need not share a home directory, so that the token goes with the environment.
            self.environment["RAY_AUTH_TOKEN"] = self._here([self._ray, "get-auth-token", "--generate"]).split()[-1]
        self.environment["RAY_ADDRESS"] = self.address
        self.steps[head] = self._start(head)
        self._wait_for_head()
        for node in self.settings.nodes[1:]:
            self.steps[node] = self._start(node)
        self._wait_for_all()

    def watch(self) -> None:
        """Take lost nodes back, one attempt a minute.

        Raises:
            JobError: the head is lost, and Ray with it.
        """
        head, *others = self.settings.nodes
        if self.steps[head].ended:
            raise JobError(f"Ray's head on {head} ended: {self.steps[head].last_line()}")
        for node in others:
            if self.steps[node].ended and time.monotonic() - self._tried.get(node, 0.0) > REJOIN_SECONDS:
                say(f"Ray on {node} ended ({self.steps[node].last_line()}): trying to take it back")
                self._tried[node] = time.monotonic()
                self.steps[node] = self._start(node)

    def down(self) -> None:
        """End all steps."""
        for step in self.steps.values():
            step.stop()
        ends = time.monotonic() + STOP_SECONDS
        for step in self.steps.values():
            try:
                step.process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                step.process.kill()

    @property
    def _ray(self) -> str:
        return f"{self.settings.bin}/ray"

    def command(self, words: Sequence[str]) -> list[str]:
        """A command on this node: within the container if there is one, else without a step."""
        if not self.settings.inside:
            return list(words)
        return [*srun(self.settings, self.settings.nodes[0]), "--disable-status", *words]

    def _here(self, words: Sequence[str], contained: bool = True) -> str:
        command = self.command(words) if contained else list(words)
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=HEAD_SECONDS)
        except subprocess.TimeoutExpired:
            raise JobError(f"`{' '.join(words)}` did not end within {HEAD_SECONDS:.0f} s") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise JobError(f"`{' '.join(words)}` ended with code {done.returncode}: {said[:300]}")
        return done.stdout

    def _start(self, node: str) -> NodeStep:
        words = ray_start(self._ray, self.address, head=node == self.settings.nodes[0])
        environment = {key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"}
        return NodeStep(self.settings, node, words, environment | {"RAY_worker_niceness": "0"})

    def _wait_for_head(self) -> None:
        head, ends = self.settings.nodes[0], time.monotonic() + HEAD_SECONDS
        check = self.command([self._ray, "health-check", "--address", self.address])
        while (code := self._code(check, min(CHECK_SECONDS, max(LOOK_SECONDS, ends - time.monotonic())))) != 0:
            if self.steps[head].ended:
                raise JobError(f"Ray's head on {head} did not start: {self.steps[head].last_line()}")
            if time.monotonic() > ends:
                hung = "" if code is not None else "; the last `ray health-check` hung"
                raise JobError(
                    f"Ray's head on {head} did not answer at {self.address} within {HEAD_SECONDS:.0f} s{hung}"
                )
            time.sleep(LOOK_SECONDS)

    def _code(self, command: Sequence[str], seconds: float) -> int | None:
        """Exit code of a command; None if it hangs."""
        try:
            return subprocess.run(command, capture_output=True, env=self.environment, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            return None

    def _wait_for_all(self) -> None:
        """Count the nodes that Ray itself reports; a step that ends is started again, a few times."""
        starts = dict.fromkeys(self.settings.nodes, 1)
        ends, joined, uncounted = time.monotonic() + self.settings.join_seconds, list[str](), ""
        while len(joined) < len(self.settings.nodes):
            ended = [node for node in self.settings.nodes if self.steps[node].ended]
            for node in ended:
                if starts[node] == ATTEMPTS or node == self.settings.nodes[0]:
                    raise JobError(
                        f"Ray on {node} ended {starts[node]} times, and said last: {self.steps[node].last_line()}: "
                        f"mend it, or leave it out (sbatch --exclude={','.join(ended)})"
                    )
            if ended:
                time.sleep(PAUSE)  # once for all of them: many nodes may share a cause
            for node in ended:
                starts[node] += 1
                self.steps[node] = self._start(node)
            if time.monotonic() > ends:
                raise JobError(
                    f"{len(joined)} of {len(self.settings.nodes)} nodes joined Ray at {self.address} within "
                    f"{self.settings.join_seconds:.0f} s (not {', '.join(missing(self.settings.nodes, joined))}): can "
                    f"these reach that address? See --network{uncounted and f'; the last count failed: {uncounted}'}"
                )
            time.sleep(LOOK_SECONDS)
            try:
                found, uncounted = self._here([f"{self.settings.bin}/python", "-c", _COUNT]), ""
            except JobError as error:  # such as a file system that is slow for once: count again
                uncounted = str(error)
                continue
            joined = next((line.split()[1:] for line in found.splitlines() if line.startswith("joined")), [])
        say(f"{len(joined)} nodes joined Ray at {self.address}")


def run(settings: JobSettings, words: Sequence[str], out: Path) -> int:
    """Bring Ray up, run a command of the lab with signals passed on, and return its exit code."""
    cluster = RayOnNodes(settings)
    driver: subprocess.Popen[bytes] | None = None
    asked = False

    def stop(*_: Any) -> None:
        nonlocal asked
        first, asked = not asked, True
        if driver is not None and driver.poll() is None:
            driver.send_signal(signal.SIGINT)
        elif driver is None and first:
            raise KeyboardInterrupt  # nodes are still waited for

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        cluster.up()
        resumed = ["--resume"] if words[0] == "run" and begun(out) else []  # a fine-tuning goes on by itself
        if resumed:
            say(f"going on with {out}")
        driver = subprocess.Popen(
            cluster.command([f"{settings.bin}/scalelab", *words, *resumed]), env=cluster.environment
        )
        while driver.poll() is None:
            time.sleep(LOOK_SECONDS)
            cluster.watch()
        return driver.returncode
    except KeyboardInterrupt:
        say("asked to stop before the run began")
        return 128 + signal.SIGINT
    except JobError as error:
        say(str(error))
        if driver is None:
            return 1
        driver.terminate()
        try:
            driver.wait(HEAD_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
        return BROKEN_OFF
    finally:
        cluster.down()


def requeue(job: str) -> None:
    """Ask Slurm to queue a job again, and say so if it does not."""
    command = ["scontrol", "requeue", job]
    try:
        subprocess.run(command, check=True, timeout=HEAD_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"`{' '.join(command)}` failed ({error}): submit the script again")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the job's settings, run it, and let Slurm queue it again if its machines broke it off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inside", action="append", default=[])
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--network", default="")
    parser.add_argument("--join-seconds", type=float, default=600.0)
    parser.add_argument("words", nargs="+")
    given = parser.parse_args(arguments)
    try:
        nodes = listed_nodes(os.environ)
    except JobError as error:
        say(str(error))
        return 1
    inside = tuple(given.inside)
    settings = JobSettings(nodes, given.bin, inside, given.port, given.network, given.join_seconds)
    before = saved(given.out)
    code = run(settings, given.words, given.out)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if code == BROKEN_OFF and restarts >= RESTARTS and saved(given.out) <= before:
        say(f"not queued again: started anew {restarts} times, and this time it saved nothing; submit it when mended")
    elif code == BROKEN_OFF:
        say("asking Slurm to queue the job again; it will go on from the last checkpoint")
        requeue(os.environ["SLURM_JOB_ID"])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
