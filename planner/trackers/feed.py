"""From events of the ledger to what trackers are told.  Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.events import Replayer, number_or_none
from planner.records import STATE_RULES, CurvePoint, Event, RunRecord, RunState
from planner.trackers import Row, RunUpdate

# Names in a body of the ledger -> name of the metric.
_PROGRESS = {"step": "step", "value": "value", "cost": "cost_so_far"}
_END = {name: name for name in ("response", "cost", "se", "successes", "trials")}
_ENDS = {state.value for state in RunState if STATE_RULES[state].final} | {"preempted", "attached", "amended"}


class Feed:
    """The runs being rebuilt from the events of one study, in order and from the first.

    `factors` are those of each domain, by its name.
    """

    def __init__(self, study: str, factors: Mapping[str, Mapping[str, str]]) -> None:
        self._study = study
        self._factors = factors
        self._replayer = Replayer()
        self._num_rows: dict[str, int] = {}

    @property
    def seq(self) -> int:
        """The number of the last event taken in."""
        return self._replayer.num_events

    def take(self, events: Iterable[Event], *, told: int = 0) -> list[RunUpdate]:
        """Takes in the next events; returns one update for each run that an event with a number above `told` is of."""
        rows: dict[str, list[Row]] = {}
        for event in events:
            self._replayer.apply(event)
            if event.run_id is None or event.run_id not in self._replayer.runs:
                continue
            new = [] if event.seq <= told else rows.setdefault(event.run_id, [])
            for at, metrics in _measured(event):
                number = self._num_rows.get(event.run_id, 0)
                self._num_rows[event.run_id] = number + 1
                new.append(Row(number=number, at=at, metrics=metrics))
        return [self._update(self._replayer.runs[run_id], new) for run_id, new in rows.items()]

    def _update(self, run: RunRecord, rows: list[Row]) -> RunUpdate:
        domain = run.design.domain
        factors = {f"factor.{name}": value for name, value in self._factors.get(domain, {}).items()}
        return RunUpdate(
            study=self._study,
            run_id=run.run_id,
            state=run.state,
            params=dict(run.design.axes),
            tags={
                "study": self._study,
                "run_id": run.run_id,
                "domain": domain,
                **factors,
                "seed": str(run.design.seed),
                "attempt": str(run.attempt),
                "state": run.state.value,
            },
            rows=rows,
            started_at=run.proposed_at,
            ended_at=run.updated_at if STATE_RULES[run.state].final else None,
        )


def _measured(event: Event) -> Iterator[tuple[float, dict[str, float]]]:
    """Time and metrics of every row that an event holds: its points, if it has any, else itself."""
    if event.kind in _ENDS:
        metrics = _numbers(event.body, _END)
        if event.kind != "preempted" and "cost" not in metrics:
            metrics |= _numbers(event.body, {"charged": "cost"})
        if metrics:
            yield event.at, metrics
        return
    if event.kind != "progress":
        return
    points = event.body.get("points")
    for point in points if isinstance(points, list) and points else [event.body]:
        told = dict(zip(CurvePoint._fields, point, strict=False)) if isinstance(point, list) else point
        metrics = _numbers(told, _PROGRESS) if isinstance(told, Mapping) else {}
        if isinstance(point, list) and isinstance(told.get("schedule_complete"), bool):
            metrics["schedule_complete"] = float(told["schedule_complete"])
        if metrics:
            yield event.at, metrics


def _numbers(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    found = {ours: number_or_none(body.get(theirs)) for theirs, ours in names.items()}
    return {name: value for name, value in found.items() if value is not None}
