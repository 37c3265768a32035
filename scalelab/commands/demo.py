"""Open the live page on recorded runs: two recipes with three seeds each, completions and their verdicts.

One run was killed on its way, and one has a learning rate under which the model forgets. The runs come with the
package; --dir copies them, to try other commands on them.

Examples:
  scalelab demo
  scalelab demo --dir recorded && scalelab compare recorded/scalerl recorded/magistral
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from scalelab.commands import view
from scalelab.errors import LabError
from scalelab.terminal import shell_path

RECORDED = Path(__file__).parents[1] / "recorded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--dir", type=Path, metavar="X", help="copy the runs into a new folder, and open no page")
    parser.add_argument(
        "--port", type=int, default=view.PORT, metavar="N", help=f"port (default {view.PORT}; 0: a free one)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve the recorded runs until Ctrl-C, or copy them."""
    if args.dir is None:
        parser = argparse.ArgumentParser()
        view.add_arguments(parser)
        return view.run(parser.parse_args([str(RECORDED), "--port", str(args.port)]))
    try:
        shutil.copytree(RECORDED, args.dir)
    except FileExistsError:
        raise LabError(f"{args.dir} is there already: give --dir a new name") from None
    print(f"copied {len(list(args.dir.glob('*/seed_*')))} runs into {args.dir}: scalelab fit {shell_path(args.dir)}/*")
    return 0
