"""`python -m backends.worker FOLDER` runs one attempt of the job in FOLDER and writes down how it ended.

The worker watches, the trainer works in a process of its own (and a process group of its own): so a trainer that the
kernel kills is still recorded, and the deadline, the cost limit and the cancel file hold while no planner is alive.

A trainer is either
    options.trainer = "module:function"    called with a `jobfile.TrainerJob`; returns None (after `write_result`), a
                                           `jobfile.Result` or a mapping with its fields; modules are looked for in the
                                           study's folder first
    options.command = ["prog", "--lr", "{learning_rate:.3g}"]    started without a shell in the study's folder
Names in braces: every axis, domain, seed, run_id, attempt, folder, job, result, metrics, checkpoints, cancel,
continues.

Environment of the trainer: PLANNER_JOB, PLANNER_RESULT, PLANNER_METRICS, PLANNER_CANCEL (files), PLANNER_CHECKPOINTS
(a folder), PLANNER_CONTINUES (the checkpoints of the run to go on with, if any), PLANNER_DEADLINE (seconds since 1970,
if any), PLANNER_MAX_COST (if any).

Exit codes: 0 with result.json, 64 bad job, 75 checkpointed and wants to go on, 76 diverged, 124 time or cost limit,
137 out of memory or killed, 143 terminated; any other is a failure.
"""

import contextlib
import fcntl
import os
import select
import shlex
import signal
import socket
import string
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends import jobfile, jsonfile, processes, train
from backends.forked import Forked
from backends.memory import MemoryWatch

INTERVAL = 0.2  # seconds between looks at the cancel file, the clock and the metrics
HEARTBEAT = 10.0  # seconds between signs of life in the job folder
LOCK_SECONDS = 10.0
DEFAULT_GRACE = 10.0


def supervise(path: Path) -> int:
    """Runs the attempt in `path` unless another worker does or did; returns its exit code."""
    folder = jobfile.JobFolder(Path(path).resolve())
    try:
        job = jobfile.parse_job(folder.path)
    except jobfile.BadJob as error:
        print(f"BadJob: {error}", flush=True)
        return jobfile.BAD_JOB
    with open(folder.lock, "w") as lock:
        if not _lock(lock.fileno(), folder, job.attempt):
            return 0
        ended = jsonfile.read_json(folder.exit)
        if ended is not None and ended.get("attempt") == job.attempt:
            return int(ended.get("code", 0))
        return _Attempt(folder, job).run()


def _lock(descriptor: int, folder: jobfile.JobFolder, attempt: int) -> bool:
    """Whether this worker has the folder for itself; a worker of an earlier attempt is given time to leave.

    Two planners, or one that died between starting a worker and noting it, may start two workers.
    """
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            note = jsonfile.read_json(folder.process) or {}
            if note.get("attempt") == attempt or time.monotonic() > end:
                print(f"attempt {attempt} is left to the worker that holds {folder.lock.name}: {note}", flush=True)
                return False
        time.sleep(0.05)


class _Attempt:
    """One attempt under watch."""

    def __init__(self, folder: jobfile.JobFolder, job: jobfile.TrainerJob) -> None:
        self.folder, self.job = folder, job
        self.grace = float(job.options.get("grace_seconds", DEFAULT_GRACE))
        self.started_at = time.time()
        self.token = uuid.uuid4().hex
        self.signalled = False
        self.excess = ""  # of memory
        self.result_since: float | None = None

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        processes.adopt_orphans()
        self._note_process(None)
        reason, returncode = None, jobfile.TERMINATED
        try:
            if not self.folder.cancel.exists():
                _require_checkpoint(self.job)
                reason, returncode = self._run_trainer()
        except jobfile.BadJob as error:
            print(f"BadJob: {error}", flush=True)
            returncode = jobfile.BAD_JOB
        code = self._code(reason, returncode)
        ending = {"attempt": self.job.attempt, "code": code, "reason": reason, "returncode": returncode}
        ending |= {"memory": self.excess} if self.excess else {}
        jsonfile.write_json(self.folder.exit, ending | {"started_at": self.started_at, "ended_at": time.time()})
        return code

    def _on_signal(self, number: int, frame: Any) -> None:
        self.signalled = True

    def _note_process(self, trainer_pid: int | None) -> None:
        note = {
            "attempt": self.job.attempt,
            "host": socket.gethostname(),
            "slot": os.environ.get("PLANNER_SLOT"),
            "token": self.token,
            "started_at": self.started_at,
            "pid": os.getpid(),
            "identity": processes.identity(os.getpid()),
            "trainer_pid": trainer_pid,
            "trainer_identity": processes.identity(trainer_pid) if trainer_pid else None,
        }
        # After a fault of the machine it names nobody any more: not worth the wait for the disk.
        jsonfile.write_json(self.folder.process, note, durable=False)

    def _run_trainer(self) -> tuple[str | None, int]:
        """Returns why the trainer was told to stop (None if it was not) and its return code."""
        command, memory = command_of(self.job), MemoryWatch(self.job.options, self.token)
        self.folder.checkpoints.mkdir(exist_ok=True)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.started_at))
        print(f"--- attempt {self.job.attempt}, {stamp} UTC, {socket.gethostname()}", flush=True)
        with self._start(command) as process:
            try:
                self._note_process(process.pid)
                reason = self._watch(process, memory)
            finally:
                # Also after a good end: a data loader left behind would keep the accelerator's memory.
                processes.end_children(self.token, timeout=5.0)
        return reason, process.wait()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes] | Forked:
        environment, folder = self._environment(), self.job.working_folder
        if self.job.options.get("trainer") is not None and processes.can_brand() and folder.is_dir():
            return Forked(lambda: train.train(self.folder.path), environment=environment, folder=folder)
        try:
            return subprocess.Popen(
                list(command), env=environment, cwd=folder, stdin=subprocess.DEVNULL, process_group=0
            )
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise jobfile.BadJob(f"cannot start {shlex.join(command)} in {folder}: {error}") from error

    def _environment(self) -> dict[str, str]:
        extra = {
            "PLANNER_JOB": str(self.folder.job),
            "PLANNER_RESULT": str(self.folder.result),
            "PLANNER_METRICS": str(self.folder.metrics),
            "PLANNER_CHECKPOINTS": str(self.folder.checkpoints),
            "PLANNER_CANCEL": str(self.folder.cancel),
            "PYTHONUNBUFFERED": "1",
            processes.TOKEN: self.token,
        }
        if self.job.deadline_seconds is not None:
            extra["PLANNER_DEADLINE"] = repr(self.started_at + self.job.deadline_seconds)
        if self.job.continues is not None:
            extra["PLANNER_CONTINUES"] = str(self.job.continues.checkpoints)
        if self.job.max_cost is not None:
            extra["PLANNER_MAX_COST"] = repr(self.job.max_cost)
        return dict(os.environ) | extra

    def _watch(self, process: subprocess.Popen[bytes] | Forked, memory: MemoryWatch) -> str | None:
        reason, told_at, beat_at = None, 0.0, time.monotonic()
        has_ended = _end_of(process)
        while not has_ended():
            now = time.monotonic()
            if now - beat_at > HEARTBEAT:
                beat_at = now
                with contextlib.suppress(OSError):  # a file system that is away for a moment must not end the run
                    os.utime(self.folder.process)
            if (excess := memory.excess(now)) is not None:
                # Without grace: it would take the memory of the other runs meanwhile.
                processes.kill_family(self.token, [processes.myself()], timeout=0.0)
                reason, self.excess = reason or "memory", excess
            if reason is None:
                reason = self._stop_reason(now)
                if reason is not None:
                    told_at = now
                    _signal_group(process, signal.SIGTERM)
            elif now - told_at > self.grace:
                processes.kill_family(self.token, [processes.myself()], timeout=0.0)
        return reason

    def _stop_reason(self, now: float) -> str | None:
        if self.folder.cancel.exists():
            return "cancelled"
        if self.signalled:
            return "terminated"
        if self.job.deadline_seconds is not None and time.time() > self.started_at + self.job.deadline_seconds:
            return "deadline"
        if self.job.max_cost is not None:
            metric = jobfile.last_metric(self.folder.metrics) or {}
            if jobfile.over_cost(jsonfile.as_cost(metric.get("cost")), self.job.max_cost):
                return "max_cost"
        if self.result_since is None and jsonfile.read_json(self.folder.result) is not None:
            self.result_since = now
        if self.result_since is not None and now - self.result_since > self.grace:
            return "finished"  # a trainer that hangs at exit must not hold its slot
        return None

    def _code(self, reason: str | None, returncode: int) -> int:
        code = returncode if returncode >= 0 else 128 - returncode
        if reason in ("deadline", "max_cost"):
            return jobfile.TIME_LIMIT
        if reason == "memory":
            return jobfile.OUT_OF_MEMORY
        if reason == "finished":
            return 0
        if reason is not None and code != jobfile.REQUEUE:
            return jobfile.TERMINATED
        return code


def _end_of(process: subprocess.Popen[bytes] | Forked) -> Callable[[], bool]:
    """A function that waits for the end of the process, for `INTERVAL` at most, and says whether it came."""
    if not hasattr(os, "pidfd_open"):
        return lambda: _ended_within(process, INTERVAL)
    descriptor = os.pidfd_open(process.pid)
    weakref.finalize(process, os.close, descriptor)
    # `Popen.wait` with a timeout only looks every now and then.
    return lambda: bool(select.select([descriptor], [], [], INTERVAL)[0]) and _ended_within(process, INTERVAL)


def _ended_within(process: subprocess.Popen[bytes] | Forked, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def _signal_group(process: subprocess.Popen[bytes] | Forked, number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # ended in the meantime; the next wait sees it


def _require_checkpoint(job: jobfile.TrainerJob) -> None:
    """Raises `BadJob` where the run that is to be gone on with left nothing to go on from."""
    if job.continues is None or _has_files(job.checkpoints) or _has_files(job.continues.checkpoints):
        return
    raise jobfile.BadJob(
        f"cannot go on with run {job.continues.run_id}: no checkpoint in {job.continues.checkpoints}; it was moved or"
        " removed, or the trainer keeps none"
    )


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


# ---- what to start --------------------------------------------------------------------------------------------------


def command_of(job: jobfile.TrainerJob) -> list[str]:
    """The argument list that starts the job's trainer.  Raises `BadJob`."""
    trainer, command = job.options.get("trainer"), job.options.get("command")
    if (trainer is None) == (command is None):
        raise jobfile.BadJob(
            'the backend\'s options need either trainer = "module:function" or command = ["program", "argument"],'
            f" and not both; got trainer={trainer!r}, command={command!r}"
        )
    if trainer is not None:
        return [sys.executable, "-P", "-m", "backends.train", str(job.folder)]
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        raise jobfile.BadJob(f"command is {command!r}; it must be a list of arguments (no shell is used)")
    names = _names(job)
    return [_fill(str(argument), names) for argument in command]


def _names(job: jobfile.TrainerJob) -> dict[str, Any]:
    folder = jobfile.JobFolder(job.folder)
    return {
        "domain": job.domain,
        "seed": job.seed,
        "run_id": job.run_id,
        "attempt": job.attempt,
        "folder": str(folder.path),
        "job": str(folder.job),
        "result": str(folder.result),
        "metrics": str(folder.metrics),
        "checkpoints": str(folder.checkpoints),
        "cancel": str(folder.cancel),
        "continues": str(job.continues.checkpoints) if job.continues is not None else "",
        # Whole numbers that a double holds exactly are written as such: `type=int` refuses "1000000000.0".
        **{name: int(x) if x.is_integer() and abs(x) < 2**53 else x for name, x in job.axes.items()},
    }


def _fill(argument: str, names: Mapping[str, Any]) -> str:
    try:
        return string.Formatter().vformat(argument, (), names)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise jobfile.BadJob(
            f"cannot fill command argument {argument!r}: {type(error).__name__} {error}. Known names: "
            f"{', '.join(sorted(names))}; write {{{{ and }}}} for braces"
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        return supervise(Path(arguments[0]))
    print("usage: python -m backends.worker FOLDER", file=sys.stderr)
    return jobfile.BAD_JOB


if __name__ == "__main__":
    sys.exit(main())
