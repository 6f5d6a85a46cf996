"""A recipe posterior in plain numbers and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from planner.recipe.result import RecipePosterior

# Shares of draws above which a note is made.
NOTE_EDGE = 0.05
NOTE_FAILED = 0.01
NOTE_FLAT = 0.05


def summarise(recipe: RecipePosterior, axis_names: list[str] | None = None) -> dict[str, Any]:
    """Rows and notes of one recipe, JSON-ready: every number is a float, a missing one None.

    Returns:
        `budget`; `affordable`; `num_draws`; `converged` (share of the draws); `axes`: one row an axis with `median`,
        `q25`, `q75`, `q05`, `q95` of its value in raw units, `slope`, `share` and `axis_value` (medians, each with
        `_q05` and `_q95`), `at_low`, `at_high` (shares of draws), `next` (probability to be the axis to scale),
        `recommended` and `rounded` (the joint recipe); `response` and `value` (quantiles over draws); `regret` (mean
        loss of the joint recipe against each draw's own optimum); `notes`, sentences.
    """
    names = axis_names or [f"axis {a}" for a in range(len(recipe.box.low))]
    if len(names) != len(recipe.box.low):
        raise ValueError(f"{len(names)} axis names for {len(recipe.box.low)} axes: {names}")
    good = recipe.converged
    joint = recipe.joint
    return {
        "budget": recipe.budget,
        "affordable": recipe.affordable,
        "num_draws": len(good),
        "converged": float(good.mean()) if len(good) else 0.0,
        "axes": [_axis_row(recipe, a, name) for a, name in enumerate(names)],
        "response": quantiles(recipe.response[good]),
        "value": quantiles(recipe.value[good]),
        "joint_response": quantiles(joint.response[good]) if joint else quantiles(np.empty(0)),
        "joint_cost": joint.cost if joint else None,
        "regret": _number(np.mean(joint.regret[good])) if joint else None,
        "notes": notes(recipe, names),
    }


def quantiles(values: np.ndarray) -> dict[str, float | None]:
    """Median, 50 % and 90 % interval over the finite entries of `values`, None where there are none."""
    levels = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return dict.fromkeys(levels)
    return {name: float(q) for name, q in zip(levels, np.quantile(values, list(levels.values())), strict=True)}


def _axis_row(recipe: RecipePosterior, a: int, name: str) -> dict[str, Any]:
    good, joint = recipe.converged, recipe.joint
    row: dict[str, Any] = {"axis": name, **quantiles(recipe.values[good, a])}
    for key, draws in (("slope", recipe.slope), ("share", recipe.share), ("axis_value", recipe.axis_value)):
        found = quantiles(draws[good, a])
        row |= {key: found["median"], f"{key}_q05": found["q05"], f"{key}_q95": found["q95"]}
    row["at_low"] = float(recipe.at_low[good, a].mean()) if good.any() else None
    row["at_high"] = float(recipe.at_high[good, a].mean()) if good.any() else None
    row["next"] = None if recipe.next_axis is None else _number(recipe.next_axis[a])
    row["recommended"] = None if joint is None else _number(recipe.box.raw(joint.log_x)[a])
    rounded = None if joint is None else joint.rounded_log_x
    row["rounded"] = None if rounded is None else _number(recipe.box.raw(rounded)[a])
    return row


def notes(recipe: RecipePosterior, names: list[str]) -> list[str]:
    """What a reader must know before using the numbers; empty if there is nothing to warn of."""
    if not recipe.affordable:
        return [f"a budget of {recipe.budget:g} does not buy even the cheapest allocation of the axes' ranges"]
    found = []
    failed, flat = 1.0 - recipe.converged.mean(), recipe.flat.mean()
    if failed > NOTE_FAILED:
        found.append(f"no certified optimum in {failed:.0%} of draws; they are left out of the intervals")
    if flat > NOTE_FLAT:
        found.append(
            f"the response does not change along the budget's surface in {flat:.0%} of draws:"
            " other allocations are as good as the ones shown"
        )
    good = recipe.converged
    fixed = recipe.box.width == 0
    for a, name in enumerate(names):
        for edge, at_edge in (("upper", recipe.at_high), ("lower", recipe.at_low)):
            share = at_edge[good, a].mean() if good.any() and not fixed[a] else 0.0
            if share > NOTE_EDGE:
                found.append(
                    f"optimum at the {edge} edge of axis {name} in {share:.0%} of draws: the box, not the law, decides"
                )
    spare = 1.0 - recipe.binds[good].mean() if good.any() else 0.0
    if spare > NOTE_EDGE:
        found.append(f"the best allocation leaves budget unspent in {spare:.0%} of draws")
    if recipe.next_axis is not None and not np.isfinite(recipe.next_axis).all():
        found.append("the current allocation already costs the whole budget: no axis can be scaled from it")
    joint = recipe.joint
    if joint is not None and joint.rounded_log_x is not None and not np.isfinite(joint.rounded_log_x).all():
        within = "" if recipe.box.limits is None else " and the limits"
        found.append(f"no combination of allowed values fits the budget{within} near the optimum")
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
