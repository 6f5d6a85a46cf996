"""Loss of (E experts, N dense parameters): ten forms.  Coordinates: e = ln E, n = ln N.

Published exponents: .07 to .11 of E, .08 to .2 of N, an interaction of .009 a squared nat (Clark et al. 2022,
arXiv:2202.01169).  Forms 1, 2, 8 and 9 are one model in four parametrisations; only their priors differ.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, Form, Part, amplitude, exponent, log_of, product_exponent, signed

SCENARIO = "moe"
AXES = (("num_experts", True), ("dense_parameter_count", True))

_OF_EXPERTS = log_of("log_beta", 0.1, 0.8)


def _size(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[1]


def _saturating(r: Any, power: jax.Array, x: jax.Array) -> jax.Array:
    """ln(1 + b E^power)."""
    return jnp.logaddexp(0.0, jnp.log(r.b) + power * x[0])


def _ln_experts(r: Any, x: jax.Array) -> jax.Array:
    return r.d * x[0]


def _beside_form_4(r: Any, x: jax.Array) -> jax.Array:
    return r.d * (x[1] - 0.4 * jnp.logaddexp(0.0, x[0]))


def _bilinear(r: Any, x: jax.Array) -> jax.Array:
    return r.k1 * x[0] + r.k2 * x[1] + r.k3 * x[0] * x[1]


def _b_at_centre(power: Part) -> Any:
    """Raw b from the size of b E^power at the centre."""
    return lambda r, at: {"b": jnp.exp(jnp.clip(r.part - power(r, at.centre), -60.0, 60.0))}


_PRODUCT = lambda r, x: _size(r, x) - r.beta * x[0]  # noqa: E731

FORMS = (
    Form(
        formula="c + a N^-alpha E^-beta",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", sd=0.5), product_exponent("alpha"), _OF_EXPERTS),
        terms={"a": _PRODUCT},
    ),
    Form(
        formula="c + a (N^alpha E^beta)^-gamma",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            product_exponent("alpha"),
            _OF_EXPERTS,
            log_of("log_gamma", 1.0, 0.5),
        ),
        terms={"a": lambda r, x: r.gamma * _PRODUCT(r, x)},
    ),
    Form(
        formula="c + a N^-alpha / (1 + b E^beta) + d N^(-0.6 alpha)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", 2),
            exponent("alpha"),
            signed("part", 0.0, 1.5),
            log_of("log_beta", 0.5, 0.7),
            amplitude("d", 2),
        ),
        make=_b_at_centre(lambda r, x: r.beta * x[0]),
        terms={
            "a": lambda r, x: _size(r, x) - _saturating(r, r.beta, x),
            "d": lambda r, x: 0.6 * _size(r, x),
        },
    ),
    Form(
        formula="c + a N^-alpha (1 + b E)^-gamma + d (ln N - 0.4 ln(1 + E))",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            product_exponent("alpha"),
            signed("part", 0.0, 1.5),
            log_of("log_gamma", 0.1, 0.8),
            signed("unit_d", 0.0, 0.1),
        ),
        make=_b_at_centre(lambda r, x: x[0]),
        terms={"a": lambda r, x: _size(r, x) - r.gamma * _saturating(r, jnp.ones(()), x)},
        centred=_beside_form_4,
    ),
    Form(  # raw log_a is k0
        formula="c + d ln E + exp(k0 + k1 ln E + k2 ln N + k3 ln E ln N)",
        anchor="floor",
        parameters=(
            FLOOR,
            signed("unit_d", 0.0, 0.1),
            amplitude("a", sd=0.5),
            signed("slope_e", -0.1, 0.15),
            signed("slope_n", -0.2, 0.2),
            signed("k3", 0.005, 0.03),
        ),
        make=lambda r, at: {
            "k1": r.slope_e - r.k3 * at.centre[1],
            "k2": r.slope_n - r.k3 * at.centre[0],
        },
        terms={"a": _bilinear},
        centred=_ln_experts,
    ),
    Form(
        formula="c + a N^-alpha (1 + b E^-beta) + d / (E N^0.05)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            exponent("alpha"),
            signed("part", -0.7, 1.5),
            log_of("log_beta", 0.3, 0.8),
            log_of("d", 0.05, 1.5),
        ),
        make=_b_at_centre(lambda r, x: -r.beta * x[0]),
        terms={
            "a": lambda r, x: _size(r, x) + _saturating(r, -r.beta, x),
            "d": lambda r, x: -x[0] - 0.05 * x[1],
        },
    ),
    Form(
        formula="c + a E^beta N^-alpha + b N^-gamma",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", 2),
            signed("beta", -0.15, 0.2),
            exponent("alpha"),
            amplitude("b", 2),
            exponent("gamma"),
        ),
        terms={"a": lambda r, x: _size(r, x) + r.beta * x[0], "b": lambda r, x: -r.gamma * x[1]},
    ),
    Form(
        formula="c + a N^-alpha E^-beta, exponents of either sign",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", sd=0.5), signed("alpha", 0.2, 0.2), signed("beta", 0.1, 0.15)),
        terms={"a": _PRODUCT},
    ),
    Form(
        formula="c + a (N E^g)^-alpha",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", sd=0.5), product_exponent("alpha"), log_of("log_g", 0.5, 0.8)),
        terms={"a": lambda r, x: -r.alpha * (x[1] + r.g * x[0])},
    ),
    Form(
        formula="c + a (N / 1e9)^-alpha ((1 + b E^gamma) / (1 + b))^-beta",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            product_exponent("alpha"),
            signed("part", 0.5, 1.5),
            log_of("log_gamma", 1.0, 0.5),
            _OF_EXPERTS,
        ),
        make=_b_at_centre(lambda r, x: r.gamma * x[0]),
        terms={
            "a": lambda r, x: -r.alpha * (x[1] - jnp.log(1e9)) - r.beta * (_saturating(r, r.gamma, x) - jnp.log1p(r.b))
        },
    ),
)
