"""Powers of the scale axes, and a valley along every axis with an interior optimum."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import (
    Context,
    LawAxis,
    LawFamily,
    Parameter,
    floor_and_height,
    floor_parameter,
)
from planner.laws.roles import MAX_AXES, Mean, Parameters, power_of_sum, shared_parameters

# Exponents of the optimum in model size and in data, (mean, sd).  Learning rate: N^-.71 D^.31 (Step Law), N^-.34
# (Porian et al.), C^-.125 (DeepSeek), no drift under muP; batch size: D^.57, N^.70, C^.33 from the same sources.
_DRIFT = {
    ("learning_rate", "size"): (-0.35, 0.3),
    ("learning_rate", "data"): (0.1, 0.25),
    ("batch_size", "size"): (0.15, 0.3),
    ("batch_size", "data"): (0.4, 0.3),
}
_KIND = {
    "parameters": "size",
    "active_parameters": "size",
    "width": "size",
    "depth": "size",
    "tokens": "data",
    "examples": "data",
    "updates": "data",
}


def _split(axes: tuple[LawAxis, ...]) -> tuple[list[int], list[int]]:
    optima = [i for i, axis in enumerate(axes) if axis.has_optimum]
    return optima, [i for i in range(len(axes)) if i not in optima]


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    optima, scales = _split(axes)
    if not optima or not scales or len(axes) > MAX_AXES or not all(axis.is_log for axis in axes):
        return None
    if len({axes[i].role for i in optima}) < len(optima):  # no published law tells two rates apart
        return None
    names = ", ".join(axes[i].name for i in optima)
    return f"{names}: the best value moves with the scale of a run, and the response rises to both sides of it"


def linex(x: jax.Array, skew: jax.Array) -> jax.Array:
    """2 (exp(s x) - 1 - s x) / s^2: x^2 near 0 or for s = 0; further out a power of e^x to one side of 0, linear to the
    other (the loss of Varian 1975).
    """
    z = jnp.clip(skew * x, -40.0, 40.0)
    is_small = jnp.abs(z) < 1e-2
    safe = jnp.where(is_small, 1.0, z)
    # The exact form loses all digits near zero; the series is good to 1e-11 there.
    ratio = jnp.where(
        is_small, 1.0 + z / 3.0 + z**2 / 12.0 + z**3 / 60.0 + z**4 / 360.0, 2.0 * (jnp.expm1(safe) - safe) / safe**2
    )
    return x**2 * ratio


class _Valleys:
    """Parameters of the valleys along the optimum axes, in this order: log curvatures (O,), curvature drifts (O, S),
    optima at the centre (O,), their slopes along the scale axes (O, S), skews (O,), and slopes of the optima along
    later optimum axes (O (O - 1) / 2).
    """

    def __init__(self, axes: tuple[LawAxis, ...]) -> None:
        optima, scales = _split(axes)
        self.axes, self.optima, self.scales = axes, np.array(optima), np.array(scales)
        pairs = [(i, j) for i in range(len(optima)) for j in range(i + 1, len(optima))]
        self.rows = np.array([i for i, _ in pairs], dtype=int)
        self.columns = np.array([j for _, j in pairs], dtype=int)
        num_slopes = len(optima) * len(scales)
        self.cuts = np.cumsum([len(optima), num_slopes, len(optima), num_slopes, len(optima)])

    def penalty(self, theta: jax.Array, u: jax.Array) -> jax.Array:
        """ln(1 + sum_o c_o(x) linex(u_o - u*_o(x))) for one run, u (A,) from the centre."""
        log_curvature, drift, middle, slopes, skew, cross = jnp.split(theta, self.cuts)
        shape = (len(self.optima), len(self.scales))
        at, scale = u[self.optima], u[self.scales]
        best = middle + slopes.reshape(shape) @ scale
        best = best.at[self.rows].add(cross * at[self.columns])
        curvature = jnp.exp(jnp.clip(log_curvature + drift.reshape(shape) @ scale, -20.0, 5.0))
        # The logarithm leaves the bottom as it is and bounds what a hopeless setting costs: few runs of a sweep are
        # near the bottom, and a plain square through the others sets the curvature from the wrong end.
        return jnp.log1p(curvature @ linex(at - best, skew))

    def parameters(self, context: Context) -> list[Parameter]:
        spread = np.maximum(np.asarray(context.spread), 0.3)
        optima = [self.axes[i] for i in self.optima]
        pairs = [(o, s) for o in self.optima for s in self.scales]
        named = [(f"{self.axes[o].name}_{self.axes[s].name}", o, s) for o, s in pairs]
        result = [
            # .14 - .16 a squared nat in the refits of Step Law, where the height is about one.
            Parameter(name=f"log_curvature_{a.name}", mean=float(np.log(0.1)), sd=1.0, domain_sd=0.3)
            for a in optima
        ]
        for name, _, s in named:
            sd = min(0.3 / float(spread[s]), 0.2)
            result.append(Parameter(name=f"curvature_drift_{name}", mean=0.0, sd=sd, domain_sd=sd / 4))
        for o, axis in zip(self.optima, optima, strict=True):
            sd = max(float(spread[o]), 0.7)
            result.append(Parameter(name=f"optimum_{axis.name}", mean=0.0, sd=sd, domain_sd=0.3))
        for name, o, s in named:
            kind = _KIND.get(self.axes[s].role or "", "")
            mean, sd = _DRIFT.get((self.axes[o].role or "", kind), (0.0, 0.3))
            result.append(Parameter(name=f"optimum_drift_{name}", mean=mean, sd=sd, domain_sd=0.08))
        for axis in optima:
            # Too high a learning rate diverges, too low a one only loses time.
            mean = 0.3 if axis.role == "learning_rate" else 0.0
            result.append(Parameter(name=f"skew_{axis.name}", mean=mean, sd=0.4, domain_sd=0.1))
        for i, j in zip(self.rows, self.columns, strict=True):
            # The best learning rate grows with the batch: by its root with adaptive steps, in proportion without.
            grows = (optima[i].role, optima[j].role) in {
                ("learning_rate", "batch_size"),
                ("batch_size", "learning_rate"),
            }
            name = f"optimum_drift_{optima[i].name}_{optima[j].name}"
            result.append(Parameter(name=name, mean=0.5 if grows else 0.0, sd=0.3, domain_sd=0.08))
        return result


def _build(axes: tuple[LawAxis, ...], combine: Callable[[jax.Array, jax.Array], jax.Array]) -> tuple[Mean, Parameters]:
    """`combine(term of the scale axes, penalty of the optimum axes)` is the response above the floor, in heights."""
    valleys = _Valleys(axes)
    scale_axes = [axes[i] for i in valleys.scales]
    cut = 2 + 2 * len(scale_axes)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        return floor + height * combine(power_of_sum(theta[1:cut], u[valleys.scales]), valleys.penalty(theta[cut:], u))

    def parameters(context: Context) -> list[Parameter]:
        return [floor_parameter(context), *shared_parameters(scale_axes), *valleys.parameters(context)]

    return mean, parameters


VALLEY = LawFamily(
    name="valley",
    formula="E + (sum_a A_a x_a^-alpha_a)^g + H ln(1 + v), v = sum_o c_o(x) q_o(ln x_o - ln x_o*(x)), "
    "q_o(u) = u^2 near 0, ln c_o and ln x_o* linear in the other log axes",
    source="Li et al. 2025 (Step Law), arXiv:2503.04715; its refit in ScaleBench, arXiv:2604.22753, lr&bsz form 3",
    suits=_suits,
    build=lambda axes: _build(axes, lambda term, penalty: term + penalty),
)
VALLEY_PRODUCT = LawFamily(
    name="valley_product",
    formula="E + (sum_a A_a x_a^-alpha_a)^g (1 + ln(1 + v)), v as in `valley`",
    source="ScaleBench, arXiv:2604.22753, lr&bsz form 6, with a valley that opens upwards and is bounded",
    suits=_suits,
    build=lambda axes: _build(axes, lambda term, penalty: term * (1.0 + penalty)),
)
