"""What the planner and a backend say to each other; with `records`, all of the planner that a backend may import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from planner.errors import PlannerError
from planner.records import CurvePoint, Design, RunState


class BackendError(PlannerError):
    """A backend could not be opened or could not take a job: not a failed run, which is a `Report`."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Continues:
    """The run with which a job goes on, from its checkpoint in `folder`, where its schedule was at `begins`."""

    run_id: str
    folder: Path  # its job folder
    axis: str  # the length of the schedule
    begins: float  # value of that axis, raw units
    axes: Mapping[str, float]  # of the finished run


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt of one run.  `folder` is shared by all attempts of the run, so that a checkpoint is found again."""

    run_id: str
    design: Design
    folder: Path
    attempt: int = 0
    max_cost: float | None = None  # unit of the study's cost
    deadline_seconds: float | None = None  # wall time allowed for this attempt
    options: Mapping[str, Any] = field(default_factory=dict)  # trainer and the rest of [backend]
    continues: Continues | None = None  # then costs are those beyond the run that it goes on with


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a backend knows of one run.

    `response` is None unless the run completed; a NaN from a trainer is reported as state `diverged`.  `cost` is the
    cost of the whole run so far, None when not known.  `progress` holds the last of step, value and cost.
    """

    run_id: str
    handle: str
    state: RunState
    response: float | None = None
    cost: float | None = None
    se: float | None = None
    successes: float | None = None
    trials: float | None = None
    message: str = ""
    progress: Mapping[str, Any] | None = None
    log_tail: str = ""
    points: Sequence[CurvePoint] = ()  # the run's curve so far, thinned (`records.thin_curve`)


class Backend(Protocol):
    """Where runs happen.  `slots`: how many at once.  `simulated`: no real resource is used.

    A backend that takes many jobs in one request may also have `submit_all(jobs) -> handles`: `submit` of each.
    One that starts jobs itself as slots become free may have `ready`: so many it likes to hold beside those at work.
    """

    slots: int
    simulated: bool

    def submit(self, job: Job) -> str:
        """Starts the job and returns a handle; a `run_id` that is already known and alive is not started twice."""
        ...

    def poll(self, handles: Sequence[str]) -> list[Report]:
        """One report per handle, in order; never blocks, and never raises for a failed run."""
        ...

    def cancel(self, handle: str) -> None:
        """Ends the run and everything it started; a finished run is left as it is."""
        ...
