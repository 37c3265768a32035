"""Alerts by webhook and mail: real servers on the loopback address, hostile texts, servers that hang or refuse."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from email import message_from_string
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from scalelab.errors import LabError
from scalelab.watch import alerts
from scalelab.watch.alerts import EVERY, MOST, Alerts, to_mail, to_webhook
from scalelab.watch.trackers import check_trackers


class Hook(BaseHTTPRequestHandler):
    """A webhook that keeps what it gets; it refuses as often as `server.refuse` says."""

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.server.refuse:  # type: ignore[attr-defined]
            self.server.refuse -= 1  # type: ignore[attr-defined]
            self.send_error(503)
            return
        self.server.got.append(json.loads(content))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Post(socketserver.StreamRequestHandler):
    """A mail server that takes one message."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper().strip()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = []
                while (part := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(part)
                self.server.got.append(b"".join(lines).decode())  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def serve(server: Any) -> Iterator[Any]:
    server.got, server.refuse, server.daemon_threads = [], 0, True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def hook() -> Iterator[Any]:
    yield from serve(HTTPServer(("127.0.0.1", 0), Hook))


@pytest.fixture
def post() -> Iterator[Any]:
    yield from serve(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post))


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/secret-part"


def told(server: Any, clock: Callable[[], float] = lambda: 0.0) -> Alerts:
    return Alerts("study/a", to_webhook(address(server)), clock=clock, sleep=lambda seconds: None)


def test_an_alarm_and_the_end_are_told_in_slack_s_format(hook: Any) -> None:
    alert = told(hook)
    alert.numbers(1, {"loss": 1.0})
    alert.alarm(7, "truncated", "12 % are cut: <!channel> & <http://evil|click>\x1b[31m")
    alert.close("finished")
    first, last = (one["text"] for one in hook.got)
    assert first.startswith("*study/a: truncated at step 7*\n12 % are cut: &lt;!channel&gt; &amp; ")
    assert "\x1b" not in first
    assert last == "*study/a: finished*\nThe run is over: finished."


def test_an_alarm_of_one_kind_is_told_once_in_a_while_and_no_run_tells_without_end(hook: Any) -> None:
    now = [0.0]
    alert = told(hook, clock=lambda: now[0])
    for step in range(5):
        alert.alarm(step, "entropy", "low")
    assert len(hook.got) == 1
    for step in range(2 * MOST):
        now[0] += EVERY
        alert.alarm(step, "entropy", "low")
    alert.close("finished")
    assert len(hook.got) == MOST + 1


def test_what_was_not_taken_is_sent_later_and_at_the_end_refusals_are_said_without_the_address(hook: Any) -> None:
    hook.refuse = 1
    alert = told(hook)
    alert.alarm(1, "gap", "one")
    assert hook.got == []
    alert.alarm(2, "entropy", "two")
    assert len(hook.got) == 2
    hook.refuse = 99
    with pytest.raises(LabError, match="1 alerts were not taken: 503") as refusal:
        alert.close("failed")
    assert "secret" not in str(refusal.value)


def test_a_server_that_says_nothing_costs_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "DEADLINE", 0.05)
    server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler, bind_and_activate=False)
    server.server_bind()
    server.server_activate()  # it listens and never accepts
    try:
        with pytest.raises(LabError, match="not taken"):
            told(server).close("finished")
    finally:
        server.server_close()


def test_mail_is_sent_to_everybody_and_no_text_makes_a_header(post: Any) -> None:
    send = to_mail("a@example.org, b@example.org", f"127.0.0.1:{post.server_address[1]}")
    Alerts("run\r\nBcc: c@evil.example", send).alarm(3, "gap", "first\nsecond")
    message = message_from_string(post.got[0], policy=default)
    assert message["To"] == "a@example.org, b@example.org"
    assert message["Subject"].endswith("gap at step 3")
    assert message["Bcc"] is None
    assert message.get_content().split() == ["first", "second"]


def test_what_the_environment_lacks_is_said_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCALELAB_WEBHOOK", "SCALELAB_MAIL_TO"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LabError, match="SCALELAB_WEBHOOK"):
        check_trackers(["webhook"])
    with pytest.raises(LabError, match="SCALELAB_MAIL_TO"):
        check_trackers(["mail"])
    monkeypatch.setenv("SCALELAB_WEBHOOK", "file:///etc/passwd")
    with pytest.raises(LabError, match="https://") as refusal:
        check_trackers(["webhook"])
    assert "passwd" not in str(refusal.value)
    monkeypatch.setenv("SCALELAB_WEBHOOK", "https://hooks.example/T/B/x")
    monkeypatch.setenv("SCALELAB_MAIL_TO", "a@example.org")
    check_trackers(["webhook", "mail"])
