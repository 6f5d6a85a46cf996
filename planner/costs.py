"""What runs cost, learned: the declared cost of a study, corrected by what its runs came to.

log(actual / declared) = shift of the domain + slope (log declared - their mean) + noise, a Bayesian linear regression
whose shifts of domains share a mean.  Where runs cost what was declared the correction is exactly one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner.records import RunState

if TYPE_CHECKING:
    from planner.records import RunRecord
    from planner.spec import StudySpec

# Prior standard deviations: of the shift that all domains share, of a domain's own, of the slope.
_SHARED_SD, _DOMAIN_SD, _SLOPE_SD = 0.7, 0.3, 0.1
# Residual spread expected before any run, and how many runs that is worth.
_NOISE_SD, _NOISE_RUNS = 0.1, 2.0
_ITERATIONS = 5
_MOST = 10.0  # no correction is believed beyond this factor


class CostModel(NamedTuple):
    """The correction.  G domains; `mean` and `covariance` are of (shifts of the domains, slope)."""

    num_runs: int
    centre: float  # log declared cost at which the slope turns
    mean: np.ndarray  # (G + 1,)
    covariance: np.ndarray  # (G + 1, G + 1)
    noise_sd: float  # of log(actual / declared)

    def factor(self, domain: np.ndarray, declared: np.ndarray) -> np.ndarray:
        """Median of actual over declared cost, (C,).

        Args:
            domain: domain indices, (C,).
            declared: declared costs, (C,).
        """
        features = _features(domain, declared, self.centre, len(self.mean) - 1)
        return np.exp(np.clip(features @ self.mean, -np.log(_MOST), np.log(_MOST)))

    def log_sd(self, domain: np.ndarray, declared: np.ndarray) -> np.ndarray:
        """Standard deviation of the log of the actual cost of one more run, (C,)."""
        features = _features(domain, declared, self.centre, len(self.mean) - 1)
        return np.sqrt(((features @ self.covariance) * features).sum(axis=1) + self.noise_sd**2)


def learn_costs(spec: StudySpec, runs: Iterable[RunRecord]) -> CostModel | None:
    """The correction from paid runs that completed; None before the first."""
    names = {name: index for index, name in enumerate(spec.domain_names)}
    axes = tuple(spec.axis_names)
    paid = [
        run
        for run in runs
        if run.state is RunState.COMPLETED
        and not run.external
        and run.parent is None  # its cost is that of a difference
        and run.cost is not None
        and run.cost > 0
        and run.design.domain in names
        and all(name in run.design.axes for name in axes)
    ]
    if not paid:
        return None
    domain = np.array([names[run.design.domain] for run in paid])
    points = np.array([[float(run.design.axes[name]) for name in axes] for run in paid])
    declared = spec.costs(domain, points)
    return fit_costs(domain, declared, np.array([float(run.cost or 0.0) for run in paid]), len(names))


def fit_costs(domain: np.ndarray, declared: np.ndarray, actual: np.ndarray, num_domains: int) -> CostModel:
    """The posterior of the correction; arrays of n runs, costs greater than 0."""
    centre = float(np.log(declared).mean())
    ratio = np.log(actual) - np.log(declared)
    features = _features(domain, declared, centre, num_domains)
    prior = _SHARED_SD**2 * np.ones((num_domains + 1, num_domains + 1))
    prior[-1, :] = prior[:, -1] = 0.0
    prior += np.diag([_DOMAIN_SD**2] * num_domains + [_SLOPE_SD**2])
    prior_precision = np.linalg.inv(prior)
    gram, score = features.T @ features, features.T @ ratio
    variance = _NOISE_SD**2
    for _ in range(_ITERATIONS):
        covariance = np.linalg.inv(prior_precision + gram / variance)
        mean = covariance @ score / variance
        left = ((ratio - features @ mean) ** 2).sum() + (gram * covariance).sum()
        variance = (_NOISE_RUNS * _NOISE_SD**2 + left) / (_NOISE_RUNS + len(ratio))
    return CostModel(len(ratio), centre, mean, covariance, float(np.sqrt(variance)))


def as_values(spec: StudySpec, model: CostModel | None) -> dict[str, Any] | None:
    """The correction as plain values: actual over declared cost by domain at the usual cost, and its spread."""
    if model is None:
        return None
    index = np.arange(len(spec.domain_names))
    factors = model.factor(index, np.full(len(index), np.exp(model.centre)))
    return {
        "num_runs": model.num_runs,
        "actual_over_declared": dict(zip(spec.domain_names, map(float, factors), strict=True)),
        "slope": float(model.mean[-1]),
        "spread": model.noise_sd,
    }


def _features(domain: np.ndarray, declared: np.ndarray, centre: float, num_domains: int) -> np.ndarray:
    return np.column_stack([np.eye(num_domains)[domain], np.log(declared) - centre])
