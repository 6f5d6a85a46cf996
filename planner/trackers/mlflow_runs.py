"""Runs in MLflow: one MLflow run for each run of the study, found again by its tag."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from planner.records import RunState
from planner.trackers import Row, RunUpdate

_STATUS = {
    RunState.COMPLETED: "FINISHED",
    RunState.DIVERGED: "FAILED",
    RunState.FAILED: "FAILED",
    RunState.OUT_OF_MEMORY: "FAILED",
    RunState.TIMED_OUT: "FAILED",
    RunState.LOST: "FAILED",
    RunState.CANCELLED: "KILLED",
    RunState.PROPOSED: "SCHEDULED",
    RunState.SUBMITTED: "SCHEDULED",
}
_NUM_ROWS = "planner.num_rows"  # a tag: how many rows the run has
_MAX_METRICS = 900  # MLflow takes 1000 of them at once
_LARGEST_STEP = 2**62


def open_runs(*, study: str, folder: Path, uri: str | None = None, project: str | None = None) -> MlflowRuns:
    """`uri`: MLflow's tracking URI, by default the environment's; `project`: the experiment, by default the study."""
    # MLflow's own defaults retry for many minutes; here a failed write is tried again anyway.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    from mlflow import MlflowClient

    if uri is not None and uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{(folder / uri.removeprefix('sqlite:///')).absolute()}"
    return MlflowRuns(MlflowClient(tracking_uri=uri), project or study)


class MlflowRuns:
    """See `planner.trackers.Tracker`."""

    def __init__(self, client: Any, experiment: str) -> None:
        self._client = client
        self._experiment = experiment
        self._experiment_id = ""
        self._known: dict[str, tuple[str, int]] = {}  # our run_id -> theirs, number of rows

    def write(self, update: RunUpdate) -> None:
        from mlflow.entities import Metric, Param, RunTag

        run_id, num_rows = self._known.get(update.run_id) or self._find(update)
        for row in update.rows:
            if row.number < num_rows:
                continue
            metrics = [
                Metric(name, value, round(row.at * 1000), _step(row))
                for name, value in row.metrics.items()
                if name != "step"
            ]
            num_rows = row.number + 1
            self._client.log_batch(run_id, metrics=metrics[:_MAX_METRICS], tags=[RunTag(_NUM_ROWS, str(num_rows))])
            self._known[update.run_id] = run_id, num_rows
        params = [Param(name, repr(value)) for name, value in update.params.items()]
        tags = [RunTag(f"planner.{name}", value) for name, value in update.tags.items()]
        self._client.log_batch(run_id, params=params, tags=tags)
        status = _STATUS.get(update.state, "RUNNING")
        if update.ended_at is None:
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status, end_time=round(update.ended_at * 1000))

    def close(self) -> None:
        pass

    def _find(self, update: RunUpdate) -> tuple[str, int]:
        """Their run of ours and how many rows it has; made if there is none."""
        if not self._experiment_id:
            known = self._client.get_experiment_by_name(self._experiment)
            self._experiment_id = known.experiment_id if known else self._client.create_experiment(self._experiment)
        # The id is made from the study's name as well.
        wanted = f"tags.`planner.run_id` = '{update.run_id}'"
        found = self._client.search_runs([self._experiment_id], wanted, max_results=1)
        if found:
            ours = found[0].info.run_id, int(found[0].data.tags.get(_NUM_ROWS, 0))
        else:
            tags = {f"planner.{name}": value for name, value in update.tags.items()}
            start = round(update.started_at * 1000)
            made = self._client.create_run(self._experiment_id, start_time=start, tags=tags, run_name=update.run_id)
            ours = made.info.run_id, 0
        self._known[update.run_id] = ours
        return ours


def _step(row: Row) -> int:
    """MLflow's steps are whole: the trainer's, and the row's number where there is none."""
    step = row.metrics.get("step")
    return row.number if step is None or not abs(step) < _LARGEST_STEP else round(step)
