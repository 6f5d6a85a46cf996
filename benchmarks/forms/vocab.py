"""Unigram-normalised loss of (P non-vocabulary parameters, V vocabulary, C characters): ten forms.

Coordinates: p = ln P, v = ln V, c = ln C.  Responses are negative; the floor lies below them all, at no known bound.
Published exponents are .4 to .7 (Tao et al. 2024, arXiv:2407.13623); V bends the loss by less than .1 a squared nat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, At, Form, amplitude, exponent, log_of, product_exponent, signed
from planner.laws.roles import bounded_exp

SCENARIO = "vocab"
AXES = (("non_vocab_parameters", True), ("vocab_size", True), ("num_characters", True))

_TWO = (FLOOR, amplitude("a", 2), amplitude("b", 2))
_OF_VOCABULARY = 0.2  # standard deviation of an exponent of V of unknown sign


def _size(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[0]


def _seen(r: Any, x: jax.Array) -> jax.Array:
    return -r.beta * x[2]


def _half_log_cosh(z: jax.Array) -> jax.Array:
    """ln cosh(z) / z."""
    is_small = jnp.abs(z) < 1e-2
    safe = jnp.where(is_small, 1.0, z)
    # The exact form divides by zero; the series is good to 1e-12 there.
    exact = (jnp.logaddexp(safe, -safe) - jnp.log(2.0)) / safe
    return jnp.where(is_small, z / 2.0 - z**3 / 12.0 + z**5 / 45.0, exact)


def log_power_mean(first: jax.Array, second: jax.Array, order: jax.Array) -> jax.Array:
    """ln of the power mean ((e^(r a) + e^(r b)) / 2)^(1/r) of e^a and e^b, smooth through r = 0."""
    middle, half = 0.5 * (first + second), 0.5 * (first - second)
    return middle + half * _half_log_cosh(order * half)


def _mean_of_two(r: Any, x: jax.Array) -> jax.Array:
    mean = log_power_mean(_size(r, x), _seen(r, x), r.order)
    return mean + jnp.log1p(r.k * (x[1] - r.v0) ** 2)


def _balanced(r: Any, at: At) -> Mapping[str, jax.Array]:
    """The two terms have no amplitude of their own, so that both matter only where their exponents balance."""
    beta = r.alpha * jnp.exp(r.balance) * at.centre[0] / at.centre[2]
    return {"beta": beta, "v0": at.centre[1] + at.spread[1] * r.optimum}


def _log_sum(r: Any, x: jax.Array) -> jax.Array:
    """ln ((A P^-alpha)^q + (B (C V^phi)^-beta)^q)^(1/q), B / A = e^shift."""
    first = _size(r, x)
    second = r.shift - r.beta * (x[2] + r.phi * x[1])
    return jnp.logaddexp(r.q * first, r.q * second) / r.q


def _shift_at_centre(r: Any, at: At) -> Mapping[str, jax.Array]:
    return {"shift": r.ratio + r.beta * (at.centre[2] + r.phi * at.centre[1]) - r.alpha * at.centre[0]}


def _larger(r: Any, x: jax.Array) -> jax.Array:
    return -r.d * jnp.maximum(r.u * x[0], r.log_lam + r.v * x[2]) - r.g * x[1]


def _tilted(r: Any, at: At) -> Mapping[str, jax.Array]:
    """a P^-alpha C^-beta (1 + gamma ln V) = A P^-alpha C^-beta (1 + tilt (v - v0)) with v0 at the centre: as gamma
    grows without bound, a = A (1 - tilt v0) falls to zero and a gamma = A tilt stays.
    """
    log_a = at.log_height + r.first + r.alpha * at.centre[0] + r.beta * at.centre[2]
    return {"log_scale": log_a, "one": 1.0 - r.tilt * at.centre[1]}


def _exp_polynomial(r: Any, x: jax.Array) -> jax.Array:
    p, v, c = x
    return r.k1 * p + r.k2 * v + r.k3 * v**2 + r.k4 * c + r.k5 * v * c


def _from_centre(r: Any, at: At) -> Mapping[str, jax.Array]:
    _, v0, c0 = at.centre
    return {"k2": r.slope_v - 2.0 * r.k3 * v0 - r.k5 * c0, "k4": r.slope_c - r.k5 * v0}


FORMS = (
    Form(
        formula="c + a V^b P^e C^g",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            signed("b", 0.0, _OF_VOCABULARY),
            signed("e", -0.2, 0.2),
            signed("g", -0.2, 0.2),
        ),
        terms={"a": lambda r, x: r.b * x[1] + r.e * x[0] + r.g * x[2]},
    ),
    Form(
        formula="c + a M_r(P^-alpha, C^-beta) (1 + k (ln V - v0)^2), M_r the power mean of order r",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            signed("order", 0.5, 1.0),
            exponent("alpha"),
            signed("balance", 0.0, 0.3),
            log_of("log_k", 0.02, 1.0),
            signed("optimum", 0.0, 1.5),
        ),
        make=_balanced,
        terms={"a": _mean_of_two},
    ),
    Form(  # raw log_a is that of the first amplitude, and b = a e^shift
        formula="c + ((a P^-alpha)^q + (b (C V^phi)^-beta)^q)^(1/q)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.7),
            signed("ratio", 0.0, 1.0),
            exponent("alpha"),
            exponent("beta"),
            signed("phi", 0.0, 0.4),
            log_of("log_q", 1.0, 0.6),
        ),
        make=_shift_at_centre,
        terms={"a": _log_sum},
    ),
    Form(
        formula="c + a max(P^u, lam C^v)^-d V^-g",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            exponent("u"),
            exponent("v"),
            signed("ratio", 0.0, 1.0),
            log_of("log_d", 1.0, 0.5),
            signed("g", 0.0, _OF_VOCABULARY),
        ),
        make=lambda r, at: {"log_lam": r.ratio + r.u * at.centre[0] - r.v * at.centre[2]},
        terms={"a": _larger},
    ),
    Form(
        formula="c + a P^u V^v C^w + b P^z",
        anchor="floor",
        parameters=(
            *_TWO,
            signed("u", -0.15, 0.2),
            signed("v", 0.0, _OF_VOCABULARY),
            signed("w", -0.3, 0.2),
            signed("z", -0.35, 0.25),
        ),
        terms={"a": lambda r, x: r.u * x[0] + r.v * x[1] + r.w * x[2], "b": lambda r, x: r.z * x[0]},
    ),
    Form(
        formula="c + a (P V^k)^-alpha + b (C V^m)^-beta",
        anchor="floor",
        parameters=(*_TWO, exponent("alpha"), exponent("beta"), signed("k", 0.2, 0.4), signed("m", 0.0, 0.4)),
        terms={
            "a": lambda r, x: -r.alpha * (x[0] + r.k * x[1]),
            "b": lambda r, x: -r.beta * (x[2] + r.m * x[1]),
        },
    ),
    Form(
        formula="c + a P^-alpha C^-beta + b V^gamma C^-delta",
        anchor="floor",
        parameters=(
            *_TWO,
            product_exponent("alpha"),
            product_exponent("beta"),
            signed("gamma", 0.0, _OF_VOCABULARY),
            exponent("delta"),
        ),
        terms={
            "a": lambda r, x: _size(r, x) + _seen(r, x),
            "b": lambda r, x: r.gamma * x[1] - r.delta * x[2],
        },
    ),
    Form(
        formula="c + d ln V + V^beta (a P^-alpha + b C^-gamma)",
        anchor="floor",
        parameters=(
            *_TWO,
            signed("unit_d", 0.0, 0.1),
            signed("beta", 0.0, _OF_VOCABULARY),
            exponent("alpha"),
            exponent("gamma"),
        ),
        terms={
            "a": lambda r, x: r.beta * x[1] + _size(r, x),
            "b": lambda r, x: r.beta * x[1] - r.gamma * x[2],
        },
        centred=lambda r, x: r.d * x[1],
    ),
    Form(  # raw a = e^log_scale one, gamma = tilt / one
        formula="c + a P^-alpha C^-beta (1 + gamma ln V) + d V^eps",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("first", 2),
            product_exponent("alpha"),
            product_exponent("beta"),
            signed("tilt", 0.0, 0.1),
            amplitude("d", 2),
            signed("eps", 0.0, _OF_VOCABULARY),
        ),
        make=_tilted,
        terms={"d": lambda r, x: r.eps * x[1]},
        rest=lambda r, x: bounded_exp(r.log_scale + _size(r, x) + _seen(r, x)) * (r.one + r.tilt * x[1]),
    ),
    Form(  # raw log_a is k0
        formula="c + exp(k0 + k1 ln P + k2 ln V + k3 (ln V)^2 + k4 ln C + k5 ln V ln C)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            signed("k1", -0.2, 0.2),
            signed("slope_v", 0.0, _OF_VOCABULARY),
            signed("k3", 0.02, 0.03),
            signed("slope_c", -0.2, 0.2),
            signed("k5", 0.0, 0.03),
        ),
        make=_from_centre,
        terms={"a": _exp_polynomial},
    ),
)
