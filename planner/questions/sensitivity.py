"""How the recipe moves when a price is not what was declared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.questions.answer import Answer

if TYPE_CHECKING:
    from planner.questions.setting import Setting
    from planner.recipe.optimum import Optimum
    from planner.recipe.problem import Posynomial

CHANGE = 0.5
SCALE = 32.0  # ratio of the two budgets between which slopes are also measured


def sensitivity_answer(setting: Setting, budget: float, change: float = CHANGE, scale: float = SCALE) -> Answer:
    """The recipe of `budget` with each cost coefficient lowered and raised by the share `change`.

    A slope is d log x / d log budget at the budget; `slope_over` is the mean slope up to `scale` times the budget, the
    form in which published tables give exponents.  Both are medians over draws.
    """
    import pandas as pd

    if not 0.0 < change < 1.0:
        raise InputError(f"the change of a price is {change!r}: it must lie between 0 and 1, such as 0.5")
    if not scale > 1.0:
        raise InputError(f"the scale of the larger budget is {scale!r}: it must be above 1")
    base = _Recipe(setting, budget, scale, setting.cost, None, None)
    rows = list(base.rows("as declared", 1.0, base))
    for k, name in enumerate(term_names(setting)):
        for factor in (1.0 - change, 1.0 + change):
            coefficients = setting.cost.coefficients.copy()
            coefficients[k] *= factor
            cost = dataclasses.replace(setting.cost, coefficients=coefficients)
            rows += _Recipe(setting, budget, scale, cost, base.here, base.far).rows(name, factor, base)
    values = {"budget": budget, "unit": setting.spec.cost.unit, "change": change, "scale": scale}
    return Answer(
        question="sensitivity",
        domain=setting.domain,
        values=values,
        tables={"recipes": pd.DataFrame(rows)},
        notes=list(setting.posterior.notes),
    )


def term_names(setting: Setting) -> list[str]:
    """Each cost term in words, such as "6 N D"."""
    names = []
    for coefficient, powers in zip(setting.cost.coefficients, setting.cost.powers, strict=True):
        factors = [
            name if power == 1.0 else f"{name}^{power:g}"
            for name, power in zip(setting.spec.axis_names, powers, strict=True)
            if power != 0.0
        ]
        names.append(" ".join([f"{coefficient:g}", *factors]))
    return names


class _Recipe:
    """The recipe of one cost at two budgets."""

    def __init__(
        self,
        setting: Setting,
        budget: float,
        scale: float,
        cost: Posynomial,
        near: Optimum | None,
        far: Optimum | None,
    ) -> None:
        self.setting, self.cost, self.scale = setting, cost, scale
        # One box for all costs, so that only the price differs.
        self.box, _ = setting.box(2.0 * scale * budget)
        self.here = setting.solve(budget, self.box, guess=None if near is None else near.log_x, cost=cost)
        begin = self.here.log_x + np.nan_to_num(self.here.slope) * np.log(scale)
        self.far = setting.solve(scale * budget, self.box, guess=begin if far is None else far.log_x, cost=cost)
        self.good = self.here.converged & self.far.converged
        self.point = setting.allocation(budget, self.box, self.here.log_x[self.good], cost=cost)
        share = cost.elasticity(self.point)
        self.share = share / share.sum()
        self.slope = np.nanmedian(np.where(self.good[:, None], self.here.slope, np.nan), axis=0)
        over = (self.far.log_x - self.here.log_x) / np.log(scale)
        self.slope_over = np.median(over[self.good], axis=0)

    def rows(self, term: str, factor: float, base: _Recipe) -> list[dict[str, Any]]:
        """One row an axis; changes are against the declared cost, those of the recipe as ratios."""
        x = self.box.raw(self.point)
        median = self.box.raw(np.median(self.here.log_x[self.good], axis=0))
        before = base.box.raw(base.point)
        return [
            {
                "term": term,
                "factor": factor,
                "axis": name,
                "recommended": float(x[a]),
                "median": float(median[a]),
                "ratio": float(x[a] / before[a]),
                "share": float(self.share[a]),
                "share_change": float(self.share[a] - base.share[a]),
                "slope": float(self.slope[a]),
                "slope_change": float(self.slope[a] - base.slope[a]),
                "slope_over": float(self.slope_over[a]),
                "slope_over_change": float(self.slope_over[a] - base.slope_over[a]),
            }
            for a, name in enumerate(self.setting.spec.axis_names)
        ]
