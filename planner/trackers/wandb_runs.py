"""Runs in Weights & Biases: one of theirs for each run of the study, under the same id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from planner.records import RunState
from planner.trackers import RunUpdate

_MAX_OPEN = 32  # each open run is a stream of its own


def open_runs(
    *,
    study: str,
    folder: Path,
    project: str | None = None,
    entity: str | None = None,
    mode: str | None = None,
    directory: str | None = None,
) -> WandbRuns:
    """`project` is by default the study; `mode` "online" or "offline"; `directory` for the library's files."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    place = folder / (directory or ".")
    place.mkdir(parents=True, exist_ok=True)
    options = {"project": project or study, "entity": entity, "mode": mode, "dir": str(place)}
    return WandbRuns(wandb, {name: value for name, value in options.items() if value is not None})


class WandbRuns:
    """See `planner.trackers.Tracker`.  The step of a row is its number, which W&B lets only grow."""

    def __init__(self, wandb: Any, options: dict[str, Any]) -> None:
        self._wandb = wandb
        self._options = options
        self._open: dict[str, Any] = {}
        self._num_rows: dict[str, int] = {}

    def write(self, update: RunUpdate) -> None:
        run = self._open.pop(update.run_id, None) or self._start(update)
        self._open[update.run_id] = run  # now the latest
        try:
            for row in update.rows:
                if row.number >= self._num_rows[update.run_id]:
                    run.log(dict(row.metrics), step=row.number)
                    self._num_rows[update.run_id] = row.number + 1
            run.config.update({**update.params, **update.tags}, allow_val_change=True)
            run.summary["state"] = update.state.value
        except BaseException:
            self._end(update.run_id, 1)  # whatever is wrong with it, the next write starts it anew
            raise
        if update.ended_at is not None:
            self._end(update.run_id, 0 if update.state is RunState.COMPLETED else 1)
        elif len(self._open) > _MAX_OPEN:
            self._end(next(iter(self._open)), 0)

    def close(self) -> None:
        for run_id in list(self._open):
            self._end(run_id, 0)

    def _start(self, update: RunUpdate) -> Any:
        tags = [f"{name}:{update.tags[name]}"[:64] for name in ("study", "domain")]
        run = self._wandb.init(
            id=update.run_id, name=update.run_id, resume="allow", reinit="create_new", tags=tags, **self._options
        )
        # `step` of a resumed run is one more than its last row; offline there is no one to ask.
        self._num_rows[update.run_id] = max(self._num_rows.get(update.run_id, 0), int(run.step or 0))
        run.define_metric("step", hidden=True)
        run.define_metric("value", step_metric="step")
        return run

    def _end(self, run_id: str, exit_code: int) -> None:
        self._open.pop(run_id).finish(exit_code=exit_code)
