"""The limit of open files, which a sandbox and a run meet first of all, and name badly."""

from __future__ import annotations

import resource

from tasks.errors import TaskError

NEEDED, WANTED = 256, 4096
"""Files that a process of a run must be allowed to have open at once, and those that it asks for."""


def allow_files() -> None:
    """Raise this process's own limit of open files as far as it may and needs.

    Raises:
        TaskError: it may not have as many as it needs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return
    allowed = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if allowed < NEEDED:
        raise TaskError(
            f"this process may have {allowed} files open at once, and needs {NEEDED}: raise the limit with "
            f"`ulimit -Hn {WANTED}` as root, in /etc/security/limits.conf, or in the job's or the container's settings"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
