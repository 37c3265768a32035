"""The number in the key of every base model is raised with every change of what fine-tuning computes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from scalelab.start.base_model import FINE_TUNING
from tests.helpers.processors import printed, simulated_processor

SHORT = ("SFT.steps=4", "SFT.traces_per_step=16")
MADE = {"0.1.0": "ace2ec3d1336189a7e80135cb415a43bf2f276ea399236251283fb9c7d16d2f4"}
"""SHA-256 of the weights after a short fine-tuning with portable arithmetic, by version."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_version_of_the_fine_tuning_makes_one_model_on_every_processor(tmp_path: Path) -> None:
    sets = [word for setting in SHORT for word in ("--set", setting)]
    command = [sys.executable, "-m", "scalelab", "sft", "study_two/scalerl", *sets, "--out", str(tmp_path / "model")]
    printed(command, {"SCALELAB_CACHE": str(tmp_path), **(simulated_processor(tmp_path) or {})}, 280)
    made = hashlib.sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest()
    assert MADE[FINE_TUNING] == made, "raise FINE_TUNING, and write the new digest here; shipped bases get new keys"
