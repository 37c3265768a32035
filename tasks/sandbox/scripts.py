"""JavaScript behind the sandbox's tiers: the interpreter that a child becomes, and what it may read."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass

# Runs in the interpreter before the program: reads it from a descriptor, and has `/dev/stdin` mean descriptor 0,
# because there is no /proc to which that name leads.
_BEGIN = """
const fs = require("fs"), Module = require("module"), read = fs.readFileSync, from = Number(process.argv[1]);
const source = read(from, "utf8");
fs.closeSync(from);
fs.readFileSync = (path, ...rest) => read(path === "/dev/stdin" ? 0 : path, ...rest);
process.argv = ["node", "/program.js"];
const program = new Module("/program.js");
program.filename = "/program.js";
program._compile(source, "/program.js");
"""

HELPER_MB = 512
"""Memory of the interpreter beside the program's own: its code, and the stacks of its helper threads."""

STACK_MB = 8
DESCRIPTORS = 64


@dataclass(frozen=True)
class NodeJs:
    """An installed Node.js.

    Attributes:
        path: the executable.
        folders: what it reads and executes: the system's libraries, and the built-in modules that Debian keeps apart.
    """

    path: str
    folders: tuple[str, ...]


def node() -> NodeJs:
    """This machine's Node.js.

    Raises:
        OSError: there is none.
    """
    found = shutil.which("node", path="/usr/bin:/usr/local/bin")
    if found is None:
        raise OSError("there is no Node.js on this machine: apt-get install nodejs")
    triple = f"{platform.machine()}-linux-gnu"
    folders = (f"/usr/lib/{triple}", f"/lib/{triple}", "/lib64", "/usr/lib64", "/usr/share/nodejs")
    return NodeJs(os.path.realpath(found), tuple(folder for folder in folders if os.path.exists(folder)))


def arguments(source: int, memory_mb: int) -> list[str]:
    """Command line of the interpreter.

    Args:
        source: descriptor of the program.
        memory_mb: size of its heap, in MiB.
    """
    # It ends at once if it may not read the configuration of OpenSSL, but not if there is none.
    settings = [f"--max-old-space-size={memory_mb}", "--v8-pool-size=1", "--no-warnings", "--openssl-config=/none"]
    return ["node", *settings, "-e", _BEGIN, str(source)]
