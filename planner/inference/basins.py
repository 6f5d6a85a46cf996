"""Modes of one law: robust Levenberg-Marquardt from many starts, all starts advanced together."""

import functools
import threading
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from planner.inference import arrow, noise
from planner.inference.data import BoundLaw, FitData

# Residual scale while searching, in units of the response scale: wide enough that a misfitting law still has a
# gradient, narrow enough that the data and not the prior choose the basin.
_SEARCH_NOISE = 0.05
_SOBOL = threading.Lock()
_ITERATIONS = 40
_PATIENCE, _WARM_PATIENCE = 10, 5  # iterations without a better mode after which the search ends
_SETTLED = 0.02  # nats gained by a step: what is left is less than the later refinements gain
_MAX_SEARCH_ROWS = 128
_MAX_BASINS = 2
_BASIN_GAP = 6.0  # nats below the best mode at which a basin is dropped
_HOPE = 20.0  # nats below the best so far at which a start that still falls is waited for


class Basins(NamedTuple):
    """Distinct modes, best first.  B basins."""

    theta: np.ndarray  # (B, G, p)
    objective: np.ndarray  # (B,) negative log posterior at the search noise


@functools.lru_cache(maxsize=256)
def quasi_normal(num: int, dimension: int, *, seed: int) -> np.ndarray:
    """Standard normal points (num, dimension) spread evenly (scrambled Sobol); shared, so not to be written to."""
    # The first one in a process reads its table of polynomials, which two threads at once may leave unread (seen).
    with _SOBOL:
        sobol = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed))
    uniform = sobol.random_base2(max(num - 1, 0).bit_length())[:num]
    return ndtri(np.clip(uniform, 1e-6, 1.0 - 1e-6))


def starting_points(law: BoundLaw, num_domains: int, num_starts: int, *, seed: int) -> np.ndarray:
    """Quasi-random draws of the population prior, equal over domains, (num_starts, G, p); the first is its mean."""
    normal = quasi_normal(num_starts, law.num_parameters, seed=seed).copy()
    normal[0] = 0.0
    population = law.prior_mean + law.prior_sd * normal
    return np.repeat(population[:, None, :], num_domains, axis=1)


def thin(data: FitData, most: int) -> FitData:
    """At most `most` runs a domain, spread over the order of cost."""
    if data.y.shape[1] <= most:
        return data
    picks = np.empty((len(data.y), most), dtype=int)
    for g, (order, real) in enumerate(zip(data.order, data.is_real, strict=True)):
        by_cost = np.argsort(order)[: max(int(real.sum()), 1)]
        chosen = np.unique(np.linspace(0, len(by_cost) - 1, most).round().astype(int))
        rows = by_cost[chosen]
        padding = np.flatnonzero(~real)[: most - len(rows)]
        picks[g] = np.concatenate([rows, padding])[:most]
    index = np.arange(len(data.y))[:, None]
    return data._replace(
        **{
            name: getattr(data, name)[index, picks]
            for name in ("y", "coordinates", "is_real", "known_var", "order", "phi", "missed", "curve", "height")
        }
    )


def find_basins(law: BoundLaw, data: FitData, *, num_starts: int, seed: int, warm: np.ndarray | None = None) -> Basins:
    """The best distinct modes of a law under Student-t noise of a generous scale and no discrepancy.

    Args:
        warm: parameters of an earlier fit, (B, G, p), added to the starts.
    """
    data = thin(data, _MAX_SEARCH_ROWS)
    start = starting_points(law, len(data.y), num_starts, seed=seed)
    if warm is not None:
        start[1 : 1 + len(warm)] = warm[: num_starts - 1]
    hierarchy = law.hierarchy(data.design, np.zeros((num_starts, law.num_parameters if len(data.y) > 1 else 0)))
    variance = (_SEARCH_NOISE * data.context.scale) ** 2 + data.known_var
    degrees = noise.DEGREES_OF_FREEDOM

    def objective(value: np.ndarray, theta: np.ndarray, shared: np.ndarray) -> np.ndarray:
        residual_sq = np.where(data.is_real, (data.y - value) ** 2, 0.0)
        misfit = (0.5 * (degrees + 1.0) * np.log1p(residual_sq / (degrees * variance))).sum((-1, -2))
        total = misfit + 0.5 * arrow.prior_quadratic(theta, shared, hierarchy)
        return np.where(np.isfinite(total), total, np.inf)

    theta = start
    shared = np.zeros((num_starts, *hierarchy.shared_mean.shape)) + hierarchy.shared_mean
    if shared.shape[1]:
        shared[:, 0] = theta.mean(1)
    value, jacobian = law.value_and_jacobian(theta, data.coordinates)
    best = objective(value, theta, shared)
    damping = np.full(num_starts, 1e-1)
    settled = np.zeros(num_starts, dtype=bool)
    lowest, since = np.inf, 0
    patience = _PATIENCE if warm is None else _WARM_PATIENCE
    for _ in range(_ITERATIONS):
        residual = np.where(data.is_real, data.y - value, 0.0)
        weight = np.where(data.is_real, noise.student_weights(residual**2, variance) / variance, 0.0)
        weighted = jacobian * weight[..., None]
        precision = np.swapaxes(weighted, -1, -2) @ jacobian
        pseudo = residual + (jacobian @ theta[..., None])[..., 0]
        score = (np.swapaxes(weighted, -1, -2) @ pseudo[..., None])[..., 0]
        new_theta, new_shared = arrow.damped_step(precision, score, hierarchy, damping=damping, anchor=theta)
        new_value, new_jacobian = law.value_and_jacobian(new_theta, data.coordinates)
        new = objective(new_value, new_theta, new_shared)
        accepted = new < best
        settled |= np.where(accepted, best - new < _SETTLED, damping > 1e6)
        theta = np.where(accepted[:, None, None], new_theta, theta)
        shared = np.where(accepted[:, None, None], new_shared, shared)
        value = np.where(accepted[:, None, None], new_value, value)
        jacobian = np.where(accepted[:, None, None, None], new_jacobian, jacobian)
        best = np.where(accepted, new, best)
        damping = np.clip(np.where(accepted, damping * 0.2, damping * 8.0), 1e-8, 1e8)
        since = 0 if best.min() < lowest - _SETTLED else since + 1
        lowest = min(lowest, best.min())
        if since >= patience or settled[best < lowest + _HOPE].all():
            break
    return _distinct(theta, best, settled)


def _distinct(theta: np.ndarray, objective: np.ndarray, settled: np.ndarray) -> Basins:
    """Keeps modes that differ in their parameters by more than search error, best first.

    A start that still falls is no mode yet, and would pass for one beside the mode it falls to.
    """
    kept: list[int] = []
    for index in np.argsort(objective):
        if objective[index] > objective.min() + _BASIN_GAP or len(kept) == _MAX_BASINS:
            break
        is_mode = settled[index] or not kept
        if is_mode and all(np.abs(theta[index] - theta[other]).max() > 0.5 for other in kept):
            kept.append(int(index))
    return Basins(theta[kept], objective[kept])
