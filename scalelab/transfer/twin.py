"""A second set of an engine's parameters, which takes new weights while the first one is at work.

vLLM 0.32.0 loads new weights into the layers that it generates with, so generation waits for every copy on the way.
Here a twin of the model, which shares all but the parameters with it, goes through vLLM's own loaders beside
generation. What the engine then waits for is the exchange: on a CPU, of references; on a GPU, a copy from page-locked
host memory to the device, layer by layer, into the very tensors that CUDA graphs were captured with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.platforms import current_platform

from scalelab.errors import LabError


class Twin:
    """The twin of a model in one worker process.

    Args:
        model: vLLM's, loaded.
        tied: whether its head is its embedding.
    """

    def __init__(self, model: nn.Module, tied: bool) -> None:
        made: dict[nn.Module, nn.Module] = {}
        self._model, self._tied = _copy(model, made), tied
        self._layers: list[tuple[nn.Module, nn.Module, dict[str, Tensor]]] = []
        for layer, twin in made.items():
            parameters, _ = get_layerwise_info(layer).restore_metadata
            if parameters and not is_deferred_attention_layer(layer):
                forms = {name: restore_layer_refs(form, twin) for name, form in parameters.items()}
                self._layers.append((layer, twin, forms))

    @property
    def model(self) -> Any:
        """The twin as a model of vLLM's."""
        return self._model

    @property
    def layers(self) -> list[tuple[nn.Module, dict[str, Tensor]]]:
        """Layers with parameters, and these in the form in which they are loaded, on the meta device."""
        return [(twin, forms) for _, twin, forms in self._layers]

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load whole tensors by their Hugging Face names; may run in another thread than the model.

        Raises:
            LabError: a parameter got no value.
        """
        self.begin()
        self.add(weights)
        self.end()

    def begin(self) -> None:
        """Make room for new values of all parameters."""
        for _, twin, forms in self._layers:
            for name, form in forms.items():
                twin.register_parameter(name, _room(form))
        self._loaded = set[str]()

    @torch.no_grad()
    def add(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load some of the tensors."""
        self._loaded |= self._model.load_weights(weights)

    @torch.no_grad()
    def end(self) -> None:
        """Check that all were loaded, and put them into the form that the kernels read.

        Raises:
            LabError: a parameter got no value.
        """
        wanted, loaded = {name for name, _ in self._model.named_parameters()}, self._loaded
        kept = {name for name, one in self._model.named_modules() if is_deferred_attention_layer(one)}
        if self._tied:
            self._model.lm_head.tie_weights(self._model.model.embed_tokens)
            loaded = loaded | {"lm_head.weight"}
        if missing := sorted(name for name in wanted - loaded if name.rpartition(".")[0] not in kept):
            raise LabError(f"vLLM found no weights for {missing[0]} and {len(missing) - 1} more")
        if current_platform.is_cpu():
            for _, twin, _ in self._layers:
                _process(twin)

    @torch.no_grad()
    def exchange(self) -> None:
        """Give the model the loaded weights, between two of its steps."""
        for layer, twin, forms in self._layers:
            if not current_platform.is_cpu():
                _copy_to_device(layer, twin, forms)
                continue
            for name in forms:
                layer.register_parameter(name, twin._parameters[name])
            if hasattr(twin, "cpu_linear"):  # it holds the weights in the layout of the CPU's kernel
                layer.cpu_linear = twin.cpu_linear


def _copy(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """A module that shares everything with another but the registers of its parameters and children."""
    if module not in made:
        made[module] = twin = module.__class__.__new__(module.__class__)
        twin.__dict__.update(module.__dict__)
        twin._parameters, twin._buffers = dict(module._parameters), dict(module._buffers)
        twin._modules = {name: child and _copy(child, made) for name, child in module._modules.items()}
    return made[module]


def _room(form: Tensor) -> Any:
    """A parameter in host memory with room for the values that a loader brings."""
    parameter = materialize_meta_tensor(form)
    if not current_platform.is_cpu():
        parameter.data = parameter.data.pin_memory()
    return parameter


def _process(twin: nn.Module) -> None:
    """Put a layer's parameters into the form that the engine's kernels read."""
    method = getattr(twin, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return
    twin.__dict__.pop("_already_called_process_weights_after_loading", None)
    method.process_weights_after_loading(twin)
    # vLLM packs experts for the CPU's kernel when a model is first loaded, and skips that later: the kernel would read
    # unpacked weights, without an error, and with log-probs that are off by 2-3.
    kernel = getattr(method, "moe_kernel", None)
    if kernel is not None and current_platform.is_cpu():
        kernel.fused_experts.process_weights_after_loading(twin)


def _copy_to_device(layer: nn.Module, twin: nn.Module, forms: dict[str, Tensor]) -> None:
    """Copy a layer's parameters from the host into the tensors that the device computes with."""
    held = {name: twin._parameters[name] for name in forms}
    for name, parameter in held.items():
        assert parameter is not None
        moved = parameter.data.to(layer._parameters[name].device, non_blocking=True)
        moved.__class__, moved.__dict__ = parameter.__class__, parameter.__dict__.copy()
        twin.register_parameter(name, Parameter(moved) if not isinstance(moved, Parameter) else moved)
    _process(twin)
    for name in forms:
        layer._parameters[name].data.copy_(twin._parameters[name])
    twin._parameters.update(held)
