"""Confine a forked child: drop its rights, in an order in which each step is still permitted."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from dataclasses import dataclass

from tasks.sandbox import landlock, scripts, seccomp
from tasks.sandbox.job import Limits
from tasks.sandbox.linux import die_with_parent, drop_capabilities, forbid_new_privileges

_MAX_DESCRIPTORS = 24
_MAX_THREADS = 32
# Room for threads that other processes of an ordinary user start meanwhile.
_SLACK = 256
# Since then the kernel counts the tasks of a user for each user namespace by itself.
_COUNTS_BY_NAMESPACE = (5, 14)
_STACK_MB = 256


@dataclass(frozen=True)
class Confinement:
    """Confinement prepared once by a fork server for all its children.

    Attributes:
        filter: the seccomp program.
        native: the same for machine programs.
        ruleset: descriptor of the Landlock rule set, or None in a tier without Landlock.
        nothing: descriptor of /dev/null, which a child cannot open any more.
        uid: user and group to become, or None where the process cannot change its user.
        others: tasks (processes and threads) that the kernel counts with those of a child; None if it is not known.
        interpreter: descriptor of the executable that runs scripts; None where children run Python and binaries.
    """

    filter: bytes
    native: bytes
    ruleset: int | None
    nothing: int
    uid: int | None
    others: int | None
    interpreter: int | None = None


def confine(confinement: Confinement, limits: Limits, server: int) -> None:
    """Drop the rights to user, resources, file system and system calls; they cannot be regained.

    Args:
        confinement: prepared by the server.
        limits: of this program.
        server: pid of the fork server, with which this process dies.

    Raises:
        OSError, ValueError: a step was refused; the process must end without running anything.
    """
    if confinement.uid is not None:
        become(confinement.uid)
    # Changing the user clears the parent-death signal, so it is asked for afterwards.
    die_with_parent(server)
    drop_capabilities()
    forbid_new_privileges()
    _limit(limits, confinement.others, confinement.interpreter is not None)
    if confinement.ruleset is not None:
        landlock.restrict(confinement.ruleset)
        os.close(confinement.ruleset)
    seccomp.install(confinement.filter)


def become(uid: int) -> None:
    """Change from root to a user and group that own nothing."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def tasks_of_others(uid: int | None, host: int) -> int | None:
    """Number of tasks that the kernel counts with those of a child that runs as `uid` (None: the server's own user).

    None where that cannot be known: in a namespace of its own on a kernel that counts over all of them.
    """
    if uid is not None:
        return 0
    if not host:
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        return 0 if release >= _COUNTS_BY_NAMESPACE else None
    if not os.path.isdir("/proc/self"):
        return None
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.stat(f"/proc/{int(name)}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count + _SLACK


def _limit(limits: Limits, others: int | None, script: bool) -> None:
    memory = limits.memory_mb << 20
    # The parent limits the time by the clock; this limit of processor time holds even if the parent is stuck.
    seconds = math.ceil(limits.seconds) + 2
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,
        resource.RLIMIT_STACK: min(memory // 2, _STACK_MB << 20),
    }
    if script:
        # Its interpreter reserves addresses that it never uses, so what counts is memory that can be written to.
        del bounds[resource.RLIMIT_AS]
        bounds[resource.RLIMIT_DATA] = memory + (scripts.HELPER_MB << 20)
        bounds[resource.RLIMIT_STACK] = scripts.STACK_MB << 20
        bounds[resource.RLIMIT_NOFILE] = scripts.DESCRIPTORS
    if others is not None:
        bounds[resource.RLIMIT_NPROC] = others + _MAX_THREADS
    for kind, bound in bounds.items():
        given = resource.getrlimit(kind)[1]
        bound = bound if given == resource.RLIM_INFINITY else min(bound, given)
        # Room between the two for SIGXCPU, which says why; SIGKILL alone would look like want of memory.
        soft = bound - 1 if kind == resource.RLIMIT_CPU else bound
        resource.setrlimit(kind, (soft, bound))


def unowned_uid(candidate: int) -> int:
    """The first user id from a candidate on that nobody on this machine has."""
    import pwd

    with contextlib.suppress(KeyError):
        while True:
            pwd.getpwuid(candidate)
            candidate += 1
    return candidate


def unused_uid(candidate: int) -> int | None:
    """A user id that this process can become and that nobody on this machine has, or None.

    None for an ordinary user, and for root of a user namespace that has no other users.
    """
    if os.geteuid() != 0:
        return None
    candidate = unowned_uid(candidate)
    pid = os.fork()
    if pid == 0:
        try:
            become(candidate)
        except OSError:
            os._exit(1)
        os._exit(0)
    return candidate if os.waitpid(pid, 0)[1] == 0 else None
