"""Runs in Trackio: one of theirs for each run of the study, under the same name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from planner.trackers import RunUpdate


def open_runs(
    *, study: str, folder: Path, project: str | None = None, space: str | None = None, directory: str | None = None
) -> TrackioRuns:
    """`project` is by default the study; `space` a Hugging Face Space; `directory` where a local store is."""
    if directory is not None:
        os.environ["TRACKIO_DIR"] = str((folder / directory).absolute())
    import trackio

    return TrackioRuns(trackio, re.sub(r"[^A-Za-z0-9_.-]+", "-", project or study), space)


class TrackioRuns:
    """See `planner.trackers.Tracker`.  The step of a row is its number; Trackio knows the last one of a run."""

    def __init__(self, trackio: Any, project: str, space: str | None) -> None:
        self._trackio = trackio
        self._project = project
        self._space = space

    def write(self, update: RunUpdate) -> None:
        if not update.rows and update.ended_at is None:
            return  # a run without a row has nothing to show there
        config = {**update.params, **{name: value for name, value in update.tags.items() if name != "run_id"}}
        options = {} if self._space is None else {"space_id": self._space}
        run = self._trackio.init(
            project=self._project,
            name=update.run_id,
            group=update.tags["domain"],
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
            **options,
        )
        try:
            num_rows = int(getattr(run, "_next_step", 0) or 0)
            for row in update.rows:
                if row.number >= num_rows:
                    run.log({**row.metrics, "state": update.state.value}, step=row.number)
        finally:
            self._trackio.finish()

    def close(self) -> None:
        pass
