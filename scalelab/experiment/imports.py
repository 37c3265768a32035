"""Classes of the user's own: found by `module.Class`, in a file beside the experiment or in an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalelab.errors import LabError, UntrustedError, nearest
from scalelab.experiment.values import mistakes

INSTALLED = Path(__file__).resolve().parents[2]
"""The folder that holds the lab's packages: a checkout, or site-packages."""


def display_path(file: str | Path) -> str:
    """A path for messages: relative to the working folder if it lies inside, or to the installed packages."""
    path = Path(file).resolve()
    if INSTALLED.name in ("site-packages", "dist-packages") and path.is_relative_to(INSTALLED):
        return str(path.relative_to(INSTALLED))
    here = Path.cwd().resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@dataclass
class Imports:
    """Importer of the classes that a configuration names; it remembers the files of the user's own modules.

    Objects of their classes are pickled by the module's name, so their folder stays on Python's path, here and (by
    PYTHONPATH) in the processes that this one starts.
    """

    folders: Sequence[Path] = ()
    """Folders that may hold the user's modules: that of the experiment's file."""
    allowed: bool = True
    """Import modules at all. Reading a configuration that somebody else wrote should run nothing."""
    files: dict[str, Path] = field(default_factory=dict)
    """File of each of the user's modules, by the part of its name before the first point."""

    def state(self, name: str, value: Any) -> bool:
        """Note where a module lies, if `name = "/folder/name.py"` says so.

        Returns:
            False if the macro is nothing of the kind.
        """
        path = Path(value) if isinstance(value, str) and value.endswith(".py") else None
        if path is None or not path.is_absolute() or _module_name(path) != name:
            return False
        self.files[name] = path
        return True

    def find(self, dotted: str) -> Any:
        """The object called `module.name`; None if there is no such module.

        Raises:
            LabError: the module cannot be imported or has no such name.
            UntrustedError: imports are not allowed.
        """
        module, _, name = dotted.rpartition(".")
        top = module.partition(".")[0]
        if not all(part.isidentifier() for part in dotted.split(".")):
            return None
        file = self.files.get(top) or next((file for folder in self.folders for file in _files(folder, top)), None)
        if file is None and not _installed(top):
            return None
        if not self.allowed:
            raise UntrustedError(
                f"@{dotted} is code of {display_path(file) if file else f'the package {top}'}, which only running the "
                "configuration imports: look at it as text, or use the experiment's Python file"
            )
        if file is not None:
            self._make_importable(top, file)
        loaded = import_user_code(lambda: importlib.import_module(module), file or Path(module))
        if not hasattr(loaded, name):
            raise LabError(f"{display_path(file) if file else module} defines no {name!r}")
        return getattr(loaded, name)

    def _make_importable(self, top: str, file: Path) -> None:
        if not file.is_file():
            raise LabError(f"there is no file {file}, which the configuration names for its module {top}")
        folder = _path_folder(file)
        if folder not in sys.path:
            sys.path.append(folder)
            importlib.invalidate_caches()
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), folder]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        origin = _origin(top)
        if origin is None or Path(origin).resolve() != file.resolve():
            raise LabError(
                f"{display_path(file)} has the name of another module, {origin or 'a part of Python'}: rename the file"
            )
        self.files[top] = file.resolve()


def _path_folder(file: Path) -> str:
    """The folder that must be on Python's path for a module's file: of a package, the one around it."""
    file = file.resolve()
    return str(file.parent.parent if file.name == "__init__.py" else file.parent)


def import_user_code(load: Callable[[], Any], file: Path) -> Any:
    """Run a user's file, turning whatever it raises into one line.

    Args:
        load: imports or runs it.
        file: the file, for messages.

    Raises:
        LabError: the file's own, or one that names the line of any other error.
    """
    try:
        return load()
    except LabError:
        raise
    except SyntaxError as error:
        raise LabError(f"{display_path(error.filename or file)}:{error.lineno}: {error.msg}") from None
    except ValidationError as error:
        raise LabError(f"{display_path(file)}{_line_of(error, file)}: {mistakes(error)}") from None
    except Exception as error:
        line, message = _line_of(error, file), str(error).partition("\n")[0]
        unknown = re.match(r"Experiment\.__init__\(\) got an unexpected keyword argument '(\w+)'", message)
        if unknown:
            known = ("fragments", "overrides", "description")
            raise LabError(
                f"{display_path(file)}{line}: an Experiment has no {unknown[1]!r}; "
                f"{nearest(unknown[1], known)} It takes {', '.join(known)}"
            ) from None
        raise LabError(f"{display_path(file)}{line}: {type(error).__name__}: {message}") from None


def _line_of(error: Exception, file: Path) -> str:
    """The last line of a file that an error passed through, as `:LINE`; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f":{lines[-1]}" if lines else ""


def _files(folder: Path, top: str) -> list[Path]:
    return [file for file in (folder / f"{top}.py", folder / top / "__init__.py") if file.is_file()]


def _module_name(file: Path) -> str:
    return file.parent.name if file.name == "__init__.py" else file.stem


def _origin(top: str) -> str | None:
    """The file that `import top` loads, or has loaded."""
    if top in sys.modules:
        return getattr(sys.modules[top], "__file__", None)
    spec = importlib.util.find_spec(top)
    return spec.origin if spec else None


def _installed(top: str) -> bool:
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False
