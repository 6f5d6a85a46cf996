"""Data of agents: environments that gate tasks, and settings that scale every other term."""

import math

import jax
import jax.numpy as jnp

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import (
    MAX_AXES,
    Mean,
    Parameters,
    are_scales,
    bounded_exp,
    having,
    only,
    positive,
    power_parameters,
    rest,
    sum_of_terms,
)

_WORLDS = ("environments", "worlds")
# How rich the data are, not how much of it there is.
_MULTIPLIERS = ("reward_density", "complexity")


def _share(num_terms: int) -> float:
    return -math.log(num_terms)


def _suits_gate(axes: tuple[LawAxis, ...]) -> str | None:
    if only(axes, *_WORLDS) is None or only(axes, "tasks") is None or len(axes) > MAX_AXES:
        return None
    if not are_scales(axes, range(len(axes))):
        return None
    return "tasks may matter only as far as there are environments for them"


def _build_gate(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    world, task = only(axes, *_WORLDS), only(axes, "tasks")
    assert world is not None and task is not None
    num_axes = len(axes)

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        held = theta[-3] + positive(theta[-2]) * u[world]
        order = positive(theta[-1])
        used = -jax.nn.logsumexp(-order * jnp.stack([u[task], held])) / order
        return floor + height * sum_of_terms(theta[1 : 1 + 2 * num_axes], u.at[task].set(used))

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            *power_parameters(axes, _share(num_axes)),
            # The tasks that the environments at the middle have use for, over the middle of tasks; as many an
            # environment as a rule; how sharply more stop to count.
            Parameter(name="log_gate", mean=0.5, sd=1.5, domain_sd=0.3),
            Parameter(name="log_gate_exponent", mean=0.0, sd=0.4, domain_sd=0.1),
            Parameter(name="log_gate_order", mean=0.4, sd=0.7, domain_sd=0.2),
        ]

    return mean, parameters


def _suits_scaled(axes: tuple[LawAxis, ...]) -> str | None:
    scales = having(axes, *_MULTIPLIERS)
    if not scales or len(scales) == len(axes) or len(axes) > MAX_AXES or not are_scales(axes, range(len(axes))):
        return None
    return f"{axes[scales[0]].name} may scale the terms of all other axes"


def _build_scaled(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    scales = having(axes, *_MULTIPLIERS)
    others = rest(axes, *scales)
    terms = [axes[i] for i in others]

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        gain = bounded_exp(-(theta[1 : 1 + len(scales)] @ u[jnp.array(scales)]))
        return floor + height * gain * sum_of_terms(theta[1 + len(scales) :], u[jnp.array(others)])

    def parameters(context: Context) -> list[Parameter]:
        return [
            floor_parameter(context),
            # Of either sign: harder data may teach less at first.
            *(Parameter(name=f"power_{axes[i].name}", mean=0.1, sd=0.25, domain_sd=0.05) for i in scales),
            *power_parameters(terms, _share(len(terms))),
        ]

    return mean, parameters


GATED_POWERS = LawFamily(
    name="gated_powers",
    formula="E + sum_a A_a x_a^-alpha_a, tasks T replaced by (T^-p + (k D_E^d)^-p)^(-1/p)",
    source="He et al. 2026, figure 3: environments are a prerequisite for tasks to matter; the form is ours",
    suits=_suits_gate,
    build=_build_gate,
    monotone=True,
)
SCALED_POWERS = LawFamily(
    name="scaled_powers",
    formula="E + prod_c c^-g_c sum_a A_a x_a^-alpha_a, c reward density or complexity",
    source="the control variable of He et al. 2026 and the complexity of Szot et al. 2026 (SynthAPI); the form is ours",
    suits=_suits_scaled,
    build=_build_scaled,
)
