"""Floor plus the exponential of a polynomial in the log axes: the broadest smooth forms."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter

Mean = Callable[[jax.Array, jax.Array, Context], jax.Array]
Parameters = Callable[[Context], Sequence[Parameter]]

_MAX_LOG = 60.0


def _slope_parameter(axis: LawAxis, spread: float) -> Parameter:
    if axis.has_optimum or not axis.is_log:
        return Parameter(name=f"slope_{axis.name}", mean=0.0, sd=0.5 / max(spread, 0.3), domain_sd=0.1)
    return Parameter(name=f"slope_{axis.name}", mean=-0.2, sd=0.25, domain_sd=0.08)


def _pairs(num_axes: int, *, diagonal: bool) -> list[tuple[int, int]]:
    return [(a, b) for a in range(num_axes) for b in range(a if diagonal else a + 1, num_axes)]


def _build(axes: tuple[LawAxis, ...], *, diagonal: bool) -> tuple[Mean, Parameters]:
    num_axes = len(axes)
    pairs = _pairs(num_axes, diagonal=diagonal)
    rows = np.array([a for a, _ in pairs], dtype=int)
    columns = np.array([b for _, b in pairs], dtype=int)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        log_term = theta[1] + theta[2 : 2 + num_axes] @ u + theta[2 + num_axes :] @ (u[rows] * u[columns])
        return floor + height * jnp.exp(jnp.clip(log_term, -_MAX_LOG, _MAX_LOG))

    def parameters(context: Context) -> Sequence[Parameter]:
        spread = np.maximum(np.asarray(context.spread), 0.3)
        result = [floor_parameter(context), Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3)]
        result += [_slope_parameter(a, s) for a, s in zip(axes, spread, strict=True)]
        for a, b in pairs:
            # One axis spread away from the centre the curvature changes the log response by about a fifth.
            sd = 0.2 / float(spread[a] * spread[b])
            if a == b and axes[a].has_optimum:
                result.append(Parameter(name=f"curvature_{axes[a].name}", mean=0.1, sd=0.15, domain_sd=0.05))
            else:
                name = f"curvature_{axes[a].name}" if a == b else f"interaction_{axes[a].name}_{axes[b].name}"
                result.append(Parameter(name=name, mean=0.0, sd=min(sd, 0.15), domain_sd=min(sd, 0.15) / 3))
        return result

    return mean, parameters


EXP_QUADRATIC = LawFamily(
    name="exp_quadratic",
    formula="E + exp(quadratic in the log axes)",
    source="second-order expansion of log excess loss; the best refits of ScaleBench's lr_bsz and vocabulary tasks",
    suits=lambda axes: "a quadratic in the logs bends with any smooth law near the data",
    build=lambda axes: _build(axes, diagonal=True),
)
EXP_BILINEAR = LawFamily(
    name="exp_bilinear",
    formula="E + exp(linear + products of pairs of log axes)",
    source="Clark et al. 2022, arXiv:2202.01169, eq. 3, with a floor",
    suits=lambda axes: "exponents drift with the other axes" if len(axes) > 1 else None,
    build=lambda axes: _build(axes, diagonal=False),
)
