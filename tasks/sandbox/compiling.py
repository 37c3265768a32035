"""Compile a model's C++ behind the sandbox's tiers: the compiler runs confined, too, and what it makes is kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass

from tasks.errors import TaskError
from tasks.sandbox.compiler import CompilerConfig
from tasks.sandbox.confine import unowned_uid
from tasks.sandbox.tiers import ENVIRONMENT, Tier, random_uid

FLAGS = ("-x", "c++", "-std=gnu++20", "-O2", "-static", "-s", "-w", "-fmax-errors=3", "-fdiagnostics-color=never")
"""The program stands alone (`-static`), so that nothing else need be within its reach."""

SECONDS, WALL_SECONDS = 20, 120.0
"""Processor time of each process of the compiler, and time by the clock of all."""

MEMORY_MB, OUTPUT_MB = 2048, 64
KEPT = 16
"""Programs that are remembered; one has about 2 MB."""

_LONGEST_SOURCE = 1 << 20


@dataclass(frozen=True)
class Compiled:
    """The result of compiling: an executable, or a complaint."""

    binary: bytes = b""
    problem: str = ""


def compiler() -> str | None:
    """Path of this machine's C++ compiler; None where there is none."""
    found = shutil.which("g++", path="/usr/bin:/usr/local/bin")
    return None if found is None else os.path.realpath(found)


class Compiler:
    """Compiles C++, each source once while it is remembered; safe to use from several threads."""

    def __init__(self, tier: Tier) -> None:
        """Prepare; nothing is started yet.

        Args:
            tier: how the compiler is held.
        """
        self._tier = tier
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, source: str) -> Compiled:
        """Compile a program.

        Raises:
            TaskError: there is no compiler, or it cannot be confined here.
        """
        text = source.encode("utf-8", "replace")
        if len(text) > _LONGEST_SOURCE:
            return Compiled(problem="the source is too long")
        key = hashlib.sha256(text).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._compile(text)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _compile(self, text: bytes) -> Compiled:
        path = compiler()
        if path is None:
            raise TaskError("there is no C++ compiler on this machine: apt-get install g++")
        with tempfile.TemporaryDirectory(prefix="sandbox-compile-") as scratch:
            config = CompilerConfig(
                host=0 if self._tier.bubblewrap else os.getpid(),
                uid=_give_away(scratch) if self._tier.changes_user else None,
                landlock=self._tier.landlock,
                command=[path, *FLAGS, "-o", f"{scratch}/program", "-"],
                folders=_folders(),
                scratch=scratch,
                seconds=SECONDS,
                memory_mb=MEMORY_MB,
                output_mb=OUTPUT_MB,
            )
            command = self._tier.compiler_command(json.dumps(asdict(config)), config.folders, scratch)
            head, _, binary = _run(command, text).partition(b"\n")
        try:
            answer = json.loads(head)
        except ValueError:
            return Compiled(problem="compiling took too much time or memory")
        if answer["broken"]:
            raise TaskError(answer["problem"])
        return Compiled(binary, answer["problem"] or "")


def _run(command: list[str], source: bytes) -> bytes:
    """Run the confined compiler within its time, and return what it says; all of its processes are gone afterwards."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(source, timeout=WALL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            return b""
        finally:
            # It can start no session, so this is all of it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _give_away(folder: str) -> int | None:
    """Give a folder to a user that nobody on this machine has; None where there are no other users."""
    uid = unowned_uid(random_uid())
    try:
        os.chown(folder, uid, uid)
    except OSError:
        return None
    return uid


def _folders() -> list[str]:
    """Folders that the compiler reads and executes: itself, its headers and libraries, no other package's files."""
    triple = f"{platform.machine()}-linux-gnu"
    folders = [f"/usr/lib/gcc/{triple}", f"/usr/libexec/gcc/{triple}", "/usr/lib64", "/lib64", "/usr/bin"]
    kernel = "/usr/lib/linux/uapi"  # what <asm/…> links to from Debian 13 on
    return [*folders, f"/usr/lib/{triple}", f"/lib/{triple}", "/usr/include", kernel, "/usr/lib/bfd-plugins"]
