"""The reason of an error stays when its text is cut to a line."""

import pydantic
import pytest

from scalelab.rehearse.explain import explain


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
