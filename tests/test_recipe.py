"""Recipes against closed forms, exact enumeration and finite differences."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner import errors, recipe
from planner.recipe import curves, factorise, problem, search

NUM_AXES = 3
LOW, HIGH = np.zeros(NUM_AXES), np.full(NUM_AXES, np.log(1e6))
LINEAR = recipe.Posynomial(np.array([1.0, 3.0, 0.1]), np.eye(NUM_AXES))
BOX = recipe.Box(LOW, HIGH)


def additive(theta, log_x):
    """exp(theta_0) + sum_a exp(log_a - alpha log x), theta = (log floor, log a, log alpha)."""
    log_a, alpha = theta[1 : 1 + NUM_AXES], jnp.exp(theta[1 + NUM_AXES :])
    return jnp.exp(theta[0]) + jnp.sum(jnp.exp(log_a - alpha * log_x))


def wavy(theta, log_x, frequencies):
    """An additive law plus a smooth discrepancy with many local minima."""
    law, weights, phases = jnp.split(theta, [1 + 2 * NUM_AXES, 1 + 2 * NUM_AXES + len(frequencies)])
    return additive(law, log_x) + jnp.sum(weights * jnp.cos(frequencies @ log_x + phases))


def draws_of_additive(num_draws, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    log_a = rng.normal(0.0, spread, (num_draws, NUM_AXES))
    alpha = rng.uniform(0.15, 0.6, (num_draws, NUM_AXES))
    return np.concatenate([np.full((num_draws, 1), -2.0), log_a, np.log(alpha)], axis=1)


def coefficients_of(thetas):
    return thetas[:, 1 : 1 + NUM_AXES], np.exp(thetas[:, 1 + NUM_AXES :])


def water_filling(thetas, unit_costs, budget, low, high):
    """Exact optimum of the additive law under a linear cost: D_j = (alpha_j A_j / (lambda c_j))^(1/(1+alpha_j)),
    clipped to the box, with lambda found by bisection on the cost."""
    log_a, alpha = coefficients_of(thetas)

    def at(log_lambda):
        free = (np.log(alpha) + log_a - log_lambda[:, None] - np.log(unit_costs)) / (1.0 + alpha)
        return np.clip(free, low, high)

    below, above = np.full(len(thetas), -100.0), np.full(len(thetas), 100.0)
    for _ in range(200):
        middle = 0.5 * (below + above)
        too_dear = np.exp(at(middle)) @ unit_costs > budget
        below, above = np.where(too_dear, middle, below), np.where(too_dear, above, middle)
    return at(above)


@pytest.fixture(scope="module")
def thetas():
    return draws_of_additive(64)


@pytest.fixture(scope="module")
def at_20000(thetas):
    return recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1)


# --- closed forms ----------------------------------------------------------------------------------------------------


def test_additive_law_under_linear_cost(thetas, at_20000):
    log_x = water_filling(thetas, LINEAR.coefficients, 2e4, LOW, HIGH)
    _, alpha = coefficients_of(thetas)
    share = np.exp(log_x) * LINEAR.coefficients / 2e4
    slope = (1 / (1 + alpha)) / (share / (1 + alpha)).sum(axis=1, keepdims=True)  # mathematics.md (4)

    assert at_20000.converged.all() and at_20000.binds.all()
    assert not (at_20000.at_low | at_20000.at_high | at_20000.flat[:, None]).any()
    np.testing.assert_allclose(at_20000.log_x, log_x, atol=1e-6)
    np.testing.assert_allclose(at_20000.share, share, atol=1e-6)
    np.testing.assert_allclose(at_20000.term_share, share, atol=1e-6)
    np.testing.assert_allclose(at_20000.slope, slope, atol=1e-6)
    # The spend-weighted mean of the slopes is one: the budget grows by exactly what is spent.
    np.testing.assert_allclose((at_20000.slope * at_20000.share).sum(axis=1), 1.0, atol=1e-9)


def test_value_of_budget_is_the_derivative_of_the_lowest_response(thetas, at_20000):
    def lowest(budget):
        log_x = water_filling(thetas, LINEAR.coefficients, budget, LOW, HIGH)
        log_a, alpha = coefficients_of(thetas)
        return np.exp(-2.0) + np.exp(log_a - alpha * log_x).sum(axis=1)

    numeric = -(lowest(2e4 * 1.0001) - lowest(2e4 * 0.9999)) / 4.0
    np.testing.assert_allclose(at_20000.response, lowest(2e4), rtol=1e-10)
    np.testing.assert_allclose(at_20000.value, numeric, rtol=1e-6)
    np.testing.assert_allclose(at_20000.multiplier, at_20000.value * 2e4, rtol=1e-12)
    # At an optimum inside the box one more unit buys the same on every axis.
    np.testing.assert_allclose(at_20000.axis_value, at_20000.value[:, None].repeat(NUM_AXES, 1), rtol=1e-6)


def test_product_cost(thetas):
    # One term c N D E; the two others are switched off, so that the program compiled above serves.
    cost = recipe.Posynomial(np.array([6.0, 0.0, 0.0]), np.array([[1.0] * 3, [0.0] * 3, [0.0] * 3]))
    wide = recipe.Box(np.full(NUM_AXES, -30.0), np.full(NUM_AXES, 30.0))
    got = recipe.optimise_recipe(additive, thetas, cost, 1e9, wide, num_starts=1)

    # alpha_j A_j x_j^-alpha_j = lambda for all j and sum log x = log(C / c).
    log_a, alpha = coefficients_of(thetas)
    weight = (1 / alpha).sum(axis=1)
    log_lambda = (((np.log(alpha) + log_a) / alpha).sum(axis=1) - np.log(1e9 / 6.0)) / weight
    assert got.converged.all()
    np.testing.assert_allclose(got.log_x, (np.log(alpha) + log_a - log_lambda[:, None]) / alpha, atol=1e-6)
    np.testing.assert_allclose(got.slope, (1 / alpha) / weight[:, None], atol=1e-6)
    np.testing.assert_allclose(got.multiplier, np.exp(log_lambda), rtol=1e-6)


def test_chinchilla_with_equal_exponents(thetas):
    # C = 6 N D with alpha = beta: N = (C / 6)^(1/2) (A / B)^(1 / (2 alpha)).  The third axis is held fixed.
    theta = np.array([[0.5, np.log(406.4), np.log(410.7), -50.0, np.log(0.34), np.log(0.34), 0.0]])
    cost = recipe.Posynomial(np.array([6.0, 0.0, 0.0]), np.array([[1.0, 1.0, 0.0], [0.0] * 3, [0.0] * 3]))
    box = recipe.Box(np.array([10.0, 10.0, 1.5]), np.array([40.0, 40.0, 1.5]))
    got = recipe.optimise_recipe(additive, theta, cost, 1e21, box, num_starts=1)

    log_n = 0.5 * np.log(1e21 / 6.0) + np.log(406.4 / 410.7) / (2 * 0.34)
    assert got.converged.all()
    np.testing.assert_allclose(got.log_x[0], [log_n, np.log(1e21 / 6.0) - log_n, 1.5], atol=1e-6)
    np.testing.assert_allclose(got.slope[0], [0.5, 0.5, 0.0], atol=1e-6)
    assert not got.at_low.any() and not got.at_high.any()


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part_of_range", [1e-4, 0.03, 0.3, 0.8, 0.99, 0.9999])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bounds_agree_with_clipped_water_filling(part_of_range, seed):
    rng = np.random.default_rng(seed)
    low = rng.uniform(-3.0, 3.0, NUM_AXES)
    box = recipe.Box(low, low + rng.uniform(0.5, 14.0, NUM_AXES))
    cost = recipe.Posynomial(np.exp(rng.normal(0.0, 3.0, NUM_AXES)), np.eye(NUM_AXES))
    thetas = draws_of_additive(64, seed=seed, spread=3.0)
    log_budget = cost.log_cost(box.low) + part_of_range * (cost.log_cost(box.high) - cost.log_cost(box.low))
    with jax.enable_x64(True):
        got = search.solve_part(recipe.RecipePart(additive, thetas), cost, log_budget, box, 1)

    expected = water_filling(thetas, cost.coefficients, np.exp(log_budget), box.low, box.high)
    assert got.converged.all()
    np.testing.assert_allclose(got.log_x, expected, atol=1e-6)
    # Slack of 1e-6: an optimum that touches a bound with no force may be listed either way.
    assert (got.at_low <= (expected <= box.low + 1e-6)).all()
    assert (got.at_high <= (expected >= box.high - 1e-6)).all()
    assert (got.slope[got.at_low | got.at_high] == 0.0).all()
    assert (np.abs(cost.log_cost(got.log_x) - log_budget) < 1e-8).all()


def test_a_budget_that_buys_everything(thetas):
    got = recipe.optimise_recipe(additive, thetas, LINEAR, 1e9, BOX, num_starts=1)
    assert got.converged.all() and got.at_high.all() and not got.binds.any()
    np.testing.assert_allclose(got.log_x, np.broadcast_to(HIGH, got.log_x.shape))
    assert (got.slope == 0).all() and (got.value == 0).all()
    notes = got.summary(["N", "D", "E"])["notes"]
    assert "optimum at the upper edge of axis D in 100% of draws: the box, not the law, decides" in notes
    assert "the best allocation leaves budget unspent in 100% of draws" in notes


def test_a_budget_that_buys_nothing(thetas):
    both = recipe.recipes_of_mixture([(additive, thetas)], LINEAR, [2e4, 4.0], BOX, num_starts=1)
    assert [r.affordable for r in both] == [True, False]
    assert both[1].log_x.shape == (0, NUM_AXES) and "does not buy" in both[1].summary()["notes"][0]
    recipe.require_affordable(both[0])
    with pytest.raises(errors.NothingAffordable, match=r"the cheapest point of the axes' ranges costs 4\.1"):
        recipe.require_affordable(both[1])


def test_a_cost_that_falls_with_an_axis(thetas):
    # x_0 + 10 x_1 / x_2 + 0.1 x_2: the optimum of x_2 for the cost alone lies inside.  Oracle: Lagrange conditions.
    powers = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]])
    cost = recipe.Posynomial(np.array([1.0, 10.0, 0.1]), powers)
    box = recipe.Box(np.full(3, -5.0), np.full(3, 12.0))
    got = recipe.optimise_recipe(additive, thetas, cost, 500.0, box, num_starts=1)
    log_a, alpha = coefficients_of(thetas)
    gradient = -alpha * np.exp(log_a - alpha * got.log_x)
    inside = ~(got.at_low | got.at_high)
    assert got.converged.all() and inside.mean() > 0.9
    residual = gradient + got.multiplier[:, None] * cost.elasticity(got.log_x)
    assert np.abs(residual[inside]).max() < 1e-9
    np.testing.assert_allclose(cost.log_cost(got.log_x), np.log(500.0), atol=1e-8)
    edge = problem.cheapest_point(cost, box)
    assert cost.log_cost(edge) <= cost.log_cost(got.log_x).min()


# --- more than one minimum -------------------------------------------------------------------------------------------


def test_the_lowest_of_many_minima():
    rng = np.random.default_rng(0)
    num_waves, num_draws, log_budget = 12, 64, np.log(LINEAR.coefficients.sum()) + 5.0
    box = recipe.Box(np.zeros(3), np.full(3, 9.0))
    frequencies = rng.normal(0.0, 0.5, (num_waves, NUM_AXES))
    weights = rng.normal(0.0, 0.2 * np.sqrt(2 / num_waves), (num_draws, num_waves))
    phases = rng.uniform(0.0, 2 * np.pi, (num_draws, num_waves))
    law = draws_of_additive(num_draws)
    part = recipe.RecipePart(wavy, np.concatenate([law, weights, phases], axis=1), (frequencies,))
    with jax.enable_x64(True):
        one = search.solve_part(part, LINEAR, log_budget, box, 1)
        many = search.solve_part(part, LINEAR, log_budget, box, 8)

    surface, c = np.linspace(0.0, 9.0, 120), LINEAR.coefficients
    first, second = (m.ravel() for m in np.meshgrid(surface, surface))
    rest = np.exp(log_budget) - np.exp(first) * c[0] - np.exp(second) * c[1]
    bought = rest > c[2]
    third = np.minimum(np.log(rest[bought] / c[2]), 9.0)
    inner = np.stack(np.meshgrid(*[np.linspace(0.0, 9.0, 30)] * 3), axis=-1).reshape(-1, 3)
    grid = np.concatenate(
        [np.stack([first[bought], second[bought], third], axis=1), inner[LINEAR.log_cost(inner) <= log_budget]]
    )
    log_a, alpha = coefficients_of(law)
    on_grid = np.array(
        [
            np.min(np.exp(-2.0) + np.exp(log_a[s] - alpha[s] * grid).sum(1) + np.cos(grid @ frequencies.T + p) @ w)
            for s, (w, p) in enumerate(zip(weights, phases, strict=True))
        ]
    )
    assert many.converged.all()
    assert (many.response <= on_grid + 1e-9).all()
    # Without several starts the same law is not always solved: the test above has something to find.
    assert (one.response > on_grid + 1e-3).any()
    # Some of these optima leave budget unspent, and are certified all the same.
    assert 0 < (~many.binds).sum() < num_draws


# --- slopes, failures, flat optima -----------------------------------------------------------------------------------


def test_slopes_by_finite_differences():
    # A coupled cost in a tight box, so that some axes are at a bound.
    powers = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.7]])
    cost = recipe.Posynomial(np.array([6.0, 2.0, 1.0]), powers)
    part = recipe.RecipePart(additive, draws_of_additive(64, seed=4, spread=1.0))
    box, step = recipe.Box(np.zeros(3), np.array([4.0, 9.0, 3.0])), 1e-4
    with jax.enable_x64(True):
        before, here, after = (search.solve_part(part, cost, np.log(3e4) + h, box, 1) for h in (-step, 0.0, step))
    at_bound = here.at_low | here.at_high
    same = ((before.at_low | before.at_high) == at_bound).all(1) & ((after.at_low | after.at_high) == at_bound).all(1)
    assert same.sum() > 50 and 0.1 < at_bound.mean() < 0.9
    numeric = (after.log_x - before.log_x) / (2 * step)
    np.testing.assert_allclose(here.slope[same], numeric[same], atol=1e-5)
    assert (here.slope[at_bound] == 0.0).all()


def test_a_failed_draw_is_a_value_and_the_others_are_untouched(thetas, at_20000):
    broken = thetas.copy()
    broken[7, 2] = np.nan
    got = recipe.optimise_recipe(additive, broken, LINEAR, 2e4, BOX, num_starts=1)
    others = np.arange(len(thetas)) != 7
    assert not got.converged[7] and got.converged[others].all()
    np.testing.assert_allclose(got.log_x[others], at_20000.log_x[others], atol=1e-9)
    assert got.joint is not None and got.joint.converged
    assert "no certified optimum in 2% of draws" in got.summary()["notes"][0]
    recipe.require_reliable(got)
    with pytest.raises(errors.UnreliableFit, match="98%"):
        recipe.require_reliable(got, share=0.99)


def test_an_optimum_that_is_not_unique_is_said_to_be_so(at_20000):
    # The law and the cost both depend on the product of the axes only: every point of the surface is as good.
    cost = recipe.Posynomial(np.array([6.0, 0.0, 0.0]), np.array([[1.0] * 3, [0.0] * 3, [0.0] * 3]))
    with jax.enable_x64(True):
        part = recipe.RecipePart(of_the_product, np.zeros((1, 1)))
        got = search.solve_part(part, cost, np.log(1e6), BOX, 1)
    assert got.converged.all() and got.flat.all()
    assert np.isnan(got.slope[~(got.at_low | got.at_high)]).all()
    said = dataclasses.replace(at_20000, flat=np.ones_like(at_20000.flat)).summary()["notes"]
    assert "other allocations are as good" in said[0]


def of_the_product(theta, log_x):
    return jnp.exp(-0.3 * jnp.sum(log_x)) + theta[0]


# --- one recipe to follow --------------------------------------------------------------------------------------------


def test_joint_recipe_is_the_best_single_allocation(thetas, at_20000):
    joint = at_20000.joint
    log_a, alpha = coefficients_of(thetas)

    def average(log_x):
        return np.exp(-2.0) + np.exp(log_a - alpha * log_x[..., None, :]).sum(axis=-1).mean(axis=-1)

    assert joint.converged and joint.cost == pytest.approx(2e4, rel=1e-8)
    np.testing.assert_allclose(joint.response.mean(), average(joint.log_x), rtol=1e-12)
    assert (joint.regret >= -1e-12).all() and joint.regret.mean() > 1e-4
    # No other point of the cost surface is better: a grid in spend shares around it, then all over.
    for radius, floor in ((0.01, -1e-12), (0.3, 0.0)):
        offsets = np.array(list(itertools.product(np.linspace(-radius, radius, 21), repeat=2)))
        shares = joint.share[:2] + offsets
        shares = np.concatenate([shares, 1.0 - shares.sum(axis=1, keepdims=True)], axis=1)
        shares = shares[(shares > 1e-4).all(axis=1)]
        assert (average(np.log(shares * 2e4 / LINEAR.coefficients)) - average(joint.log_x) > floor).mean() > 0.99


def test_which_axis_to_scale(thetas):
    current = np.log([3000.0, 400.0, 9000.0])
    got = recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1, current=current)
    spent = np.exp(current) * LINEAR.coefficients
    scaled = current + np.diag(np.log((2e4 - spent.sum() + spent) / spent))
    log_a, alpha = coefficients_of(thetas)
    values = np.exp(log_a[:, None] - alpha[:, None] * scaled).sum(axis=2)
    expected = np.bincount(values.argmin(axis=1), minlength=3) / len(thetas)
    np.testing.assert_array_equal(got.next_axis, expected)
    assert np.count_nonzero(expected) > 1
    # From an allocation that already costs the budget nothing can be scaled.
    spent_all = recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1, current=current + 2.0)
    assert np.isnan(spent_all.next_axis).all()
    assert "already costs the whole budget" in spent_all.summary()["notes"][-1]


def test_default_start_is_the_median_recipe_at_a_quarter_of_the_budget(thetas, at_20000):
    earlier = np.median(water_filling(thetas, LINEAR.coefficients, 5e3, LOW, HIGH), axis=0)
    cheapest = LINEAR.log_cost(at_20000.next_from)
    assert cheapest <= np.log(5e3) + 1e-9
    # The median fits no budget exactly; it is drawn back towards the cheapest corner only as far as needed.
    np.testing.assert_allclose(at_20000.next_from / at_20000.next_from[0], earlier / earlier[0], rtol=1e-6)
    np.testing.assert_allclose(at_20000.next_from, earlier, atol=0.2)
    assert at_20000.next_axis.sum() == pytest.approx(1.0)


def test_mixture_concatenates_its_laws(thetas, at_20000):
    parts = [(additive, thetas[:24]), recipe.RecipePart(additive, thetas[24:])]
    got = recipe.recipe_of_mixture(parts, LINEAR, 2e4, BOX, num_starts=1)
    np.testing.assert_allclose(got.log_x, at_20000.log_x, atol=1e-8)
    np.testing.assert_allclose(got.joint.log_x, at_20000.joint.log_x, atol=1e-7)
    np.testing.assert_array_equal(got.next_axis, at_20000.next_axis)


# --- rounding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_rounding_agrees_with_brute_force_on_integers(seed):
    rng = np.random.default_rng(seed)
    thetas = draws_of_additive(16, seed=seed)
    cost = recipe.Posynomial(rng.uniform(0.5, 4.0, 3), np.eye(3))
    box = recipe.Box(np.zeros(3), np.log([12.0, 20.0, 25.0]))
    budget = float(rng.uniform(20.0, 60.0))
    allowed = [recipe.AllowedValues(step=1.0, origin=1.0)] * 3
    got = recipe.optimise_recipe(additive, thetas, cost, budget, box, num_starts=1, allowed=allowed)

    grid = np.log(np.array(list(itertools.product(range(1, 13), range(1, 21), range(1, 26))), dtype=float))
    grid = grid[cost.log_cost(grid) <= np.log(budget)]
    log_a, alpha = coefficients_of(thetas)
    values = np.exp(-2.0) + np.exp(log_a[:, None] - alpha[:, None] * grid).sum(axis=2)
    each = np.exp(-2.0) + np.exp(log_a - alpha * got.rounded_log_x).sum(axis=1)
    np.testing.assert_allclose(each, values.min(axis=1), rtol=1e-9)
    np.testing.assert_allclose(got.joint.rounded_response.mean(), values.mean(axis=0).min(), rtol=1e-9)
    whole = np.exp(got.rounded_log_x)
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-9)


def test_rounding_spends_the_rest_on_the_continuous_axes(thetas):
    # Powers of two on the first axis, whole numbers on the second, any value on the third.
    allowed = [recipe.AllowedValues(values=tuple(2.0**k for k in range(20))), recipe.AllowedValues(step=1.0), None]
    got = recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1, allowed=allowed)
    rounded = np.exp(got.joint.rounded_log_x)
    assert np.log2(rounded[0]) == pytest.approx(round(np.log2(rounded[0])), abs=1e-9)
    assert rounded[1] == pytest.approx(round(rounded[1]), abs=1e-6)
    # Less than one whole step of the second axis may be left over.
    assert 2e4 - 3.0 * 1.01 <= rounded @ LINEAR.coefficients <= 2e4 * (1 + 1e-9)
    log_a, alpha = coefficients_of(thetas)
    best = np.inf
    for first in 2.0 ** np.arange(15):
        second = np.linspace(1.0, (2e4 - first) / 3.0 - 1.0, 3000)
        points = np.log(np.stack([np.full_like(second, first), second, (2e4 - first - 3.0 * second) / 0.1], axis=1))
        points = points[points[:, 2] > 0]
        best = min(best, np.exp(log_a[:, None] - alpha[:, None] * points).sum(axis=2).mean(axis=0).min())
    assert got.joint.rounded_response.mean() - np.exp(-2.0) == pytest.approx(best, rel=1e-6)


def test_no_allowed_value_fits(thetas):
    allowed = [recipe.AllowedValues(values=(1e5, 2e5)), None, None]
    got = recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1, allowed=allowed)
    assert np.isnan(got.rounded_log_x).all() and np.isnan(got.joint.rounded_log_x).all()
    assert "no combination of allowed values fits" in got.summary()["notes"][-1]
    with pytest.raises(ValueError, match="no allowed value between"):
        unreachable = [recipe.AllowedValues(values=(1e8,)), None, None]
        recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, BOX, num_starts=1, allowed=unreachable)


# --- contract --------------------------------------------------------------------------------------------------------


def test_one_program_serves_many_draws_and_budgets(thetas, at_20000):
    # The fixture has compiled everything that is needed: block of 64 draws, average over 64.
    before = curves.trace_counts.copy()
    recipe.recipes_of_mixture([(additive, thetas[:40])], LINEAR, np.geomspace(1e2, 1e6, 9), BOX, num_starts=2)
    other = recipe.Posynomial(np.array([2.0, 1.0, 9.0]), np.eye(3) * 0.7)
    recipe.optimise_recipe(additive, thetas[5:60], other, 50.0, recipe.Box(LOW + 0.1, HIGH - 1.0))
    assert curves.trace_counts == before
    assert before["curves_at"] >= 1


def test_the_callers_precision_is_left_alone(at_20000):
    assert at_20000.log_x.dtype == np.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_summary_is_plain_json(at_20000):
    summary = at_20000.summary(["N", "D", "E"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    row = summary["axes"][1]
    values = np.exp(at_20000.log_x[:, 1])
    assert row["axis"] == "D"
    assert [row[q] for q in ("q05", "q25", "median", "q75", "q95")] == pytest.approx(
        list(np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]))
    )
    assert row["recommended"] == pytest.approx(np.exp(at_20000.joint.log_x[1]))
    assert row["slope_q05"] <= row["slope"] <= row["slope_q95"]
    assert summary["regret"] == pytest.approx(at_20000.joint.regret.mean())
    assert summary["notes"] == []
    with pytest.raises(ValueError, match="2 axis names for 3 axes"):
        at_20000.summary(["N", "D"])


def test_solve_positive_agrees_with_numpy():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    matrix, rhs = root @ root.T + 0.1 * np.eye(6), rng.normal(size=6)
    both = np.stack([matrix, matrix - 2.0 * np.eye(6)], axis=-1)
    (got,), smallest = factorise.solve_positive(both, np.stack([rhs, rhs], axis=-1))
    np.testing.assert_allclose(got[:, 0], np.linalg.solve(matrix, rhs), rtol=1e-9)
    assert smallest[0] > 0 > smallest[1]


@pytest.mark.parametrize(
    ("coefficients", "powers", "words"),
    [
        ([1.0, 2.0], [[1.0]], "got shapes"),
        ([0.0], [[1.0]], "not all zero"),
        ([-1.0], [[1.0]], ">= 0"),
        ([1.0], [[np.nan]], "powers must be finite"),
    ],
)
def test_impossible_costs_are_refused(coefficients, powers, words):
    with pytest.raises(ValueError, match=words):
        recipe.Posynomial(np.array(coefficients), np.array(powers))


def test_impossible_inputs_are_refused(thetas):
    with pytest.raises(ValueError, match="low <= high"):
        recipe.Box(np.array([1.0]), np.array([0.0]))
    with pytest.raises(ValueError, match="budgets must be finite"):
        recipe.optimise_recipe(additive, thetas, LINEAR, -1.0, BOX)
    with pytest.raises(ValueError, match="they must agree"):
        recipe.optimise_recipe(additive, thetas, LINEAR, 1.0, recipe.Box(LOW[:2], HIGH[:2]))
    with pytest.raises(ValueError, match="rising values"):
        recipe.AllowedValues(values=(2.0, 1.0))
    with pytest.raises(ValueError, match="power 0"):
        shares = recipe.Box(LOW, HIGH, np.array([True, True, False]))
        recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, shares)
