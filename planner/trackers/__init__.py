"""Runs shown in experiment trackers.  They are told from the ledger and never asked: what they hold changes nothing.

A tracker is an object with two verbs, made by a function of its own module.  It runs in a process of its own
(`follow.py`), so that one that hangs, prints, fails or is not installed leaves the study alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from planner.errors import InputError
from planner.records import RunState

KINDS: Mapping[str, str] = {
    "mlflow": "planner.trackers.mlflow_runs",
    "trackio": "planner.trackers.trackio_runs",
    "wandb": "planner.trackers.wandb_runs",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Numbers of a run at one moment.

    `number` counts the rows of a run from 0.  It follows from the ledger alone, so a tracker that remembers how many
    rows it has takes none twice.
    """

    number: int
    at: float  # seconds since the epoch
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunUpdate:
    """A run as it is now, and its rows that may be new: the same update again must change nothing.

    The metrics of a row are `step`, `value`, `cost_so_far` and `schedule_complete` (0 in the middle of a learning-rate
    schedule) of a run under way, and `response`, `cost`, `se`,
    `successes` and `trials` of one that ended; of a diverged run there is no response.
    """

    study: str
    run_id: str
    state: RunState
    params: Mapping[str, float]  # the axes, raw units
    tags: Mapping[str, str]  # domain, factors, seed, attempt, state, run_id, study
    rows: Sequence[Row]
    started_at: float
    ended_at: float | None


class Tracker(Protocol):
    """Where runs are shown.  Both verbs may block and raise; a write that raised is tried again."""

    def write(self, update: RunUpdate) -> None:
        """Brings the tracker's run up to date.  Rows that it has already are left out."""
        ...

    def close(self) -> None:
        """Sends what is on its way."""
        ...


def open_tracker(kind: str, options: Mapping[str, Any], study: str, folder: Path) -> Tracker:
    """The tracker of a `[[trackers]]` section.  Relative paths in its options start at `folder`.

    Raises `InputError` for an unknown kind and for a library that is not installed.
    """
    module_name, colon, function = (KINDS.get(kind, kind)).partition(":")
    if kind not in KINDS and not colon:
        raise InputError(f"trackers.kind is {kind!r}: write {', '.join(KINDS)}, or module:function for one of your own")
    try:
        module = importlib.import_module(module_name)
        make = getattr(module, function or "open_runs")
        tracker: Tracker = make(study=study, folder=folder, **options)
    except (ImportError, AttributeError) as error:
        hint = f"install it with pip install 'scaling-planner[{kind}]'" if kind in KINDS else "check its name"
        raise InputError(f"tracker {kind} cannot be used ({error}): {hint}") from error
    return tracker
