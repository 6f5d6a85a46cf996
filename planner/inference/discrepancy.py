"""What no law captures: a Gaussian process in the scaled coordinates, written with few features.

delta(x) = Phi(x) w + remainder,  w ~ N(0, s^2 I).  `Phi` is the Nystrom map of a Matern-3/2 `kernel` through inducing
points chosen by pivoted Cholesky, so that the matrices of inference have the size of the features (some tens) and not
of the runs.  The variance that the features miss is kept as independent variance of each point (FITC, Snelson and
Ghahramani 2006), so that a point far from every inducing point is never claimed to be known.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

_SQRT3 = float(np.sqrt(3.0))
_ROUGH_SHARE = 0.1  # of the variance
LONG_SHARE = 1.0 - _ROUGH_SHARE
_ROUGH_LENGTH = 1.0 / 6.0  # in units of the long process's


class Basis(NamedTuple):
    """Features of the discrepancy.  M = number of features, A = number of axes."""

    inducing: np.ndarray  # (M, A) inducing points in scaled coordinates
    factor: np.ndarray  # (M, M) lower Cholesky factor of their kernel matrix
    scale: np.ndarray  # (A,) coordinates are divided by this: spread times length


def matern32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matern-3/2 correlation of points (..., P, A) and (Q, A) in units of the length-scale, (..., P, Q)."""
    square = (a**2).sum(-1)[..., :, None] + (b**2).sum(-1) - 2.0 * (a @ b.T)
    distance = _SQRT3 * np.sqrt(np.maximum(square, 0.0))
    return (1.0 + distance) * np.exp(-distance)


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation of the discrepancy at points (P, A) and (Q, A) in units of its length-scale, (P, Q).

    A long process over all axes, and for every axis a short one that all values of the others share: runs of one
    model size deviate together, since they share what was chosen for that size, so more of them teach no more.
    """
    rough = sum(matern32(a[:, [i]] / _ROUGH_LENGTH, b[:, [i]] / _ROUGH_LENGTH) for i in range(a.shape[1]))
    return LONG_SHARE * matern32(a, b) + _ROUGH_SHARE / a.shape[1] * rough


def choose_basis(points: np.ndarray, scale: np.ndarray, *, num_features: int, tolerance: float = 1e-3) -> Basis:
    """A basis that represents the kernel at `points` (P, A) in coordinates, best first (pivoted Cholesky).

    Stops early when the missed variance is below `tolerance` everywhere.
    """
    scaled = points / scale
    remaining = np.ones(len(scaled))
    columns = np.zeros((len(scaled), num_features))
    chosen: list[int] = []
    for k in range(min(num_features, len(scaled))):
        pivot = int(np.argmax(remaining))
        if remaining[pivot] < tolerance:
            break
        column = kernel(scaled, scaled[pivot : pivot + 1])[:, 0] - columns[:, :k] @ columns[pivot, :k]
        columns[:, k] = column / np.sqrt(remaining[pivot])
        remaining = np.maximum(remaining - columns[:, k] ** 2, 0.0)
        remaining[pivot] = 0.0
        chosen.append(pivot)
    inducing = scaled[chosen]
    gram = kernel(inducing, inducing) + 1e-8 * np.eye(len(chosen))
    return Basis(inducing=inducing, factor=np.linalg.cholesky(gram), scale=scale)


def features(basis: Basis, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features (..., M) of points (..., A) and the share of unit variance that they miss (...)."""
    flat = coordinates.reshape(-1, coordinates.shape[-1]) / basis.scale
    cross = kernel(flat, basis.inducing)
    phi = solve_triangular(basis.factor, cross.T, lower=True, check_finite=False).T
    missed = np.clip(1.0 - (phi**2).sum(-1), 0.0, 1.0)
    return phi.reshape(*coordinates.shape[:-1], -1), missed.reshape(coordinates.shape[:-1])
