"""The fork server: a small Python process without environment or secrets that forks one confined child per job.

Started by `tasks.sandbox.worker`. Speaks `tasks.sandbox.channel` on descriptors 0 and 1: first a greeting (JSON: what
it found here, or why it cannot serve), then one result for every job.

The server itself never reads a job, and keeps nothing of a result: it is copied into every child, and what one
submission said must not be found in the memory of the next, which may be an attempt at the same problem.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from types import ModuleType

from tasks.sandbox import harness, landlock, seccomp
from tasks.sandbox.channel import ChannelError, receive, send
from tasks.sandbox.child import run_child
from tasks.sandbox.confine import Confinement, tasks_of_others, unused_uid
from tasks.sandbox.job import Job, job_from_parts, limits_from_bytes
from tasks.sandbox.linux import die_with_parent, machine

# Loaded once: for speed, and because some need shared libraries from outside the folder that children can read.
PRELOADED = (
    "abc array ast atexit base64 binascii bisect bz2 calendar cmath collections collections.abc contextlib copy "
    "ctypes dataclasses datetime decimal enum fractions functools gc hashlib heapq hmac inspect io itertools json "
    "locale lzma math numbers operator os pathlib pprint queue random re secrets statistics string struct sys "
    "textwrap threading time traceback types typing unicodedata uuid warnings weakref zlib"
)
# Seconds for which a count of the user's tasks is used.
_COUNT_SECONDS = 10.0
_REHEARSALS = 64
# In the standard library's folder but no part of it: other people's packages may hold the very tests.
_NOT_STANDARD = {"site-packages", "dist-packages", "test"}


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a fork server.

    Attributes:
        host: pid with which the server dies, or 0 if bubblewrap sees to that.
        uid: where to begin to look for an unused user.
        landlock: whether children get a Landlock rule set.
        chroot: whether to leave everything but the interpreter's folder, where root may.
        packages: modules beyond the standard library that are loaded for submissions, and the folder of each.
        interpreter: executable that runs scripts, on a server for nothing but them; else empty.
        folders: what that reads and executes.
    """

    host: int
    uid: int
    landlock: bool
    chroot: bool
    packages: dict[str, str]
    interpreter: str
    folders: list[str]


def main() -> None:
    """Serve until the host closes the pipe."""
    config = ServerConfig(**json.loads(sys.argv[1]))
    try:
        confinement, found = _prepare(config)
    except (OSError, ImportError) as error:
        send(1, [json.dumps({"problem": str(error)}).encode()])
        return
    send(1, [json.dumps(found).encode()])
    counted = time.monotonic()
    while True:
        try:
            (limits,) = receive(0)
        except ChannelError:
            return
        if confinement.uid is None and time.monotonic() - counted > _COUNT_SECONDS:
            others, counted = tasks_of_others(None, config.host), time.monotonic()
            confinement = confinement if others is None else replace(confinement, others=others)
        run_child(0, limits_from_bytes(limits), confinement, 1)


def _prepare(config: ServerConfig) -> tuple[Confinement, dict[str, object]]:
    """Prepare all that children share; returns it, and lines for the log."""
    if config.host:
        die_with_parent(config.host)
    _load(config.packages)
    os.environ.clear()
    sys.argv[:] = [""]
    time.tzset()
    # Before the chroot, because afterwards there is neither this device nor a user list.
    nothing = os.open(os.devnull, os.O_RDWR)
    interpreter = os.open(config.interpreter, os.O_RDONLY) if config.interpreter else None
    uid = unused_uid(config.uid)
    chrooted = config.chroot and _enter(sys.base_prefix)
    library = _restrict_imports(sys.base_prefix if chrooted else "")
    ruleset = _ruleset(config, library) if config.landlock else None
    if interpreter is None:
        _rehearse(nothing)
    gc.collect()
    gc.freeze()
    found: dict[str, object] = {
        "uid": uid,
        "chroot": chrooted,
        "landlock": landlock.abi() if config.landlock else None,
        "python": sys.version.split()[0],
        "machine": machine().name,
    }
    more = seccomp.NATIVE if interpreter is None else seccomp.SCRIPT
    filters = seccomp.filter_program(machine()), seccomp.filter_program(machine(), more)
    return Confinement(*filters, ruleset, nothing, uid, tasks_of_others(uid, config.host), interpreter), found


def _rehearse(nothing: int) -> None:
    """Do a child's work until this interpreter has specialised it: each child would begin that anew."""
    job = Job("call", "def f(x):\n    return x\n", entry_point="f", calls='[[null, [[1, 0.5, "a"]], {}]]')
    for _ in range(_REHEARSALS):
        module = harness.prepare(job_from_parts(job.to_parts()))
        harness.run(job, module, nothing)
        del sys.modules[module.__name__]


def _ruleset(config: ServerConfig, library: str) -> int:
    """The rule set of children: they read the standard library, or what another interpreter needs."""
    if config.interpreter:
        return landlock.ruleset((), (), executable=[config.interpreter, *config.folders])
    return landlock.ruleset(_standard(library), [library])


def _load(packages: dict[str, str]) -> None:
    """Import modules that submissions may use and could not load once the file system is restricted."""
    # A fork copies one thread only, so numerical libraries must not start more.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    sys.path += sorted(set(packages.values()))
    for name in (*PRELOADED.split(), *packages):
        importlib.import_module(name)


def _enter(folder: str) -> bool:
    """Make a folder the root of the file system; False where this process may not."""
    try:
        os.chroot(folder)
        os.chdir("/")
    except PermissionError:
        return False
    return True


def _restrict_imports(root: str) -> str:
    """From now on, import from the standard library only, found without the prefix `root`; returns its folder.

    Under a new root the unused user finds it even where the interpreter lies in somebody's private home.
    """
    library = os.path.dirname(os.__file__)
    extensions = next((path for path in sys.path if path.endswith("lib-dynload")), library)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and isinstance(path := getattr(module, "__path__", None), list):
            path[:] = [folder.removeprefix(root) for folder in path]
    sys.path[:] = [folder.removeprefix(root) for folder in (library, extensions)]
    sys.path_importer_cache.clear()
    return sys.path[0]


def _standard(library: str) -> list[str]:
    """Existing files and folders of the standard library, without the broken links of some distributions."""
    paths = (os.path.join(library, name) for name in os.listdir(library) if name not in _NOT_STANDARD)
    return [path for path in paths if os.path.exists(path)]
