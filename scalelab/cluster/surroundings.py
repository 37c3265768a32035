"""Checks of what Ray and the engines need of a machine, and settings that Ray reads when it is imported.

Imports no Ray, so that both can be settled before.
"""

from __future__ import annotations

import os
import resource

from scalelab.errors import LabError

ADDRESS_SPACE = 16 * 2**30
"""Bytes of address space that a process of a run must be allowed; the smallest model's take up to 7 GiB."""


def settle(own_ray: bool) -> None:
    """Set what Ray reads once, when it is imported.

    Args:
        own_ray: whether this process starts a Ray of its own, for this machine.
    """
    # Ray prints what its processes log as they end, in their own words; it stands in their logs as well.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    if own_ray:
        # Ray takes the machine's own address even where 127.0.0.1 is asked for, unless clusters are switched off, as
        # they are on Windows and macOS (`ray._private.services.get_node_ip_address`).
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def check_surroundings() -> None:
    """Refuse to start where Ray or the engines would fail later with a message that blames something else.

    Raises:
        LabError: the home directory cannot be written, or the address space is limited.
    """
    home = os.path.expanduser("~")
    if "RAY_AUTH_TOKEN_PATH" not in os.environ and not os.access(home, os.W_OK | os.X_OK):
        raise LabError(
            f"the home directory {home} is not there or cannot be written, and Ray keeps its token there: set HOME to "
            "a folder that can be written"
        )
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise LabError(
            f"this shell limits the address space to {limit / 2**30:.1f} GiB, in which the engines do not start: "
            "`ulimit -v unlimited` lifts that"
        )
