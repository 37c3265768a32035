"""The live page: a small read-only server over the runs it was given, and nothing else.

It answers GET alone, under fixed addresses; runs go by ids, completions by names that the run's own files gave. On a
loopback address no token is needed, but the `Host` header must be a loopback name, so that no website can read the page
through the visitor's browser (DNS rebinding). On any other address every request needs the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scalelab.errors import LabError
from scalelab.view.fitting import FittingProcess
from scalelab.view.lab import Lab, Step
from scalelab.view.page import SCRIPTS, STATIC, page_html
from scalelab.view.pair import between, pair
from scalelab.view.rollouts import Filter

POLL = 1.5
"""Seconds between two looks at the runs' files while somebody watches."""

WATCHED = 60.0
"""Seconds after the last question for which somebody is taken to watch."""

MOST_INDEXED = 500_000
"""Completions that are indexed ahead; those of further runs are when they are looked at."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

COOKIE = "scalelab_token"

MOST_POOLED = 64
"""Runs that may be pooled by hand."""

SOME_FITS = 3.0
"""Fits after which the time left is told."""


@dataclass(frozen=True)
class Stage:
    """Progress of the work on a page.

    Attributes:
        doing: `reading` or `fitting`.
        done: runs read, or pieces of work done.
        total: of so many.
        left: seconds until all is done; None while they cannot be told.
    """

    doing: str
    done: int
    total: int
    left: float | None = None

    @classmethod
    def of(cls, steps: Sequence[Step], done: int, seconds: float) -> Stage:
        """The progress after some of the steps took so many seconds."""
        spent, rest = (sum(step.weight for step in part) for part in (steps[:done], steps[done:]))
        return cls("fitting", done, len(steps), round(seconds / spent * rest, 1) if spent >= SOME_FITS else None)


class Refresher:
    """A thread that keeps the overview of a lab up to date while somebody watches.

    Attributes:
        lab: the runs.
        lock: held while the runs' records change or are read.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.lock = threading.RLock()
        self.fitting = FittingProcess(lab.options)
        lab.judge.elsewhere = self.fitting.ask
        self._asked, self._stop = time.monotonic(), threading.Event()
        self._wake = threading.Event()
        self._overview: dict[str, Any] = {}
        self._published: tuple[str, bytes] = ("", b"")
        self._said = self._looked = 0.0
        self._thread = threading.Thread(target=self._work, name="scalelab-view", daemon=True)

    def start(self) -> None:
        """Begin to read the runs, then to fit."""
        self._publish(self.lab.overview(fit=False), Stage("reading", 0, len(self.lab.runs)))
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """End the thread and the process that fits, so many seconds at most."""
        self._stop.set()
        self._wake.set()
        self.fitting.close()
        self._thread.join(seconds)

    def overview(self) -> tuple[str, bytes]:
        """The newest overview: its tag, and the JSON."""
        self._asked = time.monotonic()
        self._wake.set()
        return self._published

    def _work(self) -> None:
        self._look()
        while not self._stop.is_set():
            self._wake.wait(POLL if time.monotonic() - self._asked < WATCHED else None)
            self._wake.clear()
            if not self._stop.wait(max(POLL, 10 * self._looked)):
                self._look()

    def _look(self) -> None:
        """Read what is new; if there is anything, publish it, and do what is missing."""
        before, first = time.monotonic(), not self.lab.curves
        with self.lock:
            changed = self.lab.update(self._reading if first else None)
        self._looked = time.monotonic() - before
        if changed or self.lab.steps():
            self._bring_up()

    def _reading(self, done: int, total: int) -> None:
        if time.monotonic() - self._said > POLL:
            self._publish(self._overview, Stage("reading", done, total))

    def _bring_up(self) -> None:
        """Make what is missing, and publish as it comes."""
        steps = self.lab.steps()
        self._publish_now(Stage.of(steps, 0, 0.0) if steps else None)
        begun = time.monotonic()
        for done, step in enumerate(steps):
            self.lab.take(step)
            if self._stop.is_set():
                return
            stage = Stage.of(steps, done + 1, time.monotonic() - begun)
            if step.what == "compare":
                self._publish_now(stage)
            elif time.monotonic() - self._said > POLL:
                self._publish(self._overview, stage)  # the progress alone: the page shows fits with their comparison
        self._publish_now(None)
        self._index()

    def _index(self) -> None:
        """Index completions before somebody asks for them, run by run, as far as `MOST_INDEXED` go."""
        rows = 0
        for run in list(self.lab.runs.values()):
            if self._stop.is_set() or rows > MOST_INDEXED:
                return
            with self.lock:
                rows += sum(step["rows"] for step in run.rollouts.steps())

    def _publish_now(self, stage: Stage | None) -> None:
        with self.lock:
            overview = self.lab.overview(fit=False)
        self._publish(overview, stage)

    def _publish(self, overview: dict[str, Any], stage: Stage | None) -> None:
        self._said, self._overview = time.monotonic(), overview
        overview = overview | {"stage": None if stage is None else vars(stage)}
        content = json.dumps(overview, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
        same = json.dumps(overview | {"made": 0}, allow_nan=False).encode()  # the time of writing is no news
        self._published = (f'"{hashlib.sha256(same).hexdigest()[:32]}"', content)


class _Guard:
    """Let a request pass that names a known host and, where one is asked for, the token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._token is None:
            allowed = _is_loopback(request.url.hostname or "")
            refusal = "This page answers to loopback names only."
        else:
            given = request.query_params.get("token") or request.cookies.get(COOKIE) or ""
            allowed = hmac.compare_digest(given.encode(), self._token.encode())
            refusal = "The address needs the token that `scalelab view` printed."
        if not allowed:
            await Response(refusal + "\n", 403, media_type="text/plain")(scope, receive, send)
        elif self._token is not None and request.url.path == "/" and "token" in request.query_params:
            answer = RedirectResponse("/", 303)  # the token leaves the address bar and the history
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_app(refresher: Refresher, token: str | None = None) -> Starlette:
    """The application.

    Args:
        refresher: the runs, started already.
        token: what every request must bring; None asks for a loopback `Host` instead.
    """
    routes = [
        Route("/", lambda _: _answer(page_html(refresher.lab, live=True).encode(), "text/html; charset=utf-8")),
        Route("/static/{name}", _static),
        *(Route(path, _json(refresher, answer)) for path, answer in QUESTIONS.items()),
        Route("/api/overview", _overview(refresher)),
        Route("/api/curves", _json(refresher, _curves)),
        Route("/api/comparison", _json(refresher, _comparison)),
        Route("/api/pair", _json(refresher, _pair, locked=False)),
        Route("/api/between", _json(refresher, _between)),
    ]
    guards = [Middleware(_Guard, token=token), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)]
    return Starlette(routes=routes, middleware=guards)


def new_token(host: str) -> str | None:
    """A token for a server at some address; None for a loopback address."""
    return None if _is_loopback(host) else secrets.token_urlsafe(24)


def _curves(refresher: Refresher, request: Request) -> Any:
    groups = refresher.lab.groups()
    asked = [place for text in request.query_params.get("groups", "").split(",") if (place := _whole(text)) is not None]
    return {groups[place]: refresher.lab.curve_data(groups[place]) for place in asked if place < len(groups)}


def _comparison(refresher: Refresher, request: Request) -> Any:
    return refresher.lab.comparison(request.query_params.get("task", ""))


def _pair(refresher: Refresher, request: Request) -> Any:
    return pair(refresher.lab, *_sides(request))


def _between(refresher: Refresher, request: Request) -> Any:
    return between(refresher.lab, *_sides(request))


def _sides(request: Request) -> tuple[list[str], list[str]]:
    """The ids of runs on the two sides of a pair, so many at most."""
    first, second = (
        list(dict.fromkeys(filter(None, request.query_params.get(name, "").split(","))))[:MOST_POOLED]
        for name in ("first", "second")
    )
    return first, second


def _steps(refresher: Refresher, request: Request) -> Any:
    return _run(refresher, request).rollouts.steps()


def _completions(refresher: Refresher, request: Request) -> Any:
    asked = request.query_params
    wanted = Filter(
        kind=asked.get("kind"),
        step=_whole(asked.get("step")),
        task=asked.get("task"),
        outcome=asked.get("outcome"),
        prompt=asked.get("prompt"),
        text=(asked.get("text") or None) and asked["text"][:200],
    )
    offset, limit = _whole(asked.get("offset")) or 0, min(_whole(asked.get("limit")) or 50, 200)
    return _run(refresher, request).rollouts.rows(wanted, offset, limit)


def _completion(refresher: Refresher, request: Request) -> Any:
    return _run(refresher, request).rollouts.row(request.query_params.get("row", ""))


def _prompt(refresher: Refresher, request: Request) -> Any:
    asked = request.query_params
    return _run(refresher, request).rollouts.prompt(asked.get("task", ""), asked.get("prompt", ""))


def _prompts(refresher: Refresher, request: Request) -> Any:
    asked = request.query_params
    rollouts = _run(refresher, request).rollouts
    return rollouts.prompts(asked.get("task") or None, _whole(asked.get("first")), _whole(asked.get("second")))


def _detail(refresher: Refresher, request: Request) -> Any:
    return _run(refresher, request).detail()


def _now(refresher: Refresher, request: Request) -> Any:
    return _run(refresher, request).now()


QUESTIONS: dict[str, Callable[[Refresher, Request], Any]] = {
    "/api/run/{run}": _detail,
    "/api/now/{run}": _now,
    "/api/steps/{run}": _steps,
    "/api/completions/{run}": _completions,
    "/api/completion/{run}": _completion,
    "/api/prompt/{run}": _prompt,
    "/api/prompts/{run}": _prompts,
}
"""Questions that can be asked about one run."""


def _run(refresher: Refresher, request: Request) -> Any:
    return refresher.lab.run(request.path_params["run"])


def _json(
    refresher: Refresher, answer: Callable[[Refresher, Request], Any], locked: bool = True
) -> Callable[[Request], Response]:
    """A route for one of the questions; Starlette runs it in a thread.

    Args:
        refresher: the runs.
        answer: the question.
        locked: whether to hold the runs still meanwhile; not where fits are made, which takes seconds.
    """

    def respond(request: Request) -> Response:
        try:
            with refresher.lock if locked else nullcontext():
                content = json.dumps(answer(refresher, request), allow_nan=False, ensure_ascii=False)
        except LabError as error:
            return _answer(json.dumps({"error": str(error)}).encode(), "application/json", 404)
        return _answer(content.encode("utf-8", "replace"), "application/json")

    return respond


def _overview(refresher: Refresher) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        tag, content = refresher.overview()
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        answer = _answer(content, "application/json")
        answer.headers["etag"] = tag
        return answer

    return respond


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (*SCRIPTS, "style.css"):
        return Response("not found\n", 404, media_type="text/plain")
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return _answer(resources.files(STATIC).joinpath(name).read_bytes(), f"{kind}; charset=utf-8")


def _answer(content: bytes, kind: str, status: int = 200) -> Response:
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
    return Response(content, status, headers, media_type=kind)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 12 else None
