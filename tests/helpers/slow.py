"""Find test files whose tests are all slow without importing them: their imports alone take seconds."""

import re

_MARK = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)


def all_slow(source: str) -> bool:
    """True if a test file marks all of its tests as slow; the mark is the first, or the only one, of `pytestmark`."""
    return _MARK.search(source) is not None
