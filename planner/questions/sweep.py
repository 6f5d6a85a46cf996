"""The recipe over a range of budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.questions.answer import Answer, quantiles

if TYPE_CHECKING:
    from planner.questions.setting import Setting

MAX_POINTS = 200


def sweep_answer(setting: Setting, low: float, high: float, points: int) -> Answer:
    """The recipe at `points` budgets from `low` to `high`, evenly spaced in the log.

    Raises `InputError` for a range that is none, `NothingAffordable` where its low end buys nothing.
    """
    import pandas as pd

    if not (0 < low < high and np.isfinite(high) and 2 <= points <= MAX_POINTS):
        raise InputError(f"a sweep needs 0 < LO < HI and 2 to {MAX_POINTS} points, not {low:g}:{high:g}:{points}")
    box, _ = setting.box(high)
    budgets = np.geomspace(low, high, points)
    axes: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    before = None
    names, scale = setting.spec.axis_names, setting.posterior.encoding.scale
    for i, budget in enumerate(budgets):
        guess = None if before is None else before.log_x + np.nan_to_num(before.slope) * np.log(budget / budgets[i - 1])
        found = before = setting.solve(float(budget), box, guess=guess)
        good = found.converged
        point = setting.allocation(float(budget), box, found.log_x[good])
        raw, elasticity = box.raw(point), setting.cost.elasticity(point)
        optimum = box.raw(found.log_x[good])
        axes += [
            {
                "budget": float(budget),
                "axis": name,
                "recommended": float(raw[a]),
                **quantiles(optimum[:, a]),
                **quantiles(found.slope[good, a], "slope_"),
                "share": float(elasticity[a] / elasticity.sum()),
            }
            for a, name in enumerate(names)
        ]
        eta = setting.posterior.eta_draws(np.array([setting.index]), raw[None])[:, 0]
        values = quantiles(found.multiplier[good] / budget, "value_")
        responses.append(
            {"budget": float(budget), **quantiles(scale.from_eta(eta)), **values, "converged": float(good.mean())}
        )
    return Answer(
        question="sweep",
        domain=setting.domain,
        values={"unit": setting.spec.cost.unit},
        tables={"axes": pd.DataFrame(axes), "responses": pd.DataFrame(responses)},
        notes=list(setting.posterior.notes),
    )
