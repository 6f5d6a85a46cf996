"""Workers in milliseconds: a process that has imported all that a worker needs, and forks one for every request.

`python -P -m backends.nursery` reads a JSON object a line from standard input and answers each with a line:

    {"folder": ..., "log": ..., "environment": {...}}    starts a worker   ->    {"pid": 17, "ended": {}}
    {}                                                   only asks         ->    {"ended": {"17": 0}}

`ended` holds the exit codes of workers that ended since the last answer.  Workers are in sessions of their own.
When its standard input ends, because the planner closed it or died, the nursery waits for them and ends.

What an interpreter or the loader reads at its start (PYTHONPATH, LD_LIBRARY_PATH) is that of the nursery: there is one
for every such environment.
"""

import json
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends import processes

PATIENCE_SECONDS = 60.0

# Nurseries of this process that were closed: somebody must wait for them, or they stay zombies.
_closed: set[int] = set()


class Nursery:
    """The planner's side.  Started with the first worker; started again when it has died."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._pid: int | None = None
        self._requests, self._answers = -1, -1
        self._ended: dict[int, int] = {}

    def start(self, folder: Path, log: Path, environment: Mapping[str, str]) -> int:
        """Starts a worker and returns its pid.  Raises `OSError`."""
        request = {"folder": str(folder), "log": str(log), "environment": dict(environment)}
        # A worker that was started by a nursery which died before it said so keeps the folder to itself.
        for _ in range(2):
            if self._pid is None:
                self.close()
                self._open()
            answer = self._ask(request)
            if answer:
                break
        if "pid" not in answer:
            raise OSError(answer.get("error", "the process that starts workers has ended"))
        return int(answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a worker that has ended, 128 and the signal if it was killed; None if it is not known."""
        if pid not in self._ended and self._pid is not None:
            self._ask({})
        return self._ended.pop(pid, None)

    def close(self) -> None:
        """Leaves the workers alone; the nursery ends with the last of them."""
        if self._pid is not None:
            _closed.add(self._pid)
            self._pid = None
            os.close(self._requests)
            os.close(self._answers)
        for pid in list(_closed):
            try:
                has_ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                has_ended = True  # somebody else in this process waited for it
            if has_ended:
                _closed.discard(pid)

    def _open(self) -> None:
        theirs_in, self._requests = os.pipe()
        self._answers, theirs_out = os.pipe()
        try:
            # Not `subprocess`: its object warns when it is left to the end of the program.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "backends.nursery"],
                self._environment | {processes.TOKEN: "0" * 32},  # room for those of the trainers
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs_in, 0), (os.POSIX_SPAWN_DUP2, theirs_out, 1)],
                setsid=True,
            )
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; empty when there is none, and then the nursery is closed."""
        try:
            _write(self._requests, json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._read_line())
        except (OSError, ValueError):
            self.close()
            return {}
        self._ended.pop(answer.get("pid", 0), None)  # of an earlier process of that number
        self._ended |= {int(pid): code for pid, code in answer["ended"].items()}
        return answer

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._answers], [], [], PATIENCE_SECONDS)[0]:
                raise OSError("the process that starts workers does not answer")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise OSError("the process that starts workers has ended")
            line += part
        return line


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


# ---- the other side -------------------------------------------------------------------------------------------------


def serve() -> Path | None:
    """Answers requests until there are no more.  In a worker it returns at once, with the folder to work on."""
    ended: dict[int, int] = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if "folder" in request:
            try:
                pid = os.fork()
            except OSError as error:
                answer["error"] = str(error)
            else:
                if not pid:
                    _leave(request["log"], request["environment"])
                    return Path(request["folder"])
                answer["pid"] = pid
        _reap(ended)
        try:
            _write(1, json.dumps(answer | {"ended": ended}).encode() + b"\n")
        except BrokenPipeError:
            break
        ended.clear()
    _reap(ended, 0)  # until the last has ended
    return None


def _reap(ended: dict[int, int], options: int = os.WNOHANG) -> None:
    try:
        while (found := os.waitpid(-1, options))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            ended[found[0]] = code if code >= 0 else 128 - code
    except ChildProcessError:
        return


def _leave(log: str, environment: Mapping[str, str]) -> None:
    """Makes a worker of a fork: a session, an environment and a log of its own, nothing shared with the nursery."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    streams = (os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    for descriptor, stream in ((0, streams[0]), (1, streams[1]), (2, streams[1])):
        os.dup2(stream, descriptor)
    for stream in streams:
        os.close(stream)


def main() -> int:
    import psutil as psutil  # for the ends of workers: once, not in each of them

    from backends import worker

    processes.make_room()
    folder = serve()
    return 0 if folder is None else worker.supervise(folder)


if __name__ == "__main__":
    sys.exit(main())
