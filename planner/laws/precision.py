"""Low precision: parameters of few bits are worth fewer parameters."""

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
    having,
    only,
    positive,
    power_parameters,
    rest,
    sum_of_terms,
)


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    bits, size = having(axes, "precision"), only(axes, *SIZE)
    if not bits or size is None or len(axes) > MAX_AXES or not are_scales(axes, rest(axes, *bits)):
        return None
    return "parameters of few bits are worth fewer parameters; beyond a few bits nothing is gained"


def log_worth(log_ratio: jax.Array) -> jax.Array:
    """ln (1 - exp(-r)) of ln r, finite for any r."""
    ratio = jnp.exp(jnp.clip(log_ratio, -40.0, 40.0))
    # Beyond r = 40 the result is below 1e-17, and its slope underflows without harm.
    return jnp.log(-jnp.expm1(-ratio))


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    found, size = having(axes, "precision"), only(axes, *SIZE)
    assert size is not None
    bits = np.array(found)
    is_log = np.array([axes[i].is_log for i in found])
    others = np.array(rest(axes, size, *found), dtype=int)
    cut = 3 + len(found)

    def gain(coordinates: jax.Array, log_scale: jax.Array) -> jax.Array:
        at = coordinates[bits]
        log_bits = jnp.where(is_log, at, jnp.log(jnp.maximum(jnp.where(is_log, 1.0, at), 1e-6)))
        return log_worth(log_bits - log_scale).sum()

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        effective = u[size] + gain(coordinates, theta[3:cut]) - gain(jnp.asarray(context.centre), theta[3:cut])
        of_size = bounded_exp(theta[1] - positive(theta[2]) * effective)
        return floor + height * (of_size + sum_of_terms(theta[cut:], u[others]))

    def parameters(context: Context) -> list[Parameter]:
        further = [axes[i] for i in others]
        share = -float(np.log(1 + len(further)))
        return [
            floor_parameter(context),
            Parameter(name=f"log_amplitude_{axes[size].name}", mean=share, sd=0.7, domain_sd=0.3),
            log_exponent_parameter(axes[size]),
            # Published scales are 1 to 3 bits, for weights, activations and caches.
            *(
                Parameter(name=f"log_bits_{axes[i].name}", mean=float(np.log(2.0)), sd=0.7, domain_sd=0.3)
                for i in found
            ),
            *power_parameters(further, share),
        ]

    return mean, parameters


PRECISION = LawFamily(
    name="precision",
    formula="E + A N'^-a + sum_other B_o x_o^-beta_o, N' = N prod_i (1 - exp(-P_i / g_i))",
    source="Kumar et al. 2024, arXiv:2411.04330",
    suits=_suits,
    build=_build,
    monotone=True,
)
