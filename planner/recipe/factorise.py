"""Small symmetric solves for many draws at once.

The factorisation is unrolled over the few rows of a matrix, so that every operation is one pass over all draws.
"""

import numpy as np

# A pivot below this fraction of the largest diagonal entry is rounding noise.
PIVOT_FLOOR = 1e-13


def solve_positive(matrix: np.ndarray, *rhs: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Solves `matrix @ x = b` for every `b` by L D L^T, with the pivots made positive.

    For a positive definite matrix this is the exact solution; otherwise the solution of a nearby positive
    definite system (Gill and Murray 1974), so that minus a gradient still gives a descent direction.

    Args:
        matrix: symmetric, (n, n, ...), one system for every trailing index; only the lower triangle is read.
        rhs: right-hand sides, each (n, ...).

    Returns:
        The solutions, each (n, ...), and the smallest pivot before it was made positive, (...): positive exactly
        when the matrix is numerically positive definite.
    """
    size = matrix.shape[0]
    scale = np.full(matrix.shape[2:], np.finfo(np.float64).tiny)
    for i in range(size):
        scale = np.maximum(scale, np.abs(matrix[i, i]))
    lower: list[list[np.ndarray]] = [[] for _ in range(size)]
    pivots: list[np.ndarray] = []
    smallest = np.full(matrix.shape[2:], np.inf)
    for column in range(size):
        pivot = matrix[column, column]
        for k in range(column):
            pivot = pivot - lower[column][k] ** 2 * pivots[k]
        smallest = np.minimum(smallest, pivot)
        pivots.append(np.maximum(np.abs(pivot), PIVOT_FLOOR * scale))
        for row in range(column + 1, size):
            entry = matrix[row, column]
            for k in range(column):
                entry = entry - lower[row][k] * lower[column][k] * pivots[k]
            lower[row].append(entry / pivots[column])
    return [_substitute(lower, pivots, b) for b in rhs], smallest


def _substitute(lower: list[list[np.ndarray]], pivots: list[np.ndarray], rhs: np.ndarray) -> np.ndarray:
    size = len(pivots)
    forward: list[np.ndarray] = []
    for i in range(size):
        value = rhs[i]
        for k in range(i):
            value = value - lower[i][k] * forward[k]
        forward.append(value)
    solution = [forward[i] / pivots[i] for i in range(size)]
    for i in reversed(range(size)):
        for k in range(i + 1, size):
            solution[i] = solution[i] - lower[k][i] * solution[k]
    return np.stack(solution)
