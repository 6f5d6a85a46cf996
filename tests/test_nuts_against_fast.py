"""The fast engine against NUTS on the same density: 5 % and 95 % quantiles of predictions far from the runs.

Each study takes a minute or two.  The difference of a quantile is measured in widths of the 5-95 % interval.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest

from planner import laws
from planner.inference import discrepancy
from planner.inference.data import FitData, bind, bucket
from planner.inference.draws import LawDraws
from planner.inference.heights import fit_heights
from planner.inference.laplace import fit_law
from planner.inference.nuts import fit_nuts, require_reliable
from planner.inference.refinement import refine

AXES = (laws.LawAxis(name="N", role="parameters"), laws.LawAxis(name="D", role="tokens"))
LOW, HIGH = np.log([3e7, 1e9]), np.log([1e9, 2e10])  # N then D
TARGETS = np.log([[1e9, 2e10], [3e9, 6e10], [1e10, 2e11], [7e10, 1.4e12], [1e10, 2e10], [1e9, 2e11]])
NUM_DRAWS = 4000


class Study(NamedTuple):
    data: FitData
    basis: discrepancy.Basis
    points: np.ndarray  # (P, A) targets
    domain: np.ndarray  # (P,)
    height: np.ndarray  # (P,)
    law: str


def _designs(rng: np.random.Generator, num_runs: int) -> np.ndarray:
    return np.column_stack([rng.uniform(*LOW, num_runs), rng.uniform(*HIGH, num_runs)])


def _encode(x: np.ndarray, y: np.ndarray, group: np.ndarray, law: str) -> Study:
    num_domains = int(group.max()) + 1
    grid = np.stack(np.meshgrid(np.linspace(*LOW, 8), np.linspace(*HIGH, 8)), axis=-1).reshape(-1, 2)
    spread = grid.std(0)
    context = laws.Context(x.mean(0), spread, np.float64(np.median(y)), np.float64(y.std()), np.float64(0.0))
    basis = discrepancy.choose_basis(np.concatenate([x, TARGETS, grid]), 3.0 * spread, num_features=40)
    num_rows = bucket(int(np.bincount(group).max()))
    coordinates = np.broadcast_to(context.centre, (num_domains, num_rows, 2)).copy()
    response, is_real = np.zeros((num_domains, num_rows)), np.zeros((num_domains, num_rows), dtype=bool)
    order = np.full((num_domains, num_rows), 10**6)
    for g in range(num_domains):
        mine = np.flatnonzero(group == g)
        coordinates[g, : len(mine)], response[g, : len(mine)], is_real[g, : len(mine)] = x[mine], y[mine], True
        order[g, : len(mine)] = mine
    phi, missed = discrepancy.features(basis, coordinates)
    phi, missed = phi * is_real[..., None], missed * is_real
    known_var, curve = np.zeros_like(response), np.zeros((num_domains, num_rows, 0))
    design = np.ones((num_domains, 1))
    heights = fit_heights(group, x, y, num_domains=num_domains, scale=float(context.scale))
    height = np.zeros((num_domains, num_rows, 1))
    height[is_real, 0] = heights.at(group, x)[np.argsort(group, kind="stable")]
    data = FitData(response, coordinates, is_real, known_var, order, phi, missed, curve, height, design, context)
    domain = np.repeat(np.arange(num_domains), len(TARGETS))
    points = np.tile(TARGETS, (num_domains, 1))
    return Study(data, basis, points, domain, heights.at(domain, points), law)


def _loss(x: np.ndarray, floor: float | np.ndarray = 1.69) -> np.ndarray:
    """The law of Hoffmann et al. 2022 without noise."""
    return floor + np.exp(6.006 - 0.34 * x[:, 0]) + np.exp(6.019 - 0.28 * x[:, 1])


def well_specified() -> Study:
    """Twenty runs of the law of Hoffmann et al. 2022."""
    rng = np.random.default_rng(3)
    x = _designs(rng, 20)
    y = _loss(x) + 0.004 * rng.standard_t(4, 20)
    return _encode(x, y, np.zeros(20, dtype=int), "sum_of_powers")


def misspecified_with_outliers() -> Study:
    """Thirty runs that no product of powers fits, two of them forty times the noise off."""
    rng = np.random.default_rng(4)
    x = _designs(rng, 30)
    y = _loss(x) + 0.005 * rng.standard_t(4, 30)
    y[[5, 17]] += 0.2
    return _encode(x, y, np.zeros(30, dtype=int), "product_of_powers")


def hierarchical() -> Study:
    """Four domains of ten runs whose floors and exponents differ by a tenth."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(4), 10)
    x = _designs(rng, 40)
    floor, of_n, of_d = np.array([[1.7], [0.34], [0.28]]) * np.exp(0.1 * rng.standard_normal((3, 4)))
    y = floor[group] + np.exp(6.0 + 18.0 * (of_n[group] - 0.34) - of_n[group] * x[:, 0])
    y = y + np.exp(6.0 + 22.0 * (of_d[group] - 0.28) - of_d[group] * x[:, 1])
    return _encode(x, y + 0.006 * rng.standard_t(4, 40), group, "product_of_powers")


def few_runs() -> Study:
    """Seven runs for six parameters: the priors weigh heavily and the posterior is far from Gaussian."""
    rng = np.random.default_rng(6)
    x = _designs(rng, 7)
    y = _loss(x) + 0.004 * rng.standard_t(4, 7)
    return _encode(x, y, np.zeros(7, dtype=int), "power_of_sum")


def bent() -> Study:
    """Twenty-four runs under a law that bends all the way and reaches far below what it saw."""
    rng = np.random.default_rng(7)
    x = _designs(rng, 24)
    y = _loss(x) + 0.01 * rng.standard_t(4, 24)
    return _encode(x, y, np.zeros(24, dtype=int), "exp_quadratic")


def uneven_domains() -> Study:
    """Fourteen runs in one domain and three in another, which leans on the first."""
    rng = np.random.default_rng(8)
    group = np.repeat([0, 1], [14, 3])
    x = _designs(rng, 17)
    floor = np.array([1.69, 1.8])[group]
    y = _loss(x, floor) + 0.005 * rng.standard_t(4, 17)
    return _encode(x, y, group, "sum_of_powers")


STUDIES = (well_specified, misspecified_with_outliers, hierarchical, few_runs, bent, uneven_domains)


def predictions(study: Study, draws: LawDraws, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean responses at the targets, discrepancy included, and responses of new runs there, (S, P)."""
    phi, missed = discrepancy.features(study.basis, study.points)
    mean = draws.law.value_at(draws.theta[:, study.domain], study.points)
    swollen = np.exp(draws.growth[:, None] * study.height)
    mean = mean + np.sqrt(swollen) * np.einsum("spm,pm->sp", draws.weights[:, study.domain], phi)
    mean = mean + np.sqrt(swollen * missed) * draws.discrepancy_sd[:, None] * rng.standard_normal(mean.shape)
    return mean, mean + swollen * draws.noise_sd[:, None] * rng.standard_t(4, mean.shape)


def disagreement(fast: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Differences of the 5 % and 95 % quantiles in widths of the reference's interval, (2, P)."""
    wanted = np.quantile(reference, [0.05, 0.95], axis=0)
    return np.abs(np.quantile(fast, [0.05, 0.95], axis=0) - wanted) / (wanted[1] - wanted[0])


@pytest.mark.slow
@pytest.mark.parametrize("make", STUDIES)
def test_fast_engine_agrees_with_nuts(make: Callable[[], Study]) -> None:
    study = make()
    (law,) = laws.select(AXES, study.law)
    fit = fit_law(bind(law, study.data.context), study.data, seed=0)
    fast = refine(fit, study.data, NUM_DRAWS, seed=0)
    # A law that bends freely leaves a funnel, in which NUTS itself needs many draws.
    # So do domains of one or two runs, where the errors' growth is told by few.
    longer = {bent: (800, 3000), uneven_domains: (800, 2000)}
    sizes = dict(zip(("num_warmup", "num_draws"), longer.get(make, (400, 800)), strict=True))
    exact, info = fit_nuts(jax.random.key(0), fit.law, study.data, **sizes, num_chains=4, starts=fit.basins)
    require_reliable(info, max_r_hat=1.03)
    of_fast = predictions(study, fast, np.random.default_rng(1))
    of_exact = predictions(study, exact, np.random.default_rng(2))
    for name, one, other in zip(("mean response", "new run"), of_fast, of_exact, strict=True):
        worst = disagreement(one, other).max(axis=0)
        print(f"{make.__name__}, {name}: {worst.max():.3f}")
        # The quantiles of NUTS themselves err by about .03 widths at 500 effective draws.
        assert worst.max() < 0.12, f"{name}: {worst.round(3)}"
