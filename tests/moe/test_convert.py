"""Hugging Face folder → checkpoint → Hugging Face folder: bit for bit, a layer at a time, or not at all."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moe.errors import MoeError
from moe.model.families import Model
from moe.model.size import parameters
from moe.weights.convert import export_checkpoint, import_folder
from moe.weights.hf_folder import FolderWeights, copy_tokenizer, is_multimodal, save_folder, write_text_model
from moe.weights.links import CORRECTION, shapes, stored_as
from scalelab import cli
from tests.helpers.moe_models import (
    DEEPSEEK_V3,
    DENSE,
    GLM4_MOE,
    MISTRAL,
    MIXTRAL,
    MOE,
    OLMO2,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
    batch,
    trainer,
)

pytestmark = pytest.mark.slow
ALL = (DENSE, MOE, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, SMOLLM3, OLMO2, GLM4_MOE, DEEPSEEK_V3)
MODELS = {model.model_type: model for model in ALL}


def write(folder: Path, model: Model, dtype: torch.dtype = torch.bfloat16, **options: Any) -> dict[str, torch.Tensor]:
    """A folder with random weights; returns them."""
    stream = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=stream) / 8).to(stored_as(name, dtype))
        for name, shape in shapes(model.to_hf()).items()
    }
    save_folder(folder, model.to_hf(), weights.items(), shapes(model.to_hf()), **options)
    return weights


def assert_holds(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    found = FolderWeights(folder)
    assert set(found) == set(weights)
    for name, tensor in weights.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_a_folder_that_only_names_the_ends_of_completions_has_no_tokenizer(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    assert not copy_tokenizer(source, target)
    (source / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert not copy_tokenizer(source, target)
    assert (target / "generation_config.json").read_text() == '{"eos_token_id": 7}', "but it is copied"
    (source / "tokenizer.json").write_text("{}")
    assert copy_tokenizer(source, target)


@pytest.mark.parametrize("name", MODELS)
def test_in_and_out_is_bit_exact_and_transformers_loads_it(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    weights = write(tmp_path / "in", model)
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    told = import_folder(tmp_path / "in", tmp_path / "checkpoint")
    assert (told.parameters, told.dtype, told.tokenizer) == (parameters(model.to_hf()).total, "bfloat16", True)
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "out", shard_bytes=30_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert_holds(tmp_path / "out", weights)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs.save_pretrained(tmp_path / "theirs")
    assert_holds(tmp_path / "theirs", weights)


def test_a_trainer_starts_from_what_was_imported_and_its_checkpoint_is_exported(tmp_path: Path) -> None:
    weights = write(tmp_path / "in", MIXTRAL, torch.float32)
    import_folder(tmp_path / "in", tmp_path / "step_000000")
    ours = trainer(MIXTRAL)
    try:
        ours.load(tmp_path / "step_000000")
        assert all(torch.equal(tensor, weights[name]) for name, tensor in ours.export_weights())
        ours.train_step(batch(0), lambda logprobs_T, entropy_T, extras: (logprobs_T.sum(), {}))
        trained = {name: tensor.clone() for name, tensor in ours.export_weights()}
        ours.save(tmp_path / "step_000001")
    finally:
        ours.close()
    export_checkpoint(tmp_path / "step_000001", tmp_path / "out")
    assert_holds(tmp_path / "out", trained)
    assert not torch.equal(trained["model.norm.weight"], weights["model.norm.weight"])


def test_experts_in_stacks_and_text_models_within_others_are_read(tmp_path: Path) -> None:
    """Stacked experts as in transformers' state_dict(), and text models as in Llama-4's checkpoints on the hub."""
    for model, stacked in ((QWEN3_MOE, "mlp"), (MIXTRAL, "mlp")):
        weights = write(tmp_path / model.model_type, model)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / model.model_type)
        state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
        assert f"model.layers.0.{stacked}.experts.gate_up_proj" in state
        save_file(state, tmp_path / model.model_type / "model.safetensors")
        assert_holds(tmp_path / model.model_type, weights)
    weights = write(tmp_path / "text", MOE)
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": MOE.to_hf()}))
    parts = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    save_file({**parts, "vision_model.patch.weight": torch.zeros(2)}, whole / "model.safetensors")
    assert import_folder(whole, tmp_path / "checkpoint").model_type == "llama4_text"
    assert_holds(whole, weights)
    (whole / "tokenizer.json").write_text("{}")
    assert is_multimodal(whole)
    write_text_model(whole, tmp_path / "alone")
    assert not is_multimodal(tmp_path / "alone")
    assert (tmp_path / "alone" / "tokenizer.json").exists()
    text_model = transformers.Llama4ForCausalLM.from_pretrained(tmp_path / "alone").state_dict()
    assert all(torch.equal(text_model[name], tensor) for name, tensor in weights.items())


def test_modules_that_guess_further_tokens_are_left_out_and_routers_biases_become_fp32(tmp_path: Path) -> None:
    weights = write(tmp_path / "in", GLM4_MOE)
    more = {name.replace("layers.2.", "layers.3."): tensor for name, tensor in weights.items() if "layers.2." in name}
    narrow = {name: tensor.bfloat16().clone() for name, tensor in {**weights, **more}.items()}
    save_file(narrow, tmp_path / "in" / "model.safetensors")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    import_folder(tmp_path / "in", tmp_path / "checkpoint")
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "out")
    kept = {name: tensor for name, tensor in narrow.items() if name in weights}
    assert_holds(tmp_path / "out", {n: t.float() if n.endswith(CORRECTION) else t for n, t in kept.items()})
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_a_stored_copy_of_a_tied_embedding_is_left_out_unless_it_differs(tmp_path: Path) -> None:
    weights = write(tmp_path, QWEN3)
    file = tmp_path / "model.safetensors"
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, file)
    assert_holds(tmp_path, weights)
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1}, file)
    with pytest.raises(MoeError, match=r"lm_head.weight is not model.embed_tokens.weight"):
        FolderWeights(tmp_path)


BROKEN = {
    "missing": (lambda w: w.pop("model.norm.weight"), r"lack model.norm.weight"),
    "extra": (lambda w: w.update(more=torch.zeros(1)), r"hold more "),
    "misshapen": (
        lambda w: w.update({"model.norm.weight": torch.zeros(3, dtype=torch.bfloat16)}),
        r"model.norm.weight has shape \(3,\), but this model needs \(48,\)",
    ),
    "of another type": (
        lambda w: w.update({"model.norm.weight": torch.zeros(48)}),
        r"model.norm.weight is float32, but .* is bfloat16",
    ),
    "of no type that is trained": (
        lambda w: w.update({name: tensor.half() for name, tensor in w.items()}),
        r"is float16; convert the weights",
    ),
    "of whole numbers": (
        lambda w: w.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}),
        r"model.norm.weight is I8",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_folder_with_wrong_tensors_is_named_and_leaves_nothing(how: str, tmp_path: Path) -> None:
    change, message = BROKEN[how]
    weights = write(tmp_path / "in", DENSE)
    change(weights)
    save_file(weights, tmp_path / "in" / "model.safetensors")
    with pytest.raises(MoeError, match=message):
        import_folder(tmp_path / "in", tmp_path / "checkpoint")
    assert os.listdir(tmp_path) == ["in"]


def test_a_folder_with_wrong_files_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(MoeError, match=match):
            import_folder(folder, tmp_path / "checkpoint")
        assert os.listdir(tmp_path) == ["in"]

    folder = tmp_path / "in"
    write(folder, DENSE, shard_bytes=30_000)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    refused(rf"{shard.name} is truncated")
    shard.write_bytes(b"\x08" + bytes(7) + b"nonsense")
    refused(rf"{shard.name} cannot be read")
    shard.unlink()
    refused(rf"{shard.name} cannot be read")
    save_file({"x": torch.zeros(1)}, shard)
    refused(r"lacks model.*which the index says")
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    refused("'mamba' is not supported")
    (folder / "config.json").unlink()
    refused(r"config.json does not exist")


def test_damage_found_only_while_writing_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in", DENSE)

    def broken(self: FolderWeights, name: str) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(FolderWeights, "__getitem__", broken)
    with pytest.raises(MoeError, match="the disk is gone"):
        import_folder(tmp_path / "in", tmp_path / "checkpoint")
    assert os.listdir(tmp_path) == ["in"]


def test_wrong_checkpoints_are_named_and_leave_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in", DENSE)
    import_folder(tmp_path / "in", tmp_path / "good")

    def refused(match: str, target: str = "out") -> None:
        with pytest.raises(MoeError, match=match):
            export_checkpoint(tmp_path / "good", tmp_path / target)
        assert sorted(os.listdir(tmp_path)) == ["good", "in"]

    refused("exists and is not empty", "in")
    with pytest.raises(MoeError, match="exists and is not empty"):
        import_folder(tmp_path / "in", tmp_path / "good")
    with pytest.raises(MoeError, match="no readable checkpoint"):
        export_checkpoint(tmp_path / "in", tmp_path / "out")
    manifest = json.loads((tmp_path / "good" / "checkpoint.json").read_text())
    other = {**manifest, "model": replace(DENSE, num_hidden_layers=3).to_hf()}
    (tmp_path / "good" / "checkpoint.json").write_text(json.dumps(other))
    refused("it is of another model")
    (tmp_path / "good" / "checkpoint.json").write_text(json.dumps(manifest))
    shard = tmp_path / "good" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    refused("is truncated: __0_0.distcp")


PEAK = """
import sys
from scalelab.cli import main
def memory(kind):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(kind))
for name in ("small", "big"):
    there = f"{sys.argv[1]}/{name}"
    for arguments in (["import", there, f"{there}-checkpoint"], ["export", f"{there}-checkpoint", f"{there}-out"]):
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # from here on
        before = memory("VmRSS")
        assert main(arguments) == 0
        print(memory("VmHWM") - before, file=sys.stderr)
"""


@pytest.mark.parametrize("kind", [pytest.param("mixtral", marks=pytest.mark.nightly), "llama4_text"])
def test_conversions_hold_one_layer_not_the_model(kind: str, tmp_path: Path) -> None:
    """All experts of a layer are one parameter. Conversions of a small model first bring in all the code."""
    small: Any = MODELS[kind]
    big = replace(
        small, num_hidden_layers=8, hidden_size=512, intermediate_size=512, num_local_experts=8, vocab_size=512
    )
    layer = parameters(big.to_hf()).layers[0].total * 4
    write(tmp_path / "small", small, torch.float32)
    written = write(tmp_path / "big", big, torch.float32)
    total = sum(tensor.nbytes for tensor in written.values())
    del written
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK, str(tmp_path)],
        capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert total > 7 * layer
    imported, exported = (int(line) / layer for line in done.stderr.splitlines()[-2:])
    assert imported < 0.75  # a third of the experts' weights, and one expert
    assert exported < 1.15  # two thirds, and another as it is read


def test_the_commands_say_what_they_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = write(tmp_path / "in", DENSE)
    assert cli.main(["import", str(tmp_path / "in"), str(tmp_path / "checkpoint"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parameters"] == {
        "total": sum(t.numel() for t in weights.values()),
        "active": told["parameters"]["total"],
    }
    assert cli.main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "out")]) == 0
    assert "llama" in capsys.readouterr().out
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == weights.keys()
    assert cli.main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "out")]) == 1
    assert "exists and is not empty" in capsys.readouterr().err
