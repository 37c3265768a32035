"""Files whose tests are all slow are not imported where only fast tests run; all others are."""

import pytest

from tests.helpers.slow import all_slow


@pytest.mark.parametrize(
    ("source", "slow"),
    [
        ("pytestmark = pytest.mark.slow\n", True),
        ("import vllm\n\npytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]\n", True),
        ("pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.timeout(300),\n]\n", True),
        ("pytestmark = pytest.mark.timeout(300)\n", False),
        ("@pytest.mark.slow\ndef test_it() -> None: ...\n", False),
        ("pytestmark = pytest.mark.slower\n", False),
        ('SOURCE = """\n    pytestmark = pytest.mark.slow"""\n', False),
    ],
)
def test_only_a_mark_of_the_whole_file_counts(source: str, slow: bool) -> None:
    assert all_slow(source) is slow
