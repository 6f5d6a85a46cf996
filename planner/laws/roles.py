"""Who plays which part in a law, and the terms that laws of roles share."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, Parameter, log_exponent_parameter

Mean = Callable[[jax.Array, jax.Array, Context], jax.Array]
Parameters = Callable[[Context], Sequence[Parameter]]

SIZE = ("parameters", "active_parameters")
DATA = ("tokens", "examples")
# A wide study has an effect for each axis; beyond this the laws of roles have more parameters than runs.
MAX_AXES = 8

_MAX_LOG = 60.0
_MAX_LOG_EXPONENT = 2.5


def having(axes: Sequence[LawAxis], *roles: str) -> list[int]:
    """Positions of the axes with one of these roles."""
    return [i for i, axis in enumerate(axes) if axis.role in roles]


def only(axes: Sequence[LawAxis], *roles: str) -> int | None:
    """Position of the one axis with one of these roles; None if there is none, or more than one."""
    found = having(axes, *roles)
    return found[0] if len(found) == 1 else None


def rest(axes: Sequence[LawAxis], *taken: int) -> list[int]:
    """Positions of the other axes."""
    return [i for i in range(len(axes)) if i not in taken]


def are_scales(axes: Sequence[LawAxis], positions: Sequence[int]) -> bool:
    """True if more is better along these axes: logarithmic and without an interior optimum."""
    return all(axes[i].is_log and not axes[i].has_optimum for i in positions)


def bounded_exp(log_value: jax.Array) -> jax.Array:
    """exp(), finite however far a search strays."""
    return jnp.exp(jnp.clip(log_value, -_MAX_LOG, _MAX_LOG))


def positive(log_value: jax.Array) -> jax.Array:
    """exp() for exponents and slopes: no physical one is above exp(2.5) = 12."""
    return jnp.exp(jnp.clip(log_value, -12.0, _MAX_LOG_EXPONENT))


# --- power terms in other axes, added or multiplied ------------------------------------------------------------------


def power_parameters(axes: Sequence[LawAxis], share: float) -> list[Parameter]:
    """Log amplitudes, then log exponents, of one power of each axis; `share` is the log of a term's part of the
    height at the centre.
    """
    return [
        *(Parameter(name=f"log_amplitude_{a.name}", mean=share, sd=1.0, domain_sd=0.3) for a in axes),
        *map(log_exponent_parameter, axes),
    ]


def sum_of_terms(theta: jax.Array, u: jax.Array) -> jax.Array:
    """sum_a exp(theta_a - exp(theta_{A + a}) u_a): the powers of `power_parameters`, u (A,) from the centre."""
    num_axes = u.shape[0]
    return bounded_exp(theta[:num_axes] - positive(theta[num_axes:]) * u).sum()


def shared_parameters(axes: Sequence[LawAxis]) -> list[Parameter]:
    """Log power, then log amplitudes, then log exponents of a power of a sum of powers."""
    return [
        Parameter(name="log_power", mean=0.0, sd=0.6, domain_sd=0.15),
        *(Parameter(name=f"log_amplitude_{a.name}", mean=0.0, sd=0.8, domain_sd=0.3) for a in axes),
        *map(log_exponent_parameter, axes),
    ]


def power_of_sum(theta: jax.Array, u: jax.Array) -> jax.Array:
    """(sum_a A_a e^(-alpha_a u_a / g) / num_axes)^g with the parameters of `shared_parameters`, u (A,) from the centre.

    Sums and products of powers are its limits: axes that share what is left to learn are between them.
    """
    num_axes = u.shape[0]
    power = jnp.exp(jnp.clip(theta[0], -3.0, 3.0))
    log_terms = theta[1 : 1 + num_axes] - positive(theta[1 + num_axes :]) * u
    return bounded_exp(power * (jax.nn.logsumexp(log_terms / power) - jnp.log(num_axes)))


def slope_parameters(axes: Sequence[LawAxis], spread: np.ndarray) -> list[Parameter]:
    """Slopes of the log excess along further axes; of unknown sign for linear ones."""
    result = []
    for axis, width in zip(axes, np.maximum(spread, 0.3), strict=True):
        if axis.is_log:
            result.append(Parameter(name=f"slope_{axis.name}", mean=-0.1, sd=0.25, domain_sd=0.08))
        else:
            result.append(Parameter(name=f"slope_{axis.name}", mean=0.0, sd=0.5 / float(width), domain_sd=0.1))
    return result
