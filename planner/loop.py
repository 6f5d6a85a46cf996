"""The loop: look what became of the runs, decide what to buy, start it; again until a reason to stop.

Everything that matters is in the ledger before anything is done about it, so the process may be killed at any point:
the next turn finds intents without a handle, submits them under the same `run_id` and asks about the others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner import continuing, early, hearing
from planner.ahead import BATCH_SHARE, Buyer, Pace
from planner.buying import Purchase, Stop, buy
from planner.errors import BudgetExceeded, InputError
from planner.execution import Job
from planner.hearing import NOT_AGAIN
from planner.records import STATE_RULES, RunRecord, RunState, StudyState

if TYPE_CHECKING:
    from planner.execution import Backend
    from planner.ledger import Ledger
    from planner.records import Policy
    from planner.spec import StudySpec

# Who started a run, in its reason: those asked for by hand are told by hand, and the loop leaves them alone.
BY_LOOP: Mapping[str, str] = {"by": "loop"}
# How often each end is followed by another attempt; what is not listed is final at once.
MAX_RETRIES: Mapping[RunState, int] = {
    RunState.PREEMPTED: 3,
    RunState.LOST: 3,
    RunState.OUT_OF_MEMORY: 1,
    RunState.FAILED: 1,
}
# So many failures in a row, without one run that worked, are the trainer's fault: the budget is not for debugging.
MAX_FAILURES_IN_A_ROW = 4
# Options of [backend] that are the loop's own: limits of every job, which the backend is told with the job.
# A run is stopped by the backend when it costs `max_overrun` times what was predicted.
JOB_LIMITS: Mapping[str, float | None] = {"max_overrun": 2.0, "deadline_seconds": None}
OWN_OPTIONS = ("early_stop", "resume")  # and those that no backend and no trainer sees
MIN_PAUSE, MAX_PAUSE = 0.02, 1.0
PAUSE_SHARE = 0.02  # of what a run usually takes: a slot must not wait longer to be seen free

Kind = Literal["thinking", "bought", "submitted", "running", "ended", "retried", "given_up", "warning", "stopping"]


@dataclass(frozen=True, kw_only=True)
class News:
    """Something that happened, for whoever watches: about one run, or in words."""

    kind: Kind
    run: RunRecord | None = None
    text: str = ""


Watcher = Callable[[News], None]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one turn led to.  `changed`: something happened; `stop`: why fewer runs than possible were bought."""

    state: StudyState
    changed: bool = False
    bought: int = 0
    ended: Sequence[RunRecord] = ()
    stop: Stop | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How `run` ended.  `bought` counts runs bought by this call."""

    state: StudyState
    stop: Stop
    bought: int


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Everything a turn works with.  `folder` holds one job folder per run."""

    spec: StudySpec
    ledger: Ledger
    backend: Backend
    policy: Policy
    folder: Path
    watch: Watcher = lambda news: None
    judged: dict[str, float] = field(default_factory=dict)  # cost at which each run was last judged; see `early`

    def in_flight(self) -> list[RunRecord]:
        """Runs that the backend has and whose end is not known."""
        return [run for run in self.mine() if run.state in (RunState.SUBMITTED, RunState.RUNNING)]

    def mine(self) -> list[RunRecord]:
        """The runs that this loop is responsible for, as it saw them last and changed them since; see `collect`."""
        return [run for run in self.ledger.runs.values() if run.reason.get("by") == BY_LOOP["by"]]


def advance(place: Workplace, *, limit: int | None = None, buyer: Buyer | None = None, ahead: int = 0) -> Turn:
    """One turn: ask about runs, record ends, retry, submit what has no handle yet, buy for free slots and submit that.

    `limit` is how many runs may be bought; by default as many as there are free slots, and `ahead` to hold ready.  What
    a `buyer` that works aside has bought is found by a later turn.  Safe to kill at any point.
    """
    buyer = buyer or Buyer(lambda num: _buy(place, num), aside=False)
    moved = collect(place)
    ended = [run for run in moved if STATE_RULES[run.state].final]
    news = len(moved) + _retry(place) + _submit_waiting(place)
    purchase, num_ended = buyer.take(), sum(STATE_RULES[run.state].final for run in place.mine())
    if purchase is None and not buyer.is_busy:
        free = place.backend.slots + ahead - len(place.in_flight()) - len(waiting(place))
        num = free if limit is None else min(free, limit)
        if num > 0 and free >= BATCH_SHARE * ahead:
            place.watch(News(kind="thinking", text=f"choosing {num} run{'s' if num > 1 else ''}"))
            buyer.begin(num, num_ended)
            purchase = buyer.take()
    if purchase is None:
        return Turn(state=place.ledger.state(), changed=news > 0, ended=ended)
    for run in purchase.granted:
        place.watch(News(kind="bought", run=run))
    _submit_waiting(place)
    return Turn(
        state=place.ledger.state(),
        changed=news > 0 or bool(purchase.granted),
        bought=len(purchase.granted),
        ended=ended,
        # Runs that ended meanwhile may have freed what was missing: then it is asked again.
        stop=purchase.stop if buyer.num_ended == num_ended else None,
    )


def _buy(place: Workplace, num: int) -> Purchase:
    return buy(place.spec, place.ledger, place.policy, num, tag=BY_LOOP)


def run(
    place: Workplace,
    *,
    max_runs: int | None = None,
    max_seconds: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Turns until there is a reason to stop and nothing is running any more.

    `max_runs` limits what this call buys; after `max_seconds` nothing more is bought and what is running is left to
    the next call.  Runs keep going when the process ends; calling again takes them up.  Where runs take real time,
    they are looked after while the next are chosen.
    """
    started_at, bought, failures = clock(), 0, 0
    limit_reached: Stop | None = None  # the call's own limits: final
    nothing_to_buy: Stop | None = None  # stands until a run ends, which may free budget or move the posterior
    pace = Pace()
    place = replace(place, watch=_pacing(pace, place.watch))
    pauses = _pauses(place.backend.simulated, pace)
    with Buyer(pace.timed(lambda num: _buy(place, num)), aside=not place.backend.simulated) as buyer:
        while True:
            if max_seconds is not None and clock() - started_at >= max_seconds:
                buyer.wait()
                bought += len(last.granted) if (last := buyer.take()) is not None else 0
                out_of_time = Stop("max_seconds", f"{max_seconds:g} s have passed")
                return Ended(state=place.ledger.state(), stop=out_of_time, bought=bought)
            if max_runs is not None and bought >= max_runs:
                limit_reached = limit_reached or Stop("max_runs", f"{max_runs} runs were bought")
            stop = limit_reached or nothing_to_buy
            is_idle = not place.in_flight() and not waiting(place)
            if stop is not None and is_idle and not buyer.is_busy:
                return Ended(state=place.ledger.state(), stop=stop, bought=bought)
            may_buy = None if max_runs is None else max_runs - bought
            num_known = sum(run.state is RunState.COMPLETED for run in place.mine())
            ahead = pace.ahead(place.backend.slots, num_known)
            turn = advance(place, limit=may_buy if stop is None else 0, buyer=buyer, ahead=ahead)
            bought += turn.bought
            nothing_to_buy = turn.stop or (None if turn.ended else nothing_to_buy)
            failures = _failures_in_a_row(failures, turn.ended)
            if failures >= MAX_FAILURES_IN_A_ROW and turn.ended:
                limit_reached = Stop("runs_fail", f"{failures} runs in a row failed: {turn.ended[-1].message}")
            if turn.changed:
                pauses = _pauses(place.backend.simulated, pace)
            elif buyer.is_busy:
                buyer.wait(None if is_idle else next(pauses))
            else:
                sleep(next(pauses))


def _pacing(pace: Pace, watch: Watcher) -> Watcher:
    """`watch`, with what it is told of runs noted in `pace`."""

    def watching(news: News) -> None:
        if news.run is not None and news.kind in ("submitted", "running"):  # it may have waited in between
            pace.start(news.run.run_id)
        elif news.run is not None and news.kind == "ended":
            pace.end(news.run.run_id)
        watch(news)

    return watching


def _failures_in_a_row(failures: int, ended: Sequence[RunRecord]) -> int:
    for run in ended:
        failures = failures + 1 if run.state is RunState.FAILED else 0
    return failures


def _pauses(simulated: bool, pace: Pace) -> Iterator[float]:
    """Seconds to wait before each look that follows one without news."""
    if simulated:
        # Its clock moves when it is asked, so that waiting only costs time; but it must not spin for ever either.
        yield from itertools.repeat(0.0, 1000)
    pause = MIN_PAUSE
    while True:
        yield pause
        pause = min(1.5 * pause, MAX_PAUSE, max(MIN_PAUSE, PAUSE_SHARE * pace.run_seconds))


# ---- what became of the runs ----------------------------------------------------------------------------------------


def collect(place: Workplace) -> list[RunRecord]:
    """Records what the backend reports; returns the runs that are in another state now."""
    place.ledger.state()  # what others did meanwhile
    runs = place.in_flight()
    reports = place.backend.poll([run.handle for run in runs]) if runs else []
    before, after = {run.run_id: run for run in runs}, hearing.record(place, list(zip(runs, reports, strict=True)))
    moved = [run for run in after if run.state is not before[run.run_id].state]
    for run in moved:
        is_over = STATE_RULES[run.state].final or run.state is RunState.PREEMPTED
        place.watch(News(kind="ended" if is_over else "running", run=run))
    pairs = [pair for pair in zip(after, reports, strict=True) if pair[0].state is RunState.RUNNING]
    for run in early.stop(place, pairs):
        place.watch(News(kind="stopping", run=run, text=run.early_stop))
    return moved


# ---- attempts -------------------------------------------------------------------------------------------------------


def _retry(place: Workplace) -> int:
    """Buys another attempt of interrupted runs within the limits of each kind; returns how many were touched."""
    touched = 0
    for run in place.mine():
        if not STATE_RULES[run.state].retried:
            continue
        times = run.ends.get(run.state.value, 0)
        if times <= MAX_RETRIES.get(run.state, 0) and NOT_AGAIN not in run.message:
            if run.state is not RunState.PREEMPTED and run.predicted_cost > place.ledger.state().remaining:
                continue  # it stays as it ended
            again = _bought_again(place, run)
            if again is not None:
                place.watch(News(kind="retried", run=again, text=run.message))
                touched += 1
        elif run.state is RunState.PREEMPTED:
            message = f"preempted {times} times, {NOT_AGAIN}"
            place.watch(News(kind="given_up", run=place.ledger.fail(run.run_id, message=message), text=message))
            touched += 1
    return touched


def _bought_again(place: Workplace, run: RunRecord) -> RunRecord | None:
    """The run as it is after another attempt was bought; None where another planner took the run or the money first."""
    try:
        return place.ledger.retry(run.run_id)
    except BudgetExceeded:
        return None
    except InputError:
        if place.ledger.run(run.run_id).state is run.state:
            raise
        return None


def waiting(place: Workplace) -> list[RunRecord]:
    """Runs whose intent is recorded and that no backend is known to have."""
    return [run for run in place.mine() if run.state is RunState.PROPOSED]


def _submit_waiting(place: Workplace) -> int:
    """Submits runs without a handle for free slots, and those that a backend holds ready; returns how many."""
    room = place.backend.slots + getattr(place.backend, "ready", 0) - len(place.in_flight())
    next_runs = waiting(place)[: max(0, room)]
    if not next_runs:
        return 0
    jobs = [job_of(place, run) for run in next_runs]
    submit_all = getattr(place.backend, "submit_all", None)
    handles = [place.backend.submit(job) for job in jobs] if submit_all is None else submit_all(jobs)
    kind = place.spec.backend.kind
    with place.ledger.together():
        submitted = [
            place.ledger.submitted(run.run_id, handle, backend=kind, attempt=run.attempt)
            for run, handle in zip(next_runs, handles, strict=True)
        ]
    for run in submitted:
        place.watch(News(kind="submitted", run=run))
    return len(submitted)


def backend_options(spec: StudySpec) -> dict[str, Any]:
    """The options with which the backend of a study is opened."""
    return {name: value for name, value in spec.backend.options.items() if name not in (*JOB_LIMITS, *OWN_OPTIONS)}


def job_of(place: Workplace, run: RunRecord) -> Job:
    """What the backend is told of the next attempt of a run.  Raises `InputError` for a limit that is none."""
    limits = {name: place.spec.backend.options.get(name, default) for name, default in JOB_LIMITS.items()}
    for name, value in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise InputError(f"backend.{name} is {value!r}: it must be a number greater than 0")
    overrun, deadline = limits["max_overrun"], limits["deadline_seconds"]
    return Job(
        run_id=run.run_id,
        design=run.design,
        folder=place.folder / run.run_id,
        attempt=run.attempt,
        max_cost=None if overrun is None else run.predicted_cost * overrun,
        deadline_seconds=deadline,
        options={
            **backend_options(place.spec),
            "predicted_cost": run.predicted_cost,
            **({"derived": place.spec.derived_values(run.design.axes)} if place.spec.derived else {}),
        },
        continues=continuing.job_part(place.ledger.state(), run, place.folder),
    )
