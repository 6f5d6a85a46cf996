"""How far runs lie above the best response, smoothed: where the errors of a study may be larger.

Residuals of recorded scaling studies are not of one size.  Runs in corners of the design (tiny models, absurd learning
rates) have responses far above the best, and both their noise and what no law says of them are many times larger than
near the best, where targets lie.  The height of a design is log(1 + (eta - best of its domain) / scale), and
`planner.model` says how errors grow with it.  It is smoothed, so that a run does not choose the size of its own error,
and so that it is known where nothing has been run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_RIDGE = 0.5  # against slopes and curvatures, in runs


class Heights(NamedTuple):
    """A quadratic in the coordinates, a level for each domain.  A axes, G domains."""

    low: np.ndarray  # (A,) least and greatest coordinates of the runs: beyond, heights go on as they are at the edge
    high: np.ndarray  # (A,)
    weights: np.ndarray  # (1 + G + A + A (A + 1) / 2,)
    top: np.ndarray  # () the greatest height of a run

    def at(self, domain: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Heights (P,) at least 0 of points with domain indices (P,) and coordinates (P, A)."""
        num_domains = len(self.weights) - _num_terms(coordinates.shape[-1])
        terms = _terms(domain, coordinates, self.low, self.high, num_domains)
        return np.clip(terms @ self.weights, 0.0, self.top)


def fit_heights(
    domain: np.ndarray, coordinates: np.ndarray, eta: np.ndarray, *, num_domains: int, scale: float
) -> Heights:
    """Heights of the runs of a study by ridge regression; zero everywhere where there are no runs.

    Args:
        domain: index of each run's domain, (R,).
        coordinates: of the runs, (R, A).
        eta: their responses, smaller is better, (R,).
        scale: of the responses, in their unit.
    """
    num_axes = coordinates.shape[-1]
    num_terms = num_domains + _num_terms(num_axes)
    if not len(eta):
        return Heights(np.zeros(num_axes), np.zeros(num_axes), np.zeros(num_terms), np.zeros(()))
    best = np.full(num_domains, np.inf)
    np.minimum.at(best, domain, eta)
    height = np.log1p((eta - best[domain]) / scale)
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    terms = _terms(domain, coordinates, low, high, num_domains)
    ridge = _RIDGE * (np.arange(num_terms) > 0) + 1e-9
    weights = np.linalg.solve(terms.T @ terms + np.diag(ridge), terms.T @ height)
    return Heights(low, high, weights, np.asarray(height.max()))


def _num_terms(num_axes: int) -> int:
    """Terms beside the levels of the domains."""
    return 1 + num_axes + num_axes * (num_axes + 1) // 2


def _terms(
    domain: np.ndarray, coordinates: np.ndarray, low: np.ndarray, high: np.ndarray, num_domains: int
) -> np.ndarray:
    """Constant, domain, slopes and products of the coordinates, which run from -1 to 1 over the runs."""
    half = np.maximum(0.5 * (high - low), 1e-9)
    z = (np.clip(coordinates, low, high) - 0.5 * (low + high)) / half
    first, second = np.triu_indices(coordinates.shape[-1])
    of_domain = np.asarray(domain, dtype=int)[:, None] == np.arange(num_domains)
    return np.concatenate([np.ones((len(z), 1)), of_domain, z, z[:, first] * z[:, second]], axis=1)
