"""Learning by updates: larger models learn faster, and a run of no updates starts from what the model knew."""

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
from planner.laws.roles import MAX_AXES, SIZE, Mean, Parameters, bounded_exp, only, positive, rest, slope_parameters


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    updates, size = only(axes, "updates"), only(axes, *SIZE)
    if updates is None or size is None or len(axes) > MAX_AXES or any(axis.has_optimum for axis in axes):
        return None
    if not axes[size].is_log:
        return None
    return "larger models learn faster from the same number of updates"


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    updates, size = only(axes, "updates"), only(axes, *SIZE)
    assert updates is not None and size is not None
    others = np.array(rest(axes, updates, size), dtype=int)
    is_log = axes[updates].is_log

    def progress(at: jax.Array, log_start: jax.Array) -> jax.Array:
        """ln(1 + updates / start)."""
        log_updates = at if is_log else jnp.log(jnp.maximum(at, 1e-9))
        return jax.nn.softplus(log_updates - log_start)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        centre = jnp.asarray(context.centre)
        u = coordinates - centre
        start = theta[3]
        gained = progress(coordinates[updates], start) - progress(centre[updates], start)
        speed = bounded_exp(theta[4] - jax.nn.softplus(theta[5] - u[size]) + jax.nn.softplus(theta[5]))
        log_term = theta[1] - positive(theta[2]) * u[size] - speed * gained
        return floor + height * bounded_exp(log_term + theta[6:] @ u[others])

    def parameters(context: Context) -> list[Parameter]:
        of_size = log_exponent_parameter(axes[size])
        at = float(np.asarray(context.centre)[updates])
        log_at = at if is_log else float(np.log(max(at, 1e-9)))
        return [
            floor_parameter(context),
            Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3),
            Parameter(name=of_size.name, mean=of_size.mean, sd=0.7, domain_sd=0.25),
            Parameter(name="log_start", mean=log_at - 1.5, sd=1.5, domain_sd=0.3),
            Parameter(name="log_speed", mean=float(np.log(0.4)), sd=0.8, domain_sd=0.25),
            Parameter(name="log_size_of_half_speed", mean=0.0, sd=1.5, domain_sd=0.3),
            *slope_parameters([axes[i] for i in others], np.asarray(context.spread)[others]),
        ]

    return mean, parameters


LEARNING = LawFamily(
    name="learning",
    formula="E + exp(c - a ln N - k(N) ln(1 + t / t0)), k(N) = K / (1 + N0/N)",
    source="Tan et al. 2025, arXiv:2509.25300, with a floor and a start",
    suits=_suits,
    build=_build,
)
