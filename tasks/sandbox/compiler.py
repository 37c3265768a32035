"""Run a C++ compiler, confined, on untrusted source.

Run as a program by `tasks.sandbox.compiling`: takes its rights away, has the compiler read the source from standard
input and write to one folder, and sends a line of JSON, `{"problem": text or null}`, and the executable after it.
What confines this process confines the compiler.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import dataclass

from tasks.sandbox import landlock, seccomp
from tasks.sandbox.confine import become
from tasks.sandbox.linux import die_with_parent, drop_capabilities, forbid_new_privileges, machine

LONGEST_COMPLAINT = 2000


@dataclass(frozen=True)
class CompilerConfig:
    """Settings of one compilation, and of how the compiler is held.

    Attributes:
        host: pid with which this process dies, or 0 if bubblewrap sees to that.
        uid: user and group to become, whose the folder is; None stays who it is.
        landlock: whether to use Landlock.
        command: the compiler and its arguments; it writes `program` in the folder.
        folders: what the compiler may read and execute.
        scratch: the folder that it may write to.
        seconds: processor time of each of its processes.
        memory_mb: address space of each.
        output_mb: size of a file.
    """

    host: int
    uid: int | None
    landlock: bool
    command: list[str]
    folders: list[str]
    scratch: str
    seconds: int
    memory_mb: int
    output_mb: int


def main() -> None:
    """Compile once."""
    config = CompilerConfig(**json.loads(sys.argv[1]))
    try:
        _confine(config)
        complaint = _compile(config)
    except OSError as error:
        _answer(f"the compiler cannot be confined or started: {error}", b"", broken=True)
        return
    if complaint is not None:
        _answer(complaint, b"")
        return
    with open(os.path.join(config.scratch, "program"), "rb") as file:
        _answer(None, file.read())


def _answer(problem: str | None, program: bytes, broken: bool = False) -> None:
    sys.stdout.buffer.write(json.dumps({"problem": problem, "broken": broken}).encode() + b"\n" + program)
    sys.stdout.buffer.flush()


def _confine(config: CompilerConfig) -> None:
    if config.host:
        die_with_parent(config.host)
    rules = None
    if config.landlock:
        found = [folder for folder in config.folders if os.path.exists(folder)]
        rules = landlock.ruleset((), (), executable=found, writable=[config.scratch, os.devnull])
    if config.uid is not None:
        become(config.uid)
        if config.host:
            die_with_parent(config.host)  # changing the user clears it
    drop_capabilities()
    forbid_new_privileges()
    mebibytes = {resource.RLIMIT_AS: config.memory_mb, resource.RLIMIT_FSIZE: config.output_mb}
    bounds = {kind: size << 20 for kind, size in mebibytes.items()}
    bounds |= {resource.RLIMIT_CPU: config.seconds, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 64}
    if config.uid is not None:
        bounds[resource.RLIMIT_NPROC] = 64
    for kind, bound in bounds.items():
        given = resource.getrlimit(kind)[1]
        bound = bound if given == resource.RLIM_INFINITY else min(bound, given)
        resource.setrlimit(kind, (bound, bound))
    if rules is not None:
        landlock.restrict(rules)
        os.close(rules)
    seccomp.install(seccomp.filter_program(machine(), seccomp.COMPILER))


def _compile(config: CompilerConfig) -> str | None:
    """Run the compiler; returns its complaint, None where it has none."""
    said = os.open(os.path.join(config.scratch, "said"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(said, 1)
            os.dup2(said, 2)
            environment = {"TMPDIR": config.scratch, "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
            os.execve(config.command[0], config.command, environment)
        except OSError as error:
            os.write(said, f"the compiler does not start: {error}".encode())
        finally:
            os._exit(127)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return None
    text = os.pread(said, LONGEST_COMPLAINT, 0).decode("utf-8", "replace").strip()
    return text or f"the compiler ended with status {status}"


if __name__ == "__main__":
    main()
