"""The live server: read-only, loopback or token, nothing but the runs, everything as data."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from scalelab.curves import Options, curve
from scalelab.errors import LabError
from scalelab.kept import Kept
from scalelab.reading import Reading
from scalelab.store.status_file import StatusFile
from scalelab.view import server
from scalelab.view.discover import RunSource
from scalelab.view.fitting import FittingProcess
from scalelab.view.lab import Lab, Step
from scalelab.view.now import now
from scalelab.view.page import SCRIPTS
from scalelab.view.run import ViewedRun
from scalelab.view.server import Refresher, Stage, make_app, new_token
from tests.helpers.crash_points import in_process
from tests.helpers.view_runs import HOSTILE, made_run


@pytest.fixture(scope="module")
def refresher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refresher]:
    folder = tmp_path_factory.mktemp("server")
    made_run(folder / "run")
    made_run(folder / "hostile", loss="other", text=HOSTILE)
    refresher = Refresher(Lab([folder], kept=Kept(None)))
    refresher.start()
    yield refresher
    refresher.stop()


@pytest.fixture(scope="module")
def client(refresher: Refresher) -> TestClient:
    return TestClient(make_app(refresher), base_url="http://127.0.0.1:8765")


def whole(client: TestClient) -> dict:
    """The overview once all fits are made."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        overview = client.get("/api/overview").json()
        if overview["stage"] is None and overview["answers"]:
            return overview
        time.sleep(0.1)
    raise AssertionError("the fits took more than a minute")


def test_the_measured_rates_are_told_before_anything_is_fitted(refresher: Refresher) -> None:
    """The first sentence needs no fit: a lab whose process that fits is closed gives it, too."""
    lab = Lab(refresher.lab.sources, kept=Kept(None))
    refresher = Refresher(lab)
    refresher.fitting.close()
    lab.update()
    overview = lab.overview(fit=False)
    assert overview["pending"] == 7  # four fits, a comparison of both tasks, two tests of parallel tasks
    assert [one["text"].partition(":")[0] for one in overview["answers"]] == ["Measured so far (1 GPU-hours)"] * 2
    assert overview["comparisons"] == []


def test_points_and_tables_are_sent_for_the_recipes_that_are_drawn(client: TestClient) -> None:
    overview = whole(client)
    assert len(overview["fits"]) == 4
    assert "table" not in overview["fits"][0]
    found = client.get("/api/curves", params={"groups": "1,7,x"}).json()
    [(name, data)] = found.items()
    assert name == overview["groups"][1]["name"]
    assert data["stamp"] == overview["stamps"][name]
    assert {points["group"] for points in data["points"]} == {name}
    assert set(data["tables"]) == {"math", "code"}


def test_two_recipes_and_runs_pooled_by_hand_are_held_against_each_other(client: TestClient) -> None:
    whole(client)
    found = client.get("/api/pair", params={"first": "r0", "second": "r1"}).json()
    assert {one["task"] for one in found["tasks"]} == {"math", "code"}
    for one in found["tasks"]:
        assert [row["run"] for row in one["rows"]] == found["names"]
        assert one["rows"][1]["short_cells"][-1] == "baseline"
        assert one["rows"][0]["verdict"] in ("better", "worse", "equal", "unstable", "cannot tell")
    assert set(found["curves"]) == set(found["names"])
    assert client.get("/api/pair", params={"first": "r0", "second": "r0"}).status_code == 404
    common = client.get("/api/between", params={"first": "r0", "second": "r1"}).json()
    gaps = [abs(row["first"][0] / row["first"][1] - row["second"][0] / row["second"][1]) for row in common["rows"]]
    assert gaps == sorted(gaps, reverse=True)


def test_two_runs_without_a_fit_stand_side_by_side(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        made_run(tmp_path / name, rollouts=False, evaluations=2, loss=name, seed=seed)
    lab = Lab([tmp_path], kept=Kept(None))
    lab.update()
    refresher = Refresher(lab)
    client = TestClient(make_app(refresher), base_url="http://127.0.0.1:8765")
    found = client.get("/api/pair", params={"first": "r0", "second": "r1"})
    refresher.fitting.close()
    assert found.status_code == 200
    assert found.json()["tasks"] == []
    assert [len(curve["points"]) for curve in found.json()["curves"].values()] == [2, 2]


def test_the_time_left_is_that_of_the_work_left(refresher: Refresher) -> None:
    curve = refresher.lab.curves[0]
    steps = [*(Step("fit", [curve]) for _ in range(8)), Step("compare", [curve] * 8)]
    assert Stage.of(steps, 2, 1.0).left is None
    assert Stage.of(steps, 4, 8.0) == Stage("fitting", 4, 9, round(2.0 * (4 + steps[-1].weight), 1))
    assert Stage.of(steps, 9, 8.0).left == 0


def kill(fitting: FittingProcess) -> None:
    assert fitting._process is not None
    fitting._process.kill()
    fitting._process.join()


def test_a_lost_process_is_said_and_begun_anew(tmp_path: Path) -> None:
    made_run(tmp_path / "run", rollouts=False, tasks=("math",))
    lab = Lab([tmp_path], kept=Kept(None))
    lab.update()
    fitting = FittingProcess(lab.options)
    try:
        assert fitting.ask("fit", lab.curves)["n_points"]
        kill(fitting)
        with pytest.raises(LabError, match="the process that fits ended"):
            fitting.ask("fit", lab.curves)
        assert fitting.ask("fit", lab.curves)["n_points"]
    finally:
        fitting.close()


def test_a_process_that_is_killed_before_it_answers_is_begun_anew_every_time(tmp_path: Path) -> None:
    made_run(tmp_path / "run", rollouts=False, tasks=("math",))
    lab = Lab([tmp_path], kept=Kept(None))
    lab.update()
    fitting = FittingProcess(lab.options)
    try:
        for _ in range(3):
            fitting._begun()
            kill(fitting)
            with pytest.raises(LabError, match="ended with code -9; too little memory"):
                fitting.ask("fit", lab.curves)
        assert fitting.ask("fit", lab.curves)["n_points"]
    finally:
        fitting.close()


def with_end(fitting: FittingProcess, answers: Sequence[object] = (), *, gone: bool) -> Connection:
    """Put a process that gives these answers in the place of the real one; the other end of its pipe."""
    ours, theirs = Pipe()
    for answer in answers:
        theirs.send(answer)
    fitting._connection = ours
    process: Any = SimpleNamespace(exitcode=1 if gone else None, join=lambda seconds: None, kill=lambda: None)
    fitting._process = process
    if gone:
        theirs.close()
    return theirs


def test_a_process_that_has_answered_is_begun_anew_whatever_ends_it() -> None:
    item, fitting = curve([0.0, 1.0], [0.1, 0.2]), FittingProcess(Options())
    theirs = with_end(fitting, [({"n_points": 2}, None)], gone=False)
    assert fitting.ask("fit", [item]) == {"n_points": 2}
    theirs.close()
    for _ in range(4):
        with_end(fitting, gone=True)
        with pytest.raises(LabError, match="ended with code 1"):
            fitting.ask("fit", [item])


def test_who_asks_sees_at_once_that_the_process_is_closed() -> None:
    fitting = FittingProcess(Options())
    theirs = with_end(fitting, gone=False)
    threading.Timer(0.3, fitting.close).start()
    with pytest.raises(LabError, match="no answer"):
        fitting.ask("fit", [curve([0.0, 1.0], [0.1, 0.2])])
    theirs.close()


UNGUARDED = """
from pathlib import Path
from scalelab.errors import LabError
from scalelab.kept import Kept
from scalelab.view.fitting import FittingProcess
from scalelab.view.lab import Lab

lab = Lab([Path({folder!r})], kept=Kept(None))
lab.update()
fitting = FittingProcess(lab.options)
for _ in range(4):
    try:
        fitting.ask("fit", lab.curves)
    except LabError as error:
        print(error)
"""


def test_a_script_without_a_main_guard_is_told_of_it_and_not_begun_again_and_again(tmp_path: Path) -> None:
    made_run(tmp_path / "run", rollouts=False, tasks=("math",))
    script = tmp_path / "page.py"
    script.write_text(UNGUARDED.format(folder=str(tmp_path / "run")))
    done = in_process(str(script))
    said = [line for line in done.stdout.splitlines() if "the process that fits" in line]
    assert ["ended with code 1" in line for line in said] == [True, True, False, False]
    assert all('needs if __name__ == "__main__":' in line for line in said[2:])
    assert done.stderr.count("bootstrapping phase") == 2


def test_what_did_not_change_is_not_sent_again(client: TestClient) -> None:
    whole(client)
    tag = client.get("/api/overview").headers["etag"]
    again = client.get("/api/overview", headers={"if-none-match": tag})
    assert again.status_code == 304
    assert again.content == b""


def test_every_question_is_answered_in_strict_json(client: TestClient) -> None:
    for run in whole(client)["runs"]:
        row = client.get(f"/api/completions/{run['id']}", params={"limit": "3"}).json()["rows"][0]
        asked = {"row": row["id"], "task": row["task"], "prompt": row["prompt_id"]}
        for question in ("run", "now", "steps", "prompts", "completion", "prompt", "completions"):
            answer = client.get(f"/api/{question}/{run['id']}", params=asked)
            assert answer.status_code == 200, question
            json.loads(answer.content, parse_constant=_refuse)


def test_a_run_that_goes_on_tells_what_every_actor_does_and_an_ended_one_nothing(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rollouts=False, status="running")
    StatusFile(folder).write("RL", actors=[ACTOR, "nonsense", {"name": 7, "seconds": 1e400}], stragglers=["who"] * 99)
    run = ViewedRun(RunSource("r0", folder, "run", "run", True), Reading(), clock=lambda: time.time() + 3)
    run.update()
    found = run.now()
    assert found is not None
    assert found["actors"][0] == {
        **{"name": "generator 1", "doing": "generating 7 completions", "seconds": 65.0, "silent": 2.0, "version": 3.0},
        "process": "12 on there",
    }
    assert found["actors"][1:] == [dict.fromkeys(("seconds", "silent", "version")) | EMPTY]
    assert (found["gone"], found["doing"], len(found["stragglers"])) == (False, "RL", 50)
    assert 3 <= found["age"] < 60
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}))
    run.update()
    assert run.now() is None


EMPTY = {"name": "", "doing": "", "process": ""}
ACTOR = {"name": "generator 1", "doing": "generating 7 completions", "seconds": 65.0, "silent": 2.0, "version": 3}
ACTOR |= {"node": "there", "pid": 12}


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"actors": 7, "time": "x", "waits": [[], {}]}'])
def test_a_status_that_is_nonsense_breaks_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    found = now(tmp_path, time.time())
    assert found is None or (found["gone"], found["actors"], found["waits"]) == (False, [], ["", ""])


def _refuse(constant: str) -> None:
    raise AssertionError(f"not strict JSON: {constant}")


@pytest.mark.parametrize(
    "address",
    [
        "/api/run/r99", "/api/run/..%2f..%2fetc", "/static/../server.py", "/static/%2e%2e/server.py", "/static/x.py",
        "/static/__init__.py", "/etc/passwd", "/api/completion/r0?row=../../manifest.json", "/api/nothing",
    ],
)  # fmt: skip
def test_nothing_else_is_opened(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/overview").status_code == 405
    assert client.request(method, "/").status_code == 405


def test_pages_carry_a_policy_that_lets_no_foreign_script_run(client: TestClient) -> None:
    answer = client.get("/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "onerror" not in answer.text.replace("&lt;img src=x onerror", "")
    for name in SCRIPTS:
        assert client.get(f"/static/{name}").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:8765"])
def test_a_foreign_host_name_is_refused(client: TestClient, host: str) -> None:
    """A website that points its own name at 127.0.0.1 reads nothing."""
    assert client.get("/api/overview", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765"])
def test_loopback_names_are_served(client: TestClient, host: str) -> None:
    assert client.get("/api/overview", headers={"host": host}).status_code == 200


def test_an_address_needs_its_token(refresher: Refresher) -> None:
    token = new_token("0.0.0.0")
    assert token is not None
    assert new_token("127.0.0.1") is None
    open_client = TestClient(make_app(refresher, token), base_url="http://10.0.0.7:8765", follow_redirects=False)
    assert open_client.get("/").status_code == 403
    assert open_client.get("/api/overview?token=wrong").status_code == 403
    assert open_client.get("/static/core.js").status_code == 403
    answer = open_client.get(f"/?token={token}")
    assert answer.status_code == 303
    assert "token" not in answer.headers["location"]
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert open_client.get("/").status_code == 200
    assert open_client.get("/api/overview").status_code == 200


def test_runs_are_looked_at_for_a_while_after_a_question_and_then_not_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path / "run", evaluations=2, rollouts=False)
    lab, looks = Lab([tmp_path], kept=Kept(None)), [0.0]
    monkeypatch.setattr(server, "POLL", 0.01)
    monkeypatch.setattr(server, "WATCHED", 0.5)
    monkeypatch.setattr(lab, "update", lambda _: looks.append(time.monotonic()))
    monkeypatch.setattr(lab, "steps", list)

    def wait_until(reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    refresher = Refresher(lab)
    refresher.start()
    try:
        for _ in range(2):
            wait_until(lambda: len(looks) > 3)
            wait_until(lambda: time.monotonic() - looks[-1] > 1)
            del looks[1:]
            refresher.overview()
    finally:
        refresher.stop()


@pytest.mark.slow
def test_a_new_run_and_new_evaluations_appear(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "runs" / "one", rollouts=False)
    refresher = Refresher(Lab([tmp_path / "runs"], kept=Kept(None)))
    refresher.start()
    try:
        client = TestClient(make_app(refresher), base_url="http://127.0.0.1")
        whole(client)
        made_run(tmp_path / "runs" / "two", loss="other", rollouts=False)
        with open(folder / "evals.jsonl", "a") as file:
            line = {"step": 160, "compute": 1.1, "compute_unit": "GPU-hours", "task": "math", "pass_rate": 0.7}
            file.write(json.dumps(line | {"stderr": 0.01}) + "\n")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            overview = whole(client)
            counts = [points["n_points"] for points in overview["fits"]]
            if len(overview["runs"]) == 2 and max(counts) == 17:
                break
            time.sleep(0.2)
        assert len(overview["runs"]) == 2
        assert max(counts) == 17
    finally:
        refresher.stop()
