"""Every role has its own environment, whatever its node has; engines' memory can be handed to other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from scalelab.environment import ALLOCATOR, environment

SOURCE = """
import json, os, psutil
from scalelab.cluster.surroundings import settle
settle(own_ray=True)
import ray
from scalelab.cluster.actors import actor_class, end_ray, start_ray
from scalelab.cluster.heartbeats import Beating
from scalelab.run.config import Cluster

class Seeing(Beating):
    def seen(self):
        return dict(os.environ)

start_ray(Cluster())
actors = {role: actor_class(Seeing, role, Cluster()).remote() for role in ("trainer", "engine", "verifier")}
seen = {role: ray.get(actor.seen.remote(), timeout=600) for role, actor in actors.items()}
idle = [one for one in psutil.Process().children(recursive=True) if one.cmdline()[:1] == ["ray::IDLE"]]
print(json.dumps([seen, len(idle)]))
end_ray()
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_an_engine_has_plain_segments_where_its_node_asks_for_expandable_ones() -> None:
    node = os.environ | dict.fromkeys(ALLOCATOR, "expandable_segments:True")
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, timeout=900, env=node)
    seen, idle = json.loads(done.stdout)
    assert idle == 0, "a process that waits for work costs a start a second of a core"
    for role, wanted in (("trainer", "True"), ("engine", "False")):
        assert [seen[role][name] for name in ALLOCATOR] == [f"expandable_segments:{wanted}"] * 2, done.stderr
    for role, there in seen.items():
        assert environment(role).items() <= there.items()


def test_only_a_trainer_asks_for_expandable_segments() -> None:
    assert all("True" in environment("trainer")[name] for name in ALLOCATOR)
    assert all("False" in environment("engine")[name] for name in ALLOCATOR)
    assert not any(name in environment("verifier") for name in ALLOCATOR)


def test_a_grader_sees_no_gpu_and_the_others_those_that_ray_gives_them() -> None:
    """Ray shows all of a node's to an actor that holds none (`tests/rehearse/test_cluster.py` asks Ray itself)."""
    assert environment("verifier")["CUDA_VISIBLE_DEVICES"] == ""
    assert not any("CUDA_VISIBLE_DEVICES" in environment(role) for role in ("trainer", "engine"))


def test_an_engine_compiles_no_sampler_of_which_it_has_no_use() -> None:
    """FlashInfer's, which vLLM 0.32.0 builds from its sources when an engine starts on an H200."""
    found = subprocess.run(
        [sys.executable, "-c", "from vllm import envs; print(envs.VLLM_USE_FLASHINFER_SAMPLER)"],
        env=os.environ | environment("engine"),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert found.stdout.split()[-1] == "False"
