"""Rewards over sampling compute, with a best number of rollouts per problem."""

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import Mean, Parameters, are_scales, bounded_exp, having, only, positive

_COMPUTE = ("rollouts", "problems", "updates", "compute")


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    if only(axes, "rollouts") is None or not are_scales(axes, range(len(axes))):
        return None
    if len(having(axes, *_COMPUTE)) < len(axes) or len(axes) < 2:
        return None
    return "rewards rise with sampling compute, and each number of rollouts has a middle and a ceiling of its own"


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    rollouts = only(axes, "rollouts")
    assert rollouts is not None
    # Where compute itself is an axis, or problems follow from a fixed batch, rollouts add nothing to it.
    counts = having(axes, "problems", "updates") if having(axes, "problems") else having(axes, "updates")
    factors = having(axes, "compute") or ([rollouts, *counts] if having(axes, "problems") else counts)
    problems = only(axes, "problems")

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        per_problem = u[rollouts]
        steepness = positive(theta[3])
        log_compute = u[jnp.array(factors)].sum()
        if problems is not None:
            log_compute = log_compute + theta[8] * u[problems]
        middle = theta[2] + theta[4] * per_problem
        gain = bounded_exp(theta[1] - jax.nn.log_sigmoid(steepness * theta[2]))
        off = per_problem - theta[5]
        width = jnp.where(off < 0.0, positive(theta[6]), positive(theta[7]))
        ceiling = jnp.exp(-0.5 * jnp.minimum((off / width) ** 2, 100.0))
        reached = jax.nn.sigmoid(steepness * (log_compute - middle))
        return floor + gain * height * (1.0 - ceiling * reached)

    def parameters(context: Context) -> list[Parameter]:
        spread = np.maximum(np.asarray(context.spread), 0.5)
        of_compute = float(np.sqrt((spread[np.array(factors)] ** 2).sum()))
        priors = [
            floor_parameter(context),
            Parameter(name="log_amplitude", mean=0.0, sd=0.5, domain_sd=0.3),
            Parameter(name="middle", mean=0.0, sd=1.5 * of_compute, domain_sd=0.5),
            # ScaleRL: 1.8 to 2 over the compute of one run; slower over compute spent in different ways.
            Parameter(name="log_steepness", mean=0.0, sd=0.6, domain_sd=0.2),
            # More rollouts cost updates at equal compute: the middle moves with a power of them.
            Parameter(name="middle_exponent", mean=0.5, sd=0.4, domain_sd=0.15),
            # The ceiling is highest somewhere within or near the range; published: 16 to 512 rollouts.
            Parameter(name="best_rollouts", mean=float(spread[rollouts]), sd=2.0, domain_sd=0.5),
            Parameter(name="log_width_below", mean=float(np.log(4.0)), sd=0.6, domain_sd=0.2),
            Parameter(name="log_width_above", mean=float(np.log(4.0)), sd=0.8, domain_sd=0.2),
        ]
        if problems is not None:
            priors.append(Parameter(name="problems_drift", mean=0.0, sd=0.1, domain_sd=0.05))
        return priors

    return mean, parameters


ROLLOUT_SIGMOID = LawFamily(
    name="rollout_sigmoid",
    formula="R_0 + (A q(n) - R_0) / (1 + (C_mid n^c / C)^b), C = B_p n M, q highest at one n",
    source="the curves of Cheng et al. 2026 (IsoCompute Playbook), arXiv:2603.12151, with the form of arXiv:2510.13786",
    suits=_suits,
    build=_build,
)
