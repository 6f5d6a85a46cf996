"""Loss of (P = total over active parameters, N = active parameters, 1e9): four forms.  Coordinates: p = ln P, n = ln N.

Where ln P multiplies ln N, the unit of N matters; it is the recorded one.  An interaction of about .01 a squared nat is
published for routed models (Clark et al. 2022, arXiv:2202.01169).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from benchmarks.forms.base import FLOOR, At, Form, amplitude, exponent, other_exponent, product_exponent, signed

SCENARIO = "sparsity"
AXES = (("P", True), ("N_active", True))

_INTERACTION = signed("gamma", 0.0, 0.05)


def _ratio(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[0]


def _size(r: Any, x: jax.Array) -> jax.Array:
    return -r.beta * x[1]


def _product(r: Any, x: jax.Array) -> jax.Array:
    return -r.alpha * x[0] - r.beta * x[1] + r.gamma * x[0] * x[1]


def _exponents_at_centre(r: Any, at: At) -> Mapping[str, jax.Array]:
    """Raw exponents hold at P = N = 1; priors are on those at the centre."""
    return {"alpha": r.alpha + r.gamma * at.centre[1], "beta": r.beta + r.gamma * at.centre[0]}


FORMS = (
    Form(
        formula="c + a P^-alpha N^-beta exp(gamma ln P ln N)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", sd=0.5),
            other_exponent("alpha"),
            product_exponent("beta"),
            _INTERACTION,
        ),
        terms={"a": _product},
        make=_exponents_at_centre,
    ),
    Form(
        formula="c + a P^-alpha N^-beta",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", sd=0.5), other_exponent("alpha"), product_exponent("beta")),
        terms={"a": lambda r, x: _ratio(r, x) + _size(r, x)},
    ),
    Form(
        formula="c + a P^-alpha + b N^-beta exp(gamma ln P ln N)",
        anchor="floor",
        parameters=(
            FLOOR,
            amplitude("a", 2),
            amplitude("b", 2),
            other_exponent("alpha"),
            exponent("beta"),
            _INTERACTION,
        ),
        terms={"a": _ratio, "b": lambda r, x: _size(r, x) + r.gamma * x[0] * x[1]},
    ),
    Form(
        formula="c + a P^-alpha + b N^-beta",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", 2), amplitude("b", 2), other_exponent("alpha"), exponent("beta")),
        terms={"a": _ratio, "b": _size},
    ),
)
