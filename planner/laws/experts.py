"""Routed models: the number of experts with saturation, and the ratio of all parameters to active ones."""

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
    slope_parameters,
    sum_of_terms,
)


def saturated(log_experts: jax.Array, log_start: jax.Array, log_most: jax.Array) -> jax.Array:
    """ln E^, 1/E^ = 1/(E - 1 + S) + 1/M: about E between S and M, flat outside; S, M > 0 and E >= 1."""
    experts = jnp.exp(jnp.clip(log_experts, 0.0, 40.0)) - 1.0 + jnp.exp(jnp.clip(log_start, -10.0, 20.0))
    return -jnp.logaddexp(-jnp.log(experts), -jnp.clip(log_most, -10.0, 40.0))


def _suits_experts(axes: tuple[LawAxis, ...]) -> str | None:
    experts, size = only(axes, "experts"), only(axes, *SIZE)
    if experts is None or size is None or len(axes) > MAX_AXES:
        return None
    if not axes[experts].is_log or not axes[size].is_log or any(axis.has_optimum for axis in axes):
        return None
    return "few experts and very many add little, and the more so the larger the model"


def _build_experts(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    experts, size = only(axes, "experts"), only(axes, *SIZE)
    assert experts is not None and size is not None
    others = np.array(rest(axes, experts, size), dtype=int)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        at_centre = saturated(jnp.asarray(context.centre)[experts], theta[4], theta[5])
        v = saturated(coordinates[experts], theta[4], theta[5]) - at_centre
        log_term = theta[1] - positive(theta[2]) * u[size] - positive(theta[3]) * v + theta[6] * u[size] * v
        return floor + height * bounded_exp(log_term + theta[7:] @ u[others])

    def parameters(context: Context) -> list[Parameter]:
        of_size = log_exponent_parameter(axes[size])
        return [
            floor_parameter(context),
            Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3),
            Parameter(name=of_size.name, mean=of_size.mean - float(np.log(2.0)), sd=0.8, domain_sd=0.25),
            # .11 without a floor (Clark et al.), .07 with one (refit of their runs).
            Parameter(name=f"log_exponent_{axes[experts].name}", mean=float(np.log(0.1)), sd=0.7, domain_sd=0.25),
            # Published starts are 2 to 4 and maxima 300 to 500, by routing method.
            Parameter(name="log_start", mean=float(np.log(3.0)), sd=0.8, domain_sd=0.3),
            Parameter(name="log_most", mean=float(np.log(400.0)), sd=0.8, domain_sd=0.3),
            Parameter(name="interaction", mean=0.005, sd=0.02, domain_sd=0.005),
            *slope_parameters([axes[i] for i in others], np.asarray(context.spread)[others]),
        ]

    return mean, parameters


def _suits_sparsity(axes: tuple[LawAxis, ...]) -> str | None:
    ratio, size = only(axes, "sparsity"), only(axes, *SIZE)
    # With no further axis the published form is `exp_bilinear`.
    if ratio is None or size is None or not 3 <= len(axes) <= MAX_AXES or not are_scales(axes, range(len(axes))):
        return None
    return "inactive parameters lower the part of the response that is due to model size"


def _build_sparsity(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    ratio, size = only(axes, "sparsity"), only(axes, *SIZE)
    assert ratio is not None and size is not None
    others = np.array(rest(axes, ratio, size), dtype=int)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        # A share of the size term is open to inactive parameters, the rest is not.
        open_share = jax.nn.sigmoid(theta[5])
        left = 1.0 - open_share + open_share * bounded_exp(-positive(theta[3]) * u[ratio])
        of_size = bounded_exp(theta[1] - positive(theta[2]) * u[size] + theta[4] * u[size] * u[ratio]) * left
        return floor + height * (of_size + sum_of_terms(theta[6:], u[others]))

    def parameters(context: Context) -> list[Parameter]:
        further = [axes[i] for i in others]
        share = -float(np.log(1 + len(further)))
        return [
            floor_parameter(context),
            Parameter(name=f"log_amplitude_{axes[size].name}", mean=share, sd=0.7, domain_sd=0.3),
            log_exponent_parameter(axes[size]),
            log_exponent_parameter(axes[ratio]),
            Parameter(name="interaction", mean=0.0, sd=0.03, domain_sd=0.01),
            Parameter(name="open_share", mean=0.0, sd=1.5, domain_sd=0.3),
            *power_parameters(further, share),
        ]

    return mean, parameters


EXPERTS = LawFamily(
    name="experts",
    formula="E0 + exp(c0 - a ln N - b ln E^ + c ln N ln E^), 1/E^ = 1/(E - 1 + S) + 1/M",
    source="Clark et al. 2022, arXiv:2202.01169, with a floor",
    suits=_suits_experts,
    build=_build_experts,
)
SPARSITY = LawFamily(
    name="sparsity",
    formula="E + A N^-a ((1 - s) + s P^-b) exp(c ln N ln P) + sum_other A_o x_o^-alpha_o, "
    "P all parameters over active ones",
    source="Frantar et al. 2023, arXiv:2309.08520, with the interaction of Liew et al. 2025, arXiv:2502.03009",
    suits=_suits_sparsity,
    build=_build_sparsity,
)
