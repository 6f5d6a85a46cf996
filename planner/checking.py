"""What a study amounts to before anything is bought: designs, prices, laws, and what looks doubtful."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner import summary
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.records import StudyState
    from planner.spec import StudySpec


def check_study(spec: StudySpec, state: StudyState) -> dict[str, Any]:
    """Everything `planner check` says, as plain values; `problem` is None unless nothing can be bought.

    Raises `InputError` for mistakes that only show when the pool is read, or for laws that cannot be written.
    """
    from planner import candidates, early

    early.is_on(spec)
    table = candidates.all_designs(spec)
    affordable = candidates.candidate_designs(spec, state)
    cost = table.cost
    lowest, median, highest = float(cost.min()), float(np.median(cost)), float(cost.max())
    buys = {
        name: int(min((state.remaining * (1 + 1e-12)) // price, 1e15))
        for name, price in (("cheapest", lowest), ("median", median), ("dearest", highest))
    }
    laws = _laws(spec)
    return {
        "study": spec.name,
        "response": _response(spec),
        "axes": [_axis(spec, index) for index in range(len(spec.axes))],
        "domains": list(spec.domain_names),
        "num_designs": len(table),
        "num_affordable": len(affordable),
        "cost": {"unit": spec.cost.unit, "lowest": lowest, "median": median, "highest": highest},
        "budget": summary.budget(spec, state),
        "budget_buys": buys,
        "targets": _targets(spec),
        "laws": laws,
        "backend": spec.backend.kind,
        "policy": spec.policy.name,
        "warnings": [*spec.warnings, *_doubts(spec)],
        "problem": None if len(affordable) else candidates.explain_empty(spec, state)[1],
    }


def _axis(spec: StudySpec, index: int) -> dict[str, Any]:
    axis = spec.axes[index]
    return {
        "name": axis.name,
        "unit": axis.unit,
        "low": axis.low,
        "high": axis.high,
        "scale": axis.scale,
        "integer": axis.integer,
        "role": axis.role,
    }


def _response(spec: StudySpec) -> str:
    response = spec.response
    unit = f" [{response.unit}]" if response.unit else ""
    return f"{response.goal} {response.name}{unit}, link {response.link}, noise {response.noise}"


def _targets(spec: StudySpec) -> list[str]:
    words = []
    for target in spec.targets:
        where = f" in {target.domain}" if target.domain is not None else ""
        if target.kind == "recipe":
            words.append(f"recipe at {', '.join(f'{b:.4g}' for b in target.budgets)} {spec.cost.unit}{where}")
        elif target.kind == "prediction":
            what = f"{len(target.points)} points" if target.points else target.file or "the top of every axis"
            words.append(f"prediction at {what}{where}")
        elif target.kind == "exponent":
            words.append(f"exponent of {target.axis}{where}")
        elif target.kind == "source":
            words.append(f"worth of {target.axis}{where}")
        else:
            words.append(f"{spec.response.name} {target.response:g} with probability {target.probability:g}{where}")
    return words


def _laws(spec: StudySpec) -> list[dict[str, str]]:
    from planner import laws

    chosen = laws.select(laws.law_axes(spec.axes), spec.laws.use, is_score=spec.response.is_score)
    if not chosen:
        raise InputError("no registered law suits these axes; name laws under [laws] use = [...]")
    named = "named in [laws]; " if spec.laws.use != "auto" else ""
    return [{"name": law.name, "why": named + law.reason} for law in chosen]


def _doubts(spec: StudySpec) -> list[str]:
    """What the study leaves to us to assume."""
    doubts = []
    response = spec.response
    if response.link == "identity" and response.goal == "minimise" and response.lower is None:
        doubts.append(
            f"W:assumed_bound {response.name} is assumed to be 0 or more as long as no run is below;"
            " write lower = NUMBER in [response] to say what it cannot fall below"
        )
    if response.expect is None:
        doubts.append(
            f"W:no_expectation nothing says what {response.name} is like before the first run;"
            " write expect = [LOW, HIGH] in [response]"
        )
    if len(spec.domains) == 1:
        doubts.append("W:one_domain one domain: no sharing possible")
    fixed = [axis.name for axis in spec.axes if axis.is_fixed]
    doubts += [f"W:fixed_axis axis {name!r} has one value: nothing can be learned along it" for name in fixed]
    if not spec.targets:
        doubts.append("W:no_target no [[targets]]: the response at and above the largest designs is to be predicted")
    return doubts
