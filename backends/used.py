"""What an attempt has used when nobody says: a worker that is lost, a trainer that fails before it tells a cost."""

import itertools
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.jobfile import BAD_JOB, JobFolder
from backends.jsonfile import as_cost, read_json
from backends.worker import HEARTBEAT

_ENOUGH = 100  # finished runs that a cost per second is taken from


def cost_of_time(folder: JobFolder, job: Mapping[str, Any]) -> float | None:
    """The time of the attempt in `folder` at what finished runs beside it cost a second (the median), up to its limit.

    A lost one is taken to have worked until the sign of life that did not come.  None where it never began, or nothing
    has finished yet: then the ledger charges what was told on the way, else what was predicted.
    """
    note, record = read_json(folder.process) or {}, read_json(folder.exit) or {}
    if note.get("attempt") != job.get("attempt") or record.get("code") == BAD_JOB:
        return None
    if record.get("attempt") == note["attempt"]:
        until = float(record.get("ended_at") or 0.0)
    else:
        until = HEARTBEAT + max(_changed_at(path) for path in (folder.process, folder.log, folder.metrics))
    rates = list(itertools.islice(_costs_per_second(folder.path.parent), _ENOUGH))
    if not rates:
        return None
    used = statistics.median(rates) * max(0.0, until - float(note["started_at"]))
    limit = as_cost(job.get("max_cost"))
    return used if limit is None else min(used, limit)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _costs_per_second(runs: Path) -> Iterator[float]:
    for path in runs.glob("*/exit.json"):
        record, result = read_json(path) or {}, read_json(path.with_name("result.json")) or {}
        cost, began, ended = as_cost(result.get("cost")), record.get("started_at"), record.get("ended_at")
        if record.get("code") == 0 and cost is not None and began and ended and ended > began:
            yield cost / (ended - began)
