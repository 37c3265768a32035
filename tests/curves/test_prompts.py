"""Comparison prompt by prompt: its numbers against slow versions, its intervals against the truth, its command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from scalelab.arrays import Array
from scalelab.cli import main
from scalelab.curves.paired import _rewards
from scalelab.curves.prompts import difference_by_prompt, errors, of_metric, seeds_to_find, variances


def test_pass_at_k_is_the_share_of_all_subsets_with_a_pass() -> None:
    outcomes = [1.0, 0, 0, 1, 0, 0, 0]
    for k in (1, 2, 4, 7):
        slow = np.mean([any(chosen) for chosen in combinations(outcomes, k)])
        assert of_metric(f"pass@{k}", outcomes, []) == pytest.approx(slow)


def test_the_majority_is_that_of_the_answers_and_a_tie_is_shared() -> None:
    assert of_metric("majority", [1.0, 1, 0, 0, 0], ["4", "4", "5", "6", "7"]) == 1.0
    assert of_metric("majority", [1.0, 1, 0, 0], ["4", "4", "5", "5"]) == 0.5
    assert of_metric("majority", [1.0, 0, 0, 0], ["4", None, None, None]) == 1.0, "no answer is no vote"


def drawn(
    rng: np.random.Generator, seeds: Sequence[int], prompts: int, spread: float, gain: float = 0.0
) -> list[Array]:
    """Numbers `[S, P]` of two recipes, the first higher by the gain: crossed effects of prompts and seeds."""
    easy, recipes = rng.normal(0, 0.3, prompts), []
    for count, level in zip(seeds, (gain, 0.0)):
        of_recipe = level + easy + rng.normal(0, 0.1, prompts)
        recipes.append(of_recipe + rng.normal(0, spread, (count, 1)) + rng.normal(0, 0.2, (count, prompts)))
    return recipes


def test_intervals_hold_the_difference_for_new_prompts_and_new_seeds() -> None:
    rng, held = np.random.default_rng(3), []
    for _ in range(400):
        recipes = drawn(rng, (2, 4), 40, 0.03)
        low, high = recipes[0].mean() - recipes[1].mean() + np.quantile(errors(*recipes), [0.1, 0.9])
        held.append(low <= 0 <= high)
    assert 0.74 <= np.mean(held) <= 0.9


@pytest.mark.parametrize("seeds", [(2, 2), (1, 4)])
def test_few_seeds_tell_recipes_alike_apart_as_seldom_as_is_asked(seeds: tuple[int, int]) -> None:
    rng, words = np.random.default_rng(11), []
    for _ in range(600):
        pair = [
            {str(seed): {str(at): float(one) for at, one in enumerate(y_P)} for seed, y_P in enumerate(y_SP)}
            for y_SP in drawn(rng, seeds, 200, 0.03)
        ]
        words.append(difference_by_prompt(("", "b", "a"), (pair[0], pair[1]), 0.02, 0.1, 0.8).verdict)
    assert 0.05 <= np.mean([word in ("better", "worse") for word in words]) <= 0.125


def test_the_seeds_that_are_said_to_find_a_difference_find_it() -> None:
    rng, parts, found = np.random.default_rng(5), (2 * 0.1**2, 0.2**2, 0.02**2), []
    seeds = seeds_to_find(0.05, parts, 200, 0.1)
    assert seeds is not None
    for _ in range(300):
        recipes = drawn(rng, (seeds, seeds), 200, 0.02, gain=0.05)
        found.append(np.quantile(recipes[0].mean() - recipes[1].mean() + errors(*recipes), 0.05) > 0)
    assert 0.7 <= np.mean(found) <= 0.95
    assert seeds_to_find(0.001, parts, 200, 0.1) is None


def write(path: Path, run: str, gain: float, seeds: int = 2, prompts: int = 60) -> str:
    rng = np.random.default_rng(len(run))
    easy = np.random.default_rng(0).uniform(0.1, 0.8, prompts)
    lines = ["run,seed,step,prompt_id,outcome"]
    for seed in range(seeds):
        for step, share in ((0, 0.5), (10, 1.0)):
            for at, rate in enumerate(easy * share):
                passed = rng.random(8) < min(rate + gain * share, 1)
                lines += [f"{run},{seed},{step},q{at},{'passed' if one else 'wrong answer'}" for one in passed]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_command_says_what_the_last_completions_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [write(tmp_path / "a.csv", "base", 0.0), write(tmp_path / "b.csv", "longer", 0.2)]
    assert main(["compare", *sources, "--by-prompt"]) == 0
    assert "longer less base +0." in (out := capsys.readouterr().out)
    assert "better, for new prompts like these 60" in " ".join(out.split())
    assert main(["compare", *sources, "--by-prompt", "pass@4", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["by_prompt"]
    assert (found["run"], found["baseline"], found["seeds"], found["verdict"]) == ("longer", "base", [2, 2], "better")


def test_a_run_s_folder_is_no_table_of_completions_and_those_that_it_holds_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    for step in (10, 20):
        (tmp_path / "run" / "rollouts" / f"step_{step:06d}.parquet").touch()
    for folder, such in ((tmp_path / "run", "step_000020.parquet"), (tmp_path, "RUN/rollouts/")):
        assert main(["compare", str(folder), "--by-prompt"]) == 1
        said = capsys.readouterr().err
        assert f"{folder} is a folder; give tables of completions" in said
        assert such in said


def test_an_error_is_the_verifiers_and_counts_for_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["run,prompt,outcome"]
    for run in "ab":
        rows += [f"{run},{n},{'error' if (run, n) == ('a', 0) else 'passed' if n % 2 else 'failed'}" for n in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    assert main(["compare", str(tmp_path / "t.csv"), "--by-prompt"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "b less a +0.0000" in out
    assert "for new prompts like these 19 (" in out
    assert "1 with an error of the verifier left out" in out
    rows = [f"{row.rpartition(',')[0]},error" if row[0] == "a" and row[:4] != "a,1," else row for row in rows]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    assert main(["compare", str(tmp_path / "t.csv"), "--by-prompt"]) == 1
    assert "b and a have 1 prompts in common beside 19 with an error of the verifier" in capsys.readouterr().err


def test_a_completion_that_a_runs_verifier_failed_to_grade_has_no_reward(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    outcomes = ["passed", "error", "failed", "passed"]
    columns = {"prompt_id": ["q0", "q0", "q1", "q1"], "reward": [1.0, 0.0, 0.0, 1.0], "outcome": outcomes}
    parquet.write_table(pyarrow.table({"task": ["math"] * 4, **columns}), tmp_path / "rollouts" / "step_000010.parquet")
    found = _rewards(tmp_path, "math", 10)
    assert [prompt for prompt, _ in found] == ["q0", "q0", "q1", "q1"]
    np.testing.assert_array_equal([reward for _, reward in found], [1.0, np.nan, 0.0, 1.0])


def two_tasks(path: Path) -> str:
    """Two recipes of which b passes more on math and less on code; its second column of outcomes is of other words."""
    rows = ["run,task,prompt,outcome,strict"]
    for run, shares in (("a", (2, 3)), ("b", (3, 1))):
        for task, share in zip(("math", "code"), shares):
            rows += [f"{run},{task},{n},{int(n % 4 < share)},{'yes' if n % 8 < share else 'no'}" for n in range(80)]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def found_by_prompt(capsys: pytest.CaptureFixture[str], *command: str) -> list[dict[str, object]]:
    assert main(["compare", *command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["by_prompt"]


def test_a_task_that_one_run_alone_has_is_named_and_held_against_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_tasks(tmp_path / "t.csv")
    with open(path, "a") as file:
        file.writelines(f"b,poems,{n},1,yes\n" for n in range(9))
    assert main(["compare", path, "--by-prompt"]) == 0
    out = capsys.readouterr().out
    assert "poems: b alone has completions of it, so nothing is held against it." in out
    assert out.count("poems") == 1
    assert main(["compare", path, "--by-prompt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uncompared"] == {"poems": "b"}
    assert main(["compare", path, "--by-prompt", "--task", "math", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uncompared"] == {}


def test_tasks_and_columns_that_are_named_are_those_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = two_tasks(tmp_path / "two.csv")
    both = found_by_prompt(capsys, source, "--by-prompt")
    assert [(one["task"], one["difference"]) for one in both] == [("math", 0.25), ("code", -0.5)]
    assert [one["task"] for one in found_by_prompt(capsys, source, "--by-prompt", "--task", "code")] == ["code"]
    [strict] = found_by_prompt(capsys, source, "--by-prompt", "--task", "math", "--column", "outcome=strict")
    assert strict["difference"] == 0.125
    rows = [f"{line},exp" for line in Path(source).read_text().splitlines()[1:]]
    (tmp_path / "one.csv").write_text("\n".join(["model,task,prompt,correct,strict,experiment", *rows]) + "\n")
    assert len(found_by_prompt(capsys, str(tmp_path / "one.csv"), "--by-prompt")) == 2, "an experiment of two models"
    for names in ("run_name,dataset,Prompt ID,is_correct,strict", "Model,eval_name,question,passed,strict"):
        lines = Path(source).read_text().splitlines()[1:]
        (tmp_path / "theirs.csv").write_text("\n".join([names, *lines]) + "\n")
        theirs = found_by_prompt(capsys, str(tmp_path / "theirs.csv"), "--by-prompt")
        assert [(one["task"], one["difference"]) for one in theirs] == [("math", 0.25), ("code", -0.5)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task", "nosuch"], "no task 'nosuch' in the sources; there are: math, code"),
        (["--column", "outcome=nosuch"], "no column 'nosuch' for outcome; it has run, task, prompt"),
        (["--column", "pass_rate=outcome"], "--column pass_rate=…: no such column; the columns are prompt, outcome"),
        (["--plot", "x.png"], "--plot cannot go with --by-prompt"),
        (["--wide", "--at", "5", "--seed-spread", "0"], "--at, --wide, --seed-spread cannot go with --by-prompt"),
        (["--pool", "both", "--since", "3"], "--pool, --since cannot go with --by-prompt"),
    ],
)
def test_no_option_is_left_unused_without_a_word(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", two_tasks(tmp_path / "two.csv"), "--by-prompt", "mean", *argv]) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("prompts", "verdict"), [(8, "cannot tell"), (400, "equal")])
def test_prompts_that_all_agree_say_equal_only_where_they_are_many(
    prompts: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{run},{prompt},{prompt % 2}" for run in "ab" for prompt in range(prompts)]
    (tmp_path / "both.csv").write_text("\n".join(["run,prompt,outcome", *rows]))
    assert main(["compare", str(tmp_path / "both.csv"), "--by-prompt", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["by_prompt"]
    assert (found["difference"], found["verdict"]) == (0.0, verdict)
    low, high = found["interval"]
    assert low < 0 < high


@pytest.mark.parametrize(("prompts", "margin", "share"), [(90, 0.02, 0.02), (133, 0.02, 0.02), (133, 0.98, 0.98)])
def test_few_prompts_unlike_the_others_say_equal_falsely_as_seldom_as_is_asked(
    prompts: int, margin: float, share: float
) -> None:
    """One recipe passes its share of the prompts, the other none: the difference is the margin."""
    rng, words, none = np.random.default_rng(5), [], {"0": {str(at): 0.0 for at in range(prompts)}}
    for _ in range(400):
        some = {"0": {str(at): float(one) for at, one in enumerate(rng.random(prompts) < share)}}
        found = difference_by_prompt(("", "b", "a"), (some, none), margin, 0.1, 0.8)
        words.append(found.verdict)
        assert found.interval[0] < found.difference < found.interval[1]
    assert np.mean([word == "equal" for word in words]) <= 0.12


def with_two_more(first: list[float], second: list[float]) -> float:
    """Variance of the difference of two means of single seeds, prompt by prompt, with the two that a sample lacks."""
    gaps = [one - other for one, other in zip(first, second)]
    middle, count = sum(gaps) / len(gaps), len(gaps)
    fourth, square = (sum((gap - middle) ** power for gap in gaps) for power in (4, 2))
    away = fourth / square if square > 1e-12 else 1.0
    if set(first) <= {0.0, 1.0} or set(second) <= {0.0, 1.0}:
        away = max(away, 1.0)
    both = 2 * max(away - 3 * square / count, 0.0)
    return (square + both) / (count - 1) / count


@given(st.data(), st.integers(2, 12))
def test_the_variance_over_prompts_is_that_of_a_slow_count(data: st.DataObject, prompts: int) -> None:
    values = st.sampled_from((0.0, 1.0)) if data.draw(st.booleans()) else st.sampled_from((0.0, 0.25, 0.5, 1.0))
    first, second = (data.draw(st.lists(values, min_size=prompts, max_size=prompts)) for _ in range(2))
    found, of_seeds = variances(np.array([first]), np.array([second]))
    assert of_seeds is None
    assert found == pytest.approx(with_two_more(first, second))


def passes(rng: np.random.Generator, easy: Array, completions: int, k: int) -> dict[str, dict[str, float]]:
    """pass@k of one seed on prompts as easy as their logits say."""
    right = rng.binomial(completions, 1 / (1 + np.exp(-easy)))
    by_count = [of_metric(f"pass@{k}", [1.0] * c + [0.0] * (completions - c), []) for c in range(completions + 1)]
    return {"0": {str(at): by_count[c] for at, c in enumerate(right.tolist())}}


@pytest.mark.parametrize(("completions", "k", "level"), [((4, 16), 4, 2.5), ((4, 16), 1, 0.0), ((16, 16), 2, 0.0)])
def test_pass_at_k_of_recipes_alike_has_no_bias_and_intervals_that_hold(
    completions: tuple[int, int], k: int, level: float
) -> None:
    """Also where nearly all prompts are solved, and with unequal numbers of completions."""
    rng, found = np.random.default_rng(1), []
    for _ in range(300):
        easy = level + rng.normal(0, 1.5, 60)
        pair = passes(rng, easy, completions[0], k), passes(rng, easy, completions[1], k)
        found.append(difference_by_prompt(("", "b", "a"), pair, 0.02, 0.1, 0.8))
    gaps = np.array([one.difference for one in found])
    assert abs(gaps.mean()) < 3 * gaps.std() / np.sqrt(len(gaps))
    assert np.mean([one.interval[0] <= 0 <= one.interval[1] for one in found]) >= 0.74
    assert np.mean([one.verdict in ("better", "worse") for one in found]) <= 0.14


def test_prompts_that_a_seed_lacks_are_said_to_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacked = {("a", 0): {3}, ("b", 1): {3, 7}, ("b", 0): {50}}
    rows = [
        f"{run},{seed},{prompt},{(prompt + seed) % 2}"
        for run in "ab"
        for seed in range(2)
        for prompt in range(60)
        if prompt not in lacked.get((run, seed), ())
    ]
    (tmp_path / "t.csv").write_text("\n".join(["run,seed,prompt,outcome", *rows]))
    assert main(["compare", str(tmp_path / "t.csv"), "--by-prompt"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "new prompts like these 57 (" in out
    assert "; 3 that a seed lacks left out" in out


def votes(path: Path, run: str, completions: int) -> str:
    """A recipe, the same whatever its name, whose right answers of a prompt agree and whose wrong ones do not."""
    rng, rows = np.random.default_rng(completions), ["run,prompt,outcome,answer"]
    for prompt, rate in enumerate(np.linspace(0.2, 0.7, 100)):
        for right in rng.random(completions) < rate:
            rows.append(f"{run},{prompt},{int(right)},{'right' if right else rng.integers(4)}")
    path.write_text("\n".join(rows))
    return str(path)


def test_recipes_alike_are_not_told_apart_by_how_many_completions_vote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [votes(tmp_path / "few.csv", "few", 4), votes(tmp_path / "many.csv", "many", 32)]
    [found] = found_by_prompt(capsys, *sources, "--by-prompt", "majority")
    assert (found["verdict"], found["votes"]) == ("cannot tell", 4)
    assert main(["compare", *sources, "--by-prompt", "majority"]) == 0
    assert "majorities of 4" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [("pass", "fail"), ("Correct", "Incorrect"), ("Y", "N"), ("passed", "timeout")])
def test_outcomes_in_words_say_what_numbers_say(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(right: str, wrong: str) -> dict[str, object]:
        rows = [f"{run},{n},{right if n % 4 < (3 if run == 'b' else 1) else wrong}" for run in "ab" for n in range(80)]
        (tmp_path / "both.csv").write_text("\n".join(["run,prompt,outcome", *rows]))
        assert main(["compare", str(tmp_path / "both.csv"), "--by-prompt", "--json"]) == 0
        [one] = json.loads(capsys.readouterr().out)["by_prompt"]
        return {name: one[name] for name in ("difference", "interval", "verdict")}

    assert found(*words) == found("1", "0")
    assert found(*words)["verdict"] == "better"


@pytest.mark.parametrize(
    ("text", "metric", "message"),
    [
        ("run,outcome\na,1\n", "mean", "no column prompt"),
        ("prompt,outcome\n1,2\n", "mean", "from 0 to 1, not '2'"),
        ("prompt,outcome\n1,1\n", "pass@2", "use mean, majority, or pass@K with K up to 1"),
        ("run,prompt,outcome\na,1,0.6\nb,1,0.4\n", "pass@1", "prompt 1: pass@1 takes 1 for a completion that passed"),
        ("prompt,outcome\n1,1\n", "majority", "no column answer"),
        ("prompt,outcome\n1,1\n", "mean", "one run only"),
        ("run,prompt,outcome\na,1,1\nb,2,1\n", "mean", "0 prompts in common"),
        ("run,prompt,outcome\na,1,passed\nb,1,excellent\n", "mean", "passed, correct, failed or wrong, or a number"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, metric: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert main(["compare", str(tmp_path / "a.csv"), "--by-prompt", metric]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
