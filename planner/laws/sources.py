"""Axes bought from several sources: what a synthetic unit is worth beside real ones.

With D real units and s of a source, r = s / D,

    D_eff = D (1 + sum_s r kappa(r)),    kappa(r) = kappa_1 [1 - (r^q - 1) / (R^q - 1)]

so that kappa(1) = kappa_1, the whole source is worth nothing at the break-even ratio R > 1 and harms beyond, and D_eff
is highest at r = R (1 + q)^(-1/q).  The form that the collapse tables of He et al. 2026 ("How Data Scales in Agentic
RL", tables 3 and 17) force: a discount that never is negative cannot fall below the real-only baseline.  Any law is
written for effective amounts.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, Law, LawAxis, Parameter

PER_SOURCE = 3
# Published discounts are .34 to .71, break-even ratios 1.1 to 8.5, bends -.41 to -.02.
_DISCOUNT = (0.55, 0.2)
_BREAK_EVEN = (4.0, 3.0)
_BEND = (-0.25, 0.2)
_LEAST_RATIO = 1e-9
_LEAST_WORTH = 0.05


def real_axes(axes: Sequence[LawAxis]) -> tuple[LawAxis, ...]:
    """The axes that are not another way to buy one."""
    return tuple(axis for axis in axes if axis.source_of is None)


def source_parameters(axis: LawAxis) -> list[Parameter]:
    """Log of kappa_1, log of log R, and q."""
    discount, error = axis.discount or _DISCOUNT
    even, even_error = axis.break_even or _BREAK_EVEN
    log_even = float(np.log(even))
    return [
        Parameter(name=f"log_discount_{axis.name}", mean=float(np.log(discount)), sd=error / discount, domain_sd=0.1),
        Parameter(
            name=f"log_break_even_{axis.name}",
            mean=float(np.log(log_even)),
            sd=min(even_error / (even * log_even), 1.5),
            domain_sd=0.15,
        ),
        Parameter(name=f"bend_{axis.name}", mean=_BEND[0], sd=_BEND[1], domain_sd=0.05),
    ]


def _power_integral(q: Any, t: Any, xp: Any) -> Any:
    """(e^(q t) - 1) / q, and its limit t at q = 0."""
    z = xp.clip(q * t, -30.0, 30.0)
    is_small = xp.abs(z) < 1e-4
    safe = xp.where(is_small, 1.0, z)
    return t * xp.where(is_small, 1.0 + 0.5 * z, xp.expm1(safe) / safe)


def worth(parameters: Any, ratio: Any, xp: Any = jnp) -> Any:
    """r kappa(r): what the units of a source are worth, in real units per real unit.

    `parameters` (..., 3) as in `source_parameters`; `ratio` r >= 0 broadcasts to (...); `xp` is jax.numpy or numpy.
    """
    log_ratio = xp.log(xp.maximum(ratio, _LEAST_RATIO))
    bend = xp.clip(parameters[..., 2], -0.9, 3.0)
    log_even = xp.exp(xp.clip(parameters[..., 1], -5.0, 3.0))
    fall = _power_integral(bend, log_ratio, xp) / _power_integral(bend, log_even, xp)
    return xp.exp(xp.clip(parameters[..., 0], -12.0, 5.0)) * ratio * (1.0 - fall)


def break_even_ratio(parameters: np.ndarray) -> np.ndarray:
    """R; `parameters` (..., 3), result (...)."""
    return np.exp(np.exp(np.clip(parameters[..., 1], -5.0, 3.0)))


def peak_ratio(parameters: np.ndarray) -> np.ndarray:
    """R (1 + q)^(-1/q), the ratio at which D_eff is highest; `parameters` (..., 3), result (...)."""
    bend = np.clip(parameters[..., 2], -0.9, 3.0)
    log_even = np.exp(np.clip(parameters[..., 1], -5.0, 3.0))
    is_small = np.abs(bend) < 1e-4
    safe = np.where(is_small, 1.0, bend)
    return np.exp(log_even - np.where(is_small, 1.0 - 0.5 * bend, np.log1p(safe) / safe))


def _log_one_plus(total: jax.Array) -> jax.Array:
    """log(1 + total), continued as a straight line where sources have done away with nearly all that was real."""
    edge = _LEAST_WORTH - 1.0
    inside = jnp.log1p(jnp.maximum(total, edge))
    return inside + jnp.clip((jnp.minimum(total, edge) - edge) / _LEAST_WORTH, -20.0, 0.0)


def with_sources(law: Law, axes: tuple[LawAxis, ...]) -> Law:
    """`law`, written for the real axes, as a law of all `axes`: it sees the effective amount of those with sources."""
    names = [axis.name for axis in axes]
    real = np.array([i for i, axis in enumerate(axes) if axis.source_of is None])
    taken = [i for i, axis in enumerate(axes) if axis.source_of is not None]
    bought = {i: names.index(axes[i].source_of or "") for i in taken}
    nothing = {i: float(np.exp(axes[i].log_zero or -np.inf)) for i in taken}
    num_own = PER_SOURCE * len(taken)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        own = theta[-num_own:].reshape(len(taken), PER_SOURCE)
        totals: dict[int, jax.Array] = {}
        for row, i in enumerate(taken):
            amount = jnp.maximum(jnp.exp(coordinates[i]) - nothing[i], 0.0)
            added = worth(own[row], amount * jnp.exp(-coordinates[bought[i]]))
            totals[bought[i]] = totals.get(bought[i], 0.0) + added
        effective = coordinates
        for target, total in totals.items():
            effective = effective.at[target].add(_log_one_plus(total))
        return law.mean(theta[:-num_own], effective[real], _of_real(context))

    def parameters(context: Context) -> list[Parameter]:
        own = [parameter for i in taken for parameter in source_parameters(axes[i])]
        return [*law.parameters(_of_real(context)), *own]

    def _of_real(context: Context) -> Context:
        return context._replace(centre=context.centre[real], spread=context.spread[real])

    return Law(name=law.name, axes=axes, mean=mean, parameters=parameters, reason=law.reason)
