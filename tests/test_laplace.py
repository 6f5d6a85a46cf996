"""The fast engine: exact where the model is linear, robust, and compiled once a bucket."""

import dataclasses

import numpy as np
import pytest

from planner import inference
from planner.errors import UnreliableFit
from planner.inference import data as inference_data
from planner.inference import noise
from planner.inference.data import FitData, Scales, bind
from planner.inference.laplace import Linear, condition
from planner.laws import select
from planner.laws.base import Context, LawAxis
from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import parse_study_spec


def _spec(num_domains=1, laws="auto", **budget):
    return parse_study_spec(
        {
            "study": {"name": "s"},
            "response": {"name": "loss"},
            "axes": [
                {"name": "N", "low": 1e6, "high": 1e9, "role": "parameters"},
                {"name": "D", "low": 1e8, "high": 1e11, "role": "tokens"},
            ],
            "domains": [{"name": f"d{g}"} for g in range(num_domains)],
            "cost": {"terms": [{"coefficient": 6.0, "powers": {"N": 1.0, "D": 1.0}}]},
            "budget": {"total": 1e22},
            "laws": {"use": laws},
        }
    )


def _truth(x):
    return 1.7 + 406.0 * x[..., 0] ** -0.34 + 411.0 * x[..., 1] ** -0.28


def _runs(x, y, domain=None):
    domain = np.zeros(len(x), int) if domain is None else domain
    return [
        Outcome(
            run_id=f"r{i}",
            design=Design(domain=f"d{domain[i]}", axes={"N": x[i, 0], "D": x[i, 1]}),
            state=RunState.COMPLETED,
            response=float(y[i]),
            cost=6.0 * float(x[i].prod()),
        )
        for i in range(len(x))
    ]


def _table(x, domain=None):
    return DesignTable(
        domain=np.zeros(len(x), int) if domain is None else domain,
        x=x,
        cost=6.0 * x.prod(axis=1),
        row=np.arange(len(x)),
    )


def _box(num, seed):
    return np.exp(np.random.default_rng(seed).uniform(np.log([1e6, 1e8]), np.log([1e9, 1e11]), (num, 2)))


FAR = _table(np.array([[3e9, 3e11], [1e10, 1e11], [1e9, 1e12]]))


@pytest.mark.parametrize("num_domains", [1, 3])
def test_evidence_and_mean_are_exact_for_a_linear_law(num_domains):
    rng = np.random.default_rng(num_domains)
    num_rows, num_features, p = 8, 5, 2
    context = Context(np.zeros(1), np.ones(1), *map(np.float64, (1.0, 0.5, -np.inf)))
    law = bind(select([LawAxis(name="x")], ["sum_of_powers"])[0], context)
    law = law._replace(prior_mean=np.array([0.2, -0.3]), prior_sd=np.array([0.8, 1.2]), domain_sd=np.array([0.3, 0.4]))
    is_real = np.ones((num_domains, num_rows), bool)
    is_real[0, 6:] = False
    phi = rng.standard_normal((num_domains, num_rows, num_features)) * is_real[..., None]
    missed = rng.uniform(0, 0.3, is_real.shape) * is_real
    known = rng.uniform(0, 0.01, is_real.shape) * is_real
    jacobian = rng.standard_normal((num_domains, num_rows, p)) * is_real[..., None]
    pseudo = rng.standard_normal(is_real.shape) * is_real
    design = np.ones((num_domains, 1))
    blank = np.zeros(is_real.shape)
    height = (rng.uniform(0.0, 2.0, is_real.shape) * is_real)[..., None]
    bend = np.exp(0.5 * 0.9 * height[..., 0])
    data = FitData(
        blank, blank[..., None], is_real, known, blank, phi, missed, blank[..., None][..., :0], height, design, context
    )
    log_domain = np.full((1, p if num_domains > 1 else 0), 0.3)
    scales = Scales(np.log([0.2]), np.log([0.7]), np.array([0.9]), np.array([-np.inf]), log_domain)
    student = np.ones((1, *is_real.shape))

    found = condition(law, data, Linear(pseudo, jacobian, np.zeros((num_domains, p))), scales, student)

    # Dense: y = J theta + Phi w + e, theta_g = mu + T z_g (one domain: no z).
    keep = is_real.ravel()
    blocks = np.zeros((num_domains * num_rows, num_domains * p))
    kernel = np.zeros((num_domains * num_rows,) * 2)
    for g in range(num_domains):
        rows = slice(g * num_rows, (g + 1) * num_rows)
        blocks[rows, g * p : (g + 1) * p] = jacobian[g]
        kernel[rows, rows] = (0.5 * 0.7) ** 2 * np.outer(bend[g], bend[g]) * (phi[g] @ phi[g].T)
    prior = np.kron(np.ones((num_domains, num_domains)), np.diag(law.prior_sd**2))
    if num_domains > 1:
        prior += np.kron(np.eye(num_domains), np.diag((law.domain_sd * np.exp(0.3)) ** 2))
    noise = (0.5 * 0.2) ** 2 * bend**4 + (0.5 * 0.7) ** 2 * bend**2 * missed + known
    covariance = (blocks @ prior @ blocks.T + kernel + np.diag(noise.ravel()))[np.ix_(keep, keep)]
    mean = np.tile(law.prior_mean, num_domains)
    gap = pseudo.ravel()[keep] - (blocks @ mean)[keep]
    solved = np.linalg.solve(covariance, gap)
    expected = -0.5 * (gap @ solved + np.linalg.slogdet(covariance)[1] + keep.sum() * np.log(2 * np.pi))
    assert found.log_evidence[0] == pytest.approx(expected, rel=1e-8)
    theta = mean + prior @ blocks[keep].T @ solved
    np.testing.assert_allclose(found.posterior.theta[0].ravel(), theta, rtol=1e-7, atol=1e-9)


def test_known_law_is_extrapolated_within_its_intervals():
    x = _box(30, 0)
    y = _truth(x) + 0.005 * np.random.default_rng(1).standard_normal(30)
    posterior = inference.fit_study(_spec(), _runs(x, y), _table(x), FAR, num_draws=800)
    draws = posterior.mean_draws(FAR.domain, FAR.x)
    low, high = np.quantile(draws, [0.02, 0.98], axis=0)
    truth = _truth(FAR.x)
    assert ((low < truth) & (truth < high)).all()
    assert (high - low < 0.6).all()
    assert posterior.weights.sum() == pytest.approx(1.0)
    assert posterior.weights.min() >= 0.25 / len(posterior.weights) * 0.8


def test_draws_survive_being_saved():
    x = _box(12, 3)
    spec = _spec()
    posterior = inference.fit_study(spec, _runs(x, _truth(x)), _table(x), FAR, num_draws=200)
    again = inference.from_arrays(spec, posterior.to_arrays())
    np.testing.assert_allclose(again.mean_draws(FAR.domain, FAR.x), posterior.mean_draws(FAR.domain, FAR.x))
    np.testing.assert_allclose(again.distance(FAR.domain, FAR.x), posterior.distance(FAR.domain, FAR.x))
    assert list(again.notes) == list(posterior.notes)


def test_one_outlier_hardly_moves_the_exponents():
    x = _box(24, 5)
    y = _truth(x) + 0.004 * np.random.default_rng(2).standard_normal(24)
    spoiled = y.copy()
    spoiled[7] += 1.0
    spec = _spec(laws=["sum_of_powers"])
    clean, dirty = (
        inference.fit_study(spec, _runs(x, values), _table(x), FAR, num_draws=800).parts[0].theta[:, 0, 3:5]
        for values in (y, spoiled)
    )
    moved = np.abs(np.median(dirty, axis=0) - np.median(clean, axis=0))
    assert (moved < clean.std(axis=0) + dirty.std(axis=0)).all()


def test_a_law_that_cannot_be_fitted_is_left_out_and_named(monkeypatch):
    x = _box(10, 5)
    spec = _spec(laws=["sum_of_powers", "product_of_powers"])
    fit_law = inference.fit_law
    broken = ["product_of_powers"]

    def fit(law, *arguments, **options):
        if law.law.name in broken:
            raise UnreliableFit(f"law {law.law.name!r} has no finite likelihood for these runs")
        return fit_law(law, *arguments, **options)

    monkeypatch.setattr(inference, "fit_law", fit)
    posterior = inference.fit_study(spec, _runs(x, _truth(x)), _table(x), FAR, num_draws=50)
    assert posterior.law_names == ["sum_of_powers"]
    assert any("'product_of_powers'" in note for note in posterior.notes)
    broken.append("sum_of_powers")
    with pytest.raises(UnreliableFit, match="'sum_of_powers'"):
        inference.fit_study(spec, _runs(x, _truth(x)), _table(x), FAR, num_draws=50)


def test_crowded_cheap_runs_do_not_make_the_far_certain():
    rng = np.random.default_rng(4)
    cheap = np.exp(rng.uniform(np.log([1e6, 1e8]), np.log([4e6, 4e8]), (60, 2)))
    spread = _box(60, 6)
    widths = []
    for x in (cheap, spread):
        y = _truth(x) + 0.005 * rng.standard_normal(60)
        posterior = inference.fit_study(_spec(), _runs(x, y), _table(_box(200, 7)), FAR, num_draws=500)
        low, high = np.quantile(posterior.mean_draws(FAR.domain, FAR.x), [0.05, 0.95], axis=0)
        widths.append((high - low).mean())
    assert widths[0] > 3.0 * widths[1]


def test_checkpoints_of_few_runs_count_as_few_runs():
    """Twelve runs of eight checkpoints tell of a common level hardly more than twelve runs of one."""
    effect, each = np.full(1, 0.03**2), np.full((1, 1, 96), 1e-3**2)
    shared = np.repeat(np.eye(12), 8, axis=0)[None]
    for curve in (shared, np.zeros((1, 96, 0))):
        covariance = noise.marginal(np.zeros((1, 96, 4)), curve, np.ones_like(each), each, np.ones(1), effect)
        information = covariance.solve(np.ones((1, 1, 96, 1))).sum()
        runs = 12 if curve.shape[-1] else 96
        size_sq = effect[0] + 1e-6 / 8 if curve.shape[-1] else 1e-6
        assert information == pytest.approx(runs / size_sq, rel=1e-6)


def test_the_effect_of_a_training_run_is_learned():
    rng = np.random.default_rng(14)
    sizes = np.repeat(np.exp(rng.uniform(np.log(1e6), np.log(3e8), 4)), 4)
    x = np.array([[n, d] for n in sizes for d in np.exp(np.linspace(np.log(1e8), np.log(1e11), 6))])
    effect = np.repeat(0.03 * rng.standard_normal(16), 6)
    runs = _runs(x, _truth(x) + effect + 0.001 * rng.standard_normal(96))
    named = [dataclasses.replace(run, curve=f"run {i // 6}") for i, run in enumerate(runs)]
    fits = [inference.fit_study(_spec(laws=["sum_of_powers"]), o, _table(x), FAR, num_draws=600) for o in (runs, named)]
    without, known = (fit.parts[0] for fit in fits)
    assert (without.curve_sd == 0).all()
    assert np.median(known.curve_sd) == pytest.approx(effect.std(), rel=0.25)
    assert np.median(known.noise_sd) < 0.2 * np.median(without.noise_sd)


@pytest.mark.parametrize("num_runs", [0, 1, 2])
def test_few_runs_give_wide_finite_answers_and_say_so(num_runs):
    x = _box(num_runs, 8)
    posterior = inference.fit_study(_spec(2), _runs(x, _truth(x)), _table(_box(50, 9)), FAR, num_draws=300)
    draws = posterior.mean_draws(FAR.domain, FAR.x)
    assert np.isfinite(draws).all()
    assert (np.quantile(draws, 0.95, axis=0) - np.quantile(draws, 0.05, axis=0) > 0.2).all()
    text = " ".join(posterior.notes)
    assert ("prior only" in text) == (num_runs == 0)
    if num_runs:
        assert "few runs" in text
        assert "no finished run in d1" in text


def test_a_domain_without_runs_is_wider_than_its_neighbours():
    x = _box(24, 10)
    domain = np.arange(24) % 2
    posterior = inference.fit_study(_spec(3), _runs(x, _truth(x), domain), _table(x, domain), FAR, num_draws=600)
    at = np.repeat(np.array([[3e8, 3e10]]), 3, axis=0)
    spread = posterior.mean_draws(np.arange(3), at).std(axis=0)
    assert spread[2] > 2.0 * spread[:2].max()
    assert np.isinf(posterior.distance(np.array([2]), at[:1])[0])


def test_collinear_and_fixed_axes_are_named():
    n = np.exp(np.linspace(np.log(1e6), np.log(1e9), 10))
    line = np.stack([n, 20.0 * n], axis=1)
    posterior = inference.fit_study(_spec(), _runs(line, _truth(line)), _table(_box(50, 1)), FAR, num_draws=200)
    assert any("collinear" in note for note in posterior.notes)
    fixed = np.stack([np.full(10, 1e8), np.exp(np.linspace(np.log(1e8), np.log(1e11), 10))], axis=1)
    posterior = inference.fit_study(_spec(), _runs(fixed, _truth(fixed)), _table(_box(50, 1)), FAR, num_draws=200)
    assert any("axis N never moved" in note for note in posterior.notes)


def test_one_compilation_for_each_size_bucket():
    spec = _spec(laws=["sum_of_powers"])
    table = _table(_box(40, 11))

    def traces(num_runs):
        x = _box(num_runs, 12)
        posterior = inference.fit_study(spec, _runs(x, _truth(x)), table, FAR, num_draws=100 + num_runs)
        posterior.mean_draws(FAR.domain, FAR.x)
        return dict(inference_data.TRACES)

    first = traces(33)
    assert traces(40) == first
    assert traces(64) == first
    full = traces(128)  # the most runs that modes are searched with: larger studies are thinned to as many
    grown = traces(129)
    assert {name: grown[name] - full[name] for name in grown if grown[name] != full[name]} == {
        "sum_of_powers.value": 1,
        "sum_of_powers.jacobian": 1,
    }


def test_precision_of_other_programs_is_left_alone():
    import jax.numpy as jnp

    x = _box(9, 13)
    inference.fit_study(_spec(laws=["sum_of_powers"]), _runs(x, _truth(x)), _table(x), FAR, num_draws=50)
    assert jnp.ones(2).dtype == jnp.float32


def _growing_noise(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs whose noise is proportional to a power of how far they are above the best."""
    x = _box(num, seed)
    truth = _truth(x)
    above = np.log1p((truth - truth.min()) / truth.std())
    return x, truth + 0.002 * np.exp(2.5 * above) * np.random.default_rng(seed).standard_normal(num)


def test_growth_of_the_errors_is_learned():
    x, y = _growing_noise(80, 5)
    plain = _truth(x) + 0.01 * np.random.default_rng(6).standard_normal(80)
    for values, low, high in ((y, 1.3, 3.5), (plain, -0.7, 0.7)):
        spec = _spec(laws=["sum_of_powers"])
        (part,) = inference.fit_study(spec, _runs(x, values), _table(x), FAR, num_draws=400).parts
        assert low < np.median(part.growth) < high


def test_noise_of_new_runs_is_that_of_their_height():
    x, y = _growing_noise(80, 5)
    posterior = inference.fit_study(_spec(laws=["sum_of_powers"]), _runs(x, y), _table(x), FAR, num_draws=2000)
    order, top = np.argsort(_truth(x)), np.log1p(np.ptp(_truth(x)) / _truth(x).std())
    for rows, wanted in ((order[:1], 0.002), (order[-1:], 0.002 * np.exp(2.5 * top))):
        domain = np.zeros(1, int)
        noise_sd, _ = posterior.noise_scales(domain, x[rows])
        assert 0.3 * wanted < np.median(noise_sd) < 3.0 * wanted
        apart = posterior.response_draws(domain, x[rows]) - posterior.mean_draws(domain, x[rows])
        quartiles = np.quantile(apart, [0.25, 0.75])
        assert np.ptp(quartiles) == pytest.approx(1.48 * np.median(noise_sd), rel=0.4)


def test_answers_average_both_models_of_the_errors():
    x, y = _growing_noise(40, 8)
    spec = _spec(laws=["sum_of_powers", "product_of_powers"])
    answer = inference.fit_study(spec, _runs(x, y), _table(x), FAR, num_draws=400, look_ahead=True)
    growth = np.concatenate([part.growth for part in answer.parts])
    assert (growth == 0.0).sum() == 200, "half of the draws have errors of one size"
    assert [len(part.theta) for part in answer.parts] == pytest.approx(400 * answer.weights, abs=2)
    assert answer.weights.sum() == pytest.approx(1.0) and len(answer.fits) == len(answer.parts) == 2
    plan = inference.fit_study(spec, _runs(x, y), _table(x), FAR, num_draws=400)
    assert all((part.growth != 0.0).all() for part in plan.parts)
    again = inference.from_arrays(spec, answer.to_arrays())
    np.testing.assert_allclose(again.response_draws(FAR.domain, FAR.x), answer.response_draws(FAR.domain, FAR.x))


def test_flattened_weights_keep_nodes_effective():
    from planner.inference.laplace import _flattened

    even = _flattened(np.zeros(10), 8.0)
    np.testing.assert_allclose(even, 0.1)
    steep = _flattened(np.linspace(-200.0, 0.0, 32), 8.0)
    assert 7.9 < 1.0 / (steep**2).sum() < 12.0 and (np.diff(steep) > 0).all() and steep.sum() == pytest.approx(1.0)
