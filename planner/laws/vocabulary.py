"""Vocabulary size: it adds parameters, packs more text into a token, and has a best value."""

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import Context, LawAxis, LawFamily, Parameter, floor_and_height, floor_parameter
from planner.laws.roles import DATA, Mean, Parameters, only, power_parameters, sum_of_terms

_LOG_HALF = -0.6931


def _parts(axes: tuple[LawAxis, ...]) -> tuple[int, int, int] | None:
    size, seen, vocabulary = only(axes, "parameters"), only(axes, *DATA), only(axes, "vocabulary")
    if size is None or seen is None or vocabulary is None or len(axes) != 3 or not all(a.is_log for a in axes):
        return None
    return size, seen, vocabulary


def _suits(axes: tuple[LawAxis, ...]) -> str | None:
    if _parts(axes) is None:
        return None
    return "a larger vocabulary acts like more parameters and denser data, up to a best size"


def _build(axes: tuple[LawAxis, ...]) -> tuple[Mean, Parameters]:
    parts = _parts(axes)
    assert parts is not None
    size, seen, vocabulary = parts

    def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
        floor, height = floor_and_height(theta[0], context)
        u = coordinates - context.centre
        v = u[vocabulary]
        terms = sum_of_terms(theta[1:5], jnp.stack([u[size] + theta[5] * v, u[seen] + theta[6] * v]))
        off = v - theta[8] - theta[9] * u[size] - theta[10] * u[seen]
        return floor + height * (terms + jnp.exp(jnp.clip(theta[7], -20.0, 5.0)) * off**2)

    def parameters(context: Context) -> list[Parameter]:
        spread = max(float(np.asarray(context.spread)[vocabulary]), 0.7)
        return [
            floor_parameter(context),
            *power_parameters([axes[size], axes[seen]], _LOG_HALF),
            Parameter(name="vocabulary_as_parameters", mean=0.2, sd=0.4, domain_sd=0.1),
            Parameter(name="vocabulary_as_data", mean=0.0, sd=0.4, domain_sd=0.1),
            # Refits find less than .1 a squared nat.
            Parameter(name="log_curvature", mean=float(np.log(0.02)), sd=1.0, domain_sd=0.3),
            Parameter(name="optimum", mean=0.0, sd=1.5 * spread, domain_sd=0.3),
            # The best vocabulary grows with the .83th power of the other parameters' number, at most.
            Parameter(name="optimum_drift_parameters", mean=0.2, sd=0.25, domain_sd=0.05),
            Parameter(name="optimum_drift_tokens", mean=0.1, sd=0.2, domain_sd=0.05),
        ]

    return mean, parameters


VOCABULARY = LawFamily(
    name="vocabulary",
    formula="E + A (N V^k1)^-a + B (D V^k2)^-b + c (ln V - ln V*(N, D))^2",
    source="ScaleBench, arXiv:2604.22753, vocabulary form 6, with the best size of Tao et al. 2024, arXiv:2407.13623",
    suits=_suits,
    build=_build,
)
