"""A short ensemble Markov chain on the exact density, started from the draws of the fast engine.

C walkers in two halves.  The spread of one half preconditions the moves of the other, so that every move leaves the
exact density invariant (ter Braak 2006 for the differences; Goodman and Weare 2010 for the halves).  One sweep:

1. parameters of every domain given all else, discrepancy integrated out: Hamiltonian steps in the metric of the other
   half, each domain accepted or not by itself;
2. weights of the discrepancy, noise of every run and its multiplier: exact Gaussian and Gamma draws;
3. scales, and with one domain the parameters along with them: differential evolution;
4. shared parameters: exact; distances between domains: random walk with the shared parameters integrated out, and with
   the standardised deviations held fixed.

The linear engine fails where a law bends within the posterior, where the scales and the law trade along a ridge, and
where a run is an outlier under some draws and not under others; each is repaired by some tens of sweeps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.inference import arrow, noise
from planner.inference.data import (
    LOG_DOMAIN_PRIOR,
    BoundLaw,
    FitData,
    error_scales,
    unpack_scales,
)
from planner.inference.draws import LawDraws
from planner.inference.laplace import LawFit
from planner.inference.walkers import Problem, Walkers, local_prior, log_likelihood, make_problem, marginal_of

_MANY, _FEW = (128, 100), (64, 50)  # walkers and sweeps
_FEW_DRAWS = 60
_LEAPFROGS = 8
_TARGET_ACCEPTANCE = 0.75
_SCALE_MOVES = 2
_DOMAIN_MOVES = 3

Energy = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _hamiltonian(
    energy_and_gradient: Energy, position: np.ndarray, root: np.ndarray, step: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One trajectory from positions (C, B, p) of B independent blocks in the metric root root' (B, p, p).

    `energy_and_gradient(position)` gives (C, B), (C, B, p) and the residuals there.  Returns the end, the residuals at
    the end, which blocks are accepted (C, B), and the acceptance probability of each block (B,).
    """
    blocks = position.shape[:2]
    size = step[:, None] * np.exp(0.2 * rng.standard_normal((*blocks, 1)))
    momentum = rng.standard_normal(position.shape)
    energy, gradient, residual = energy_and_gradient(position)
    start = energy + 0.5 * (momentum**2).sum(-1)
    with np.errstate(all="ignore"):  # a trajectory that leaves the domain of the law is rejected below
        for _ in range(_LEAPFROGS):
            momentum = momentum - 0.5 * size * (gradient[..., None, :] @ root)[..., 0, :]
            position = position + size * (root @ momentum[..., None])[..., 0]
            energy, gradient, residual = energy_and_gradient(position)
            momentum = momentum - 0.5 * size * (gradient[..., None, :] @ root)[..., 0, :]
        log_ratio = start - energy - 0.5 * (momentum**2).sum(-1)
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    accepted = np.log(rng.random(blocks)) < log_ratio
    return position, residual, accepted, np.exp(np.minimum(log_ratio, 0.0)).mean(0)


def _misfit(problem: Problem, marginal: noise.Marginal, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half the quadratic form of the residuals (C, G), its gradient (C, G, p), and the residuals."""
    residual, jacobian = problem.residual_and_jacobian(theta)
    solved = marginal.solve(residual[..., None])
    gradient = -(np.swapaxes(jacobian, -1, -2) @ solved)[..., 0]
    return 0.5 * (residual * solved[..., 0]).sum(-1), gradient, residual


def _move_theta(
    problem: Problem,
    walkers: Walkers,
    marginal: noise.Marginal,
    other: Walkers,
    step: np.ndarray,
    rng: np.random.Generator,
) -> tuple[Walkers, np.ndarray]:
    """Hamiltonian move of the parameters of every domain, each accepted by itself."""
    mean, var = local_prior(problem, walkers)

    def energy_and_gradient(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        energy, gradient, residual = _misfit(problem, marginal, theta)
        away = theta - mean
        return energy + 0.5 * (away**2 / var).sum(-1), gradient + away / var, residual

    root = _metric(other.theta)
    theta, residual, accepted, rate = _hamiltonian(energy_and_gradient, walkers.theta, root, step, rng)
    theta = np.where(accepted[..., None], theta, walkers.theta)
    residual = np.where(accepted[..., None], residual, walkers.residual)
    return walkers._replace(theta=theta, residual=residual), rate


def _move_level(
    problem: Problem,
    walkers: Walkers,
    marginal: noise.Marginal,
    other: Walkers,
    step: np.ndarray,
    rng: np.random.Generator,
) -> tuple[Walkers, np.ndarray]:
    """Hamiltonian move of all domains together with the population, deviations held fixed.

    One by one the domains are tied to a population that is tied to them, and no ridge longer than their distance is
    ever walked along.
    """
    law = problem.law
    level = walkers.shared[:, :1]

    def energy_and_gradient(position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        energy, gradient, residual = _misfit(problem, marginal, walkers.theta + position - level)
        away = (position - law.prior_mean) / law.prior_sd
        total = energy.sum(-1, keepdims=True) + 0.5 * (away**2).sum(-1)
        return total, gradient.sum(1, keepdims=True) + away / law.prior_sd, residual

    root = _metric(other.theta.mean(1, keepdims=True))
    position, residual, accepted, rate = _hamiltonian(energy_and_gradient, level, root, step, rng)
    shift = position - level
    shared = walkers.shared.copy()
    shared[:, :1] += shift
    proposed = walkers._replace(theta=walkers.theta + shift, shared=shared, residual=residual)
    return walkers.where(accepted[:, 0], proposed), rate


def _draw_multipliers(
    problem: Problem, walkers: Walkers, marginal: noise.Marginal, rng: np.random.Generator
) -> Walkers:
    """Weights of the discrepancy, then the multipliers of the noise, given all else: exact draws."""
    common = np.concatenate([problem.phi, problem.curve], axis=-1)
    bend = problem.bend(walkers.scales)
    unit = np.concatenate(
        [
            np.repeat(size[:, None, None], of.shape[-1], axis=-1)
            for size, of in zip(problem.amplitudes(walkers.scales), (problem.phi, problem.curve), strict=True)
        ],
        axis=-1,
    )
    prior = unit * rng.standard_normal((len(walkers.theta), *common.shape[::2]))
    simulated = bend * (common @ prior[..., None])[..., 0]
    simulated = simulated + np.sqrt(marginal.diagonal) * rng.standard_normal(simulated.shape)
    gap = np.where(problem.is_real, walkers.residual - simulated, 0.0)
    solved = bend[..., None] * marginal.solve(gap[..., None])
    weights = prior + unit**2 * (np.swapaxes(common, -1, -2) @ solved)[..., 0]
    left = walkers.residual - bend * (common @ weights[..., None])[..., 0]
    tailed, rest = problem.variances(walkers.scales, walkers.multiplier)
    share = tailed / (tailed + rest)
    of_noise = share * left + np.sqrt(share * rest) * rng.standard_normal(left.shape)
    unit = tailed * walkers.multiplier
    degrees = noise.DEGREES_OF_FREEDOM
    gamma = rng.gamma(0.5 * (degrees + 1.0), size=left.shape)
    multiplier = np.where(problem.is_real, gamma / (0.5 * (degrees + of_noise**2 / unit)), 1.0)
    return walkers._replace(weights=weights[..., : problem.phi.shape[-1]], multiplier=multiplier)


def _log_scale_prior(problem: Problem, scales: np.ndarray) -> np.ndarray:
    mean, sd = np.array(list(error_scales(problem.data).values())).T
    return -0.5 * (((scales - mean) / sd) ** 2).sum(-1)


def _move_scales(problem: Problem, walkers: Walkers, other: Walkers, rng: np.random.Generator) -> Walkers:
    """Differential evolution of the scales; with one domain the first move takes the parameters along."""
    count, num_domains, num_parameters = walkers.theta.shape
    current = log_likelihood(problem, walkers.scales, walkers.multiplier, walkers.residual).sum(-1)
    current = current + _log_scale_prior(problem, walkers.scales)
    for move in range(_SCALE_MOVES):
        takes_theta = move == 0 and num_domains == 1
        first, second = rng.integers(len(other.scales), size=(2, count))
        size = walkers.scales.shape[1] + num_parameters * takes_theta
        stretch = 2.38 / np.sqrt(2.0 * size) * np.exp(0.3 * rng.standard_normal(count))
        # Now and then a whole difference, which carries walkers between modes.
        stretch = np.where(rng.random(count) < 0.1, 1.0, stretch)[:, None]
        new = walkers.scales + stretch * (other.scales[first] - other.scales[second])
        proposed = walkers._replace(scales=new + 0.02 * rng.standard_normal(new.shape))
        change = 0.0
        if takes_theta:
            theta = walkers.theta + stretch[..., None] * (other.theta[first] - other.theta[second])
            proposed = proposed._replace(theta=theta, residual=problem.residual(theta))
            mean, var = local_prior(problem, walkers)
            change = -0.5 * (((theta - mean) ** 2 - (walkers.theta - mean) ** 2) / var).sum((-1, -2))
        with np.errstate(all="ignore"):
            wanted = log_likelihood(problem, proposed.scales, walkers.multiplier, proposed.residual).sum(-1)
            wanted = wanted + _log_scale_prior(problem, proposed.scales)
            log_ratio = wanted + change - current
        accepted = np.log(rng.random(count)) < np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
        walkers = walkers.where(accepted, proposed)
        current = np.where(accepted, wanted, current)
    return walkers


def _shared_given(
    law: BoundLaw, design: np.ndarray, theta: np.ndarray, log_domain: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Log density of theta given its distances with the shared parameters integrated out (C, p), and a draw of them."""
    tau_sq = (law.domain_sd * np.exp(log_domain))[..., None] ** 2  # (C, p, 1)
    num_shared = design.shape[1]
    first = np.arange(num_shared) == 0
    prior_var = np.where(first, law.prior_sd[:, None] ** 2, tau_sq)  # (C, p, Q)
    prior_mean = np.where(first, law.prior_mean[:, None], 0.0)
    precision = (1.0 / prior_var)[..., None] * np.eye(num_shared) + (design.T @ design) / tau_sq[..., None]
    score = np.swapaxes(theta, -1, -2) @ design / tau_sq + prior_mean / prior_var
    factor = arrow.cholesky(precision)
    half = np.linalg.solve(factor, score[..., None])[..., 0]
    log_det = np.log(prior_var).sum(-1) + 2.0 * np.log(np.einsum("...ii->...i", factor)).sum(-1)
    log_det = log_det + len(design) * np.log(tau_sq[..., 0])
    form = (theta**2).sum(1) / tau_sq[..., 0] + (prior_mean**2 / prior_var).sum(-1) - (half**2).sum(-1)
    noisy = (half + rng.standard_normal(half.shape))[..., None]
    shared = np.linalg.solve(np.swapaxes(factor, -1, -2), noisy)[..., 0]
    return -0.5 * (log_det + form), np.swapaxes(shared, -1, -2)


def _log_domain_prior(log_domain: np.ndarray) -> np.ndarray:
    return -0.5 * ((log_domain - LOG_DOMAIN_PRIOR[0]) / LOG_DOMAIN_PRIOR[1]) ** 2


def _move_hierarchy(problem: Problem, walkers: Walkers, rng: np.random.Generator) -> Walkers:
    """Distances between domains, each parameter by itself, and the shared parameters given them."""
    design, law = problem.data.design, problem.law
    log_domain = walkers.log_domain
    current, shared = _shared_given(law, design, walkers.theta, log_domain, rng)
    current = current + _log_domain_prior(log_domain)
    for _ in range(_DOMAIN_MOVES):
        new = log_domain + 0.6 * rng.standard_normal(log_domain.shape)
        wanted, drawn = _shared_given(law, design, walkers.theta, new, rng)
        wanted = wanted + _log_domain_prior(new)
        accepted = np.log(rng.random(new.shape)) < wanted - current
        log_domain = np.where(accepted, new, log_domain)
        current = np.where(accepted, wanted, current)
        shared = np.where(accepted[:, None], drawn, shared)
    return walkers._replace(log_domain=log_domain, shared=shared)


def _move_together(problem: Problem, walkers: Walkers, rng: np.random.Generator) -> Walkers:
    """Distances between domains with the standardised deviations held fixed, for a few parameters at a time.

    Where domains have few runs, deviation and distance form a funnel that the other move cannot pass.
    """
    design = problem.data.design
    count, _, num_parameters = walkers.theta.shape
    step = 0.5 * rng.standard_normal((count, num_parameters))
    step = np.where(rng.random(step.shape) < min(1.0, 2.0 / num_parameters), step, 0.0)
    log_domain = walkers.log_domain + step
    ratio = np.exp(step)[:, None]
    shared = walkers.shared.copy()
    shared[:, 1:] *= ratio
    centre = np.einsum("gq,cqp->cgp", design, walkers.shared)
    theta = np.einsum("gq,cqp->cgp", design, shared) + ratio * (walkers.theta - centre)
    proposed = walkers._replace(theta=theta, shared=shared, log_domain=log_domain, residual=problem.residual(theta))
    with np.errstate(all="ignore"):
        log_ratio = (
            log_likelihood(problem, walkers.scales, walkers.multiplier, proposed.residual)
            - log_likelihood(problem, walkers.scales, walkers.multiplier, walkers.residual)
        ).sum(-1) + (_log_domain_prior(log_domain) - _log_domain_prior(walkers.log_domain)).sum(-1)
    accepted = np.log(rng.random(count)) < np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    return walkers.where(accepted, proposed)


def _metric(points: np.ndarray) -> np.ndarray:
    """Root of the covariance of points (C, B, p) over the walkers of a half, (B, p, p)."""
    away = points - points.mean(0)
    covariance = np.einsum("cgi,cgj->gij", away, away) / len(away)
    diagonal = np.einsum("gii->gi", covariance)
    ridge = 1e-3 * diagonal + 1e-12
    return arrow.cholesky(covariance + ridge[..., None] * np.eye(covariance.shape[-1]))


def _sweep(
    problem: Problem, walkers: Walkers, other: Walkers, step: np.ndarray, rng: np.random.Generator
) -> tuple[Walkers, np.ndarray]:
    """All moves of one half; `step` (G + 1,) holds the step of every domain and that of the level."""
    marginal = marginal_of(problem, walkers)
    walkers, rates = _move_theta(problem, walkers, marginal, other, step[:-1], rng)
    has_level = walkers.log_domain.shape[1] > 0
    if has_level:
        walkers, rate = _move_level(problem, walkers, marginal, other, step[-1:], rng)
    walkers = _draw_multipliers(problem, walkers, marginal, rng)
    walkers = _move_scales(problem, walkers, other, rng)
    if has_level:
        walkers = _move_together(problem, _move_hierarchy(problem, walkers, rng), rng)
    return walkers, np.append(rates, rate if has_level else _TARGET_ACCEPTANCE)


def _start(problem: Problem, fit: LawFit, count: int, seed: int) -> Walkers:
    law, data = problem.law, problem.data
    rng = np.random.default_rng((seed, 1))
    node = rng.permutation(
        np.searchsorted(np.cumsum(fit.weight), (np.arange(count) + 0.5) / count).clip(max=len(fit.weight) - 1)
    )
    theta = _theta_of_nodes(fit, node, rng)
    scales = np.stack([getattr(fit.scales, name) for name in error_scales(data)], axis=1)[node]
    # A handful of nodes is not a density: without this the differences between walkers miss whole directions.
    scales = scales + 0.2 * rng.standard_normal(scales.shape)
    log_domain = fit.scales.log_domain[node]
    log_domain = log_domain + 0.2 * rng.standard_normal(log_domain.shape)
    shared = np.zeros((count, 0, law.num_parameters))
    if log_domain.shape[1]:
        shared = _shared_given(law, data.design, theta, log_domain, rng)[1]
    multiplier = fit.student[node][..., problem.rows]
    weights = np.zeros((count, len(data.y), data.phi.shape[-1]))
    halves = np.array_split(theta, 2)  # the shape that the sweeps evaluate, so that nothing else is compiled
    residual = np.concatenate([problem.residual(half) for half in halves])
    return Walkers(theta, shared, log_domain, scales, multiplier, residual, weights)


def _theta_of_nodes(fit: LawFit, node: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws from the Gaussian of each node, (C, G, p)."""
    posterior = fit.conditional.posterior
    local = rng.standard_normal((len(node), *posterior.theta.shape[1:], 1))
    shared = rng.standard_normal((len(node), 1, posterior.lever.shape[-1], 1))
    return posterior.theta[node] + (posterior.root[node] @ local + posterior.lever[node] @ shared)[..., 0]


def refine(
    fit: LawFit,
    data: FitData,
    num_draws: int,
    *,
    num_walkers: int | None = None,
    num_sweeps: int | None = None,
    seed: int = 0,
) -> LawDraws:
    """Draws of a law from the exact density; the second half of the sweeps is kept.

    By default 128 walkers make 100 sweeps, and fewer of both for a law of which few draws are wanted since it weighs
    little in the average.  The number of walkers is even.
    """
    law = fit.law
    problem = make_problem(law, data)
    rng = np.random.default_rng((seed, 2))
    usual = _FEW if num_draws <= _FEW_DRAWS else _MANY
    num_walkers, num_sweeps = num_walkers or usual[0], num_sweeps or usual[1]
    every = _start(problem, fit, num_walkers, seed)
    half = num_walkers // 2
    left, right = every.take(slice(0, half)), every.take(slice(half, None))
    step = np.full(len(data.y) + 1, 0.5)
    num_kept = max(1, -(-num_draws // num_walkers))
    keep = set(np.linspace(num_sweeps // 2, num_sweeps - 1, num_kept).round().astype(int).tolist())
    kept = []
    for index in range(num_sweeps):
        left, one = _sweep(problem, left, right, step, rng)
        right, two = _sweep(problem, right, left, step, rng)
        if index < num_sweeps // 2:  # fixed afterwards: a step that follows the chain would bias it
            step = np.clip(step * np.exp(0.5 * (0.5 * (one + two) - _TARGET_ACCEPTANCE)), 0.01, 1.0)
        if index in keep:
            kept += [left, right]
    walkers = Walkers(*(np.concatenate(arrays) for arrays in zip(*kept, strict=True)))
    walkers = walkers.take(np.linspace(0, len(walkers.theta) - 1, num_draws).round().astype(int))
    walkers = _draw_multipliers(problem, walkers, marginal_of(problem, walkers), rng)  # weights at the final scales
    sizes = unpack_scales(walkers.scales, data)
    noise_sd = data.context.scale * np.exp(sizes.log_noise)
    discrepancy_sd, curve_sd = problem.amplitudes(walkers.scales)
    return LawDraws(law, walkers.theta, walkers.weights, noise_sd, discrepancy_sd, sizes.growth, curve_sd)
