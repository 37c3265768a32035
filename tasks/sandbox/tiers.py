"""Tiers of the sandbox, strongest first, and the command line of each one's fork server."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import site
import sys
from dataclasses import dataclass
from pathlib import Path

from tasks.sandbox.scripts import NodeJs

_PYTHON = (os.path.realpath(sys.executable), "-s", "-P", "-S", "-B", "-X", "utf8", "-c")
_HERE = Path(__file__).resolve().parent
# A checkout has `tasks.sandbox`, a wheel `scalelab.tasks.sandbox`.
_SOURCES = _HERE.parents[__package__.count(".")]
_DEBIAN_PACKAGES = "/usr/lib/python3/dist-packages"
_AROUND = [parent / "__init__.py" for parent in _HERE.parents if _SOURCES in parent.parents]
_NEEDED = [*_AROUND, _HERE.parent / "errors.py", _HERE]

# All that a fork server's environment holds: hashes, and so the order of sets, are the same in every run. This seed is
# one under which a reference of LeetCode's that iterates over a set gives the answer that its test expects.
ENVIRONMENT = {"PYTHONHASHSEED": "1"}


def random_uid() -> int:
    """A user id of a range that machines leave unused as a rule."""
    return 61_000 + secrets.randbelow(4_000)


@dataclass(frozen=True)
class Tier:
    """One combination of defences; rlimits, seccomp and (for root) an unused user belong to each.

    Attributes:
        bubblewrap: fork server in new namespaces, with nothing mounted but interpreter and libraries.
        landlock: children see the standard library only.
    """

    bubblewrap: bool
    landlock: bool

    @property
    def name(self) -> str:
        """Name for logs and manifests, such as `landlock+seccomp+rlimits`."""
        parts = ["bubblewrap"] * self.bubblewrap + ["landlock"] * self.landlock
        return "+".join([*parts, "seccomp", "rlimits"])

    def command(self, packages: tuple[str, ...] = (), interpreter: NodeJs | None = None) -> list[str]:
        """The fork server's command line, to be run with `ENVIRONMENT` and nothing else in its environment.

        Args:
            packages: modules beyond the standard library that submissions may import.
            interpreter: what runs scripts, on a server for nothing but them.

        Raises:
            OSError: bubblewrap or a package is not installed.
        """
        homes = {package: home_of(package) for package in packages}
        config = {
            "host": 0 if self.bubblewrap else os.getpid(),
            "uid": random_uid(),
            "landlock": self.landlock,
            "chroot": not self.bubblewrap and interpreter is None,
            "packages": {package: str(home.parent) for package, home in homes.items()},
            "interpreter": interpreter.path if interpreter else "",
            "folders": interpreter.folders if interpreter else (),
        }
        server = [*_PYTHON, _start("server"), json.dumps(config), str(_SOURCES)]
        if not self.bubblewrap:
            return server
        own = _read_only([Path(interpreter.path), *map(Path, interpreter.folders)]) if interpreter else []
        return [*_bubblewrap(set(homes.values())), *own, "--", *server]

    def compiler_command(self, config: str, folders: list[str], scratch: str) -> list[str]:
        """The command line of `tasks.sandbox.compiler`, to be run with `ENVIRONMENT` like the fork server.

        Args:
            config: its configuration.
            folders: what the compiler reads and executes.
            scratch: the folder that it writes to.

        Raises:
            OSError: bubblewrap is not installed.
        """
        compiler = [*_PYTHON, _start("compiler"), config, str(_SOURCES)]
        if not self.bubblewrap:
            return compiler
        mounts = _read_only([Path(folder) for folder in folders])
        for parent in [*reversed(Path(scratch).parents)][1:]:
            # It may be there already, and private, where this checkout lies in the folder for temporary files.
            mounts += ["--perms", "0755", "--dir", str(parent), "--chmod", "0755", str(parent)]
        return [*_bubblewrap(set()), *mounts, "--bind", scratch, scratch, "--", *compiler]

    @property
    def changes_user(self) -> bool:
        """True if children can become an unused user: root, and inside bubblewrap without a user namespace."""
        return os.geteuid() == 0 and (not self.bubblewrap or bool(_CAP_SYS_ADMIN & _capabilities()))


TIERS = (
    Tier(bubblewrap=True, landlock=True),
    Tier(bubblewrap=False, landlock=True),
    Tier(bubblewrap=True, landlock=False),
)


def _start(module: str) -> str:
    """Source for a confined interpreter: the sandbox's modules can be imported only while it starts."""
    begin = "import os, sys; sys.path.insert(0, sys.argv.pop()); hooked = os.register_at_fork"
    # `threading` and `random` would set themselves up anew in every child, which has one thread and is seeded.
    load = f"os.register_at_fork = lambda **_: None; from {__package__}.{module} import main"
    return f"{begin}; {load}; os.register_at_fork = hooked; del sys.path[0]; main()"


def home_of(package: str) -> Path:
    """The folder or file of the package that a module belongs to.

    Raises:
        OSError: it is not installed.
    """
    spec = importlib.util.find_spec(package.split(".")[0])
    if spec is None or spec.origin is None:
        raise OSError(f"submissions are to import {package}, which is not installed: pip install it")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def _bubblewrap(packages: set[Path]) -> list[str]:
    """New namespaces; read-only interpreter, system libraries and these modules; no /proc, nothing writable."""
    program = shutil.which("bwrap")
    if program is None:
        raise OSError("bubblewrap is not installed")
    arguments = [program, *_namespaces(), "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    # The server is started by its real path, so that is where it looks for its library.
    prefix = os.path.realpath(sys.base_prefix)
    libraries = [Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache")]
    # An unused user must get to the interpreter, even below a home that bubblewrap makes as private as the real one.
    for parent in [*[*reversed(Path(prefix).parents)][1:], Path("/usr")]:
        arguments += ["--perms", "0755", "--dir", str(parent)]
    arguments += _read_only([Path(prefix), *libraries])
    # Other people's packages may hold the very tests: they are covered up, all but those that are asked for.
    covered = [path for path in (*site.getsitepackages([prefix]), _DEBIAN_PACKAGES) if os.path.isdir(path)]
    for path in covered:
        arguments += ["--tmpfs", path]
    arguments += _read_only(_NEEDED)  # these may lie among those packages
    # Wheels keep their shared libraries in a folder beside the package.
    arguments += _read_only([path for home in sorted(packages) for path in (home, Path(f"{home}.libs"))])
    for path in covered:
        arguments += ["--remount-ro", path]
    return [*arguments, "--dev-bind", os.devnull, os.devnull, "--chdir", "/"]


def _namespaces() -> list[str]:
    """New namespaces of every kind.

    Root with its full rights needs no user namespace, and without one its children can become an unused user.
    """
    if os.geteuid() != 0 or not _CAP_SYS_ADMIN & _capabilities():
        return ["--unshare-all"]
    kinds = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    return [*kinds, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


_CAP_SYS_ADMIN = 1 << 21


def _capabilities() -> int:
    """The rights of this process, as the kernel lists them."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def _read_only(paths: list[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind-try", str(path), str(path))]
