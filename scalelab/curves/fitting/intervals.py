"""Intervals of the parameters: from draws (posterior or bootstrap), or by profile likelihood; and the bootstraps.

Axes: `_M` draws or refits, `_N` points, `_P` parameters, `_H` kinds of drift, `_K` noise scales.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from scalelab.curves.fitting.density import LOG_SCALES_K, Density
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.fitting.models import SIGMOID, Array, jacobian, log_compute
from scalelab.curves.fitting.noise import Noise, covariance, hypotheses, typical
from scalelab.curves.fitting.posterior import Draws, close_in, posterior
from scalelab.curves.fitting.problem import make_problem, minimise
from scalelab.errors import LabError

Method = Literal["posterior", "profile", "block", "parametric"]
METHODS: tuple[Method, ...] = get_args(Method)

Interval = tuple[float, float]


def draw(fit: Fit, method: Method = "posterior", size: int | None = None, seed: int = 0, quick: bool = False) -> Draws:
    """Draw curves that the points leave possible, by the chosen method (for the profile: from the posterior)."""
    if method in ("posterior", "profile"):
        return posterior(fit, fit.prior, size or 4000, seed, quick=quick)
    if method not in METHODS:
        raise LabError(f"unknown kind of interval {method!r}: use one of {', '.join(METHODS)}")
    return bootstrap(fit, "block" if method == "block" else "parametric", size or 1000, seed)


def intervals(fit: Fit, draws: Draws, level: float = 0.8, method: Method = "posterior") -> dict[str, Interval]:
    """An interval for every parameter; a given R0 has none.

    Args:
        fit: the joint fit.
        draws: what `draw` gave for it.
        level: probability that an interval is to hold, in (0, 1).
        method: kind of interval.
    """
    check_level(level)
    if method == "profile":  # of the fit, whose estimate need not be the median of the draws
        middle = middles(fit, draws)
        ends = profile_intervals(fit, level)
        return {name: (min(low, middle[name]), max(high, middle[name])) for name, (low, high) in ends.items()}
    names = [name for name in fit.model.parameters if not (name == "R0" and fit.fixed_r0 is not None)]
    found = draws.parameters()
    return {name: equal_tailed(found[name], level) for name in names}


def middles(fit: Fit, draws: Draws) -> dict[str, float]:
    """The estimates: the median of every parameter's draws; the fit's own for a given R0 and an interval by profile."""
    found = {name: float(np.median(drawn_M)) for name, drawn_M in draws.parameters().items()}
    return found if fit.fixed_r0 is None else found | {"R0": fit.fixed_r0}


def check_level(level: float) -> None:
    """Refuse a level that is no probability.

    Raises:
        LabError: it lies outside (0, 1).
    """
    if not 0 < level < 1:
        raise LabError(f"a level of {level:g} is no probability: give one between 0 and 1, such as 0.8")


def equal_tailed(draws_M: Array, level: float) -> Interval:
    """The interval with as much below as above it."""
    low, high = np.quantile(draws_M, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def profile_intervals(fit: Fit, level: float = 0.8) -> dict[str, Interval]:
    """Profile-likelihood intervals: values that the rest of the parameters can still make fit the points.

    Points count with their mean covariance under the hypotheses about noise and drift; the deviance allowed is that of
    Student's t for the points left over. An interval reaches as far as the estimate, which took noise for independent.
    """
    from scipy.special import stdtrit

    spare = max(len(fit.curve) - len(fit.theta_P) + (fit.fixed_r0 is not None), 1)
    allowed = float(stdtrit(spare, 0.5 + level / 2)) ** 2
    whiten_NN = _whitening(fit)
    names = [*fit.model.linear, "B", "C_mid"][: len(fit.theta_P)]
    found: dict[str, Interval] = {}
    for index, name in enumerate(names):
        if (name == "R0" and fit.fixed_r0 is not None) or name == "D":
            continue
        low, high = _profile(fit, index, allowed, whiten_NN)
        low, high = min(low, float(fit.theta_P[index])), max(high, float(fit.theta_P[index]))
        if index >= 2:
            ends_2P = np.repeat(fit.theta_P[None], 2, axis=0)
            ends_2P[:, index] = low, high
            low, high = fit.model.readable(ends_2P, fit.log_reference)[:, fit.model.parameters.index(name)]
        found[name] = (float(low), float(high))
    return found


def correlation_factor(fit: Fit) -> float:
    """Factor by which the correlation of neighbours inflates a variance: (1 + r)/(1 − r), at least 1 and at most 9."""
    z_N = fit.residual_N / fit.sigma_N * np.sqrt(fit.weight_N)
    r = float((z_N[1:] * z_N[:-1]).sum() / max((z_N**2).sum(), 1e-300))
    r = min(max(r, 0.0), 0.8)
    return (1 + r) / (1 - r)


def _whitening(fit: Fit) -> Array:
    """Matrix `[N, N]` that makes deviations from the true curve independent, of unit variance."""
    return np.linalg.inv(np.linalg.cholesky(mean_covariance(fit, fit.sigma_N / np.sqrt(fit.weight_N))))


def _profile(fit: Fit, index: int, allowed: float, whiten_NN: Array) -> Interval:
    """Interval ends where the deviance of one coordinate crosses its limit, interpolated between refits."""
    problem, _ = make_problem(fit.curve, fit.model, fit.fixed_r0, fit.prior)
    low, high = float(problem.lower_P[index]), float(problem.upper_P[index])
    at = float(fit.theta_P[index])
    deviation = float(np.sqrt(fit.covariance_PP[index, index])) or (min(high, 10.0) - low) / 50
    step = np.sinh(np.linspace(0, np.arcsinh(200), 40))[1:] * deviation / 5
    values_B = np.concatenate([np.clip(at - step[::-1], low, high), [at], np.clip(at + step, low, high)])
    along_P = fit.covariance_PP[:, index] / max(float(fit.covariance_PP[index, index]), 1e-300)
    count = len(fit.curve)
    rate_1N, unit_N = fit.curve.pass_rate_N[None], np.ones(count)

    def residuals(theta_BP: Array, _: np.ndarray) -> tuple[Array, Array]:
        residual_BN, jacobian_BNP = problem.residuals(theta_BP, rate_1N, unit_N)
        residual_BN[:, :count] = residual_BN[:, :count] @ whiten_NN.T
        jacobian_BNP[:, :count] = whiten_NN @ jacobian_BNP[:, :count]
        return residual_BN, jacobian_BNP

    costs = []
    for tilt_P in (along_P, 0 * along_P):
        start_BP = fit.theta_P + (values_B - at)[:, None] * tilt_P
        start_BP[:, index] = values_B
        lower_BP = np.repeat(problem.lower_P[None], len(values_B), axis=0)
        upper_BP = np.repeat(problem.upper_P[None], len(values_B), axis=0)
        lower_BP[:, index] = upper_BP[:, index] = values_B
        costs.append(minimise(residuals, start_BP, lower_BP, upper_BP).cost_B)
    cost_B = np.minimum(*costs)
    root_B = np.sqrt(np.maximum(2 * (cost_B - cost_B.min()), 0))
    best = int(cost_B.argmin())
    return (
        _crossing(values_B[best::-1], root_B[best::-1], np.sqrt(allowed)),
        _crossing(values_B[best:], root_B[best:], np.sqrt(allowed)),
    )


def _crossing(values_B: Array, root_B: Array, allowed: float) -> float:
    """First value, going outwards, where the signed root of the deviance passes what is allowed; else the last."""
    beyond = np.flatnonzero(root_B > allowed)
    if not beyond.size:
        return float(values_B[-1])
    out = int(beyond[0])
    share = (allowed - root_B[out - 1]) / (root_B[out] - root_B[out - 1])
    return float(values_B[out - 1] + share * (values_B[out] - values_B[out - 1]))


BootstrapKind = Literal["block", "parametric"]


def bootstrap(fit: Fit, kind: BootstrapKind = "block", size: int = 1000, seed: int = 0) -> Draws:
    """Refit resampled points, all refits at once.

    Blocks give intervals that are too short: they carry no drift longer than themselves, and long drift is what moves
    an asymptote. Drawn noise has it. Neither corrects the bias of early fits (`docs/curves.md` has the coverage).

    Args:
        fit: the joint fit.
        kind: `block` puts blocks of neighbouring residuals elsewhere on the fitted curve; `parametric` draws noise
            and drift by the weight that the residuals give to each hypothesis about them.
        size: number of refits.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    if kind == "block":
        deviation_MN, noise_M = _blocks(fit, size, rng), np.full(size, typical(fit.sigma_N))
    else:
        deviation_MN, noise_M = _simulated(fit, size, rng)
    return Draws(
        model=fit.model,
        log_reference=fit.log_reference,
        theta_MP=refit(fit, fit.value(fit.curve.compute_N) + deviation_MN),
        noise_M=noise_M,
        spread_M=np.zeros(size),
        origin=f"{kind} bootstrap",
        drift_M=np.zeros(size),
    )


def refit(fit: Fit, rate_MN: Array) -> Array:
    """Parameter vectors `[M, P]` of the fit's problem with other pass rates, started from the fit."""
    problem, _ = make_problem(fit.curve, fit.model, fit.fixed_r0, fit.prior)
    cutoff = 3 + 12 / max(problem.spare, 1)
    solution = minimise(
        lambda theta_BP, at_B: problem.residuals(theta_BP, rate_MN[at_B], fit.sigma_N),
        np.repeat(fit.theta_P[None], len(rate_MN), axis=0),
        problem.lower_P,
        problem.upper_P,
        cutoff,
        max_steps=40,
        tolerance=1e-5,
    )
    return solution.theta_BP


def block_length(points: int) -> int:
    """Residuals moved together: a sixth of them, since drifts as long as that are what moves an asymptote."""
    return max(1, round(points / 6))


def _blocks(fit: Fit, size: int, rng: np.random.Generator) -> Array:
    """Deviations `[M, N]`: every seed gets circular blocks of a seed's standardised residuals, its own or another's.

    Residuals are less than deviations from the true curve by what the fit absorbed; they are stretched to make up.
    """
    seed_N = fit.curve.seed_N
    standard_N = fit.residual_N / fit.sigma_N * _stretch(fit)
    donors = [standard_N[seed_N == seed] for seed in range(len(fit.curve.seeds))]
    centre = standard_N.mean()
    deviation_MN = np.empty((size, len(seed_N)))
    for seed in range(len(donors)):
        to_N = np.flatnonzero(seed_N == seed)
        length = block_length(len(to_N))
        donor_M = rng.integers(len(donors), size=size)
        for donor, standard_D in enumerate(donors):
            rows_M = np.flatnonzero(donor_M == donor)
            begin_MB = rng.integers(len(standard_D), size=(len(rows_M), -(-len(to_N) // length)))
            at_MN = (begin_MB[:, :, None] + np.arange(length)).reshape(len(rows_M), -1)[:, : len(to_N)]
            deviation_MN[np.ix_(rows_M, to_N)] = standard_D[at_MN % len(standard_D)] - centre
    return deviation_MN * fit.sigma_N


def _stretch(fit: Fit) -> float:
    """Factor by which deviations from the true curve exceed residuals: √(N / (N − P)) for independent noise, else more.

    Linearised, residuals are the deviations less their projection on the curve's slopes.
    """
    u_N = log_compute(fit.curve.compute_N, np.exp(fit.log_reference))
    slopes_NP = jacobian(fit.model, fit.theta_P[None], u_N)[0] / fit.sigma_N[:, None]
    slopes_NP = slopes_NP[:, int(fit.fixed_r0 is not None) :]
    left_NN = np.eye(len(u_N)) - slopes_NP @ np.linalg.pinv(slopes_NP)
    whole_NN = mean_covariance(fit, fit.sigma_N) / np.outer(fit.sigma_N, fit.sigma_N)
    return float(np.sqrt(np.trace(whole_NN) / max(np.trace(left_NN @ whole_NN @ left_NN), 1e-12)))


def _simulated(fit: Fit, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Deviations `[M, N]` from noise hypotheses drawn by their weight, and what an evaluation scatters under each."""
    noises, weight_HK, rise_N = noise_of(fit)
    points = fit.curve
    h_M, k_M = np.unravel_index(rng.choice(weight_HK.size, size, p=weight_HK.ravel()), weight_HK.shape)
    deviation_MN = np.exp(LOG_SCALES_K[k_M])[:, None] * rng.standard_normal((size, len(points)))
    noise_M = np.exp(LOG_SCALES_K[k_M]) * typical(fit.sigma_N)
    for h in np.unique(h_M):
        of_h = h_M == h
        covariance_NN = covariance(noises[h], points.compute_N, fit.sigma_N, points.seed_N, rise_N)
        deviation_MN[of_h] = deviation_MN[of_h] @ np.linalg.cholesky(covariance_NN).T
        noise_M[of_h] *= np.hypot(1.0, noises[h].drift)
    return deviation_MN, noise_M


def noise_of(fit: Fit) -> tuple[list[Noise], Array, Array]:
    """Estimate the noise: hypotheses, weight of each at each scale `[H, K]`; share of the gain `[N]`.

    The weights sum to one; the scales are `exp(LOG_SCALES_K)` times the fit's. All curves that the points leave
    possible are summed over: about the fitted one alone, noise looks smaller and shorter, for the fit has followed it.
    """
    cells_GS = close_in(Density(fit, fit.prior))[0]
    density = Density(fit, fit.prior)
    cells, spreads = density.evaluate(cells_GS), len(density.spread_T)
    weight_HK = np.zeros((len(density.drift_H) * spreads, len(LOG_SCALES_K)))
    np.add.at(weight_HK, cells.h_X * spreads + cells.t_X, np.exp(cells.log_XK - cells.log_XK.max()))
    noises = hypotheses(len(fit.curve.seeds) > 1, fit.fixed_r0 is not None or fit.model is not SIGMOID)
    rise_N = np.ones(len(fit.curve))
    if fit.model is SIGMOID:
        rise_N = fit.model.features(fit.theta_P[2:], density.u_N)[..., 1]
    return noises, weight_HK / weight_HK.sum(), rise_N


def mean_covariance(fit: Fit, sigma_N: Array) -> Array:
    """Covariance of the points `[N, N]`, given their sampling noise: the mean over the hypotheses by their weight."""
    noises, weight_HK, rise_N = noise_of(fit)
    variance_H = weight_HK @ np.exp(2 * LOG_SCALES_K)
    total_NN = np.zeros((len(sigma_N), len(sigma_N)))
    for noise, variance in zip(noises, variance_H):
        if variance > 1e-6 * variance_H.max():
            total_NN += variance * covariance(noise, fit.curve.compute_N, sigma_N, fit.curve.seed_N, rise_N)
    return total_NN
