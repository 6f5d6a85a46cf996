"""What backends share whose runs are jobs of an engine that starts workers elsewhere on folders that both sides see."""

import dataclasses
import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backends import attempts, slots
from backends.folders import MARGIN_SECONDS, FolderBackend, Place, result_of, unknown_report
from backends.jobfile import REQUEUE, TERMINATED, JobFolder
from backends.jsonfile import read_json, write_json
from planner.execution import BackendError, Job, Report
from planner.records import RunState

_BACKOFF_SECONDS = 2.0


class Sight(NamedTuple):
    """What an engine says of one of its jobs.

    `state` is "waiting", "working", "gone" or "unknown" (the engine did not answer, or does not know yet).  Of a job
    that is gone the engine may know the end, which counts only where the job folder holds none; but a run that was
    made to stop is cancelled if the engine says so, and not merely interrupted.
    """

    state: str
    message: str = ""
    end: RunState | None = None


class Start(NamedTuple):
    """A job that is to be started: the name that it would have by itself, and what job.json holds."""

    folder: JobFolder
    name: str
    content: Mapping[str, Any]


class EngineBackend(FolderBackend):
    """Workers that an engine starts somewhere on folders that both sides see.

    The name of an engine's job is made from the folder and the attempt before it is started, so that a job whose
    acceptance was never heard of is found again and not started twice.  Jobs that an engine takes together have one
    name, which is noted in their folders before.  `latency_seconds` is how long files may be late on shared storage
    before a run without an end is called lost.
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

    def groups(self, starts: Sequence[Start]) -> list[list[Start]]:
        """Jobs that the engine takes together, by `launch_together`."""
        return [[each] for each in starts]

    def launch_together(self, name: str, starts: Sequence[Start]) -> str:
        """Starts a worker on each folder and returns the engine's id of all; the n-th is `ID_n`.  As `launch`."""
        raise NotImplementedError

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
        return self.submit_all([job])[0]

    def submit_all(self, jobs: Sequence[Job]) -> list[str]:
        """`submit` for many, in as few requests as the engine can take them."""
        handles, starts = [], []
        for job in jobs:
            handle, start = self._prepared(job)
            handles.append(handle)
            starts += [] if start is None else [start]
        for group in self.groups(starts):
            self._start(group)
        return handles

    def _prepared(self, job: Job) -> tuple[str, Start | None]:
        """The handle, and what is to be started unless the job is known and alive."""
        folder = JobFolder(Path(job.folder).resolve())
        content = self.content(job)
        handle = self.handle(folder, job.attempt)
        earlier = _note(folder)
        identifier = self._identify(folder, earlier) if earlier is not None else None
        if earlier is not None and identifier is not None:
            is_over = attempts.is_over(folder, earlier["attempt"])
            if not is_over or earlier["attempt"] != job.attempt:
                sight = self.look([identifier]).get(identifier, Sight("gone"))
                if sight.state != "gone" and not is_over:
                    return self.handle(folder, earlier["attempt"]), None
                if sight.state != "gone":
                    # The engine may start again what it ended, and that worker would take the new attempt for its own.
                    self.kill([identifier])
        try:
            if not self.prepare(folder, content):
                return handle, None
        except OSError as error:
            raise BackendError(f"cannot write the job folder {folder.path}: {error}") from error
        self._final.pop(handle, None)
        self._gone.pop(handle, None)
        return handle, Start(folder, job_name(folder, job.attempt), content)

    def _start(self, group: Sequence[Start]) -> None:
        """Starts jobs together, as far as they were not started before, and notes their ids.

        Looked for before each try: it may be the reply that was lost and not the request.
        """
        name = group[0].name if len(group) == 1 else _batch_name(group)

        def note(identifier: str) -> None:
            for index, (folder, _, content) in enumerate(group):
                place = {"name": name, "index": index if len(group) > 1 else None}
                write_json(_engine_file(folder), {"attempt": content["attempt"], "id": identifier, **place})

        def started() -> str:
            found = self.find(name)
            if found is not None:
                return found
            return self.launch(*group[0]) if len(group) == 1 else self.launch_together(name, group)

        try:
            if len(group) > 1:
                note("")  # the name cannot be made again from one folder
            for number in range(1, self.tries):
                try:
                    note(started())
                    return
                except BackendError:
                    time.sleep(_BACKOFF_SECONDS * 2 ** (number - 1))
            note(started())
        except OSError as error:
            raise BackendError(f"cannot write the job folder {group[0].folder.path}: {error}") from error

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
        if note is not None and note["attempt"] == place.attempt and note["id"]:
            return _id_of(note)
        if attempts.is_over(place.folder, place.attempt):
            return None
        if note is None or note["attempt"] != place.attempt:
            note = {"attempt": place.attempt, "id": "", "name": job_name(place.folder, place.attempt), "index": None}
        return self._identify(place.folder, note)

    def _identify(self, folder: JobFolder, note: Mapping[str, Any]) -> str | None:
        """The engine's id of the job of a note, None if it was never started or is long over.  Raises as `find`."""
        if not note["id"]:
            found = self.find(note["name"])
            if found is None:
                return None
            note = {**note, "id": found}
            write_json(_engine_file(folder), note)
        return _id_of(note)

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
        # Two jobs may have been started: the worker that came second has left, the other goes on.  Asked before the
        # result is looked for: what is not there after the death will never come.
        is_elsewhere = sight.end is None and note is not None and attempts.is_working(folder, note)
        result, broken = result_of(folder)
        ending = attempts.ending(folder, attempt)
        if result is not None:
            end: Report | str = attempts.result_report(folder, handle, result)
        elif ending is not None:
            end = self._recorded_end(place, sight, ending, broken)
        elif sight.state != "gone" or is_elsewhere:
            end = sight.message
            if sight.state != "gone":
                self._gone.pop(handle, None)  # it was not gone, the engine had forgotten it for a moment
        else:
            end = self._unrecorded_end(place, sight, broken)
        if isinstance(end, str):
            return attempts.report(folder, handle, _open_state(note), message=end)
        if note is None and ending is None and end.cost is None and end.response is None:
            end = dataclasses.replace(end, cost=0.0)  # no worker ever began: nothing was used
        self._final[handle] = end
        return end

    def _recorded_end(self, place: Place, sight: Sight, ending: Mapping[str, Any], broken: str) -> Report | str:
        """The report of an attempt whose worker wrote down how it ended; a text while more may be heard of it."""
        handle, folder, _ = place
        if folder.cancel.exists() or ending.get("reason") == "cancelled":
            return attempts.report(folder, handle, RunState.CANCELLED, message="cancelled")
        if broken:
            return attempts.report(folder, handle, RunState.FAILED, message=broken)
        if ending["code"] in (REQUEUE, TERMINATED):
            if sight.state in ("working", "unknown") and self._is_recent(handle, sight):
                return "told to stop; waiting to hear why"
            if sight.end is RunState.CANCELLED:
                return attempts.report(folder, handle, sight.end, message=sight.message)
        return attempts.exit_report(folder, handle, ending)

    def _unrecorded_end(self, place: Place, sight: Sight, broken: str) -> Report | str:
        """The report of an attempt that is gone without a word; a text while its files may still arrive."""
        handle, folder, _ = place
        if self._is_recent(handle, sight):
            return "ended; waiting for its files"
        if folder.cancel.exists():
            return attempts.report(folder, handle, RunState.CANCELLED, message="cancelled")
        if broken:
            return attempts.report(folder, handle, RunState.FAILED, message=broken)
        first = self._gone[handle][1]
        message = first.message or "its worker is gone and left no record"
        return attempts.report(folder, handle, first.end or RunState.LOST, message=message)

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


def _open_state(note: Mapping[str, Any] | None) -> RunState:
    return RunState.RUNNING if note is not None else RunState.SUBMITTED


def _batch_name(group: Sequence[Start]) -> str:
    digest = hashlib.sha256("\n".join(each.name for each in group).encode()).hexdigest()[:12]
    return f"planner-{len(group)}-runs-{digest}"


def _engine_file(folder: JobFolder) -> Path:
    return folder.path / "engine.json"


def _note(folder: JobFolder) -> dict[str, Any] | None:
    """What was noted of the engine's job of the last attempt: attempt, id ("" until it is known), name, index."""
    note = read_json(_engine_file(folder))
    is_whole = note is not None and isinstance(note.get("attempt"), int) and note.get("name")
    return {"id": "", "index": None} | (note or {}) if is_whole else None


def _id_of(note: Mapping[str, Any]) -> str:
    return str(note["id"]) if note["index"] is None else f"{note['id']}_{note['index']}"
