"""The budget that it takes to reach a response, and with which probability it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError, UnreliableFit
from planner.questions.answer import Answer, quantiles

if TYPE_CHECKING:
    from planner.questions.setting import Setting
    from planner.recipe.problem import Box

# Budgets are looked for up to this many times the study's.
LIMIT = 1e9
_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
_MAX_TRIES = 12
_CLOSE = 0.02  # of the log budget
MIN_CONVERGED = 0.5


def need_answer(setting: Setting, response: float, probability: float) -> Answer:
    """The smallest budget whose recipe reaches `response` (raw units) with `probability`.

    Raises `InputError` for a response or probability that cannot be, `UnreliableFit` where optima were not found.
    """
    import pandas as pd

    from planner.recipe import dual
    from planner.recipe.curves import double_precision

    if not 0.0 < probability < 1.0:
        raise InputError(f"the probability is {probability!r}: it must lie between 0 and 1")
    scale = setting.posterior.encoding.scale
    wanted = float(scale.to_eta(np.array([response]))[0])
    if not np.isfinite(wanted):
        raise InputError(f"no run can have a response of {response:g}")
    total = setting.spec.budget.total
    limit = LIMIT * total
    box, _ = setting.box(limit)
    start = setting.solve(total, box)
    target = np.full(len(start.response), wanted)
    with double_precision():
        needed = dual.needed_budget(
            setting.laws, setting.cost, box, target, float(np.log(limit)), start, float(np.log(total))
        )
    if needed.converged.mean() < MIN_CONVERGED:
        raise UnreliableFit(f"the budget for a response of {response:g} was found for few of the posterior draws")
    budgets = np.exp(needed.log_budget[needed.converged])
    never = float(np.isinf(budgets).mean())
    own = quantiles(budgets)
    follow = _Follow(setting, box, wanted, needed.log_x[needed.converged])
    first = float(np.sort(budgets)[min(int(np.ceil(probability * len(budgets))) - 1, len(budgets) - 1)])
    budget = follow.smallest(probability, first, limit)
    notes = list(setting.posterior.notes)
    if budget is None:
        notes.append(
            f"never with probability {probability:g}: the best response at any budget up to {limit:.3g} stays short of"
            f" {response:g} in {never:.0%} of draws, and the recipe to follow misses it more often"
        )
    around = budget if budget is not None else (first if np.isfinite(first) else total)
    rows = [
        {
            "budget": around * factor,
            "probability": follow.probability(around * factor),
            "probability_own": float((budgets <= around * factor).mean()),
        }
        for factor in _FACTORS
        if setting.cost.log_cost(follow.cheapest) < np.log(around * factor)
    ]
    axes = None if budget is None else dict(zip(setting.spec.axis_names, follow.point(budget).tolist(), strict=True))
    values = {
        "response": response,
        "probability": probability,
        "unit": setting.spec.cost.unit,
        "budget": budget,
        "axes": axes,
        "never": never,
        "limit": limit,
        "needed": own,
    }
    return Answer(
        question="need", domain=setting.domain, values=values, tables={"budgets": pd.DataFrame(rows)}, notes=notes
    )


class _Follow:
    """What happens to those who follow the recipe of a budget: they know its allocation, not their draw."""

    def __init__(self, setting: Setting, box: Box, wanted: float, found: np.ndarray) -> None:
        from planner.recipe.problem import cheapest_point

        self.setting, self.box, self.wanted, self.found = setting, box, wanted, found
        self.cheapest = cheapest_point(setting.cost, box)
        self._points: dict[float, np.ndarray] = {}

    def point(self, budget: float) -> np.ndarray:
        """The recipe of `budget`, (A,) raw units, whole numbers and lists of values not heeded."""
        if budget not in self._points:
            self._points[budget] = self.box.raw(self.setting.allocation(budget, self.box, self.found))
        return self._points[budget]

    def probability(self, budget: float) -> float:
        """Of reaching the response, discrepancy included."""
        eta = self.setting.posterior.eta_draws(np.array([self.setting.index]), self.point(budget)[None])[:, 0]
        return float((eta <= self.wanted).mean())

    def smallest(self, probability: float, first: float, limit: float) -> float | None:
        """The smallest budget that reaches the response with `probability`, to 2 %; None if not even `limit` does."""
        least = float(np.exp(self.setting.cost.log_cost(self.cheapest))) * (1 + 1e-6)
        low, high = np.log(least), np.log(limit)
        if self.probability(least) >= probability:
            return least
        if self.probability(limit) < probability:
            return None
        tried, step = (np.log(first) if np.isfinite(first) else 0.5 * (low + high)), 0.2
        for _ in range(2 * _MAX_TRIES):
            tried = float(np.clip(tried, low, high))
            enough = self.probability(float(np.exp(tried))) >= probability
            low, high = (low, tried) if enough else (tried, high)
            if high - low < _CLOSE:
                break
            # Outwards from the first guess in growing steps, then by halves.
            far = tried - step if enough else tried + step
            tried, step = (far, 3.0 * step) if low < far < high else (0.5 * (low + high), step)
        return float(np.exp(high))
