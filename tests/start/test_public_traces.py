"""Public traces: read in every format, refused in one line, and a pretrained model really learns from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.numpy import load_file

from moe.sequences import TrainingSequence
from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import Hardware, device
from scalelab.plan.check import check_fine_tuning, fine_tuning_problem
from scalelab.rollout.tokenizer import build_tokenizer, load_tokenizer, save_tokenizer
from scalelab.run.config import Run
from scalelab.session import only_sft
from scalelab.session.only_sft import fine_tune
from scalelab.session.start_up import StartUp
from scalelab.start.base_model import base_model, pretrained
from scalelab.start.fine_tuning import LocalTuner
from scalelab.start.traces import prepare
from scalelab.store.folder import RunFolder
from scalelab.watch.progress import Progress
from tasks.data.hub import SOURCES
from tasks.data.traces import PublicTraces, Trace, read_trace
from tasks.errors import TaskError

pytestmark = pytest.mark.slow
WORDS = ["What is 1 + 1? I add 1 and 1. It is \\boxed{2}. Put your final answer within .", "<think>\n</think>\n\n"]
TOKENIZER = build_tokenizer(WORDS, 320)


def chat(problem: str, completion: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": problem}, {"role": "assistant", "content": completion}]}


def row(number: int) -> dict[str, Any]:
    worked = f"<think>\nI add {number} and 1.\n</think>\n\nIt is \\boxed{{{number + 1}}}."
    return chat(f"What is {number} + 1?", worked)


def shared(problem: str, thought: str, solution: str) -> dict[str, Any]:
    """A row as OpenThoughts-114k has it."""
    completion = (
        f"<|begin_of_thought|>\n{thought}\n<|end_of_thought|>\n\n<|begin_of_solution|>\n{solution}\n<|end_of_solution|>"
    )
    turns = [{"from": "user", "value": problem}, {"from": "assistant", "value": completion}]
    return {"system": "Think.", "conversations": turns}


@pytest.mark.parametrize(
    ("found", "trace"),
    [
        (row(3), Trace("What is 3 + 1?", "math", "I add 3 and 1.", "It is \\boxed{4}.")),
        (
            shared("Return your final response within \\boxed{}. What is 2?", "two", "It is 2."),
            Trace("What is 2?", "math", "two", "It is 2."),
        ),
        (
            shared(
                "Generate an executable Python function generated from the given prompt. The function should take "
                "stdin as input and print the output. Simply call the function after the definition.Add.",
                "sum",
                "print(1)",
            ),
            Trace("Add.", "code", "sum", "print(1)"),
        ),
        (
            {
                "difficulty": 7,
                "domain": "science",
                "conversations": [
                    {"from": "human", "value": "Why?"},
                    {"from": "gpt", "value": "<think>because</think>So."},
                ],
            },
            Trace("Why?", "science", "because", "So."),
        ),
    ],
)
def test_rows_of_every_format_give_problem_thinking_and_answer(found: dict[str, Any], trace: Trace) -> None:
    assert read_trace(found) == trace
    assert trace.completion == f"{trace.thinking}\n</think>\n\n{trace.answer}"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (chat("p", "It is 2."), "no thinking"),
        (chat("p", "<think>I run out of tok"), "no thinking"),
        (chat("p", "<think>a</think>b</think>c"), "no thinking"),
        (chat("p", "Well. <think>a</think>b"), "no thinking"),
        (chat("p", "<think>a</think>  "), "empty"),
        (chat(" ", "<think>a</think>b"), "empty"),
        ({"messages": [*row(1)["messages"], *row(2)["messages"]]}, "not one question"),
        ({"messages": None}, "not one question"),
    ],
)
def test_rows_that_teach_nothing_are_left_out_with_the_reason(found: dict[str, Any], reason: str) -> None:
    said = read_trace(found)
    assert isinstance(said, str)
    assert reason in said


@given(st.text(), st.text(), st.text())
def test_any_text_is_read_or_left_out(problem: str, thinking: str, answer: str) -> None:
    found = read_trace(chat(problem, f"<think>{thinking}</think>{answer}"))
    if isinstance(found, Trace):
        assert found.completion.count("</think>") == 1
        assert found.thinking in thinking
        assert found.answer in answer


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"text": "p"}, "columns text, where messages or conversations is expected"),
        ({"messages": "p"}, "are not turns of role and content"),
        ({"messages": [{"role": "user"}]}, "are not turns of role and content"),
        ({"conversations": [{"from": "human", "value": 3}]}, "are not turns of from and value"),
    ],
)
def test_a_set_without_traces_is_refused_in_one_line(found: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says) as caught:
        read_trace(found)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dataset": "openr1_maths"}, "did you mean openr1_math"),
        ({"dataset": "own"}, "bind PublicTraces.folder"),
        ({"held_out": 0}, "give at least 1"),
        ({"against": ("aime_99",)}, "unknown data set 'aime_99'"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_they_are_read(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        PublicTraces(**fields)


def test_a_revision_that_is_no_commit_is_refused_before_anything_is_downloaded() -> None:
    with pytest.raises(TaskError, match="give the 40 hexadecimal digits of a commit"):
        PublicTraces(revision="main").provenance()


def write(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl") -> Path:
    folder = folder / "traces"
    folder.mkdir(exist_ok=True, parents=True)
    text = "\n".join(map(json.dumps, rows))
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    elif name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    else:
        (folder / name).write_text(f"[{','.join(map(json.dumps, rows))}]" if name.endswith(".json") else text)
    return folder / name


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.json"])
def test_files_of_every_kind_give_the_same_rows_in_the_order_of_their_names(tmp_path: Path, name: str) -> None:
    write(tmp_path, [row(1), row(2)], name)
    write(tmp_path, [row(3)], name.replace("a", "b", 1))
    public = PublicTraces("own", folder=str(tmp_path))
    assert [read_trace(one) for one in public.rows()] == [read_trace(row(number)) for number in (1, 2, 3)]
    assert len(public.provenance()["files"]) == 2
    (tmp_path / "traces" / name).write_bytes(b"{damaged")
    with pytest.raises(TaskError, match=r"fetch it again|objects") as caught:
        list(public.rows())
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model of the miniature's shape, as `save_pretrained` has it."""
    folder = tmp_path_factory.mktemp("instruct")
    run = resolve("scalerl_8b_miniature", SHAPE).run
    tuner = LocalTuner(run)
    tuner.save_hf(folder)
    tuner.close()
    save_tokenizer(TOKENIZER, folder)
    return folder


SHAPE = ["Llama.num_hidden_layers=2", "Llama.hidden_size=64", "Llama.intermediate_size=64", "Llama.head_dim=32"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Traces and problems, with a cache of their own."""
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    write(tmp_path, [row(number) for number in range(40)])
    file = tmp_path / SOURCES["gsm8k"].local
    file.parent.mkdir()
    problems = [{"question": f"How much do {n} sheep and {n} goats cost?", "answer": f"#### {n}"} for n in range(30)]
    file.write_text("\n".join(map(json.dumps, problems)))
    return tmp_path


def run_on(data: Path, start: Path | None, *sets: str) -> Run:
    bound = [
        *SHAPE,
        "Run.tasks=(@MathDataset(),)",
        "Run.task_weights=None",
        "MathDataset.dataset='gsm8k'",
        f"MathDataset.folder={str(data)!r}",
        "MathDataset.name='math'",
        "MathDataset.against=()",
        "MathDataset.held_out_size=8",
        "Evaluation.prompts=8",
        "GeneratorConfig.max_model_len=256",
        "SFT.traces=@PublicTraces()",
        f"SFT.pretrained={None if start is None else str(start)!r}",
        "SFT.longest=160",
        "SFT.trainers=1",
        "SFT.steps=12",
        "SFT.traces_per_step=8",
        "SFT.learning_rate=3e-3",
        "SFT.checkpoint_every=4",
        "PublicTraces.dataset='own'",
        f"PublicTraces.folder={str(data)!r}",
        "PublicTraces.held_out=6",
    ]
    chosen = {one.partition("=")[0]: one for one in (*bound, *sets)}
    return resolve("scalerl_8b_miniature", list(chosen.values())).run


def test_examples_ask_as_the_task_does_and_end_where_engines_stop(data: Path, start: Path) -> None:
    run = run_on(data, start)
    prepared = prepare(run, load_tokenizer(start), data / "prepared")
    seen: set[str] = set()
    for step in range(6):
        for one in prepared.step(step):
            text = TOKENIZER.decode(one.tokens_T.tolist())
            number = int(text.partition("What is ")[2].partition(" ")[0])
            seen.add(text)
            asked = run.tasks[0].ask(f"What is {number} + 1?").text  # type: ignore[attr-defined]
            assert asked.endswith("<think>\n")
            completion = f"I add {number} and 1.\n</think>\n\nIt is \\boxed{{{number + 1}}}."
            assert text == f"<bos>{asked}{completion}<eos>"
            prompt = len(TOKENIZER.encode(asked))
            weights_T = one.extras["weights"]
            assert not weights_T[:prompt].any()
            assert (weights_T[prompt:] > 0).all()
        assert sum(float(one.extras["weights"].sum()) for one in prepared.step(step)) == pytest.approx(1)
    held_out = {TOKENIZER.decode(one.tokens_T.tolist()) for one in prepared.held_out()}
    assert len(held_out) == 6
    assert not held_out & seen
    assert len(seen) == 34, "an epoch shows every trace"


def test_what_is_left_out_is_counted_and_the_work_is_done_once(data: Path, start: Path) -> None:
    sheep = chat("How much do 3 sheep and 3 goats cost?", "<think>a</think>b")
    rows = [
        *(row(number) for number in range(40)),
        chat("p", "no thinking"),
        chat("What is long?", f"<think>{'I add. ' * 200}</think>b"),
        chat("What is special?", "<think>a <eos> b</think>c"),
        {**row(50), "domain": "science"},
        *([sheep] * 30),
    ]
    write(data, rows)
    for number in range(30):  # whichever sheep are held out
        rows[44 + number] = chat(f"How much do {number} sheep and {number} goats cost?", "<think>a</think>b")
    write(data, rows)
    run = run_on(data, start)
    said: list[str] = []
    prepared = prepare(run, load_tokenizer(start), data / "prepared", said.append)
    left_out = prepared.facts["left_out"]
    assert left_out["with no thinking"] == 1
    assert left_out["longer than SFT.longest = 160 tokens"] == 1
    assert left_out["with special tokens in the text"] == 1
    assert left_out["of science, which no task asks"] == 1
    assert left_out["with a problem of an evaluation"] == 8, "the task's held-out problems"
    again: list[str] = []
    prepare(run, load_tokenizer(start), data / "prepared", again.append)
    assert again == said[1:], "the second time nothing is read"


def test_all_traces_of_a_problem_are_on_one_side(data: Path, start: Path) -> None:
    write(data, [chat(f"What is {n // 4} + 1?", f"<think>{n}</think>b") for n in range(80)])
    prepared = prepare(run_on(data, start), load_tokenizer(start), data / "prepared")

    def problems(sequences: list[TrainingSequence]) -> set[str]:
        return {TOKENIZER.decode(one.tokens_T.tolist()).partition("?")[0] for one in sequences}

    trained = set().union(*(problems(prepared.step(step)) for step in range(9)))
    assert not trained & problems(prepared.held_out())


@pytest.mark.parametrize(
    ("sets", "rows", "says"),
    [
        (["SFT.longest=20"], None, r"0 of 40 traces can be used \(40 longer than SFT.longest = 20 tokens\)"),
        ([], [chat("p", "no thinking")] * 9, r"0 of 9 traces can be used \(9 with no thinking\)"),
        ([], [{"text": "p"}], "columns text, where messages or conversations is expected"),
        (["PublicTraces.folder='nowhere'"], None, "no traces in nowhere/traces: put Parquet or JSON lines files there"),
        (["MathDataset.thinking=False", "Recipe.length_control=None"], None, "and math answers at once"),
    ],
)
def test_traces_that_will_not_do_are_refused_before_a_trainer_starts(
    data: Path, start: Path, sets: list[str], rows: list[dict[str, Any]] | None, says: str
) -> None:
    if rows is not None:
        write(data, rows)

    def never(run: Run) -> LocalTuner:
        raise AssertionError("a trainer was started")

    with pytest.raises((LabError, TaskError), match=says) as caught:
        base_model(run_on(data, start, *sets), Progress(), never, data / "base")
    assert "\n" not in str(caught.value)


def test_a_task_that_only_knows_its_own_problems_cannot_ask_them(data: Path, start: Path) -> None:
    run = replace(run_on(data, start), tasks=resolve("quickstart").run.tasks)
    with pytest.raises(LabError, match=r"needs a task that can ask their problems \(MathDataset, CodeDataset\), not"):
        prepare(run, TOKENIZER, data / "prepared")


def test_settings_that_contradict_the_run_are_refused_when_it_is_read(data: Path, start: Path) -> None:
    with pytest.raises(LabError, match=r"bind SFT\.pretrained to its Hugging Face folder"):
        run_on(data, None)
    with pytest.raises(LabError, match=r"SFT.longest \(300\) exceeds GeneratorConfig.max_model_len \(256\)"):
        run_on(data, start, "SFT.longest=300")


def test_the_large_experiments_are_fine_tuned_alike_and_hold_what_they_train_on() -> None:
    dense, scout = (resolve(f"sft/{name}").run for name in ("scalerl_8b", "scalerl_17bx16"))
    ours = ("steps", "traces_per_step", "longest", "learning_rate", "traces")
    assert [getattr(dense.sft, name) for name in ours] == [getattr(scout.sft, name) for name in ours]
    for run, count in ((dense, 16), (scout, 32)):
        check_fine_tuning(run, Hardware(device("h100"), count))
        with pytest.raises(LabError, match=f"wants SFT.trainers = {count} devices, there are 8"):
            check_fine_tuning(run, Hardware(device("h100"), 8))
    with pytest.raises(LabError, match=r"does not fit: \d+ GiB of 79 on h100: raise SFT.trainers"):
        check_fine_tuning(resolve("sft/scalerl_17bx16", ["Layout.pipeline=1"]).run, Hardware(device("h100"), 32))


def test_a_fine_tuning_needs_memory_for_its_own_traces_not_for_what_engines_take() -> None:
    few = ["SFT.trainers=2", "TrainerConfig.tokens_per_micro_batch=4096"]
    assert fine_tuning_problem(resolve("sft/scalerl_8b", few).run, Hardware(device("h100"), 80))
    short = resolve("sft/scalerl_8b", [*few, "SFT.longest=4096"]).run
    assert short.generator.max_model_len == 16384
    assert fine_tuning_problem(short, Hardware(device("h100"), 80)) is None


def test_ranks_of_a_fine_tuning_that_no_node_holds_are_refused() -> None:
    run = resolve("sft/scalerl_8b").run
    with pytest.raises(LabError, match="8 ranks of the fine-tuning are to share a node, and one has 4 devices"):
        check_fine_tuning(run, Hardware(device("gb200"), 80))
    check_fine_tuning(resolve("sft/scalerl_8b", ["Cluster.devices_per_node=4"]).run, Hardware(device("gb200"), 80))


OWN = ["SFT.pretrained=None"]
"""Fine-tuned on the traces of its own tasks."""


@pytest.mark.parametrize(
    ("name", "sets", "said"),
    [
        ("sft/scalerl_8b", ["SFT.trainers=96"], "fine-tuning wants SFT.trainers = 96 devices, there are 80: lower it"),
        ("sft/scalerl_8b", ["SFT.trainers=2"], "a rank of the fine-tuning does not fit"),
        ("h100/scalerl_8b", [*OWN, "SFT.trainers=2"], "a rank of the fine-tuning does not fit"),
        ("scalerl_8b", [], r"a generator device does not fit: 118 GiB of 79 on h100 .*; what fits on 80 × h100: --set"),
        (
            "h100/scalerl_8b",
            ["GeneratorConfig.tensor_parallel=16"],
            "must share a node of 8: .*; what fits on 80 ×",
        ),
        (
            "h100/scalerl_8b",
            ["Cluster.trainers=32"],
            "the run wants 96 devices .*, there are 80; what fits",
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused_in_one_line_before_an_actor_starts(
    name: str, sets: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from scalelab.cluster import actors, gpu_nodes, placement, surroundings, trainer_ranks
    from scalelab.session import worlds
    from scalelab.start import base_model as models

    node = {"Alive": True, "Resources": {"GPU": 8.0, "accelerator_type:H100": 1.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [node] * 10)
    monkeypatch.setattr(placement, "JOIN_SECONDS", 0.0)  # no other node will join
    monkeypatch.setattr(gpu_nodes, "check_gpu_nodes", lambda packages, seconds, say: None)
    monkeypatch.setattr(models, "tokenizer_and_key", lambda run, prepared: None)
    monkeypatch.setattr(models, "base_model", lambda run, progress, tuner, **settings: tuner(run))
    monkeypatch.setattr(trainer_ranks, "ClusterTuner", lambda run: pytest.fail("a trainer starts"))
    for room, names in (
        (surroundings, ("check_surroundings", "settle")),
        (actors, ("start_ray", "end_ray")),
        (worlds, ("heed_signals",)),
    ):
        for part in names:
            monkeypatch.setattr(room, part, lambda *args, **settings: None)
    monkeypatch.setattr(actors, "guard_ray", lambda report: lambda: None)
    run = resolve(name, sets).run
    with pytest.raises(LabError, match=said) as refused:
        worlds.run_on_cluster(run, run, RunFolder(tmp_path), Progress(), None, StartUp())
    assert "\n" not in str(refused.value)


def test_a_plan_refuses_a_fine_tuning_that_does_not_fit_and_leaves_out_one_that_is_not_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, sets, code in (
        ("h100/scalerl_8b", ["SFT.trainers=2"], 0),  # the model is taken as it is
        ("h100/scalerl_8b", [*OWN, "SFT.trainers=2"], 1),
        ("sft/scalerl_8b", ["SFT.trainers=2"], 1),
    ):
        options = [word for binding in sets for word in ("--set", binding)]
        assert main(["plan", name, *options]) == code, (name, sets)
        assert ("does not run: a rank of the fine-tuning does not fit: " in capsys.readouterr().out) == bool(code)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the trainer end, as a killed process does, at a step; 0 never."""

    def at(number: int) -> None:
        class Killed(LocalTuner):
            steps = 0

            def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
                self.steps += 1
                if self.steps == number:
                    raise KeyboardInterrupt
                return super().start_step(sequences, loss, lr)

        monkeypatch.setattr(only_sft, "LocalTuner", Killed)

    return at


def test_a_pretrained_model_learns_from_them_and_a_killed_fine_tuning_goes_on(
    data: Path, start: Path, killed: Callable[[int], None]
) -> None:
    run, out = run_on(data, start), data / "models" / "tuned"
    killed(0)
    whole = fine_tune(run, data / "whole", Progress())
    steps, losses = zip(*whole["held_out_loss"], strict=True)
    assert steps == (0, 4, 8, 12)
    assert losses[-1] < 0.8 * losses[0], "traces that it never saw have become likelier"
    killed(7)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(run, out, Progress())
    killed(9)
    assert fine_tune(run, out, Progress()) == whole, "eight more steps, not twelve"
    mine, straight = load_file(out / "model.safetensors"), load_file(data / "whole" / "model.safetensors")
    assert all((mine[name] == straight[name]).all() for name in straight)
    assert whole["traces"]["start"] == str(start)
    assert not list(out.parent.glob(".*")), "nothing else is left"
    with pytest.raises(LabError, match="exists: give another --out"):
        fine_tune(run, out, Progress())
    # RL takes the folder as any other
    rl = replace(run, sft=replace(run.sft, pretrained=str(out), traces=None))
    assert base_model(rl, Progress(), LocalTuner) == pretrained(rl, str(out)) == out
    with pytest.raises(LabError, match="there is nothing to fine-tune"):
        fine_tune(rl, data / "other", Progress())
