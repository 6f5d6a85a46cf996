"""The recipe of a budget: what the posterior says about the best axis values, for people, tables and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.questions import trust
from planner.questions.answer import plain, quantiles
from planner.questions.efficiency import efficiency
from planner.questions.setting import NUM_STARTS, Setting, make_setting

if TYPE_CHECKING:
    import pandas as pd

    from planner.inference import StudyPosterior
    from planner.questions.plans import Plan
    from planner.recipe.result import RecipePosterior
    from planner.spec import StudySpec

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
    trusted: bool = True  # False: no law follows the runs, for these `reasons`
    reasons: Sequence[str] = ()
    versus: Sequence[Mapping[str, Any]] = ()  # one row for each other plan: its cost, response and the efficiency

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
            "trusted": self.trusted,
            "reasons": list(self.reasons),
            "versus": [dict(row) for row in self.versus],
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


def recipe_answer(
    spec: StudySpec,
    posterior: StudyPosterior,
    budget: float,
    domain: str,
    *,
    versus: Sequence[Plan] = (),
    failures: Sequence[str] = (),
    discrepancy: bool = True,
) -> RecipeAnswer:
    """The best axis values in `domain` that `budget` buys, with their uncertainty.

    `failures` say why no answer of this posterior is to be trusted; for `discrepancy` see `make_setting`.

    Raises `NothingAffordable` when the budget buys no point of the axes' ranges, `UnreliableFit` when the optimum was
    found for too few draws, and `InputError` when the study cannot price points off its pool.
    """
    import pandas as pd

    from planner.recipe.recipes import recipe_of_mixture
    from planner.recipe.result import require_affordable, require_reliable

    setting = make_setting(spec, posterior, domain, discrepancy=discrepancy)
    box, extended = setting.box(budget)
    allowed = setting.allowed_values()
    found = recipe_of_mixture(
        setting.laws, setting.cost, budget, box, num_starts=NUM_STARTS, allowed=allowed, round_draws=False
    )
    require_affordable(found)
    require_reliable(found, share=MIN_CONVERGED)
    summary = found.summary(list(spec.axis_names))
    point, joint = _joint(spec, found)
    response = _response_at(posterior, setting.index, point)
    edge = _beyond(spec, extended, point)
    rows = [_versus_row(setting, plan, budget) for plan in versus]
    return RecipeAnswer(
        budget=budget,
        domain=domain,
        unit=spec.cost.unit,
        summary=pd.DataFrame(summary["axes"]),
        draws=_draws(spec, posterior, found),
        joint=joint,
        response=response,
        notes=[
            *posterior.notes,
            *edge,
            *summary["notes"],
            *_limits(spec, found, rows),
            *trust.cautions(posterior, setting.index, point, domain),
        ],
        trusted=not failures,
        reasons=list(failures),
        versus=rows,
    )


def _versus_row(setting: Setting, plan: Plan, budget: float) -> dict[str, Any]:
    """How much less budget the recipe needs than a plan, for the plan's response."""
    x = plan.allocation(setting, budget)
    found = efficiency(setting, x)
    good = found.converged
    axes = dict(zip(setting.spec.axis_names, x.tolist(), strict=True))
    return {
        "plan": plan.name,
        "axes": axes,
        "cost": found.cost,
        "response": plain(_response_at(setting.posterior, setting.index, x)),
        "efficiency": plain(quantiles(found.ratio[good])),
        "needed": plain(quantiles(found.needed[good])),
        "converged": float(good.mean()),
    }


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
    # The low end of a source stands for nothing of it.
    nothing = np.array([axis.source_of is not None for axis in spec.axes]) & (point <= spec.low * (1.0 + 1e-6))
    point = np.where(nothing, 0.0, point)
    cost = float(np.exp(found.cost.log_cost(log_x)))
    shares = dict(zip(spec.axis_names, found.joint.share.tolist(), strict=True))
    return point, {"axes": dict(zip(spec.axis_names, point.tolist(), strict=True)), "cost": cost, "spend_share": shares}


def _response_at(posterior: StudyPosterior, index: int, point: np.ndarray) -> dict[str, float | None]:
    from planner.recipe.summary import quantiles as finite_quantiles

    return finite_quantiles(posterior.mean_draws(np.array([index]), point[None])[:, 0])


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


def _limits(spec: StudySpec, found: RecipePosterior, versus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Says which limits decide the recipe, and which plans do not keep to them."""
    if found.box.limits is None:
        return []
    limits, optima = found.box.limits, found.log_x[found.converged]
    product = optima @ limits.powers.T
    at_end = np.minimum(np.abs(product - limits.low), np.abs(product - limits.high)) < 1e-6
    notes = [
        f"limits[{i}] ({limit.words()}) binds in {at_end[:, i].mean():.0%} of draws: it, not the law, decides"
        for i, limit in enumerate(spec.limits)
        if limit.low != limit.high and len(optima) and at_end[:, i].mean() > 0.5
    ]
    for row in versus:
        kept = spec.kept_limits(np.array([list(row["axes"].values())]))[0]
        broken = ", ".join(f"limits[{i}] ({spec.limits[i].words()})" for i in np.flatnonzero(~kept))
        if broken:
            notes.append(f"plan {row['plan']} does not keep to {broken}, which the recipe it is compared with does")
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
