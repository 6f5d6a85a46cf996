"""Giving runs up: ask the backend to end them, and wait until it says that they are dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from planner import loop
from planner.errors import InputError
from planner.records import STATE_RULES, RunRecord, RunState

if TYPE_CHECKING:
    from planner.loop import Workplace

PAUSE_SECONDS = 0.2


def cancel_runs(
    place: Workplace,
    run_ids: Collection[str] | None = None,
    *,
    patience: float = 60.0,
    message: str = "cancelled by the user",
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[RunRecord]:
    """Ends runs and returns them as they are then: those not confirmed dead after `patience` seconds keep their budget.

    By default all runs that the loop started; a run that was asked for by hand must be named.  A result that comes
    first stays.  Raises `UnknownRun`.
    """
    mine = {run.run_id for run in place.mine()}
    runs = [place.ledger.run(run_id) for run_id in (mine if run_ids is None else run_ids)]
    wanted = [run.run_id for run in runs if not STATE_RULES[run.state].final]
    for run_id in [each for each in wanted if each not in mine]:
        place.ledger.cancel(run_id, message=message)
    for run in [run for run in place.in_flight() if run.run_id in wanted]:
        place.backend.cancel(run.handle)
    for run in [run for run in place.mine() if run.run_id in wanted]:
        if run.state is RunState.PREEMPTED:
            place.backend.cancel(run.handle)  # an engine may be about to start it again
            place.ledger.cancel(run.run_id, message=message)
        elif run.state is RunState.PROPOSED:
            _cancel_waiting(place, run)
    deadline = clock() + patience
    while any(run.run_id in wanted for run in place.in_flight()) and clock() < deadline:
        if not loop.collect(place):
            sleep(PAUSE_SECONDS)
    return [place.ledger.run(run_id) for run_id in wanted]


def _cancel_waiting(place: Workplace, run: RunRecord) -> None:
    """Ends a run that no backend is known to have.

    A planner may have died after it submitted the run and before it noted that, so the backend is asked for it once
    more: as the same run.
    """
    if place.backend.simulated:
        place.ledger.cancel(run.run_id)
        return
    handle = place.backend.submit(loop.job_of(place, run))
    place.ledger.submitted(run.run_id, handle, backend=place.spec.backend.kind, attempt=run.attempt)
    place.backend.cancel(handle)


def require_ids(run_ids: Collection[str], everything: bool) -> Collection[str] | None:
    """What `cancel_runs` takes, from what a user wrote.  Raises `InputError` for nothing and for both."""
    if everything == bool(run_ids):
        raise InputError("name the runs to cancel, or all of them with --all")
    return None if everything else run_ids
