"""Which axis, and which domain: probabilities instead of point estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.questions.answer import Answer, quantiles

if TYPE_CHECKING:
    from planner.questions.setting import Setting

EARLIER = 0.25  # of the budget: where the comparison of axes begins if no point is given


def compare_answer(settings: Sequence[Setting], budget: float, start: np.ndarray | None) -> Answer:
    """Which axis alone to raise to `budget`, in each domain, and which domain its recipe serves best.

    Args:
        settings: one for each domain that is compared.
        start: axis values (A,) in raw units to raise from; by default the recipe of a quarter of the budget.
    """
    import pandas as pd

    axes: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    at_recipe = []
    for setting in settings:
        box, _ = setting.box(budget)
        found = setting.solve(budget, box)
        good = found.log_x[found.converged]
        at_recipe.append(box.raw(setting.allocation(budget, box, good)))
        begin = setting.log_x(start) if start is not None else _earlier(setting, budget, good)
        mine, theirs = _axes(setting, budget, begin)
        axes += mine
        pairs += theirs
    posterior = settings[0].posterior
    eta = posterior.eta_draws(np.array([s.index for s in settings]), np.array(at_recipe))
    best = np.argmin(eta, axis=1)
    raw = posterior.encoding.scale.from_eta(eta)
    domains = [
        {"domain": setting.domain, **quantiles(raw[:, g]), "best": float((best == g).mean())}
        for g, setting in enumerate(settings)
    ]
    spec = settings[0].spec
    return Answer(
        question="compare",
        domain=settings[0].domain if len(settings) == 1 else "",
        values={"budget": budget, "unit": spec.cost.unit},
        tables={"axes": pd.DataFrame(axes), "pairs": pd.DataFrame(pairs), "domains": pd.DataFrame(domains)},
        notes=list(posterior.notes),
    )


def _earlier(setting: Setting, budget: float, good: np.ndarray) -> np.ndarray:
    """The recipe of a quarter of the budget, the cheapest point if that buys nothing."""
    from planner.recipe.problem import cheapest_point

    box, _ = setting.box(budget)
    cheapest = cheapest_point(setting.cost, box)
    if setting.cost.log_cost(cheapest) > np.log(EARLIER * budget):
        return cheapest
    return setting.allocation(EARLIER * budget, box, good)


def _axes(setting: Setting, budget: float, begin: np.ndarray) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from planner.recipe import recipes
    from planner.recipe.curves import double_precision

    box, _ = setting.box(budget)
    with double_precision():
        values = recipes.scaled_alone(setting.laws, setting.cost, float(np.log(budget)), box, begin)
    values = values[np.isfinite(values).all(axis=1)]
    gain = values[:, :1] - values[:, 1:]
    raw = setting.posterior.encoding.scale.from_eta(values)
    best = np.where(gain.max(axis=1) > 0, np.argmax(gain, axis=1), -1)
    names, start = setting.spec.axis_names, box.raw(begin)
    rows = [
        {
            "domain": setting.domain,
            "axis": name,
            "from": float(start[a]),
            "best": float((best == a).mean()),
            **quantiles(raw[:, 1 + a], "response_"),
        }
        for a, name in enumerate(names)
    ]
    pairs = [
        {
            "domain": setting.domain,
            "axis": first,
            "over": second,
            "probability": float((gain[:, a] > gain[:, b]).mean()),
        }
        for a, first in enumerate(names)
        for b, second in enumerate(names)
        if a != b
    ]
    return rows, pairs
