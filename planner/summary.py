"""A study and its runs as plain values, for people and programs that read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.records import RunRecord, RunState, StudyState

if TYPE_CHECKING:
    from planner.spec import StudySpec


def status(spec: StudySpec, state: StudyState, *, store: str, warnings: Sequence[str]) -> dict[str, Any]:
    """Budget, runs by state and by domain, the best run so far, what is under way."""
    runs = list(state.runs.values())
    by_state = Counter(run.state for run in runs)
    finished = dict.fromkeys(spec.domain_names, 0)
    for run in runs:
        if run.state is RunState.COMPLETED:
            finished[run.design.domain] = finished.get(run.design.domain, 0) + 1
    best = best_run(spec, runs)
    return {
        "study": spec.name,
        "store": store,
        "budget": budget(spec, state),
        "costs": _costs(spec, state),
        "runs": {str(each): by_state[each] for each in RunState if by_state[each]},
        "attached": sum(run.external for run in runs),
        "finished_by_domain": finished,
        "response": {"name": spec.response.name, "unit": spec.response.unit, "goal": spec.response.goal},
        "best": None if best is None else run_values(best),
        "stopped_early": [stopped_early(run) for run in runs if run.early_stop],
        "pending": [run_values(run) for run in state.pending()],
        "num_events": state.num_events,
        "warnings": list(warnings),
    }


def _costs(spec: StudySpec, state: StudyState) -> dict[str, Any] | None:
    """What runs cost beside what was declared; None before the first has ended."""
    if not any(run.state is RunState.COMPLETED and not run.external for run in state.runs.values()):
        return None
    from planner import costs  # numerical, and of no use to a new study

    return costs.as_values(spec, costs.learn_costs(spec, state.runs.values()))


def budget(spec: StudySpec, state: StudyState) -> dict[str, Any]:
    """Where the budget stands, in the cost unit of the study."""
    return {
        "unit": spec.cost.unit,
        "total": state.total,
        "spent": state.spent,
        "reserved": state.reserved,
        "remaining": state.remaining,
    }


_FAILED = (RunState.FAILED, RunState.OUT_OF_MEMORY, RunState.TIMED_OUT, RunState.LOST, RunState.PREEMPTED)


def worth_reading(state: StudyState, *, running: int = 20, failed: int = 5) -> list[RunRecord]:
    """Runs whose log people may want to see: those at work, and the last that failed."""
    at_work = [run for run in state.runs.values() if run.state is RunState.RUNNING]
    broken = sorted((run for run in state.runs.values() if run.state in _FAILED), key=lambda run: run.updated_at)
    return at_work[:running] + broken[-failed:]


def best_run(spec: StudySpec, runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run with the best measured response, None when none was measured."""
    sign = 1.0 if spec.response.goal == "minimise" else -1.0
    measured = [run for run in runs if run.response is not None]
    return min(measured, key=lambda run: sign * (run.response or 0.0), default=None)


def run_values(run: RunRecord) -> dict[str, Any]:
    """One run as plain values."""
    return {
        "run_id": run.run_id,
        "state": str(run.state),
        "domain": run.design.domain,
        "axes": dict(run.design.axes),
        "seed": run.design.seed,
        "attempt": run.attempt,
        "predicted_cost": run.predicted_cost,
        "cost": run.cost,
        "response": run.response,
        "progress": progress(run),
        "early_stop": run.early_stop,
        "continues": run.reason.get("continues"),
        "external": run.external,
        "reason": dict(run.reason),
        "message": run.message,
    }


def progress(run: RunRecord) -> dict[str, Any] | None:
    """How far a run was when it was last heard of: step, value, cost and its share of the predicted cost.

    The value of a run under way is no end value.
    """
    if not run.progress and run.cost_so_far is None:
        return None
    cost = run.cost_so_far
    share = cost / run.predicted_cost if cost is not None and run.predicted_cost > 0 else None
    return {"step": run.progress.get("step"), "value": run.progress.get("value"), "cost": cost, "share": share}


def stopped_early(run: RunRecord) -> dict[str, Any]:
    """A run that was told to stop, why, and what that saved of its predicted cost (None: not known yet)."""
    saved = None if run.cost is None else max(0.0, run.predicted_cost - run.cost)
    return {"run_id": run.run_id, "state": str(run.state), "why": run.early_stop, "cost": run.cost, "saved": saved}
