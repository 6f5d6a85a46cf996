"""A trainer as a fork of its worker, which has imported what both need: it starts in milliseconds.

Only in workers of a `nursery`: elsewhere a trainer is a new process.  What the trainer itself imports is imported after
the fork, so that no library and no thread of it is ever shared between runs.
"""

import atexit
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from backends import processes


class Forked:
    """What a worker uses of `subprocess.Popen`, for a function that returns an exit code, in a group of its own."""

    def __init__(self, function: Callable[[], int], *, environment: Mapping[str, str], folder: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(function, environment, folder)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; the worker asks once it has come."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def __enter__(self) -> "Forked":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()


def _become(function: Callable[[], int], environment: Mapping[str, str], folder: Path) -> NoReturn:
    """Does as a new process would, and ends as one."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.closerange(3, 1024)  # the worker's lock is not the trainer's
        processes.brand(environment[processes.TOKEN])
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["trainer"]
        for name, descriptor in (("stdout", 1), ("stderr", 2)):  # as with PYTHONUNBUFFERED
            raw = io.FileIO(descriptor, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "replace", write_through=True))
        code = function()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code & 0xFF)
