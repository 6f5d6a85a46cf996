"""A run's curve from its metrics.jsonl, thinned, reading only what is new.

Lines may be torn, glued together, out of order, repeated after a return to a checkpoint, or come by the million.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backends.jsonfile import as_cost, finite
from planner.records import CurvePoint, thin_curve

# Read at one look at a run under way, so that a look stays short; at its end all of the file is read.
MAX_BYTES = 1 << 21
_MAX_FILES = 4096
_NOT_FINITE = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity")


class _Read(NamedTuple):
    """What was read of a file: `end` is where the next look begins, behind a line's end."""

    file: tuple[int, int]  # device, inode
    end: int
    points: Sequence[CurvePoint]


# Content of files, which is the same for everybody; dropped when there are too many.
_known: OrderedDict[Path, _Read] = OrderedDict()


def curve(path: Path, *, whole: bool = True) -> tuple[CurvePoint, ...]:
    """The points in a file of metrics, thinned; () where there is none.

    Unless `whole`, at most `MAX_BYTES` are read more than the last time.  Never raises.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            read = _known.get(path)
            identity = (status.st_dev, status.st_ino)
            if read is None or read.file != identity or read.end > status.st_size:
                read = _Read(identity, 0, ())
            rest = b""
            file.seek(read.end)
            while chunk := file.read(MAX_BYTES):
                lines, newline, rest = (rest + chunk).rpartition(b"\n")
                points = thin_curve([*read.points, *_points_of(lines)]) if newline else read.points
                read = _Read(identity, file.tell() - len(rest), points)
                if not whole:
                    break
    except OSError:
        return ()
    _known[path] = read
    _known.move_to_end(path)
    if len(_known) > _MAX_FILES:
        _known.popitem(last=False)
    # A whole last line may lack its end, and be finished later.
    return tuple(thin_curve([*read.points, *_points_of(rest)])) if rest else tuple(read.points)


def point_of(record: Mapping[str, Any]) -> CurvePoint | None:
    """The point in one line of metrics; None for a mere sign of life, or without a step."""
    step, told = finite(record.get("step")), record.get("value")
    if step is None or step < 0:
        return None
    value = finite(told)
    if value is None and not (
        record.get("not_finite") is True
        or isinstance(told, float)  # a bare NaN or Infinity
        or (isinstance(told, str) and told.strip().lower() in _NOT_FINITE)
    ):
        return None
    complete = record.get("schedule_complete") is True  # what does not say so is not taken for an end value
    return CurvePoint(step, value, as_cost(record.get("cost")), complete)


def _points_of(text: bytes) -> list[CurvePoint]:
    points = []
    for line in text.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and (point := point_of(record)) is not None:
            points.append(point)
    return points
