"""Models on the Hugging Face hub: configuration first, weights only once that fits; kept in the hub's own cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moe.errors import MoeError
from scalelab.errors import LabError

PREFIX = "hub:"
"""Prefix of a repository's name in a setting that takes a folder, too."""
CONFIG = ("config.json",)
BESIDE = ("*.json", "*.model", "*.txt", "*.jinja")
"""Files beside the weights at the top of a repository; they are downloaded first, so that weights come last."""
WEIGHTS = ("*.safetensors",)
"""Weights at the top of a repository; subfolders hold the same in other formats."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def hub_model(repository: str, check: Callable[[Path], None]) -> Path:
    """The folder of a model on the hub, downloaded where the cache does not hold it.

    A model in the cache is taken without asking the hub, so that later runs on this machine start from the same commit.

    Args:
        repository: `ORG/NAME`, or `ORG/NAME@REVISION` with a branch, a tag or a commit.
        check: refuses a folder with a `config.json` of another shape, before any weights are downloaded.

    Raises:
        LabError: there is no such model, or it cannot be had, and what would do.
    """
    name, revision = _parts(repository)
    with _refusals(name, revision):
        if (found := _cached(name, revision, WEIGHTS)) is not None and _whole(found):
            return found
        check(_snapshot(name, revision, CONFIG))
        _snapshot(name, revision, BESIDE)
        return _snapshot(name, revision, WEIGHTS)


def hub_config(repository: str) -> Path:
    """A folder with the configuration and the tokenizer of a model on the hub, downloaded where the cache has none.

    Raises:
        LabError: as `hub_model`.
    """
    name, revision = _parts(repository)
    with _refusals(name, revision):
        found = _cached(name, revision, BESIDE)
        return found if found is not None and (found / CONFIG[0]).is_file() else _snapshot(name, revision, BESIDE)


def _parts(repository: str) -> tuple[str, str]:
    """Name and revision of a model."""
    name, _, revision = repository.partition("@")
    if not _NAME.fullmatch(name):
        raise LabError(f"{PREFIX}{repository} names no model: give {PREFIX}ORG/NAME, or {PREFIX}ORG/NAME@REVISION")
    return name, revision


def _snapshot(name: str, revision: str, files: tuple[str, ...], here: bool = False) -> Path:
    """The folder of some files of a repository; downloads them unless they must be in the cache."""
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        name, revision=revision or None, allow_patterns=list(files), ignore_patterns=["*/*"], local_files_only=here
    )
    return Path(found)


def _cached(name: str, revision: str, files: tuple[str, ...]) -> Path | None:
    """The folder of a model in the cache; None if the cache has never seen it."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError):
        return _snapshot(name, revision, files, here=True)
    return None


@contextmanager
def _refusals(name: str, revision: str) -> Iterator[None]:
    """Turn whatever the hub's client raises into one line."""
    try:
        yield
    except (LabError, MoeError):
        raise
    except Exception as problem:  # the hub client raises dozens of kinds
        raise _refusal(name, revision, problem) from problem


def _whole(folder: Path) -> bool:
    """True if all weights are there: an interrupted download leaves some of them in the cache."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return all((folder / name).exists() for name in json.loads(index.read_bytes())["weight_map"].values())
    return (folder / "model.safetensors").exists()


def _refusal(name: str, revision: str, problem: Exception) -> LabError:
    """Say why a model cannot be had, and what would do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(problem, GatedRepoError):
        return LabError(f"{name} is gated: accept its licence on https://huggingface.co/{name}, then `hf auth login`")
    if isinstance(problem, RepositoryNotFoundError):
        return LabError(f"the hub has no model {name} that you may read: look for its name, or log in (hf auth login)")
    if isinstance(problem, RevisionNotFoundError):
        return LabError(f"{name} has no revision {revision}: name a branch, a tag or a commit, or leave @ out")
    cause = (str(problem).splitlines() or [type(problem).__name__])[0]
    return LabError(
        f"cannot download {name} from the hub ({cause}): where there is a network, "
        f"`hf download {name} --local-dir FOLDER`, and give SFT.pretrained = 'FOLDER'"
    )
