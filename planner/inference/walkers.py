"""States of an ensemble of Markov chains, and the exact density they move on.

Shapes: C walkers, G domains, n rows that are real in some domain, p parameters, M features, K training runs, Q shared
rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.inference import arrow, noise
from planner.inference.data import BoundLaw, FitData, run_sizes, swell, unpack_scales


class Walkers(NamedTuple):
    """States of the chain."""

    theta: np.ndarray  # (C, G, p)
    shared: np.ndarray  # (C, Q, p); no rows with one domain
    log_domain: np.ndarray  # (C, p); no columns with one domain
    scales: np.ndarray  # (C, H) columns as in `data.error_scales`
    multiplier: np.ndarray  # (C, G, n)
    residual: np.ndarray  # (C, G, n) y - law, 0 where padded
    weights: np.ndarray  # (C, G, M)

    def take(self, index: np.ndarray | slice) -> Walkers:
        return Walkers(*(array[index] for array in self))

    def where(self, accepted: np.ndarray, other: Walkers) -> Walkers:
        """The other's state where accepted (C,)."""

        def pick(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
            if mine is theirs:
                return mine
            return np.where(accepted.reshape(-1, *[1] * (mine.ndim - 1)), theirs, mine)

        return Walkers(*(pick(a, b) for a, b in zip(self, other, strict=True)))


class Problem(NamedTuple):
    """A law and the rows that hold runs: padding costs time where nothing is compiled."""

    law: BoundLaw
    data: FitData
    rows: np.ndarray  # (n,) columns of the padded arrays
    y: np.ndarray  # (G, n)
    is_real: np.ndarray
    known_var: np.ndarray
    phi: np.ndarray  # (G, n, M)
    curve: np.ndarray  # (G, n, K)
    missed: np.ndarray
    height: np.ndarray  # (G, n, 1) or (G, n, 0)
    gram: np.ndarray  # (G, n, n) Phi Phi'
    curve_gram: np.ndarray  # (G, n, n)

    def residual(self, theta: np.ndarray) -> np.ndarray:
        value = self.law.value(theta, self.data.coordinates)[..., self.rows]
        return np.where(self.is_real, self.y - value, 0.0)

    def residual_and_jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, jacobian = self.law.value_and_jacobian(theta, self.data.coordinates)
        jacobian = np.where(self.is_real[..., None], jacobian[..., self.rows, :], 0.0)
        return np.where(self.is_real, self.y - value[..., self.rows], 0.0), jacobian

    def variances(self, scales: np.ndarray, multiplier: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Variance of the noise that the multiplier scales, and of the rest, (C, G, n)."""
        sizes = run_sizes(unpack_scales(scales, self.data), self.height, self.data.context.scale)
        return sizes.noise_var / multiplier, sizes.missed_var * self.missed + self.known_var

    def diagonal(self, scales: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
        tailed, rest = self.variances(scales, multiplier)
        return np.where(self.is_real, tailed + rest, 1.0)

    def amplitudes(self, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviations of the discrepancy and of the effect of a training run at height 0, (C,)."""
        sizes = unpack_scales(scales, self.data)
        unit = self.data.context.scale
        return unit * np.exp(sizes.log_discrepancy), unit * np.exp(sizes.log_curve)

    def bend(self, scales: np.ndarray) -> np.ndarray:
        """By how much both are larger at every run, (C, G, n)."""
        return swell(unpack_scales(scales, self.data).growth, self.height.sum(-1))[1]


def make_problem(law: BoundLaw, data: FitData) -> Problem:
    rows = np.flatnonzero(data.is_real.any(axis=0))
    phi = np.where(data.is_real[..., None], data.phi, 0.0)[:, rows]
    columns = (data.y[:, rows], data.is_real[:, rows], data.known_var[:, rows])
    curve = data.curve[:, rows]
    grams = (of @ np.swapaxes(of, -1, -2) for of in (phi, curve))
    return Problem(law, data, rows, *columns, phi, curve, data.missed[:, rows], data.height[:, rows], *grams)


def log_likelihood(problem: Problem, scales: np.ndarray, multiplier: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Log density of the residuals (C, G) with the discrepancy integrated out, up to a constant.

    One factorisation gives both the determinant and the quadratic form: the residual is bordered on to the matrix, and
    the last pivot is what is left of the corner after the quadratic form is taken off.
    """
    bend = problem.bend(scales)
    diagonal, residual = problem.diagonal(scales, multiplier) / bend**2, residual / bend
    amplitude, effect = problem.amplitudes(scales)
    num_rows, num_features = problem.y.shape[1], problem.phi.shape[-1] + problem.curve.shape[-1]
    form = (residual**2 / diagonal).sum(-1)
    if num_rows <= num_features:
        inner, border, log_det = amplitude[:, None, None, None] ** 2 * problem.gram, residual, 0.0
        if problem.curve.shape[-1]:
            inner = inner + effect[:, None, None, None] ** 2 * problem.curve_gram
        added = diagonal
    else:
        features = np.concatenate([problem.phi, problem.curve], axis=-1)
        sizes = [np.repeat(a[:, None], b.shape[-1], 1) for a, b in ((amplitude, problem.phi), (effect, problem.curve))]
        unit = np.concatenate(sizes, axis=1)[:, None, :]  # (C, 1, M + K)
        inner = (np.swapaxes(features, -1, -2) / diagonal[..., None, :]) @ features
        inner = inner * unit[..., None] * unit[..., None, :]
        border = unit * (np.swapaxes(features, -1, -2) @ (residual / diagonal)[..., None])[..., 0]
        added, log_det = np.ones(()), np.log(diagonal).sum(-1)
    size = inner.shape[-1]
    bordered = np.empty((*inner.shape[:-2], size + 1, size + 1))
    bordered[..., :size, :size] = inner
    index = np.arange(size)
    bordered[..., index, index] += added
    bordered[..., size, :size] = bordered[..., :size, size] = border
    bordered[..., size, size] = form + 1.0  # above the quadratic form in either case, as K exceeds D
    pivots = np.einsum("...ii->...i", arrow.cholesky(bordered))
    log_det = log_det + 2.0 * np.log(pivots[..., :size]).sum(-1) + 2.0 * np.log(bend).sum(-1)
    rest = pivots[..., size] ** 2 - 1.0
    return -0.5 * (log_det + (rest if num_rows > num_features else form - rest))


def marginal_of(problem: Problem, walkers: Walkers) -> noise.Marginal:
    diagonal = problem.diagonal(walkers.scales, walkers.multiplier)
    amplitude, effect = problem.amplitudes(walkers.scales)
    bend = problem.bend(walkers.scales)
    return noise.marginal(problem.phi, problem.curve, bend, diagonal, amplitude**2, effect**2)


def local_prior(problem: Problem, walkers: Walkers) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of theta given the shared parameters, broadcastable to (C, G, p)."""
    hierarchy = problem.law.hierarchy(problem.data.design, walkers.log_domain)
    centre = np.einsum("gq,cqp->cgp", hierarchy.design, walkers.shared)
    return hierarchy.local_mean + centre, hierarchy.local_var[..., None, :]
