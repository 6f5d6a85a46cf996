"""Runs on this machine: one worker process per job, in named slots.

Everything that must survive the planner is in the job folders: a new `Local` on the same folders goes on where the
last one was killed.  Workers are detached; closing the planner leaves them running.

Options: `slots` (number of runs at once; default: one per GPU, else the number of CPU cores) or `gpus` (a list of
CUDA device numbers, GPU or MIG identifiers: one slot each); `threads_per_slot` (CPU threads of a run; default: the
cores shared out, 0: no limit); `memory_gb` (what the processes of a run may hold together, else it is killed and ends
as out of memory); `grace_seconds` between SIGTERM and SIGKILL; `env` (environment variables for the trainer); `trainer`
or `command` (see `backends.worker`).  All other options are the trainer's.
"""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends import attempts, processes, slots
from backends.folders import MARGIN_SECONDS, FolderBackend, result_of, unknown_report
from backends.jobfile import TERMINATED, TIME_LIMIT, JobFolder
from backends.jsonfile import as_cost, read_json, write_json
from backends.nursery import Nursery
from planner.execution import BackendError, Job, Report
from planner.records import RunState


@dataclass(eq=False)
class _Entry:
    """What this process knows of one attempt beside its files."""

    handle: str
    folder: JobFolder
    attempt: int
    slot: str | None = None  # while it may occupy one
    pid: int | None = None  # of the worker, if this backend started it
    identity: str | None = None
    nursery: Nursery | None = None  # that started it
    status: int | None = None  # its exit code
    final: Report | None = None


class Local(FolderBackend):
    """Backend "local"; see the module."""

    survives = False

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        super().__init__(options, study_dir)
        self._slot_environment = slots.slots_from(self.options)
        self.slots = len(self._slot_environment)
        self.ready = self.slots
        self._entries: dict[str, _Entry] = {}
        self._queue: deque[_Entry] = deque()
        self._adopted: set[Path] = set()
        self._nurseries: dict[tuple[tuple[str, str], ...], Nursery] = {}  # by the job's own environment

    # ---- the three verbs ----

    def submit(self, job: Job) -> str:
        """Starts the job, or queues it until a slot is free.

        A job that is alive, has a result or has ended in this attempt is left alone: poll its handle.
        Raises `BackendError` when nothing says what to run, or when the job folder cannot be written.
        """
        folder = JobFolder(Path(job.folder).resolve())
        content = self.content(job)
        self._adopt_siblings(folder.path.parent)
        working = self._working_entry(folder)
        if working is not None and not attempts.is_over(folder, working.attempt):
            return working.handle
        handle = self.handle(folder, job.attempt)
        try:
            if not self.prepare(folder, content):
                return handle
        except OSError as error:
            raise BackendError(f"cannot write the job folder {folder.path}: {error}") from error
        # A handle may come back after its folder was set aside; what was known of it is void.
        self._entries[handle] = _Entry(handle=handle, folder=folder, attempt=job.attempt)
        self._queue.append(self._entries[handle])
        self._start_ready()
        return handle

    def poll(self, handles: Sequence[str]) -> list[Report]:
        entries = [self._entry_of(handle) for handle in handles]
        self._start_ready()
        return [
            self._observe(entry) if entry is not None else unknown_report(handle)
            for handle, entry in zip(handles, entries, strict=True)
        ]

    def cancel(self, handle: str) -> None:
        """Asks the worker to end its trainer: SIGTERM, the grace, SIGKILL.  `CANCELLED` is reported after the death."""
        entry = self._entry_of(handle)
        if entry is None or entry.final is not None or attempts.is_over(entry.folder, entry.attempt):
            return
        write_json(entry.folder.cancel, {"at": time.time()})
        if entry in self._queue:
            self._queue.remove(entry)
            attempts.write_ending(entry.folder, entry.attempt, TERMINATED, "cancelled")

    def close(self) -> None:
        """Forgets the runs without touching them; they go on and can be polled by another `Local`."""
        self._entries.clear()
        self._queue.clear()
        for nursery in self._nurseries.values():
            nursery.close()
        self._nurseries.clear()

    def __del__(self) -> None:
        if hasattr(self, "_nurseries"):
            self.close()

    # ---- what is known ----

    def _entry_of(self, handle: str) -> _Entry | None:
        """The entry of a handle, also of one that another process was given; None if its folder is gone."""
        if handle in self._entries:
            return self._entries[handle]
        place = self.place(handle)
        if place is None:
            return None
        _, folder, attempt = place
        self._adopt_siblings(folder.path.parent)
        entry = self._entries.setdefault(handle, _Entry(handle=handle, folder=folder, attempt=attempt))
        never_started = attempts.process_note(folder, attempt) is None and not folder.cancel.exists()
        is_latest = (read_json(folder.job) or {}).get("attempt") == attempt
        if is_latest and never_started and not attempts.is_over(folder, attempt):
            self._queue.append(entry)  # it was waiting for a slot when its planner died
        return entry

    def _adopt_siblings(self, parent: Path) -> None:
        """Finds the workers that an earlier planner left running beside, because they hold slots."""
        if parent in self._adopted:
            return
        self._adopted.add(parent)
        for path in sorted(parent.glob("*/process.json")):
            self._working_entry(JobFolder(path.parent))

    def _working_entry(self, folder: JobFolder) -> _Entry | None:
        """The entry of the attempt that is alive or waiting in `folder`."""
        for entry in self._entries.values():
            if entry.folder.path == folder.path and (entry in self._queue or self._is_alive(entry)):
                return entry
        note = read_json(folder.process)
        if note is None or not isinstance(note.get("attempt"), int) or not attempts.is_working(folder, note):
            return None
        handle = self.handle(folder, note["attempt"])
        slot = str(note.get("slot")) if attempts.is_local(note) else None
        self._entries[handle] = _Entry(handle=handle, folder=folder, attempt=note["attempt"], slot=slot)
        return self._entries[handle]

    def _is_alive(self, entry: _Entry) -> bool:
        if entry.pid is not None:
            if processes.is_alive(entry.pid, entry.identity):
                return True
            if entry.status is None and entry.nursery is not None:
                entry.status = entry.nursery.exit_code(entry.pid)
        note = attempts.process_note(entry.folder, entry.attempt)
        return note is not None and attempts.is_working(entry.folder, note)

    # ---- slots ----

    def _start_ready(self) -> None:
        busy = []
        for entry in self._entries.values():
            if entry.slot is not None and not self._is_alive(entry):
                entry.slot = None
            if entry.slot is not None:
                busy.append(entry.slot)
        free = [name for name in self._slot_environment if name not in busy]
        # Slots of an earlier configuration count as well: the machine is not larger than it is.
        for name in free[: max(0, self.slots - len(busy))]:
            if not self._queue:
                return
            self._start(self._queue.popleft(), name)

    def _start(self, entry: _Entry, slot: str) -> None:
        job = read_json(entry.folder.job) or {}
        extra = slots.worker_environment(job.get("options") or {}, os.environ.get("PYTHONPATH"))
        nursery = self._nurseries.setdefault(tuple(sorted(extra.items())), Nursery(dict(os.environ) | extra))
        environment = dict(os.environ) | self._slot_environment[slot] | {"PLANNER_SLOT": slot} | extra
        try:
            entry.pid = nursery.start(entry.folder.path, entry.folder.log, environment)
        except OSError as error:
            attempts.write_ending(entry.folder, entry.attempt, 1, f"cannot start a worker: {error}")
            return
        entry.slot, entry.nursery, entry.identity = slot, nursery, processes.identity(entry.pid)

    # ---- reports ----

    def _observe(self, entry: _Entry) -> Report:
        if entry.final is not None:
            return entry.final
        # In this order: a result that is not there after the death will never come.
        alive = self._is_alive(entry)
        result, broken = result_of(entry.folder)
        if result is not None:
            entry.final = attempts.result_report(entry.folder, entry.handle, result)
        elif alive:
            self._enforce_limits(entry)
            note = attempts.process_note(entry.folder, entry.attempt)
            started = note is not None and note.get("trainer_pid") is not None
            return attempts.report(entry.folder, entry.handle, RunState.RUNNING if started else RunState.SUBMITTED)
        elif entry in self._queue:
            message = "waiting for a free slot"
            return attempts.report(entry.folder, entry.handle, RunState.SUBMITTED, message=message)
        else:
            return self._observe_end(entry, broken)
        return entry.final

    def _observe_end(self, entry: _Entry, broken: str) -> Report:
        """The report of an attempt that is dead and left no valid result."""
        folder, handle = entry.folder, entry.handle
        ending = attempts.ending(folder, entry.attempt) or {}
        code = ending.get("code", entry.status)
        if folder.cancel.exists() or ending.get("reason") == "cancelled":
            note = attempts.process_note(folder, entry.attempt)
            if note is not None and not processes.kill_family(note.get("token"), [], timeout=0.0):
                message = "cancelled; waiting for its processes to die"
                return attempts.report(folder, handle, RunState.RUNNING, message=message)
            entry.final = attempts.report(folder, handle, RunState.CANCELLED, message="cancelled")
        elif broken:
            entry.final = attempts.report(folder, handle, RunState.FAILED, message=broken)
        elif code is None:
            message = "its processes are gone and left no record (killed together, or the machine was restarted)"
            entry.final = attempts.report(folder, handle, RunState.LOST, message=message)
        else:
            entry.final = attempts.exit_report(folder, handle, {**ending, "code": code})
        return entry.final

    def _enforce_limits(self, entry: _Entry) -> None:
        """Kills what should be dead by now, in case the worker is stopped, hung or killed itself."""
        note = attempts.process_note(entry.folder, entry.attempt)
        if note is None or not attempts.is_local(note):
            return
        now, job = time.time(), read_json(entry.folder.job) or {}
        deadline = as_cost(job.get("deadline_seconds"))
        late = self.grace + MARGIN_SECONDS
        if entry.folder.cancel.exists() and now > entry.folder.cancel.stat().st_mtime + late:
            code, reason = TERMINATED, "cancelled"
        elif deadline is not None and now > float(note["started_at"]) + deadline + late:
            code, reason = TIME_LIMIT, "deadline"
        else:
            return
        # Written first: the worker will not live to do it.
        attempts.write_ending(entry.folder, entry.attempt, code, reason)
        processes.kill_family(note.get("token"), attempts.roots(note), timeout=0.0)


class Command(Local):
    """Backend "command": a launcher that waits for its run, such as torchrun, `sky launch` or `ray job submit`.

    As `local` with `command = [...]`; `slots` (default 1) launchers at once, and none of this machine's GPUs is set
    aside for them, since the run may be elsewhere.
    """

    kind = "command"

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        command = options.get("command")
        if isinstance(command, str) or not isinstance(command, Sequence) or not command:
            raise BackendError(
                f'backend.command is {command!r}; kind = "command" needs a list of arguments, such as'
                ' ["torchrun", "train.py", "--lr", "{learning_rate}"] (no shell is used)'
            )
        if options.get("trainer") is not None:
            raise BackendError('kind = "command" runs a command; for a trainer in Python use kind = "local"')
        super().__init__({"slots": 1, "threads_per_slot": 0, **options}, study_dir)
