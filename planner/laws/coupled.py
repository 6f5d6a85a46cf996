"""Floor plus powers whose amplitudes and exponents drift with the other axes."""

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

_MAX_LOG = 60.0


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    num_axes = len(axes)
    others = [(a, b) for a in range(num_axes) for b in range(num_axes) if a != b]
    rows = np.array([a for a, _ in others], dtype=int)
    columns = np.array([b for _, b in others], dtype=int)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        amplitude, exponent, amplitude_drift, exponent_drift = jnp.split(
            theta[1:], [num_axes, 2 * num_axes, 2 * num_axes + len(others)]
        )
        log_amplitude = amplitude.at[rows].add(amplitude_drift * u[columns])
        log_exponent = exponent.at[rows].add(exponent_drift * u[columns])
        log_terms = log_amplitude - jnp.exp(jnp.clip(log_exponent, -8.0, 2.0)) * u
        return floor + height * jnp.exp(jnp.clip(log_terms, -_MAX_LOG, _MAX_LOG)).sum()

    def parameters(context: Context) -> Sequence[Parameter]:
        spread = np.maximum(np.asarray(context.spread), 0.3)
        share = float(-np.log(num_axes))
        return [
            floor_parameter(context),
            *(Parameter(name=f"log_amplitude_{a.name}", mean=share, sd=1.0, domain_sd=0.3) for a in axes),
            *(log_exponent_parameter(a) for a in axes),
            *(
                Parameter(
                    name=f"{kind}_drift_{axes[a].name}_{axes[b].name}",
                    mean=0.0,
                    sd=min(size / float(spread[b]), 0.2),
                    domain_sd=0.03,
                )
                for kind, size in (("amplitude", 0.2), ("exponent", 0.1))
                for a, b in others
            ),
        ]

    return mean, parameters


COUPLED_POWERS = LawFamily(
    name="coupled_powers",
    formula="E + sum_a A_a(x) x_a^-alpha_a(x), log A_a and log alpha_a linear in the logs of the other axes",
    source="first-order form of Li et al. 2025 (Farseer), arXiv:2506.10972, eq. 5, for any number of axes",
    suits=lambda axes: (
        "amplitudes and exponents may drift with the other axes"
        if 1 < len(axes) <= 5 and all(axis.is_log for axis in axes)
        else None
    ),
    build=_build,
)
