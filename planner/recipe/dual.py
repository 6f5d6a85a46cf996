"""The smallest budget whose best allocation reaches a response, for every posterior draw: the recipe's dual."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.recipe import search
from planner.recipe.curves import RecipePart
from planner.recipe.optimum import Optimum
from planner.recipe.problem import Box, Posynomial, cheapest_point

MAX_STEPS = 25
TOLERANCE = 1e-6  # of the log budget
# A bracket so narrow is not halved further: where the lowest response jumps from one minimum to another, Newton's
# method never arrives, and those few draws used to take most of the time.
BRACKET = 1e-4
RETRY_STARTS = 2


class Needed(NamedTuple):
    """What reaching a response takes; S draws, A axes."""

    log_budget: np.ndarray  # (S,) inf where not even the limit reaches it, the cheapest cost where that does
    log_x: np.ndarray  # (S, A) the allocation of that budget; of the limit where it is not reached
    converged: np.ndarray  # (S,) bool, the optima on the way were certified


def needed_budget(
    laws: Sequence[RecipePart],
    cost: Posynomial,
    box: Box,
    response: np.ndarray,
    log_limit: float,
    start: Optimum,
    log_start: float,
) -> Needed:
    """The budgets at which the lowest responses equal `response` (S,).

    Newton's method on lowest(log budget) = response, whose derivative is minus the multiplier of the budget, held in a
    bracket that bisection shrinks.  The lowest response of a law falls with the budget, so there is one crossing.

    Args:
        response: smaller is better, on the scale of the mean functions.
        log_limit: no larger budget is looked at.
        start: the optima of all draws at `log_start`.
    """
    num_draws, least = len(response), float(cost.log_cost(cheapest_point(cost, box)))
    # A bracket of the crossing; an end counts once it was looked at.
    low, high = np.full(num_draws, least), np.full(num_draws, log_limit)
    saw_low, saw_high = np.zeros(num_draws, dtype=bool), np.zeros(num_draws, dtype=bool)
    log_budget = np.full(num_draws, log_start)
    here, x, slope, multiplier, converged = (
        np.array(leaf) for leaf in (start.response, start.log_x, start.slope, start.multiplier, start.converged)
    )
    active = np.isfinite(here) & np.isfinite(response)
    converged &= active
    for _ in range(MAX_STEPS):
        gap = here - response
        up, down = active & (gap > 0), active & (gap <= 0)
        low, saw_low = np.where(up, log_budget, low), saw_low | up
        high, saw_high = np.where(down, log_budget, high), saw_high | down
        # Ends where not even the limit is enough, or the cheapest point already is.
        active &= ~(up & (log_budget >= log_limit)) & ~(down & (log_budget <= least)) & (high - low > BRACKET)
        target = _next_budget(log_budget, gap, multiplier, (low, saw_low), (high, saw_high))
        active &= np.abs(target - log_budget) > TOLERANCE
        if not active.any():
            break
        step = (target - log_budget)[active]
        guess = x[active] + np.nan_to_num(slope[active]) * step[:, None]
        # A little above the cheapest cost, where there is still a choice.
        wanted = np.maximum(target[active], least + 1e-9)
        found = search.solve_laws(laws, cost, wanted, box, 1, guess, active, retry=RETRY_STARTS)
        log_budget = np.where(active, target, log_budget)
        here[active], multiplier[active], converged[active] = found.response, found.multiplier, found.converged
        x[active], slope[active] = found.log_x, found.slope
    # Rounding: a response that is met to within the tolerance is met.
    reached = saw_high | (np.abs(here - response) <= TOLERANCE * np.maximum(multiplier, 0.0))
    return Needed(np.where(reached, np.where(active, high, log_budget), np.inf), x, converged & ~active)


def _next_budget(
    log_budget: np.ndarray,
    gap: np.ndarray,
    multiplier: np.ndarray,
    low: tuple[np.ndarray, np.ndarray],
    high: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Newton's guess where it lies in the bracket; an end not looked at yet where it lies beyond; else the middle."""
    (below, saw_below), (above, saw_above) = low, high
    with np.errstate(divide="ignore", invalid="ignore"):
        newton = log_budget + gap / multiplier
    target = 0.5 * (below + above)
    target = np.where((newton >= above) & ~saw_above, above, target)
    target = np.where((newton <= below) & ~saw_below, below, target)
    return np.where((newton > below) & (newton < above), newton, target)
