"""Loss of (U unique tokens, N parameters, D tokens seen): ten forms.  Coordinates: u = ln U, n = ln N, d = ln D.

Tokens are worth repeating some 15 times and parameters some 5 (Muennighoff et al. 2023, arXiv:2305.16264).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, At, Form, amplitude, exponent, log_of, signed
from planner.laws.repetition import effective

SCENARIO = "data_constrained"
AXES = (("unique_tokens", True), ("params", True), ("tokens", True))

_REPEATS = 15.0
_DRIFT = signed("drift", 0.0, 0.15)
_FLOOR_AND_TWO = (FLOOR, amplitude("a", 2), amplitude("b", 2), exponent("alpha"), exponent("beta"))
_LEAST_RATIO = 1e-300


def _size(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[1]


def _seen(r: Any, x: jax.Array) -> jax.Array:
    return -r.beta * x[2]


def _excess(x: jax.Array) -> jax.Array:
    """ln max(D/U - 1, 0), with its logarithm floored."""
    return jnp.log(jnp.maximum(jnp.expm1(jnp.clip(x[2] - x[0], 0.0, 40.0)), _LEAST_RATIO))


def _novelty(x: jax.Array) -> jax.Array:
    """ln ln(1 + U/D)."""
    return jnp.log(jnp.logaddexp(0.0, x[0] - x[2]))


def _effective_size(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * effective(x[1], x[0] + r.log_rho, r.log_tau_n)


def _effective_tokens(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * effective(x[2], x[0], r.log_tau_d)


def _harmonic(r: Any, x: jax.Array) -> jax.Array:
    """-beta ln T, 1/T = 1/D + 1/(s U N^d)."""
    return r.beta * jnp.logaddexp(-x[2], -(r.log_s + x[0] + r.drift * x[1]))


def _faded(r: Any, x: jax.Array) -> jax.Array:
    """-beta ln De, De = D / (1 + k max(D/U - 1, 0)^q N^d)."""
    return -r.beta * (x[2] - jnp.logaddexp(0.0, r.log_k + r.q * _excess(x) + r.drift * x[1]))


def _limited(r: Any, x: jax.Array) -> jax.Array:
    """ln of the power mean of D^-beta and (k U)^-beta."""
    order = r.beta * r.q
    return jnp.logaddexp(-order * x[2], -order * (r.log_k + x[0])) / r.q


def _signed_novelty(r: Any, at: At) -> Mapping[str, jax.Array]:
    return {"d": r.d * jnp.exp(-r.gamma * _novelty(at.centre))}


FORMS = (
    Form(
        formula="a N^-alpha + b D^-beta + e U^gamma N^delta",
        anchor="share",
        parameters=(*_FLOOR_AND_TWO, signed("gamma", 0.0, 0.1), signed("delta", 0.0, 0.1)),
        terms={"a": _size, "b": _seen, "c": lambda r, x: r.gamma * x[0] + r.delta * x[1]},
    ),
    Form(
        formula="c + a U^p + b N^q + d D^r",
        anchor="floor",
        parameters=(
            FLOOR,
            *(amplitude(k, 3) for k in "abd"),
            signed("p", -0.2, 0.3),
            signed("q", -0.35, 0.3),
            signed("r", -0.35, 0.3),
        ),
        terms={
            "a": lambda r, x: r.p * x[0],
            "b": lambda r, x: r.q * x[1],
            "d": lambda r, x: r.r * x[2],
        },
    ),
    Form(  # where D < U, D itself is the effective number of tokens
        formula="c + a Ne^-alpha + b De^-alpha, De = U (1 + tau_D (1 - exp(-(D/U - 1)/tau_D))), Ne alike from "
        "Nu = min(rho U, N) with tau_N",
        anchor="floor",
        parameters=(
            *_FLOOR_AND_TWO[:4],
            log_of("repeats", _REPEATS, 1.0),
            log_of("parameters_per_token", 0.05, 1.5),
            log_of("excess", 5.0, 1.5),
        ),
        make=lambda r, at: {"log_tau_d": r.repeats, "log_rho": r.parameters_per_token, "log_tau_n": r.excess},
        terms={"a": _effective_size, "b": _effective_tokens},
    ),
    Form(
        formula="c + a N^-alpha + b T^-beta, 1/T = 1/D + 1/(s U N^d)",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, log_of("repeats", _REPEATS, 1.0), _DRIFT),
        make=lambda r, at: {"log_s": r.repeats - r.drift * at.centre[1]},
        terms={"a": _size, "b": _harmonic},
    ),
    Form(
        formula="c + a N^-alpha + b (U^gamma D^(1 - gamma))^-beta",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, signed("gamma", 0.3, 0.3)),
        terms={"a": _size, "b": lambda r, x: -r.beta * (r.gamma * x[0] + (1.0 - r.gamma) * x[2])},
    ),
    Form(
        formula="c + a N^-alpha + b De^-beta, De = D / (1 + k max(D/U - 1, 0)^q N^d)",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, log_of("fading", 1.0 / _REPEATS, 1.5), log_of("log_q", 1.0, 0.5), _DRIFT),
        make=lambda r, at: {"log_k": r.fading - r.drift * at.centre[1]},
        terms={"a": _size, "b": _faded},
    ),
    Form(
        formula="c + a (N U)^p + b D^q + d N^r",
        anchor="floor",
        parameters=(
            FLOOR,
            *(amplitude(k, 3) for k in "abd"),
            signed("p", -0.2, 0.2),
            signed("q", -0.35, 0.3),
            signed("r", -0.35, 0.3),
        ),
        terms={
            "a": lambda r, x: r.p * (x[0] + x[1]),
            "b": lambda r, x: r.q * x[2],
            "d": lambda r, x: r.r * x[1],
        },
    ),
    Form(
        formula="c + a D^-alpha + b N^-beta + d (ln(1 + U/D))^gamma",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, signed("unit_d", 0.3, 0.5), signed("gamma", -0.5, 0.5)),
        make=_signed_novelty,
        terms={"a": lambda r, x: -r.alpha * x[2], "b": lambda r, x: -r.beta * x[1]},
        centred=lambda r, x: r.d * jnp.exp(jnp.clip(r.gamma * _novelty(x), -60.0, 60.0)),
    ),
    Form(
        formula="c + a N^-alpha + b D^-beta (1 + k U^-gamma)",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, signed("scarcity", -1.0, 1.5), exponent("gamma")),
        make=lambda r, at: {"log_k": r.scarcity + r.gamma * at.centre[0]},
        terms={"a": _size, "b": lambda r, x: _seen(r, x) + jnp.logaddexp(0.0, r.log_k - r.gamma * x[0])},
    ),
    Form(
        formula="c + a N^-alpha + b (D^(-beta q) + (k U)^(-beta q))^(1/q)",
        anchor="floor",
        parameters=(*_FLOOR_AND_TWO, log_of("log_q", 2.0, 0.8), log_of("repeats", _REPEATS, 1.0)),
        make=lambda r, at: {"log_k": r.repeats},
        terms={"a": _size, "b": _limited},
    ),
)
