"""Prior beliefs about a curve: weak, scale-free, and possible to switch off.

Early points cannot tell a curve that bends soon from one that goes on rising; the least-squares fit then picks an
asymptote almost at random and sounds sure of it. The prior says, in the mildest terms that help:

- A is anything from R0 to 1, all equally likely.
- B is log-normal about 1.6, 80 % of it in 0.9–2.8. The fits that ScaleRL reports (Table 1 and text) lie in 1.09–2.44.
- C_mid is log-normal about 0.4 of the compute spent so far, 80 % of it in 0.09–1.9: people stop looking at runs long
  before, and start forecasting not long before, half of the gain is made. It is relative to the data, so a fit does not
  depend on the unit of compute or the size of the model.
- Evaluations scatter about 0.7 times as much as their standard error says, 0.3–1.7 times for 80 %. Evaluations share
  their prompts, so what the choice of prompts adds to a standard error does not scatter from one to the next; drift
  makes up for some of it. Without a standard error, the scatter is about 0.008 within a factor of 4.7.

Switched off, A, ln B, ln C_mid and the logarithm of the scatter are flat within their bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.curves.fitting.models import Array, Model


@dataclass(frozen=True)
class Prior:
    """Log-normal beliefs as (median, standard deviation of the logarithm).

    Attributes:
        B: of the sigmoid's exponent.
        C_mid_share: of C_mid as a share of the last point's compute.
        scale: of the scatter in units of the stated standard errors.
        scatter: of the scatter itself where no standard errors are stated.
    """

    B: tuple[float, float] = (1.6, 0.45)
    C_mid_share: tuple[float, float] = (0.4, 1.2)
    scale: tuple[float, float] = (0.7, 0.7)
    scatter: tuple[float, float] = (0.008, 1.2)

    def scale_squared(self, squares: float, spare: int, relative: float, known: bool) -> float:
        """Squared noise scale: mean square of the residuals, shrunk towards what is believed when few are left over.

        Args:
            squares: sum of squared residuals, in units of the stated standard errors.
            spare: points beyond the fitted parameters.
            relative: typical stated standard error; a mere unit where none is known.
            known: whether standard errors are known.
        """
        median = self.scale[0] if known else self.scatter[0] / relative
        count = self.equivalent_points(known)
        return (count * median**2 + squares) / (count + spare)

    def equivalent_points(self, known: bool) -> float:
        """Number of squared residuals that would tell the noise scale as well as the prior does."""
        return float(0.5 / (self.scale if known else self.scatter)[1] ** 2)

    def log_scale(self, log_scale: Array, relative: float, known: bool) -> Array:
        """Logarithm of the density of the noise scale's logarithm; arguments as above."""
        median, deviation = self.scale if known else (self.scatter[0] / relative, self.scatter[1])
        return -0.5 * ((log_scale - np.log(median)) / deviation) ** 2

    def shape(self, model: Model, u_end: float) -> tuple[Array, Array]:
        """Mean and standard deviation of the shape parameters `[S]`; infinite deviation where nothing is believed.

        Args:
            model: the curve; the power law has no beliefs.
            u_end: logarithm of the last point's compute in units of the fit's reference.
        """
        if "R0" not in model.linear:
            size = len(model.parameters) - 2
            return np.zeros(size), np.full(size, np.inf)
        mean = np.array([np.log(self.B[0]), u_end + np.log(self.C_mid_share[0])])
        return mean, np.array([self.B[1], self.C_mid_share[1]])


DEFAULT = Prior()
"""The prior of every fit that does not say otherwise."""
