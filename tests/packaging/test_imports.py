"""Imports of the heavy packages: what they are spared, and that it is there again afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import ModuleType

import pytest

from scalelab.imports import UNUSED, quick_imports


def test_what_imports_are_spared_is_there_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, UNUSED, raising=False)
    with quick_imports():
        assert not gc.isenabled()
        with pytest.raises(ImportError):
            __import__(UNUSED)
    assert gc.isenabled()
    assert UNUSED not in sys.modules


def test_a_package_that_is_imported_already_is_not_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType(UNUSED)
    monkeypatch.setitem(sys.modules, UNUSED, mine)
    with quick_imports():
        assert sys.modules[UNUSED] is mine
    assert sys.modules[UNUSED] is mine


def test_what_names_experiments_and_data_sets_loads_no_verifier() -> None:
    code = "import sys, scalelab.experiment.lab; print([name for name in {names} if name in sys.modules])"
    names = ["tasks.math.read", "tasks.math.verifier", "tasks.code.verifier"]
    done = subprocess.run([sys.executable, "-c", code.format(names=names)], capture_output=True, text=True, timeout=900)
    assert done.stdout == "[]\n", done.stderr


def test_the_driver_of_a_run_imports_no_torch() -> None:
    """Its actors do, beside it; it would take the driver 1.2 s of a core before it can start them."""
    driver = "scalelab.session.session, scalelab.start.base_model, scalelab.plan.check, scalelab.cluster.world"
    code = f"import sys, {driver}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout == "False\n", done.stderr


def test_what_shows_an_experiment_does_without_numpy() -> None:
    """It takes a sixth of the command's processor time."""
    code = "import sys; from scalelab.cli import main; main(['show', 'quickstart']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout.endswith("\nFalse\n"), done.stderr
