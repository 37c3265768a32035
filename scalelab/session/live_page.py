"""Serve the page of a run beside it, in a process of its own that ends with the run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scalelab.store.manifest import MANIFEST
from scalelab.terminal import shell_path

LOOK_SECONDS = 0.5
"""Seconds between two looks at the run's folder."""

START_SECONDS = 60.0
"""Time that the page's process may take to say its address before it is killed."""

END_SECONDS = 10.0
"""Time that the page's process may take to end before it is killed."""


@contextmanager
def live_page(path: Path, say: Callable[[str], None], serve: bool) -> Iterator[None]:
    """Say the address of a run's page once the run has written its manifest, and serve the page until the block ends.

    The page is a convenience: where it cannot be served, the run goes on, and the command that shows it is said.

    Args:
        path: the run's folder, which need not be there yet.
        say: prints a line.
        serve: whether somebody is there to look at it; otherwise nothing is started, and the command is said alone.
    """
    ended = threading.Event()
    before = _written(path)  # the folder may hold a manifest already: of the run to resume, or of another run
    page = threading.Thread(target=_serve, args=(path, before, say, serve, ended), name="live page", daemon=True)
    page.start()
    try:
        yield
    finally:
        ended.set()
        page.join(2 * END_SECONDS)


def _written(path: Path) -> int | None:
    """Time at which the manifest was written; None if there is none."""
    try:
        return (path / MANIFEST).stat().st_mtime_ns
    except OSError:
        return None


def _serve(path: Path, before: int | None, say: Callable[[str], None], serve: bool, ended: threading.Event) -> None:
    while _written(path) == before:
        if ended.wait(LOOK_SECONDS):
            return
    shown = f"scalelab view {shell_path(path)}"
    if not serve:
        say(f"live page: {shown}")
        return
    # The server ends when its standard input does: also when this process is killed.
    command = [sys.executable, "-m", "scalelab", "view", str(path), "--port", "0", "--until-input-ends"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is the run's
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        patience = threading.Timer(START_SECONDS, server.kill)
        patience.start()
        address = server.stdout.readline().strip()
        patience.cancel()
        say(f"live page: {address or shown}")
        ended.wait()
        server.stdin.close()
        try:
            server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
