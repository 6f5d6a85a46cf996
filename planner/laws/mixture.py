"""Shares of a mixture of data: linear axes that sum to one, zeros allowed."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import MAX_AXES, Mean, Parameters, bounded_exp, having, rest, slope_parameters

_AMPLITUDE = Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3)


def _split(axes: tuple[LawAxis, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the shares and of the other axes."""
    shares = [i for i in having(axes, "mixture") if not axes[i].is_log]
    return np.array(shares, dtype=int), np.array(rest(axes, *shares), dtype=int)


def _suits(axes: tuple[LawAxis, ...]) -> bool:
    shares, others = _split(axes)
    return len(shares) > 1 and len(others) <= MAX_AXES and not any(axes[i].has_optimum for i in others)


def _effects(axes: Sequence[LawAxis], sd: float) -> list[Parameter]:
    return [Parameter(name=f"effect_{a.name}", mean=0.0, sd=sd, domain_sd=0.3 * sd) for a in axes]


def bent(share: jax.Array, log_offset: jax.Array, power: jax.Array) -> jax.Array:
    """((r + eps)^p - 1) / p of shares r: linear for p = 1, a logarithm for p = 0, an inverse power below."""
    log_share = jnp.log(jnp.maximum(share, 0.0) + jnp.exp(jnp.clip(log_offset, -15.0, 3.0)))
    exponent = jnp.clip(power * log_share, -40.0, 40.0)
    is_small = jnp.abs(exponent) < 1e-3
    safe = jnp.where(is_small, 1.0, exponent)
    # The exact form divides by zero at a power of zero; the series is good to 1e-11 there.
    ratio = jnp.where(is_small, 1.0 + exponent / 2.0 + exponent**2 / 6.0 + exponent**3 / 24.0, jnp.expm1(safe) / safe)
    return log_share * ratio


def _build_exponential(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    shares, others = _split(axes)
    cut = 2 + len(shares)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        return floor + height * bounded_exp(theta[1] + theta[2:cut] @ u[shares] + theta[cut:] @ u[others])

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            _AMPLITUDE,
            *_effects([axes[i] for i in shares], 1.5),  # published: -3 to 3
            *slope_parameters([axes[i] for i in others], np.asarray(context.spread)[others]),
        ]

    return mean, parameters


def _build_bent(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    shares, others = _split(axes)
    cut = 2 + len(shares)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        centre = jnp.asarray(context.centre)
        power, log_offset = theta[cut], theta[cut + 1]
        moved = bent(coordinates[shares], log_offset, power) - bent(centre[shares], log_offset, power)
        further = theta[cut + 2 :] @ (coordinates - centre)[others]
        return floor + height * bounded_exp(theta[1] + theta[2:cut] @ moved + further)

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            _AMPLITUDE,
            *_effects([axes[i] for i in shares], 0.5),
            # Published powers of a share: -.5 to .3 in a loss, up to 1 in its logarithm; offsets .03 to .09.
            Parameter(name="power", mean=0.3, sd=0.4, domain_sd=0.1),
            Parameter(name="log_offset", mean=float(np.log(0.03)), sd=1.0, domain_sd=0.2),
            *slope_parameters([axes[i] for i in others], np.asarray(context.spread)[others]),
        ]

    return mean, parameters


def _build_powers(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    shares, others = _split(axes)
    first, second = 2 + len(shares), 2 + 2 * len(shares)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        centre = jnp.asarray(context.centre)
        power, log_offset = theta[first:second], theta[second]
        moved = bent(coordinates[shares], log_offset, power) - bent(centre[shares], log_offset, power)
        further = bounded_exp(theta[second + 1 :] @ (coordinates - centre)[others])
        return floor + height * further * (bounded_exp(theta[1]) + theta[2:first] @ moved)

    def parameters(context: Context) -> list[Parameter]:
        used = [axes[i] for i in shares]
        return [
            floor_parameter(context),
            _AMPLITUDE,
            *_effects(used, 0.5),
            *(Parameter(name=f"power_{a.name}", mean=0.3, sd=0.4, domain_sd=0.1) for a in used),
            Parameter(name="log_offset", mean=float(np.log(0.03)), sd=1.0, domain_sd=0.2),
            *slope_parameters([axes[i] for i in others], np.asarray(context.spread)[others]),
        ]

    return mean, parameters


MIXTURE_EXPONENTIAL = LawFamily(
    name="mixture_exponential",
    formula="c + k exp(sum_j t_j r_j), times powers of other axes",
    source="Ye et al. 2024 (data mixing laws), arXiv:2403.16952",
    suits=lambda axes: "each share acts exponentially" if _suits(axes) else None,
    build=_build_exponential,
)
MIXTURE_BENT = LawFamily(
    name="mixture_bent",
    formula="c + k exp(sum_j t_j ((r_j + eps)^p - 1) / p), times powers of other axes",
    source="ScaleBench, arXiv:2604.22753, domain form 4, with one power for all shares",
    suits=lambda axes: "the first percents of a share matter most" if _suits(axes) else None,
    build=_build_bent,
)
MIXTURE_POWERS = LawFamily(
    name="mixture_powers",
    formula="c + k + sum_j b_j ((r_j + eps)^p_j - 1) / p_j, times powers of other axes",
    source="ScaleBench, arXiv:2604.22753, domain form 3; Ge et al. 2024 (BiMix), arXiv:2405.14908, with an offset",
    suits=lambda axes: "each share has its own power" if _suits(axes) else None,
    build=_build_powers,
)
