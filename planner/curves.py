"""The curves of runs as a table: what was reported on the way, which is never an end value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.records import RunRecord


def columns(runs: Iterable[RunRecord], axes: Iterable[str]) -> dict[str, list[Any]]:
    """One row a point, by run, attempt and step, as columns.

    run_id, state of the run, attempt that began the curve (one that goes on from a checkpoint goes on in the same
    curve), domain, seed, the axes as `axis_NAME`, step, value (None: not finite), cost of the run so far,
    schedule_complete, and the final response of the run (None: none, or of a later curve).
    """
    axes = list(axes)
    names = ("run_id", "state", "attempt", "domain", "seed", *(f"axis_{name}" for name in axes))
    table: dict[str, list[Any]] = {
        name: [] for name in (*names, "step", "value", "cost", "schedule_complete", "response")
    }
    for run in runs:
        for attempt, points in sorted(run.curves().items()):
            of_run = (run.run_id, str(run.state), attempt, run.design.domain, run.design.seed)
            response = run.response if attempt == run.curve_began else None
            for point in points:
                row = (*of_run, *(run.design.axes.get(name) for name in axes), *point, response)
                for column, value in zip(table.values(), row, strict=True):
                    column.append(value)
    return table
