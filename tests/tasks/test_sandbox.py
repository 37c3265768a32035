"""The sandbox holds every attack in every tier, says so before it is trusted, and leaves nothing behind."""

import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import TaskError
from tasks.sandbox import seccomp
from tasks.sandbox.job import (
    Job,
    Limits,
    Result,
    job_from_parts,
    limits_from_bytes,
    result_from_parts,
    result_head,
)
from tasks.sandbox.linux import MACHINES, Machine
from tasks.sandbox.pool import Pool
from tasks.sandbox.scripts import NodeJs
from tasks.sandbox.selftest import ATTACKS, NAMES, Survey, attack, choose_tier
from tasks.sandbox.tiers import TIERS, Tier
from tasks.sandbox.values import decode, encode
from tasks.sandbox.worker import Worker, WorkerError
from tests.helpers.plain_values import PLAIN

QUICK = Limits(seconds=10.0, memory_mb=512, output_mb=1.0)
LANDLOCK = Tier(bubblewrap=False, landlock=True)


class WorkerOfTier(Worker):
    """A worker that tells its tier."""

    tier: Tier


@pytest.fixture(scope="module", params=TIERS, ids=lambda tier: tier.name)
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerOfTier]:
    try:
        worker = WorkerOfTier(request.param)
    except WorkerError as error:
        pytest.skip(f"not on this machine: {error}")
    worker.tier = request.param
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def survey() -> Survey:
    return choose_tier()


@pytest.fixture(scope="module")
def target() -> Iterator[list[str | int]]:
    """A folder open to everybody, and sockets to connect to."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text("the secret")
        (folder / "secret").chmod(0o666)
        (folder / "link").symlink_to(folder / "secret")
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind("\0" + secrets.token_hex(8))
        unix.listen()
        yield [name, tcp.getsockname()[1], unix.getsockname()[1:].decode(), os.getpid()]


def run(worker: Worker, source: str, *args: Any, limits: Limits = QUICK) -> Result:
    return worker.run(Job("call", source, entry_point="f", calls=json.dumps([[None, list(args), {}]])), limits)


def report(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.report.splitlines()]


def value(worker: Worker, source: str, *args: Any) -> Any:
    kind, *content = report(run(worker, source, *args))[-1]
    assert kind == "value", content
    return decode(content[0])


@pytest.mark.slow
def test_an_honest_program_computes_and_imports_the_standard_library(worker: Worker) -> None:
    source = "import colorsys, xml.dom\ndef f(x):\n    return {'x': (x + 1, 'é'.encode('utf-16-le'))}"
    assert value(worker, source, 41) == {"x": (42, b"\xe9\x00")}


# Each row of the table of attacks: what it does, in a function that returns only if it got through.
ATTACK = {
    "read /etc/passwd": "return open('/etc/passwd').read()",
    "read a secret": "return open(folder + '/secret').read()",
    "list a folder": "return os.listdir(folder)",
    "symlink to a secret": "return open(folder + '/link').read()",
    "make a symlink": "os.symlink(folder + '/secret', '/tmp/link'); return 1",
    "write outside": "open(folder + '/new', 'w'); return 1",
    "write to a file of others": "open(folder + '/secret', 'a').write('x'); return 1",
    "truncate a file of others": "os.open(folder + '/secret', os.O_RDONLY | os.O_TRUNC); return 1",
    "truncate by name": "os.truncate(folder + '/secret', 0); return 1",
    "delete": "os.unlink(folder + '/secret'); return 1",
    "rename": "os.rename(folder + '/secret', folder + '/other'); return 1",
    "change a mode": "os.chmod(folder + '/secret', 0); return 1",
    "make a folder": "os.mkdir(folder + '/new'); return 1",
    "nameless file": "os.open(folder, os.O_TMPFILE | os.O_WRONLY); return 1",
    "300 MB file": "open(folder + '/big', 'wb').write(bytes(300 << 20)); return 1",
    "memory file": "os.write(os.memfd_create('x'), b'x'); return 1",
    "TCP to 127.0.0.1": "socket.create_connection(('127.0.0.1', port), 2); return 1",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port)); return 1",
    "abstract unix socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + unix); return 1",
    "socket pair": "socket.socketpair(); return 1",
    "fork": "return os.fork() or os._exit(0)",
    "vfork": "return libc('vfork')",
    "subprocess": "import subprocess; return subprocess.run(['true'])",
    "spawn": "return os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/proc/self/exe', ['python', '-c', ''])",
    "daemon": "os.setsid(); return 1",
    "leave the process group": "os.setpgid(0, 0); return 1",
    "kill the parent": "os.kill(os.getppid(), 9); return 1",
    "kill the host": "os.kill(host, 0); return 1",
    "kill everybody": "os.kill(-1, 0); return 1",
    "kill the group": "os.killpg(0, 0); return 1",
    "signal through a descriptor": "fcntl.fcntl(3, fcntl.F_SETOWN, host); return 1",
    "pidfd of the parent": "return os.pidfd_open(os.getppid())",
    "environment of the parent": "return open(f'/proc/{os.getppid()}/environ').read()",
    "environment of pid 1": "return open('/proc/1/environ').read()",
    "environment of the host": "return open(f'/proc/{host}/environ').read()",
    "own memory file": "return open('/proc/self/mem', 'rb')",
    "limits of the parent": "return resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "raise own limits": "resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)); return 1",
    "priority of the parent": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19); return 1",
    "ptrace": "return libc('ptrace', 16, os.getppid(), 0, 0)",
    "read the parent's memory": "return libc('process_vm_readv', os.getppid(), 0, 0, 0, 0, 0)",
    "namespaces": "return libc('unshare', 0x10000000)",
    "mount": "return libc('mount', b'none', b'/tmp', b'tmpfs', 0, 0)",
    "chroot": "os.chroot('/'); return 1",
    "become root": "os.setuid(0); return 1",
    "survive the parent": "return libc('prctl', 1, 0, 0, 0, 0)",
    "keyring": "return libc('syscall', 250 if os.uname().machine == 'x86_64' else 219, 0, -3, 0)",
    "io_uring": "return libc('syscall', 425, 8, bytes(120))",
    "bpf": "return libc('syscall', 321 if os.uname().machine == 'x86_64' else 280, 0, bytes(64), 64)",
    "file handles": "return libc('open_by_handle_at', -100, bytes(16), 0)",
    "semaphores": "return libc('semget', 0, 1, 0o600 | 0o1000)",
    "shared memory": "return libc('shmget', 0, 4096, 0o600 | 0o1000)",
    "message queue": "return libc('mq_open', b'/queue', 0o100 | 2, 0o600, 0)",
}
PRELUDE = """
import ctypes, errno, fcntl, os, resource, socket

def libc(name, *arguments):
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result

"""
# Tried without protection too, to see that they are attacks; the others would harm this machine, leave something in
# its kernel, or need more rights.
HARMLESS = (
    "read /etc/passwd", "read a secret", "list a folder", "symlink to a secret", "write outside",
    "write to a file of others", "truncate a file of others", "truncate by name", "change a mode", "make a folder",
    "rename", "delete", "memory file", "TCP to 127.0.0.1", "UDP", "abstract unix socket", "socket pair", "fork",
    "subprocess", "spawn", "daemon", "kill the host", "kill the group", "signal through a descriptor",
    "pidfd of the parent", "environment of the parent", "environment of the host", "own memory file",
    "survive the parent",
)  # fmt: skip


def attack_source(name: str) -> str:
    return f"{PRELUDE}def f(folder, port, unix, host):\n    {ATTACK[name]}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACK)
def test_an_attack_is_held(worker: Worker, target: list[str | int], name: str) -> None:
    line = report(run(worker, attack_source(name), *target))[-1]
    assert line[0] == "exception", f"got through: {line}"
    assert line[1].split(":")[0] in ("OSError", "PermissionError", "FileNotFoundError", "ValueError")
    folder = Path(str(target[0]))
    assert sorted(path.name for path in folder.iterdir()) == ["link", "secret"]
    assert (folder / "secret").read_text() == "the secret"


def test_the_attacks_work_where_nothing_holds_them(target: list[str | int], tmp_path: Path) -> None:
    lines = [PRELUDE]
    for number, name in enumerate(HARMLESS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "secret").write_text("the secret")
        (folder / "link").symlink_to(folder / "secret")
        arguments = ", ".join(map(repr, [str(folder), *target[1:]]))
        lines.append(f"def f(folder, port, unix, host):\n    {ATTACK[name]}\nprint(f({arguments}) is not None)")
    # Descriptor 3, for the attack that signals through it, is a pipe; a session leader could not start a session.
    program = "import os; os.dup2(os.pipe()[0], 3)\n" + "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["True"] * len(HARMLESS), done.stderr


def test_the_self_test_s_attacks_work_where_nothing_holds_them(tmp_path: Path, target: list[str | int]) -> None:
    (tmp_path / "secret").write_text("the secret")
    call = f"print(*(attempt(n, {str(tmp_path)!r}, {target[1]}, {os.getpid()})[0] for n in {NAMES}))"
    done = subprocess.run([sys.executable, "-c", ATTACKS + call], capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["through"] * len(NAMES), done.stderr


# What a program may use.


@pytest.mark.parametrize(
    ("source", "ending", "line"),
    [
        ("def f():\n    return bytearray(10 << 30)", "exited", ["memory"]),
        ("def f():\n    x = []\n    while True: x.append(bytes(1 << 20))", "exited", ["memory"]),
        ("def f():\n    while True: pass", "timeout", None),
        ("import time\ntime.sleep(60)", "timeout", None),
        ("import os\nos.close(3)\nwhile True: pass", "timeout", None),
        ("import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass", "timeout", None),
        ("import os\nwhile True: os.write(3, b'x' * 60000)", "output", None),
        ("def f():\n    return 'x' * (2 << 20)", "output", None),
        ("import os\nos._exit(7)", "exited", None),
        ("import ctypes\nctypes.string_at(0)", "signalled", None),
    ],
)  # fmt: skip
def test_a_program_ends_by_itself_or_is_ended(worker: Worker, source: str, ending: str, line: list[str] | None) -> None:
    result = run(worker, source, limits=Limits(seconds=0.5, memory_mb=256, output_mb=1.0))
    assert result.ending == ending
    assert line is None or report(result)[-1] == line


def test_threads_work_and_are_limited(worker: Worker) -> None:
    source = """
import threading
def f():
    seen, stop = [], threading.Event()
    try:
        for n in range(1000):
            threading.Thread(target=lambda: (seen.append(1), stop.wait()), daemon=True).start()
    except RuntimeError:
        return len(seen)
"""
    assert 4 <= value(worker, source) < 1000


def test_endless_printing_is_cut_off(worker: Worker) -> None:
    result = worker.run(Job("program", "while True: print('x' * 1000)"), QUICK)
    assert result.ending == "output"
    assert len(result.stdout) <= QUICK.output_bytes + 1


def test_a_program_reads_its_input_and_cannot_change_it(worker: Worker) -> None:
    source = "import os\ntry: os.pwrite(0, b'x', 0)\nexcept OSError: print(*[int(x) + 1 for x in open(0)])"
    assert worker.run(Job("program", source, stdin="1\n2\n"), QUICK).stdout == b"2 3\n"


def test_output_of_threads_and_of_exit_handlers_is_printed(worker: Worker) -> None:
    source = "import atexit, threading, time\natexit.register(print, 2)\nthreading.Timer(0.05, print, [1]).start()"
    assert worker.run(Job("program", source), QUICK).stdout == b"1\n2\n"


# What a program finds.


def test_a_program_finds_four_descriptors_no_environment_and_nobody_it_knows(worker: Worker) -> None:
    source = """
import os, sys
def f():
    open_ones = []
    for n in range(4096):
        try:
            os.fstat(n)
        except OSError:
            continue
        open_ones.append(n)
    return open_ones, dict(os.environ), sys.argv, os.getuid(), sys.path
"""
    descriptors, environment, arguments, uid, path = value(worker, source)
    assert descriptors == [0, 1, 2, 3]
    assert (environment, arguments) == ({}, [""])
    if worker.found["uid"] is not None:
        assert uid == worker.found["uid"] != os.getuid()
    assert all("site-packages" not in folder for folder in path)


def test_other_peoples_packages_cannot_be_read(worker: Worker) -> None:
    source = """
import os
def f():
    found = []
    for folder in [os.path.dirname(os.__file__), "/lib/python3.11", "/usr/lib/python3"]:
        for name in ("site-packages", "dist-packages"):
            for path, _, files in os.walk(os.path.join(folder, name)):
                for file in files[:5]:
                    try:
                        found.append(open(os.path.join(path, file), "rb").name)
                    except OSError:
                        pass
    return found
"""
    assert value(worker, source) == []


def test_programs_run_in_the_same_random_world(worker: WorkerOfTier) -> None:
    source = "import random\ndef f():\n    return hash('a'), random.random(), list({'a', 'b', 'c'})"
    first = value(worker, source)
    another = Worker(worker.tier)
    try:
        assert value(another, source) == first
    finally:
        another.close()


def test_generators_that_are_not_seeded_differ_between_programs(worker: Worker) -> None:
    source = "import random, uuid\ndef f():\n    return random.Random().random(), str(uuid.uuid4())"
    first, second = value(worker, source), value(worker, source)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_program_is_all_that_a_child_has_loaded(worker: Worker) -> None:
    source = "import sys\nprint('solution' in sys.modules, hasattr(sys.modules['__main__'], 'f'))"
    assert worker.run(Job("program", source), QUICK).stdout == b"False False\n"


def test_a_program_that_prints_more_than_a_pipe_holds_is_read_whole(worker: Worker) -> None:
    result = worker.run(Job("program", "print('x' * 300_000)"), QUICK)
    assert (result.ending, len(result.stdout)) == ("exited", 300_001)


def test_no_hook_of_the_standard_library_runs_in_each_child() -> None:
    """A server has one thread and its children are seeded, so they need none, and one takes half a millisecond."""
    command = LANDLOCK.command()
    at = command.index("-c") + 1
    watch = "import os; hooks = []; os.register_at_fork = lambda **hook: hooks.append(hook)\n"
    ask = "\nprint(len(hooks), {'random', 'threading'} <= sys.modules.keys()); os.register_at_fork(); print(len(hooks))"
    command[at] = watch + command[at].removesuffix("main()") + ask
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout.split() == ["0", "True", "1"], done.stderr


def test_jobs_and_results_come_over_as_they_were_sent() -> None:
    job = Job("ask", "\ud800", "é", "\0", "f", "[1]", True, True, "{}", "\ud83d in", b"\x7fELF\0")
    assert job_from_parts(job.to_parts()) == job
    for head in (("exited", 0), ("signalled", 11), ("timeout", 0), ("output", 255), ("prelude", 1)):
        result = Result(*head, 1.5, b"report", b"out")  # type: ignore[arg-type]
        assert result_from_parts([result_head(result.ending, result.code, 1.5), b"report", b"out"]) == result
    for strange in (b"", b"[1]", b"\xff" * len(result_head("exited", 0, 0.0))):
        with pytest.raises(TaskError, match="of different versions"):
            result_from_parts([strange, b"", b""])


def test_text_and_numbers_of_numpy_come_over_as_plain_ones() -> None:
    job = Job("program", np.str_("print(1)"), stdin=np.str_("né"))
    assert job_from_parts(job.to_parts()) == Job("program", "print(1)", stdin="né")
    limits = Limits(np.float64(1.5), 512, np.float64(0.25))
    assert limits_from_bytes(limits.to_bytes()) == Limits(1.5, 512, 0.25)


SCAN = """
import ctypes, re
def f(own):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    own = "needle" + ":" + own
    found = set()
    for near in {id(own) >> 23, id(object()) >> 23, libc.malloc(16) >> 23, libc.malloc(1 << 20) >> 23, id(re) >> 23}:
        for page in range(max(near - 1, 0) << 23, (near + 2) << 23, 4096):
            # The kernel answers EFAULT (-1 with errno 14) for memory that is not there, without killing anybody.
            if libc.access(ctypes.c_void_p(page), 0) == 0 or readable(libc, page):
                found.update(re.findall(b"needle:[0-9a-f]{32}", ctypes.string_at(page, 4096)))
    return sorted(map(bytes.decode, found))

libc2 = ctypes.CDLL(None, use_errno=True)
def readable(libc, page):
    ctypes.set_errno(0)
    libc2.access(ctypes.c_void_p(page), 0)
    return ctypes.get_errno() != 14
"""


def test_nothing_of_one_program_is_in_the_memory_of_the_next(worker: Worker) -> None:
    """The next may be another attempt at the same problem, and the first may have been right."""
    answer = "needle:" + "a" * 32
    for _ in range(5):
        assert value(worker, f"def f(x):\n    print(x)\n    return [x] * 100  # {answer}", answer) == [answer] * 100
        worker.run(Job("program", f"for _ in range(1000): print({answer!r})", stdin=answer), QUICK)
    own = "b" * 32
    assert value(worker, SCAN, own) == ["needle:" + own]


# The filter, on both architectures, without running on them.


def evaluate(machine: Machine, number: int, arguments: Sequence[int] = (), audit: int | None = None) -> str:
    """Answer of a filter to a system call, by a tiny interpreter of classic BPF."""
    program = list(struct.iter_unpack("=HBBI", seccomp.filter_program(machine)))
    data = struct.pack(
        "=IIQ6Q", number, machine.audit if audit is None else audit, 0, *arguments, *[0] * (6 - len(arguments))
    )
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, constant)
            case 0x54:
                accumulator &= constant
            case 0x05:
                at += constant
            case 0x15:
                at += if_true if accumulator == constant else if_false
            case 0x35:
                at += if_true if accumulator >= constant else if_false
            case 0x06:
                return {0x7FFF0000: "allow", 0x00050026: "no such call", 0x80000000: "kill"}[constant]


# (x86-64, aarch64), None where the architecture lacks it.
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "socketpair": (53, 199), "fork": (57, None), "vfork": (58, None),
    "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "keyctl": (250, 219), "perf_event_open": (298, 241),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279), "prctl": (157, 167), "setsid": (112, 157), "setpgid": (109, 154),
    "creat": (85, None), "unlinkat": (263, 35), "truncate": (76, 45), "ioctl": (16, 29), "openat2": (437, 437),
    "setuid": (105, 146), "userfaultfd": (323, 282), "shmget": (29, 194), "mq_open": (240, 180),
    "symlinkat": (266, 36), "setpriority": (141, 140), "sched_setaffinity": (203, 122), "chroot": (161, 51),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
class TestFilter:
    def column(self, machine: Machine) -> int:
        return list(MACHINES).index(machine.name)

    def test_what_reaches_beyond_the_process_does_not_exist(self, machine: seccomp.Machine) -> None:
        for name, numbers in FORBIDDEN.items():
            if (number := numbers[self.column(machine)]) is not None:
                assert evaluate(machine, number) == "no such call", name

    @given(number=st.integers(0, 600))
    def test_a_call_exists_only_if_it_is_listed(self, machine: Machine, number: int) -> None:
        listed = {numbers[self.column(machine)] for numbers in seccomp.ALWAYS.values()}
        sometimes = {when.numbers[self.column(machine)] for when in seccomp.SOMETIMES.values()}
        if number not in sometimes:
            assert evaluate(machine, number) == ("allow" if number in listed else "no such call")

    def test_other_entries_to_the_kernel_kill(self, machine: seccomp.Machine) -> None:
        others = [other.audit for other in MACHINES.values() if other is not machine]
        for audit in (*others, 0x40000003, 0x40000028):  # 32-bit x86 and ARM
            assert evaluate(machine, 0, audit=audit) == "kill"
        assert evaluate(machine, 0x40000000) == "kill"  # x32

    def test_files_open_for_reading_only(self, machine: seccomp.Machine) -> None:
        number = {"x86_64": 257, "aarch64": 56}[machine.name]
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC, os.O_DIRECTORY, os.O_PATH):
            assert evaluate(machine, number, (0, 0, flags)) == "allow"
        writing = (
            os.O_WRONLY,
            os.O_RDWR,
            os.O_CREAT,
            os.O_TRUNC,
            os.O_APPEND,
            os.O_TMPFILE,
            os.O_WRONLY | os.O_CLOEXEC,
        )
        for flags in writing:
            assert evaluate(machine, number, (0, 0, flags)) == "no such call"

    def test_threads_start_and_processes_do_not(self, machine: seccomp.Machine) -> None:
        number = {"x86_64": 56, "aarch64": 220}[machine.name]
        assert evaluate(machine, number, (0x3D0F00,)) == "allow"
        for flags in (17, 0x4111, 0x10000000 | 17, 0):
            assert evaluate(machine, number, (flags,)) == "no such call"

    def test_limits_of_others_stay(self, machine: seccomp.Machine) -> None:
        number = {"x86_64": 302, "aarch64": 261}[machine.name]
        assert evaluate(machine, number, (0,)) == "allow"
        assert evaluate(machine, number, (1234,)) == "no such call"

    @given(command=st.integers(0, 2000))
    def test_descriptors_signal_nobody(self, machine: Machine, command: int) -> None:
        number = {"x86_64": 72, "aarch64": 25}[machine.name]
        allowed = command in (0, 1, 2, 3, 1030)
        assert evaluate(machine, number, (0, command)) == ("allow" if allowed else "no such call")


# Tiers: what is chosen, and that it is refused when it leaks.


@dataclass(frozen=True)
class Sabotaged(Tier):
    """A tier whose fork server leaves a defence out."""

    patch: str = ""

    def command(self, packages: tuple[str, ...] = (), interpreter: NodeJs | None = None) -> list[str]:
        command = super().command(packages, interpreter)
        at = command.index("-c") + 1
        return [
            *command[:at],
            command[at].replace("del sys.path[0]", self.patch + "; del sys.path[0]"),
            *command[at + 1 :],
        ]


NO_SECCOMP = "import tasks.sandbox.seccomp as s; s.install = lambda program: None"
NO_LANDLOCK = "import tasks.sandbox.landlock as l; l.restrict = lambda descriptor: None"
NO_KERNEL_SUPPORT = "import tasks.sandbox.landlock as l; l.abi = lambda: 0"
ENVIRONMENT = "import os; os.environ['PASSWORD'] = 'secret'; type(os.environ).clear = lambda self: None"
CRASH = "import tasks.sandbox.confine as c; c.drop_capabilities = lambda: 1 / 0"


@pytest.mark.parametrize(
    ("tier", "leak"),
    [
        (Sabotaged(False, True, NO_SECCOMP), "fork got through"),
        (Sabotaged(False, True, f"{NO_SECCOMP}; {NO_LANDLOCK}"), "got through"),
        (Sabotaged(False, True, ENVIRONMENT), "own_environment got through: .*PASSWORD"),
        (Sabotaged(False, True, NO_KERNEL_SUPPORT), "no Landlock"),
        (Sabotaged(False, True, CRASH), "could not confine its child"),
    ],
)
def test_a_tier_that_leaks_is_refused_with_the_leak_named(tier: Sabotaged, leak: str) -> None:
    with pytest.raises(TaskError, match=leak):
        attack(tier)


def test_the_strongest_tier_that_holds_is_chosen_and_the_others_are_named() -> None:
    leaky = Sabotaged(False, True, NO_SECCOMP)
    survey = choose_tier((leaky, LANDLOCK))
    assert survey.tier == LANDLOCK
    assert "fork got through" in survey.rejected[leaky.name]
    assert survey.describe()["tier"] == "landlock+seccomp+rlimits"
    assert "landlock+seccomp+rlimits" in str(survey)


def test_nothing_runs_where_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        TaskError, match=r"no sandbox holds .* use a kernel with Landlock .*bubblewrap is not installed"
    ):
        choose_tier((Tier(True, True), Sabotaged(False, True, NO_SECCOMP)))


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
def test_it_holds_for_an_ordinary_user_and_for_root_without_rights() -> None:
    python = shutil.which("python3.11", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no interpreter that everybody may run")
    root = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.insert(0, {root!r}); import tasks.sandbox.selftest as s; print(s.choose_tier())"
    for who in (["--reuid", "65534", "--regid", "65534", "--clear-groups"], ["--bounding-set", "-all"]):
        done = subprocess.run(
            ["setpriv", *who, python, "-c", program], capture_output=True, text=True, timeout=900, cwd="/"
        )
        assert "landlock+seccomp+rlimits" in done.stdout, done.stderr


def test_packages_are_there_if_asked_for_and_only_then(worker: WorkerOfTier) -> None:
    source = "def f():\n    import sortedcontainers\n    return list(sortedcontainers.SortedList([2, 1]))"
    assert report(run(worker, source))[-1][0] == "exception"
    with_package = Worker(worker.tier, ("sortedcontainers",))
    try:
        assert value(with_package, source) == [1, 2]
    finally:
        with_package.close()
    with pytest.raises(WorkerError, match="no_such_package, which is not installed"):
        Worker(LANDLOCK, ("no_such_package",))


# Pools: one program's trouble is its own, and the end is the end.


def call(source: str = "def f():\n    return 1") -> Callable[[Callable[[Job, Limits], Result]], Result]:
    return lambda run: run(
        Job("call", source, entry_point="f", calls="[[null, [], {}]]"), Limits(seconds=60.0, memory_mb=256)
    )


LOOP = "def f():\n    while True: pass"


def servers() -> set[int]:
    """Fork servers of this process that are alive (under bubblewrap, what starts them)."""
    return {child.pid for child in psutil.Process().children() if alive(child.pid)}


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_endless_loop_delays_only_its_own_worker(survey: Survey) -> None:
    pool = Pool(2, survey)
    try:
        loop = pool.submit(call(LOOP))
        assert [pool.submit(call()).result().ending for _ in range(20)] == ["exited"] * 20
        assert not loop.done()
    finally:
        pool.close()
    with pytest.raises(WorkerError):
        loop.result()


def test_a_job_whose_server_dies_is_tried_once_more(survey: Survey) -> None:
    before, pool = servers(), Pool(1, survey)
    try:
        assert pool.submit(call()).result().ending == "exited"
        started = [psutil.Process(process) for process in servers() - before]
        inner = [child for process in started for child in process.children(recursive=True)]
        for process in started:
            process.kill()
        psutil.wait_procs([*started, *inner], timeout=60)  # the server outlives what starts it, and answers meanwhile
        assert pool.submit(call()).result().ending == "exited"
        loop = pool.submit(call(LOOP))
        killed = 0
        while not loop.done():
            time.sleep(0.1)
            for process in servers() - before:
                with suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(process, signal.SIGKILL)
                    killed += 1
        with pytest.raises(WorkerError):
            loop.result()
        assert killed >= 2
        assert pool.submit(call()).result().ending == "exited"
    finally:
        pool.close()


def test_a_server_whose_starter_is_killed_early_is_not_used() -> None:
    """Bubblewrap ties the server to itself late; killed before that, it leaves a server that nobody could kill."""

    class Killed(Tier):
        def command(self, packages: tuple[str, ...] = (), interpreter: NodeJs | None = None) -> list[str]:
            late = 'exec 3<&0; (sleep 0.3; exec "$@" <&3) & kill -9 $$'
            return ["/bin/sh", "-c", late, "sh", *super().command(packages, interpreter)]

    with pytest.raises(WorkerError, match="what starts it was killed"):
        Worker(Killed(bubblewrap=True, landlock=True))


def test_ctrl_c_reaches_the_host_only(worker: Worker) -> None:
    assert os.getsid(worker.pid) != os.getsid(0)


def test_closing_leaves_no_process_and_no_thread(survey: Survey) -> None:
    before, threads = servers(), threading.active_count()
    pool = Pool(2, survey)
    pool.submit(call()).result()
    loops = [pool.submit(call(LOOP)) for _ in range(4)]
    pool.close()
    pool.close()
    assert servers() <= before
    assert threading.active_count() == threads
    assert all(loop.done() for loop in loops)
    with pytest.raises(TaskError, match="closed"):
        pool.submit(call())


def test_nothing_outlives_a_host_that_is_killed() -> None:
    program = """
import os, sys, time
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.pool import Pool
import psutil
pool = Pool(1)
pool.submit(lambda run: run(Job("call", "while True: pass"), Limits(seconds=600)))
while len(processes := psutil.Process().children(recursive=True)) < 2:
    time.sleep(0.05)
print(*(process.pid for process in processes), flush=True)
time.sleep(600)
"""
    host = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert host.stdout is not None
    pids = [int(pid) for pid in host.stdout.readline().split()]
    assert len(pids) >= 2
    host.kill()
    host.communicate()
    deadline = time.monotonic() + 900
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "processes outlived their host"
        time.sleep(0.05)


REMOTE = """
import os, sys, psutil, ray
ray.init("local", num_cpus=1, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=1, max_concurrency=2)
class Grader:
    def start(self):
        from tasks.code.verifier import CodeVerifier
        self.verifier = CodeVerifier(2)

    def grade(self, items):
        return [verdict.outcome for verdict in self.verifier.verify(items)]

    def pids(self):
        return [process.pid for process in psutil.Process().children(recursive=True)]

from tasks.types import Prompt
prompt = Prompt("1", "code", "", {"kind": "call", "entry_point": "f", "cases": [{"args": [1], "expected": 2}]})
grader = Grader.remote()
ray.get(grader.start.remote())
answers = ["</think>def f(x): return x + 1", "</think>def f(x): return x"] * 10
refs = [grader.grade.remote([(prompt, answer) for answer in answers]) for _ in range(2)]
print(ray.get(refs, timeout=900) == [["passed", "failed"] * 10] * 2)
pids = ray.get(grader.pids.remote(), timeout=900)
ray.kill(grader)
left = [psutil.Process(p) for p in pids if psutil.pid_exists(p)]
print(len(pids) >= 2, psutil.wait_procs(left, timeout=900)[1] == [])
ray.shutdown()
"""


@pytest.mark.slow
def test_it_works_inside_ray_workers_and_ends_with_them() -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-c", REMOTE], capture_output=True, text=True, timeout=900, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split() == ["True"] * 3, done.stdout + done.stderr


def test_a_pool_without_workers_is_refused(survey: Survey) -> None:
    with pytest.raises(TaskError, match="at least 1"):
        Pool(0, survey)


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"memory_mb": 10}, {"output_mb": 0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(TaskError, match="give"):
        Limits(**limits)


# Values.


def canonical(value: Any) -> Any:
    """Equal only for values of the same types; sets and dicts have no order."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [canonical(item) for item in value]
    if isinstance(value, dict):
        return "dict", sorted((repr(canonical(key)), repr(canonical(item))) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(repr(canonical(item)) for item in value)
    return repr(value)


@settings(max_examples=50)
@given(PLAIN)
def test_values_keep_their_types_through_json(value: Any) -> None:
    assert canonical(decode(json.loads(json.dumps(encode(value))))) == canonical(value)


def test_values_that_json_cannot_write_survive() -> None:
    for value in (10**5000, -(10**5000), {"$tuple": [1]}, {1: 2}, "\ud800"):
        assert decode(json.loads(json.dumps(encode(value)))) == value
