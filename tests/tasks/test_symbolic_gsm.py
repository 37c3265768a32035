"""Word problems from templates: a fixed split, gold answers that pass, only configuration to send around."""

import pickle

from tasks.symbolic_gsm import SymbolicGSM

TASK = SymbolicGSM(size=300)


def test_held_out_problems_are_fixed_and_never_trained_on() -> None:
    held_out = [prompt.id for prompt in TASK.held_out(100)]
    assert held_out == [prompt.id for prompt in SymbolicGSM(size=300).held_out(200)][:100]
    drawn = {TASK.prompt(index).id for index in range(300)}
    assert len(drawn) == 300
    assert not drawn & set(held_out)


def test_the_gold_answer_passes_as_a_model_would_write_it_and_others_fail() -> None:
    prompts, verifier = TASK.held_out(30), TASK.verifier()
    try:
        right = verifier.verify([(p, f"First this, then that. So it is \\boxed{{{p.gold}}}.") for p in prompts])
        wrong = verifier.verify([(p, f"The final answer is \\boxed{{{p.gold}1}}.") for p in prompts])
    finally:
        verifier.close()
    assert {verdict.outcome for verdict in right} == {"passed"}
    assert {verdict.outcome for verdict in wrong} == {"failed"}


def test_a_task_travels_without_its_problems() -> None:
    assert TASK.held_out(5)
    assert len(pickle.dumps(TASK)) < 1000
    assert pickle.loads(pickle.dumps(TASK)).held_out(5) == TASK.held_out(5)


def test_a_prompt_is_a_chat_without_the_answer() -> None:
    prompt = TASK.prompt(0)
    assert [message["role"] for message in prompt.chat] == ["user"]
    assert prompt.chat[0]["content"] == prompt.text.strip()
