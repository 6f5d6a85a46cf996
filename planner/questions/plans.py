"""Allocations that a user would follow without us, for comparison: points, and rules that spend a budget.

N=1e9,D=2e10            a point: its price is its own
trajectories=*          this axis is scaled until the budget is spent, the others stand at their low
N=8e9,tasks=*           the same with N held at a value
D=1e9*,N=1e7*           both scaled by one factor, from these values: the ratio of the axes stays
plans.toml              every table of a TOML file is a plan, its keys axes, its values as above
plans.toml:NAME         one of them
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError, NothingAffordable
from planner.spec.checks import near

if TYPE_CHECKING:
    from planner.questions.setting import Setting
    from planner.spec import StudySpec

# How far a scaled axis may go; a plan that this does not bring to its budget is no plan.
MAX_SCALE = 1e15


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An allocation, or a rule for one: axis values in raw units, of which `scaled` ones grow with the budget."""

    name: str
    values: Mapping[str, float]
    scaled: Sequence[str] = ()

    def allocation(self, setting: Setting, budget: float) -> np.ndarray:
        """The axis values (A,) that the plan buys, raw units.

        Raises `NothingAffordable` where a rule already begins above the budget.
        """
        spec = setting.spec
        start = np.array([self.values[axis.name] for axis in spec.axes])
        if not self.scaled:
            return start
        moves = np.array([axis.name in self.scaled for axis in spec.axes])
        log_x, log_budget = setting.log_x(start), float(np.log(budget))
        if (first := float(setting.cost.log_cost(log_x))) > log_budget:
            raise NothingAffordable(
                f"plan {self.name!r} costs {np.exp(first):.4g} before anything is scaled, more than {budget:.4g}"
            )
        low, high = 0.0, float(np.log(MAX_SCALE))
        if float(setting.cost.log_cost(log_x + high * moves)) < log_budget:
            raise InputError(f"plan {self.name!r} never spends {budget:.4g}: what it scales costs too little")
        for _ in range(100):
            middle = 0.5 * (low + high)
            inside = float(setting.cost.log_cost(log_x + middle * moves)) <= log_budget
            low, high = (middle, high) if inside else (low, middle)
        return np.where(moves, start * np.exp(low), start)


def read_plans(spec: StudySpec, given: Any) -> list[Plan]:
    """Plans from what a user gave: a mapping of axis values, a text as above, or a sequence of those.

    Raises `InputError` for unknown axes, values that are no numbers and files that are no plans.
    """
    if isinstance(given, Mapping):
        return [_plan(spec, given, _words(given))]
    if not isinstance(given, str | Path):
        return [plan for each in given for plan in read_plans(spec, each)]
    text = str(given)
    file, _, name = text.partition(".toml:")
    if text.endswith(".toml") or name:
        return _from_file(spec, Path(file if text.endswith(".toml") else f"{file}.toml"), name)
    values = {}
    for item in text.split(","):
        axis, equals, value = item.partition("=")
        values[axis.strip()] = value.strip() if equals else "*"
    return [_plan(spec, values, text)]


def _from_file(spec: StudySpec, path: Path, name: str) -> list[Plan]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"plans cannot be read from {path}: {error}") from None
    plans = {key: table for key, table in tables.items() if isinstance(table, Mapping)}
    if not plans or len(plans) < len(tables) or (name and name not in plans):
        known = ", ".join(plans) or "none"
        raise InputError(
            f"{path}: every plan is a table of axis values, [NAME]; {name or 'some'} is not (found {known})"
        )
    return [_plan(spec, table, key) for key, table in plans.items() if name in ("", key)]


def _plan(spec: StudySpec, given: Mapping[str, Any], name: str) -> Plan:
    values = dict(zip(spec.axis_names, spec.low.tolist(), strict=True))  # of a source: nothing
    scaled = []
    for axis, value in given.items():
        if axis not in values:
            raise InputError(f"plan {name!r}: axis {axis!r} is unknown ({near(axis, spec.axis_names)})")
        text = str(value).strip()
        if text.endswith("*"):
            scaled.append(axis)
            text = text[:-1].strip()
        if text:
            try:
                values[axis] = float(text)
            except ValueError:
                raise InputError(
                    f"plan {name!r}: {axis}={value} is neither a value, nor * (scaled from its low), nor VALUE*"
                ) from None
        declared = spec.axes[spec.axis_names.index(axis)]
        can_be = values[axis] > 0 or not declared.is_log or (values[axis] == 0 and declared.source_of is not None)
        if not (np.isfinite(values[axis]) and can_be):
            raise InputError(f"plan {name!r}: {axis}={values[axis]:g} is no point of a logarithmic axis")
    return Plan(name=name, values=values, scaled=tuple(scaled))


def _words(given: Mapping[str, Any]) -> str:
    return ",".join(
        f"{axis}={value:g}" if isinstance(value, float) else f"{axis}={value}" for axis, value in given.items()
    )
