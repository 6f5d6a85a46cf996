"""Scores of tasks: a sigmoid in a latent loss that is a power of a sum of powers."""

import jax
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height
from planner.laws.roles import (
    DATA,
    SIZE,
    Mean,
    Parameters,
    are_scales,
    bounded_exp,
    only,
    positive,
    power_of_sum,
    shared_parameters,
)


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    if len(axes) != 2 or only(axes, *SIZE) is None or only(axes, *DATA) is None or not are_scales(axes, (0, 1)):
        return None
    return "a score rises from chance to its ceiling as the loss falls"


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        latent = power_of_sum(theta[4:], coordinates - context.centre)
        steepness = positive(theta[2])
        log_shape = jax.nn.log_sigmoid(steepness * (latent - 1.0 - theta[3]))
        return floor + height * bounded_exp(theta[1] + log_shape - jax.nn.log_sigmoid(-steepness * theta[3]))

    def parameters(context: Context) -> list[Parameter]:
        return [
            # With no loss left a score is near its bound, unlike a loss: most of the way down from the reference.
            Parameter(name="floor", mean=-1.5 if np.isfinite(context.lower) else 1.8, sd=1.2, domain_sd=0.3),
            Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3),
            Parameter(name="log_steepness", mean=float(np.log(3.0)), sd=0.8, domain_sd=0.3),
            Parameter(name="middle", mean=0.0, sd=0.7, domain_sd=0.3),
            *shared_parameters(axes),
        ]

    return mean, parameters


LATENT_LOSS = LawFamily(
    name="latent_loss",
    formula="top - (top - E) sigmoid(-k (l - l0)), l = (sum_a A_a x_a^-alpha_a)^g",
    source="Bhagia et al. 2024 (model ladder), arXiv:2412.04403, both steps in one",
    suits=_suits,
    build=_build,
    monotone=True,
    of_scores=True,
)
