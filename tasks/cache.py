"""The folder for what is worth keeping between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Absolute path, since actors have other working directories: `SCALELAB_CACHE`, or below the user's own folder."""
    return Path(os.environ.get("SCALELAB_CACHE", Path.home() / ".cache" / "scalelab")).absolute()
