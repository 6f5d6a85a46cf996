"""Covariance of the residuals of one domain: discrepancy plus noise, applied without forming large matrices."""

from typing import NamedTuple

import numpy as np

from planner.inference.arrow import invert_lower

DEGREES_OF_FREEDOM = 4.0


class Marginal(NamedTuple):
    """K = s^2 Phi Phi' + diag(D) of every domain, factored in the smaller of its two forms.

    Padded rows have Phi = 0 and D = 1, so they add nothing.  G domains, n rows, M features.
    """

    phi: np.ndarray  # (G, n, M)
    diagonal: np.ndarray  # (..., G, n) D
    inner_root: np.ndarray  # (..., G, k, k) upper factor R with inverse(inner matrix) = R R'; k = min(n, M)
    is_dense: bool  # inner matrix is K itself (n <= M) rather than I/s^2 + Phi' D^-1 Phi
    log_det: np.ndarray  # (...) summed over domains

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """K^-1 times columns (..., G, n, k)."""
        transposed = np.swapaxes(self.inner_root, -1, -2)
        if self.is_dense:
            return self.inner_root @ (transposed @ columns)
        scaled = columns / self.diagonal[..., None]
        projected = transposed @ (np.swapaxes(self.phi, -1, -2) @ scaled)
        return scaled - (self.phi @ (self.inner_root @ projected)) / self.diagonal[..., None]

    def inverse_diagonal(self) -> np.ndarray:
        """The diagonal of K^-1, (..., G, n)."""
        if self.is_dense:
            return (self.inner_root**2).sum(-1)
        projected = (self.phi / self.diagonal[..., None]) @ self.inner_root
        return 1.0 / self.diagonal - (projected**2).sum(-1)


def marginal(phi: np.ndarray, diagonal: np.ndarray, amplitude_sq: np.ndarray) -> Marginal:
    """Factors K for features (G, n, M), noise variances (..., G, n) and discrepancy variances (...)."""
    num_rows, num_features = phi.shape[-2:]
    square = amplitude_sq[..., None, None, None]
    transposed = np.swapaxes(phi, -1, -2)
    if num_rows <= num_features:
        inner = square * (phi @ transposed) + diagonal[..., None] * np.eye(num_rows)
    else:
        inner = (transposed / diagonal[..., None, :]) @ phi + np.eye(num_features) / square
    inverse = invert_lower(np.linalg.cholesky(inner))
    log_det = -2.0 * np.log(np.einsum("...gii->...gi", inverse)).sum((-1, -2))
    if num_rows > num_features:
        log_det = log_det + np.log(diagonal).sum((-1, -2))
        log_det = log_det + phi.shape[0] * num_features * np.log(amplitude_sq)
    return Marginal(phi, diagonal, np.swapaxes(inverse, -1, -2), num_rows <= num_features, log_det)


def student_weights(residual_sq: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Expected precision multipliers of Student-t noise seen as a scale mixture of normals."""
    return (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + residual_sq / variance)
