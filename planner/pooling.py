"""Exponents that others measured, pooled: every setting with its error, sharing what it has in common with others.

    y_s ~ N(a_s, se_s^2),   a_s = m + sum_f u_f(s) + z_s,   u ~ N(0, t^2),   z ~ N(0, t^2)

with a flat prior for m and a half-normal one for t, integrated on a grid; everything else is Gaussian and exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

_TAU = np.linspace(0.002, 0.15, 75)
_TAU_SD = 0.05
_FLAT = 1.0  # prior standard deviation of the common mean: flat for exponents


class Pooled(NamedTuple):
    """Draws from what is believed after pooling.  S draws, K settings."""

    settings: np.ndarray  # (S, K) the settings' own exponents
    mean: np.ndarray  # (S,) the common mean
    new: np.ndarray  # (S,) the exponent of one more setting, none of whose factor levels was seen
    spread: np.ndarray  # (S,) t


def pool(
    values: Sequence[float],
    errors: Sequence[float],
    factors: Sequence[Mapping[str, str]],
    *,
    num_draws: int = 4000,
    seed: int = 0,
) -> Pooled:
    """Posterior of the exponents of K settings.

    Args:
        values: measured exponents, (K,).
        errors: their standard errors, (K,); infinite for a setting that was not measured and is to be predicted.
        factors: what each setting has in common with others, as for domains.
    """
    y, se = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    known = np.isfinite(se)
    design = _design(factors)
    # Columns: mean, factor levels, settings.
    loads = np.hstack([np.ones((len(y), 1)), design, np.eye(len(y))])
    log_weight, centres, covariances = [], [], []
    for tau in _TAU:
        prior = np.diag(np.concatenate([[_FLAT**2], np.full(loads.shape[1] - 1, tau**2)]))
        seen = loads[known]
        cross = prior @ seen.T
        covariance = seen @ cross + np.diag(se[known] ** 2)
        gain = np.linalg.solve(covariance, cross.T).T
        centres.append(gain @ y[known])
        covariances.append(prior - gain @ cross.T)
        fit = y[known] @ np.linalg.solve(covariance, y[known])
        log_weight.append(-0.5 * (fit + np.linalg.slogdet(covariance)[1]) - 0.5 * (tau / _TAU_SD) ** 2)
    weight = np.exp(np.array(log_weight) - np.max(log_weight))
    rng = np.random.default_rng(seed)
    which = rng.choice(len(_TAU), num_draws, p=weight / weight.sum())
    latent = np.empty((num_draws, loads.shape[1]))
    for k in np.unique(which):
        rows = which == k
        latent[rows] = rng.multivariate_normal(centres[k], covariances[k], rows.sum(), method="eigh")
    num_factors = len({name for each in factors for name in each})
    spread = _TAU[which]
    unseen = latent[:, 0] + np.sqrt(num_factors + 1.0) * spread * rng.standard_normal(num_draws)
    return Pooled(latent @ loads.T, latent[:, 0], unseen, spread)


def _design(factors: Sequence[Mapping[str, str]]) -> np.ndarray:
    columns = [
        [float(each.get(name) == level) for each in factors]
        for name in sorted({name for each in factors for name in each})
        for level in sorted({each[name] for each in factors if name in each})
    ]
    return np.array(columns, dtype=np.float64).reshape(-1, len(factors)).T
