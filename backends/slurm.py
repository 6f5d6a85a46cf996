"""Runs on a Slurm cluster: one batch job per attempt, which runs a worker on the job folder.

The study's folder must be on storage that the nodes see under the same path.  Options: `slots` (jobs in the queue at
once, default 16); `partition`, `account`, `qos`; `time_minutes` (limit of Slurm; by default that of deadline_seconds,
with room for the end); `sbatch` (a list of further arguments, for example ["--gpus=1", "--mem=32G"]); `prologue`
(lines of shell before the worker, for example ["module load cuda"]); `python` (interpreter on the nodes);
`notice_seconds` between Slurm's SIGTERM and its SIGKILL (default 60); `latency_seconds` (files may be so late);
`timeout_seconds` of one Slurm command; `tries` to submit; `grace_seconds`, `env`, `trainer` or `command` as in `local`.

Runs that are bought together and ask for the same are one array, with one sbatch for all; each is requeued, cancelled
and found again by itself.  Runs that are cancelled together are told so by one scancel.

A job whose node dies is started again by Slurm, as the same attempt, which finds its checkpoints.  A run that is told
to stop in good time (preemption, requeue, time limit) records that, and goes on as a new attempt in a new job; the old
one is taken from the queue.  A job that somebody ends with scancel is cancelled and not tried again.

Needed of the cluster: sbatch, squeue and scancel of Slurm 20.02 or later (tried with 22.05) where the planner runs.
sacct is asked of jobs that squeue does not list any more; without accounting an end is known for MinJobAge (300 s by
default), and only the job folder tells of it later.  KillWait (30 s by default) must be longer than grace_seconds:
between them the worker writes down how its run ended.  Slurm looks at time limits every half minute and may signal a
minute earlier than notice_seconds says, so that time_minutes should be some minutes longer than that.
"""

import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends import slots
from backends.engines import EngineBackend, Sight, Start
from backends.jobfile import JobFolder
from backends.jsonfile import as_cost
from planner.execution import BackendError
from planner.records import RunState

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_WORKING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_ENDS: Mapping[str, RunState | None] = {
    "COMPLETED": None,  # the folder must say how
    "FAILED": RunState.FAILED,
    "TIMEOUT": RunState.TIMED_OUT,
    "DEADLINE": RunState.TIMED_OUT,
    "OUT_OF_MEMORY": RunState.OUT_OF_MEMORY,
    "PREEMPTED": RunState.PREEMPTED,
    "NODE_FAIL": RunState.PREEMPTED,
    "BOOT_FAIL": RunState.LOST,
    "REVOKED": RunState.LOST,
    "CANCELLED": RunState.CANCELLED,
}

_MAX_ARRAY = 1000
_BACKOFF, _MAX_BACKOFF = 2.0, 300.0  # seconds after a refused scancel: before the second try, and at most
_PATIENCE = 60.0  # seconds for a job that was told to end


class Slurm(EngineBackend):
    """Backend "slurm"; see the module."""

    kind = "slurm"

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        super().__init__(options, study_dir)
        self.slots = slots.whole(self.options, "slots", 16)
        self.tries = slots.whole(self.options, "tries", 4)
        self.timeout = slots.number(self.options, "timeout_seconds", 60.0)
        self.notice = slots.number(self.options, "notice_seconds", 60.0)
        self._told_until: dict[str, float] = {}  # job -> when it is told to end once more
        self._refusals, self._refused_until = 0, -math.inf  # of scancel
        if "time_minutes" in self.options and 60 * slots.whole(self.options, "time_minutes", 1) <= self.notice:
            raise BackendError(
                f"backend.time_minutes is {self.options['time_minutes']}, no longer than notice_seconds ="
                f" {self.notice:g}: every run would be told to stop as it starts"
            )
        for name in ("sbatch", "prologue"):
            value = self.options.get(name, [])
            if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
                raise BackendError(f"backend.{name} is {value!r}; it must be a list of texts")

    def find(self, name: str) -> str | None:
        code, out, error = self._call(["squeue", "--me", "--noheader", "--format=%F|%j", f"--name={name}"])
        if code != 0:
            raise BackendError(f"squeue does not answer, so that a job may exist already: {error}")
        ids = [line.partition("|")[0].strip() for line in out.splitlines() if line.strip().endswith(f"|{name}")]
        return ids[-1] if ids else None

    def launch(self, folder: JobFolder, name: str, content: Mapping[str, Any]) -> str:
        log = str(folder.log).replace("%", "%%")  # "%j" would be the job's number
        lines = [*self._head(content["options"]), f"folder={shlex.quote(str(folder.path))}"]
        return self._sbatch(folder, name, content, [f"--output={log}"], lines)

    def groups(self, starts: Sequence[Start]) -> list[list[Start]]:
        """An array for all that asks for the same; Slurm takes a thousand tasks in one by default."""
        alike: dict[tuple[str, ...], list[Start]] = {}
        for each in starts:
            wanted = (*self._arguments("", each.content), "", *self._head(each.content["options"]))
            alike.setdefault(wanted, []).append(each)
        return [
            group[first : first + _MAX_ARRAY] for group in alike.values() for first in range(0, len(group), _MAX_ARRAY)
        ]

    def launch_together(self, name: str, starts: Sequence[Start]) -> str:
        folders = [each.folder.path for each in starts]
        cases = [f"{index}) folder={shlex.quote(str(folder))};;" for index, folder in enumerate(folders)]
        lines = ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"]
        lines += [f'exec >>"$folder/{starts[0].folder.log.name}" 2>&1', *self._head(starts[0].content["options"])]
        arguments = [f"--array=0-{len(starts) - 1}", "--output=/dev/null"]
        return self._sbatch(starts[0].folder, name, starts[0].content, arguments, lines)

    def _sbatch(
        self, folder: JobFolder, name: str, content: Mapping[str, Any], arguments: Sequence[str], lines: Sequence[str]
    ) -> str:
        """The id of a new job whose script sets `folder` in `lines`, and is the worker on it: that gets the signals."""
        python = shlex.quote(str(self.options.get("python") or sys.executable))
        script = folder.path / "batch.sh"
        worker = f'exec {python} -P -m backends.worker "$folder"'
        script.write_text("\n".join(["#!/bin/sh", *lines, worker, ""]), encoding="utf-8")
        command = ["sbatch", "--parsable", "--requeue", *self._arguments(name, content), *arguments, str(script)]
        code, out, error = self._call(command)
        match = re.match(r"(\d+)", out.strip())
        if code != 0 or not match:
            raise BackendError(f"sbatch did not take job {name}: {error or 'no job id in its reply'}")
        return match[1]

    def look(self, ids: Sequence[str]) -> Mapping[str, Sight]:
        code, out, error = self._call(["squeue", "--me", "--noheader", "--states=all", "--array", "--format=%i|%T|%r"])
        if code != 0:
            return dict.fromkeys(ids, Sight("unknown", f"squeue does not answer: {error}"))
        rows = [line.strip().split("|", 2) for line in out.splitlines() if line.count("|") >= 2]
        sights = {row[0]: _sight(row[1], row[2]) for row in rows if row[0] in ids}
        missing = [each for each in ids if each not in sights]
        return sights | (self._account(missing) if missing else {})

    def kill(self, ids: Sequence[str]) -> None:
        """One request for all; a controller that refuses it is left alone for longer and longer."""
        now = time.monotonic()
        due = [each for each in ids if now >= self._told_until.get(each, -math.inf)]
        if not due or now < self._refused_until:
            return
        code, _, _ = self._call(["scancel", *due])
        self._refusals = self._refusals + 1 if code != 0 else 0
        self._refused_until = now + min(_MAX_BACKOFF, _BACKOFF * 2**self._refusals) if code != 0 else -math.inf
        if code == 0:
            self._told_until |= dict.fromkeys(due, now + _PATIENCE)

    def _account(self, ids: Sequence[str]) -> dict[str, Sight]:
        """What the accounting knows of jobs that left the queue; where it is slow or missing they are merely gone."""
        command = [
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            "--array",
            "--format=JobID,State",
            f"--jobs={','.join(ids)}",
        ]
        code, out, _ = self._call(command)
        known = dict(line.strip().split("|", 1) for line in out.splitlines() if "|" in line) if code == 0 else {}
        return {each: _sight(known[each], "") if each in known else Sight("gone") for each in ids}

    def _call(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Exit code, output and the last line of errors; a command that is missing or too slow failed."""
        # Somebody's own defaults, such as SQUEUE_PARTITION, would hide jobs.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))}
        try:
            done = subprocess.run(
                list(command),
                capture_output=True,
                text=True,
                timeout=self.timeout,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return 124, "", f"{command[0]} took over {self.timeout:g} s"
        except OSError as error:
            return 127, "", f"{command[0]}: {error.strerror or error}"
        return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]

    def _arguments(self, name: str, content: Mapping[str, Any]) -> list[str]:
        """What a run asks for: jobs for which these are equal can be tasks of one."""
        notice = max(1, math.ceil(self.notice))
        arguments = [f"--job-name={name}", "--open-mode=append", f"--chdir={self.study_dir}"]
        arguments += [f"--signal=B:TERM@{notice}"]
        arguments += [f"--{key}={self.options[key]}" for key in ("partition", "account", "qos") if key in self.options]
        minutes, deadline = self.options.get("time_minutes"), as_cost(content.get("deadline_seconds"))
        if minutes is None and deadline is not None:
            # Slurm may signal a minute early, and its clock starts before the worker's.
            minutes = math.ceil((deadline + self.grace + notice) / 60.0) + 2
        if minutes is not None:
            arguments.append(f"--time={minutes}")
        return arguments + list(self.options.get("sbatch", []))

    def _head(self, options: Mapping[str, Any]) -> list[str]:
        """What a script does before the worker."""
        lines = list(self.options.get("prologue", []))
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in (options.get("env") or {}).items()]
        if (root := slots.checkout()) is not None:
            lines.append(f'export PYTHONPATH={shlex.quote(str(root))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
        return lines


def _sight(state: str, reason: str) -> Sight:
    word = state.split()[0].rstrip("+") if state.split() else ""  # "CANCELLED by 1000"
    if word in _WAITING:
        return Sight("waiting", f"in the queue: {reason}" if reason not in ("", "None") else "in the queue")
    if word in _WORKING:
        return Sight("working")
    if word in _ENDS:
        return Sight("gone", f"Slurm says {word}", _ENDS[word])
    return Sight("unknown", f"Slurm says {state!r}")
