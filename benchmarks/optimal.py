"""Classical optimal designs for one law linearised at one fit: no averaging, no discrepancy, no plan.

The law is the one of highest weight among those that suit the axes (before any run the first of the registry, at the
mean of its prior), fitted as for the planner; the information is that of its prior and of the runs bought, with the
mean squared residual as variance of the noise.  Designs are bought one after another by what they gain for
cost^0.3, the exponent of the published comparison (arXiv:2604.22753).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.active import Desk
from planner import inference
from planner.encoding import response_moments
from planner.inference.data import LOG_NOISE_PRIOR, BoundLaw
from planner.inference.posterior import StudyPosterior

_COST_EXPONENT = 0.3
_PRIOR_RUNS = 2.0  # that the prior of the noise counts for


class Linear(NamedTuple):
    """One response of the pool and of the targets under a linear law: covariances are products of features.

    C pool rows, T targets, K features: independent standard normal weights of the parameters.
    """

    pool: np.ndarray  # (C, K)
    targets: np.ndarray  # (T, K)
    noise_var: float
    unit: float  # variance unit of the response

    def condition(self, row: int) -> Linear:
        """What is left to learn once a pool row has been run."""
        direction = self.pool[row]
        length_sq = float(direction @ direction)
        if length_sq <= 0.0:
            return self
        # F F' loses F d d' F' / (|d|^2 + noise), which this scaling of the direction does.
        shrink = (1.0 - np.sqrt(self.noise_var / (length_sq + self.noise_var))) / length_sq
        pool, targets = (f - np.outer(f @ direction, shrink * direction) for f in (self.pool, self.targets))
        return self._replace(pool=pool, targets=targets)


def d_gain(linear: Linear) -> np.ndarray:
    """Nats about the parameters that one run of each pool row gives: half the growth of log det information, (C,)."""
    return 0.5 * np.log1p((linear.pool**2).sum(axis=1) / linear.noise_var)


def v_gain(linear: Linear) -> np.ndarray:
    """Fall of the targets' summed variance by one run of each pool row, (C,), in units of the response's variance."""
    covariance = linear.pool @ linear.targets.T
    return (covariance**2).sum(axis=1) / ((linear.pool**2).sum(axis=1) + linear.noise_var) / linear.unit


def d_optimal(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """Greedily the largest determinant of the information on the parameters, for cost^0.3."""
    return _greedy(desk, d_gain)


def v_optimal(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """Greedily the least summed variance of the targets, for cost^0.3."""
    return _greedy(desk, v_gain)


def _greedy(desk: Desk, gain: Callable[[Linear], np.ndarray]) -> np.ndarray:
    """The next rows, as many between two fits as the planner's own policy buys."""
    cost = desk.problem.pool.cost
    linears = [_linearise(desk, y, posterior) for y, posterior in enumerate(desk.fit(num_draws=0))]
    free, left = desk.affordable(), desk.purses.copy()
    rows: list[int] = []
    for _ in range(max(1, len(desk.bought) // 8)):
        free = free[(cost[free] <= left[desk.purse[free]] * (1.0 + 1e-12)) & ~np.isin(free, rows)]
        if not len(free):
            break
        worth = np.sum([gain(linear)[free] for linear in linears], axis=0) / cost[free] ** _COST_EXPONENT
        row = int(free[np.argmax(worth)])
        rows.append(row)
        left[desk.purse[row]] -= cost[row]
        linears = [linear.condition(row) for linear in linears]
    return np.array(rows, dtype=int)


def _linearise(desk: Desk, response: int, posterior: StudyPosterior) -> Linear:
    """The best law of one response at its best fit, the rows bought so far conditioned on."""
    problem, encoding = desk.problem, posterior.encoding
    fit = posterior.fits[int(np.argmax(posterior.weights))]
    theta = fit.conditional.posterior.theta[int(np.argmax(fit.weight))]  # (G, p)
    domain = np.concatenate([problem.pool.domain, problem.targets.domain])
    coordinates = encoding.coordinates(np.concatenate([problem.pool.x, problem.targets.x]))
    with inference.one_blas_thread():
        value, jacobian = (array[0] for array in fit.law.jacobian_at(theta[None, domain], coordinates))
    features = _prior_features(posterior, fit.law, domain, jacobian)
    outcomes = problem.outcomes(desk.bought, response)
    rows = [outcome.design.seed for outcome in outcomes]
    seen = np.array([response_moments(outcome, problem.specs[response])[0] for outcome in outcomes])
    unit = float(fit.law.context.scale) ** 2
    misfit = float(((encoding.scale.to_eta(seen) - value[rows]) ** 2).sum()) if rows else 0.0
    prior_var = unit * np.exp(2.0 * LOG_NOISE_PRIOR[0])
    noise_var = (_PRIOR_RUNS * prior_var + misfit) / (_PRIOR_RUNS + len(rows))
    linear = Linear(features[: len(problem.pool)], features[len(problem.pool) :], noise_var, unit)
    for row in rows:
        linear = linear.condition(row)
    return linear


def _prior_features(posterior: StudyPosterior, law: BoundLaw, domain: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Features (P, K) of points with derivatives (P, p): what domains share, then what each has of its own."""
    design = posterior.encoding.design
    num_domains = len(design)
    hierarchy = law.hierarchy(design, np.zeros(law.num_parameters if num_domains > 1 else 0))
    shared = [
        hierarchy.design[domain, q : q + 1] * jacobian * np.sqrt(hierarchy.shared_var[q])
        for q in range(hierarchy.design.shape[1])
    ]
    own = jacobian * np.sqrt(hierarchy.local_var)
    return np.concatenate([*shared, *((domain == g)[:, None] * own for g in range(num_domains))], axis=1)
