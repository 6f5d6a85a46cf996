"""Loss of (lr learning rate, B batch size, D tokens, N parameters): the ten forms.

Coordinates: u = ln lr, v = ln B, d = ln D, n = ln N.  Q is the full quadratic in them, 15 coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.forms.base import FLOOR, At, Form, amplitude, log_of, signed
from benchmarks.forms.lr_bsz_valleys import (
    BOWL_OF_EXPONENTIALS,
    CORRELATED_VALLEY,
    DRIFTING_VALLEYS,
    SKEWED_VALLEYS,
)
from planner.laws.base import Parameter

SCENARIO = "lr_bsz"
AXES = (("lr", True), ("bsz", True), ("data_size", True), ("non_embedding_param_size", True))

_LETTERS = "uvdn"
_OPTIMA = "uv"  # axes with a best value inside
_PAIRS = tuple((a, b) for i, a in enumerate(_LETTERS) for b in _LETTERS[i:])
_FORM_6 = tuple(pair for pair in _PAIRS if pair not in (("d", "d"), ("n", "n")))
_LOG_10 = float(np.log(10.0))


def _slope(axis: str) -> Parameter:
    return signed(f"slope_{axis}", 0.0, 0.7) if axis in _OPTIMA else signed(f"slope_{axis}", -0.5, 0.5)


def _bend(a: str, b: str) -> Parameter:
    if a == b:
        return signed(f"bend_{a}{b}", *((0.2, 0.25) if a in _OPTIMA else (0.05, 0.15)))
    return signed(f"bend_{a}{b}", 0.0, 0.2)


def _quadratic_priors(pairs: tuple[tuple[str, str], ...] = _PAIRS, suffix: str = "") -> list[Parameter]:
    """Slopes at the centre and curvatures, of a response in spreads against axes in spreads."""
    priors = [*map(_slope, _LETTERS), *(_bend(a, b) for a, b in pairs)]
    return [Parameter(name=p.name + suffix, mean=p.mean, sd=p.sd, domain_sd=p.domain_sd) for p in priors]


def _polynomial(r: Any, at: At, unit: jax.Array | float, suffix: str = "") -> tuple[jax.Array, jax.Array]:
    """Raw linear coefficients (4,) and symmetric square ones (4, 4) from those about the centre."""
    slope = jnp.stack([getattr(r, f"slope_{a}{suffix}") for a in _LETTERS]) / at.spread
    zero = jnp.zeros(())
    rows = [
        [
            (1.0 if i == j else 0.5) * getattr(r, f"bend_{''.join(sorted((a, b), key=_LETTERS.index))}{suffix}", zero)
            for j, b in enumerate(_LETTERS)
        ]
        for i, a in enumerate(_LETTERS)
    ]
    square = jnp.stack([jnp.stack(row) for row in rows]) / (at.spread[:, None] * at.spread)
    return unit * (slope - 2.0 * square @ at.centre), unit * square


def _relative(at: At) -> jax.Array:
    """Spread of the log response."""
    return at.scale / at.level


def _make(r: Any, at: At) -> Mapping[str, jax.Array]:
    linear, square = _polynomial(r, at, at.scale)
    return {"linear": linear, "square": square}


def _make_log(r: Any, at: At) -> Mapping[str, jax.Array]:
    linear, square = _polynomial(r, at, _relative(at))
    return {"linear": linear, "square": square}


def _quadratic(r: Any, x: jax.Array) -> jax.Array:
    """Q but for its constant."""
    return r.linear @ x + x @ r.square @ x


# Half of the excess over the floor, or so, is at stake over the runs.
_OF_EXCESS = 0.5


def _make_excess(r: Any, at: At) -> Mapping[str, jax.Array]:
    linear, square = _polynomial(r, at, _OF_EXCESS)
    return {"linear": linear, "square": square}


def _make_two(r: Any, at: At) -> Mapping[str, jax.Array]:
    names = {}
    for suffix in ("_1", "_2"):
        names[f"linear{suffix}"], names[f"square{suffix}"] = _polynomial(r, at, _OF_EXCESS, suffix)
    return names


def _make_decimal(r: Any, at: At) -> Mapping[str, jax.Array]:
    linear, square = _polynomial(r, at, at.scale)
    return {"linear": linear * _LOG_10, "square": square * _LOG_10**2}


def _decimal(r: Any, x: jax.Array) -> jax.Array:
    return _quadratic(r, x / _LOG_10)


def _inverse(log_x: jax.Array, power: float = 1.0) -> jax.Array:
    return jnp.exp(-power * jnp.clip(log_x, -60.0, 60.0))


def _make_form_4(r: Any, at: At) -> Mapping[str, jax.Array]:
    """Coefficients of inverse powers from their part in the log response at the centre."""
    unit, (_, v0, d0, n0) = _relative(at), at.centre
    inverse = {
        "k1": r.part_1 / _inverse(v0),
        "k2": r.part_2 / _inverse(v0, 2.0),
        "k3": r.part_3 / _inverse(d0),
        "k4": r.part_4 / _inverse(n0),
        "k": r.part_0,
    }
    return {**_make_log(r, at), **{name: unit * value for name, value in inverse.items()}}


def _form_4(r: Any, x: jax.Array) -> jax.Array:
    _, v, d, n = x
    further = r.k1 * _inverse(v) + r.k2 * _inverse(v, 2.0) + r.k3 * _inverse(d) + r.k4 * _inverse(n)
    return _quadratic(r, x) + r.k * (d - n) + further


def _make_form_10(r: Any, at: At) -> Mapping[str, jax.Array]:
    _, v0, d0, n0 = at.centre
    inverse = {"a": r.a / _inverse(d0, 0.5), "b": r.b / _inverse(n0, 0.5), "d": r.d / _inverse(v0)}
    return {**_make(r, at), **inverse}


def _form_10(r: Any, x: jax.Array) -> jax.Array:
    _, v, d, n = x
    return _quadratic(r, x) + r.a * _inverse(d, 0.5) + r.b * _inverse(n, 0.5) + r.d * _inverse(v)


def _two_quadratics() -> list[Parameter]:
    """The first exponential is about scale, the second about the settings, so that their labels rarely switch."""
    first = _quadratic_priors(suffix="_1")
    second = _quadratic_priors(suffix="_2")
    flat = {"slope_u_1": 0.3, "slope_v_1": 0.3, "bend_uu_1": 0.1, "bend_vv_1": 0.1}
    first = [signed(p.name, 0.0, flat[p.name]) if p.name in flat else p for p in first]
    steep = {"bend_uu_2": (0.5, 0.3), "bend_vv_2": (0.4, 0.3), "slope_d_2": (0.0, 0.4), "slope_n_2": (0.0, 0.4)}
    second = [signed(p.name, *steep[p.name]) if p.name in steep else p for p in second]
    return [amplitude("a", sd=0.7), log_of("b", 0.2, 1.0), *first, *second]


FORMS = (
    Form(  # raw log_a is the constant of Q
        formula="exp(Q(ln lr, ln B, ln D, ln N))",
        anchor="none",
        parameters=(amplitude("a", sd=0.3), *_quadratic_priors()),
        make=_make_log,
        terms={"a": _quadratic},
    ),
    CORRELATED_VALLEY,
    DRIFTING_VALLEYS,
    Form(
        formula="exp(Q + k ln(D/N) + k1/B + k2/B^2 + k3/D + k4/N)",
        anchor="none",
        parameters=(
            amplitude("a", sd=0.3),
            *_quadratic_priors(),
            signed("part_0", 0.0, 0.3),
            signed("part_1", 0.0, 0.1),
            signed("part_2", 0.0, 0.02),
            signed("part_3", 0.0, 0.1),
            signed("part_4", 0.0, 0.1),
        ),
        make=_make_form_4,
        terms={"a": _form_4},
    ),
    BOWL_OF_EXPONENTIALS,
    Form(  # raw log_a is k0
        formula="c + exp(k0 + linear + ln D ln N + (ln lr)^2 + (ln B)^2 + products of ln lr and ln B with all)",
        anchor="floor",
        parameters=(FLOOR, amplitude("a", sd=0.5), *_quadratic_priors(_FORM_6)),
        make=_make_excess,
        terms={"a": _quadratic},
    ),
    Form(  # raw log_a and log_b are the constants of Q1 and Q2
        formula="c + exp(Q1) + exp(Q2)",
        anchor="floor",
        parameters=(FLOOR, *_two_quadratics()),
        make=_make_two,
        terms={
            "a": lambda r, x: r.linear_1 @ x + x @ r.square_1 @ x,
            "b": lambda r, x: r.linear_2 @ x + x @ r.square_2 @ x,
        },
    ),
    SKEWED_VALLEYS,
    Form(
        formula="Q in logarithms to base 10",
        anchor="free",
        parameters=(signed("c", 0.0, 1.0), *_quadratic_priors()),
        make=_make_decimal,
        centred=_decimal,
    ),
    Form(
        formula="Q + a D^-1/2 + b N^-1/2 + d/B",
        anchor="free",
        parameters=(
            signed("c", 0.0, 1.0),
            *_quadratic_priors(),
            signed("unit_a", 0.0, 0.5),
            signed("unit_b", 0.0, 0.5),
            signed("unit_d", 0.0, 0.2),
        ),
        make=_make_form_10,
        centred=_form_10,
    ),
)
