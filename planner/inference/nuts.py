"""The reference engine: NUTS on the NumPyro program, exact up to Monte Carlo error and slow.

The fast engine is tested against this one.  A mode far from the starts may still be missed: chains start at the basins
given, one after the other.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy

from planner import model
from planner.errors import UnreliableFit
from planner.inference.data import TRACES, BoundLaw, FitData, error_scales
from planner.inference.draws import LawDraws
from planner.inference.laplace import LawFit
from planner.laws.base import Law

# At the default of .8 steps diverge where a run changes between outlier and evidence of discrepancy.
_TARGET_ACCEPTANCE = 0.95
_MAX_TREE_DEPTH = 8
_WATCHED = ("log_noise", "log_discrepancy", "growth", "log_curve", "log_domain", "theta")
_MIN_CHAIN = 500  # draws a chain
_JITTER = 0.3  # of the starts, in prior standard deviations

_Sites = dict[str, jax.Array]


class FitInfo(NamedTuple):
    """How far a sampled posterior can be trusted."""

    num_divergent: int
    num_draws: int
    accept_prob: float  # mean over draws
    max_r_hat: float  # split R-hat, worst of the law's parameters and of the scales
    min_effective: float  # smallest effective number of draws of the same
    num_steps: float  # mean gradient evaluations a draw


def require_reliable(info: FitInfo, *, max_r_hat: float = 1.05, max_divergent: float = 0.03) -> None:
    """Raises `UnreliableFit` before a bad posterior can spend budget."""
    if not np.isfinite(info.max_r_hat) or info.max_r_hat > max_r_hat:
        raise UnreliableFit(
            f"the chains disagree: R-hat is {info.max_r_hat:.3f}, at most {max_r_hat:g} is allowed"
            f" (fewest effective draws {info.min_effective:.0f}); raise num_warmup and num_draws, or use fewer laws"
        )
    # A few come from runs that change between outlier and evidence of discrepancy; they did not move quantiles.
    if info.num_divergent > max_divergent * info.num_draws:
        raise UnreliableFit(
            f"{info.num_divergent} of {info.num_draws} transitions diverged, at most {max_divergent:.0%} are allowed"
            f" (mean acceptance {info.accept_prob:.2f}); raise num_warmup or tighten the priors"
        )


def fit_nuts(
    key: jax.Array,
    law: BoundLaw,
    data: FitData,
    *,
    num_warmup: int = 500,
    num_draws: int = 500,
    num_chains: int = 4,
    starts: np.ndarray | None = None,
) -> tuple[LawDraws, FitInfo]:
    """Posterior draws of one law, `num_draws` from each chain, chain after chain, and how far to trust them.

    Args:
        starts: law parameters (B, G, p) of known modes, such as `LawFit.basins`; chain c starts near number c mod B.

    Never raises for a bad posterior: see `require_reliable`.
    """
    if starts is None:
        starts = np.broadcast_to(law.prior_mean, (1, len(data.y), law.num_parameters))
    chosen = starts[np.arange(num_chains) % len(starts)]
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        sampled = _run(
            key, law.law, law.context, law.prior_mean, law.prior_sd, law.domain_sd, data, chosen,
            num_warmup=num_warmup, num_draws=num_draws,
        )  # fmt: skip
        sites, theta, weights, extra = jax.tree.map(np.asarray, sampled)
    info = _diagnose({**sites, "theta": theta}, extra)
    scale = data.context.scale
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in sites.items()}
    draws = LawDraws(
        law,
        theta.reshape(-1, *theta.shape[2:]),
        weights.reshape(-1, *weights.shape[2:]),
        scale * np.exp(flat["log_noise"]),
        scale * np.exp(flat["log_discrepancy"]),
        flat.get("growth", np.zeros(len(flat["log_noise"]))),
        scale * np.exp(flat["log_curve"]) if "log_curve" in flat else np.zeros(len(flat["log_noise"])),
    )
    return draws, info


def draw(
    fit: LawFit, data: FitData, num_draws: int, *, seed: int, num_warmup: int = 500, num_chains: int = 4
) -> LawDraws:
    """`num_draws` draws of a law that the fast engine has fitted, from chains that start at its modes.

    Chains are run for longer than asked where few draws are wanted, so that their agreement can be judged.

    Raises:
        UnreliableFit: the chains disagree.
    """
    a_chain = max(-(-num_draws // num_chains), _MIN_CHAIN)
    sizes = {"num_warmup": num_warmup, "num_draws": a_chain, "num_chains": num_chains}
    draws, info = fit_nuts(jax.random.key(seed), fit.law, data, **sizes, starts=fit.basins)
    require_reliable(info)
    spread = np.linspace(0, len(draws.theta) - 1, num_draws).round().astype(int)
    return LawDraws(fit.law, *(array[spread] for array in draws[1:]))


# One jit around the whole fit: `MCMC.run` compiles a new closure at every call.
@functools.partial(jax.jit, static_argnames=("law", "num_warmup", "num_draws"))
def _run(key, law: Law, context, prior_mean, prior_sd, domain_sd, data, starts, *, num_warmup, num_draws):  # type: ignore[no-untyped-def]
    name = f"{law.name}.nuts"
    TRACES[name] = TRACES.get(name, 0) + 1
    bound = BoundLaw(law, context, prior_mean, prior_sd, domain_sd)
    data = jax.tree.map(jnp.asarray, data)

    def one_chain(arguments):  # type: ignore[no-untyped-def]
        chain_key, start = arguments
        start_key, run_key, weight_key = jax.random.split(chain_key, 3)
        sampler = MCMC(
            NUTS(
                potential_fn=functools.partial(potential_energy, model.scaling_model, (bound, data), {}),
                dense_mass=[_law_sites(data)],
                target_accept_prob=_TARGET_ACCEPTANCE,
                max_tree_depth=_MAX_TREE_DEPTH,
            ),
            num_warmup=num_warmup,
            num_samples=num_draws,
            progress_bar=False,
        )
        extra_fields = ("diverging", "accept_prob", "num_steps")
        sampler.run(run_key, init_params=_initial(start_key, bound, data, start), extra_fields=extra_fields)
        sites = sampler.get_samples()
        sites["multiplier"] = jnp.exp(sites["multiplier"])

        def complete(draw):  # type: ignore[no-untyped-def]
            draw_key, of_draw = draw
            theta = model.law_parameters(bound, data, of_draw)
            return theta, _draw_weights(draw_key, bound, data, of_draw, theta)

        theta, weights = jax.lax.map(complete, (jax.random.split(weight_key, num_draws), sites))
        return sites, theta, weights, sampler.get_extra_fields()

    # Mapped, not vectorised: batched factorisations inside a batched loop can deadlock on two cores.
    return jax.lax.map(one_chain, (jax.random.split(key, starts.shape[0]), starts))


def _law_sites(data: FitData) -> tuple[str, ...]:
    """Sites whose joint scale is learnt as a full matrix; the multipliers of the runs are nearly independent."""
    of_domains = ("log_domain", "shared_raw") if data.y.shape[0] > 1 else ()
    return (*error_scales(data), *of_domains, "domain_raw")


def _initial(key: jax.Array, law: BoundLaw, data: FitData, theta: jax.Array) -> _Sites:
    """Unconstrained sites at which the law has about the parameters `theta` (G, p)."""
    num_domains, num_shared = data.design.shape
    usual = {"log_noise": -3.0, "log_discrepancy": -2.5, "growth": 0.5, "log_curve": -3.0}
    sites: _Sites = {name: jnp.asarray(usual[name]) for name in error_scales(data)}
    if num_domains == 1:
        sites["domain_raw"] = (theta - law.prior_mean) / law.prior_sd
    else:
        centre = theta.mean(0)
        sites["log_domain"] = jnp.zeros_like(law.prior_mean)
        sites["shared_raw"] = (
            jnp.zeros((num_shared, theta.shape[1])).at[0].set((centre - law.prior_mean) / law.prior_sd)
        )
        sites["domain_raw"] = jnp.clip((theta - centre) / law.domain_sd, -3.0, 3.0)
    jitter = jax.random.normal(key, sites["domain_raw"].shape)
    sites["domain_raw"] = sites["domain_raw"] + _JITTER * jitter
    sites["multiplier"] = jnp.zeros(data.y.shape)
    return sites


def _draw_weights(
    key: jax.Array, law: BoundLaw, data: FitData, sites: Mapping[str, jax.Array], theta: jax.Array
) -> jax.Array:
    """Feature weights given all else: exact Gaussian draws by Matheron's rule, (G, M)."""
    prior_key, noise_key = jax.random.split(key)
    variance = model.run_variance(data, sites)
    common = model.common_factors(data, sites)
    prior = jax.random.normal(prior_key, (common.shape[0], common.shape[2]))
    noise = jnp.sqrt(variance) * jax.random.normal(noise_key, variance.shape)
    residual = jnp.where(data.is_real, data.y - model.mean_of_runs(law, data, theta), 0.0)
    gap = jnp.where(data.is_real, residual - jnp.einsum("gnm,gm->gn", common, prior) - noise, 0.0)
    factor = jnp.linalg.cholesky(model.run_covariance(common, variance))
    solved = jax.scipy.linalg.cho_solve((factor, True), gap[..., None])[..., 0]
    raw = prior + jnp.einsum("gnm,gn->gm", common, solved)
    # The factors of the discrepancy come first; the effects of training runs that ended say nothing of new ones.
    return jnp.asarray(data.context.scale) * jnp.exp(sites["log_discrepancy"]) * raw[:, : data.phi.shape[-1]]


def _diagnose(sites: Mapping[str, np.ndarray], extra: Mapping[str, np.ndarray]) -> FitInfo:
    """Worst diagnostics over the law's parameters and the scales; sites are (chains, draws, ...)."""
    watched = [sites[name] for name in _WATCHED if name in sites]
    with np.errstate(invalid="ignore", divide="ignore"):
        r_hat = max(float(np.max(split_gelman_rubin(value))) for value in watched)
        effective = min(float(np.min(effective_sample_size(value))) for value in watched)
    return FitInfo(
        int(extra["diverging"].sum()),
        extra["diverging"].size,
        float(extra["accept_prob"].mean()),
        r_hat,
        effective,
        float(extra["num_steps"].mean()),
    )
