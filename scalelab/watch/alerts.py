"""Alerts as trackers: a webhook in Slack's format, and mail. They tell of alarms and of the run's end.

Where they go is said by the environment, so that no address or password is in a run's folder:

- `webhook`: `SCALELAB_WEBHOOK`, the address that Slack (or Mattermost, Discord with `/slack`, …) gives.
- `mail`: `SCALELAB_MAIL_TO`, addresses with commas between; `SCALELAB_SMTP`, the server, by default `localhost:25`;
  `SCALELAB_SMTP_USER` and `SCALELAB_SMTP_PASSWORD`, with which the connection is encrypted.

Every message has a deadline. One that is not taken waits for the next, and for three tries at the end.
"""

from __future__ import annotations

import json
import os
import smtplib
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from http.client import HTTPException
from typing import Any, Protocol

from scalelab.errors import LabError
from scalelab.terminal import plain_text

WEBHOOK, MAIL_TO, SMTP = "SCALELAB_WEBHOOK", "SCALELAB_MAIL_TO", "SCALELAB_SMTP"
USER, PASSWORD = "SCALELAB_SMTP_USER", "SCALELAB_SMTP_PASSWORD"

DEADLINE = 10.0
"""Seconds for one message."""

MOST, EVERY = 50, 600.0
"""Messages of a run, and seconds in which an alarm of one kind is told once."""

LONGEST = 2000
"""Characters of a message."""

TRIES, PAUSE = 3, 3.0
"""Tries of the last message, and seconds between them."""

REFUSALS = (OSError, ValueError, HTTPException, smtplib.SMTPException)


class Channel(Protocol):
    """A way to people."""

    def __call__(self, subject: str, text: str) -> None:
        """Send a message within `DEADLINE`, or raise one of `REFUSALS`."""


class Alerts:
    """A tracker that tells people of alarms and of the end.

    Args:
        name: of the run.
        send: the way to people.
        clock: seconds that never go back.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        name: str,
        send: Channel,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name, self._send, self._clock, self._sleep = name, send, clock, sleep
        self._said: dict[str, float] = {}
        self._waiting: list[tuple[str, str]] = []
        self._sent = 0

    def numbers(self, step: int, values: Any) -> None:
        """Drop numbers: they are for charts."""

    def completions(self, step: int, rows: Any) -> None:
        """Drop completions: they are for the page."""

    def go_back(self, step: int) -> None:
        """Tell that steps are undone."""
        self.alarm(step, "return", f"the run went back to step {step}")

    def alarm(self, step: int, name: str, text: str) -> None:
        """Tell of an alarm; one of the same kind is told once in ten minutes."""
        now = self._clock()
        if now - self._said.get(name, -EVERY) < EVERY or self._sent + len(self._waiting) >= MOST:
            return
        self._said[name] = now
        self._waiting.append((f"{self._name}: {name} at step {step}", text))
        self._flush()

    def close(self, status: str) -> None:
        """Tell how the run ended.

        Raises:
            LabError: messages were not taken.
        """
        self._waiting.append((f"{self._name}: {status}", f"The run is over: {status}."))
        for attempt in range(TRIES):
            if attempt:
                self._sleep(PAUSE)
            refusal = self._flush()
            if refusal is None:
                return
        raise LabError(f"{len(self._waiting)} alerts were not taken: {refusal}")

    def _flush(self) -> str | None:
        """Send what waits; the reason if something is left."""
        while self._waiting:
            subject, text = (plain_text(part, lines=True)[:LONGEST] for part in self._waiting[0])
            try:
                self._send(" ".join(subject.split()), text)
            except REFUSALS as error:
                reason = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
                return str(reason)  # without its text, which may hold the address
            self._sent += 1
            del self._waiting[0]
        return None


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follow no redirection: the message is for the address that was given."""

    def redirect_request(self, *_: Any) -> None:
        return None


def to_webhook(address: str) -> Channel:
    """Send to a webhook in Slack's format, `{"text": …}`.

    Raises:
        LabError: the address is none of http or https.
    """
    if not address.startswith(("https://", "http://")):
        raise LabError(f"{WEBHOOK} holds no address that begins with https://")
    opener = urllib.request.build_opener(_Stay)

    def send(subject: str, text: str) -> None:
        words = f"*{subject}*\n{text}"
        for sign, meant in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # else Slack reads links and calls
            words = words.replace(sign, meant)
        content = json.dumps({"text": words}).encode()
        request = urllib.request.Request(address, content, {"content-type": "application/json"})
        with opener.open(request, timeout=DEADLINE) as answer:
            answer.read(1000)

    return send


def to_mail(to: str, server: str, user: str = "", password: str = "") -> Channel:
    """Send by SMTP.

    Args:
        to: addresses, with commas between.
        server: `host` or `host:port`.
        user: name at the server; with one, the connection is encrypted by STARTTLS, or from the start on port 465.
        password: of the user.

    Raises:
        LabError: an address or the port makes no sense.
    """
    host, _, port = server.partition(":")
    if not host or not (port or "25").isdecimal():
        raise LabError(f"{SMTP} is no server: give it as host:port")
    receivers = [one.strip() for one in to.split(",") if one.strip()]
    if not receivers or any("@" not in one or not one.isprintable() for one in receivers):
        raise LabError(f"{MAIL_TO} holds no mail addresses with commas between")

    def send(subject: str, text: str) -> None:
        message = EmailMessage()
        message["Subject"], message["To"] = subject[:200], ", ".join(receivers)
        message["From"] = user if "@" in user else f"scalelab@{socket.gethostname()}"
        message.set_content(text)
        number, safe = int(port or "25"), ssl.create_default_context()
        first = smtplib.SMTP_SSL(host, number, timeout=DEADLINE, context=safe) if number == 465 else None
        with first or smtplib.SMTP(host, number, timeout=DEADLINE) as connection:
            if user:
                if first is None:
                    connection.starttls(context=safe)
                connection.login(user, password)
            connection.send_message(message)

    return send


def channel(name: str) -> Channel:
    """The way to people that the environment describes.

    Args:
        name: `webhook` or `mail`.

    Raises:
        LabError: the environment says nothing of it, or nothing that makes sense.
    """
    needed = WEBHOOK if name == "webhook" else MAIL_TO
    value = os.environ.get(needed, "").strip()
    if not value:
        what = "the address of the webhook" if name == "webhook" else "mail addresses"
        raise LabError(f"Run.trackers names {name}: put {what} into the environment variable {needed}")
    if name == "webhook":
        return to_webhook(value)
    server = os.environ.get(SMTP, "localhost:25")
    return to_mail(value, server, os.environ.get(USER, ""), os.environ.get(PASSWORD, ""))
