"""`scalelab status` says what every actor does, names who holds the run up, and never fails on what it reads."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from scalelab.cli import main
from scalelab.cluster import heartbeats
from scalelab.cluster.heartbeats import Beating, Heartbeats, Pulse, stragglers
from scalelab.commands.plan import measured_of
from scalelab.run.coroutines import Changes
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines
from scalelab.store.run_status import LATE, run_status
from scalelab.store.status_file import StatusFile
from tests.helpers.small_runs import write_run

RECORDED = Path(__file__).parents[2] / "scalelab" / "recorded" / "scalerl" / "seed_1"


def line(name: str, doing: str = "train step", seconds: float = 40.0, silent: float = 1.0, **more: Any) -> Any:
    return {"name": name, "doing": doing, "seconds": seconds, "silent": silent, "node": "here", "pid": 7, **more}


@pytest.mark.parametrize(
    ("actors", "named"),
    [
        ([line("a", silent=30.0)], ["a has not answered for 30 s"]),
        ([line("a", "starting", silent=300.0)], []),
        ([line("a", waits=True), line("b", waits=False), line("c", waits=True)], ["b has been at train step for 40 s"]),
        ([line("a", waits=True), line("b", waits=False, seconds=2.0)], []),
        ([line("a", waits=False), line("b", waits=False)], []),
        ([line("a", speed=100.0), line("b", speed=40.0), line("c", speed=110.0)], ["b makes 40 tokens a second"]),
        ([line("a", speed=100.0), line("b", speed=40.0)], []),
    ],
    ids=["silent", "starting", "waited for", "not for long", "all at work", "slow", "too few to tell"],
)
def test_who_holds_a_run_up_is_named_and_nobody_else(actors: list[Any], named: list[str]) -> None:
    found = stragglers(actors)
    assert len(found) == len(named)
    assert all(told.startswith(start) for told, start in zip(found, named))


class Actor:
    """An actor as Ray shows it: `actor.pulse.options(…).remote()` gives what can be awaited."""

    def __init__(self, doing: str | Exception | None) -> None:
        self.doing, self.asked = doing, 0
        self.pulse = self

    def options(self, concurrency_group: str) -> Actor:
        assert concurrency_group == heartbeats.GROUP
        return self

    async def remote(self) -> Pulse:
        self.asked += 1
        if self.doing is None:
            await asyncio.Event().wait()
        if isinstance(self.doing, Exception):
            raise self.doing
        return Pulse(str(self.doing), 1.0, "here", 7)


def test_all_are_asked_and_only_those_that_answered_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "EVERY", 0.01)
    well, stuck, dead, heir = Actor("work"), Actor(None), Actor(ActorDiedError()), Actor("other work")
    actors = {"well": well, "stuck": stuck, "dead": dead}

    async def watch() -> list[dict[str, Any]]:
        beating = Heartbeats(lambda: actors)
        task = asyncio.create_task(beating.serve())
        while well.asked < 5:
            await asyncio.sleep(0.01)
        actors["dead"] = heir
        while heir.asked < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        return beating.lines()

    doing = {one["name"]: one["doing"] for one in asyncio.run(watch())}
    assert doing == {"well": "work", "stuck": "starting", "dead": "other work"}
    assert stuck.asked == 1


def test_more_actors_than_a_round_asks_take_turns_and_are_given_that_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "EVERY", 0.01)
    monkeypatch.setattr(heartbeats, "MOST", 2)
    actors = {f"engine {number}": Actor("work") for number in range(5)}

    async def watch() -> None:
        beating = Heartbeats(lambda: actors)
        task = asyncio.create_task(beating.serve())
        while sum(one.asked for one in actors.values()) < 25:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(watch())
    counts = [one.asked for one in actors.values()]
    assert max(counts) - min(counts) <= 1
    monkeypatch.setattr(heartbeats, "EVERY", 5.0)
    quiet = {"name": "a", "doing": "work", "node": "here", "pid": 1, "waits": False, "seconds": 1.0}
    many = [quiet | {"silent": 1.0} for _ in range(4)]
    assert stragglers([quiet | {"silent": 29.0}, *many]) == []
    assert len(stragglers([quiet | {"silent": 31.0}, *many])) == 1


def test_an_actor_says_what_its_oldest_call_does_and_whether_it_waits_for_others() -> None:
    actor, inside, over = Beating(), threading.Event(), threading.Event()
    assert actor.pulse().doing == "nothing"
    space: dict[str, Any] = {"inside": inside, "over": over}
    exec(compile("def all_reduce():\n    inside.set(); over.wait()", "/x/torch/distributed/x.py", "exec"), space)

    def work() -> None:
        with actor.at("train step"):
            space["all_reduce"]()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    with actor.at("something newer"):
        pulse = actor.pulse()
    over.set()
    thread.join()
    assert (pulse.doing, pulse.waits) == ("train step", True)
    assert actor.pulse().doing == "nothing"


def test_a_wait_is_told_with_its_name_and_its_age() -> None:
    async def look() -> dict[str, float]:
        changes, loop = Changes(), asyncio.get_running_loop()
        waiting = [loop.create_task(changes.until(lambda: False, what)) for what in ("a batch", "a batch", "weights")]
        await asyncio.sleep(0.01)
        waits = changes.waits()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert changes.waits() == {}
        return waits

    waits = asyncio.run(look())
    assert waits.keys() == {"a batch", "weights"}
    assert all(0 < seconds < 60 for seconds in waits.values())


def test_the_file_is_written_now_and_then_and_a_disk_that_refuses_it_ends_nothing(tmp_path: Path) -> None:
    now = [0.0]
    file = StatusFile(tmp_path, lambda: now[0])
    for step in range(10):
        now[0] = float(step)
        file.note("RL", step=step)
    written = json.loads((tmp_path / "status.json").read_text())
    assert (written["step"], written["doing"]) == (5, "RL")
    StatusFile(tmp_path / "nowhere").write("RL")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose manifest says that it goes on."""
    path = write_run(tmp_path / "run", steps=12)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    actors = [line("generator 0", "generating 24 completions", 0.2, version=11), line("trainer rank 0")]
    waits = ["a batch of finished groups, 12 s"]
    StatusFile(path).write("RL", step=12, steps=40, compute=0.5, unit="GPU-hours", actors=actors, waits=waits)
    return path


def test_a_run_that_goes_on_is_told_with_all_its_actors(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run)]) == 0
    told = capsys.readouterr().out
    for part in ("running: RL", "step 12 of 40, 1.5000 GPU-hours", "waits for a batch of finished groups, 12 s"):
        assert part in told
    assert "generator 0     generating 24 completions" in told
    assert main(["status", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["step"], len(found["actors"])) == ("running", 12, 2)


def test_a_run_whose_process_is_gone_is_told_so_wherever_it_ran(run: Path) -> None:
    status = json.loads((run / "status.json").read_text())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for change in ({"pid": ended.pid}, {"started": "1"}, {"node": "elsewhere", "time": time.time() - LATE - 1}):
        (run / "status.json").write_text(json.dumps(status | change))
        assert run_status(run).state == "gone"
        assert audit(run).status == "gone", "`scalelab check` says what `status` says"
    (run / "status.json").write_text(json.dumps(status | {"node": "elsewhere"}))
    assert run_status(run).state == audit(run).status == "running"


@pytest.mark.parametrize(("free", "full"), [(2**30, False), (2**28, True)])
def test_of_a_process_that_is_gone_a_full_disk_is_told_as_what_may_have_ended_it(
    run: Path, free: int, full: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that finds no room for its last line cannot say why it ends."""
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"started": "1"}))
    usage = shutil.disk_usage(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    assert main(["status", str(run)]) == 0
    told = capsys.readouterr().out
    assert "its process is not there any more" in told
    assert (", and its disk has 0.2 GiB free, which may have ended it: free some; `scalelab run" in told) == full


@pytest.mark.parametrize("said", ["running", "finished", "interrupted"])
def test_the_step_that_is_told_is_the_last_that_was_written(
    run: Path, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((run / "manifest.json").read_text()) | {"status": said, "compute_unit": "GPU-hours"}
    (run / "manifest.json").write_text(json.dumps(manifest | {"budget": {"steps": 40, "hours": None}}))
    lines = [json.dumps({"step": step, "compute": step / 20, "time": 9.0 * step}) for step in range(1, 16)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for _ in range(2):
        assert main(["status", str(run)]) == 0
        assert "step 15 of 40, 0.7500 GPU-hours" in capsys.readouterr().out
        (run / "status.json").unlink(missing_ok=True)
    (run / "manifest.json").write_text(json.dumps(manifest | {"compute_unit": {"a": 1}, "budget": None}))
    assert main(["status", str(run)]) == 0
    assert "step 15, 0.7500 units of compute" in capsys.readouterr().out


def test_an_ended_run_is_told_in_spite_of_a_broken_line_and_a_status_that_makes_no_sense(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "status.json").write_text(f'{{"time": 1{"0" * 400}}}')
    for command in ("status", "check"):
        main([command, str(run)])
        assert str(run) in capsys.readouterr().out
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "finished"}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken}\n{}\n")
    assert main(["status", str(run)]) == 0
    assert ": finished" in capsys.readouterr().out


def test_the_pace_of_a_run_is_told_beside_its_plan_and_its_budget(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    more: dict[str, Any] = {"budget": {"steps": 40, "hours": None}, "planned_step_compute": 0.4}
    (run / "manifest.json").write_text(json.dumps(manifest | more))
    starting = [{"step": step, "compute": 5.0 * step, "time": 900.0 * step} for step in range(1, 4)]
    # Half a GPU-hour in three minutes a step, and 2 more for an evaluation after the tenth.
    settled = [
        {"step": step, "compute": 15 + 0.5 * (step - 3) + 2 * (step > 10), "time": 2700.0 + 180 * (step - 3)}
        for step in range(4, 13)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in starting + settled))
    assert main(["status", str(run)]) == 0
    told = capsys.readouterr().out
    assert "a step takes 0.5 GPU-hours in the median, 1.25 times the plan's 0.4" in told
    by_step = (9 * 0.5 + 2) / 9
    assert f"28 steps are left: {28 * by_step:.3g} GPU-hours and {28 * by_step / 0.5 * 0.05:.3g} hours at" in told
    more["budget"]["hours"] = 15 + 6.5 + 1.5
    (run / "manifest.json").write_text(json.dumps(manifest | more))
    assert main(["status", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pace"]["left"] == 3, "the hours end it: 1.5 are left"
    more["budget"]["hour_price"] = 250.0
    (run / "manifest.json").write_text(json.dumps(manifest | more))
    assert main(["status", str(run)]) == 0
    assert f"hours at this pace, evaluations among them, for {3 * by_step * 250:.4g}" in capsys.readouterr().out
    (run / "manifest.json").write_text(json.dumps(manifest | more | {"status": "interrupted", "clock": "virtual"}))
    assert main(["status", str(run)]) == 0
    told = capsys.readouterr().out
    assert "it goes on from its last checkpoint that was due" in told
    assert "are left" not in told, "more are: those behind that checkpoint are done again"


def test_a_run_tells_the_speeds_that_its_steps_measured_beside_the_plan_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED, run)
    manifest = json.loads((run / "manifest.json").read_text())
    assert main(["status", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] is None, "of a run that has ended"
    going = manifest | {"status": "interrupted", "planned_step_compute": 1.0, "budget": {"steps": 40, "hours": None}}
    (run / "manifest.json").write_text(json.dumps(going))
    assert main(["status", str(run), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    expected = measured_of(RECORDED)
    assert measured["training"] == pytest.approx(expected.training)
    assert measured["decoding"] == pytest.approx(expected.decoding)
    lines = read_lines(run / "metrics.jsonl")
    for one in lines:
        one["seconds"]["step"] *= 2
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert main(["status", str(run)]) == 0
    assert f"of this run: training takes {2 * expected.training:.2f} × the assumed time" in capsys.readouterr().out
    (run / "manifest.json").write_text(json.dumps(going | {"planned_step_compute": None}))
    assert main(["status", str(run)]) == 0
    assert "the assumed time" not in capsys.readouterr().out, "of a clock that nothing was assumed for"


def test_of_a_run_that_failed_the_reason_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "failed", "reason": "the disk is full"}))
    fault = {"time": 0.0, "event": "lost", "role": "trainer", "name": "the trainer", "error": "it died"}
    (run / "faults.jsonl").write_text(json.dumps(fault) + "\n")
    assert main(["status", str(run)]) == 0
    told = capsys.readouterr().out
    assert "failed: the disk is full" in told
    assert "1 faults; the last:" in told
    assert "the trainer: it died" in told


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NUMBER = st.floats() | st.integers(-2, 10**400) | ODD
STEPS = st.lists(st.fixed_dictionaries({"step": st.integers(0, 12), "compute": NUMBER, "time": NUMBER}), max_size=12)
MANIFEST = st.fixed_dictionaries(
    {},
    optional={
        "status": ODD | st.just("running"),
        "reason": ODD,
        "budget": st.fixed_dictionaries({"steps": NUMBER, "hours": NUMBER, "hour_price": NUMBER}) | ODD,
        "planned_step_compute": NUMBER,
    },
)
NAMES = ("time", "node", "pid", "started", "doing", "step", "steps", "compute", "waits", "actors", "stragglers")


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(NAMES), ODD) | ODD | st.binary(),
    MANIFEST,
    STEPS,
    st.lists(st.dictionaries(st.sampled_from(("event", "time", "name")), ODD), max_size=2),
)
def test_whatever_the_files_hold_there_is_an_answer(
    tmp_path_factory: pytest.TempPathFactory, status: Any, manifest: Any, metrics: list[Any], faults: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("fuzzed")
    (path / "status.json").write_bytes(status if isinstance(status, bytes) else json.dumps(status).encode())
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    for arguments in (["status", str(path)], ["status", str(path), "--json"]):
        assert main(arguments) in (0, 1)
    shutil.rmtree(path)


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path / "nothing")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
