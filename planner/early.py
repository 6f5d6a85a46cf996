"""Stopping runs before their end, where the study asks for it with `[backend] early_stop = true`.

A run is stopped when it will have no response (what it reports is not finite, or beyond the bounds of the response,
twice in a row), or when the policy finds that finishing it is worth less than its remaining cost elsewhere.  The reason
is recorded, then the backend is asked to end the run; its budget is freed when it is dead.  It ends as cancelled, is
charged what it used, and is neither retried nor chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.execution import Report
    from planner.loop import Workplace
    from planner.records import CurvePoint, RunRecord
    from planner.spec import StudySpec

OPTION = "early_stop"
# A run is judged each time that it has used so much more of its predicted cost.
JUDGED_SHARE = 0.2
_TOLD = math.inf  # judged for good: this process has asked the backend to end the run


def is_on(spec: StudySpec) -> bool:
    """Whether the study asks for it.  Raises `InputError` for anything but true and false."""
    value = spec.backend.options.get(OPTION, False)
    if not isinstance(value, bool):
        raise InputError(f"backend.{OPTION} is {value!r}: write true or false")
    return value


def stop(place: Workplace, running: Sequence[tuple[RunRecord, Report]]) -> list[RunRecord]:
    """Asks the backend to end runs that are not to be finished; returns those that were not told to stop before."""
    asked = is_on(place.spec)
    chosen = {run.run_id: run for run, _ in running if run.early_stop}
    if asked:
        chosen |= _choose(place, [(run, report) for run, report in running if not run.early_stop])
    for run_id, run in chosen.items():
        # Once a process: a planner that died after it recorded the reason may not have asked.
        if place.judged.get(run_id) != _TOLD:
            place.backend.cancel(run.handle)
            place.judged[run_id] = _TOLD
    before = {run.run_id for run, _ in running if run.early_stop}
    return [run for run_id, run in chosen.items() if run_id not in before]


def _choose(place: Workplace, running: Sequence[tuple[RunRecord, Report]]) -> dict[str, RunRecord]:
    """The runs that are to be stopped, which is recorded with the reason."""
    chosen: dict[str, RunRecord] = {}
    due = []
    for run, report in running:
        hopeless = _why_hopeless(place.spec, report.points)
        if hopeless is not None:
            chosen[run.run_id] = place.ledger.stop_early(run.run_id, hopeless, {})
        elif _is_due(place, run, report):
            due.append((run, report))
    judge = getattr(place.policy, "worth_of_finishing", None)
    if not due or judge is None:
        return chosen
    worths = judge(place.spec, place.ledger.state(), {run.run_id: report.points for run, report in due})
    for run_id, worth in worths.items():
        if not worth.is_worth:
            chosen[run_id] = place.ledger.stop_early(run_id, _why(place.spec, worth), _numbers(worth))
            for other, _ in due:  # what its cost buys elsewhere is bought once: the others are judged without it
                place.judged.pop(other.run_id, None)
            break
    return chosen


def _is_due(place: Workplace, run: RunRecord, report: Report) -> bool:
    cost = report.cost or 0.0
    if cost < place.judged.get(run.run_id, 0.0) + JUDGED_SHARE * run.predicted_cost:
        return False
    place.judged[run.run_id] = cost
    return bool(report.points)


def _why_hopeless(spec: StudySpec, points: Sequence[CurvePoint]) -> str | None:
    """Why the run will have no response that counts, by its last two points."""
    from planner.spec import check_response

    last = points[-2:]
    if len(last) == 2 and all(point.value is None for point in last):
        return f"it has diverged: not finite at steps {last[0].step:g} and {last[1].step:g}"
    wrong = [None if point.value is None else check_response(spec, point.value) for point in last]
    return f"it has diverged: {wrong[-1]} at its last two points" if len(last) == 2 and all(wrong) else None


def _why(spec: StudySpec, worth: Any) -> str:
    return (
        f"finishing it is expected to lower the targets' squared error by {_percent(worth.finishing, worth.before)},"
        f" and the {worth.cost_left:.3g} {spec.cost.unit} that it still needs by"
        f" {_percent(worth.elsewhere, worth.before)} elsewhere; by its curve it would end in"
        f" [{worth.predicted[0]:.4g}, {worth.predicted[1]:.4g}] (90 %), and {worth.expected:.4g} is expected"
    )


def _percent(part: float, whole: float) -> str:
    return f"{100.0 * part / max(whole, 1e-300):.2g} %"


def _numbers(worth: Any) -> dict[str, float]:
    return {
        "finishing": worth.finishing,
        "elsewhere": worth.elsewhere,
        "variance": worth.before,
        "predicted_q05": worth.predicted[0],
        "predicted_q95": worth.predicted[1],
        "expected": worth.expected,
        "cost_left": worth.cost_left,
    }
