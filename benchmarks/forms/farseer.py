"""Loss of (N parameters, D tokens): the form of Li et al. 2025 (Farseer), arXiv:2506.10972.  n = ln N, d = ln D.

Floor, amplitude and exponent of the data term each follow exp(g N^h + k).  Their priors are on the value at the
centre, the slope in n there, and the power h, none of them taken from the fit of the recorded runs; the amplitude's is
on that of the whole data term at the middle D, whose slope has a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, At, Form, amplitude, log_of, signed

SCENARIO = "farseer"
AXES = (("N", True), ("D", True))

# Powers nearer to zero are a logarithm to nine digits or better, and would divide by nothing.
_LEAST_POWER = 1e-4


def _away_from_zero(power: jax.Array) -> jax.Array:
    return jnp.where(jnp.abs(power) < _LEAST_POWER, _LEAST_POWER, power)


def _grown(power: jax.Array, log_size: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(power * log_size, -60.0, 60.0))


def _raw(r: Any, at: At) -> Mapping[str, jax.Array]:
    n0, d0 = at.centre
    q, b, a = _away_from_zero(r.q), _away_from_zero(r.b), _away_from_zero(r.a)
    A = r.exponent_slope / (a * _grown(a, n0))
    E = jnp.log(r.exponent) - r.exponent_slope / a
    # The data term at D0 is exp(B N^b + Q - x(N) d0): its slope takes up that of the exponent x.
    slope = r.data_slope + r.exponent * r.exponent_slope * d0
    return {
        "q": q,
        "b": b,
        "a": a,
        "A": A,
        "E": E,
        "s": r.floor_slope / (q * _grown(q, n0)),
        "B": slope / (b * _grown(b, n0)),
    }


def _floor(r: Any, x: jax.Array) -> jax.Array:
    return r.s * _grown(r.q, x[0])


def _data(r: Any, x: jax.Array) -> jax.Array:
    exponent = jnp.exp(jnp.clip(r.A * _grown(r.a, x[0]) + r.E, -20.0, 5.0))
    return r.B * _grown(r.b, x[0]) - exponent * x[1]


FORMS = (
    Form(  # raw log_c is S and log_data is Q
        formula="exp(s N^q + S) + exp(B N^b + Q) D^(-exp(A N^a + E))",
        anchor="share",
        parameters=(
            FLOOR,
            amplitude("data", sd=0.7),
            log_of("log_exponent", 0.35, 0.6),
            signed("floor_slope", -0.05, 0.1),
            signed("data_slope", -0.1, 0.2),
            signed("exponent_slope", 0.0, 0.1),
            signed("q", 0.0, 0.2),
            signed("b", 0.0, 0.2),
            signed("a", 0.0, 0.2),
        ),
        make=_raw,
        terms={"c": _floor, "data": _data},
    ),
)
