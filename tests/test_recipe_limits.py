"""Recipes within limits on products of axes: against a general optimiser, and asked of whole studies."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import scipy.optimize

from planner import candidates, limits, recipe
from planner.errors import InputError, NothingAffordable
from planner.recipe import problem, search
from planner.recipe.problem import Limits
from planner.spec import StudySpec, parse_study_spec
from planner.study import Study
from tests.test_recipe import BOX, LINEAR, NUM_AXES, additive, coefficients_of, draws_of_additive

LOG_BUDGET = float(np.log(2e4))
FREE = np.inf


def bounded(*rows: tuple[list[float], float, float]) -> recipe.Box:
    """The box of the recipe tests with limits (powers, low, high), bounds in raw units."""
    powers, low, high = (np.array(column) for column in zip(*rows, strict=True))
    with np.errstate(divide="ignore"):
        return dataclasses.replace(BOX, limits=Limits(powers, np.log(low), np.log(high)))


def general(thetas: np.ndarray, box: recipe.Box) -> np.ndarray:
    """The lowest responses (S,) that scipy finds from three starts."""
    assert box.limits is not None
    rows = zip(box.limits.powers, box.limits.low, box.limits.high, strict=True)
    own = [scipy.optimize.LinearConstraint(*row) for row in rows]
    budget = scipy.optimize.NonlinearConstraint(LINEAR.log_cost, -np.inf, LOG_BUDGET, jac=LINEAR.elasticity)
    lowest = []
    for theta in thetas:
        (log_a, alpha), floor = coefficients_of(theta[None]), np.exp(theta[0])

        def value(x: np.ndarray, log_a: np.ndarray = log_a, alpha: np.ndarray = alpha, floor: float = floor) -> float:
            return float(floor + np.exp(log_a[0] - alpha[0] * x).sum())

        found = [
            scipy.optimize.minimize(
                value,
                np.full(NUM_AXES, start),
                bounds=np.stack([box.low, box.high], axis=1),
                constraints=[*own, budget],
                method="SLSQP",
                options={"ftol": 1e-13, "maxiter": 500},
            )
            for start in (1.0, 3.0, 6.0)
        ]
        lowest.append(min(each.fun for each in found if each.success))
    return np.array(lowest)


CASES = {
    "equality": [([1.0, 1.0, 0.0], 500.0, 500.0)],
    "at most": [([1.0, 1.0, 0.0], 0.0, 500.0)],
    "at least": [([0.0, 1.0, -1.0], 3.0, FREE)],
    "between": [([2.0, 0.0, -1.0], 0.1, 0.5)],
    "two at once": [([1.0, 1.0, 0.0], 500.0, 500.0), ([0.0, 1.0, 1.0], 0.0, 2000.0)],
    "two equations": [([1.0, 1.0, 0.0], 500.0, 500.0), ([0.0, 1.0, 1.0], 2000.0, 2000.0)],
    "twice the same": [([1.0, 1.0, 0.0], 0.0, 500.0), ([2.0, 2.0, 0.0], 0.0, 250000.0)],
    "at a corner": [([1.0, 1.0, 1.0], 0.0, 1.5)],
}


@pytest.mark.parametrize("case", CASES)
def test_the_lowest_response_within_limits(case: str) -> None:
    thetas, box = draws_of_additive(16, seed=3), bounded(*CASES[case])
    with jax.enable_x64(True):
        got = search.solve_part(recipe.RecipePart(additive, thetas), LINEAR, LOG_BUDGET, box, 2)
    assert box.limits is not None and got.converged.all()
    assert box.limits.hold(got.log_x).all()
    assert (LINEAR.log_cost(got.log_x) <= LOG_BUDGET + 1e-8).all()
    # The response reported is that of the law alone, with nothing left of what kept the search within the limits.
    log_a, alpha = coefficients_of(thetas)
    terms = np.exp(log_a - alpha * got.log_x)
    np.testing.assert_allclose(got.response, np.exp(-2.0) + terms.sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(got.gradient, -alpha * terms, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got.response, general(thetas, box), rtol=1e-6)


def test_limits_that_do_not_bind_change_nothing() -> None:
    thetas = draws_of_additive(16, seed=3)
    part = recipe.RecipePart(additive, thetas)
    with jax.enable_x64(True):
        free, wide = (
            search.solve_part(part, LINEAR, LOG_BUDGET, box, 1) for box in (BOX, bounded(([1.0, 1.0, 1.0], 1e-3, 1e17)))
        )
    np.testing.assert_allclose(free.log_x, wide.log_x, atol=1e-6)
    np.testing.assert_allclose(free.slope, wide.slope, atol=1e-6)


def test_slopes_follow_the_limit() -> None:
    box, thetas = bounded(([1.0, 1.0, 0.0], 500.0, 500.0)), draws_of_additive(8, seed=4)
    part, step = recipe.RecipePart(additive, thetas), 1e-3
    with jax.enable_x64(True):
        here, more, less = (search.solve_part(part, LINEAR, LOG_BUDGET + shift, box, 1) for shift in (0.0, step, -step))
    np.testing.assert_allclose(here.slope, (more.log_x - less.log_x) / (2 * step), atol=5e-3)
    np.testing.assert_allclose(here.multiplier, (less.response - more.response) / (2 * step), rtol=2e-3)
    np.testing.assert_allclose(here.slope[:, 0] + here.slope[:, 1], 0.0, atol=5e-3)


def test_the_cheapest_point_keeps_to_limits() -> None:
    # 1 x + 3 y with x y = 300 costs least at x = 30, y = 10.
    box = bounded(([1.0, 1.0, 0.0], 300.0, 300.0))
    np.testing.assert_allclose(np.exp(problem.cheapest_point(LINEAR, box)), [30.0, 10.0, 1.0], rtol=1e-5)
    starts = problem.start_points(LINEAR, LOG_BUDGET, box, 4)
    assert box.limits is not None and np.abs(box.limits.excess(starts)).max() < 1e-6
    assert (LINEAR.log_cost(starts) <= LOG_BUDGET + 1e-9).all()
    assert np.ptp(starts.reshape(-1, NUM_AXES), axis=0).min() > 1.0, "they fill what the limits leave"


def test_no_axis_alone_leaves_a_limit() -> None:
    box = bounded(([1.0, 1.0, 0.0], 0.0, 500.0), ([0.0, 0.0, 1.0], 8.0, 8.0))
    assert box.limits is not None
    start, along = np.log([5.0, 20.0, 8.0]), np.diag(np.full(NUM_AXES, 3.0))
    room = box.limits.room(start, along)
    np.testing.assert_allclose(room, [np.log(5.0) / 3.0, np.log(5.0) / 3.0, 0.0], atol=1e-9)
    step = problem.largest_step(LINEAR, np.log(50.0 + 60.0 + 0.8), start, along, box.limits)
    np.testing.assert_allclose(step, [np.log(5.0) / 3.0, np.log((50.0 + 60.0 - 5.0) / 60.0) / 3.0, 0.0], atol=1e-9)
    thetas = draws_of_additive(16, seed=3)
    fixed = bounded(([1.0, 1.0, 0.0], 500.0, 500.0))
    found = recipe.optimise_recipe(additive, thetas, LINEAR, 2e4, fixed, num_starts=1)
    assert found.next_axis is not None and found.next_axis[:2].tolist() == [0.0, 0.0] and found.next_axis[2] > 0.9


def test_limits_that_exclude_each_other_are_found() -> None:
    product, ratio = [1.0, 1.0, 0.0], [1.0, -1.0, 0.0]
    assert problem.infeasible_limits(bounded((product, 10.0, 20.0), (ratio, 0.5, 2.0))) == []
    assert problem.infeasible_limits(bounded((ratio, 0.5, 2.0), (product, 0.0, 0.5))) == [1]
    apart = bounded((ratio, 0.5, 2.0), (product, 10.0, 20.0), (product, 30.0, FREE))
    assert problem.infeasible_limits(apart) == [1, 2]
    with pytest.raises(InputError, match=r"limits\[1\], limits\[2\]"):
        problem.cheapest_point(LINEAR, apart)


def test_whole_numbers_keep_to_limits() -> None:
    thetas = draws_of_additive(16, seed=3)
    powers_of_two = recipe.AllowedValues(values=tuple(2.0 ** np.arange(12)))
    allowed = [powers_of_two, powers_of_two, recipe.AllowedValues(step=1.0)]
    found = recipe.optimise_recipe(
        additive, thetas, LINEAR, 2e4, bounded(([1.0, 1.0, 0.0], 512.0, 512.0)), num_starts=1, allowed=allowed
    )
    assert found.joint is not None and found.joint.rounded_log_x is not None and found.rounded_log_x is not None
    for rounded in (found.joint.rounded_log_x, *found.rounded_log_x):
        raw = np.exp(rounded)
        assert raw[0] * raw[1] == pytest.approx(512.0) and raw[2] == pytest.approx(np.round(raw[2]))
    none = recipe.optimise_recipe(
        additive, thetas, LINEAR, 2e4, bounded(([1.0, 1.0, 0.0], 500.0, 500.0)), num_starts=1, allowed=allowed
    )
    assert "no combination of allowed values fits the budget and the limits near the optimum" in none.summary()["notes"]


# ---- whole studies --------------------------------------------------------------------------------------------------


def study(*bounds: dict[str, Any], **changes: Any) -> StudySpec:
    document: dict[str, Any] = {
        "study": {"name": "limits"},
        "response": {"name": "loss", "lower": 0, "expect": [1.5, 6.0]},
        "axes": [
            {"name": "N", "role": "parameters", "low": 1e7, "high": 1e9},
            {"name": "D", "role": "tokens", "low": 2e8, "high": 2e10},
        ],
        "cost": {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}}]},
        "limits": list(bounds),
        "budget": {"total": 2e20},
        "targets": [{"kind": "recipe", "budgets": [1e20]}],
        "laws": {"use": ["sum_of_powers"]},
    }
    return parse_study_spec(document | changes)


TOKENS_PER_PARAMETER = {"powers": {"D": 1, "N": -1}}


def told(spec: StudySpec) -> Study:
    """The study with runs of a Chinchilla law, wherever its limits are."""
    opened = Study.from_spec(spec)
    for n in (1e7, 1e8, 1e9):
        for d in (2e8, 2e9, 2e10):
            opened.attach({"N": n, "D": d}, 1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28)
    return opened


def test_designs_lie_on_a_limit_that_is_an_equation() -> None:
    spec = study(TOKENS_PER_PARAMETER | {"low": 20, "high": 20})
    designs = candidates.all_designs(spec)
    assert len(designs) > 50 and np.ptp(np.log(designs.x[:, 0])) > 0.9 * np.log(1e2)
    np.testing.assert_allclose(designs.x[:, 1] / designs.x[:, 0], 20.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([TOKENS_PER_PARAMETER | {"low": 1e5}], r"limits\[0\] \(D \* N\^-1 >= 100000\): cannot be kept within"),
        (
            [
                {"powers": {"N": 1, "D": 1}, "high": 1e17},
                {"powers": {"N": 1}, "low": 1e8},
                {"powers": {"D": 1}, "low": 1e10},
            ],
            r"limits\[0\] \(N \* D <= 1e\+17\) and limits\[1\].* and limits\[2\].*: cannot be kept together",
        ),
    ],
)
def test_limits_that_cannot_be_kept_are_named(bounds: list[dict[str, Any]], words: str) -> None:
    spec = study(*bounds)
    with pytest.raises(InputError, match=words):
        candidates.all_designs(spec)


def test_whole_numbers_that_never_meet_a_limit_are_an_error() -> None:
    axes = [{"name": name, "low": 4, "high": 40, "integer": True} for name in ("n", "m")]
    cost = {"terms": [{"coefficient": 1, "powers": {"n": 1}}]}
    spec = study({"powers": {"n": 1, "m": 1}, "low": 131.5, "high": 131.5}, axes=axes, cost=cost)
    with pytest.raises(InputError, match=r"limits\[0\] \(n \* m = 131.5\): no design of the box keeps to it"):
        candidates.all_designs(spec)


def test_a_limit_on_a_linear_axis_is_refused_where_recipes_are_asked() -> None:
    axes = [{"name": "N", "low": 1, "high": 9}, {"name": "D", "low": 1, "high": 9, "scale": "linear"}]
    with pytest.raises(InputError, match=r"limits\[0\] bounds axis 'D', which has a linear scale"):
        limits.log_limits(study({"powers": {"D": 1}, "high": 5}, axes=axes))


@pytest.mark.slow
def test_answers_keep_to_limits(tmp_path: Path) -> None:
    ratio = TOKENS_PER_PARAMETER | {"low": 20, "high": 20}
    free, fixed, capped, both = (
        told(study(*bounds))
        for bounds in (
            (),
            (ratio,),
            ({"powers": {"N": 1}, "high": 2e8},),
            (ratio, {"powers": {"N": 1, "D": 1}, "high": 1e18}),
        )
    )
    answer = fixed.recipe(1e20)
    assert answer.joint["axes"]["D"] / answer.joint["axes"]["N"] == pytest.approx(20.0, rel=1e-8)
    # 6 N 20 N = 1e20
    assert answer.joint["axes"]["N"] == pytest.approx(np.sqrt(1e20 / 120.0), rel=1e-6)
    np.testing.assert_allclose(answer.draws["D"] / answer.draws["N"], 20.0, rtol=1e-8)
    assert answer.response["median"] >= free.recipe(1e20).response["median"]
    held = capped.recipe(1e21)
    assert held.joint["axes"]["N"] <= 2e8 * (1 + 1e-9) and held.joint["cost"] == pytest.approx(1e21, rel=1e-6)
    assert any("limits[0] (N <= 200000000) binds" in note for note in held.notes)
    # Two at once: the ratio is kept, and the product keeps most of the budget from being spent.
    two = both.recipe(1e20)
    assert two.joint["axes"]["N"] == pytest.approx(np.sqrt(1e18 / 20.0), rel=1e-6)
    assert two.joint["cost"] == pytest.approx(6e18, rel=1e-6)
    swept = both.sweep(1e18, 1e20, 5)["axes"].pivot(index="budget", columns="axis", values="recommended")
    np.testing.assert_allclose(swept["D"] / swept["N"], 20.0, rtol=1e-8)
    wanted = np.minimum(swept.index.to_numpy() / 6.0, 1e18)
    np.testing.assert_allclose(swept["N"] * swept["D"], wanted, rtol=1e-6)
    with pytest.raises(NothingAffordable, match=r"keeps to|within \[\[limits\]\]|does not buy|buys no"):
        told(study({"powers": {"N": 1}, "low": 5e8})).recipe(1e17)
    versus = fixed.recipe(1e20, versus=["N=1e8,D=*"])
    assert any("plan N=1e8,D=* does not keep to limits[0] (D * N^-1 = 20)" in note for note in versus.notes)
    table = capped.compare(1e20)["axes"].set_index("axis")
    assert table.loc["D", "best"] > 0.5
    needed = fixed.need(answer.response["median"] * 1.02)
    assert needed["axes"]["D"] / needed["axes"]["N"] == pytest.approx(20.0, rel=1e-6)


@pytest.mark.slow
def test_a_limit_that_changes_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    body = """
[study]
name = "kept"
[[axes]]
name = "N"
low = 1e7
high = 1e9
[[axes]]
name = "D"
low = 2e8
high = 2e10
[cost]
terms = [{ coefficient = 6, powers = { N = 1, D = 1 } }]
[budget]
total = 2e20
[laws]
use = ["sum_of_powers"]
"""
    path = tmp_path / "kept.toml"
    path.write_text(body)
    with Study.open(path) as opened:
        for n, d in ((1e7, 2e8), (1e8, 2e9), (1e9, 2e8), (1e7, 2e10)):
            opened.attach({"N": n, "D": d}, 1.69 + 406.4 * n**-0.34 + 410.7 * d**-0.28)
        assert opened.recipe(1e20).joint["axes"]["N"] > 1e8
    path.write_text(body + "[[limits]]\npowers = { N = 1 }\nhigh = 1e8\n")
    with Study.open(path) as opened:
        assert opened.recipe(1e20).joint["axes"]["N"] <= 1e8 * (1 + 1e-9)
