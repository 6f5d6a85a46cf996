"""What a recipe query returns: the recipe of every posterior draw, and one recipe to follow."""

import dataclasses
from typing import Any

import numpy as np

from planner import errors
from planner.recipe import summary
from planner.recipe.problem import Box, Posynomial, cheapest_point


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointRecipe:
    """One allocation that fits the budget and gives the lowest response on average over the draws.

    Medians taken axis by axis need not fit the budget together; this does.
    """

    log_x: np.ndarray  # (A,) axis coordinates, natural log for log axes
    response: np.ndarray  # (S,) mean response of every draw at `log_x`
    regret: np.ndarray  # (S,) what each draw loses here against its own optimum, >= 0 up to rounding
    share: np.ndarray  # (A,) spend share of each axis
    cost: float  # at most the budget
    converged: bool
    rounded_log_x: np.ndarray | None = None  # (A,) on the allowed values, within the budget
    rounded_response: np.ndarray | None = None  # (S,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipePosterior:
    """The best axis values under one budget for every posterior draw; S draws, A axes, K cost terms.

    Responses are on the scale of the mean function (smaller is better).  Nothing is dropped: a draw that failed keeps
    its row with `converged` False.  When even the cheapest point of the box is too dear, `affordable` is False and
    the arrays have no rows.
    """

    budget: float
    cost: Posynomial
    box: Box
    log_x: np.ndarray  # (S, A) axis coordinates, natural log for log axes
    response: np.ndarray  # (S,) lowest mean response
    slope: np.ndarray  # (S, A) d log x / d log budget; 0 at a bound, NaN where the optimum is not unique
    share: np.ndarray  # (S, A) d log cost / d log x, normalised: the spend share under an additive linear cost
    term_share: np.ndarray  # (S, K) part of the cost spent on each term
    multiplier: np.ndarray  # (S,) fall of the lowest response per unit of log budget
    value: np.ndarray  # (S,) fall of the lowest response per unit of budget
    axis_value: np.ndarray  # (S, A) the same if spent on that axis alone; NaN for an axis that costs nothing
    converged: np.ndarray  # (S,) bool, certified a local optimum
    flat: np.ndarray  # (S,) bool, the optimum is not unique
    at_low: np.ndarray  # (S, A) bool
    at_high: np.ndarray  # (S, A) bool
    binds: np.ndarray  # (S,) bool, the whole budget is spent
    affordable: bool = True
    next_axis: np.ndarray | None = None  # (A,) probability that this axis alone is the one to scale
    next_from: np.ndarray | None = None  # (A,) coordinates from which `next_axis` scales
    rounded_log_x: np.ndarray | None = None  # (S, A) on the allowed values, within the budget; NaN if there are none
    joint: JointRecipe | None = None

    @property
    def values(self) -> np.ndarray:
        """The recipes in raw units, (S, A)."""
        return self.box.raw(self.log_x)

    def summary(self, axis_names: list[str] | None = None) -> dict[str, Any]:
        """Plain numbers and words for tables and JSON; see `summary.summarise`."""
        return summary.summarise(self, axis_names)


def require_affordable(recipe: RecipePosterior) -> None:
    """Raises `NothingAffordable` if the budget does not buy even the cheapest point of the box."""
    if not recipe.affordable:
        cheapest = float(np.exp(recipe.cost.log_cost(cheapest_point(recipe.cost, recipe.box))))
        within = "" if recipe.box.limits is None else " within the limits"
        raise errors.NothingAffordable(
            f"a budget of {recipe.budget:g} buys no allocation: the cheapest point of the axes' ranges{within} costs"
            f" {cheapest:g}; raise the budget or lower the `low` of an axis"
        )


def require_reliable(recipe: RecipePosterior, *, share: float = 0.9) -> None:
    """Raises `UnreliableFit` if fewer than `share` of the draws have a certified optimum."""
    found = float(recipe.converged.mean()) if len(recipe.converged) else 0.0
    if recipe.affordable and found < share:
        raise errors.UnreliableFit(
            f"the recipe at budget {recipe.budget:g} was found for {found:.0%} of the posterior draws, {share:.0%} are"
            " needed; raise `num_starts`, or look at the laws' fit: the response may not be finite over the box"
        )
