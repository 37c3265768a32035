"""The reason of an error stays when its text is cut to a line."""

import pydantic
import pytest

from scalelab.rehearse.explain import ToldError, explain


class Checked(pydantic.BaseModel):
    heads: int

    @pydantic.model_validator(mode="after")
    def _even(self) -> "Checked":
        raise ValueError(f"{self.heads} heads\ncannot be split")


def test_a_mistake_that_pydantic_counts_is_told() -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Checked(heads=4)
    said = explain(error.value)
    assert said.endswith("Checked: Value error, 4 heads cannot be split")
    with pytest.raises(pydantic.ValidationError) as two:
        Checked(heads="many")  # type: ignore[arg-type]  # no number
    assert "Checked: heads: Input should be a valid integer" in explain(two.value)


def test_the_fields_of_a_configuration_do_not_hide_what_is_wrong() -> None:
    fields = ", ".join(f"field_{number}=None" for number in range(40))
    assert explain(ValueError(f"no backend (of 3) with Config({fields}): no such type")) == (
        "ValueError: no backend (of 3) with Config(…): no such type"
    )


def test_what_another_process_told_is_not_told_as_an_error_of_this_one() -> None:
    assert explain(ToldError("ValueError at moe/a.py:3: no")) == "ValueError at moe/a.py:3: no"
