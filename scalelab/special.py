"""SciPy's special functions without NumPy's compiler of Fortran, which their import takes along: a fifth of it."""

from __future__ import annotations

import numpy as np

_hidden = "f2py" not in vars(np)  # SciPy asks for all names of NumPy, and this one's module is loaded when asked for
if _hidden:
    np.f2py = None  # type: ignore[assignment]
try:
    from scipy.special import betaincinv, chdtrc, fdtrc, log_ndtr, ndtr, ndtri, stdtrit
finally:
    if _hidden:
        del np.f2py

__all__ = ["betaincinv", "chdtrc", "fdtrc", "log_ndtr", "ndtr", "ndtri", "stdtrit"]
