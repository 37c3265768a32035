"""A run's `config.gin` says what its trainer and its engines were built with, and nothing else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from moe.settings import TrainerConfig, TrainerSetup
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import resolve, settings_in
from scalelab.experiment.lab import LAB
from scalelab.experiment.library import listing
from scalelab.experiment.retired import RETIRED
from scalelab.rollout.config import GeneratorConfig, GeneratorSetup
from scalelab.run.config import Run

OLD = "docs/study/runs/without_fp32_head/seed_1/config.gin"
BUILT = ((TrainerConfig, TrainerSetup), (GeneratorConfig, GeneratorSetup))
NAMES = [one.name for one in listing()[0]]


def recorded(name: str) -> tuple[Run, dict[str, Any]]:
    """The run, and the values in the text that it would write down."""
    resolved = resolve(name)
    return resolved.run, settings_in(resolved.config_gin(), name)


def test_no_class_that_gin_binds_has_a_field_that_another_class_decides() -> None:
    derived = {f"{own.__name__}.{one.name}" for own, built in BUILT for one in fields(built)[len(fields(own)) :]}
    assert derived | {"TrainerConfig.dispatch"} == RETIRED.keys(), "and one that had a single value left"
    bound = {f"{cls.__name__}.{name}" for cls in LAB.classes.values() for name in LAB.parameters(cls)}
    assert derived.isdisjoint(bound)
    assert set(RETIRED.values()) <= bound, "what decides can be bound"


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_records_what_its_trainer_and_engines_are_built_with(name: str) -> None:
    run, written = recorded(name)
    parts = {
        "TrainerConfig": run.trainer_setup,
        "OptimizerConfig": run.trainer_setup.optimizer,
        "Layout": run.trainer_setup.layout,
        "GeneratorConfig": run.generator_setup,
    }
    seen = 0
    for key, value in written.items():
        owner, _, field = key.rpartition("/")[2].partition(".")
        if owner in parts and not str(value).startswith("@"):
            assert getattr(parts[owner], field) == value, key
            seen += 1
    assert seen > 30
    head, device = written["Recipe.fp32_head"], written["Cluster.device"]
    trainer, engine = run.trainer_setup, run.generator_setup
    assert (trainer.fp32_head, engine.fp32_head) == (head in ("both", "trainer"), head in ("both", "generator"))
    assert (trainer.device, engine.device, trainer.seed) == (device, device, written["Run.seed"])
    assert engine.record_routing == written["Recipe.router_replay"]
    assert engine.expert_bias == (written["TrainerConfig.expert_bias"] > 0)
    assert engine.shares_device == written["Cluster.share_devices"]


@pytest.mark.parametrize(("key", "decides"), RETIRED.items())
def test_a_setting_that_another_decides_cannot_be_bound_and_the_other_is_named(key: str, decides: str) -> None:
    with pytest.raises(LabError, match=f"{key} is no setting of its own: bind {decides}$"):
        resolve("quickstart", [f"{key}=1"])


def test_an_old_run_is_read_and_shown_with_the_lines_that_it_did_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    assert main(["show", str(root / OLD)]) == 0
    unused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# not used: ")]
    never = "TrainerConfig.reference"  # always followed from the loss
    assert sorted(line.split()[3] for line in unused) == sorted(name for name in RETIRED if name != never)
    assert unused[0].endswith(f"{OLD}:43: Recipe.fp32_head decided")
    assert "TrainerConfig.fp32_head = True" in unused[0]
    run = resolve(str(root / OLD)).run
    assert (run.trainer_setup.fp32_head, run.generator_setup.fp32_head, run.trainer_setup.seed) == (False, False, 1)
    text = resolve(str(root / OLD)).config_gin()
    assert not any(key in text for key in RETIRED), "what goes on from it writes them down no more"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("head", ["none", "both"])
def test_the_head_inside_of_trainer_and_engine_is_the_one_that_is_written_down(head: str, tmp_path: Path) -> None:
    from scalelab.rollout.engine import Engine  # isort: skip  (sets vLLM's environment first)
    from moe.train.trainer import Trainer
    from scalelab.rollout.interruption import Phrases
    from scalelab.rollout.tokenizer import build_tokenizer, save_tokenizer
    from tests.helpers.moe_models import rendezvous

    sets = [f"Recipe.fp32_head={head}", "TrainerConfig.dtype=bfloat16", "GeneratorConfig.dtype=bfloat16"]
    run = resolve("quickstart", sets).run
    trainer = Trainer(run.model.to_hf(), run.trainer_setup, rendezvous=rendezvous())
    try:
        assert trainer.model.fp32_head is (head == "both")
        trainer.save_hf(tmp_path)
    finally:
        trainer.close()
    save_tokenizer(build_tokenizer(["1 + 2 = 3"], run.model.vocab_size), tmp_path)
    engine = Engine(tmp_path, run.generator_setup, Phrases((), ()))
    try:
        kind = str(engine._engine.vllm_config.model_config.head_dtype)
        assert kind == ("torch.float32" if head == "both" else "torch.bfloat16")
    finally:
        engine.close()
