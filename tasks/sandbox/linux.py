"""Linux system calls that Python does not offer, by number, for the two processor architectures that are supported."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Machine:
    """Differences between processor architectures.

    Attributes:
        name: as in `uname -m`.
        audit: AUDIT_ARCH_*, by which a seccomp filter recognises it.
        capset: number of the system call that gives up capabilities.
    """

    name: str
    audit: int
    capset: int


MACHINES = {
    "x86_64": Machine("x86_64", 0xC000003E, 126),
    "aarch64": Machine("aarch64", 0xC00000B7, 91),
}


def machine() -> Machine:
    """The processor architecture of this machine.

    Raises:
        OSError: an architecture for which there is no system call table.
    """
    name = platform.machine()
    if name not in MACHINES:
        raise OSError(f"the sandbox knows no system calls of {name}: use {' or '.join(MACHINES)}")
    return MACHINES[name]


def syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    """System call `number`; `what` names it in the error.

    Raises:
        OSError: the kernel said no.
    """
    values = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(what: str, option: int, value: int, pointer: ctypes.c_void_p | None = None) -> None:
    """`prctl(option, value, pointer)`; `what` names it in the error.

    Raises:
        OSError: the kernel said no.
    """
    if _LIBC.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread that started it ends.

    Args:
        parent: pid of the parent; if it is gone already, this process ends now.
    """
    prctl("PR_SET_PDEATHSIG", PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)


def forbid_new_privileges() -> None:
    """No setuid program can raise this process's rights again; Landlock and seccomp ask for it."""
    prctl("PR_SET_NO_NEW_PRIVS", PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop every capability; without effect for an ordinary user, who has none."""
    header = CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)
    syscall("capset", machine().capset, header, bytes(24))
