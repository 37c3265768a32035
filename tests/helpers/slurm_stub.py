"""A Slurm job without Slurm: stand-ins for its commands and, unless a test has the real one, for Ray's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scalelab.launcher import slurm_job

SRUN = """\
for word in "$@"; do case "$word" in --nodelist=*) node=${word#--nodelist=};; esac; done
while [ "${1#--}" != "$1" ]; do shift; done
[ ! -e "$STUB/broken_$node" ] || { echo "no route to $node" >&2; exit 1; }
export STUB_NODE=$node
exec "$@"
"""
SCONTROL = """\
case "$1" in
    show) printf '%s\\n' $SLURM_JOB_NODELIST ;;
    requeue) echo "$2" > "$STUB/requeued" ;;
esac
"""
RAY = """\
case "$1" in
    get-auth-token) echo a-token ;;
    health-check) [ -e "$STUB/up_n0" ] ;;
    start)
        trap 'rm -f "$STUB/up_$STUB_NODE"; exit 0' TERM
        echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN $*" > "$STUB/up_$STUB_NODE"
        while [ ! -e "$STUB/lost_$STUB_NODE" ]; do sleep 0.1; done
        rm -f "$STUB/up_$STUB_NODE" "$STUB/lost_$STUB_NODE"
        echo "raylet of $STUB_NODE was killed"; exit 3 ;;
esac
"""
PYTHON = 'cd "$STUB"; echo joined $(ls -d up_* 2>/dev/null | grep -v dumb_)\n'


class SlurmStub:
    """The job's commands as files, and the job itself as a process.

    Args:
        folder: takes everything.
        nodes: names of the job's nodes.
        addresses: of the first node.
        lab: body of the script that takes the place of `scalelab`, after it has told how it was called.
        first: its body before that.
        words: the lab's command.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        addresses: str = "127.0.1.1 10.1.2.3",
        lab: str = "",
        first: str = "",
        words: Sequence[str] = ("run", "an_experiment"),
    ) -> None:
        self.words = words
        self.folder, self.bin, self.out = folder, folder / "bin", folder / "out"
        self.bin.mkdir()
        told = 'echo "$RAY_ADDRESS $RAY_AUTH_TOKEN $*" >> "$STUB/lab"\n'
        scripts = {"srun": SRUN, "scontrol": SCONTROL, "ray": RAY, "python": PYTHON, "scalelab": first + told + lab}
        for name, body in {**scripts, "hostname": f"echo {addresses}\n"}.items():
            self.write(name, body)
        self.environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "STUB": str(folder),
            "SLURM_JOB_NODELIST": " ".join(nodes),
            "SLURM_JOB_ID": "77",
        }
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
            self.environment.pop(name, None)

    def write(self, name: str, body: str) -> None:
        """Make a command."""
        (self.bin / name).write_text("#!/bin/bash\n" + body)
        (self.bin / name).chmod(0o755)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the job."""
        words = [f"--bin={self.bin}", f"--out={self.out}", *options, "--", *self.words]
        return subprocess.Popen(
            [sys.executable, slurm_job.__file__, *words],
            env=self.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str) -> tuple[int, str, float]:
        """Run the job to its end: its code, what it said, and the seconds that it took."""
        began = time.monotonic()
        job = self.start(*options)
        try:
            _, said = job.communicate(timeout=900)
        finally:
            job.kill()
        return job.returncode, said, time.monotonic() - began

    def lab(self) -> list[str]:
        """Words that the command of the lab was called with: Ray's address and token, then its arguments."""
        path = self.folder / "lab"
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        ends = time.monotonic() + 900
        while not condition():
            assert time.monotonic() < ends
            time.sleep(0.05)
