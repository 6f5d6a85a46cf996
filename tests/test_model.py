"""The NumPyro program against an independent computation of the same density."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
import pytest
from numpyro.infer.util import log_density
from scipy import stats

from planner import laws, model
from planner.errors import UnreliableFit
from planner.inference import discrepancy, nuts
from planner.inference.data import TRACES, BoundLaw, FitData, bind
from planner.inference.nuts import FitInfo, fit_nuts, require_reliable

AXES = (laws.LawAxis(name="N", role="parameters"), laws.LawAxis(name="D", role="tokens"))
DESIGNS = {
    "one domain": np.ones((1, 1)),
    "three domains": np.ones((3, 1)),
    "three domains, one factor": np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]),
}


def make_data(
    design: np.ndarray, *, num_rows: int = 8, num_real: int = 6, padding: int = 0, curves: bool = False
) -> FitData:
    """Runs of a two-axis power law; the first `num_real` minus the domain's index are real; few features, so that
    some variance is missed; `padding` more rows hold rubbish; with `curves` rows are checkpoints of one run by twos."""
    rng = np.random.default_rng(11)
    num_domains = len(design)
    coordinates = rng.uniform([17.0, 20.0], [21.0, 24.0], (num_domains, num_rows, 2))
    y = 1.7 + np.exp(6.0 - 0.34 * coordinates[..., 0]) + np.exp(6.0 - 0.28 * coordinates[..., 1])
    y += 0.01 * rng.standard_t(4, y.shape)
    is_real = np.arange(num_rows) < num_real - np.arange(num_domains)[:, None]
    known_var = 1e-4 * rng.random(y.shape)
    context = laws.Context(
        coordinates[is_real].mean(0), np.array([1.2, 1.2]), np.median(y[is_real]), y[is_real].std(), np.float64(0.0)
    )
    basis = discrepancy.choose_basis(coordinates[is_real], 1.5 * context.spread, num_features=4)
    phi, missed = discrepancy.features(basis, coordinates)
    curve = np.repeat(np.eye(num_rows // 2), 2, axis=0) if curves else np.zeros((num_rows, 0))
    curve = curve * is_real[..., None]
    height = np.random.default_rng(12).uniform(0.0, 1.5, (*y.shape, 1)) * is_real[..., None]
    rows = (0, padding)
    return FitData(
        np.pad(np.where(is_real, y, 0.0), ((0, 0), rows), constant_values=77.0),
        np.pad(coordinates, ((0, 0), rows, (0, 0)), mode="edge"),
        np.pad(is_real, ((0, 0), rows)),
        np.pad(known_var, ((0, 0), rows), constant_values=5.0),
        np.full((num_domains, num_rows + padding), 10**6),
        np.pad(phi * is_real[..., None], ((0, 0), rows, (0, 0))),
        np.pad(missed * is_real, ((0, 0), rows)),
        np.pad(curve, ((0, 0), rows, (0, 0))),
        np.pad(height, ((0, 0), rows, (0, 0))),
        design,
        context,
    )


def make_law(data: FitData, name: str = "sum_of_powers") -> BoundLaw:
    (law,) = laws.select(AXES, name)
    return bind(law, data.context)


_COMPILED: dict = {}


def random_sites(law: BoundLaw, data: FitData, rng: np.random.Generator) -> dict[str, np.ndarray]:
    num_domains, num_shared = data.design.shape
    sites = {
        "log_noise": rng.normal(-3.0, 1.0),
        "log_discrepancy": rng.normal(-2.0, 1.0),
        "growth": rng.normal(0.75, 0.5),
        "domain_raw": rng.standard_normal((num_domains, law.num_parameters)),
        "multiplier": rng.gamma(2.0, 0.5, data.y.shape),
    }
    if data.curve.shape[-1]:
        sites["log_curve"] = rng.normal(-2.0, 1.0)
    if num_domains > 1:
        sites["log_domain"] = rng.normal(0.0, 0.7, law.num_parameters)
        sites["shared_raw"] = rng.standard_normal((num_shared, law.num_parameters))
    return sites


def program_log_density(
    law: BoundLaw, data: FitData, sites: dict[str, np.ndarray], *arguments: object, **settings: object
) -> float:
    """Compiled as a whole: op by op the same takes ten times as long."""

    def of_arrays(data: FitData, sites: dict[str, jax.Array], arguments: tuple) -> jax.Array:
        return log_density(model.scaling_model, (law, data, *arguments), settings, sites)[0]

    key = (law.law, str(settings), data.y.shape)
    compiled = _COMPILED.setdefault(key, jax.jit(of_arrays))
    with jax.enable_x64(True):
        return float(compiled(data, {name: jnp.asarray(value) for name, value in sites.items()}, arguments))


def numpy_parameters(law: BoundLaw, data: FitData, sites: dict[str, np.ndarray]) -> np.ndarray:
    """Parameters of every domain, one at a time, from the equations of the module and not from its code."""
    num_domains = len(data.design)
    if num_domains == 1:
        return law.prior_mean + law.prior_sd * sites["domain_raw"]
    tau = law.domain_sd * np.exp(sites["log_domain"])
    theta = []
    for row, z in zip(data.design, sites["domain_raw"], strict=True):
        value = law.prior_mean + law.prior_sd * sites["shared_raw"][0] + tau * z
        for has_level, effect in zip(row[1:], sites["shared_raw"][1:], strict=True):
            value = value + has_level * tau * effect
        theta.append(value)
    return np.array(theta)


def numpy_priors(sites: dict[str, np.ndarray], real: np.ndarray) -> float:
    """Log prior of all sites but the multipliers of padded rows, which are nobody's."""
    total = stats.norm(np.log(0.03), 1.2).logpdf(sites["log_noise"])
    total += stats.norm(np.log(0.1), 1.0).logpdf(sites["log_discrepancy"])
    total += stats.norm(0.75, 0.5).logpdf(sites["growth"])
    total += stats.norm(np.log(0.03), 1.2).logpdf(sites["log_curve"]) if "log_curve" in sites else 0.0
    total += stats.norm(0.0, 0.7).logpdf(sites.get("log_domain", np.zeros(0))).sum()
    for name in ("domain_raw", "shared_raw", "common_raw"):
        total += stats.norm.logpdf(sites.get(name, np.zeros(0))).sum()
    return float(total + stats.gamma(2.0, scale=0.5).logpdf(sites["multiplier"][real]).sum())


def numpy_log_density(law: BoundLaw, data: FitData, sites: dict[str, np.ndarray]) -> float:
    total = numpy_priors(sites, data.is_real)
    sigma = data.context.scale * np.exp(sites["log_noise"])
    amplitude = data.context.scale * np.exp(sites["log_discrepancy"])
    for g, theta in enumerate(numpy_parameters(law, data, sites)):
        rows = np.flatnonzero(data.is_real[g])
        u = data.coordinates[g, rows] - data.context.centre
        height = data.context.reference / (1.0 + np.exp(theta[0]))  # the lower bound is zero
        mean = data.context.reference - height
        mean = mean + height * (np.exp(theta[1:3] - np.exp(theta[3:5]) * u)).sum(1)
        swollen = np.exp(sites["growth"] * data.height[g, rows, 0])
        phi = data.phi[g, rows] * np.sqrt(swollen)[:, None]
        own = (sigma * swollen) ** 2 / sites["multiplier"][g, rows]
        own += amplitude**2 * swollen * data.missed[g, rows] + data.known_var[g, rows]
        covariance = amplitude**2 * phi @ phi.T + np.diag(own)
        if "log_curve" in sites:
            is_same = data.curve[g, rows] @ data.curve[g, rows].T == 1.0
            effect = np.sqrt(swollen) * data.context.scale * np.exp(sites["log_curve"])
            covariance = covariance + np.outer(effect, effect) * is_same
        total += stats.multivariate_normal(mean, covariance).logpdf(data.y[g, rows])
    return float(total)


@pytest.mark.parametrize("curves", [False, True], ids=["runs", "checkpoints"])
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS.keys())
def test_the_program_has_the_density_of_the_equations(design: np.ndarray, curves: bool) -> None:
    data = make_data(design, curves=curves)
    law = make_law(data)
    rng = np.random.default_rng(5)
    for _ in range(5):
        sites = random_sites(law, data, rng)
        padded = stats.gamma(2.0, scale=0.5).logpdf(sites["multiplier"][~data.is_real]).sum()
        got = program_log_density(law, data, sites) - padded
        # Float64 on both sides: what differs is rounding in a factorisation of condition below 1e6.
        assert got == pytest.approx(numpy_log_density(law, data, sites), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("design", [DESIGNS["one domain"], DESIGNS["three domains, one factor"]], ids=["one", "factor"])
def test_padded_rows_do_not_change_the_density(design: np.ndarray) -> None:
    # The longer form has more than twice as many rows as features, and so is factored the other way.
    short, long = make_data(design, curves=True), make_data(design, curves=True, padding=12)
    law = make_law(short)
    sites = random_sites(law, short, np.random.default_rng(6))
    ones = np.pad(sites["multiplier"], ((0, 0), (0, 12)), constant_values=1.0)
    extra = 12 * len(design) * stats.gamma(2.0, scale=0.5).logpdf(1.0)
    got = program_log_density(law, long, {**sites, "multiplier": ones}) - extra
    assert got == pytest.approx(program_log_density(law, short, sites), rel=1e-9)


def test_what_runs_share_has_the_covariance_of_kernel_and_run_effects() -> None:
    """The two forms of the likelihood, explicit and integrated out, rest on one set of factors."""
    data = make_data(DESIGNS["three domains"], curves=True)
    sites = {"log_discrepancy": -1.0, "log_curve": -2.0}
    with jax.enable_x64(True):
        common = np.asarray(model.common_factors(data, sites))
    scale = data.context.scale
    gram = data.phi @ np.swapaxes(data.phi, -1, -2)
    same = data.curve @ np.swapaxes(data.curve, -1, -2)
    expected = scale**2 * (np.exp(-2.0) * gram + np.exp(-4.0) * same)
    np.testing.assert_allclose(common @ np.swapaxes(common, -1, -2), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("inverse_link", "rate"),
    [(model.rate_of_neg_log, lambda eta: np.exp(-eta)), (model.rate_of_logit, lambda eta: 1.0 / (1.0 + np.exp(eta)))],
    ids=["neg_log", "logit"],
)
def test_counts_have_a_binomial_likelihood(inverse_link, rate) -> None:  # type: ignore[no-untyped-def]
    data = make_data(DESIGNS["three domains"], curves=True)
    law = make_law(data)
    rng = np.random.default_rng(9)
    sites = random_sites(law, data, rng)
    num_features = data.phi.shape[2]
    sites["common_raw"] = rng.standard_normal((3, num_features + data.curve.shape[2]))
    sites["noise_raw"] = rng.standard_normal(data.y.shape)
    trials = np.where(data.is_real, 100.0, np.nan)  # a padded row may hold anything
    counts = model.Counts(np.where(data.is_real, 37.0, np.nan), trials)
    got = program_log_density(law, data, sites, counts, inverse_link=inverse_link)
    with jax.enable_x64(True):
        mean = np.asarray(model.mean_of_runs(law, data, numpy_parameters(law, data, sites)))
    expected = numpy_priors(sites, np.ones_like(data.is_real)) + stats.norm.logpdf(sites["noise_raw"]).sum()
    scale = data.context.scale
    swollen = np.exp(sites["growth"] * data.height[..., 0])
    own = (scale * np.exp(sites["log_noise"]) * swollen) ** 2 / sites["multiplier"] + data.known_var
    own += (scale * np.exp(sites["log_discrepancy"])) ** 2 * swollen * data.missed
    own = np.where(data.is_real, own, 1.0)
    weights = scale * np.exp(sites["log_discrepancy"]) * sites["common_raw"][:, :num_features]
    effects = scale * np.exp(sites["log_curve"]) * sites["common_raw"][:, num_features:]
    common = (data.phi @ weights[..., None])[..., 0] + (data.curve @ effects[..., None])[..., 0]
    eta = mean + np.sqrt(swollen) * common
    eta = eta + np.sqrt(own) * sites["noise_raw"]
    p = np.clip(rate(eta), 1e-9, 1.0 - 1e-9)[data.is_real]
    expected += stats.binom(100, p).logpmf(37).sum()
    assert got == pytest.approx(expected, rel=1e-9)


def test_prior_predictive_is_a_loss() -> None:
    design = DESIGNS["three domains, one factor"]
    data = make_data(design)
    law = make_law(data)

    # The multipliers keep their mean: their sampler takes longest to compile, and another test checks their density.
    program = handlers.substitute(model.scaling_model, {"multiplier": np.ones(data.y.shape)})

    def one(key: jax.Array) -> dict[str, jax.Array]:
        seeded = handlers.seed(program, key)
        trace = handlers.trace(seeded).get_trace(law, data, predictive=True)
        mean = model.mean_of_runs(law, data, trace["theta"]["value"])
        return {"y": trace["y"]["value"], "theta": trace["theta"]["value"], "mean": mean}

    with jax.enable_x64(True):
        drawn = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 2000)))
    y = drawn["y"][:, data.is_real]
    assert np.isfinite(y).all()
    # The laws hold a floor above zero and a reference near the runs: most of the prior lies within a few scales.
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
    assert low > -data.context.reference
    assert abs(middle - data.context.reference) < data.context.reference
    assert high < 20 * data.context.reference
    assert (drawn["mean"] > 0).all()
    # Every domain has the population's prior mean, and the spread of level, factors and domain together.
    theta = drawn["theta"]
    error = np.sqrt(theta.var(0) / len(theta))
    assert (np.abs(theta.mean(0) - law.prior_mean) < 5 * error).all()
    between = law.domain_sd**2 * np.exp(2 * 0.7**2)
    expected = np.sqrt(law.prior_sd**2 + between * design.sum(1, keepdims=True))
    np.testing.assert_allclose(theta.std(0), np.broadcast_to(expected, theta.shape[1:]), rtol=0.15)


@pytest.mark.slow
def test_same_shapes_are_compiled_once() -> None:
    data = make_data(DESIGNS["one domain"])
    before = TRACES.get("sum_of_powers.nuts", 0)
    sizes = {"num_warmup": 20, "num_draws": 10, "num_chains": 2}
    law = make_law(data)
    first, _ = fit_nuts(jax.random.key(0), law, data, **sizes)
    other = data._replace(
        y=np.where(data.is_real, data.y + 0.1, 0.0), context=data.context._replace(scale=2.0 * data.context.scale)
    )
    second, info = fit_nuts(jax.random.key(1), make_law(other), other, **sizes)
    assert TRACES["sum_of_powers.nuts"] == before + 1
    assert first.theta.shape == second.theta.shape == (20, 1, 5)
    assert second.weights.shape == (20, 1, data.phi.shape[2])
    assert second.theta.dtype == np.float64
    assert (second.curve_sd == 0.0).all()
    assert not np.allclose(first.theta, second.theta)
    assert 0.0 < info.accept_prob <= 1.0


def test_weights_given_the_rest_are_exact_gaussian_draws() -> None:
    data = make_data(DESIGNS["one domain"], curves=True)
    law = make_law(data)
    sites = random_sites(law, data, np.random.default_rng(3))
    num = 20_000
    with jax.enable_x64(True):
        theta = jnp.asarray(numpy_parameters(law, data, sites))
        drawn = jax.jit(jax.vmap(lambda key: nuts._draw_weights(key, law, data, sites, theta)))
        draws = np.asarray(drawn(jax.random.split(jax.random.key(2), num)))[:, 0]
        variance = np.asarray(model.run_variance(data, sites))[0]
        residual = (data.y - np.asarray(model.mean_of_runs(law, data, theta)))[0]
    real = data.is_real[0]
    amplitude = data.context.scale * np.exp(sites["log_discrepancy"])
    bend = np.exp(0.5 * sites["growth"] * data.height[0, real])
    phi, curve = bend * data.phi[0, real], bend * data.curve[0, real]
    effect_var = (data.context.scale * np.exp(sites["log_curve"])) ** 2
    block = np.linalg.inv(np.diag(variance[real]) + effect_var * curve @ curve.T)
    covariance = np.linalg.inv(phi.T @ block @ phi + np.eye(phi.shape[1]) / amplitude**2)
    mean = covariance @ phi.T @ block @ residual[real]
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0.0, atol=5 / np.sqrt(num))
    np.testing.assert_allclose(
        np.cov(draws.T) / sd / sd[:, None], covariance / sd / sd[:, None], atol=5 * np.sqrt(2 / num)
    )


def test_starts_are_found_again() -> None:
    """The sites chosen for a start give the law the parameters asked for, up to the jitter of the raw sites."""
    for design in DESIGNS.values():
        data = make_data(design)
        law = make_law(data)
        asked = law.prior_mean + 0.5 * law.domain_sd * np.arange(len(design))[:, None]
        with jax.enable_x64(True):
            sites = nuts._initial(jax.random.key(4), law, data, jnp.asarray(asked))
            theta = np.asarray(model.law_parameters(law, data, sites))
        unit = law.prior_sd if len(design) == 1 else law.domain_sd
        assert (np.abs(theta - asked) < 4 * nuts._JITTER * unit).all()


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (FitInfo(0, 1000, 0.9, 1.2, 40.0, 30.0), "R-hat is 1.200"),
        (FitInfo(0, 1000, 0.9, float("nan"), 40.0, 30.0), "R-hat is nan"),
        (FitInfo(900, 1000, 0.5, 1.0, 400.0, 30.0), "900 of 1000 transitions diverged"),
    ],
)
def test_a_bad_posterior_is_refused(info: FitInfo, words: str) -> None:
    with pytest.raises(UnreliableFit, match=words):
        require_reliable(info)
    require_reliable(FitInfo(3, 1000, 0.9, 1.01, 400.0, 30.0))
