"""The recipe of a budget: what the posterior says about the best axis values, for people, tables and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.candidates import NOT_SCALED_ROLES
from planner.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from planner.inference import StudyPosterior
    from planner.recipe.problem import Box, Posynomial
    from planner.recipe.result import RecipePosterior
    from planner.recipe.rounding import AllowedValues
    from planner.spec import Axis, StudySpec

# How far beyond its declared range an axis is searched when the budget allows it.
MAX_EXTENSION = 1e12
# Fewer certified draws than this, and the intervals say nothing.
MIN_CONVERGED = 0.5


@dataclass(frozen=True, kw_only=True)
class RecipeAnswer:
    """The recipe of one domain under one budget.

    `summary` has one row an axis: quantiles of its best value, spend share, slope (d log value / d log budget), value
    of the next unit, probability that it is the axis to scale, and the recommended value.  `draws` has one row a
    posterior draw.  `joint` is the one allocation to follow; axis-wise medians need not fit the budget together.
    """

    budget: float
    domain: str
    unit: str
    summary: pd.DataFrame
    draws: pd.DataFrame
    joint: Mapping[str, Any]
    response: Mapping[str, float | None]  # quantiles of the predicted response at `joint`
    notes: Sequence[str]

    def document(self) -> dict[str, Any]:
        """The answer without the draws, as plain values."""
        return {
            "budget": self.budget,
            "unit": self.unit,
            "domain": self.domain,
            "axes": self.summary.to_dict(orient="records"),
            "joint": dict(self.joint),
            "response": dict(self.response),
            "notes": list(self.notes),
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything, as plain arrays; `from_arrays` is the inverse."""
        columns = {f"draws.{name}": self.draws[name].to_numpy() for name in self.draws}
        columns["draws.law"] = columns["draws.law"].astype(np.str_)
        return columns | {"document": np.array(json.dumps(self.document()))}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> RecipeAnswer:
        """The answer that `to_arrays` wrote."""
        import pandas as pd

        document = json.loads(str(arrays["document"]))
        axes = document.pop("axes")
        draws = {name.removeprefix("draws."): arrays[name] for name in arrays if name.startswith("draws.")}
        return cls(summary=pd.DataFrame(axes), draws=pd.DataFrame(draws), **document)


def recipe_answer(spec: StudySpec, posterior: StudyPosterior, budget: float, domain: str) -> RecipeAnswer:
    """The best axis values in `domain` that `budget` buys, with their uncertainty.

    Raises `NothingAffordable` when the budget buys no point of the axes' ranges, `UnreliableFit` when the optimum was
    found for too few draws, and `InputError` when the study cannot price points off its pool.
    """
    import pandas as pd

    from planner.recipe.curves import RecipePart
    from planner.recipe.problem import Posynomial
    from planner.recipe.recipes import recipe_of_mixture
    from planner.recipe.result import require_affordable, require_reliable

    index = spec.domain_index(domain)
    cost = Posynomial(*spec.posynomial(domain))
    for axis, powers in zip(spec.axes, cost.powers.T, strict=True):
        if not axis.is_log and powers.any():
            raise InputError(f"no recipe: axis {axis.name!r} has a price and a linear scale; give it scale = 'log'")
    box, extended = _box(spec, cost, budget)
    parts = [
        RecipePart(part.law.law.mean, part.theta[:, index], (part.law.context,))
        for part in posterior.parts
        if len(part.theta)
    ]
    found = recipe_of_mixture(parts, cost, budget, box, allowed=_allowed_values(spec), round_draws=False)
    require_affordable(found)
    require_reliable(found, share=MIN_CONVERGED)
    summary = found.summary(list(spec.axis_names))
    point, joint = _joint(spec, found)
    response = _response_at(posterior, index, point)
    edge = _beyond(spec, extended, point)
    return RecipeAnswer(
        budget=budget,
        domain=domain,
        unit=spec.cost.unit,
        summary=pd.DataFrame(summary["axes"]),
        draws=_draws(spec, posterior, found),
        joint=joint,
        response=response,
        notes=[*posterior.notes, *edge, *summary["notes"]],
    )


def _box(spec: StudySpec, cost: Posynomial, budget: float) -> tuple[Box, np.ndarray]:
    """The ranges to search, and which axes are searched beyond their declared range, (A,) bool.

    `low` and `high` bound the runs one would pay for now; what a larger budget should buy lies beyond `high`.
    """
    from planner.recipe.problem import Box, cheapest_point, largest_step

    is_log = np.array([axis.is_log for axis in spec.axes])
    low, high = (np.where(is_log, np.log(np.where(is_log, bound, 1.0)), bound) for bound in (spec.low, spec.high))
    middle = _held(spec)
    low, high = np.where(np.isnan(middle), low, middle), np.where(np.isnan(middle), high, middle)
    box = Box(low=low, high=high, is_log=is_log)
    can_grow = np.array([_can_grow(axis) for axis in spec.axes]) & (cost.powers > 0).any(axis=0)
    origin = cheapest_point(cost, box)
    for a in np.flatnonzero(can_grow):
        along = np.zeros(len(low))
        along[a] = np.log(MAX_EXTENSION)
        high[a] = max(high[a], origin[a] + float(largest_step(cost, np.log(budget), origin, along)) * along[a])
    return Box(low=low, high=high, is_log=is_log), can_grow


def _can_grow(axis: Axis) -> bool:
    fixed = axis.is_fixed or axis.values is not None or axis.simplex is not None
    return axis.is_log and not fixed and axis.role not in NOT_SCALED_ROLES


def _held(spec: StudySpec) -> np.ndarray:
    """Shares that must sum to 1 are held at equal parts, which the search over a box cannot vary; NaN elsewhere."""
    held = np.full(len(spec.axes), np.nan)
    for members in spec.simplex_groups.values():
        held[list(members)] = 1.0 / len(members)
    return held


def _allowed_values(spec: StudySpec) -> list[AllowedValues | None] | None:
    from planner.recipe.rounding import AllowedValues

    allowed: list[AllowedValues | None] = []
    for axis in spec.axes:
        if axis.is_fixed or axis.simplex is not None:
            allowed.append(None)
        elif axis.values is not None:
            allowed.append(AllowedValues(values=tuple(axis.values)))
        elif axis.step is not None:
            allowed.append(AllowedValues(step=axis.step, origin=axis.low))
        else:
            allowed.append(AllowedValues(step=1.0) if axis.integer else None)
    return None if all(each is None for each in allowed) else allowed


def _joint(spec: StudySpec, found: RecipePosterior) -> tuple[np.ndarray, dict[str, Any]]:
    """The recommended point in raw units (A,), on the allowed values where there are any, and as plain values."""
    assert found.joint is not None
    log_x = found.joint.log_x
    rounded = found.joint.rounded_log_x
    if rounded is not None and np.isfinite(rounded).all():
        log_x = rounded
    point = found.box.raw(log_x)
    # exp(log(10)) is not 10 to the last digit; a run takes whole numbers.
    point = np.array([round(v) if axis.integer else v for v, axis in zip(point, spec.axes, strict=True)], dtype=float)
    cost = float(np.exp(found.cost.log_cost(log_x)))
    shares = dict(zip(spec.axis_names, found.joint.share.tolist(), strict=True))
    return point, {"axes": dict(zip(spec.axis_names, point.tolist(), strict=True)), "cost": cost, "spend_share": shares}


def _response_at(posterior: StudyPosterior, index: int, point: np.ndarray) -> dict[str, float | None]:
    from planner.recipe.summary import quantiles

    return quantiles(posterior.mean_draws(np.array([index]), point[None])[:, 0])


def _beyond(spec: StudySpec, extended: np.ndarray, point: np.ndarray) -> list[str]:
    """Says where the recipe leaves what the study declared, which is what large budgets are for, and where it ends."""
    beyond = [
        f"{axis.name} {value:.4g} > {axis.high:.4g}"
        for axis, value, grows in zip(spec.axes, point, extended, strict=True)
        if grows and value > axis.high * (1 + 1e-9)
    ]
    notes = [f"beyond the declared range, an extrapolation: {', '.join(beyond)}"] if beyond else []
    if spec.simplex_groups:
        groups = ", ".join(spec.simplex_groups)
        notes.append(f"shares of {groups} are held equal: a recipe is not searched over shares that sum to 1")
    return notes


def _draws(spec: StudySpec, posterior: StudyPosterior, found: RecipePosterior) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = dict(zip(spec.axis_names, found.values.T, strict=True))
    columns["response"] = posterior.encoding.scale.from_eta(found.response)
    columns["value"] = found.value
    columns |= {f"share_{name}": found.share[:, a] for a, name in enumerate(spec.axis_names)}
    columns |= {f"slope_{name}": found.slope[:, a] for a, name in enumerate(spec.axis_names)}
    columns["law"] = np.repeat(posterior.law_names, [len(part.theta) for part in posterior.parts])
    columns["converged"] = found.converged
    return pd.DataFrame(columns)
