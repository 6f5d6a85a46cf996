"""When to stop before the budget is used: only on the user's own terms, and only while predictions can be believed.

Unspent budget has no value of its own, so nothing here applies unless the study says what the response is worth, or how
well the targets must be known.  Neither is heeded while the planner's predictions of dearer runs turn out wrong: a
posterior that is too sure of itself would stop at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.records import RunState

if TYPE_CHECKING:
    from planner.design.plan import Plan
    from planner.records import RunRecord, StudyState

_LAST_RUNS = 8
_LEAST_RUNS = 4
_LEAST_COVERED = (
    0.7  # of 90 % intervals; six of eight or three of four; an honest planner falls below once in twenty times
)


@dataclasses.dataclass(frozen=True)
class StopRule:
    """The user's terms; both on the scale of the laws, which for the link "identity" is that of the response.

    worth: units of cost that one unit of standard deviation less at the targets is worth; None: the budget is there to
        be used.
    target_sd: root mean square standard deviation of the targets at which they are known well enough; None: never.
    """

    worth: float | None = None
    target_sd: float | None = None

    def __post_init__(self) -> None:
        for name in ("worth", "target_sd"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and np.isfinite(value) and value > 0):
                raise InputError(f"[policy] {name} = {value!r} must be a finite number greater than 0; or leave it out")

    def why_stop(self, state: StudyState, plan: Plan, cost: float, unit: np.ndarray | float = 1.0) -> str | None:
        """The reason to stop instead of buying the plan, which costs `cost`; None to go on.

        Args:
            unit: what the functionals of the target are multiplied by to be in units of the response, (R,).
        """
        if (self.worth is None and self.target_sd is None) or not are_calibrated(state):
            return None
        now, then = (_root_mean(variance * unit**2) for variance in (plan.target_var, plan.target_var_after))
        if self.target_sd is not None and now <= self.target_sd:
            return f"the targets are known to a standard deviation of {now:.3g}, and target_sd = {self.target_sd:g}"
        if self.worth is not None and (now - then) * self.worth < cost:
            return (
                f"the plan for the rest of the budget would lower the targets' standard deviation from {now:.3g} to"
                f" {then:.3g}, worth {(now - then) * self.worth:.3g} at worth = {self.worth:g}, and costs {cost:.3g}"
            )
        return None


def _root_mean(variance: np.ndarray) -> float:
    return float(np.sqrt(variance.mean()))


def are_calibrated(state: StudyState) -> bool:
    """Whether the last predictions of runs dearer than the ones before them held, at least four of them."""
    held: list[bool] = []
    costs: list[float] = []
    for run in state.runs.values():
        if run.state is not RunState.COMPLETED or run.response is None or run.cost is None:
            continue
        predicted = _predicted(run)
        if predicted is not None and costs and run.cost >= np.median(costs):
            held.append(predicted["q05"] <= run.response <= predicted["q95"])
        costs.append(run.cost)
    last = held[-_LAST_RUNS:]
    return len(last) >= _LEAST_RUNS and float(np.mean(last)) >= _LEAST_COVERED


def _predicted(run: RunRecord) -> Mapping[str, Any] | None:
    predicted = run.reason.get("predicted")
    if run.reason.get("kind") != "plan" or not isinstance(predicted, Mapping):
        return None
    return predicted if {"q05", "q95"} <= predicted.keys() else None
