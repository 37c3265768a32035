"""Fits, intervals and forecasts of pass rate against compute, with nothing but NumPy and SciPy."""

from scalelab.curves.analysis import Analysis, analyse, analyse_all, fit
from scalelab.curves.checks import Options
from scalelab.curves.compare import compare
from scalelab.curves.decide import decide
from scalelab.curves.fitting.joint import Fit, FitError, fit_curve
from scalelab.curves.fitting.models import POWER, SIGMOID
from scalelab.curves.forecast import compute_for, extend_or_stop, forecast
from scalelab.curves.parallel import parallel
from scalelab.reading import pool, pool_seeds, read_sources
from scalelab.reading.curve import Curve, curve

__all__ = [
    "POWER",
    "SIGMOID",
    "Analysis",
    "Curve",
    "Fit",
    "FitError",
    "Options",
    "analyse",
    "analyse_all",
    "compare",
    "compute_for",
    "curve",
    "decide",
    "extend_or_stop",
    "fit",
    "fit_curve",
    "forecast",
    "parallel",
    "pool",
    "pool_seeds",
    "read_sources",
]
