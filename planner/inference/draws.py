"""Draws from the fitted components of one law, corrected towards the exact density."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.inference import arrow
from planner.inference.data import BoundLaw, FitData
from planner.inference.laplace import LawFit

_CANDIDATES = 8  # proposals for each draw of a domain's parameters
_MAX_EVALUATIONS = 3_000_000  # law evaluations spent on them


class LawDraws(NamedTuple):
    """Posterior draws of one law.  S draws, G domains, p parameters, M features."""

    law: BoundLaw
    theta: np.ndarray  # (S, G, p)
    weights: np.ndarray  # (S, G, M) of the discrepancy features, in response units
    noise_sd: np.ndarray  # (S,)
    discrepancy_sd: np.ndarray  # (S,)
    growth: np.ndarray  # (S,) of these with height: they are of runs as good as the best
    curve_sd: np.ndarray  # (S,) effect of a training run, 0 where every row is a run of its own


def join(parts: Sequence[LawDraws]) -> LawDraws:
    """All draws of parts of one law, one part after the other."""
    arrays = zip(*(part[1:] for part in parts), strict=True)
    return LawDraws(parts[0].law, *(np.concatenate(each) for each in arrays))


def draw(fit: LawFit, data: FitData, num_draws: int, rng: np.random.Generator) -> LawDraws:
    """`num_draws` draws, the components visited in proportion to their weights.

    Given the shared parameters, each domain's parameters are drawn from the linearised posterior, with several
    proposals a draw of which one is kept in proportion to exact density over proposal density.
    """
    if num_draws == 0:
        none = np.zeros(0, dtype=int)
        theta = fit.conditional.posterior.theta[none]
        return _packed(fit, data, none, theta, np.zeros((*theta.shape[:2], data.phi.shape[-1])))
    positions = (np.arange(num_draws) + rng.random()) / num_draws
    node = np.searchsorted(np.cumsum(fit.weight), positions).clip(max=len(fit.weight) - 1)
    posterior = fit.conditional.posterior
    num_domains, num_parameters = posterior.theta.shape[1:]
    shared_noise = rng.standard_normal((num_draws, posterior.lever.shape[-1]))
    centre = posterior.theta[node] + (posterior.lever[node] @ shared_noise[:, None, :, None])[..., 0]
    # With many runs the linearised posterior is nearly exact, and proposals are dear.
    num_proposals = int(np.clip(_MAX_EVALUATIONS // max(num_draws * data.y.size, 1), 1, _CANDIDATES))
    local_noise = rng.standard_normal((num_proposals, num_draws, num_domains, num_parameters))
    local_noise *= np.sqrt(_STUDENT / rng.chisquare(_STUDENT, (num_proposals, num_draws, num_domains, 1)))
    proposals = centre + (posterior.root[node] @ local_noise[..., None])[..., 0]
    if num_proposals == 1:
        return _packed(fit, data, node, proposals[0], _draw_discrepancy(fit, data, node, proposals[0], rng))
    log_ratio = _log_exact(fit, data, node, proposals, centre, shared_noise)
    log_proposal = -0.5 * (_STUDENT + num_parameters) * np.log1p((local_noise**2).sum(-1) / _STUDENT)
    log_ratio = log_ratio - log_proposal
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    gumbel = rng.gumbel(size=log_ratio.shape)
    chosen = np.argmax(log_ratio + gumbel, axis=0)
    theta = np.take_along_axis(proposals, chosen[None, ..., None], axis=0)[0]
    return _packed(fit, data, node, theta, _draw_discrepancy(fit, data, node, theta, rng))


def _packed(fit: LawFit, data: FitData, node: np.ndarray, theta: np.ndarray, weights: np.ndarray) -> LawDraws:
    scale = data.context.scale
    logs = (fit.scales.log_noise, fit.scales.log_discrepancy, fit.scales.log_curve)
    noise_sd, discrepancy_sd, curve_sd = (scale * np.exp(log_scale[node]) for log_scale in logs)
    return LawDraws(fit.law, theta, weights, noise_sd, discrepancy_sd, fit.scales.growth[node], curve_sd)


_STUDENT = 8.0


def _log_exact(fit, data, node, proposals, centre, shared_noise):  # type: ignore[no-untyped-def]
    """Log of likelihood times prior of each domain's parameters given the shared ones, (K, S, G)."""
    num_candidates, num_draws = proposals.shape[:2]
    flat = proposals.reshape(num_candidates * num_draws, *proposals.shape[2:])
    value = fit.law.value(flat, data.coordinates)
    residual = np.where(data.is_real, data.y - value, 0.0).reshape(num_candidates, num_draws, *data.y.shape)
    marginal = fit.conditional.marginal
    misfit = np.empty((num_candidates, num_draws, data.y.shape[0]))
    for k in np.unique(node):
        members = node == k
        one = marginal.at(int(k))
        columns = np.moveaxis(residual[:, members], (0, 1), (-2, -1)).reshape(*data.y.shape, -1)
        quadratic = (columns * one.solve(columns)).sum(1).reshape(data.y.shape[0], num_candidates, -1)
        misfit[:, members] = np.moveaxis(quadratic, 0, -1)
    hierarchy = fit.law.hierarchy(data.design, fit.scales.log_domain[node])
    prior_mean = hierarchy.local_mean
    if hierarchy.shared_mean.shape[0]:
        shared = fit.conditional.posterior.shared[node] + _shared_deviation(fit, hierarchy, node, shared_noise)
        prior_mean = np.einsum("gq,sqp->sgp", hierarchy.design, shared)
    prior = ((proposals - prior_mean) ** 2 / hierarchy.local_var[:, None, :]).sum(-1)
    return -0.5 * (misfit + prior)


def _shared_deviation(
    fit: LawFit, hierarchy: arrow.Hierarchy, node: np.ndarray, shared_noise: np.ndarray
) -> np.ndarray:
    root = fit.conditional.posterior.shared_root
    num_shared, num_parameters = hierarchy.shared_mean.shape
    return (root[node] @ shared_noise[..., None])[..., 0].reshape(len(node), num_shared, num_parameters)


def _draw_discrepancy(
    fit: LawFit, data: FitData, node: np.ndarray, theta: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Feature weights given the law's parameters: exact Gaussian draws by Matheron's rule, (S, G, M)."""
    value = fit.law.value(theta, data.coordinates)
    residual = np.where(data.is_real, data.y - value, 0.0)
    num_features = data.phi.shape[-1]
    prior = rng.standard_normal((len(node), len(data.y), num_features))
    eps = rng.standard_normal(residual.shape)
    weights = np.empty_like(prior)
    for k in np.unique(node):
        members = np.flatnonzero(node == k)
        one = fit.conditional.marginal.at(int(k))
        amplitude = data.context.scale * np.exp(fit.scales.log_discrepancy[k])
        simulated = amplitude * one.spread(prior[members][..., None])[..., 0] + np.sqrt(one.diagonal) * eps[members]
        if data.curve.shape[-1]:
            effect = rng.standard_normal((len(members), len(data.y), data.curve.shape[-1], 1))
            simulated += data.context.scale * np.exp(fit.scales.log_curve[k]) * one.bend * (data.curve @ effect)[..., 0]
        gap = np.where(data.is_real, residual[members] - simulated, 0.0)
        solved = one.solve(np.moveaxis(gap, 0, -1))
        update = amplitude**2 * one.gather(solved)
        weights[members] = amplitude * prior[members] + np.moveaxis(update, -1, 0)
    return weights
