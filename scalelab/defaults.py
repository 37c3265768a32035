"""Numbers that functions and options of the command line take unless the caller says otherwise."""

LEVEL = 0.8
"""Probability that intervals are to hold."""

MARGIN = 0.02
"""Two asymptotes closer than this are the same (ScaleRL §3.2)."""

ERROR = 0.1
"""Probability that a verdict of a comparison is wrong."""

WORTHWHILE = 0.01
"""Gain in pass rate below which doubling the budget is not worth it."""

PARALLEL_MARGIN = 1.25
"""Ratio of B up to which two tasks count as parallel."""

STOP_ERROR = 0.05
"""Chance to end the best run of a sweep."""

SIGMA = 0.6
"""Standard deviation of the logarithm of a completion's length."""
LEAST_FREE = 2**30
"""Bytes of disk that a run needs however small it is: models in caches, logs, reports."""
