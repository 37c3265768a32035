"""A system call filter: calls that a computation needs are allowed, all others fail as if they did not exist.

An allow list, because kernels grow new calls. A forbidden call answers ENOSYS, as on a kernel without it: libraries
then fall back (`clone3` to `clone`), and a submission sees an ordinary OSError.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.sandbox.linux import PR_SET_SECCOMP, Machine, forbid_new_privileges, prctl

# (x86-64, aarch64); None where the architecture lacks the call. Nothing here reaches another process, opens a
# socket, writes to a file system or starts a program.
ALWAYS: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None),
    "alarm": (37, None),
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcpu": (309, 168),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getitimer": (36, 102),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "lseek": (8, 62),
    "lstat": (6, None),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pread64": (17, 67),
    "pselect6": (270, 72),
    "read": (0, 63),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "select": (23, None),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "setitimer": (38, 103),
    "sigaltstack": (131, 132),
    "stat": (4, None),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "time": (201, None),
    "times": (100, 153),
    "uname": (63, 160),
    "write": (1, 64),
    "writev": (20, 66),
}


@dataclass(frozen=True)
class When:
    """A call that is allowed if the low 32 bits of one argument, masked, are one of some values."""

    numbers: tuple[int | None, int | None]
    argument: int
    mask: int
    values: tuple[int, ...]


_ALL_BITS = 0xFFFFFFFF
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND; the bit of O_TMPFILE that is its own.
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000
_CLONE_THREAD = 0x10000

SOMETIMES = {
    "open": When((2, None), 1, _WRITING, (0,)),
    "openat": When((257, 56), 2, _WRITING, (0,)),
    # Threads, never processes.
    "clone": When((56, 220), 0, _CLONE_THREAD, (_CLONE_THREAD,)),
    # Its own limits, not those of other processes of the same user.
    "prlimit64": When((302, 261), 0, _ALL_BITS, (0,)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; F_SETOWN and F_SETSIG could signal another process.
    "fcntl": When((72, 25), 1, _ALL_BITS, (0, 1, 2, 3, 1030)),
}

_AT_EMPTY_PATH, _ARCH_SET_FS = 0x1000, 0x1002
_NAMESPACES = 0x7E020080

# What a machine program needs beside these: to be started from a descriptor, and its thread pointer. What is started
# later is held by the same filter and rule set.
NATIVE = {
    "execveat": When((322, 281), 4, _ALL_BITS, (_AT_EMPTY_PATH,)),
    "arch_prctl": When((158, None), 0, _ALL_BITS, (_ARCH_SET_FS,)),
}

# What Node.js needs beside these: to wait for several descriptors at once, pipes between its threads, and to ask what
# its descriptors are (FIONBIO, FIOCLEX, TCGETS). Neither processes nor sockets nor files to write.
SCRIPT = NATIVE | {
    "capget": When((125, 90), 0, 0, (0,)),
    "dup3": When((292, 24), 0, 0, (0,)),
    "epoll_create1": When((291, 20), 0, 0, (0,)),
    "epoll_ctl": When((233, 21), 0, 0, (0,)),
    "epoll_pwait": When((281, 22), 0, 0, (0,)),
    "epoll_wait": When((232, None), 0, 0, (0,)),
    "eventfd2": When((290, 19), 0, 0, (0,)),
    "fcntl": When((72, 25), 1, _ALL_BITS, (0, 1, 2, 3, 4, 1030)),  # and F_SETFL: where to signal, it still cannot say
    "ioctl": When((16, 29), 1, _ALL_BITS, (0x5421, 0x5451, 0x5401)),
    "pipe2": When((293, 59), 0, 0, (0,)),
}

# What a compiler needs: processes (in no new namespaces), programs by their path, and files to write. Which files, the
# rule set or the mounts say. No signals, no sockets, no sessions, so killing the group of processes kills all.
COMPILER = {
    name: When(numbers, 0, 0, (0,))
    for name, numbers in {
        "arch_prctl": (158, None),
        "chmod": (90, None),
        "copy_file_range": (326, 285),
        "dup2": (33, None),
        "dup3": (292, 24),
        "execve": (59, 221),
        "fallocate": (285, 47),
        "fchmod": (91, 52),
        "fchmodat": (268, 53),
        "fork": (57, None),
        "ftruncate": (77, 46),
        "open": (2, None),
        "openat": (257, 56),
        "pipe": (22, None),
        "pipe2": (293, 59),
        "pwrite64": (18, 68),
        "rename": (82, None),
        "renameat": (264, 38),
        "umask": (95, 166),
        "unlink": (87, None),
        "unlinkat": (263, 35),
        "vfork": (58, None),
        "wait4": (61, 260),
    }.items()
} | {"clone": When((56, 220), 0, _NAMESPACES, (0,))}

# Classic BPF: load a word, jump if equal, and with a constant, return.
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
_ALLOW, _NO_SUCH_CALL, _KILL = 0x7FFF0000, 0x00050000 | 38, 0x80000000
# Offsets into struct seccomp_data: the number, the architecture, the low half of an argument (little endian).
_NUMBER, _ARCHITECTURE = 0, 4
_X32_BIT = 0x40000000


def filter_program(machine: Machine, more: Mapping[str, When] | None = None) -> bytes:
    """The filter for one architecture, as an array of `struct sock_filter`.

    Calls made through another architecture's entry (32-bit, x32) kill the process.

    Args:
        machine: the architecture.
        more: calls that are allowed beside the usual ones, or in place of those of the same name.
    """
    column = 0 if machine.name == "x86_64" else 1
    checks = {numbers[column]: [_instruction(_RETURN, _ALLOW)] for numbers in ALWAYS.values()}
    checks |= {when.numbers[column]: _check(when) for when in {**SOMETIMES, **(more or {})}.values()}
    by_number = [(number, checks[number]) for number in sorted(number for number in checks if number is not None)]
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, machine.audit, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL),
        *_search(by_number),
    ]
    return b"".join(program)


def _search(checks: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """A binary search among calls by number: when a filter is installed, the kernel runs it for each call there is."""
    if len(checks) == 1:
        ((number, check),) = checks
        return [_instruction(_JUMP_EQUAL, number, 0, len(check)), *check, _instruction(_RETURN, _NO_SUCH_CALL)]
    half = len(checks) // 2
    below, above = _search(checks[:half]), _search(checks[half:])
    # A conditional jump reaches 255 instructions only.
    return [_instruction(_JUMP_AT_LEAST, checks[half][0], 0, 1), _instruction(_JUMP, len(below)), *below, *above]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Install a filter for this process and the threads it starts; it cannot be removed.

    Raises:
        OSError: the kernel said no.
    """
    forbid_new_privileges()
    # A c_char_p keeps the bytes alive and points at them; the kernel counts instructions, not zero bytes.
    described = _Program(len(program) // 8, program)
    prctl("PR_SET_SECCOMP", PR_SET_SECCOMP, 2, ctypes.cast(ctypes.pointer(described), ctypes.c_void_p))


def _check(when: When) -> list[bytes]:
    """Instructions that end in allowing or denying, for a call whose number has matched."""
    code = [_instruction(_LOAD, 16 + 8 * when.argument), _instruction(_AND, when.mask)]
    for value in when.values:
        code += [_instruction(_JUMP_EQUAL, value, 0, 1), _instruction(_RETURN, _ALLOW)]
    return [*code, _instruction(_RETURN, _NO_SUCH_CALL)]


def _instruction(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, constant)
