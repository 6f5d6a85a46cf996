"""Loss on one domain i of (r_1 .. r_5, shares of five domains in the training data): ten forms for each output.

Coordinates are the shares themselves.  Sums over j run over the other four domains, sums over k over all five.
Exponents that are published as shared by all outputs (forms 4 and 5) are each output's own here, as outputs are fitted
one by one.  A share of zero counts as 1e-12 where its logarithm is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, Form, amplitude, log_of, signed
from planner.laws.base import Parameter

SCENARIO = "domain_mixture"
NUM_DOMAINS = 5
AXES = tuple((f"proportion_domain_{k + 1}", False) for k in range(NUM_DOMAINS))

_LEAST_SHARE = 1e-12
_LEVEL = signed("c", 0.0, 1.0)
_OFFSET = log_of("log_eps", 0.05, 1.0)
_POWER = log_of("log_gamma", 0.4, 0.6)
# By what a loss changes, in spreads, as the share of its own domain goes from nothing to all.
_OWN_EFFECT, _OWN_SD, _OTHER_SD = -1.5, 1.5, 1.0
_PER_LOG_SHARE = signed("unit_b", -0.15, 0.25)


def log_share(share: jax.Array) -> jax.Array:
    """ln of a share, that of nothing as if it were 1e-12."""
    return jnp.log(jnp.maximum(share, _LEAST_SHARE))


def share_power(share: jax.Array, power: jax.Array) -> jax.Array:
    """share^power for power > 0, with finite derivatives at a share of nothing."""
    return jnp.where(share > 0.0, jnp.exp(power * log_share(share)), 0.0)


def _others(i: int) -> list[int]:
    return [j for j in range(NUM_DOMAINS) if j != i]


def _effects(i: int, name: str, mean: float, sd: float) -> list[Parameter]:
    return [signed(f"{name}{j + 1}", mean, sd) for j in _others(i)]


def _weighted(r: Any, name: str, domains: Sequence[int], values: jax.Array) -> jax.Array:
    """sum over the domains of w_j values_j."""
    total = jnp.zeros(())
    for j in domains:
        total = total + getattr(r, f"{name}{j + 1}") * values[j]
    return total


def _bent(r: Any, x: jax.Array) -> jax.Array:
    """r_k^gamma_k of all shares, (5,)."""
    powers = jnp.stack([getattr(r, f"gamma{k + 1}") for k in range(NUM_DOMAINS)])
    return share_power(x, powers)


def _all_bent(i: int, name: str, own: float, own_sd: float, other_sd: float) -> list[Parameter]:
    """Effects of all shares and the powers to which they are raised."""
    effects = [
        signed(f"{name}{k + 1}", own if k == i else 0.0, own_sd if k == i else other_sd) for k in range(NUM_DOMAINS)
    ]
    return [*effects, *(log_of(f"log_gamma{k + 1}", 0.4, 0.6) for k in range(NUM_DOMAINS))]


def _logarithmic(i: int) -> Form:
    return Form(
        formula="a_i + b_i ln r_i + sum_j c_ij r_j",
        anchor="free",
        parameters=(_LEVEL, _PER_LOG_SHARE, *_effects(i, "unit_c", 0.0, _OTHER_SD)),
        centred=lambda r, x: r.b * log_share(x[i]) + _weighted(r, "c", _others(i), x),
    )


def _power_times_exponential(i: int) -> Form:
    return Form(
        formula="a_i (r_i + eps_i)^-alpha_i exp(sum_j w_ij r_j)",
        anchor="none",
        parameters=(
            amplitude("a", sd=0.3),
            _OFFSET,
            log_of("log_alpha", 0.15, 0.8),
            *_effects(i, "w", 0.0, 0.3),
        ),
        terms={"a": lambda r, x: -r.alpha * jnp.log(x[i] + r.eps) + _weighted(r, "w", _others(i), x)},
    )


def _power_and_linear(i: int) -> Form:
    return Form(
        formula="a_i + b_i r_i^gamma_i + sum_j w_ij r_j",
        anchor="free",
        parameters=(
            _LEVEL,
            signed("unit_b", _OWN_EFFECT, _OWN_SD),
            _POWER,
            *_effects(i, "unit_w", 0.0, _OTHER_SD),
        ),
        centred=lambda r, x: r.b * share_power(x[i], r.gamma) + _weighted(r, "w", _others(i), x),
    )


def _exponential_of_powers(i: int) -> Form:
    return Form(  # raw log_a is a_i
        formula="exp(a_i + sum_k w_ik r_k^gamma_ik)",
        anchor="none",
        parameters=(amplitude("a", sd=0.3), *_all_bent(i, "w", -0.3, 0.4, 0.3)),
        terms={"a": lambda r, x: _weighted(r, "w", range(NUM_DOMAINS), _bent(r, x))},
    )


def _sum_of_powers(i: int) -> Form:
    return Form(
        formula="a_i + sum_k w_ik r_k^gamma_ik",
        anchor="free",
        parameters=(_LEVEL, *_all_bent(i, "unit_w", _OWN_EFFECT, _OWN_SD, _OTHER_SD)),
        centred=lambda r, x: _weighted(r, "w", range(NUM_DOMAINS), _bent(r, x)),
    )


def _transfer(i: int) -> Form:
    """t_ij > 0: a domain may teach something about another, not the reverse of it."""

    def log_power(r: Any, x: jax.Array) -> jax.Array:
        return -r.alpha * jnp.log(jnp.maximum(x[i] + _weighted(r, "t", _others(i), x), _LEAST_SHARE))

    return Form(
        formula="a_i + b_i (r_i + sum_j t_ij r_j)^-alpha_i",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("b", sd=0.7),
            log_of("log_alpha", 0.3, 0.8),
            *(log_of(f"log_t{j + 1}", 0.1, 1.2) for j in _others(i)),
        ),
        terms={"b": log_power},
    )


def _linear_and_logarithmic(i: int) -> Form:
    def part(r: Any, x: jax.Array) -> jax.Array:
        logs = log_share(x)
        others = sum((logs[j] for j in _others(i)), start=jnp.zeros(()))
        return r.b * x[i] + r.c_own * logs[i] + _weighted(r, "d", _others(i), x) + r.e * others

    return Form(
        formula="a_i + b_i r_i + c_i ln r_i + sum_j d_ij r_j + e_i sum_j ln r_j",
        anchor="free",
        parameters=(
            _LEVEL,
            signed("unit_b", 0.0, _OWN_SD),
            signed("unit_c_own", -0.15, 0.25),
            *_effects(i, "unit_d", 0.0, _OTHER_SD),
            signed("unit_e", 0.0, 0.1),
        ),
        centred=part,
    )


def _own_power(i: int) -> Form:
    return Form(
        formula="a_i - b_i r_i^gamma_i",
        anchor="free",
        parameters=(_LEVEL, log_of("log_unit_b", 1.5, 0.8), _POWER),
        centred=lambda r, x: -r.b * share_power(x[i], r.gamma),
    )


def _own_log_quadratic(i: int) -> Form:
    return Form(
        formula="a_i + b_i ln r_i + c_i (ln r_i)^2",
        anchor="free",
        parameters=(_LEVEL, signed("unit_slope", -0.3, 0.3), signed("unit_c_own", 0.0, 0.03)),
        # The slope is that at the centre, where the published b is that at a share of one.
        make=lambda r, at: {"b": r.slope - 2.0 * r.c_own * log_share(at.centre[i])},
        centred=lambda r, x: r.b * log_share(x[i]) + r.c_own * log_share(x[i]) ** 2,
    )


def _own_inverse(i: int) -> Form:
    return Form(
        formula="a_i + b_i / (r_i + eps_i)",
        anchor="floor",
        parameters=(FLOOR, amplitude("b", sd=0.7), _OFFSET),
        terms={"b": lambda r, x: -jnp.log(x[i] + r.eps)},
    )


_WRITERS = (
    _logarithmic,
    _power_times_exponential,
    _power_and_linear,
    _exponential_of_powers,
    _sum_of_powers,
    _transfer,
    _linear_and_logarithmic,
    _own_power,
    _own_log_quadratic,
    _own_inverse,
)
FORMS = tuple(tuple(write(i) for i in range(NUM_DOMAINS)) for write in _WRITERS)
