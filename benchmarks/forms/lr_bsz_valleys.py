"""Forms of (lr, B, D, N) with penalties around a best learning rate and batch size that move with scale.

Coordinates: u = ln lr, v = ln B, d = ln D, n = ln N.  Published: the best lr goes as N^-.71 D^.31 and the best B as
D^.57 (Li et al. 2025, arXiv:2503.04715), with N^-.34 and N^.70 found elsewhere (Porian et al. 2024, arXiv:2406.19146);
penalties are about .15 of a nat a squared nat where the excess over the floor is about one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.forms.base import FLOOR, At, Form, amplitude, exponent, log_of, other_exponent, signed
from planner.laws.base import Parameter
from planner.laws.roles import bounded_exp

_POSITION = {"u": 0, "v": 1, "d": 2, "n": 3}
_DRIFTS = {
    "lr_n": (-0.35, 0.3),
    "lr_d": (0.1, 0.25),
    "lr_v": (0.5, 0.3),
    "b_n": (0.15, 0.3),
    "b_d": (0.4, 0.3),
}
_CURVATURE = 0.1  # of the height, a squared nat
_TERMS = (FLOOR, *(amplitude(k, 4) for k in "abde"))


def _best(name: str, axes: str) -> list[Parameter]:
    """Where a best value lies: off the centre of its axis in spreads, and how it drifts with others."""
    return [signed(f"best_{name}", 0.0, 1.0), *(signed(f"{name}_{k}", *_DRIFTS[f"{name}_{k}"]) for k in axes)]


def _log_linear(name: str, axes: str, median: float = _CURVATURE) -> list[Parameter]:
    """A curvature, in heights, that drifts with other axes."""
    return [log_of(f"curvature_{name}", median, 1.0), *(signed(f"bend_{name}_{k}", 0.0, 0.1) for k in axes)]


def _constant(r: Any, at: At, at_centre: jax.Array, name: str, axes: str) -> jax.Array:
    """Constant of a linear function of the coordinates from its value at the centre."""
    for k in axes:
        at_centre = at_centre - getattr(r, f"{name}_{k}") * at.centre[_POSITION[k]]
    return at_centre


def _linear(r: Any, x: jax.Array, constant: jax.Array, name: str, axes: str) -> jax.Array:
    for k in axes:
        constant = constant + getattr(r, f"{name}_{k}") * x[_POSITION[k]]
    return constant


def _best_at(r: Any, at: At, name: str) -> jax.Array:
    axis = {"lr": 0, "w": 0, "b": 1}[name]
    return at.centre[axis] + at.spread[axis] * getattr(r, f"best_{name}")


# --- form 2 ----------------------------------------------------------------------------------------------------------


def _inverse_softplus(log_value: jax.Array) -> jax.Array:
    value = jnp.exp(jnp.clip(log_value, -30.0, 30.0))
    return value + jnp.log(-jnp.expm1(-value))


def _make_correlated(r: Any, at: At) -> Mapping[str, jax.Array]:
    made = {"rho": jnp.tanh(r.lean), "lr_0": _constant(r, at, _best_at(r, at, "lr"), "lr", "ndv")}
    made["b_0"] = _constant(r, at, _best_at(r, at, "b"), "b", "nd")
    for name in ("L", "B"):
        at_centre = _inverse_softplus(at.log_height + getattr(r, f"curvature_{name}"))
        made[f"bend_{name}_0"] = _constant(r, at, at_centre, f"bend_{name}", "ndv")
    return made


def _correlated(r: Any, x: jax.Array) -> jax.Array:
    off_lr = x[0] - _linear(r, x, r.lr_0, "lr", "ndv")
    off_b = x[1] - _linear(r, x, r.b_0, "b", "nd")
    # The root of a curvature has no slope at zero, where softplus ends far out.
    of_lr, of_b = (
        jnp.maximum(jax.nn.softplus(_linear(r, x, getattr(r, f"bend_{k}_0"), f"bend_{k}", "ndv")), 1e-30) for k in "LB"
    )
    return of_lr * off_lr**2 + of_b * off_b**2 + 2.0 * r.rho * jnp.sqrt(of_lr * of_b) * off_lr * off_b


CORRELATED_VALLEY = Form(
    formula="c + a N^-alpha + b D^-beta + d (D / N^k)^-gamma + e B^-delta + cL du^2 + cB dv^2 "
    "+ 2 rho (cL cB)^1/2 du dv, du and dv the distances from best values linear in (n, d, v) and (n, d), "
    "cL and cB softplus of linear functions of (n, d, v)",
    anchor="floor",
    parameters=(
        *_TERMS,
        exponent("alpha"),
        exponent("beta"),
        exponent("gamma"),
        signed("k", 1.0, 0.5),
        other_exponent("delta"),
        *_best("lr", "ndv"),
        *_best("b", "nd"),
        *_log_linear("L", "ndv"),
        *_log_linear("B", "ndv"),
        signed("lean", 0.0, 0.5),
    ),
    make=_make_correlated,
    terms={
        "a": lambda r, x: -r.alpha * x[3],
        "b": lambda r, x: -r.beta * x[2],
        "d": lambda r, x: -r.gamma * (x[2] - r.k * x[3]),
        "e": lambda r, x: -r.delta * x[1],
    },
    rest=_correlated,
)


# --- form 3 ----------------------------------------------------------------------------------------------------------


def _make_drifting(r: Any, at: At) -> Mapping[str, jax.Array]:
    """Both best values bend with n d; raw slopes hold at n = d = 0, priors at the centre."""
    _, _, d0, n0 = at.centre
    made: dict[str, jax.Array] = {}
    for name, axes in (("lr", "v"), ("b", "")):
        slope_n, slope_d, both = (getattr(r, f"{name}_{k}") for k in ("n", "d", "nd"))
        at_centre = _constant(r, at, _best_at(r, at, name), name, axes)
        made[f"{name}_0"] = at_centre - slope_n * n0 - slope_d * d0 + both * n0 * d0
        made[f"{name}_n"] = slope_n - both * d0
        made[f"{name}_d"] = slope_d - both * n0
    for name, axes in (("C", "ndv"), ("G", "nd")):
        at_centre = at.log_height + getattr(r, f"curvature_{name}")
        made[f"bend_{name}_0"] = _constant(r, at, at_centre, f"bend_{name}", axes)
    return made


def _drifting(r: Any, x: jax.Array) -> jax.Array:
    both = x[2] * x[3]
    off_lr = x[0] - _linear(r, x, r.lr_0, "lr", "ndv") - r.lr_nd * both
    off_b = x[1] - _linear(r, x, r.b_0, "b", "nd") - r.b_nd * both
    of_lr = bounded_exp(_linear(r, x, r.bend_C_0, "bend_C", "ndv"))
    of_b = bounded_exp(_linear(r, x, r.bend_G_0, "bend_G", "nd"))
    return of_lr * off_lr**2 + of_b * off_b**2


DRIFTING_VALLEYS = Form(
    formula="c + a N^-alpha + b D^-beta + f N^-w D^-z + C (u - u*)^2 + G (v - v*)^2, ln C and ln G linear in (n, d, v) "
    "and (n, d), u* and v* in (n, d, n d, v) and (n, d, n d)",
    anchor="floor",
    parameters=(
        FLOOR,
        *(amplitude(k, 3) for k in "abf"),
        exponent("alpha"),
        exponent("beta"),
        exponent("w"),
        exponent("z"),
        *_log_linear("C", "ndv"),
        *_log_linear("G", "nd"),
        *_best("lr", "ndv"),
        signed("lr_nd", 0.0, 0.05),
        *_best("b", "nd"),
        signed("b_nd", 0.0, 0.05),
    ),
    make=_make_drifting,
    terms={
        "a": lambda r, x: -r.alpha * x[3],
        "b": lambda r, x: -r.beta * x[2],
        "f": lambda r, x: -r.w * x[3] - r.z * x[2],
    },
    rest=_drifting,
)


# --- form 5 ----------------------------------------------------------------------------------------------------------


def _make_bowl(r: Any, at: At) -> Mapping[str, jax.Array]:
    return {
        "lr_0": _constant(r, at, _best_at(r, at, "lr"), "lr", "ndv"),
        "bend_A_0": _constant(r, at, at.log_height + r.curvature_A, "bend_A", "ndv"),
    }


def _bowl(r: Any, x: jax.Array) -> jax.Array:
    off = x[0] - _linear(r, x, r.lr_0, "lr", "ndv")
    return bounded_exp(_linear(r, x, r.bend_A_0, "bend_A", "ndv")) * off**2


BOWL_OF_EXPONENTIALS = Form(
    formula="c + a N^-alpha + b D^-beta + d B^-gamma + e exp(-delta ln(D/N)^2) + f (D/B)^-zeta + A (u - u*)^2, "
    "ln A and u* linear in (n, d, v)",
    anchor="floor",
    parameters=(
        FLOOR,
        *(amplitude(k, 5) for k in "abdef"),
        exponent("alpha"),
        exponent("beta"),
        other_exponent("gamma"),
        log_of("log_delta", 0.05, 1.0),
        exponent("zeta"),
        *_log_linear("A", "ndv"),
        *_best("lr", "ndv"),
    ),
    make=_make_bowl,
    terms={
        "a": lambda r, x: -r.alpha * x[3],
        "b": lambda r, x: -r.beta * x[2],
        "d": lambda r, x: -r.gamma * x[1],
        "e": lambda r, x: -r.delta * (x[2] - x[3]) ** 2,
        "f": lambda r, x: -r.zeta * (x[2] - x[1]),
    },
    rest=_bowl,
)


# --- form 8 ----------------------------------------------------------------------------------------------------------


def _make_skewed(r: Any, at: At) -> Mapping[str, jax.Array]:
    height = jnp.exp(at.log_height)
    # w* is the best value of u - v/2, so that it is anchored where u* is, less half a v.
    of_ratio = _best_at(r, at, "w") - 0.5 * at.centre[1]
    return {
        "lr_0": _constant(r, at, _best_at(r, at, "lr"), "lr", "ndv"),
        "w_0": _constant(r, at, of_ratio, "w", "nd"),
        "k": height * r.k_first,
        "l": height * r.k_second,
        "m": height * r.k_third,
        "kappa": jnp.tanh(r.skew_first),
        "mu": jnp.tanh(r.skew_second),
        "balance": at.centre[2] - at.centre[3] + r.shift,
    }


def _leaning(x: jax.Array, skew: jax.Array) -> jax.Array:
    return x**2 * (1.0 + skew * jnp.tanh(x))


def _skewed(r: Any, x: jax.Array) -> jax.Array:
    of_lr = _leaning(x[0] - _linear(r, x, r.lr_0, "lr", "ndv"), r.kappa)
    of_ratio = _leaning(x[0] - 0.5 * x[1] - _linear(r, x, r.w_0, "w", "nd"), r.mu)
    return r.k * of_lr + r.l * of_ratio + r.m * (x[2] - x[3] - r.balance) ** 2


SKEWED_VALLEYS = Form(
    formula="c + a N^-alpha + b D^-beta + d (D/N)^-gamma + k x^2 (1 + kappa tanh x) + l y^2 (1 + mu tanh y) "
    "+ m (ln(D/N) - balance)^2, x = u - u*(v, n, d), y = u - v/2 - w*(n, d)",
    anchor="floor",
    parameters=(
        FLOOR,
        *(amplitude(k, 3) for k in "abd"),
        exponent("alpha"),
        exponent("beta"),
        exponent("gamma"),
        log_of("log_k_first", _CURVATURE / 2.0, 1.0),
        signed("skew_first", 0.2, 0.5),
        *_best("lr", "ndv"),
        log_of("log_k_second", _CURVATURE / 2.0, 1.0),
        signed("skew_second", 0.2, 0.5),
        signed("best_w", 0.0, 1.0),
        signed("w_n", *_DRIFTS["lr_n"]),
        signed("w_d", *_DRIFTS["lr_d"]),
        log_of("log_k_third", 0.02, 1.0),
        signed("shift", 0.0, 1.5),
    ),
    make=_make_skewed,
    terms={
        "a": lambda r, x: -r.alpha * x[3],
        "b": lambda r, x: -r.beta * x[2],
        "d": lambda r, x: -r.gamma * (x[2] - x[3]),
    },
    rest=_skewed,
)
