"""What backends report of runs, as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.errors import ConflictingResult, InputError
from planner.records import RunRecord, RunState
from planner.telling import MAX_COST

if TYPE_CHECKING:
    from planner.execution import Report
    from planner.ledger import Ledger
    from planner.loop import Workplace

# A backend says in its message when a failure is the user's (exit code 64): it would only be paid for again.
NOT_AGAIN = "not to be tried again"
PROGRESS_SHARE = 0.05  # progress is recorded when this share of the predicted cost was added
POINTS_AT_ONCE = 8  # or so many points of the run's curve are new


def record(place: Workplace, reports: Sequence[tuple[RunRecord, Report]]) -> list[RunRecord]:
    """The runs after what their backend reports of them is in the ledger, in one transaction."""
    if not any(_is_news(run, report) for run, report in reports):
        return [run for run, _ in reports]
    with place.ledger.together():
        return [_record(place, run, report) if _is_news(run, report) else run for run, report in reports]


def _is_news(run: RunRecord, report: Report) -> bool:
    """Whether a report holds anything to be recorded."""
    if report.state is RunState.SUBMITTED:
        return False
    return report.state is not run.state or _is_further(run, report)


def _record(place: Workplace, run: RunRecord, report: Report) -> RunRecord:
    try:
        return _tell(place, run, report)
    except ConflictingResult as error:
        from planner import loop

        # Somebody told this run by hand in the meantime: their word stays, ours is kept beside it.
        place.ledger.note(f"backend {place.spec.backend.kind} reported {report.state}: {error}", run.run_id)
        place.watch(loop.News(kind="warning", run=run, text=str(error)))
        return place.ledger.run(run.run_id)
    except InputError as error:
        # A trainer told what cannot be, such as more successes than trials: that is a fault of this run only.
        cost = report.cost if report.cost is not None and 0 <= report.cost <= MAX_COST else None
        return place.ledger.fail(run.run_id, cost=cost, message=f"{error} ({NOT_AGAIN})")


def _tell(place: Workplace, run: RunRecord, report: Report) -> RunRecord:
    from planner.spec import check_response

    ledger, run_id, cost = place.ledger, run.run_id, report.cost
    if report.state not in (RunState.SUBMITTED, RunState.RUNNING) and run.new_points(report.points):
        _record_progress(ledger, run, report)  # before the end: a planner killed in between finds both again
    if report.state is RunState.COMPLETED:
        wrong = None if report.response is None else check_response(place.spec, report.response)
        if wrong is not None:
            return ledger.fail(run_id, cost=cost, message=f"{wrong} ({NOT_AGAIN})")
        return ledger.complete(
            run_id,
            report.response,
            cost=cost,
            se=report.se,
            successes=report.successes,
            trials=report.trials,
            message=report.message,
        )
    if report.state is RunState.RUNNING:
        return _tell_progress(ledger, run, report)
    if run.early_stop and report.state not in (RunState.SUBMITTED, RunState.DIVERGED):
        return ledger.cancel(run_id, cost=cost, message=f"early_stop: {run.early_stop}")  # however it died
    if report.state is RunState.FAILED and NOT_AGAIN in report.message and cost is None:
        cost = 0.0  # refused before it started
    verbs = {
        RunState.DIVERGED: ledger.diverge,
        RunState.FAILED: ledger.fail,
        RunState.OUT_OF_MEMORY: ledger.out_of_memory,
        RunState.TIMED_OUT: ledger.time_out,
        RunState.LOST: ledger.lose,
        RunState.PREEMPTED: ledger.preempt,
        RunState.CANCELLED: ledger.cancel,
    }
    verb = verbs.get(report.state)
    return run if verb is None else verb(run_id, cost=cost, message=report.message)


def _tell_progress(ledger: Ledger, run: RunRecord, report: Report) -> RunRecord:
    if _is_further(run, report):
        _record_progress(ledger, run, report)
    return ledger.running(run.run_id)


def _is_further(run: RunRecord, report: Report) -> bool:
    """Whether so much was added to what a running run told that it is worth recording."""
    grown = report.cost is not None and (report.cost >= (run.cost_so_far or 0.0) + PROGRESS_SHARE * run.predicted_cost)
    return grown or len(run.new_points(report.points)) >= POINTS_AT_ONCE


def _record_progress(ledger: Ledger, run: RunRecord, report: Report) -> None:
    told = report.progress or {}
    ledger.progress(run.run_id, value=told.get("value"), step=told.get("step"), cost=report.cost, points=report.points)
