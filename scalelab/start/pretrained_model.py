"""`Pretrained`: a model by its folder alone, whose `config.json` gives the shape; imports without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass as plain
from pathlib import Path

from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.errors import MoeError
from moe.model.families import Model
from moe.model.reading import model_of, read_config
from scalelab.errors import LabError
from scalelab.run.settings import SFT
from scalelab.start.hub_model import PREFIX as HUB
from scalelab.start.hub_model import hub_config
from scalelab.start.packaged import PREFIX as PACKAGE

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which a folder with a tokenizer has one."""


@plain(frozen=True)
class Expansion:
    """An object that stands in a configuration for another one, resolved.

    Attributes:
        value: the object that takes its place.
        origin: where its values come from.
        others: values of other fields that follow from it, by class and field, unless they are bound after it.
    """

    value: Model
    origin: str
    others: Mapping[tuple[type, str], str]


@dataclass(frozen=True, config=CHECKED)
class Pretrained:
    """The model in a Hugging Face folder: its shape is read from `config.json`, and RL starts from its weights."""

    folder: str
    """A Hugging Face folder, or `hub:ORG/NAME` (`hub:ORG/NAME@REVISION`) for a model on the Hugging Face hub, of which
    only configuration and tokenizer are downloaded at first."""

    def expand(self) -> Expansion:
        """Read the model's class and shape, and bind `SFT.pretrained` to the folder.

        Raises:
            LabError: the folder is not there or has no tokenizer, or the lab has no such model, naming what is missing.
        """
        if self.folder.startswith(PACKAGE):
            raise LabError(f"{self.folder}: a package's model has its shape by hand; see model/smollm2_135m")
        if self.folder.startswith(HUB):
            path = hub_config(self.folder.removeprefix(HUB))
        else:
            path = Path(self.folder).expanduser()
            if not (path / "config.json").is_file():
                raise _refusal(path)
        try:
            model = model_of(read_config(path))
        except MoeError as error:
            raise LabError(f"{self.folder}: {error}") from None
        if not any((path / name).is_file() for name in TOKENIZERS):
            raise LabError(f"{self.folder} has no tokenizer: put the tokenizer.json of its model there")
        return Expansion(model, os.path.join(self.folder, "config.json"), {(SFT, "pretrained"): self.folder})


def _refusal(path: Path) -> LabError:
    """Say why a folder without a `config.json` is no model."""
    if not path.is_dir():
        return LabError(f"there is no folder {path}; give a Hugging Face folder, or {HUB}ORG/NAME to download a model")
    from scalelab.start.model_folder import find_model  # torch takes seconds to import

    try:
        find_model(path)
    except LabError as error:
        return error
    return LabError(f"{path} has no config.json")
