"""Floor plus power laws: sum, product, and a power of the sum."""

from collections.abc import Callable, Sequence

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

Mean = Callable[[jax.Array, jax.Array, Context], jax.Array]
Parameters = Callable[[Context], Sequence[Parameter]]

# Keeps exp() finite however far a search strays; no physical term comes near it.
_MAX_LOG = 60.0


def _suits_positive_axes(axes: tuple[LawAxis, ...]) -> str | None:
    if not all(axis.is_log for axis in axes):
        return None
    return "power laws hold for any positive axes"


def _suits_several_axes(axes: tuple[LawAxis, ...]) -> str | None:
    # With one axis it is the sum again.
    return _suits_positive_axes(axes) if len(axes) > 1 else None


def _build_sum(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    num_axes = len(axes)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        log_amplitude = theta[1 : 1 + num_axes]
        exponent = jnp.exp(theta[1 + num_axes :])
        terms = jnp.exp(jnp.clip(log_amplitude - exponent * (coordinates - context.centre), -_MAX_LOG, _MAX_LOG))
        return floor + height * terms.sum()

    def parameters(context: Context) -> Sequence[Parameter]:
        share = float(-np.log(num_axes))
        return [
            floor_parameter(context),
            *(Parameter(name=f"log_amplitude_{a.name}", mean=share, sd=1.0, domain_sd=0.3) for a in axes),
            *(log_exponent_parameter(a) for a in axes),
        ]

    return mean, parameters


def _build_product(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        log_term = theta[1] - jnp.exp(theta[2:]) @ (coordinates - context.centre)
        return floor + height * jnp.exp(jnp.clip(log_term, -_MAX_LOG, _MAX_LOG))

    def parameters(context: Context) -> Sequence[Parameter]:
        return [
            floor_parameter(context),
            Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3),
            # Each axis acts on the whole excess, so its exponent is smaller than in a sum.
            *(
                Parameter(name=p.name, mean=p.mean - float(np.log(2.0)), sd=p.sd + 0.2, domain_sd=p.domain_sd)
                for p in map(log_exponent_parameter, axes)
            ),
        ]

    return mean, parameters


def _build_power_of_sum(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    num_axes = len(axes)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        log_amplitude = theta[1 : 1 + num_axes]
        exponent = jnp.exp(theta[1 + num_axes : 1 + 2 * num_axes])
        power = jnp.exp(theta[-1])
        # The exponents are those of the whole term, so that their prior does not move with the power.
        inner = jax.nn.logsumexp((log_amplitude - exponent * (coordinates - context.centre)) / power)
        return floor + height * jnp.exp(jnp.clip(power * (inner - jnp.log(num_axes)), -_MAX_LOG, _MAX_LOG))

    def parameters(context: Context) -> Sequence[Parameter]:
        return [
            floor_parameter(context),
            *(Parameter(name=f"log_amplitude_{a.name}", mean=0.0, sd=0.8, domain_sd=0.3) for a in axes),
            *(log_exponent_parameter(a) for a in axes),
            Parameter(name="log_power", mean=0.0, sd=0.6, domain_sd=0.15),
        ]

    return mean, parameters


SUM_OF_POWERS = LawFamily(
    name="sum_of_powers",
    formula="E + sum_a A_a x_a^-alpha_a",
    source="Hoffmann et al. 2022, arXiv:2203.15556, eq. 2",
    suits=_suits_positive_axes,
    build=_build_sum,
    monotone=True,
    unimodal=True,
)
PRODUCT_OF_POWERS = LawFamily(
    name="product_of_powers",
    formula="E + A prod_a x_a^-alpha_a",
    source="Clark et al. 2022, arXiv:2202.01169, without saturation",
    suits=_suits_several_axes,
    build=_build_product,
    monotone=True,
    unimodal=True,
)
POWER_OF_SUM = LawFamily(
    name="power_of_sum",
    formula="E + (sum_a A_a x_a^-alpha_a)^g",
    source="Kaplan et al. 2020, arXiv:2001.08361, eq. 1.5, with a floor",
    suits=_suits_several_axes,
    build=_build_power_of_sum,
    monotone=True,
    unimodal=True,
)
