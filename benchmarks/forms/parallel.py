"""Loss of (N parameters, S parallel streams): ten forms.  Coordinates: n = ln N, s = ln S.

Published gains of a stream: k about .3 to .4 where it multiplies parameters (Chen et al. 2025, arXiv:2505.10475).
Where S acts on the whole loss, its effect is a few hundredths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, At, Form, amplitude, exponent, log_of, other_exponent, signed

SCENARIO = "parallel"
AXES = (("num_params", True), ("parallel_size", True))

_OF_WHOLE = log_of("log_beta", 0.03, 1.2)


def _size(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[0]


def _streams(r: Any, x: jax.Array) -> jax.Array:
    return -r.beta * x[1]


def _gain(r: Any, x: jax.Array) -> jax.Array:
    return jnp.log1p(r.k * x[1])


def _shared_amplitude(r: Any, at: At) -> Mapping[str, jax.Array]:
    """a from the term of N at the centre, in spreads; the larger it is, the smaller the exponent of S must be."""
    n0, s0 = at.centre
    ratio = jnp.exp(r.size + r.alpha * n0)
    a, beta = at.scale * ratio, r.effect / (1.0 + ratio)
    at_centre = {"size_0": at.scale * jnp.exp(r.size), "streams_0": a * jnp.exp(-beta * s0)}
    return {"a": a, "beta": beta, "n0": n0, "s0": s0, **at_centre}


def _shared(r: Any, x: jax.Array) -> jax.Array:
    """The terms less what they are at the centre: each may be as large as 1e9, and only their changes matter."""
    of_size = r.size_0 * jnp.expm1(jnp.clip(-r.alpha * (x[0] - r.n0), -60.0, 60.0))
    return of_size + r.streams_0 * jnp.expm1(-r.beta * (x[1] - r.s0))


FORMS = (
    Form(
        formula="c + a N^-alpha + b S^-beta + d N^-alpha S^-beta",
        anchor="floor",
        parameters=(
            FLOOR,
            *(amplitude(k, 3) for k in "abd"),
            exponent("alpha"),
            other_exponent("beta"),
        ),
        terms={"a": _size, "b": _streams, "d": lambda r, x: _size(r, x) + _streams(r, x)},
    ),
    Form(
        formula="c + a N^-alpha + b S^-beta",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", 2), amplitude("b", 2), exponent("alpha"), other_exponent("beta")),
        terms={"a": _size, "b": _streams},
    ),
    Form(
        formula="c + a N^-alpha + b / (1 + S)",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", 2), amplitude("b", 2), exponent("alpha")),
        terms={"a": _size, "b": lambda r, x: -jnp.logaddexp(0.0, x[1])},
    ),
    Form(
        formula="c + a N^-alpha + b S^-1/2",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", 2), amplitude("b", 2), exponent("alpha")),
        terms={"a": _size, "b": lambda r, x: -0.5 * x[1]},
    ),
    Form(  # raw a is A^alpha
        formula="c + (A / (N (1 + k ln S)))^alpha",
        anchor="floor",
        parameters=(FLOOR, amplitude("a"), exponent("alpha"), log_of("log_k", 0.3, 1.0)),
        terms={"a": lambda r, x: -r.alpha * (x[0] + _gain(r, x))},
    ),
    Form(  # the constant takes up whatever the shared amplitude leaves: published c = c - size_0 - streams_0
        formula="c + a (N^-alpha + S^-beta)",
        anchor="free",
        parameters=(
            signed("c", 0.0, 1.0),
            signed("size", -0.7, 1.0),
            exponent("alpha"),
            log_of("log_effect", 0.25, 1.0),
        ),
        make=_shared_amplitude,
        rest=_shared,
    ),
    Form(
        formula="c + a N^-alpha / (1 + k ln S)",
        anchor="floor",
        parameters=(FLOOR, amplitude("a"), exponent("alpha"), log_of("log_k", 0.1, 1.2)),
        terms={"a": lambda r, x: _size(r, x) - _gain(r, x)},
    ),
    Form(
        formula="(c + a N^-alpha) / (1 + k ln S)",
        anchor="share",
        parameters=(FLOOR, amplitude("a"), exponent("alpha"), log_of("log_k", 0.03, 1.2)),
        terms={"c": lambda r, x: -_gain(r, x), "a": lambda r, x: _size(r, x) - _gain(r, x)},
    ),
    Form(
        formula="a N^-alpha S^-beta",
        anchor="none",
        # Without a floor exponents are those of Kaplan et al. 2020, arXiv:2001.08361: .05 to .1.
        parameters=(amplitude("a", sd=0.4), log_of("log_alpha", 0.08, 0.8), _OF_WHOLE),
        terms={"a": lambda r, x: _size(r, x) + _streams(r, x)},
    ),
    Form(
        formula="(c + a N^-alpha) S^-beta",
        anchor="share",
        parameters=(FLOOR, amplitude("a"), exponent("alpha"), _OF_WHOLE),
        terms={"c": _streams, "a": lambda r, x: _size(r, x) + _streams(r, x)},
    ),
)
