"""Faults of the machine around a run: its disk, its shared memory, its network, its cores."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

from fault_tables.lab import FaultLab, lost_and_doubled
from scalelab.errors import BROKEN_OFF, FAILED

SHOWS_SECONDS = 40.0
"""Time in which a fault that ends the run has ended it."""

APART_SECONDS = 60.0
"""Time for which the network is gone."""

_SET_FLAGS, _UP = 0x8914, 1
"""SIOCSIFFLAGS and IFF_UP of netdevice(7)."""

DISK_MIB, SHARED_MIB = 1200, 512

MEMORY = Path("/sys/fs/cgroup/memory")
"""Control groups that limit memory, where the kernel has their first version."""
NO_MEMORY = "memory limit of the control group"


def shaken(
    lab: FaultLab,
    fault: Callable[[], object],
    mend: Callable[[], object] = lambda: None,
    seconds: float = 0.0,
    codes: tuple[int, ...] = (BROKEN_OFF,),
) -> float:
    """Make a fault and mend it again, and resume the run if that ends it.

    Args:
        lab: the run.
        fault: makes it.
        mend: puts things right, before the run is resumed.
        seconds: for which the fault lasts, unless the run ends before.
        codes: with which the run may end.

    Returns:
        Seconds to the next step, from the start of `--resume` if there was one.

    Raises:
        SystemExit: the run ended in another way, or without a reason.
    """
    assert lab.process is not None
    began, family = time.time(), lab.family()
    fault()
    try:
        code = lab.process.wait(seconds)
    except subprocess.TimeoutExpired:
        mend()
        try:
            code = lab.process.wait(SHOWS_SECONDS)
        except subprocess.TimeoutExpired:
            return lab.step_after(began) - began
    else:
        mend()
    print(f"  code {code}: {lab.ended()}", flush=True)
    if code not in codes or not lab.ended().startswith("scalelab: "):
        raise SystemExit(f"the run ended with code {code}: {lab.log[-2000:]}")
    psutil.wait_procs(family, timeout=60)
    lab.resume()
    return lab.step_after(lab.started) - lab.started


def fill(file: Path, deadline: float) -> None:
    """Take all room of the file system that a file is on, also what is given free meanwhile."""
    with open(file, "wb") as filler:
        ends = time.monotonic() + deadline
        while (free := shutil.disk_usage(file.parent).free) and time.monotonic() < ends:
            with suppress(OSError):  # somebody has written since
                os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, free)


def full(lab: FaultLab, place: Path, codes: tuple[int, ...]) -> float:
    """Fill the file system of a folder, and give its room back."""
    filler = place / "filler"
    return shaken(lab, lambda: fill(filler, 10.0), filler.unlink, SHOWS_SECONDS, codes)


def loopback(up: bool) -> None:
    """Switch this namespace's loopback, which all connections of a local Ray go over, on or off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP if up else 0))


def apart(lab: FaultLab) -> float:
    """Cut every process of the run off from all others for a while."""
    return shaken(lab, lambda: loopback(False), lambda: loopback(True), APART_SECONDS)


def on_one_core(lab: FaultLab) -> float:
    """Break the run off, and resume it where there is one core."""
    cores = os.sched_getaffinity(0)

    def stop() -> None:
        assert lab.process is not None
        lab.process.send_signal(signal.SIGINT)
        lab.ended()
        os.sched_setaffinity(0, {min(cores)})

    try:
        stop()
        lab.resume()
        return lab.step_after(lab.started) - lab.started
    finally:
        os.sched_setaffinity(0, cores)


def out_of_memory(lab: FaultLab) -> float:
    """Give the run's processes no memory beyond what they have, until the kernel has killed one of them."""
    group = _own_group()
    limit = group / "memory.limit_in_bytes"
    unlimited = limit.read_text()

    def killed() -> int:
        found = re.search(r"oom_kill (\d+)", (group / "memory.oom_control").read_text())
        return int(found[1]) if found else 0

    def squeeze() -> None:
        before, ends = killed(), time.monotonic() + lab.deadline
        while killed() == before:
            if time.monotonic() > ends:
                raise SystemExit(f"waited {lab.deadline:.0f} s for the kernel to kill a process without memory")
            with suppress(OSError):  # they hold more than this
                limit.write_text((group / "memory.usage_in_bytes").read_text())
            time.sleep(0.2)
        limit.write_text(unlimited)

    return shaken(lab, squeeze)


def _own_group() -> Path:
    return MEMORY / f"faults_{os.getpid()}"


@contextmanager
def grouped() -> Iterator[None]:
    """Put this process, and with it all that it starts, into a control group of its own."""
    group = _own_group()
    group.mkdir()
    _move([os.getpid()], group)
    try:
        yield
    finally:
        _move(map(int, (group / "cgroup.procs").read_text().split()), MEMORY)
        group.rmdir()


def _move(pids: Iterable[int], group: Path) -> None:
    """Put processes into a control group."""
    for pid in pids:
        with suppress(OSError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))


FAULTS: dict[str, Callable[[FaultLab], float]] = {
    "full disk, then `--resume`": lambda lab: full(lab, lab.path.parent, (FAILED,)),
    "full `/dev/shm`": lambda lab: full(lab, Path("/dev/shm"), (FAILED, BROKEN_OFF)),
    f"network of Ray gone for {APART_SECONDS:.0f} s": apart,
    "Ctrl-C, then `--resume` on one core": on_one_core,
}
if (MEMORY / "memory.limit_in_bytes").exists():
    FAULTS[NO_MEMORY] = out_of_memory


@contextmanager
def mounted(place: Path, mib: int) -> Iterator[None]:
    """Put a small file system at a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def around(folder: Path, times: int, deadline: float, name: str) -> tuple[list[float], int, int]:
    """Make a fault of the machine so many times, in a run of its own.

    Returns:
        Seconds to recover, groups lost, and groups duplicated.
    """
    disk = folder / "disk"
    disk.mkdir()
    group = grouped() if name == NO_MEMORY else nullcontext()
    with mounted(disk, DISK_MIB), mounted(Path("/dev/shm"), SHARED_MIB), group:
        with FaultLab(disk / "run", folder / "machine.log", deadline) as lab:
            lab.start()
            seconds = []
            for _ in range(times):
                lab.warm()
                seconds.append(FAULTS[name](lab))
            lab.warm()
            assert lab.process is not None
            lab.process.send_signal(signal.SIGINT)
            lab.ended()
        return seconds, *lost_and_doubled(disk / "run")
