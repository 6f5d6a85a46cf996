"""What a job folder says about the attempts of its run: who works, how each ended, what a new one may find."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from backends import metrics, processes, used
from backends.jobfile import (
    BAD_JOB,
    DIVERGED,
    OUT_OF_MEMORY,
    REQUEUE,
    TERMINATED,
    TIME_LIMIT,
    JobFolder,
    Result,
    last_metric,
    read_result,
)
from backends.jsonfile import as_cost, read_json, tail, write_json
from planner.execution import Report
from planner.records import RunState

# Options that say where a run happens, not what is run.
PLACE_OPTIONS = frozenset(
    {"slots", "gpus", "threads_per_slot", "grace_seconds", "deadline_seconds", "max_overrun", "predicted_cost"}
    | {"memory_gb"}
)
# A worker on another machine is believed dead after so long without a sign of life (it gives one every 10 s).
SILENCE_SECONDS = 180.0

_ENDS: Mapping[int, tuple[RunState, str]] = {
    0: (RunState.LOST, "the trainer ended with exit code 0 but wrote no result.json"),
    BAD_JOB: (RunState.FAILED, "bad job (exit code 64, not to be tried again)"),
    REQUEUE: (RunState.PREEMPTED, "checkpointed and wants to go on (exit code 75)"),
    DIVERGED: (RunState.DIVERGED, "diverged (exit code 76)"),
    TIME_LIMIT: (RunState.TIMED_OUT, "stopped at its time limit (exit code 124)"),
    OUT_OF_MEMORY: (RunState.OUT_OF_MEMORY, "out of memory, or killed from outside (exit code 137)"),
    TERMINATED: (RunState.PREEMPTED, "terminated from outside (exit code 143)"),
}
_REASONS = {"deadline": "stopped at its deadline", "max_cost": "stopped at its cost limit"}


_UNTOLD = (RunState.FAILED, RunState.OUT_OF_MEMORY, RunState.TIMED_OUT, RunState.LOST, RunState.CANCELLED)


# ---- who works ------------------------------------------------------------------------------------------------------


def process_note(folder: JobFolder, attempt: int) -> dict[str, Any] | None:
    """What the worker of this attempt noted about itself; None if it never started."""
    note = read_json(folder.process)
    return note if note is not None and note.get("attempt") == attempt else None


def roots(note: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """(pid, identity) of worker and trainer."""
    return [(note.get("pid"), note.get("identity")), (note.get("trainer_pid"), note.get("trainer_identity"))]


def is_local(note: Mapping[str, Any]) -> bool:
    return bool(note.get("host") == socket.gethostname())


def is_working(folder: JobFolder, note: Mapping[str, Any]) -> bool:
    """Whether worker or trainer is alive, or may be: on another machine only its signs of life can be seen."""
    if is_local(note):
        return any(processes.is_alive(pid, known) for pid, known in roots(note))
    try:
        return time.time() - os.stat(folder.process).st_mtime < SILENCE_SECONDS
    except OSError:
        return False


# ---- how it ended ---------------------------------------------------------------------------------------------------


def write_ending(folder: JobFolder, attempt: int, code: int, reason: str) -> None:
    write_json(folder.exit, {"attempt": attempt, "code": code, "reason": reason, "ended_at": time.time()})


def ending(folder: JobFolder, attempt: int) -> dict[str, Any] | None:
    """The record of how this attempt ended, None if there is none."""
    for path in (folder.exit, folder.path / f"exit-{attempt}.json"):
        record = read_json(path)
        if record is not None and record.get("attempt") == attempt:
            return record
    return None


def has_result(folder: JobFolder) -> bool:
    try:
        return read_result(folder.result) is not None
    except ValueError:
        return False


def is_over(folder: JobFolder, attempt: int) -> bool:
    """Whether nothing more is to come from this attempt."""
    return has_result(folder) or ending(folder, attempt) is not None


# ---- a new attempt --------------------------------------------------------------------------------------------------


def is_stale(folder: JobFolder, known: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether `folder`, whose job is `known`, holds another design, or an end that other trainer options led to."""
    if any(known.get(name) != content[name] for name in ("run_id", "domain", "axes", "seed")):
        return True
    old, new = (
        {name: value for name, value in (job.get("options") or {}).items() if name not in PLACE_OPTIONS}
        for job in (known, content)
    )
    return old != new and is_over(folder, content["attempt"])


def set_aside(folder: JobFolder) -> None:
    number = 1
    while (target := folder.path.with_name(f"{folder.path.name}.old-{number}")).exists():
        number += 1
    folder.path.rename(target)


def clear_for_attempt(folder: JobFolder, last: int) -> None:
    """Makes room for the attempt after `last`; checkpoints and the log stay.  A valid result must not be there.

    Metrics stay too if the run was interrupted and goes on.  Otherwise they are put aside: what a failed attempt cost
    was charged when it failed.
    """
    record = ending(folder, last) or {}
    if folder.exit.exists():
        folder.exit.rename(folder.path / f"exit-{last}.json")
    if record.get("code") not in (REQUEUE, TERMINATED) and folder.metrics.exists():
        folder.metrics.rename(folder.path / f"metrics-{last}.jsonl")
    for path in (folder.cancel, folder.process, folder.result):
        path.unlink(missing_ok=True)


# ---- reports --------------------------------------------------------------------------------------------------------


def report(
    folder: JobFolder, handle: str, state: RunState, *, message: str = "", result: Result | None = None
) -> Report:
    """What the folder holds besides the state.  The cost is the result's, else the last in the metrics.

    The end of the log comes with the end of the run: while it goes on, it is asked for far too often.
    """
    job, metric = read_json(folder.job) or {}, last_metric(folder.metrics)
    cost = result.cost if result is not None else None
    cost = cost if cost is not None else as_cost((metric or {}).get("cost"))
    if cost is None and state in _UNTOLD:
        cost = used.cost_of_time(folder, job)
    return Report(
        run_id=str(job.get("run_id") or folder.path.name),
        handle=handle,
        state=state,
        response=result.response if result is not None else None,
        cost=cost,
        se=result.se if result is not None else None,
        successes=result.successes if result is not None else None,
        trials=result.trials if result is not None else None,
        message=message,
        progress=metric,
        points=metrics.curve(folder.metrics, whole=state not in (RunState.SUBMITTED, RunState.RUNNING)),
        log_tail="" if state in (RunState.SUBMITTED, RunState.RUNNING) else tail(folder.log),
    )


def result_report(folder: JobFolder, handle: str, result: Result) -> Report:
    if result.state == "completed":
        return report(folder, handle, RunState.COMPLETED, result=result)
    return report(folder, handle, RunState.DIVERGED, result=result, message="no finite response")


def exit_report(folder: JobFolder, handle: str, record: Mapping[str, Any]) -> Report:
    """The report of an attempt that ended without a result, by its record: code, reason, what it held of memory."""
    code, reason, memory = int(record["code"]), record.get("reason"), record.get("memory")
    state, meaning = _ENDS.get(code, (RunState.FAILED, f"failed with exit code {code}"))
    if reason in _REASONS and code == TIME_LIMIT:
        meaning = _REASONS[reason]
    elif reason == "memory":
        meaning = f"out of memory: {memory or 'its processes held more than memory_gb'}"
    elif reason not in (None, "terminated", "finished"):
        meaning = f"{meaning}: {reason}"
    last = "" if state is RunState.PREEMPTED else _last_line(folder)
    return report(folder, handle, state, message=f"{meaning}: {last}" if last else meaning)


def _last_line(folder: JobFolder) -> str:
    lines = [line.strip() for line in tail(folder.log).splitlines() if line.strip()]
    return lines[-1][:500] if lines and not lines[-1].startswith("--- attempt") else ""
