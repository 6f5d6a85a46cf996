"""The averaged posterior as one Gaussian: what planning conditions on.

The covariance of the responses at any two points under a mixture of linearised components is the weighted mean of the
components' covariances plus the covariance of their means (law of total covariance): the second part is the
disagreement between laws, basins and scales, which a run may settle as well as any parameter.  Both parts are inner
products of features, so conditioning on a run is a rank-one update that does not depend on its outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from planner.inference import discrepancy
from planner.inference.data import swell
from planner.inference.laplace import LawFit

if TYPE_CHECKING:
    from planner.inference.posterior import StudyPosterior

_COMPONENTS_A_LAW = 2
_LEAST_WEIGHT = 0.02


class Surrogate(NamedTuple):
    """Features of points: cov(i, j) = shared_i . shared_j + [same domain] local_i . local_j + [i = j] own_i.

    P points; the features are scaled so that the sums are variances of eta.
    """

    domain: np.ndarray  # (P,)
    shared: np.ndarray  # (P, K0)
    local: np.ndarray  # (P, K1)
    own_var: np.ndarray  # (P,) discrepancy that no feature carries
    noise_var: np.ndarray  # (P,) of one run
    mean: np.ndarray  # (P,)

    def take(self, index: np.ndarray | slice) -> Surrogate:
        """The points at `index`."""
        return Surrogate(*(array[index] for array in self))


def make_surrogate(posterior: StudyPosterior, domain: np.ndarray, x: np.ndarray) -> Surrogate:
    """Features of points: domain indices (P,), raw axis values (P, A).  Needs a posterior of the fast engine."""
    coordinates = posterior.encoding.coordinates(x)
    domain = np.asarray(domain, dtype=int)
    phi, missed = discrepancy.features(posterior.basis, coordinates)
    height = posterior.heights.at(domain, coordinates)
    weights = np.where(posterior.weights >= _LEAST_WEIGHT, posterior.weights, 0.0)
    weights = weights / weights.sum()
    shared, local, means, component_weights = [], [], [], []
    own_var = np.zeros(len(domain))
    noise_var = np.zeros(len(domain))
    for weight, fit in zip(weights, posterior.fits, strict=True):
        if weight == 0.0:
            continue
        nodes = _representative_nodes(fit)
        theta = fit.conditional.posterior.theta[nodes]
        value, jacobian = fit.law.jacobian_at(theta[:, domain], coordinates)
        unit = float(fit.law.context.scale) ** 2
        swollen, bend = swell(fit.scales.growth[nodes], height)
        for k, node in enumerate(nodes):
            share = weight / len(nodes)
            bent = phi * bend[k][:, None]
            of_theta, of_weights = _point_features(fit, int(node), domain, jacobian[k], bent)
            shared.append(np.sqrt(share) * of_theta[0])
            local.append(np.sqrt(share) * np.concatenate([of_theta[1], of_weights], axis=1))
            means.append(value[k] + _discrepancy_mean(fit, int(node), domain, bent))
            component_weights.append(share)
            own_var += share * unit * np.exp(2.0 * fit.scales.log_discrepancy[node]) * bend[k] ** 2 * missed
            # Student-t noise of 4 degrees has twice its squared scale as variance.
            noise_var += share * 2.0 * unit * np.exp(2.0 * fit.scales.log_noise[node]) * swollen[k] ** 2
            noise_var += share * unit * np.exp(2.0 * fit.scales.log_curve[node]) * bend[k] ** 2
    share = np.array(component_weights)
    mean = share @ np.array(means)
    between = np.sqrt(share)[:, None] * (_tame(np.array(means)) - mean)
    # The weights of the laws heed only a part of what runs say about them, so only that part of the disagreement can
    # be settled by a run; the rest stays, wherever the next run is.
    own_var += (1.0 - posterior.temper) * (between**2).sum(axis=0)
    between *= np.sqrt(posterior.temper)
    return Surrogate(
        domain, np.concatenate([*shared, between.T], axis=1), np.concatenate(local, axis=1), own_var, noise_var, mean
    )


def law_means(
    posterior: StudyPosterior, domain: np.ndarray, x: np.ndarray, *, least_weight: float
) -> tuple[list[str], np.ndarray]:
    """Names (K) and mean responses (K, P) on the scale of the laws, discrepancy included, of the laws that count.

    Args:
        domain: domain indices, (P,).
        x: raw axis values, (P, A).
    """
    coordinates = posterior.encoding.coordinates(x)
    phi, _ = discrepancy.features(posterior.basis, coordinates)
    height = posterior.heights.at(domain, coordinates)
    names, means = [], []
    for weight, fit in zip(posterior.weights, posterior.fits, strict=True):
        if weight < min(least_weight, posterior.weights.max()):
            continue
        nodes = _representative_nodes(fit)
        value = fit.law.value_at(fit.conditional.posterior.theta[nodes][:, domain], coordinates)
        _, bend = swell(fit.scales.growth[nodes], height)
        added = [_discrepancy_mean(fit, int(node), domain, phi * bend[k][:, None]) for k, node in enumerate(nodes)]
        names.append(fit.law.law.name)
        means.append(np.mean(value + np.array(added), axis=0))
    return names, np.array(means)


def _tame(means: np.ndarray) -> np.ndarray:
    """Component means (K, P) held within a few spreads of their median, so that one runaway law does not rule."""
    middle = np.median(means, axis=0)
    spread = np.median(np.abs(means - middle), axis=0) * 1.5 + 1e-12
    return np.clip(means, middle - 8.0 * spread, middle + 8.0 * spread)


def _representative_nodes(fit: LawFit) -> np.ndarray:
    """Nodes at equally spaced quantiles of weight, in order of noise."""
    order = np.argsort(fit.scales.log_noise, kind="stable")
    cumulative = np.cumsum(fit.weight[order])
    positions = (np.arange(_COMPONENTS_A_LAW) + 0.5) / _COMPONENTS_A_LAW
    return order[np.searchsorted(cumulative, positions).clip(max=len(order) - 1)]


def _point_features(
    fit: LawFit, node: int, domain: np.ndarray, jacobian: np.ndarray, phi: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Standard-normal features of one component at points: ((shared, parameters), discrepancy weights)."""
    posterior, marginal = fit.conditional.posterior, fit.conditional.marginal
    one = marginal.at(node)
    amplitude_sq = float(fit.law.context.scale) ** 2 * np.exp(2.0 * fit.scales.log_discrepancy[node])
    # A run that moves theta moves the discrepancy the other way: the data fix their sum.
    response = amplitude_sq * one.gather(one.solve(fit.linear.jacobian[node]))  # (G, M, p)
    known = one.gather(one.solve(one.spread(np.eye(phi.shape[1]))))
    spread = amplitude_sq * np.eye(phi.shape[1]) - amplitude_sq**2 * known
    root = _symmetric_root(spread)  # (G, M, M)
    lever = posterior.lever[node]
    shared = np.zeros((len(domain), lever.shape[-1]))
    parameters = np.zeros((len(domain), jacobian.shape[-1]))
    of_weights = np.zeros_like(phi)
    for g in np.unique(domain):
        at = np.flatnonzero(domain == g)
        net = jacobian[at] - phi[at] @ response[g]
        shared[at] = net @ lever[g]
        parameters[at] = net @ posterior.root[node][g]
        of_weights[at] = phi[at] @ root[g]
    return (shared, parameters), of_weights


def _symmetric_root(matrix: np.ndarray) -> np.ndarray:
    value, vector = np.linalg.eigh(0.5 * (matrix + np.swapaxes(matrix, -1, -2)))
    return vector * np.sqrt(np.maximum(value, 0.0))[..., None, :]


def _discrepancy_mean(fit: LawFit, node: int, domain: np.ndarray, phi: np.ndarray) -> np.ndarray:
    marginal = fit.conditional.marginal
    one = marginal.at(node)
    residual = (
        fit.linear.pseudo[node] - (fit.linear.jacobian[node] @ fit.conditional.posterior.theta[node][..., None])[..., 0]
    )
    amplitude_sq = float(fit.law.context.scale) ** 2 * np.exp(2.0 * fit.scales.log_discrepancy[node])
    weights = amplitude_sq * one.gather(one.solve(residual[..., None]))[..., 0]
    return (phi * weights[domain]).sum(axis=1)


def compress(surrogate: Surrogate, *, anchor: np.ndarray) -> Surrogate:
    """The same points with at most as many features as there are anchors (indices of points).

    Covariances with the anchors are kept exactly: the features are projected on the span of theirs (Nystrom).  What
    is dropped stays in `own_var`, so that no variance is lost; only correlations away from every anchor are.
    """

    def shrink(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if features.shape[1] <= len(anchor):
            return features, np.zeros(len(features))
        gram = features[anchor] @ features[anchor].T
        # Relative to the largest variance, so that near-duplicate anchors do not break the factorisation.
        factor = np.linalg.cholesky(gram + 1e-10 * max(gram.diagonal().max(), 1e-300) * np.eye(len(anchor)))
        kept = solve_triangular(factor, features[anchor] @ features.T, lower=True, check_finite=False).T
        return kept, np.maximum((features**2).sum(axis=1) - (kept**2).sum(axis=1), 0.0)

    shared, lost_shared = shrink(surrogate.shared)
    local, lost_local = shrink(surrogate.local)
    return surrogate._replace(shared=shared, local=local, own_var=surrogate.own_var + lost_shared + lost_local)
