"""Curves, mostly of one axis: a broken power, a fall from one plateau to another, and a curve that turns."""

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import MAX_AXES, Mean, Parameters, are_scales, bounded_exp, having, positive

_AMPLITUDE = Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3)


def _is_one_scale(axes: tuple[LawAxis, ...]) -> bool:
    return len(axes) == 1 and axes[0].is_log and not axes[0].has_optimum


def _spread(context: Context) -> float:
    return max(float(np.asarray(context.spread)[0]), 0.5)


# --- broken power ----------------------------------------------------------------------------------------------------


def _build_broken(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = (coordinates - context.centre)[0]
        early, late, width = positive(theta[2]), positive(theta[3]), positive(theta[5])
        bend = width * (jax.nn.softplus((u - theta[4]) / width) - jax.nn.softplus(-theta[4] / width))
        return floor + height * bounded_exp(theta[1] - early * u - (late - early) * bend)

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            _AMPLITUDE,
            # Flat or steep before the break, an ordinary power after it.
            Parameter(name="log_exponent_before", mean=float(np.log(0.2)), sd=1.0, domain_sd=0.3),
            Parameter(name="log_exponent_after", mean=float(np.log(0.35)), sd=0.7, domain_sd=0.25),
            Parameter(name="break", mean=0.0, sd=1.5 * _spread(context), domain_sd=0.5),
            Parameter(name="log_width", mean=float(np.log(0.4)), sd=0.7, domain_sd=0.2),
        ]

    return mean, parameters


BROKEN_POWER = LawFamily(
    name="broken_power",
    formula="E + A x^-c0 (1 + (x/d)^(1/f))^(-(c1 - c0) f), exponents c0 before and c1 after the break at d",
    source="Caballero et al. 2022, arXiv:2210.14891, one break and no rise",
    suits=lambda axes: "the exponent may change once along the axis" if _is_one_scale(axes) else None,
    build=_build_broken,
    monotone=True,
)

# --- from one plateau to another -------------------------------------------------------------------------------------

_REINFORCEMENT = (
    "environments",
    "worlds",
    "structures",
    "tasks",
    "trajectories",
    "rollouts",
    "problems",
    "updates",
    "tools",
    "databases",
)


def _falling(log_amplitude: jax.Array, progress: jax.Array, middle: jax.Array) -> jax.Array:
    """1 / (1 + exp(progress - middle)), scaled to exp(log_amplitude) at progress 0: far left of its middle a plateau,
    far right a power law.
    """
    log_shape = jax.nn.log_sigmoid(middle - progress) - jax.nn.log_sigmoid(middle)
    return bounded_exp(log_amplitude + log_shape)


def _suits_sigmoid(axes: tuple[LawAxis, ...]) -> str | None:
    if _is_one_scale(axes) and axes[0].role != "examples":
        return "the response falls from one plateau to another, as rewards and scores do"
    if 1 < len(axes) <= MAX_AXES and are_scales(axes, range(len(axes))) and having(axes, *_REINFORCEMENT):
        return "rewards rise from where training starts to a ceiling"
    return None


def _build_sigmoid(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        slopes = positive(theta[3:])
        # The middle is where all axes have moved by so many nats, so that its prior does not move with the slopes.
        return floor + height * _falling(theta[1], slopes @ (coordinates - context.centre), slopes.sum() * theta[2])

    def parameters(context: Context) -> list[Parameter]:
        # Slopes of about 2 in reinforcement learning (one axis), of .2 to 1 in pretraining.
        usual = -float(np.log(len(axes)))
        spread = float(np.maximum(np.asarray(context.spread), 0.5).mean())
        return [
            floor_parameter(context),
            _AMPLITUDE,
            Parameter(name="middle", mean=0.0, sd=1.5 * spread, domain_sd=0.5),
            *(Parameter(name=f"log_slope_{a.name}", mean=usual, sd=0.8, domain_sd=0.25) for a in axes),
        ]

    return mean, parameters


def _build_rectified(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        slope = positive(theta[2])
        return floor + height * _falling(theta[1], slope * (coordinates - context.centre)[0], slope * theta[3])

    def parameters(context: Context) -> list[Parameter]:
        spread = _spread(context)
        return [
            floor_parameter(context),
            _AMPLITUDE,
            Parameter(name="log_exponent", mean=float(np.log(0.6)), sd=0.6, domain_sd=0.25),  # published: .2 to 1.5
            Parameter(name="log_known", mean=-0.5 * spread, sd=1.5 * spread, domain_sd=0.5),
        ]

    return mean, parameters


SIGMOID = LawFamily(
    name="sigmoid",
    formula="top - (top - E) / (1 + x_mid / prod_a x_a^b_a)",
    source="Khatri et al. 2025 (ScaleRL), arXiv:2510.13786",
    suits=_suits_sigmoid,
    build=_build_sigmoid,
    monotone=True,
    unimodal=True,
)
RECTIFIED = LawFamily(
    name="rectified",
    formula="E + B / (D_l + D^b), D_l = D_0^b what pretraining was worth",
    # As a function of ln D this is the sigmoid; the priors differ.
    source="Lin et al. 2024, arXiv:2402.02314",
    suits=lambda axes: (
        "few examples add little to what pretraining knew"
        if _is_one_scale(axes) and axes[0].role == "examples"
        else None
    ),
    build=_build_rectified,
    monotone=True,
)

# --- curves that turn ------------------------------------------------------------------------------------------------


def _build_u_shape(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = (coordinates - context.centre)[0]
        bump = jnp.exp(-0.5 * jnp.minimum(((u - theta[5]) / positive(theta[6])) ** 2, 200.0))
        slope = positive(theta[2])
        return floor + height * _falling(theta[1], slope * u, slope * theta[3]) + context.scale * theta[4] * bump

    def parameters(context: Context) -> list[Parameter]:
        spread = _spread(context)
        return [
            floor_parameter(context),
            _AMPLITUDE,
            Parameter(name="log_slope", mean=0.0, sd=0.8, domain_sd=0.25),
            Parameter(name="middle", mean=spread, sd=1.5 * spread, domain_sd=0.5),
            # Up for hard questions, down for easy ones: of either sign, and free to differ between domains.
            Parameter(name="bump", mean=0.0, sd=0.8, domain_sd=0.5),
            Parameter(name="bump_at", mean=0.0, sd=1.2 * spread, domain_sd=0.5),
            Parameter(name="log_bump_width", mean=float(np.log(0.7 * spread)), sd=0.5, domain_sd=0.2),
        ]

    return mean, parameters


U_SHAPE = LawFamily(
    name="u_shape",
    formula="top - (top - E) / (1 + (x_mid/x)^b) + g exp(-(ln x - m)^2 / (2 w^2)), g of either sign",
    source="the (inverted) U and steady fall of Wu and Lo 2024, arXiv:2410.01692, in one form",
    suits=lambda axes: "the response may turn before it falls" if _is_one_scale(axes) else None,
    build=_build_u_shape,
)
