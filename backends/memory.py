"""How much memory a run holds, and when that is too much."""

import math
from collections.abc import Mapping
from typing import Any

from backends import jobfile, processes

OPTION = "memory_gb"
SECONDS = 1.0  # between looks
_GB = 1e9


class MemoryWatch:
    """Watches the processes of a run against `memory_gb`, the sum of what they hold in main memory.

    Pages that several of them share, such as a data set that was read before loaders were forked, count once.  Limits
    of the kernel on address space would not do: accelerators reserve far more than they use.
    """

    def __init__(self, options: Mapping[str, Any], token: str) -> None:
        """Raises `BadJob` for a limit that is none."""
        limit = options.get(OPTION)
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < math.inf):
            raise jobfile.BadJob(f"backend.{OPTION} is {limit!r}; it must be a number greater than 0")
        self._limit = None if limit is None else float(limit) * _GB
        self._token = token
        self._looked_at = -math.inf

    def excess(self, now: float) -> str | None:
        """What to say of a run that holds too much at `now` (seconds); None for the others."""
        if self._limit is None or now - self._looked_at < SECONDS:
            return None
        self._looked_at = now
        members = processes.family(self._token, [processes.myself()])
        # Shared pages are only looked into, which is slow, where it may matter.
        used = sum(_held(process, "rss") for process in members)
        if used > self._limit:
            used = sum(_held(process, "pss") for process in members)
        if used <= self._limit:
            return None
        return f"its processes held {used / _GB:.3g} GB, and {OPTION} is {self._limit / _GB:g}"


def _held(process: Any, kind: str) -> float:
    import psutil

    try:
        if kind == "pss":
            full = process.memory_full_info()
            return float(getattr(full, "pss", full.uss))
        return float(process.memory_info().rss)
    except (psutil.Error, OSError):
        return 0.0  # it has ended
