"""The files of one job folder, and what a trainer needs to speak with the planner.

    FOLDER/job.json        the job: axes in raw units, domain, seed, attempt, limits, options of the trainer, and the
                           run that it goes on with
    FOLDER/metrics.jsonl   appended by the trainer: step, value, cost so far, schedule_complete
    FOLDER/result.json     written once, by rename: response (or null), cost, state, se, successes, trials, extra
    FOLDER/cancel          exists when the run is no longer wanted
    FOLDER/checkpoints/    kept from one attempt to the next
    FOLDER/worker.log      what the worker and the trainer printed
    FOLDER/process.json, exit.json, worker.lock    the worker's own notes: who runs, how it ended

A trainer in Python imports this module only (standard library, nothing of `planner`):

    job = read_job()
    append_metric(step, value, cost)      # at least every minute or so: it is also the heartbeat
    if should_stop(): save a checkpoint and raise Requeue("...")
    write_result(response, cost)

Costs, in metrics and result alike, are those of the run so far: a trainer that resumes from a checkpoint
goes on counting where the checkpoint was written.  A job that goes on with another run (`job.continues`) counts from
where it begins.
"""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.jsonfile import append_line, as_cost, finite, plain, read_json, tail, write_json

BAD_JOB, REQUEUE, DIVERGED, TIME_LIMIT, OUT_OF_MEMORY, TERMINATED = 64, 75, 76, 124, 137, 143

_TAIL_BYTES = 1 << 16


class BadJob(Exception):
    """The job cannot be run as it is and must not be tried again: exit code 64."""


class Requeue(Exception):
    """A checkpoint was written and the run wants to go on later: exit code 75."""


class Diverged(Exception):
    """The run has no finite response, which is an observation, not a failure: exit code 76."""


class JobFolder:
    """Every file name of a job; knows nothing of what is in them."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.job = self.path / "job.json"
        self.metrics = self.path / "metrics.jsonl"
        self.result = self.path / "result.json"
        self.cancel = self.path / "cancel"
        self.checkpoints = self.path / "checkpoints"
        self.log = self.path / "worker.log"
        self.process = self.path / "process.json"
        self.exit = self.path / "exit.json"
        self.lock = self.path / "worker.lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Continues:
    """The finished run that a job goes on with: from where its schedule was at `begins` on `axis`, in raw units.

    Its checkpoint is in `checkpoints`, to be read only.  Costs count from there.
    """

    run_id: str
    axis: str
    begins: float
    axes: Mapping[str, float]  # of the finished run
    checkpoints: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerJob:
    """What a trainer is asked to do: `axes` in raw units, `deadline_seconds` from the start of the attempt."""

    run_id: str
    attempt: int
    domain: str
    axes: Mapping[str, float]
    seed: int
    max_cost: float | None
    deadline_seconds: float | None
    options: Mapping[str, Any]
    folder: Path
    working_folder: Path  # relative paths of the trainer start here
    continues: Continues | None = None  # None: it begins from scratch

    @property
    def checkpoints(self) -> Path:
        return JobFolder(self.folder).checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended well: `state` is "completed", or "diverged" (then `response` is None)."""

    response: float | None
    cost: float | None = None
    state: str = "completed"
    se: float | None = None
    successes: float | None = None
    trials: float | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# ---- reading and writing --------------------------------------------------------------------------------------------


def read_result(path: Path) -> Result | None:
    """The result in `path`, None where there is none yet (or only a part of one).

    A response that is null, NaN or infinite reads as diverged.  Raises `ValueError` for a complete file that is not a
    result, saying what is wrong with it.
    """
    data = read_json(path)
    if data is None:
        return None
    if "response" not in data and data.get("state") != "diverged":
        raise ValueError(f"{path.name} has no 'response'; it has {sorted(data)}")
    state, response = data.get("state") or "completed", data.get("response")
    if state not in ("completed", "diverged"):
        raise ValueError(f"{path.name}: 'state' is {state!r}; it must be 'completed' or 'diverged'")
    if isinstance(response, str):
        # Some JSON writers quote what JSON has no number for.
        if response.strip().lower() not in ("nan", "inf", "-inf", "infinity", "-infinity"):
            raise ValueError(f"{path.name}: 'response' is the text {response!r}; write it as a number")
        response = None
    elif response is not None and (isinstance(response, bool) or not isinstance(response, int | float)):
        raise ValueError(f"{path.name}: 'response' is {response!r}; it must be a number or null")
    value = finite(response) if state == "completed" else None
    extra = data.get("extra")
    return Result(
        response=value,
        cost=as_cost(data.get("cost")),
        state="completed" if value is not None else "diverged",
        se=as_cost(data.get("se")),
        successes=as_cost(data.get("successes")),
        trials=as_cost(data.get("trials")),
        extra=extra if isinstance(extra, dict) else {},
    )


def last_metric(path: Path) -> dict[str, Any] | None:
    """The last whole line of metrics, with non-finite numbers as None.  A torn last line is passed over."""
    for line in reversed(tail(path, _TAIL_BYTES).splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
    return None


def last_lines(folder: Path, num: int = 3) -> list[str]:
    """The last lines that are not empty in the log of a job folder, each cut to 200 characters."""
    lines = [line.rstrip() for line in tail(JobFolder(folder).log, 4000).splitlines() if line.strip()]
    return [line[:200] for line in lines[-num:]]


def parse_job(folder: Path) -> TrainerJob:
    """The job in `folder`.  Raises `BadJob` naming what is missing."""
    data = read_json(JobFolder(folder).job)
    if data is None:
        raise BadJob(f"{JobFolder(folder).job} is missing or is not a JSON object")
    try:
        return TrainerJob(
            run_id=str(data["run_id"]),
            attempt=int(data["attempt"]),
            domain=str(data["domain"]),
            axes={str(name): float(value) for name, value in data["axes"].items()},
            seed=int(data["seed"]),
            max_cost=as_cost(data.get("max_cost")),
            deadline_seconds=as_cost(data.get("deadline_seconds")),
            options=dict(data.get("options") or {}),
            folder=Path(folder),
            working_folder=Path(data.get("working_folder") or folder),
            continues=_parse_continues(data.get("continues")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadJob(f"{JobFolder(folder).job} is not a job: {type(error).__name__} {error}") from error


def _parse_continues(data: Any) -> Continues | None:
    if data is None:
        return None
    return Continues(
        run_id=str(data["run_id"]),
        axis=str(data["axis"]),
        begins=float(data["from"]),
        axes={str(name): float(value) for name, value in data["axes"].items()},
        checkpoints=Path(data["checkpoints"]),
    )


# ---- for trainers ---------------------------------------------------------------------------------------------------


class _Stop:
    """Why this process should stop; filled by a signal handler and by `append_metric`."""

    listening: bool = False
    signalled: bool = False
    cost: float = 0.0


def _environment(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        raise BadJob(f"{name} is not set: this function works inside a trainer that the planner's worker has started")
    return Path(value)


def read_job() -> TrainerJob:
    """The job of this process (from PLANNER_JOB)."""
    return parse_job(_environment("PLANNER_JOB").parent)


def append_metric(
    step: float, value: float | None, cost: float | None = None, schedule_complete: bool = True, **extra: Any
) -> None:
    """Reports progress: the response so far and the cost of the run so far.

    `schedule_complete=False` marks a value in the middle of a learning-rate schedule, which is not the end value of a
    shorter run.  A value that is not finite is written as null.
    """
    _Stop.cost = max(_Stop.cost, as_cost(cost) or 0.0)
    record = {"at": time.time(), "step": step, "value": value, "cost": cost, "schedule_complete": schedule_complete}
    if value is not None and finite(value) is None:
        record["not_finite"] = True  # null alone says that nothing was measured
    append_line(_environment("PLANNER_METRICS"), record | extra)


def write_result(
    response: float | None,
    cost: float | None = None,
    *,
    state: str | None = None,
    se: float | None = None,
    successes: float | None = None,
    trials: float | None = None,
    **extra: Any,
) -> None:
    """Ends the run.  A response that is not finite is written as null with state "diverged".

    Written again with the same content nothing happens; with another content `ValueError`: a result may already have
    been read.
    """
    value = finite(response)
    if state not in (None, "completed", "diverged"):
        raise ValueError(f"state is {state!r}; it must be 'completed' or 'diverged'")
    chosen = "diverged" if value is None else (state or "completed")
    record = plain(
        {"response": value, "cost": cost, "state": chosen, "se": se, "successes": successes, "trials": trials}
        | {"extra": extra}
    )
    path = _environment("PLANNER_RESULT")
    known = read_json(path)
    if known is not None and known != record:
        raise ValueError(f"{path} already holds another result: {known}; a run has one result")
    if known is None:
        write_json(path, record)


def should_stop() -> str | None:
    """Why the trainer should save a checkpoint and end now: "cancelled", "terminated", "deadline", "max_cost"; or None.

    From the first call on SIGTERM no longer ends the process by itself: call this often (every few seconds), from the
    main thread the first time.  After a reason was given there are `grace_seconds` left before SIGKILL.
    """
    _listen()
    if Path(os.environ.get("PLANNER_CANCEL") or "/nonexistent/cancel").exists():
        return "cancelled"
    if _Stop.signalled:
        return "terminated"
    deadline = os.environ.get("PLANNER_DEADLINE")
    if deadline and time.time() >= float(deadline):
        return "deadline"
    max_cost = os.environ.get("PLANNER_MAX_COST")
    if max_cost and over_cost(_Stop.cost, float(max_cost)):
        return "max_cost"
    return None


def over_cost(cost: float | None, max_cost: float | None) -> bool:
    """Whether `cost` is above the limit; a run that was planned to cost exactly the limit is not."""
    return cost is not None and max_cost is not None and cost > max_cost * (1 + 1e-9)


def _listen() -> None:
    if not _Stop.listening and threading.current_thread() is threading.main_thread():
        _Stop.listening = True
        signal.signal(signal.SIGTERM, lambda number, frame: setattr(_Stop, "signalled", True))


def exit_code_of(error: BaseException) -> int:
    """The exit code by which a trainer's exception is reported."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BadJob):
        return BAD_JOB
    if isinstance(error, Requeue):
        return REQUEUE
    if isinstance(error, Diverged | FloatingPointError):
        return DIVERGED
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "OutOfMemory" in text:
        return OUT_OF_MEMORY
    return 1
