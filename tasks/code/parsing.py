"""Python source as a tree, in threads."""

from __future__ import annotations

import ast
import threading
import warnings

# Python 3.11 counts the depth of a tree that it makes in one place for all threads (python/cpython#106905). Where the
# collector lets another thread parse in between, `ast.parse` raises SystemError, of right source too.
_ONE_AT_A_TIME = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """Parse Python source, also while other threads do.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():  # warnings belong to the process
        warnings.simplefilter("ignore")  # of a stranger's source, as invalid escapes
        return ast.parse(source)
