"""Processor time by role: what a process takes counts for the actor that started it, and nothing counts twice."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from scalelab.session.processor_time import DRIVER, REST, role_of, seconds_by_role

BURN = "import time\nwhile time.process_time() < 0.6: pass\nprint('done', flush=True)\ninput()"
ACTOR = "import setproctitle, subprocess, sys; setproctitle.setproctitle('ray::EngineActor.poll'); "


def test_a_process_has_the_role_of_the_nearest_above_it() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 3, 5: 2, 6: 1}
    titles = {1: "", 2: "raylet", 3: "ray::EngineActor.generate", 4: "python", 5: "ray::TrainerRank", 6: "gcs_server"}
    roles = {pid: role_of(pid, parents, titles) for pid in parents}
    assert roles == {1: REST, 2: REST, 3: "generators", 4: "generators", 5: "trainer", 6: REST}


@pytest.mark.timeout(60)
def test_the_time_of_a_child_is_its_roles_and_all_together_is_what_the_machine_says() -> None:
    before = seconds_by_role()
    nested = ACTOR + f"sys.exit(subprocess.run([sys.executable, '-c', {BURN!r}]).returncode)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    actor = subprocess.Popen([sys.executable, "-c", nested], **pipes)  # type: ignore[call-overload]
    plain = subprocess.Popen([sys.executable, "-c", BURN], **pipes)  # type: ignore[call-overload]
    assert [one.stdout.readline() for one in (actor, plain)] == ["done\n"] * 2
    own = time.process_time()
    while time.process_time() < own + 0.3:
        pass
    now = seconds_by_role()
    spent = {role: now[role] - before.get(role, 0.0) for role in now}
    assert spent["generators"] == pytest.approx(0.7, abs=0.3)
    assert spent[REST] == pytest.approx(0.65, abs=0.3)
    assert spent[DRIVER] > 0.25
    for one in (actor, plain):
        one.communicate("\n")
    times = psutil.Process().cpu_times()
    after = seconds_by_role()
    assert after.get("generators", 0.0) == 0.0, "an ended process's time is its parent's"
    assert after[DRIVER] == pytest.approx(
        times.user + times.system + times.children_user + times.children_system, abs=0.2
    )
