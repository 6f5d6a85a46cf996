"""Small symmetric solves in plain XLA.

Batched LAPACK calls inside a batched loop hang the CPU backend and cost more than the arithmetic of a
matrix of a few rows, so the factorisation is unrolled into scalar operations that XLA fuses.
"""

import jax
import jax.numpy as jnp

# A pivot below this fraction of the largest diagonal entry is rounding noise.
PIVOT_FLOOR = 1e-13


def solve_positive(matrix: jax.Array, *rhs: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Solves `matrix @ x = b` for every `b` by L D L^T, with the pivots made positive.

    For a positive definite matrix this is the exact solution; otherwise the solution of a nearby positive
    definite system (Gill and Murray 1974), so that minus a gradient still gives a descent direction.

    Args:
        matrix: symmetric, (n, n); only the lower triangle is read.
        rhs: right-hand sides, each (n,).

    Returns:
        The solutions, each (n,), and the smallest pivot before it was made positive, (): positive exactly when the
        matrix is numerically positive definite.
    """
    size = matrix.shape[0]
    scale = jnp.maximum(jnp.max(jnp.abs(jnp.diagonal(matrix))), jnp.finfo(matrix.dtype).tiny)
    lower: list[list[jax.Array]] = [[] for _ in range(size)]
    pivots: list[jax.Array] = []
    smallest = jnp.full((), jnp.inf, matrix.dtype)
    for column in range(size):
        pivot = matrix[column, column]
        for k in range(column):
            pivot = pivot - lower[column][k] ** 2 * pivots[k]
        smallest = jnp.minimum(smallest, pivot)
        pivots.append(jnp.maximum(jnp.abs(pivot), PIVOT_FLOOR * scale))
        for row in range(column + 1, size):
            entry = matrix[row, column]
            for k in range(column):
                entry = entry - lower[row][k] * lower[column][k] * pivots[k]
            lower[row].append(entry / pivots[column])
    return [_substitute(lower, pivots, b) for b in rhs], smallest


def _substitute(lower: list[list[jax.Array]], pivots: list[jax.Array], rhs: jax.Array) -> jax.Array:
    size = len(pivots)
    forward: list[jax.Array] = []
    for i in range(size):
        value = rhs[i]
        for k in range(i):
            value = value - lower[i][k] * forward[k]
        forward.append(value)
    solution = [forward[i] / pivots[i] for i in range(size)]
    for i in reversed(range(size)):
        for k in range(i + 1, size):
            solution[i] = solution[i] - lower[k][i] * solution[k]
    return jnp.stack(solution)
