"""The density of the study, written once: what every engine samples or approximates.

For domain g, run i, on the scale where laws are written:

    y_gi = f(theta_g, x_gi) + u_gi^(1/2) (delta_g(x_gi) + b_k(gi)) + u_gi e_gi + known_gi
    u_gi = exp(growth h_gi),           growth ~ N(0.75, 0.5)
    theta_g = design_g m + tau z_g,    m_0 = prior_mean + prior_sd z,    m_q = tau z_q for every level q of every factor
    tau = domain_sd exp(log_domain),   log_domain ~ N(0, 0.7)
    delta_g = Phi w_g + r,             w_g ~ N(0, s^2 I),    r_gi ~ N(0, s^2 missed_gi)
    b_k ~ N(0, c^2)                    the effect of a training run on all its checkpoints, where any run has two
    e_gi ~ N(0, sigma^2 / lambda_gi),  lambda_gi ~ Gamma(v/2, v/2)

so that the noise of a run is Student-t with v degrees of freedom, and neither its known error nor the variance that
the features miss has heavy tails.  The height h_gi of a run above the best response is given (`inference.heights`):
errors grow with it, or are of one size where no height is given.  With one domain theta = prior_mean + prior_sd z.
Padded rows carry a multiplier of their own prior and nothing else: what is left after integrating it out does not know
of them.

The weights w and the effects b are integrated out: y_g ~ N(f, U^(1/2) (s^2 Phi Phi' + c^2 Z Z') U^(1/2) + D) has no
funnel between s and w (an eighth of the steps on thirty runs), and is factored by runs or by features, whichever are
fewer.  Only counts, which are not Gaussian, keep w, b and the noise of each run explicit.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import mask

from planner.inference.data import BEND, LOG_DOMAIN_PRIOR, BoundLaw, FitData, error_scales
from planner.inference.noise import DEGREES_OF_FREEDOM

# A rate at the very edge of its range would make one surprising count infinitely surprising.
_MIN_RATE = 1e-9


class Counts(NamedTuple):
    """Success counts observed in place of a response.  G domains, n rows; padded rows hold anything finite."""

    successes: jax.Array | np.ndarray  # (G, n)
    trials: jax.Array | np.ndarray  # (G, n)


def rate_of_neg_log(eta: jax.Array) -> jax.Array:
    """Success rate p of eta = -log p."""
    return jnp.exp(-eta)


def rate_of_logit(eta: jax.Array) -> jax.Array:
    """Success rate p of eta = -logit p: laws are written so that smaller is better."""
    return jax.nn.sigmoid(-eta)


def law_parameters(law: BoundLaw, data: FitData, sites: Mapping[str, jax.Array]) -> jax.Array:
    """Parameters theta (G, p) of every domain from the standard normal sites of the model."""
    num_domains, num_shared = data.design.shape
    if num_domains == 1:
        return jnp.asarray(law.prior_mean) + law.prior_sd * sites["domain_raw"]
    distance = law.domain_sd * jnp.exp(sites["log_domain"])
    population = jnp.asarray(law.prior_mean) + law.prior_sd * sites["shared_raw"][:1]
    shared = jnp.concatenate([population, distance * sites["shared_raw"][1:num_shared]])
    return jnp.asarray(data.design) @ shared + distance * sites["domain_raw"]


def mean_of_runs(law: BoundLaw, data: FitData, theta: jax.Array) -> jax.Array:
    """The law at every run, without discrepancy, (G, n)."""
    by_row = jax.vmap(law.law.mean, (None, 0, None))
    return jax.vmap(by_row, (0, 0, None))(theta, jnp.asarray(data.coordinates), law.context)


def run_variance(data: FitData, sites: Mapping[str, jax.Array]) -> jax.Array:
    """Independent variance D of every run given its multiplier, (G, n); one where padded."""
    unit, swollen = data.context.scale**2, _swell(data, sites)
    noise_var = unit * jnp.exp(2.0 * sites["log_noise"]) * swollen**2 / sites["multiplier"]
    missed_var = unit * jnp.exp(2.0 * sites["log_discrepancy"]) * swollen ** (2.0 * BEND) * data.missed
    return jnp.where(data.is_real, noise_var + missed_var + data.known_var, 1.0)


def _swell(data: FitData, sites: Mapping[str, jax.Array]) -> jax.Array:
    """u of every run, (G, n)."""
    if "growth" not in sites:
        return jnp.ones(data.y.shape)
    return jnp.exp(sites["growth"] * jnp.asarray(data.height)[..., 0])


def common_factors(data: FitData, sites: Mapping[str, jax.Array]) -> jax.Array:
    """What runs share, (G, n, M + K): F with F F' the covariance of discrepancy and run effects in response units."""
    scale = jnp.asarray(data.context.scale) * (_swell(data, sites) ** BEND)[..., None]
    factors = [scale * jnp.exp(sites["log_discrepancy"]) * data.phi]
    if "log_curve" in sites:
        factors.append(scale * jnp.exp(sites["log_curve"]) * data.curve)
    return jnp.concatenate(factors, axis=-1)


def scaling_model(
    law: BoundLaw,
    data: FitData,
    counts: Counts | None = None,
    *,
    inverse_link: Callable[[jax.Array], jax.Array] = rate_of_neg_log,
    predictive: bool = False,
) -> None:
    """The NumPyro program of one law; see the module.

    Args:
        counts: successes and trials of every run; the rate is `inverse_link` of the response, noise of the run
            included, so that repeats may spread wider than a binomial.
        predictive: leave the response (or the successes) unobserved, for draws from the prior.
    """
    num_domains, num_rows = data.y.shape
    sites = {name: numpyro.sample(name, dist.Normal(*prior)) for name, prior in error_scales(data).items()}
    num_parameters = law.prior_mean.shape[-1]
    if num_domains > 1:
        sites["log_domain"] = _sample("log_domain", dist.Normal(*LOG_DOMAIN_PRIOR), (num_parameters,))
        sites["shared_raw"] = _sample("shared_raw", dist.Normal(0.0, 1.0), (data.design.shape[1], num_parameters))
    sites["domain_raw"] = _sample("domain_raw", dist.Normal(0.0, 1.0), (num_domains, num_parameters))
    half = 0.5 * DEGREES_OF_FREEDOM
    sites["multiplier"] = _sample("multiplier", dist.Gamma(half, half), (num_domains, num_rows))
    theta = numpyro.deterministic("theta", law_parameters(law, data, sites))
    mean = jnp.where(data.is_real, mean_of_runs(law, data, theta), 0.0)
    variance = run_variance(data, sites)
    common = common_factors(data, sites)
    if counts is None:
        response = None if predictive else jnp.where(data.is_real, data.y, 0.0)
        numpyro.sample("y", _of_runs(mean, common, variance).to_event(1), obs=response)
        # A padded row is a standard normal at its mean; what that adds to the density is taken away again.
        numpyro.factor("padding", 0.5 * jnp.log(2.0 * jnp.pi) * jnp.sum(~jnp.asarray(data.is_real)))
        return
    common_raw = _sample("common_raw", dist.Normal(0.0, 1.0), (num_domains, common.shape[-1]))
    noise = jnp.sqrt(variance) * _sample("noise_raw", dist.Normal(0.0, 1.0), (num_domains, num_rows))
    eta = mean + jnp.einsum("gnm,gm->gn", common, common_raw) + noise
    rate = jnp.clip(inverse_link(eta), _MIN_RATE, 1.0 - _MIN_RATE)
    trials = jnp.where(data.is_real, counts.trials, 1.0)
    successes = None if predictive else jnp.where(data.is_real, counts.successes, 0.0)
    with mask(mask=jnp.asarray(data.is_real)):
        numpyro.sample("successes", dist.Binomial(trials, probs=rate), obs=successes)


def _of_runs(mean: jax.Array, common: jax.Array, variance: jax.Array) -> dist.Distribution:
    """Distribution of the runs of every domain, factored in the smaller of its two forms."""
    if common.shape[-2] > 2 * common.shape[-1]:
        return dist.LowRankMultivariateNormal(mean, common, variance)
    return dist.MultivariateNormal(mean, run_covariance(common, variance))


def run_covariance(common: jax.Array, variance: jax.Array) -> jax.Array:
    """Covariance of the runs of every domain, (G, n, n)."""
    return common @ jnp.swapaxes(common, -1, -2) + variance[..., None] * jnp.eye(variance.shape[-1])


def _sample(name: str, of_one: dist.Distribution, shape: tuple[int, ...]) -> jax.Array:
    """Independent draws of one distribution as a single site."""
    return numpyro.sample(name, of_one.expand(shape).to_event(len(shape)))
