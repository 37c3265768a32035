"""Functions of a model's configuration, remembered: a search for a layout asks tens of thousands of times."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from moe.model.architectures import Architecture, architecture
from moe.model.size import Parameters, parameters

P = ParamSpec("P")
T = TypeVar("T")


def remembered(of_model: Callable[Concatenate[dict[str, Any], P], T]) -> Callable[Concatenate[dict[str, Any], P], T]:
    """A function of a model's configuration that keeps its results, by all that it is given; nobody may change them."""

    def of_content(content: bytes, *args: P.args, **kwargs: P.kwargs) -> T:
        return of_model(marshal.loads(content), *args, **kwargs)

    kept: Callable[..., T] = lru_cache(maxsize=4096)(of_content)

    @wraps(of_model)
    def asked(hf_config: dict[str, Any], *args: P.args, **kwargs: P.kwargs) -> T:
        return kept(_content(hf_config), *args, **kwargs)

    return asked


_last: tuple[dict[str, Any], bytes] = {}, marshal.dumps({}, 2)


def _content(hf_config: dict[str, Any]) -> bytes:
    """A configuration as bytes; a search asks for those of one again and again, and to compare takes a tenth."""
    global _last
    kept, content = _last
    if kept != hf_config:
        content = marshal.dumps(hf_config, 2)  # the bytes of later versions depend on more than the content
        _last = marshal.loads(content), content
    return content


@remembered
def shape(hf_config: dict[str, Any]) -> Architecture:
    """A model's architecture; see `moe.model.architectures.architecture`."""
    return architecture(hf_config)


@remembered
def parameter_counts(hf_config: dict[str, Any]) -> Parameters:
    """A model's parameter counts; see `moe.model.size.parameters`."""
    return parameters(hf_config)
