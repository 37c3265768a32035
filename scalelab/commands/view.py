"""Serve runs as a web page on this machine: the answer, curves, completions and a time line, new with every evaluation.

The page is read-only, and opens no file outside the runs it was given. Without SOURCE it shows `runs/`. SOURCE is as
for `scalelab fit`.

Example:  scalelab view runs/quickstart
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.commands.curve_options import add_fit_arguments, add_reading_arguments, fit_options, reading_from
from scalelab.errors import LabError

if TYPE_CHECKING:
    import uvicorn


PORT = 8765


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="run folders, folders of runs, or files")
    add_reading_arguments(parser)
    add_fit_arguments(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to serve on (default: this machine alone); any other address asks for a token",
    )
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"port (default {PORT}; 0: a free one)")
    parser.add_argument("--until-input-ends", action="store_true", help=argparse.SUPPRESS)  # for `scalelab run`


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from scalelab.view.lab import Lab
    from scalelab.view.server import Refresher, make_app, new_token

    sources = [Path(source) for source in args.sources or ["runs"]]
    if not args.sources and not sources[0].is_dir():
        raise LabError("there is no folder runs/ here: name the runs, such as `scalelab view docs/quickstart`")
    refresher = Refresher(Lab(sources, reading_from(args), fit_options(args)))
    refresher.start()
    token = new_token(args.host)
    listening = _listen(args.host, args.port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""), flush=True)
    if token:
        print(
            "The token goes over plain HTTP: whoever can read the network's traffic can read it and the page. "
            f"In a network that is not yours alone, leave --host out and use `ssh -L {port}:127.0.0.1:{port} MACHINE`.",
            flush=True,
        )
    print("Ctrl-C ends it.", flush=True)
    try:
        import uvicorn

        from scalelab.view.patience import PatientProtocol

        app, quiet = make_app(refresher, token), {"log_level": "warning", "access_log": False}
        server = uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, **quiet))  # type: ignore[arg-type]
        if args.until_input_ends:
            threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
        server.run(sockets=[listening])
    finally:
        refresher.stop()
        listening.close()
    return 0


def _end_with_input(server: uvicorn.Server) -> None:
    """Stop a server when standard input ends, as it does when the process at its other end is gone."""
    sys.stdin.buffer.read()
    server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; a port in use is refused in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(64)
    except OverflowError:
        raise LabError(f"--port {port}: give one between 0 and 65535") from None
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise LabError(f"port {port} is taken: give another, or --port 0 for a free one") from None
        raise LabError(f"cannot serve on {host}:{port}: {os.strerror(error.errno) if error.errno else error}") from None
    return listening
