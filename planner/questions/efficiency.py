"""Efficiency: how much less budget the recipe needs than another allocation, for the same response."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner.errors import NothingAffordable
from planner.questions.setting import NUM_STARTS

if TYPE_CHECKING:
    from planner.questions.setting import Setting


class Efficiency(NamedTuple):
    """What an allocation wastes, for every draw; S draws."""

    cost: float  # of the allocation
    response: np.ndarray  # (S,) of the allocation, scale of the laws
    needed: np.ndarray  # (S,) the smallest budget whose best allocation gives that response
    ratio: np.ndarray  # (S,) cost / needed
    converged: np.ndarray  # (S,) bool


def efficiency(setting: Setting, x: np.ndarray) -> Efficiency:
    """The efficiency of the best allocations over the allocation `x` (A,), raw units.

    For each draw: the cost of `x` over the smallest budget whose best allocation gives the response of `x`.  At least 1
    where `x` lies within the ranges that the recipe searches.
    """
    from planner.recipe import dual, search
    from planner.recipe.curves import double_precision
    from planner.recipe.problem import cheapest_point

    log_x = setting.log_x(x)
    log_cost = float(setting.cost.log_cost(log_x))
    box, _ = setting.box(float(np.exp(log_cost)))
    box = dataclasses.replace(box, low=np.minimum(box.low, log_x), high=np.maximum(box.high, log_x))
    if (least := float(setting.cost.log_cost(cheapest_point(setting.cost, box)))) > log_cost:
        raise NothingAffordable(
            f"the allocation costs {np.exp(log_cost):.4g}, and the cheapest that keeps to [[limits]]"
            f" {np.exp(least):.4g}: there is no recipe to compare it with"
        )
    response = setting.responses(x[None])[:, 0]
    guess = np.broadcast_to(log_x, (len(response), len(log_x)))
    with double_precision():
        best = search.solve_laws(setting.laws, setting.cost, log_cost, box, NUM_STARTS, guess)
        found = dual.needed_budget(setting.laws, setting.cost, box, response, log_cost, best, log_cost)
    # The allocation itself is affordable: where no better one was found, nothing is wasted.
    log_needed = np.minimum(found.log_budget, log_cost)
    good = found.converged & np.isfinite(response)
    return Efficiency(float(np.exp(log_cost)), response, np.exp(log_needed), np.exp(log_cost - log_needed), good)
