"""What backends share whose runs are workers on job folders: this machine's (`local`) and those of an engine."""

import dataclasses
import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backends import attempts, slots
from backends.jobfile import REQUEUE, TERMINATED, JobFolder, Result, read_result
from backends.jsonfile import plain, read_json, write_json
from backends.worker import DEFAULT_GRACE
from planner.execution import BackendError, Job, Report
from planner.records import RunState

# How long an engine may go on with a run that was cancelled, beyond the grace of its worker.
MARGIN_SECONDS = 10.0
_BACKOFF_SECONDS = 2.0


class Place(NamedTuple):
    """One attempt: where it is and which."""

    handle: str
    folder: JobFolder
    attempt: int


class FolderBackend:
    """Job folders and handles.  A handle is `attempt:folder`, relative to the study so that a study can be moved."""

    simulated = False
    kind = "local"

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        self.options = dict(options)
        self.study_dir = Path(study_dir).resolve()
        self.grace = slots.number(self.options, "grace_seconds", DEFAULT_GRACE)

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
                "axes": dict(job.design.axes),
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
        write_json(folder.job, content)
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


# ---- engines --------------------------------------------------------------------------------------------------------


class Sight(NamedTuple):
    """What an engine says of one of its jobs.

    `state` is "waiting", "working", "gone" or "unknown" (the engine did not answer, or does not know yet).  Of a job
    that is gone the engine may know the end, which counts only where the job folder holds none; but a run that was
    made to stop is cancelled if the engine says so, and not merely interrupted.
    """

    state: str
    message: str = ""
    end: RunState | None = None


class EngineBackend(FolderBackend):
    """Workers that an engine starts somewhere on folders that both sides see.

    The name of an engine's job is made from the folder and the attempt before it is started, so that a job whose
    acceptance was never heard of is found again and not started twice.  `latency_seconds` is how long files may be
    late on shared storage before a run without an end is called lost.
    """

    tries = 1  # to start a job

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        super().__init__(options, study_dir)
        self.latency = slots.number(self.options, "latency_seconds", 60.0)
        self._final: dict[str, Report] = {}
        self._gone: dict[str, tuple[float, Sight]] = {}  # since when, and what the engine knew

    @abstractmethod
    def find(self, name: str) -> str | None:
        """The engine's own id of a job of that name which is not over, None if there is none.

        Raises `BackendError` when the engine does not answer: a job that may exist is not started again.
        """

    @abstractmethod
    def launch(self, folder: JobFolder, name: str, content: Mapping[str, Any]) -> str:
        """Starts a worker on the folder and returns the engine's id of it.  Raises `BackendError`."""

    @abstractmethod
    def look(self, ids: Sequence[str]) -> Mapping[str, Sight]:
        """What the engine says of these jobs, in as few questions as possible.  Never raises."""

    @abstractmethod
    def kill(self, ids: Sequence[str]) -> None:
        """Ends these jobs, in one request.  Never raises."""

    def release(self, identifier: str) -> None:
        """Gives back what the engine still keeps for a job that is over.  Never raises."""

    # ---- the three verbs ----

    def submit(self, job: Job) -> str:
        folder = JobFolder(Path(job.folder).resolve())
        content = self.content(job)
        handle = self.handle(folder, job.attempt)
        earlier = _note(folder)
        if earlier is not None:
            is_over = attempts.is_over(folder, earlier["attempt"])
            if not is_over or earlier["attempt"] != job.attempt:
                sight = self.look([earlier["id"]]).get(earlier["id"], Sight("gone"))
                if sight.state != "gone" and not is_over:
                    return self.handle(folder, earlier["attempt"])
                if sight.state != "gone":
                    # The engine may start again what it ended, and that worker would take the new attempt for its own.
                    self.kill([earlier["id"]])
        try:
            if not self.prepare(folder, content):
                return handle
            name = job_name(folder, job.attempt)
            identifier = self._start(folder, name, content)
            write_json(_engine_file(folder), {"attempt": job.attempt, "id": identifier, "name": name})
        except OSError as error:
            raise BackendError(f"cannot write the job folder {folder.path}: {error}") from error
        self._final.pop(handle, None)
        self._gone.pop(handle, None)
        return handle

    def _start(self, folder: JobFolder, name: str, content: Mapping[str, Any]) -> str:
        """The id of the job of that name, which is started if there is none.

        Looked for before each try: it may be the reply that was lost and not the request.
        """
        for number in range(1, self.tries):
            try:
                return self.find(name) or self.launch(folder, name, content)
            except BackendError:
                time.sleep(_BACKOFF_SECONDS * 2 ** (number - 1))
        return self.find(name) or self.launch(folder, name, content)

    def poll(self, handles: Sequence[str]) -> list[Report]:
        places = [self.place(handle) for handle in handles]
        open_places = [each for each in places if each is not None and each.handle not in self._final]
        ids, unanswered = {}, {}
        for each in open_places:
            try:
                if (identifier := self._id(each)) is not None:
                    ids[each.handle] = identifier
            except BackendError as error:
                unanswered[each.handle] = Sight("unknown", str(error))
        # Asked before the files are read: a result that is not there after the death will never come.
        seen = self.look(list(ids.values())) if ids else {}
        sights = {handle: seen.get(identifier, Sight("gone")) for handle, identifier in ids.items()} | unanswered
        self._kill_cancelled(open_places, ids, sights)
        reports = []
        for handle, place in zip(handles, places, strict=True):
            if place is None:
                reports.append(unknown_report(handle))
            elif handle in self._final:
                reports.append(self._final[handle])
            else:
                reports.append(self._observe(place, sights.get(handle, Sight("gone"))))
                if handle in ids and handle in self._final:
                    self.release(ids[handle])
        return reports

    def cancel(self, handle: str) -> None:
        """Asks the worker to end its trainer.  `CANCELLED` is reported after the death."""
        place = self.place(handle)
        if place is None or handle in self._final or attempts.is_over(place.folder, place.attempt):
            return
        write_json(place.folder.cancel, {"at": time.time()})

    # ---- reports ----

    def _id(self, place: Place) -> str | None:
        """The engine's id of an attempt; looked for by name where the planner died before noting it.

        Raises `BackendError` as `find` does.
        """
        note = _note(place.folder)
        if note is not None and note["attempt"] == place.attempt:
            return str(note["id"])
        if attempts.is_over(place.folder, place.attempt):
            return None
        name = job_name(place.folder, place.attempt)
        identifier = self.find(name)
        if identifier is not None:
            write_json(_engine_file(place.folder), {"attempt": place.attempt, "id": identifier, "name": name})
        return identifier

    def _kill_cancelled(self, places: Sequence[Place], ids: Mapping[str, str], sights: Mapping[str, Sight]) -> None:
        """Takes cancelled jobs from the queue, and ends those whose worker does not do it, all in one request."""
        doomed = []
        for place in places:
            identifier = ids.get(place.handle)
            if identifier is None or not place.folder.cancel.exists():
                continue
            state = sights[place.handle].state
            late = time.time() > place.folder.cancel.stat().st_mtime + self.grace + MARGIN_SECONDS
            if state == "waiting" or (state == "working" and late):
                doomed.append(identifier)
        if doomed:
            self.kill(doomed)

    def _observe(self, place: Place, sight: Sight) -> Report:
        handle, folder, attempt = place
        note = attempts.process_note(folder, attempt)
        state = RunState.RUNNING if note is not None else RunState.SUBMITTED
        # Two jobs may have been started: the worker that came second has left, the other goes on.
        is_elsewhere = sight.end is None and note is not None and attempts.is_working(folder, note)
        result, broken = result_of(folder)
        ending = attempts.ending(folder, attempt)
        if sight.state != "gone" and ending is None:
            self._gone.pop(handle, None)  # it was not gone, the engine had forgotten it for a moment
        if result is not None:
            report = attempts.result_report(folder, handle, result)
        elif ending is not None and (folder.cancel.exists() or ending.get("reason") == "cancelled"):
            report = attempts.report(folder, handle, RunState.CANCELLED, message="cancelled")
        elif ending is not None and broken:
            report = attempts.report(folder, handle, RunState.FAILED, message=broken)
        elif ending is not None and ending["code"] in (REQUEUE, TERMINATED):
            if sight.state in ("working", "unknown") and self._is_recent(handle, sight):
                return attempts.report(folder, handle, state, message="told to stop; waiting to hear why")
            if sight.end is RunState.CANCELLED:
                report = attempts.report(folder, handle, sight.end, message=sight.message)
            else:
                report = attempts.exit_report(folder, handle, int(ending["code"]), ending.get("reason"))
        elif ending is not None:
            report = attempts.exit_report(folder, handle, int(ending["code"]), ending.get("reason"))
        elif sight.state != "gone" or is_elsewhere:
            return attempts.report(folder, handle, state, message=sight.message)
        elif self._is_recent(handle, sight):
            return attempts.report(folder, handle, state, message="ended; waiting for its files")
        elif folder.cancel.exists():
            report = attempts.report(folder, handle, RunState.CANCELLED, message="cancelled")
        elif broken:
            report = attempts.report(folder, handle, RunState.FAILED, message=broken)
        else:
            sight = self._gone[handle][1]
            message = sight.message or "its worker is gone and left no record"
            report = attempts.report(folder, handle, sight.end or RunState.LOST, message=message)
        if note is None and ending is None and report.cost is None and report.response is None:
            report = dataclasses.replace(report, cost=0.0)  # no worker ever began: nothing was used
        self._final[handle] = report
        return report

    def _is_recent(self, handle: str, sight: Sight) -> bool:
        """Whether something may still be heard of a run that is over.

        What the engine said first of its end is kept, since it soon forgets.
        """
        since, earlier = self._gone.setdefault(handle, (time.monotonic(), sight))
        if earlier.end is None and sight.state == "gone" and (sight.end is not None or not earlier.message):
            self._gone[handle] = (since, sight)
        return time.monotonic() - since < self.latency


def job_name(folder: JobFolder, attempt: int) -> str:
    """The name of an engine's job: the run for people, the folder so that two studies never meet, the attempt."""
    digest = hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
    return f"planner-{folder.path.name[:40]}-{digest}-{attempt}"


def _engine_file(folder: JobFolder) -> Path:
    return folder.path / "engine.json"


def _note(folder: JobFolder) -> dict[str, Any] | None:
    """What was noted of the engine's job of the last attempt: attempt, id, name."""
    note = read_json(_engine_file(folder))
    return note if note is not None and isinstance(note.get("attempt"), int) and note.get("id") else None
