"""The one recipe to follow: the lowest response on average over the posterior, within the budget."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.recipe import curves, optimum, rounding
from planner.recipe.curves import Curve, RecipePart
from planner.recipe.optimum import LogProblem, Optimum
from planner.recipe.problem import Box, Posynomial
from planner.recipe.result import JointRecipe
from planner.recipe.rounding import AllowedValues

# Optima of single draws tried as the joint recipe before it is polished.
NUM_CANDIDATES = 8


class _Average(NamedTuple):
    """The average response over the draws that count."""

    laws: list[RecipePart]
    counted: np.ndarray  # (S,) bool
    cost: Posynomial
    log_budget: float

    def minimise(self, box: Box, start: np.ndarray) -> Optimum:
        """The best point reached from `start` (A,); arrays of one row."""
        return optimum.minimise(self._curve, LogProblem.of(self.cost, box), self.log_budget, start[None])

    def responses(self, log_x: np.ndarray) -> np.ndarray:
        """Response of every draw, counted or not, at one point (A,); (S,)."""
        return np.concatenate([curves.responses(law, log_x[None])[:, 0] for law in self.laws])

    def _curve(self, _: np.ndarray, log_x: np.ndarray) -> Curve:
        """The average and its derivatives at one point (A, 1)."""
        ends = np.cumsum([law.num_draws for law in self.laws])[:-1]
        totals = []
        for law, counted in zip(self.laws, np.split(self.counted, ends), strict=True):
            rows = np.flatnonzero(counted)
            if len(rows):
                found = curves.curves(law, rows, np.repeat(log_x, len(rows), axis=1))
                totals.append([leaf.sum(axis=-1, keepdims=True) for leaf in found])
        return Curve(*(sum(leaf) / self.counted.sum() for leaf in zip(*totals, strict=True)))


def average_allocation(
    laws: list[RecipePart], cost: Posynomial, log_budget: float, box: Box, starts: np.ndarray
) -> np.ndarray | None:
    """The point (A,) of the lowest average response that the budget buys, from the best of `starts` (M, A); or None."""
    starts = np.clip(starts, box.low, box.high)
    values = np.concatenate([curves.responses(law, starts) for law in laws])
    counted = np.isfinite(values).all(axis=1)
    if not counted.any():
        return None
    average = _Average(laws, counted, cost, log_budget)
    return average.minimise(box, starts[np.argmin(values[counted].mean(axis=0))]).log_x[0]


def joint_recipe(
    laws: list[RecipePart],
    cost: Posynomial,
    log_budget: float,
    box: Box,
    found: Optimum,
    allowed: Sequence[AllowedValues | None] | None = None,
) -> JointRecipe | None:
    """Minimises the average response, starting from the draws' own optima; None if no draw has one."""
    usable = np.flatnonzero(found.converged)
    if len(usable) == 0:
        return None
    candidates = found.log_x[usable[np.unique(np.linspace(0, len(usable) - 1, NUM_CANDIDATES).astype(int))]]
    values = np.concatenate([curves.responses(law, candidates) for law in laws])
    # A draw that is not finite at another draw's optimum would make every average infinite.
    counted = found.converged & np.isfinite(values).all(axis=1)
    if not counted.any():
        return None
    average = _Average(laws, counted, cost, log_budget)
    best = average.minimise(box, candidates[np.argmin(values[counted].mean(axis=0))])
    log_x = best.log_x[0]
    response, elasticity = average.responses(log_x), cost.elasticity(log_x)
    rounded = None if allowed is None else _rounded(average, log_x, box, allowed)
    return JointRecipe(
        log_x=log_x,
        response=response,
        regret=response - found.response,
        share=elasticity / elasticity.sum(),
        cost=float(np.exp(cost.log_cost(log_x))),
        converged=bool(best.converged[0]),
        rounded_log_x=rounded,
        rounded_response=None if rounded is None else average.responses(rounded),
    )


def _rounded(average: _Average, log_x: np.ndarray, box: Box, allowed: Sequence[AllowedValues | None]) -> np.ndarray:
    """The joint recipe on the allowed values, (A,); NaN if none of them fits the budget."""
    around = (average.cost, average.log_budget)
    first, value = rounding.round_average(average.laws, average.counted, log_x, *around, box, allowed)
    held = rounding.coarse_axes(allowed, box, log_x)
    if held.all() or not np.isfinite(first).all():
        return first
    # The continuous axes are best where the others now are, not where they were before rounding.
    inner = dataclasses.replace(box, low=np.where(held, first, box.low), high=np.where(held, first, box.high))
    again = average.minimise(inner, first)
    second, lower = rounding.round_average(average.laws, average.counted, again.log_x[0], *around, inner, allowed)
    return second if lower < value else first
