"""Repeated data: what tokens seen again, and parameters beyond what the unique tokens can teach, are worth."""

import jax
import jax.numpy as jnp

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import (
    Mean,
    Parameters,
    only,
    positive,
    power_of_sum,
    power_parameters,
    shared_parameters,
    sum_of_terms,
)

_LOG_HALF = -0.6931


def _parts(axes: tuple[LawAxis, ...]) -> tuple[int, int, int] | None:
    """Positions of size, tokens and unique tokens, if these are all the axes."""
    size, seen, unique = only(axes, "parameters"), only(axes, "tokens"), only(axes, "unique_tokens")
    if size is None or seen is None or unique is None or len(axes) != 3 or not all(a.is_log for a in axes):
        return None
    return size, seen, unique


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    if _parts(axes) is None:
        return None
    return "tokens seen again are worth less than new ones"


def effective(log_total: jax.Array, log_unique: jax.Array, log_decay: jax.Array) -> jax.Array:
    """ln of U (1 + R (1 - exp(-(total/U - 1) / R))), R = exp(log_decay); ln of the total where that is below U.

    Value and slope are continuous where the total passes U.
    """
    excess = log_total - log_unique
    is_repeated = excess > 0.0
    # Both branches are evaluated: the unused one must stay finite, and its gradient with it.
    repeats = jnp.expm1(jnp.clip(jnp.where(is_repeated, excess, 0.0), 0.0, 40.0))
    decay = jnp.exp(jnp.clip(log_decay, -10.0, 20.0))
    return jnp.where(is_repeated, log_unique + jnp.log1p(-decay * jnp.expm1(-repeats / decay)), log_total)


def _build_effective(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    parts = _parts(axes)
    assert parts is not None
    size, seen, unique = parts

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        log_size, log_seen, log_unique = coordinates[size], coordinates[seen], coordinates[unique]
        worth = jnp.stack(
            [
                effective(log_size, log_unique + theta[7], theta[6]) - context.centre[size],
                effective(log_seen, log_unique, theta[5]) - context.centre[seen],
            ]
        )
        return floor + height * sum_of_terms(theta[1:5], worth)

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            *power_parameters([axes[size], axes[seen]], _LOG_HALF),
            # About 15 epochs, 5 times the size that suits the data, and 20 tokens a parameter; all known roughly.
            Parameter(name="log_decay_tokens", mean=2.7, sd=1.0, domain_sd=0.2),
            Parameter(name="log_decay_parameters", mean=1.7, sd=1.5, domain_sd=0.2),
            Parameter(name="log_parameters_per_token", mean=-3.0, sd=1.5, domain_sd=0.2),
        ]

    return mean, parameters


def _build_capped(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    parts = _parts(axes)
    assert parts is not None
    size, seen, unique = parts

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        log_size = coordinates[size] - context.centre[size]
        cap = theta[6] + coordinates[unique] + theta[7] * log_size
        order = positive(theta[8])
        log_worth = -jax.nn.logsumexp(-order * jnp.stack([coordinates[seen], cap])) / order
        worth = jnp.stack([log_size, log_worth - context.centre[seen]])
        return floor + height * power_of_sum(theta[1:6], worth)

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            *shared_parameters([axes[size], axes[seen]]),
            # Refits: k = 23 with a sharp turn; k = 197 N^-.13 (N in raw units) with a harmonic one.
            Parameter(name="log_cap", mean=2.7, sd=1.0, domain_sd=0.2),
            Parameter(name="cap_drift", mean=-0.1, sd=0.2, domain_sd=0.05),
            Parameter(name="log_order", mean=0.4, sd=0.7, domain_sd=0.2),
        ]

    return mean, parameters


EFFECTIVE_TOKENS = LawFamily(
    name="effective_tokens",
    formula="E + A N'^-a + B D'^-b, D' = U (1 + R (1 - exp(-(D/U - 1)/R))), N' likewise beyond the size that suits U",
    source="Muennighoff et al. 2023, arXiv:2305.16264",
    suits=_suits,
    build=_build_effective,
    monotone=True,
)
CAPPED_TOKENS = LawFamily(
    name="capped_tokens",
    formula="E + (A N^-a + B T^-b)^g, T^-q = D^-q + (k U N^d)^-q",
    source="ScaleBench, arXiv:2604.22753, repeated-data forms 4 (q = 1) and 10 (d = 0)",
    suits=_suits,
    build=_build_capped,
)
