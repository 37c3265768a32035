"""Choose the kernels of a model for this machine, with reasons: the only place that does.

Everything is decided from a `Host`, so that the choice for a machine can be seen on any other; imports without torch.
What changes is speed only: parameters, their names and checkpoints are the same whatever is chosen.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from moe.errors import MoeError

GPU_PACKAGES = ("transformer_engine",)
"""Modules of optional kernels, which only run on a GPU."""
_FLASH_CAPABILITY = (8, 0)  # Ampere: what flash attention 2 and torch's grouped product in bf16 were written for
_TE_PERMUTE = (2, 1)  # Transformer Engine's fused permutation, as Megatron asks for it


@dataclass(frozen=True)
class Host:
    """The kernel packages and the device of a machine.

    Attributes:
        cuda: name of its GPU; None without one.
        capability: the GPU's compute capability.
        packages: versions of the optional packages that can be imported, by module name.
    """

    cuda: str | None = None
    capability: tuple[int, int] = (0, 0)
    packages: tuple[tuple[str, str], ...] = ()

    def version(self, package: str) -> tuple[int, ...] | None:
        """Major and minor version of a package; None if it is not there."""
        found = dict(self.packages).get(package)
        return None if found is None else tuple(int(part) for part in found.split(".")[:2] if part.isdigit())


@dataclass(frozen=True)
class Kernels:
    """The kernels of a model.

    Attributes:
        layers: whose norms and linear layers: "transformer_engine" or "local" (Megatron's own and `moe.model.layers`).
        attention: "torch_varlen", flash attention on packed tokens; "torch_sdpa" on padded blocks.
        experts: what multiplies stacked experts: torch's grouped product, on "cuda" as one kernel or on "cpu".
        dispatcher: "alltoall" of Megatron's, or "host" where collective operations take plain numbers only (gloo).
        fusions: fields of Megatron's config to switch on.
        reasons: why, by attribute.
    """

    layers: str
    attention: str
    experts: str
    dispatcher: str
    fusions: tuple[str, ...]
    reasons: dict[str, str]

    def lines(self) -> list[str]:
        """One line for each choice, with its reason."""
        chosen = {name: getattr(self, name) for name in self.reasons}
        shown = {
            name: ", ".join(value) or "none" if isinstance(value, tuple) else value for name, value in chosen.items()
        }
        return [f"{name}: {value} ({self.reasons[name]})" for name, value in shown.items()]


def this_host() -> Host:
    """Look at this machine; imports torch."""
    import torch

    found = tuple((name, _version(name)) for name in GPU_PACKAGES if importlib.util.find_spec(name) is not None)
    if not torch.cuda.is_available():
        return Host(packages=found)
    return Host(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), found)


def _version(module: str) -> str:
    """A module's version; an extension that is no distribution of its own (one of Apex's) has none: 0."""
    for distribution in importlib.metadata.packages_distributions().get(module, ()):
        return importlib.metadata.version(distribution)
    return "0"


def choose(wanted: str, dtype: str, host: Host) -> Kernels:
    """Choose the kernels of a model.

    Args:
        wanted: "auto" takes the fastest there are; "local" leaves Transformer Engine alone; "transformer_engine" is
            refused where it cannot run.
        dtype: type of weights and activations, "bfloat16" or "float32".
        host: the machine.

    Raises:
        MoeError: if what is wanted cannot run here, saying why.
    """
    layers, layers_why = _layers(wanted, host)
    attention, attention_why = _attention(dtype, host)
    experts = "cuda" if host.cuda else "cpu"
    grouped = "one torch.nn.functional.grouped_mm for all experts of a rank"
    slow = host.cuda and (dtype != "bfloat16" or host.capability < _FLASH_CAPABILITY)
    fusions, fusions_why = _fusions(layers, host)
    dispatcher, dispatcher_why = _dispatcher(host)
    return Kernels(
        layers=layers,
        attention=attention,
        experts=experts,
        dispatcher=dispatcher,
        fusions=fusions,
        reasons={
            "layers": layers_why,
            "attention": attention_why,
            "experts": f"{grouped}; its CUDA kernel wants bfloat16 and compute capability 8.0" if slow else grouped,
            "dispatcher": dispatcher_why,
            "fusions": fusions_why,
        },
    )


def _layers(wanted: str, host: Host) -> tuple[str, str]:
    if wanted == "local":
        return "local", "asked for"
    if host.cuda is None:
        missing = "there is no GPU"
    elif host.version("transformer_engine") is None:
        missing = "Transformer Engine is not installed (make install-gpu)"
    else:
        return "transformer_engine", "asked for" if wanted == "transformer_engine" else "it is installed, with a GPU"
    if wanted == "transformer_engine":
        raise MoeError(f"TrainerConfig.kernels='transformer_engine' cannot run here: {missing}; use 'auto'")
    return "local", missing


def _dispatcher(host: Host) -> tuple[str, str]:
    return ("alltoall", "NCCL moves uneven shares of tokens") if host.cuda else ("host", "gloo wants plain numbers")


def _attention(dtype: str, host: Host) -> tuple[str, str]:
    if host.cuda is None:
        return "torch_sdpa", "there is no GPU"
    if dtype != "bfloat16":
        return "torch_sdpa", f"flash attention has no {dtype}"
    if host.capability < _FLASH_CAPABILITY:
        return "torch_sdpa", f"flash attention wants compute capability 8.0, {host.cuda} has {host.capability}"
    return "torch_varlen", "torch brings flash attention for packed sequences"


def _fusions(layers: str, host: Host) -> tuple[tuple[str, ...], str]:
    if host.cuda is None:
        return (), "they are CUDA kernels"
    chosen = "bias_activation_fusion", "bias_dropout_fusion"
    if layers == "transformer_engine" and (host.version("transformer_engine") or (0,)) >= _TE_PERMUTE:
        return (*chosen, "moe_permute_fusion"), "all there are"
    return chosen, "moe_permute_fusion wants Transformer Engine 2.1"
