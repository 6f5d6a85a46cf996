"""The records that travel between planner, store, policies and backends.

Plain frozen dataclasses on the host side: no JAX, no database.  Quantities are Python floats in the raw units of the
study; only `encoding.py` takes logarithms.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from planner.spec import StudySpec


@dataclass(frozen=True, kw_only=True)
class Design:
    """A domain and a value for every axis; `seed` tells replicates of the same point apart.

    Raises `InputError` for an axis value that is not a finite number.
    """

    domain: str
    axes: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        axes: dict[str, float] = {}
        for name, value in self.axes.items():
            try:
                number = float(value) + 0.0  # turns -0.0 into 0.0, which would otherwise be another design
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isfinite(number):
                raise InputError(f"axis {name!r} of a design in {self.domain!r} is {value!r}: need a finite number")
            axes[str(name)] = number
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "seed", int(self.seed))

    def key(self) -> str:
        """Canonical content: equal for equal designs, whatever the order of the axes."""
        return json.dumps([self.domain, sorted((name, repr(value)) for name, value in self.axes.items()), self.seed])

    def __hash__(self) -> int:
        return hash(self.key())


def total_of(costs: Iterable[float]) -> float:
    """The exactly rounded sum, so that it does not depend on the order; infinite where it is above every number."""
    try:
        return math.fsum(costs)
    except (OverflowError, ValueError):  # the second for infinities of both signs
        return math.inf


def left_of(total: float, *, spent: float, reserved: float) -> float:
    """What is left of a budget, never negative."""
    if math.isfinite(total_of([total, spent, reserved])):
        return max(0.0, math.fsum([total, -spent, -reserved]))
    return max(0.0, total - spent - reserved) if math.isfinite(spent + reserved) else 0.0


def run_id_of(study_name: str, design: Design) -> str:
    """The id of the run that buys `design` in this study: "r" and 12 hexadecimal digits."""
    return "r" + hashlib.sha256(f"{study_name}\n{design.key()}".encode(errors="backslashreplace")).hexdigest()[:12]


class RunState(enum.StrEnum):
    """What has become of a run.  The value is also the kind of the event that leads there."""

    PROPOSED = "proposed"
    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETED = "completed"
    DIVERGED = "diverged"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class StateRule:
    """What a state means for everybody.

    `final`: no more work is expected.  `in_likelihood`: the response enters the likelihood of the response.
    `charged`: what counts against the budget, the reservation or the actual cost.  `retried`: the loop may start the
    run again by itself, within its limits.  `may_propose_again`: reserving the same design buys a new attempt.
    """

    final: bool
    in_likelihood: bool
    charged: Literal["actual", "reserved", "none"]
    retried: bool
    may_propose_again: bool


def _open_rule(*, retried: bool) -> StateRule:
    return StateRule(final=False, in_likelihood=False, charged="reserved", retried=retried, may_propose_again=False)


def _end_rule(*, in_likelihood: bool = False, retried: bool = False, may_propose_again: bool = False) -> StateRule:
    return StateRule(
        final=True,
        in_likelihood=in_likelihood,
        charged="actual",
        retried=retried,
        may_propose_again=may_propose_again,
    )


STATE_RULES: Mapping[RunState, StateRule] = {
    RunState.PROPOSED: _open_rule(retried=False),
    RunState.SUBMITTED: _open_rule(retried=False),
    RunState.RUNNING: _open_rule(retried=False),
    RunState.PREEMPTED: _open_rule(retried=True),
    RunState.COMPLETED: _end_rule(in_likelihood=True),
    # An observation of the region, never of the response: it would diverge again.
    RunState.DIVERGED: _end_rule(),
    # The machine or the program failed, which says nothing about the design.
    RunState.FAILED: _end_rule(retried=True, may_propose_again=True),
    RunState.LOST: _end_rule(retried=True, may_propose_again=True),
    # A few retries (a smaller device, a checkpoint to go on from), then the region is infeasible.
    RunState.OUT_OF_MEMORY: _end_rule(retried=True),
    RunState.TIMED_OUT: _end_rule(retried=True),
    RunState.CANCELLED: _end_rule(may_propose_again=True),
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the numerical side may see of a run: completed or diverged."""

    run_id: str
    design: Design
    state: RunState
    response: float | None  # raw units; None unless completed, never NaN
    cost: float
    se: float | None = None  # known standard error of the response, raw units
    successes: float | None = None  # binomial
    trials: float | None = None
    curve: str | None = None  # shared by the checkpoints of one training run
    external: bool = False  # attached, not bought

    @property
    def is_measured(self) -> bool:
        """Whether there is a response, or counts that stand for one."""
        return self.response is not None or self.successes is not None


class CurvePoint(NamedTuple):
    """What a run reported on its way.  `value` is None where it was not finite; `cost` is that of the run so far.

    `schedule_complete` is False in the middle of a learning-rate schedule: not the end value of a shorter run.
    """

    step: float
    value: float | None
    cost: float | None
    schedule_complete: bool


MAX_POINTS = 64
_PER_DOUBLING = 8


def thin_curve(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """At most `MAX_POINTS` points in order of their steps (zero or more): the first in every cell of a log grid, and
    the last of all.  Of two with one step the later one wins, as after a return to a checkpoint.

    Cells depend on the first and the last step only, and those of a longer curve are unions of these: thinning what
    was thinned before together with what came later is thinning all of it.
    """
    latest = {point.step: point for point in points}
    ordered = [latest[step] for step in sorted(latest)]
    above_zero = [point.step for point in ordered if point.step > 0]
    doublings = math.log2(above_zero[-1]) - math.log2(above_zero[0]) if above_zero else 0.0
    merged = 1
    while _PER_DOUBLING * doublings / merged > MAX_POINTS - 5:
        merged *= 2
    kept: dict[int | None, CurvePoint] = {}
    for point in ordered:
        cell = math.floor(_PER_DOUBLING * math.log2(point.step)) // merged if point.step > 0 else None
        kept.setdefault(cell, point)
    thinned = list(kept.values())
    return thinned if not ordered or thinned[-1] is ordered[-1] else [*thinned, ordered[-1]]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the ledger.  `seq` counts from 1 without gaps, `at` is seconds since the epoch."""

    seq: int
    at: float
    kind: str
    run_id: str | None
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All that is known of one run.

    `cost` is that of the latest attempt, None until it ended; `charged_before` is what earlier attempts cost.
    Preempted attempts of one reservation are one attempt for costs: the cost told at the end includes them.
    """

    run_id: str
    design: Design
    state: RunState = RunState.PROPOSED
    predicted_cost: float = 0.0
    cost: float | None = None
    response: float | None = None
    se: float | None = None
    successes: float | None = None
    trials: float | None = None
    curve: str | None = None
    external: bool = False
    budgeted: bool = True  # False for attached runs that somebody else paid
    handle: str = ""
    attempt: int = 0
    reason: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    proposed_at: float = 0.0
    updated_at: float = 0.0
    cost_so_far: float | None = None  # last cost reported while running
    progress: Mapping[str, Any] = field(default_factory=dict)  # last progress told
    batches: Sequence[tuple[int, Sequence[Any]]] = ()  # points as told, each with the attempt that began its curve
    early_stop: str = ""  # why it was told to stop before its end
    curve_began: int = 0  # the attempt that began the present curve: one that goes on from a checkpoint does not
    ends: Mapping[str, int] = field(default_factory=dict)  # how often each unsuccessful end was met: retry counters
    charged_before: float = 0.0

    @property
    def spent(self) -> float:
        """What this run has taken from the budget for good, all attempts."""
        return self.charged_before + (self.cost or 0.0) if self.budgeted else 0.0

    @property
    def reserved(self) -> float:
        """What this run holds back until its cost is known; more than predicted when it already used more."""
        if STATE_RULES[self.state].final:
            return 0.0
        return max(self.predicted_cost, self.cost_so_far or 0.0)

    @property
    def parent(self) -> str | None:
        """The run from whose checkpoint this one goes on, at the cost of the difference; None: from scratch."""
        told = self.reason.get("continues")
        return str(told["run_id"]) if isinstance(told, Mapping) and "run_id" in told else None

    def curves(self) -> dict[int, list[CurvePoint]]:
        """The points of every attempt that began anew, thinned, in order of their steps."""
        told: dict[int, list[CurvePoint]] = {}
        for attempt, points in self.batches:
            told.setdefault(attempt, []).extend(CurvePoint(*point) for point in points)
        return {attempt: thin_curve(points) for attempt, points in told.items()}

    def points(self) -> list[CurvePoint]:
        """The points of the present curve."""
        return self.curves().get(self.curve_began, [])

    def new_points(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Those of `points` that belong to the present curve and are not recorded."""
        known = self.points()
        return [point for point in thin_curve([*known, *points]) if point not in known]


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """Where a study stands: the replay of its first `num_events` events.  `runs` is in order of proposal."""

    runs: Mapping[str, RunRecord]
    spent: float
    reserved: float
    total: float
    num_events: int

    @property
    def remaining(self) -> float:
        """What may still be reserved; never negative, though actual costs may have exceeded the total."""
        return left_of(self.total, spent=self.spent, reserved=self.reserved)

    def outcomes(self) -> list[Outcome]:
        """Completed and diverged runs, in order of proposal.

        Runs that went on from one another are one training run, and each costs what it took from the start.
        """
        chains = self._chains()
        return [
            Outcome(
                run_id=run.run_id,
                design=run.design,
                state=run.state,
                response=run.response,
                cost=total_of(
                    part.predicted_cost if part.cost is None else part.cost for part in chains.get(run.run_id, [run])
                ),
                se=run.se,
                successes=run.successes,
                trials=run.trials,
                curve=run.curve or (chains[run.run_id][0].run_id if run.run_id in chains else None),
                external=run.external,
            )
            for run in self.runs.values()
            if run.state in (RunState.COMPLETED, RunState.DIVERGED)
        ]

    def _chains(self) -> dict[str, list[RunRecord]]:
        """For every run that went on from another, or from which one did: the runs from the first to it."""
        chains: dict[str, list[RunRecord]] = {}
        for run in self.runs.values():
            if run.parent not in self.runs:
                continue
            parts, parent = [run], self.runs.get(run.parent or "")
            while parent is not None and parent not in parts:
                parts.insert(0, parent)
                parent = self.runs.get(parent.parent or "")
            for length in range(1, len(parts) + 1):
                chains[parts[length - 1].run_id] = parts[:length]
        return chains

    def pending(self) -> list[RunRecord]:
        """Runs whose end is not known yet, in order of proposal."""
        return [run for run in self.runs.values() if not STATE_RULES[run.state].final]


@dataclass(frozen=True, kw_only=True, eq=False)
class DesignTable:
    """Many designs as columns.  C = number of designs, A = number of axes in the order of the spec."""

    domain: np.ndarray  # (C,) int64, index into spec.domains
    x: np.ndarray  # (C, A) float64, raw units
    cost: np.ndarray  # (C,) float64, predicted, positive and finite
    row: np.ndarray  # (C,) int64, row of the pool file, -1 if generated

    def __len__(self) -> int:
        return len(self.domain)

    def take(self, index: np.ndarray) -> DesignTable:
        """The designs at `index`: integers (K,) or booleans (C,)."""
        return DesignTable(domain=self.domain[index], x=self.x[index], cost=self.cost[index], row=self.row[index])


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a policy wants bought, with predicted costs and reasons; `stop` says why when it wants nothing."""

    designs: Sequence[Design] = ()
    costs: Sequence[float] = ()
    reasons: Sequence[Mapping[str, Any]] = ()
    plan: Sequence[Mapping[str, Any]] = ()
    stop: str | None = None


class Policy(Protocol):
    """A rule that chooses designs from what is known."""

    def propose(self, spec: StudySpec, state: StudyState, candidates: DesignTable, num: int) -> Proposal:
        """Up to `num` designs for what is left of the budget."""
        ...
