"""The base models that come with the lab are the quickstart's own and the study's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalelab.experiment import resolve
from scalelab.rollout.tokenizer import load_tokenizer
from scalelab.run.config import Run
from scalelab.start.base_model import (
    DIGESTED,
    SHIPPED,
    base_model,
    base_tokenizer,
    cache_key,
    pretrained,
    shipped_model,
    weights_digest,
)
from scalelab.watch.progress import Progress

pytestmark = pytest.mark.slow


def never(run: Run) -> Any:
    raise AssertionError("nothing has to be fine-tuned")


@pytest.mark.parametrize(
    ("experiment", "folder"),
    [
        ("quickstart", "quickstart"),
        ("recipes_miniature/scalerl", "quickstart"),
        ("leave_one_out_miniature/fp32_head", "quickstart"),
        ("study/scalerl", "study"),
        ("study/without_fp32_head", "study"),
        ("study/batch_256", "study"),
        ("study_two/scalerl", "study_two"),
        ("study_two/deepseek_grpo", "study_two"),
        ("study_two/false_pass_20", "study_two"),
        ("study_two/many_magistral", "study_two"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_seed_of_a_miniature_starts_from_the_base_model_that_comes_with_the_lab(
    experiment: str,
    folder: str,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path))
    run = resolve(experiment, [f"Run.seed={seed}"]).run
    assert base_model(run, Progress(), never) == SHIPPED / folder, "python tools/ship_base.py makes a new one"
    assert "which comes with the lab" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("experiment", "name"),
    [("quickstart", "quickstart"), ("study/scalerl", "study"), ("study_two/scalerl", "study_two")],
)
def test_its_shape_and_tokens_are_those_of_the_run(experiment: str, name: str) -> None:
    run, folder = resolve(experiment).run, SHIPPED / name
    assert pretrained(run, str(folder)) == folder
    texts = [f"{prompt.text}{completion}" for task in run.tasks for prompt, completion in [task.trace(7)]]
    tokenizers = load_tokenizer(folder), base_tokenizer(run)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    for text in texts:
        one, other = (tokenizer.encode(text) for tokenizer in tokenizers)
        assert one == other


@pytest.mark.parametrize("sets", [["SFT.steps=999"], ["SFT.seed=1"], ["MathMiniature.teacher_error=0.3"]])
def test_another_fine_tuning_makes_its_own_model(sets: list[str]) -> None:
    run = resolve("quickstart", sets).run
    assert shipped_model(cache_key(run, base_tokenizer(run))) is None


def test_a_digest_tells_models_that_differ_at_an_end_or_in_size_apart(tmp_path: Path) -> None:
    file, digests, size = tmp_path / "model.safetensors", set(), 3 * DIGESTED
    for at, more in ((None, 0), (0, 0), (size - 1, 0), (None, 1)):
        content = bytearray(size + more)
        if at is not None:
            content[at] = 1
        file.write_bytes(content)
        digests.add(weights_digest(tmp_path))
        assert weights_digest(tmp_path) in digests, "the same each time"
    assert len(digests) == 4
