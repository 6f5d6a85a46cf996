"""Mean responses of a law's draws and their derivatives: all that is compiled for a law.

The search for the optimum runs on the host over arrays of draws, so that a new law costs one Hessian to compile.
"""

import collections
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

Mean = Callable[..., jax.Array]  # mean(theta, log_x (A,), *shared) -> (), smaller is better, pure JAX

# Draws evaluated by one call, and points of each: fixed, so that one program serves any number of them.
_BLOCKS = (256, 4096)
_POINT_BLOCK = 8

# How often each function below was traced, for the test that one program serves many calls.
trace_counts: collections.Counter[str] = collections.Counter()


class RecipePart(NamedTuple):
    """The draws of one law.

    `mean(theta, log_x (A,), *shared) -> ()` is compiled once per function object, so it must be a module-level or
    cached function, not a fresh closure; what changes from study to study goes into `shared`, a tuple of pytrees
    that all draws have in common.
    """

    mean: Mean
    thetas: Any  # (S, p), or a pytree of arrays with a leading axis S
    shared: tuple[Any, ...] = ()
    unimodal: bool = False  # one start finds the only minimum, see `planner.laws.base.LawFamily`

    @property
    def num_draws(self) -> int:
        return len(jax.tree.leaves(self.thetas)[0])

    def rows(self, chosen: np.ndarray | slice) -> "RecipePart":
        """The part with some of its draws."""
        return self._replace(thetas=jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], self.thetas))


class Curve(NamedTuple):
    """Responses of n draws, one point each, and their derivatives in log x; A axes."""

    value: np.ndarray  # (n,)
    gradient: np.ndarray  # (A, n)
    hessian: np.ndarray  # (A, A, n)


def double_precision() -> AbstractContextManager[Any]:
    """Under which the search is called: a scope, so that the caller's own JAX programs keep their precision."""
    return jax.enable_x64(True)


def curves(part: RecipePart, rows: np.ndarray, log_x: np.ndarray) -> Curve:
    """The curve of each draw in `rows` (n,) at its own point, columns of `log_x` (A, n).

    Call under 64-bit arithmetic.
    """
    pieces = []
    small, large = _BLOCKS
    for mine in _blocks(len(rows), large if len(rows) > large // 2 else small):
        thetas = jax.tree.map(lambda leaf, mine=mine: np.asarray(leaf)[rows[mine]], part.thetas)
        found = _curves_at(part.mean, thetas, part.shared, np.ascontiguousarray(log_x[:, mine]))
        pieces.append([np.asarray(leaf) for leaf in found])
    return Curve(*(np.concatenate(leaf, axis=-1)[..., : len(rows)] for leaf in zip(*pieces, strict=True)))


def responses(part: RecipePart, log_x: np.ndarray) -> np.ndarray:
    """Mean response of every draw at common points (M, A), or at its own points (S, M, A); (S, M).

    Call under 64-bit arithmetic.
    """
    log_x = np.asarray(log_x, dtype=np.float64)
    num_draws, num_points = part.num_draws, log_x.shape[-2]
    values = np.empty((num_draws, num_points))
    small, large = _BLOCKS
    block = large if num_draws > large // 2 else small
    for first, mine in zip(range(0, num_draws, block), _blocks(num_draws, block), strict=True):
        thetas = jax.tree.map(lambda leaf, mine=mine: np.asarray(leaf)[mine], part.thetas)
        for start, some in zip(range(0, num_points, _POINT_BLOCK), _blocks(num_points, _POINT_BLOCK), strict=True):
            points = log_x[some] if log_x.ndim == 2 else log_x[mine][:, some]
            own = np.broadcast_to(points, (len(mine), *points.shape[-2:]))
            found = np.asarray(_values_at(part.mean, thetas, part.shared, own))
            kept = values[first : first + block, start : start + _POINT_BLOCK]
            kept[:] = found[: kept.shape[0], : kept.shape[1]]
    return values


def _blocks(size: int, block: int) -> Iterator[np.ndarray]:
    """Indices 0 to size - 1 in blocks of one length, the last filled up with the last index."""
    for first in range(0, size, block):
        yield np.minimum(np.arange(first, first + block), size - 1)


@functools.partial(jax.jit, static_argnames=("mean",))
def _values_at(mean: Mean, thetas: Any, shared: tuple[Any, ...], log_x: jax.Array) -> jax.Array:
    """Responses of n draws at points (n, M, A); (n, M)."""
    trace_counts["values_at"] += 1
    at_points = jax.vmap(lambda theta, x: mean(theta, x, *shared), in_axes=(None, 0))
    return jax.vmap(at_points)(thetas, log_x)


@functools.partial(jax.jit, static_argnames=("mean",))
def _curves_at(mean: Mean, thetas: Any, shared: tuple[Any, ...], log_x: jax.Array) -> Curve:
    """Response and derivatives of n draws, each at its own point `log_x` (A, n)."""
    trace_counts["curves_at"] += 1

    def curve(theta: Any, x: jax.Array) -> Curve:
        def gradient_first(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            value, gradient = jax.value_and_grad(lambda x: mean(theta, x, *shared))(x)
            return gradient, (value, gradient)

        hessian, (value, gradient) = jax.jacfwd(gradient_first, has_aux=True)(x)
        return Curve(value, gradient, hessian)

    return jax.vmap(curve, in_axes=(0, -1), out_axes=-1)(thetas, log_x)
