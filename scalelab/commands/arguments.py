"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalelab.errors import LabError


def add_experiment(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Declare EXPERIMENT and `--set` (as `args.experiment`, `args.sets`); `nargs` "?" lets EXPERIMENT be left out."""
    what = "a name, FAMILY or FAMILY/MEMBER, a Python file, or the config.gin of a run"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=what, nargs=nargs)
    add_sets(parser, "a value over all others, in gin's syntax, such as OptimizerConfig.lr=3e-4; may be repeated")
    parser.add_argument(
        "--model",
        action=_Model,
        metavar="FOLDER",
        help="start from this Hugging Face folder, or hub:ORG/NAME, whatever the experiment's model",
    )


def add_sets(
    parser: argparse.ArgumentParser, what: str = "a field of a --task that is a class; may be repeated"
) -> None:
    """Declare `--set` (as `args.sets`)."""
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="CLASS.FIELD=VALUE", help=what)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="print one machine-readable object")


class _Model(argparse.Action):
    """Put a folder's model in the place of the experiment's, as two `--set` would."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add the two."""
        namespace.sets = [*namespace.sets, "Run.model=@Pretrained()", f"Pretrained.folder={values!r}"]


class Once(argparse.Action):
    """Store an option's value, and refuse the option a second time instead of dropping the first value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        given = f"_{self.dest}_given"
        if hasattr(namespace, given):
            raise argparse.ArgumentError(self, "it is given twice; give it once")
        setattr(namespace, given, True)
        setattr(namespace, self.dest, values)


def check_out(out: Path) -> None:
    """Refuse an output file that could not be written, before the work that is to go into it.

    Raises:
        LabError: it is a folder, or its folder is not there.
    """
    if out.is_dir():
        raise LabError(f"--out {out} is a folder: name a file")
    if not out.parent.is_dir():
        raise LabError(f"--out {out}: there is no folder {out.parent}; make it first")
