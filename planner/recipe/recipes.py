"""Recipe queries: one law or a mixture of laws, one budget or many."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from planner.recipe import curves, joint, rounding, search
from planner.recipe.curves import Mean, RecipePart
from planner.recipe.optimum import Optimum
from planner.recipe.problem import Box, Posynomial, cheapest_point, largest_step
from planner.recipe.result import RecipePosterior
from planner.recipe.rounding import AllowedValues

# The default allocation to scale from is the median recipe at this fraction of the budget, from this many draws.
EARLIER_BUDGET = 0.25
MEDIAN_DRAWS = 256


def optimise_recipe(
    mean: Mean,
    thetas: Any,
    cost: Posynomial,
    budget: float,
    box: Box,
    *,
    shared: tuple[Any, ...] = (),
    num_starts: int = 8,
    current: np.ndarray | None = None,
    allowed: Sequence[AllowedValues | None] | None = None,
    round_draws: bool = True,
) -> RecipePosterior:
    """The axis values with the lowest mean response that `budget` buys, for every posterior draw of one law.

    Args:
        mean: `mean(theta, log_x (A,), *shared) -> ()`, pure JAX, smaller is better; twice differentiable.  A
            module-level or cached function: it is compiled once per function object.
        thetas: draws, (S, p), or a pytree of arrays with a leading axis S.
        cost: cost of one run in units of `budget`.
        budget: largest cost, > 0.
        box: bounds of the axes, natural logs.
        shared: pytrees passed to `mean` unchanged (centring constants, basis functions).
        num_starts: regions searched for the lowest of several minima.  1 is exact, and faster, for a mean that is
            convex in the logs (sums of powers with positive coefficients).
        current: axis coordinates (A,) to scale from when asking which single axis to scale; by default the median
            recipe at a quarter of the budget.
        allowed: per axis the values a run may take, None for any; adds rounded recipes.
        round_draws: whether the recipe of every draw is rounded too, which takes longer than all the rest.

    Returns:
        Never raises for a draw: see `converged`, `affordable`, and `require_affordable`, `require_reliable`.
        Raises `ValueError` if the shapes disagree or the budget is not positive.
    """
    part = RecipePart(mean, thetas, shared)
    return recipe_of_mixture(
        [part], cost, budget, box, num_starts=num_starts, current=current, allowed=allowed, round_draws=round_draws
    )


def recipe_of_mixture(
    parts: Sequence[RecipePart | tuple[Any, ...]],
    cost: Posynomial,
    budget: float,
    box: Box,
    *,
    num_starts: int = 8,
    current: np.ndarray | None = None,
    allowed: Sequence[AllowedValues | None] | None = None,
    round_draws: bool = True,
) -> RecipePosterior:
    """`optimise_recipe` for several laws, each with its draws; rows follow the order of `parts`.

    `parts` holds `RecipePart`s or tuples `(mean, thetas)`, `(mean, thetas, shared)`.  All draws count alike: a law's
    weight is its number of draws.
    """
    return recipes_of_mixture(
        parts, cost, [budget], box, num_starts=num_starts, current=current, allowed=allowed, round_draws=round_draws
    )[0]


def recipes_of_mixture(
    parts: Sequence[RecipePart | tuple[Any, ...]],
    cost: Posynomial,
    budgets: Sequence[float],
    box: Box,
    *,
    num_starts: int = 8,
    current: np.ndarray | None = None,
    allowed: Sequence[AllowedValues | None] | None = None,
    round_draws: bool = True,
) -> list[RecipePosterior]:
    """`recipe_of_mixture` at several budgets, in their order; all share one compiled program per law."""
    laws = [RecipePart(*part) for part in parts]
    _check_inputs(laws, cost, budgets, box, num_starts)
    if current is not None:
        current = np.asarray(current, dtype=np.float64)
    # A scope rather than global configuration: the caller's own JAX programs keep their precision.
    with jax.enable_x64(True):
        found: dict[float, RecipePosterior] = {}
        before = None
        for budget in sorted(map(float, budgets)):
            before = found[budget] = _recipe(laws, cost, budget, box, num_starts, current, allowed, before, round_draws)
        return [found[float(budget)] for budget in budgets]


def _check_inputs(
    laws: list[RecipePart], cost: Posynomial, budgets: Sequence[float], box: Box, num_starts: int
) -> None:
    if cost.powers.shape[1] != len(box.low):
        raise ValueError(f"the cost has {cost.powers.shape[1]} axes and the box {len(box.low)}; they must agree")
    if not laws or any(law.num_draws == 0 for law in laws):
        raise ValueError("need at least one law, and at least one draw of each law")
    if any(not (np.isfinite(b) and b > 0) for b in budgets):
        raise ValueError(f"budgets must be finite and > 0, got {list(budgets)}")
    if num_starts < 1:
        raise ValueError(f"num_starts must be at least 1, got {num_starts}")
    if (cost.powers[:, ~box.is_log] != 0).any():
        raise ValueError("an axis that is not log-scaled must have power 0 in every cost term")


def _recipe(
    laws: list[RecipePart],
    cost: Posynomial,
    budget: float,
    box: Box,
    num_starts: int,
    current: np.ndarray | None,
    allowed: Sequence[AllowedValues | None] | None,
    before: RecipePosterior | None,
    round_draws: bool,
) -> RecipePosterior:
    log_budget = float(np.log(budget))
    if cost.log_cost(cheapest_point(cost, box)) > log_budget:
        return _nothing(cost, budget, box)
    guess = (
        None
        if before is None or not before.affordable
        else _at_budget(before.log_x, before.slope, budget / before.budget)
    )
    found = search.solve_laws(laws, cost, log_budget, box, num_starts, guess)
    start = _earlier_recipe(laws, cost, log_budget, box, found) if current is None else current
    rounded = None
    if allowed is not None and round_draws:
        rounded = rounding.round_each_draw(laws, found.log_x, cost, log_budget, box, allowed)
    terms = cost.log_terms(found.log_x)
    elasticity = cost.elasticity(found.log_x)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = elasticity / elasticity.sum(axis=1, keepdims=True)
        axis_value = -found.gradient / (elasticity * np.exp(cost.log_cost(found.log_x))[:, None])
    return RecipePosterior(
        budget=budget,
        cost=cost,
        box=box,
        log_x=found.log_x,
        response=found.response,
        slope=found.slope,
        share=share,
        term_share=np.exp(terms - np.logaddexp.reduce(terms, axis=1)[:, None]),
        multiplier=found.multiplier,
        value=found.multiplier / budget,
        axis_value=np.where(elasticity == 0, np.nan, axis_value),
        converged=found.converged,
        flat=found.flat,
        at_low=found.at_low,
        at_high=found.at_high,
        binds=found.binds,
        next_axis=_next_axis(laws, cost, log_budget, box, start),
        next_from=start,
        rounded_log_x=rounded,
        joint=joint.joint_recipe(laws, cost, log_budget, box, found, allowed),
    )


def _at_budget(log_x: np.ndarray, slope: np.ndarray, ratio: float) -> np.ndarray:
    """Where the recipes (S, A) are expected at `ratio` times the budget."""
    return log_x + np.nan_to_num(slope) * np.log(ratio)


def _earlier_recipe(
    laws: list[RecipePart], cost: Posynomial, log_budget: float, box: Box, found: Optimum
) -> np.ndarray:
    """The median recipe at a quarter of the budget, drawn back to what that buys; else the cheapest point."""
    cheapest = cheapest_point(cost, box)
    log_budget = log_budget + float(np.log(EARLIER_BUDGET))
    if cost.log_cost(cheapest) > log_budget:
        return cheapest
    stride = max(1, len(found.log_x) // MEDIAN_DRAWS)
    expected = _at_budget(found.log_x, found.slope, EARLIER_BUDGET)
    # Only their median is needed: one start and the guess will do.
    every = slice(None, None, stride)
    ends = np.cumsum([law.num_draws for law in laws])[:-1]
    near = np.concatenate([own[every] for own in np.split(expected, ends)])
    earlier = search.solve_laws(laws, cost, log_budget, box, 1, near, every)
    if not earlier.converged.any():
        return cheapest
    median = np.median(earlier.log_x[earlier.converged], axis=0)
    if box.limits is not None:
        median = box.limits.nearest(median[None], box.low, box.high)[0]
    return cheapest + largest_step(cost, log_budget, cheapest, median - cheapest, box.limits) * (median - cheapest)


def _next_axis(laws: list[RecipePart], cost: Posynomial, log_budget: float, box: Box, start: np.ndarray) -> np.ndarray:
    """Probability, over draws, that raising this axis alone to the whole budget lowers the response most; (A,).

    Sums to less than one where some draws gain from no axis.  NaN if `start` already costs the budget.
    """
    if cost.log_cost(start) >= log_budget:
        return np.full(len(box.low), np.nan)
    values = scaled_alone(laws, cost, log_budget, box, start)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) == 0:
        return np.full(len(box.low), np.nan)
    best = np.argmin(values, axis=1)
    return np.bincount(best, minlength=len(box.low) + 1)[1:] / len(best)


def scaled_alone(
    laws: Sequence[RecipePart], cost: Posynomial, log_budget: float, box: Box, start: np.ndarray
) -> np.ndarray:
    """Responses of every draw at `start` (A,) and where one axis alone is raised to the whole budget, (S, 1 + A)."""
    along = np.diag(np.maximum(box.high - start, 0.0))
    points = start + largest_step(cost, log_budget, start, along, box.limits)[:, None] * along
    return np.concatenate([curves.responses(law, np.concatenate([start[None], points])) for law in laws])


def _nothing(cost: Posynomial, budget: float, box: Box) -> RecipePosterior:
    num_axes, num_terms = len(box.low), len(cost.coefficients)
    numbers, rows, flags = np.empty(0), np.empty((0, num_axes)), np.empty(0, bool)
    return RecipePosterior(
        budget=budget,
        cost=cost,
        box=box,
        log_x=rows,
        response=numbers,
        slope=rows,
        share=rows,
        term_share=np.empty((0, num_terms)),
        multiplier=numbers,
        value=numbers,
        axis_value=rows,
        converged=flags,
        flat=flags,
        at_low=rows.astype(bool),
        at_high=rows.astype(bool),
        binds=flags,
        affordable=False,
    )
