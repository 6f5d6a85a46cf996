"""Which processes are alive and how to end all of them: by identity, never by a bare pid."""

import os
import signal
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

TOKEN = "PLANNER_TOKEN"  # in the environment of a trainer and of everything it starts, also outside its group


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None if there is none, or only a zombie.

    The start time in kernel ticks since boot, with the boot's own id: unlike a wall-clock start it does not move when
    the clock is set.
    """
    if sys.platform.startswith("linux"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The command name stands in parentheses and may itself hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def is_alive(pid: Any, known_identity: Any) -> bool:
    return isinstance(pid, int) and pid > 0 and known_identity is not None and identity(pid) == known_identity


def myself() -> tuple[int, str | None]:
    """This process as a root of `family`."""
    return os.getpid(), identity(os.getpid())


def adopt_orphans() -> None:
    """From now on what descends from this process becomes its child when its parent dies, and never leaves the tree."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # 36: PR_SET_CHILD_SUBREAPER


_room: int | None = None  # address of the token in this process's first environment


def make_room() -> None:
    """Finds the token among the variables that this process was started with, for `brand` in its forks."""
    global _room
    if sys.platform == "linux":
        import ctypes

        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        _room = getenv(TOKEN.encode())


def can_brand() -> bool:
    return _room is not None


def brand(token: str) -> None:
    """Puts the token where others see it, in the environment that this process was started with.

    What a fork sets in `os.environ` is seen by nobody but what it starts.  The token must be as long as the old one.
    """
    import ctypes

    assert _room is not None and len(ctypes.string_at(_room)) == len(token)
    ctypes.memmove(_room, token.encode(), len(token))


def family(token: str | None, roots: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The live processes (`psutil.Process`) of a run, without the caller.

    `roots` are (pid, identity).  Taken together: the roots, their descendants, and whatever carries the run's token in
    its environment, which also finds processes that left the group or lost their parent.
    """
    import psutil

    found: dict[int, Any] = {}
    for pid, known in roots:
        if is_alive(pid, known):
            try:
                process = psutil.Process(pid)
                found.update({child.pid: child for child in [process, *process.children(recursive=True)]})
            except psutil.Error:
                continue
    for process in psutil.process_iter() if token else ():
        try:
            if process.environ().get(TOKEN) == token:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue  # gone, or another user's
    found.pop(os.getpid(), None)
    return [process for process in found.values() if identity(process.pid) is not None]


def kill_family(token: str | None, roots: Iterable[tuple[Any, Any]], *, timeout: float) -> bool:
    """SIGKILL to the whole family, again until nothing is left or `timeout` seconds are over; True if nothing is left.

    With `timeout=0` it never waits, and True means that there was nothing to kill.
    """
    import psutil

    roots = list(roots)
    end = time.monotonic() + timeout
    while members := family(token, roots):
        for process in members:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def end_children(token: str | None, *, timeout: float) -> bool:
    """`kill_family` for all that descends from this process, after `adopt_orphans`."""
    if sys.platform == "linux" and not _has_children():
        return True
    return kill_family(token, [myself()], timeout=timeout)


def _has_children() -> bool:
    """Takes the ends of the dead ones first."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
        return True
    except ChildProcessError:
        return False
