"""Parallel streams: P passes of one model act like a larger model."""

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import (
    Context,
    LawAxis,
    LawFamily,
    Parameter,
    floor_and_height,
    floor_parameter,
    log_exponent_parameter,
)
from planner.laws.roles import (
    MAX_AXES,
    SIZE,
    Mean,
    Parameters,
    are_scales,
    bounded_exp,
    only,
    positive,
    power_parameters,
    rest,
    sum_of_terms,
)


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    streams, size = only(axes, "streams"), only(axes, *SIZE)
    if streams is None or size is None or len(axes) > MAX_AXES or not are_scales(axes, range(len(axes))):
        return None
    return "parallel streams are worth a factor of parameters that grows with their logarithm"


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    streams, size = only(axes, "streams"), only(axes, *SIZE)
    assert streams is not None and size is not None
    others = np.array(rest(axes, streams, size), dtype=int)

    def worth(log_streams: jax.Array, log_gain: jax.Array) -> jax.Array:
        return jnp.log1p(jnp.exp(jnp.clip(log_gain, -20.0, 20.0)) * jnp.maximum(log_streams, 0.0))

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        gain = worth(coordinates[streams], theta[3]) - worth(jnp.asarray(context.centre)[streams], theta[3])
        of_size = bounded_exp(theta[1] - positive(theta[2]) * (u[size] + gain))
        return floor + height * (of_size + sum_of_terms(theta[4:], u[others]))

    def parameters(context: Context) -> list[Parameter]:
        further = [axes[i] for i in others]
        share = -float(np.log(1 + len(further)))
        return [
            floor_parameter(context),
            Parameter(name=f"log_amplitude_{axes[size].name}", mean=share, sd=0.7, domain_sd=0.3),
            log_exponent_parameter(axes[size]),
            # .33 on text and .40 on code.
            Parameter(name="log_gain", mean=float(np.log(0.35)), sd=0.7, domain_sd=0.3),
            *power_parameters(further, share),
        ]

    return mean, parameters


STREAMS = LawFamily(
    name="streams",
    formula="E + (A / (N (1 + k ln P)))^a + sum_other B_o x_o^-beta_o",
    source="Chen et al. 2025 (ParScale), arXiv:2505.10475",
    suits=_suits,
    build=_build,
    monotone=True,
)
