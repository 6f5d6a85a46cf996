"""What backends share whose runs are workers on job folders: this machine's (`local`) and those of `engines`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backends import attempts, slots
from backends.jobfile import JobFolder, Result, read_result
from backends.jsonfile import plain, read_json, write_json
from backends.worker import DEFAULT_GRACE
from planner.execution import BackendError, Job, Report
from planner.records import RunState

# How long an engine may go on with a run that was cancelled, beyond the grace of its worker.
MARGIN_SECONDS = 10.0


class Place(NamedTuple):
    """One attempt: where it is and which."""

    handle: str
    folder: JobFolder
    attempt: int


class FolderBackend:
    """Job folders and handles.  A handle is `attempt:folder`, relative to the study so that a study can be moved."""

    simulated = False
    kind = "local"
    survives = True  # whether a run goes on when this machine stops

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        self.options = dict(options)
        self.study_dir = Path(study_dir).resolve()
        self.grace = slots.number(self.options, "grace_seconds", DEFAULT_GRACE)
        slots.number(
            self.options, "memory_gb", 1.0
        )  # the worker keeps it, but a mistake is told before runs are bought

    def content(self, job: Job) -> dict[str, Any]:
        """What job.json will hold.  Raises `BackendError` when nothing says what to run."""
        options = self.options | dict(job.options) | {"grace_seconds": self.grace}
        if (options.get("trainer") is None) == (options.get("command") is None):
            raise BackendError(
                f'backend "{self.kind}" needs trainer = "module:function" or command = ["program", "argument", ...],'
                f" one of them; got trainer={options.get('trainer')!r}, command={options.get('command')!r}"
            )
        content: dict[str, Any] = plain(
            {
                "run_id": job.run_id,
                "attempt": job.attempt,
                "domain": job.design.domain,
                # What follows from the axes is filled into commands as they are.
                "axes": {**job.design.axes, **job.options.get("derived", {})},
                "seed": job.design.seed,
                "max_cost": job.max_cost,
                "deadline_seconds": job.deadline_seconds,
                "continues": _continues(job),
                "checkpoints": str(JobFolder(Path(job.folder).resolve()).checkpoints),
                "working_folder": str(self.study_dir),
                "options": options,
            }
        )
        return content

    def prepare(self, folder: JobFolder, content: Mapping[str, Any]) -> bool:
        """Writes job.json; False if this attempt is over, or started once and must be judged by `poll`."""
        known, attempt = read_json(folder.job), int(content["attempt"])
        if known is not None and attempts.is_stale(folder, known, content):
            attempts.set_aside(folder)
            known = None
        if known is not None and attempts.is_over(folder, attempt):
            return False
        if known is not None and known.get("attempt") == attempt:
            return attempts.process_note(folder, attempt) is None
        if known is not None:
            attempts.clear_for_attempt(folder, int(known.get("attempt", 0)))
        write_json(folder.job, content, durable=self.survives)
        return True

    def handle(self, folder: JobFolder, attempt: int) -> str:
        path = folder.path
        if path.is_relative_to(self.study_dir):
            path = path.relative_to(self.study_dir)
        return f"{attempt}:{path.as_posix()}"

    def place(self, handle: str) -> Place | None:
        """What a handle names, also one that another process was given; None if its folder is gone."""
        number, colon, path = handle.partition(":")
        if not (colon and path and number.isascii() and number.isdigit()):
            return None
        folder = JobFolder(self.study_dir / path)
        return Place(handle, folder, int(number)) if read_json(folder.job) is not None else None


def _continues(job: Job) -> dict[str, Any] | None:
    """What job.json says of the run that a job goes on with."""
    told = job.continues
    if told is None:
        return None
    checkpoints = str(JobFolder(Path(told.folder).resolve()).checkpoints)
    parent = {"run_id": told.run_id, "axis": told.axis, "from": told.begins, "axes": dict(told.axes)}
    return parent | {"checkpoints": checkpoints}


def result_of(folder: JobFolder) -> tuple[Result | None, str]:
    """The result, and what is wrong with one that is not valid."""
    try:
        return read_result(folder.result), ""
    except ValueError as error:
        return None, f"the trainer's result is not valid: {error}"


def unknown_report(handle: str) -> Report:
    name = handle.rpartition("/")[2].rpartition(":")[2]
    return Report(run_id=name, handle=handle, state=RunState.LOST, message=f"no job folder for handle {handle!r}")
