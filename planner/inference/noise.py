"""Covariance of the residuals of one domain: discrepancy, run effects and noise, applied without large matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.inference.arrow import cholesky, invert_lower

DEGREES_OF_FREEDOM = 4.0


class Marginal(NamedTuple):
    """K = B (s^2 Phi Phi' + c^2 Z Z') B + diag(D) of every domain, factored in the smaller of its two forms.

    Z marks the training run of every row: checkpoints of one run share an effect of standard deviation c, so that many
    of them count as little more than one.  B is diagonal: how much larger both are at a row than at the best response.
    All is factored with rows divided by B.  Padded rows have Phi = 0, Z = 0, B = 1 and D = 1, so they add nothing.
    G domains, n rows, M features, K training runs (0 where every row is a run of its own).
    """

    phi: np.ndarray  # (G, n, M)
    curve: np.ndarray  # (G, n, K) Z
    bend: np.ndarray  # (..., G, n) B
    diagonal: np.ndarray  # (..., G, n) D
    curve_gain: np.ndarray  # (..., G, K) what Sherman and Morrison's formula takes off for each training run
    solved_phi: np.ndarray  # (..., G, n, M) (c^2 Z Z' + B^-1 D B^-1)^-1 Phi; not used in the dense form
    inner_root: np.ndarray  # (..., G, k, k) upper factor R with inverse(inner matrix) = R R'; k = min(n, M)
    log_det: np.ndarray  # (...) summed over domains

    @property
    def is_dense(self) -> bool:
        """Whether the inner matrix is K of divided rows rather than I/s^2 + Phi' (c^2 Z Z' + B^-1 D B^-1)^-1 Phi."""
        return self.phi.shape[-2] <= self.phi.shape[-1]

    def at(self, node: int) -> Marginal:
        """The covariance at one node of the scales."""
        by_node = ("bend", "diagonal", "curve_gain", "solved_phi", "inner_root", "log_det")
        return self._replace(**{name: getattr(self, name)[node] for name in by_node})

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """K^-1 times columns (..., G, n, k)."""
        transposed, bend = np.swapaxes(self.inner_root, -1, -2), self.bend[..., None]
        columns = columns / bend
        if self.is_dense:
            return self.inner_root @ (transposed @ columns) / bend
        scaled = _solve_block(self.curve, self.diagonal / self.bend**2, self.curve_gain, columns)
        pulled = self.inner_root @ (transposed @ (np.swapaxes(self.phi, -1, -2) @ scaled))
        return (scaled - self.solved_phi @ pulled) / bend

    def inverse_diagonal(self) -> np.ndarray:
        """The diagonal of K^-1, (..., G, n)."""
        square = self.bend**2
        if self.is_dense:
            return (self.inner_root**2).sum(-1) / square
        diagonal = self.diagonal / square
        block = 1.0 / diagonal - (self.curve @ self.curve_gain[..., None])[..., 0] / diagonal**2
        return (block - ((self.solved_phi @ self.inner_root) ** 2).sum(-1)) / square

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """What features' weights (..., G, M, k) add to the rows: B Phi w, (..., G, n, k)."""
        return self.bend[..., None] * (self.phi @ weights)

    def gather(self, columns: np.ndarray) -> np.ndarray:
        """The transpose of `spread`: Phi' B times columns (..., G, n, k), (..., G, M, k)."""
        return np.swapaxes(self.phi, -1, -2) @ (self.bend[..., None] * columns)


def _solve_block(curve: np.ndarray, diagonal: np.ndarray, gain: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(c^2 Z Z' + diag(D))^-1 times columns: every row belongs to one training run at most."""
    scaled = columns / diagonal[..., None]
    if not curve.shape[-1]:
        return scaled
    shared = gain[..., None] * (np.swapaxes(curve, -1, -2) @ scaled)
    return scaled - (curve @ shared) / diagonal[..., None]


def marginal(
    phi: np.ndarray,
    curve: np.ndarray,
    bend: np.ndarray,
    diagonal: np.ndarray,
    amplitude_sq: np.ndarray,
    curve_sq: np.ndarray,
) -> Marginal:
    """Factors K.

    Args:
        phi: features, (G, n, M).
        curve: which training run a row belongs to, (G, n, K).
        bend: how much larger discrepancy and run effects are at a row, (..., G, n).
        diagonal: noise variances, (..., G, n).
        amplitude_sq: discrepancy variances s^2, (...).
        curve_sq: run-effect variances c^2, (...); not read where K = 0.
    """
    num_rows, num_features = phi.shape[-2:]
    given, diagonal = diagonal, diagonal / bend**2
    square, effect = amplitude_sq[..., None, None, None], curve_sq[..., None, None, None]
    transposed = np.swapaxes(phi, -1, -2)
    weight = (np.swapaxes(curve, -1, -2) @ (1.0 / diagonal)[..., None])[..., 0]
    gain = curve_sq[..., None, None] / (1.0 + curve_sq[..., None, None] * weight)
    if num_rows <= num_features:
        inner = square * (phi @ transposed) + diagonal[..., None] * np.eye(num_rows)
        if curve.shape[-1]:
            inner = inner + effect * (curve @ np.swapaxes(curve, -1, -2))
        solved_phi = np.zeros((*diagonal.shape, 0))
    else:
        solved_phi = _solve_block(curve, diagonal, gain, phi)
        inner = transposed @ solved_phi
        inner = 0.5 * (inner + np.swapaxes(inner, -1, -2)) + np.eye(num_features) / square
    inverse = invert_lower(cholesky(inner))
    log_det = -2.0 * np.log(np.einsum("...gii->...gi", inverse)).sum((-1, -2)) + 2.0 * np.log(bend).sum((-1, -2))
    if num_rows > num_features:
        log_det = log_det + np.log(diagonal).sum((-1, -2))
        log_det = log_det + np.log1p(curve_sq[..., None, None] * weight).sum((-1, -2))
        log_det = log_det + phi.shape[0] * num_features * np.log(amplitude_sq)
    return Marginal(phi, curve, bend, given, gain, solved_phi, np.swapaxes(inverse, -1, -2), log_det)


def student_weights(residual_sq: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Expected precision multipliers of Student-t noise seen as a scale mixture of normals."""
    return (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + residual_sq / variance)
