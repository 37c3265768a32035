"""The end of thinking: completions are `… </think> answer`, and only the answer is graded (ScaleRL A.3)."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


def answer_part(completion: str, *, whole_if_unclosed: bool = False) -> str | None:
    """The graded part of a completion: what follows the last `</think>`.

    Args:
        completion: the text that the model wrote after the prompt.
        whole_if_unclosed: grade a completion without `</think>` as a whole (answers of other systems) instead
            of having no answer (training: the model ran out of tokens while thinking).

    Returns:
        The stripped text, or None where there is no answer to grade.
    """
    _, closed, answer = completion.rpartition(THINK_CLOSE)
    if not closed and not whole_if_unclosed:
        return None
    return answer.strip()
