"""Read a model's class and shape from the ``config.json`` of a Hugging Face folder; importable without torch."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from moe.errors import MoeError
from moe.model.architectures import architecture, head_dim
from moe.model.decoder import DecoderConfig, Llama3Rope, YarnRope
from moe.model.families import Model
from moe.model.rotation import rope_parameters
from moe.regular import read_regular

FAMILIES: dict[str, type[DecoderConfig]] = {cls.model_type: cls for cls in get_args(Model)}
"""The class of every family, by ``model_type``."""
_ROPES: dict[str, Any] = {"llama3": Llama3Rope, "yarn": YarnRope}
_MAY_LACK = frozenset({"head_dim", "num_key_value_heads", "rope_scaling", "rope_theta", "pad_token_id", "bos_token_id"})
_MAY_BE_NONE = frozenset({"q_lora_rank"})
"""Fields for which a config's null is a value."""
"""Fields with a rule of their own where a config leaves them out."""


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a folder's ``config.json``; of a multimodal model the text model's part.

    Raises:
        MoeError: if there is none, or it is not a JSON object.
    """
    path = Path(folder) / "config.json"
    try:
        content = json.loads(read_regular(path))
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        if "text_config" in content:
            content = {**content["text_config"], "architectures": None}
        # modules that guess further tokens (GLM-4.5, DeepSeek-V3) are not read, so no folder written later has them
        return {**content, "num_nextn_predict_layers": 0} if "num_nextn_predict_layers" in content else content
    except FileNotFoundError:
        raise MoeError(f"{path} does not exist; give a folder that save_pretrained wrote") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise MoeError(f"{path} cannot be read ({error}); fetch or write it again") from None


def model_of(hf_config: dict[str, Any]) -> Model:
    """The model of a Hugging Face config, as a class of this trainer with its numbers.

    Raises:
        MoeError: a family, a feature or a shape that the class cannot express, or an entry that is missing, naming it.
    """
    wanted = architecture(hf_config)
    cls = FAMILIES[hf_config["model_type"]]
    rope = rope_parameters(hf_config)
    try:
        model: Any = cls(
            **{
                **_plain(cls, hf_config),
                "head_dim": hf_config.get("qk_rope_head_dim") or head_dim(hf_config),
                "num_key_value_heads": wanted.fields["num_query_groups"],
                "rope_theta": rope["rope_theta"],
                "rope_scaling": _scaling(rope),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        message = str(first.get("ctx", {}).get("error", first["msg"]))
        raise MoeError(f"the config of this {cls.model_type} does not fit: {where}{message}") from None
    found = architecture(model.to_hf())
    if found != wanted:
        what = [name for name in wanted.fields if found.fields.get(name) != wanted.fields[name]]
        raise MoeError(
            f"this {cls.model_type} is of a shape that {cls.__name__} cannot have: "
            f"{', '.join(what) or 'its layers differ from each other in another way'}"
        )
    made: Model = model
    return made


def _plain(cls: type[DecoderConfig], hf_config: dict[str, Any]) -> dict[str, Any]:
    """Entries that are fields of the class by their own names, and tokens that a config may leave out."""
    given: dict[str, Any] = {}
    for field in fields(cls):
        experts = field.name in ("num_experts", "n_routed_experts") and field.name not in hf_config
        name = "num_local_experts" if experts else field.name
        value = hf_config.get(name)
        if value is not None or (name in _MAY_BE_NONE and name in hf_config):
            given[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.name not in _MAY_LACK and field.default is not None and type(field.default) is not bool:
            raise MoeError(f"the config of this {cls.model_type} lacks {name}; give the config.json of its weights")
    end = given["eos_token_id"]
    for name in ("pad_token_id", "bos_token_id"):
        given.setdefault(name, end[0] if isinstance(end, tuple) and end else end)
    return given


def _scaling(rope: dict[str, Any]) -> Llama3Rope | YarnRope | None:
    """The rotary embedding's stretching, as a class."""
    cls = _ROPES.get(rope["rope_type"])
    if cls is None:
        return None
    found: Any = cls(**{one.name: rope[one.name] for one in fields(cls) if rope.get(one.name) is not None})
    return found
