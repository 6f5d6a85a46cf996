"""A law's draw with the draw of its discrepancy: the surface that a recipe is looked for on.

A draw of a law alone is surer of where the optimum lies than the runs allow when the law is wrong: on a cost surface
along which the response is nearly flat, a small error of form moves the optimum by nats.  The discrepancy that the
posterior holds for each draw is such an error of form.  Only its long part is used: the short one, of single values of
an axis, is no property of a region, and the variance that the features miss has no gradient.  It is taken at the size
that it has near the best response, where recipes lie; farther above, predictions let it be larger.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from planner.inference.discrepancy import LONG_SHARE, Basis
from planner.recipe.curves import Mean

_SQRT3 = float(np.sqrt(3.0))


@functools.cache
def bent(mean: Mean) -> Mean:
    """`mean` plus discrepancy, of `(theta, coefficients (M,))`; shared: the law's context, inducing points and scale.

    Cached, because code is compiled per function object.
    """

    def response(draw: tuple[jax.Array, jax.Array], log_x: jax.Array, context: Any, basis: Any) -> jax.Array:
        theta, coefficients = draw
        inducing, scale = basis
        # A hair above zero: the root has no second derivative there.
        distance = _SQRT3 * jnp.sqrt(jnp.sum((log_x / scale - inducing) ** 2, axis=1) + 1e-12)
        kernel = LONG_SHARE * (1.0 + distance) * jnp.exp(-distance)
        return mean(theta, log_x, context) + kernel @ coefficients

    return response


def coefficients(basis: Basis, weights: np.ndarray) -> np.ndarray:
    """What kernels at the inducing points are multiplied by, (S, M), from weights of the features (S, M)."""
    return solve_triangular(basis.factor, weights.T, lower=True, trans="T", check_finite=False).T
