"""`scalelab eval` evaluates a run's checkpoint and its exported form alike, and refuses at once what it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scalelab.cli import main
from scalelab.experiment import resolve
from tasks.data.hub import SOURCES
from tasks.scores import mean_at_k, pass_at_k
from tasks.thinking import answer_part

SETS = (
    *("Llama4Text.num_hidden_layers=2", "Llama4Text.hidden_size=64", "Llama4Text.intermediate_size=32"),
    *("Llama4Text.num_attention_heads=2", "Llama4Text.num_key_value_heads=1", "Llama4Text.no_rope_layer_interval=2"),
    *("Evaluation.prompts=4", "Evaluation.samples=2", "GeneratorConfig.max_sequences=32"),
)
CHAT = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run's checkpoint of untrained weights, and the Hugging Face folder of the same."""
    from moe.train.trainer import Trainer
    from scalelab.rollout.tokenizer import save_tokenizer
    from scalelab.start.base_model import base_tokenizer

    root = tmp_path_factory.mktemp("models")
    resolved = resolve("quickstart", SETS)
    run = root / "run"
    run.mkdir()
    (run / "config.gin").write_text(resolved.config_gin())
    checkpoint, exported = run / "checkpoints" / "step_000003", root / "exported"
    rendezvous = f"file://{root / 'meeting'}"
    trainer = Trainer(resolved.run.model.to_hf(), resolved.run.trainer_setup, rendezvous=rendezvous)
    try:
        trainer.save(checkpoint)
        trainer.save_hf(exported)
    finally:
        trainer.close()
    save_tokenizer(base_tokenizer(resolved.run), exported)
    return checkpoint, exported


OWN = """
import random
from dataclasses import dataclass
from tasks.own import RewardTask

@dataclass(frozen=True)
class Letters(RewardTask):
    name: str = "letters"
    count: int = 3
    def problem(self, rng: random.Random):
        return f"Say {self.count} letters, {rng.randrange(10**6)} times.", self.count
    def reward(self, prompt, answer):
        return {"long": min(1.0, len(answer) / 100), "right": float(len(answer) == prompt.gold)}

@dataclass(frozen=True)
class Even(Letters):
    def reward(self, prompt, answer):
        return float(len(answer) % 2 == 0)
"""


@pytest.fixture(scope="module")
def own_run(models: tuple[Path, Path]) -> Iterator[Path]:
    """A checkpoint of a run with a task of the user's own, whose file lies in another folder."""
    from scalelab.rollout.tokenizer import save_tokenizer
    from scalelab.start.base_model import base_tokenizer

    run, home = models[0].parents[2] / "own_run", models[0].parents[2] / "home"
    shutil.copytree(models[0].parents[1], run)
    home.mkdir()
    (home / "own_letters.py").write_text(OWN)
    (home / "mine.py").write_text(
        '"""Mine."""\nfrom own_letters import Letters\nfrom experiments.quickstart import experiment as base\n'
        'experiment = base.override({"Run.tasks": (Letters,), "Run.task_weights": None, '
        '"SFT.pretrained": "models/none", "Recipe.length_control": None})\n'
    )
    paths, environment = [*sys.path], {**os.environ}
    shape = [one for one in SETS if not one.startswith("Evaluation.")]
    resolved = resolve(str(home / "mine.py"), (*shape, "Evaluation.prompts=2", "Evaluation.samples=1"))
    (run / "config.gin").write_text(resolved.config_gin())
    save_tokenizer(base_tokenizer(resolve("quickstart", SETS).run), run / "checkpoints" / "tokenizer")
    sys.modules.pop("own_letters")
    yield run / "checkpoints" / models[0].name
    sys.path[:] = paths
    os.environ.update(environment)
    sys.modules.pop("own_letters", None)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_s_own_task_is_evaluated_where_the_user_trusts_its_code(
    own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(own_run)]) == 1
    error = capsys.readouterr().err
    assert "@own_letters.Letters is code of" in error
    assert "add --trust" in error
    assert "own_letters" not in sys.modules
    printed, rows = evaluate([own_run, "--trust", "--max-tokens", 4], tmp_path / "out.jsonl", capsys)
    assert printed["tasks"]["letters"]["n_prompts"] == len(rows) == 2
    assert all(row["prompt"].startswith("Say 3 letters") for row in rows)
    assert [row["outcome"] for row in rows] == ["passed" if row["reward"] >= 1 else "failed" for row in rows]


@pytest.mark.slow
def test_a_task_named_by_its_class_needs_no_run(
    own_run: Path,
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(own_run.parents[2] / "home")
    asked = ["--task", "own_letters.Letters", "--set", "own_letters.Letters.count=7", "--max-tokens", "4"]
    assert main(["eval", str(models[1]), *asked, "--prompts", "2", "--out", str(tmp_path / "out.jsonl")]) == 0
    assert "letters" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["prompt"][:5] for row in rows] == ["Say 7"] * 2


# What a stranger does with an exported folder, without anything of the lab's.
ELSEWHERE = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams

folder, texts, chats, tokens = json.loads(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

def generated(inputs):
    ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0, inputs["input_ids"].shape[1]:]
    return tokenizer.decode(ids, skip_special_tokens=True)

how = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
said = {"transformers": [
    [generated(tokenizer(text, return_tensors="pt")) for text in texts],
    [generated(tokenizer.apply_chat_template(chat, **how)) for chat in chats],
]}
llm = LLM(model=folder, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8, block_size=64)
greedy = SamplingParams(temperature=0, max_tokens=tokens)
answered = llm.generate(texts, greedy), llm.chat(chats, greedy)
# From the tokens: vLLM's own text leaves out a character that the last token begins and does not end.
ids = [[one.outputs[0].token_ids for one in outputs] for outputs in answered]
said["vllm"] = [[tokenizer.decode(one, skip_special_tokens=True) for one in outputs] for outputs in ids]
print("\\n" + json.dumps(said))
"""


@pytest.mark.slow
def test_an_exported_folder_answers_alike_in_transformers_and_vllm(
    own_run: Path,
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from scalelab.rollout.tokenizer import load_tokenizer, save_tokenizer

    folder, tokens = tmp_path / "exported", 12
    shutil.copytree(models[1], folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = CHAT
    save_tokenizer(tokenizer, folder)
    monkeypatch.chdir(own_run.parents[2] / "home")
    name = "own_letters.Even"
    asked: list[str | int] = ["--task", f"plain/{name}", f"chat/{name}", "--set", f"plain/{name}.name=plain"]
    asked += ["--set", f"chat/{name}.name=chat", "--set", f"chat/{name}.chat=True", "--prompts", 4]
    printed, rows = evaluate([folder, *asked, "--temperature", 0, "--max-tokens", tokens], tmp_path / "o.jsonl", capsys)
    ours = [[row["completion"] for row in rows if row["task"] == task] for task in ("plain", "chat")]
    texts, spoken = ([row["prompt"] for row in rows if row["task"] == task] for task in ("plain", "chat"))
    chats = [[{"role": "user", "content": text.strip()}] for text in spoken]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, json.dumps([str(folder), texts, chats, tokens])],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    for engine, theirs in said.items():
        assert theirs == ours, engine
        for task, completions in zip(("plain", "chat"), theirs, strict=True):
            answers = [answer_part(text, whole_if_unclosed=True) for text in completions]
            assert None not in answers
            rate = sum(len(answer or "") % 2 == 0 for answer in answers) / len(answers)
            assert printed["tasks"][task]["pass_rate"] == rate
    assert len({*ours[0], *ours[1]}) > 1


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / SOURCES["gsm8k_test"].local
    file.parent.mkdir()
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def evaluate(arguments: Sequence[object], out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list[dict]]:
    assert main(["eval", *map(str, arguments), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    return printed, [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_on_its_tasks_and_what_is_printed_follows_from_the_completions(
    models: tuple[Path, Path], tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = ["--task", "math", "code", "gsm8k_test", "--data", data, "--k", 3, "--max-tokens", 8]
    printed, rows = evaluate([models[0], *tasks], tmp_path / "out.jsonl", capsys)
    assert [len([row for row in rows if row["task"] == name]) for name in ("math", "code", "gsm8k_test")] == [12, 12, 9]
    assert all(row["tokens"] <= 8 for row in rows)
    for name, result in printed["tasks"].items():
        by_prompt: dict[str, list[float]] = {}
        for row in rows:
            if row["task"] == name:
                by_prompt.setdefault(row["prompt_id"], []).append(row["reward"])
        rewards = list(by_prompt.values())
        mean = mean_at_k(rewards)
        assert (result["k"], result["n_prompts"]) == (3, len(rewards))
        assert (result["mean_at_k"]["mean_at_k"], result["mean_at_k"]["stderr"]) == (mean.value, mean.stderr)
        assert result["pass_rate"] == pytest.approx(mean.value)
        assert {int(k): score["pass_at_k"] for k, score in result["pass_at_k"].items()} == {
            k: pass_at_k(rewards, k).value for k in (1, 2, 3)
        }
        assert sum(result["outcomes"].values()) == 3 * len(rewards)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_exported_model_is_asked_plainly_and_greedy_answers_repeat(
    models: tuple[Path, Path], tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--task", "gsm8k_test", "--data", data, "--max-tokens", 8, "--temperature", 0, "--ask", "plain", "--think"]
    of_run = evaluate([models[0], *asked, "--k", 1], tmp_path / "a.jsonl", capsys)[1]
    assert main(["eval", str(models[1]), *map(str, asked), "--out", str(tmp_path / "b.jsonl")]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["task", "prompts", "k", "mean@k", "pass@k", "truncated", "tokens", "outcomes"]
    assert row.split()[:6] == ["gsm8k_test", "3", "1", "0.000", "±", "0.000"]
    of_folder = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    kept = ("prompt_id", "prompt", "completion", "outcome")
    assert [[row[name] for name in kept] for row in of_run] == [[row[name] for name in kept] for row in of_folder]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("nowhere", ["--task", "math"], "there is no folder"),
        ("run", ["--task", "math"], "is a run: name one of its checkpoints, such as"),
        ("checkpoint", ["--task", "maths"], "unknown task 'maths': did you mean 'math'?"),
        ("checkpoint", ["--task", "math", "--k", "0"], "--k is 0: give at least 1"),
        ("checkpoint", ["--task", "math", "--prompts", "1"], "--prompts is 1: give at least 2"),
        ("checkpoint", ["--task", "math", "--max-tokens", "9999"], "lower --max-tokens"),
        ("checkpoint", ["--task", "math", "--temperature", "0", "--k", "2"], "same completion"),
        ("checkpoint", ["--task", "gsm8k_test", "--prompts", "4"], "holds out 3 prompts, 4 are asked for"),
        ("checkpoint", ["--task", "aime_25"], "put the data there"),
        ("checkpoint", ["--task", "math", "--out", "/nowhere/out.jsonl"], "make it first"),
        ("checkpoint", ["--max-tokens", "9999"], "lower --max-tokens"),
        ("exported", [], "belongs to no run: name its tasks"),
        ("exported", ["--task", "gsm8k_test"], "no chat template"),
        ("exported", ["--task", "code"], "unknown task 'code'"),
        ("exported", ["--task", "nowhere_at_all.Reverse"], "no module nowhere_at_all beside"),
        ("exported", ["--task", "Recipe"], "Recipe has no describe"),
        ("exported", ["--task", "gsm8k_test", "--set", "Recipe.loss=DAPO"], "--set is for tasks that are named"),
        (
            "exported",
            ["--task", "MathMiniature", "--set", "ReasoningGym.size=3"],
            "this experiment has no ReasoningGym",
        ),
        ("exported", ["--task", "MathMiniature", "--set", "MathMiniature.name=3"], "must be str, not 3"),
        ("empty", ["--task", "math"], "holds no model"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line_before_anything_starts(
    model: str,
    arguments: list[str],
    says: str,
    models: tuple[Path, Path],
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint, exported = models
    places = {"checkpoint": checkpoint, "run": checkpoint.parent.parent, "exported": exported}
    place = places.get(model, data / model)
    if model == "empty":
        place.mkdir()
    assert main(["eval", str(place), *arguments, "--data", str(data)]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_checkpoint_that_was_never_finished_or_lost_its_run_is_named(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "step_000003"
    moved.mkdir()
    for file in models[0].iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert main(["eval", str(moved), "--task", "math"]) == 1
    assert "is a checkpoint without its run" in capsys.readouterr().err
    (moved / "checkpoint.json").write_text("{")
    assert main(["eval", str(moved), "--task", "math"]) == 1
    assert "damaged" in capsys.readouterr().err
