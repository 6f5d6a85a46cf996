"""What may be told about a run, and what a verb of the ledger does with it inside its transaction."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.errors import BudgetExceeded, ConflictingResult, InputError, UnknownRun
from planner.events import DATA_STATES, Replayer, decode_body, design_body, encode_body, is_finite
from planner.records import STATE_RULES, Design, Event, RunRecord, RunState, left_of, run_id_of, total_of

if TYPE_CHECKING:
    from planner.store import Reader, Writer

# Sums here are exactly rounded; the shares of a total that a caller computes are not.
BUDGET_TOLERANCE = 1e-9
MAX_COST = 1e300  # sums of such are still numbers
MAX_SE = 1e50  # and so are powers of such
MAX_COUNT = 1e15

Result = dict[str, Any]  # response (NaN or infinite: diverged), se, successes, trials, curve


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A result obtained elsewhere.  A response that is not finite means that the run diverged."""

    design: Design
    response: float | None
    cost: float
    se: float | None = None
    successes: float | None = None
    trials: float | None = None
    curve: str | None = None
    budgeted: bool = False  # True when this study's budget paid for it
    source: str = ""  # where it came from, for the record


@dataclass(frozen=True, kw_only=True)
class Attached:
    """The run an attachment became; `warning` says so when it was a duplicate or became a replicate."""

    run: RunRecord
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A design that was not bought, and why."""

    design: Design
    run_id: str
    predicted_cost: float
    error: BudgetExceeded


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The answer to `Ledger.reserve`: new attempts, runs that were bought before, and designs refused."""

    granted: Sequence[RunRecord]
    existing: Sequence[RunRecord]
    refused: Sequence[Refusal]


def number_told(value: object, what: str) -> float:
    """`value` as a float, possibly not finite.  Integers of any size are taken; text and truth values are refused."""
    if isinstance(value, bool | str | bytes):
        raise InputError(f"{what} is {value!r}: need a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}: need a number") from None


def cost_told(value: object, what: str) -> float:
    """A cost.  Raises `InputError` unless it is finite, not negative, and small enough for sums of costs."""
    cost = count_told(value, what)
    if cost > MAX_COST:
        raise InputError(f"{what} is {cost:g}: costs above {MAX_COST:g} cannot be added up; choose a larger unit")
    return cost


def count_told(value: object, what: str, most: float = math.inf) -> float:
    """A number from zero up.  Raises `InputError` unless it is finite, not negative and at most `most`."""
    number = number_told(value, what)
    if not is_finite(number) or number < 0:
        raise InputError(f"{what} is {number:g}: need a finite number, zero or more")
    if number > most:
        raise InputError(f"{what} is {number:g}: nothing above {most:g} can be reckoned with")
    return number + 0.0


def cost_of_run(value: object | None, run_id: str) -> float | None:
    """The cost told of a run, None when it was not told."""
    return None if value is None else cost_told(value, f"cost of run {run_id}")


def result_told(
    what: str, response: object, se: object, successes: object, trials: object, curve: str | None
) -> Result:
    """A result with its numbers checked.  Raises `InputError` naming what is wrong with which number."""
    counts = {"successes": successes, "trials": trials}
    checked: Result = {"response": None, "se": None, "successes": None, "trials": None, "curve": curve}
    for name, value in counts.items():
        if value is not None:
            checked[name] = count_told(value, f"{name} of {what}", MAX_COUNT)
    if (successes is None) != (trials is None):
        raise InputError(f"{what}: successes and trials go together, got {successes!r} and {trials!r}")
    if trials is not None and not 0 < checked["trials"] >= checked["successes"]:
        raise InputError(
            f"{what}: {successes!r} successes in {trials!r} trials: need 0 <= successes <= trials, trials > 0"
        )
    if response is not None:
        checked["response"] = number_told(response, f"response of {what}")
    elif trials is not None:
        checked["response"] = checked["successes"] / checked["trials"]
    else:
        raise InputError(f"{what} has no response: give a number, or nan when the run diverged")
    if se is not None:
        checked["se"] = count_told(se, f"standard error of {what}", MAX_SE)
    return checked


def result_amended(
    run: RunRecord, response: object, se: object, successes: object, trials: object, curve: str | None
) -> Result:
    """The result of `run` with what is given put in place."""
    if successes is None and trials is None:
        if response is not None and run.trials is not None and is_finite(number_told(response, "response")):
            raise InputError(f"run {run.run_id} was recorded with counts: amend successes and trials, not the response")
        if response is None:
            response = math.nan if run.response is None else run.response
            successes, trials = run.successes, run.trials
    else:
        successes = run.successes if successes is None else successes
        trials = run.trials if trials is None else trials
    return result_told(
        f"run {run.run_id}",
        response,
        run.se if se is None else se,
        successes,
        trials,
        run.curve if curve is None else curve,
    )


def state_of(result: Result) -> RunState:
    """A response that is not finite is no response: the run diverged."""
    return RunState.COMPLETED if is_finite(result["response"]) else RunState.DIVERGED


def conflict(run: RunRecord, news: str) -> ConflictingResult:
    """The error for news that contradict what is recorded."""
    return ConflictingResult(
        f"run {run.run_id} is already {_describe(run)}, and was now told to be {news}:"
        " the record stays. To correct it, amend it (tell --amend)."
    )


def require_agreement(run: RunRecord, result: Result, cost: float | None) -> None:
    """Raises `ConflictingResult` when a run with a result is told another one; what is not told again agrees."""
    state = state_of(result)
    told = {**result, "cost": cost} if state is RunState.COMPLETED else {"cost": cost}
    if run.state is state and all(value is None or value == getattr(run, name) for name, value in told.items()):
        return
    news = ", ".join(f"{name} {value:g}" for name, value in told.items() if isinstance(value, float))
    raise conflict(run, f"{state}{' with ' if news else ''}{news}")


def find(runs: Mapping[str, RunRecord], run_id: str) -> RunRecord:
    """The run with this id.  Raises `UnknownRun`, naming ids like it."""
    run = runs.get(run_id)
    if run is not None:
        return run
    near = [known for known in runs if run_id and known.startswith(run_id)][:3]
    near = near or difflib.get_close_matches(str(run_id), runs, n=3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise UnknownRun(
        f"no run has the id {run_id!r} among {len(runs)} runs: {hint}"
        "`planner status` lists them; results of runs that were never proposed here are attached (planner import)"
    )


class Purse:
    """What may still be reserved inside one transaction."""

    def __init__(self, *, spent: float, reserved: float, limit: float) -> None:
        self._spent, self._reserved, self._limit = spent, reserved, limit
        self._taken: list[float] = []

    def take(self, run_id: str, cost: float) -> None:
        """Sets `cost` aside.  Raises `BudgetExceeded` when spent + reserved + cost would exceed the limit."""
        reserved = total_of([self._reserved, *self._taken])
        if total_of([self._spent, reserved, cost]) > self._limit * (1.0 + BUDGET_TOLERANCE):
            left = left_of(self._limit, spent=self._spent, reserved=reserved)
            advice = "wait until running runs end, take" if reserved > 0 else "take"
            raise BudgetExceeded(
                f"run {run_id} needs {cost:.6g}, {left:.6g} of {self._limit:.6g} is left ({self._spent:.6g} spent,"
                f" {reserved:.6g} reserved): {advice} cheaper designs, or raise total in [budget]"
            )
        self._taken.append(cost)


class Turn:
    """One transaction as the only writer: look at the runs and append events, which the replay takes in at once."""

    def __init__(self, writer: Writer, replayer: Replayer, study_name: str, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._replayer = replayer
        self._study_name = study_name
        self._clock = clock
        self._points: dict[str, list[str]] | None = None
        self.runs: Mapping[str, RunRecord] = replayer.runs
        self.num_appended = 0

    @property
    def reader(self) -> Reader:
        """Reads the store inside the transaction."""
        return self._writer

    def find(self, run_id: str) -> RunRecord:
        """The run with this id.  Raises `UnknownRun`."""
        return find(self.runs, run_id)

    def purse(self, limit: float) -> Purse:
        """What may be reserved now under a total of `limit`."""
        state = self._replayer.snapshot(limit)
        return Purse(spent=state.spent, reserved=state.reserved, limit=limit)

    def as_read(self, body: Mapping[str, Any], *, flags: bool = True) -> dict[str, Any]:
        """`body` as a later reader will see it, by default with what was not finite in it."""
        read = decode_body(encode_body(body))
        if not flags:
            read.pop("nonfinite", None)
        return read

    def append_event(self, kind: str, run_id: str | None, body: Mapping[str, Any]) -> None:
        """Appends one event; it is acknowledged when the transaction ends."""
        self.num_appended += 1
        seq = self._replayer.num_events + 1
        event = Event(seq=seq, at=self._clock(), kind=kind, run_id=run_id, body=self.as_read(body))
        self._writer.append(event)
        self._replayer.apply(event)

    def append(self, kind: str, run_id: str, body: Mapping[str, Any]) -> RunRecord:
        """Appends an event of a run and returns what the run is then."""
        self.append_event(kind, run_id, body)
        return self.runs[run_id]

    def record_study(self, spec_digest: str, planner_version: str, total: float) -> None:
        """Records the study in a new store, or that its file has changed."""
        meta = self._writer.meta()
        if "study_name" not in meta:
            self._writer.set_meta("study_name", self._study_name)
            self._writer.set_meta("planner_version", planner_version)
            body = {"study": self._study_name, "spec_digest": spec_digest, "total": total, "planner": planner_version}
            self.append_event("study_opened", None, body)
        elif meta.get("spec_digest") != spec_digest:
            body = {"text": "the study file has changed", "old": meta.get("spec_digest"), "new": spec_digest}
            self.append_event("note", None, body)
        self._writer.set_meta("spec_digest", spec_digest)

    def propose(self, run_id: str, design: Design, cost: float, reason: Mapping[str, Any]) -> RunRecord:
        """The intent to buy; the budget was checked."""
        body = {"design": design_body(design), "predicted_cost": cost, "reason": reason}
        return self.append("proposed", run_id, body)

    def end(
        self, run: RunRecord, kind: RunState, told: float | None, message: str, result: Mapping[str, Any]
    ) -> RunRecord:
        """The end of an attempt, or its interruption; `told` is the cost told, None if it was not."""
        late = run.state.value if STATE_RULES[run.state].final else None
        body = {"cost": told, "message": message, "late_after": late, **result}
        if kind is not RunState.PREEMPTED:
            body["charged"] = _charge(run, kind) if told is None else told
        return self.append(kind.value, run.run_id, body)

    def attach(self, given: Attachment, result: Result, cost: float) -> Attached:
        """Records a result from elsewhere, as a new run unless it is known."""
        if self._points is None:
            self._points = {}
            for run in self.runs.values():
                self._points.setdefault(_point(run.design), []).append(run.run_id)
        here = self._points.setdefault(_point(given.design), [])
        design, warning = given.design, None
        rivals = [self.runs[run_id] for run_id in here if _stated_seed(self.runs[run_id]) == design.seed]
        for rival in rivals:
            if _is_same(rival, result):
                return Attached(run=rival, warning=f"already recorded as run {rival.run_id}: taken as one observation")
        seeds = {self.runs[run_id].design.seed: self.runs[run_id] for run_id in here}
        if rivals or design.seed in seeds:
            rival = rivals[0] if rivals else seeds[design.seed]
            design = replace(design, seed=next(seed for seed in range(len(seeds) + 1) if seed not in seeds))
            warning = (
                f"run {rival.run_id} has the same axes and seed and is {_describe(rival)}:"
                f" this one is taken as a replicate with seed {design.seed}"
            )
        run_id = run_id_of(self._study_name, design)
        body = {
            **result,
            "design": design_body(design),
            "cost": cost,
            "budgeted": given.budgeted,
            "source": given.source,
            "stated_seed": given.design.seed,
        }
        here.append(run_id)
        return Attached(run=self.append("attached", run_id, body), warning=warning)


def _charge(run: RunRecord, kind: RunState) -> float:
    """What to charge for an attempt whose cost nobody told: too much rather than too little."""
    used = max(run.cost or 0.0, run.cost_so_far or 0.0)
    if kind is RunState.COMPLETED:
        return max(run.predicted_cost, used)
    if kind is RunState.CANCELLED and run.state is RunState.PROPOSED:
        return used  # never submitted
    is_known = run.cost is not None or run.cost_so_far is not None
    return used if is_known else run.predicted_cost


def _describe(run: RunRecord) -> str:
    if run.response is not None:
        return f"{run.state} with response {run.response:g}" + (f" at a cost of {run.cost:g}" if run.cost else "")
    return f"{run.state}" + (f" at a cost of {run.cost:g}" if run.cost is not None else "")


def _point(design: Design) -> str:
    return replace(design, seed=0).key()


def _stated_seed(run: RunRecord) -> int:
    stated = run.reason.get("stated_seed") if run.external else None
    return run.design.seed if stated is None else int(stated)


def _is_same(run: RunRecord, result: Result) -> bool:
    if run.state not in DATA_STATES or run.state is not state_of(result):
        return False
    if run.state is RunState.DIVERGED:
        return True
    return all(getattr(run, name) == result[name] for name in ("response", "successes", "trials"))
