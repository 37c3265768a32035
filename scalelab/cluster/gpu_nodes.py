"""Check of all nodes with GPUs before an actor starts on one."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scalelab.environment import import_path
from scalelab.errors import LabError
from scalelab.gpu_driver import look_here
from scalelab.waiting import wait_for

NAMED = 3
"""Nodes with one version of the driver that a warning names."""


def check_gpu_nodes(packages: Mapping[str, str], seconds: float, say: Callable[[str], None]) -> float | None:
    """Refuse nodes that others cannot reach, that lack a package, or whose torch or driver cannot use their GPUs.

    Args:
        packages: modules that the run needs, with the setting that needs each.
        seconds: deadline of all answers.
        say: takes a line for people, about drivers that differ.

    Returns:
        GiB of the smallest GPU; None if no node could ask its driver.

    Raises:
        LabError: naming the first such node, why, and how many there are.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    if problem := unreachable([node["NodeManagerAddress"] for node in alive]):
        raise LabError(problem)
    nodes = [node for node in alive if node["Resources"].get("GPU", 0) >= 1]
    asked = [
        ray.remote(look_here)
        .options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            runtime_env={"env_vars": import_path()},
        )
        .remote(dict(packages))
        for node in nodes
    ]
    answers = wait_for(asked, seconds, f"{len(nodes)} nodes to look at their NVIDIA drivers")
    found = list(zip(nodes, answers, strict=True))
    wrong = [(node["NodeManagerAddress"], problem) for node, (problem, *_) in found if problem]
    if wrong:
        address, problem = wrong[0]
        more = f" (and {len(wrong) - 1} more of {len(nodes)} nodes)" if len(wrong) > 1 else ""
        raise LabError(f"node {address}{more}: {problem}")
    if warning := differing_drivers((node["NodeManagerAddress"], driver) for node, (*_, driver) in found):
        say(warning)
    return min((memory for _, (_, memory, _) in found if memory is not None), default=None)


def unreachable(addresses: Sequence[str]) -> str | None:
    """Say that a node among others is known by a loopback, at which they find themselves; None if there is none.

    Ray takes it where no route leads outside and a host calls itself 127.0.1.1, as on Debian; the node joins all the
    same. Where all have one, they are on one machine.
    """
    own = [one for one in addresses if ipaddress.ip_address(one).is_loopback]
    if len(own) in (0, len(addresses)):
        return None
    return (
        f"a node of the Ray cluster is known by {own[0]}, at which the other {len(addresses) - 1} do not find it: "
        "start it again with --node-ip-address"
    )


def differing_drivers(nodes: Iterable[tuple[str, str | None]]) -> str | None:
    """Say that nodes have different NVIDIA drivers, all new enough; None where all that show theirs have one.

    Args:
        nodes: address of each, and the version of its driver.
    """
    having: dict[str, list[str]] = {}
    for address, version in nodes:
        if version is not None:
            having.setdefault(version, []).append(address)
    if len(having) < 2:
        return None
    listed = [
        f"{version} on {', '.join(named[:NAMED])}" + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
        for version, named in sorted(having.items())
    ]
    return f"nodes differ in their NVIDIA drivers: {'; '.join(listed)}. If only some of them fail, make them alike"
