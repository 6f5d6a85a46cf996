"""Linear algebra of the hierarchy given its scales: cost grows with the number of domains, not with its cube.

theta_g = B_g m + T e_g with m = (population mean, factor effects), so that the joint precision of (m, theta) is an
arrow: one block a domain, bordered by the shared block.  Leading batch axes (starts, hyperparameter nodes) are free.

Shapes: G domains, p parameters, Q rows of m (one for the population, one for each level of each factor).
"""

from typing import NamedTuple

import numpy as np

_ROUNDING = 1e-12  # smallest eigenvalue over the largest that a factorisation is trusted with


_SOLVED_WHOLE = 12  # size up to which halving a triangular matrix does not pay


class Hierarchy(NamedTuple):
    """Priors of theta given the scales between domains.  With one domain `design` has no rows (Q = 0) and
    `local_mean`, `local_var` hold the whole prior."""

    design: np.ndarray  # (G, Q) which rows of m each domain adds up
    shared_mean: np.ndarray  # (Q, p)
    shared_var: np.ndarray  # (..., Q, p)
    local_mean: np.ndarray  # (p,) zero unless Q = 0
    local_var: np.ndarray  # (..., p) T^2


class ArrowPosterior(NamedTuple):
    """Gaussian posterior of (m, theta): theta_g = mean_g + root_g e_g + lever_g e_0, all e standard normal."""

    theta: np.ndarray  # (..., G, p)
    shared: np.ndarray  # (..., Q, p)
    root: np.ndarray  # (..., G, p, p) root root' = local covariance given m
    lever: np.ndarray  # (..., G, p, Q p) how the uncertainty of m moves theta_g
    shared_root: np.ndarray  # (..., Q p, Q p) root root' = covariance of m, flattened
    log_det: np.ndarray  # (...) log determinant of the posterior precision minus that of the prior precision


def cholesky(matrix: np.ndarray) -> np.ndarray:
    """Lower factors of symmetric matrices (..., k, k), none of which can stop the others.

    Where rounding has made one indefinite its eigenvalues are raised to it; where an entry is not finite the factor
    is NaN.
    """
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        is_finite = np.isfinite(matrix).all((-1, -2), keepdims=True)
        value, vector = np.linalg.eigh(np.where(is_finite, matrix, np.eye(matrix.shape[-1])))
        least = _ROUNDING * np.maximum(np.abs(value).max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        root = vector * np.sqrt(np.maximum(value, least))[..., None, :]
        # Q R = root', so that R' R is the matrix and R' a lower factor up to signs.
        upper = np.linalg.qr(np.swapaxes(root, -1, -2), mode="r")
        sign = np.where(np.einsum("...ii->...i", upper) < 0.0, -1.0, 1.0)
        return np.where(is_finite, np.swapaxes(upper * sign[..., None], -1, -2), np.nan)


def invert_lower(lower: np.ndarray) -> np.ndarray:
    """Inverse of lower triangular matrices (..., k, k), by halves: a general solver does eight times the work."""
    size = lower.shape[-1]
    if size <= _SOLVED_WHOLE:
        return np.linalg.solve(lower, np.broadcast_to(np.eye(size), lower.shape))
    half = size // 2
    inverse = np.zeros(lower.shape)
    first = inverse[..., :half, :half] = invert_lower(lower[..., :half, :half])
    last = inverse[..., half:, half:] = invert_lower(lower[..., half:, half:])
    inverse[..., half:, :half] = -(last @ (lower[..., half:, :half] @ first))
    return inverse


def solve(precision: np.ndarray, score: np.ndarray, hierarchy: Hierarchy) -> ArrowPosterior:
    """Posterior from per-domain data terms: precision (..., G, p, p) and precision-times-mean (..., G, p)."""
    num_shared, num_parameters = hierarchy.shared_mean.shape
    local_precision = 1.0 / hierarchy.local_var
    block = precision + local_precision[..., None, :, None] * np.eye(num_parameters)
    pull = score + local_precision[..., None, :] * hierarchy.local_mean
    inverse_factor = invert_lower(cholesky(block))
    root = np.swapaxes(inverse_factor, -1, -2)
    log_det = -2.0 * np.log(np.einsum("...gii->...gi", inverse_factor)).sum((-1, -2))
    log_det = log_det + precision.shape[-3] * np.log(hierarchy.local_var).sum(-1)
    covariance = root @ inverse_factor
    free = (covariance @ pull[..., None])[..., 0]
    if num_shared == 0:
        empty = np.zeros((*free.shape[:-2], 0, num_parameters))
        no_root = np.zeros((*free.shape[:-2], 0, 0))
        return ArrowPosterior(free, empty, root, np.zeros((*free.shape, 0)), no_root, log_det)

    # Given m, theta_g = free_g + weight_g (B_g m).
    weight = covariance * local_precision[..., None, None, :]
    schur, target = _border(weight, free, hierarchy)
    shared_inverse = invert_lower(cholesky(schur))
    shared_root = np.swapaxes(shared_inverse, -1, -2)
    shared = (shared_root @ (shared_inverse @ target[..., None]))[..., 0]
    shared = shared.reshape(*shared.shape[:-1], num_shared, num_parameters)
    log_det = log_det - 2.0 * np.log(np.einsum("...ii->...i", shared_inverse)).sum(-1)
    log_det = log_det + np.log(hierarchy.shared_var).sum((-1, -2))
    theta = free + (weight @ (hierarchy.design @ shared)[..., None])[..., 0]
    by_row = shared_root.reshape(*shared_root.shape[:-2], num_shared, -1)
    lever = weight @ (hierarchy.design @ by_row).reshape(*free.shape, -1)
    return ArrowPosterior(theta, shared, root, lever, shared_root, log_det)


def damped_step(
    precision: np.ndarray, score: np.ndarray, hierarchy: Hierarchy, *, damping: np.ndarray, anchor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A Levenberg-Marquardt step from `anchor` (..., G, p): the means (theta, shared) of `solve`, held back.

    The diagonal of each block is multiplied by 1 + `damping` (...), and theta is pulled to the anchor by as much.
    """
    num_shared, num_parameters = hierarchy.shared_mean.shape
    local_precision = 1.0 / hierarchy.local_var
    prior = local_precision[..., None, :, None] * np.eye(num_parameters)
    block = precision + prior
    extra = damping[..., None, None] * np.einsum("...gii->...gi", block)
    block = block + extra[..., None] * np.eye(num_parameters)
    pull = score + local_precision[..., None, :] * hierarchy.local_mean + extra * anchor
    if num_shared == 0:
        free = _solve_any(block, pull[..., None])[..., 0]
        return free, np.zeros((*free.shape[:-2], 0, num_parameters))
    right = np.concatenate([np.broadcast_to(prior, block.shape), pull[..., None]], axis=-1)
    solved = _solve_any(block, right)
    weight, free = solved[..., :-1], solved[..., -1]
    schur, target = _border(weight, free, hierarchy)
    shared = _solve_any(schur, target[..., None])[..., 0].reshape(*target.shape[:-1], num_shared, num_parameters)
    return free + (weight @ (hierarchy.design @ shared)[..., None])[..., 0], shared


def _border(weight: np.ndarray, free: np.ndarray, hierarchy: Hierarchy) -> tuple[np.ndarray, np.ndarray]:
    """Precision (..., Q p, Q p) of m with theta eliminated (the Schur complement of the blocks), and times its mean."""
    num_shared, num_parameters = hierarchy.shared_mean.shape
    size = num_shared * num_parameters
    local_precision = 1.0 / hierarchy.local_var
    design = hierarchy.design
    by_domain = local_precision[..., None, :, None] * (np.eye(num_parameters) - weight)
    # Sums over domains as products of matrices: searching the best order of an einsum takes longer than the sums.
    pairs = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    schur = pairs.T @ by_domain.reshape(*by_domain.shape[:-2], num_parameters**2)
    schur = schur.reshape(*schur.shape[:-2], num_shared, num_shared, num_parameters, num_parameters)
    schur = np.swapaxes(schur, -3, -2).reshape(*schur.shape[:-4], size, size)
    shared_precision = (1.0 / hierarchy.shared_var).reshape(*hierarchy.shared_var.shape[:-2], size)
    schur = schur + shared_precision[..., None] * np.eye(size)
    target = design.T @ (local_precision[..., None, :] * free)
    target = target.reshape(*target.shape[:-2], size) + shared_precision * hierarchy.shared_mean.reshape(size)
    return schur, target


def _solve_any(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solutions for symmetric matrices (..., k, k), of which one that rounding made singular cannot stop the others."""
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        inverse = invert_lower(cholesky(matrix))
        return np.swapaxes(inverse, -1, -2) @ (inverse @ right)


def prior_quadratic(theta: np.ndarray, shared: np.ndarray, hierarchy: Hierarchy) -> np.ndarray:
    """-2 log prior density of (m, theta) up to its normalising constant, (...)."""
    centre = hierarchy.local_mean + hierarchy.design @ shared
    local = ((theta - centre) ** 2 / hierarchy.local_var[..., None, :]).sum((-1, -2))
    return local + ((shared - hierarchy.shared_mean) ** 2 / hierarchy.shared_var).sum((-1, -2))
