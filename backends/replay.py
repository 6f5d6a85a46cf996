"""Answers from a table of recorded runs: every design that the planner buys is looked up.

Options: `file` (CSV, Parquet or JSON lines, relative to the study); `response` (column, default "response"); `cost`
(column, default "cost" if there is one); `domain` (column; default: the table has one domain); `where` (column ->
value or list of values: only those rows); `columns` (axis -> column, for axes not named like their column); `se`,
`trials`, `successes` (columns); `state` (column with a run's end, empty or "completed" for a good one); `slots` (1).

Rows with equal design are replicates: seed 0 is answered by the first in the file, seed 1 by the second.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends import FOREIGN
from planner.execution import BackendError, Job, Report
from planner.records import STATE_RULES, Design, RunState

if TYPE_CHECKING:
    import pandas as pd

OPTIONS = ("file", "response", "cost", "domain", "where", "columns", "se", "trials", "successes", "state", "slots")
# Designs are compared in the log: the table and the study may have written the same number differently.
TOLERANCE = 1e-9


class Replay:
    """Backend "replay"; see the module."""

    simulated = True

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        unknown = sorted(set(options) - set(OPTIONS) - FOREIGN)
        if unknown:
            raise BackendError(f"backend.{unknown[0]} is unknown to replay. Its options: {', '.join(OPTIONS)}")
        self.options = dict(options)
        self.slots = self.options.get("slots", 1)
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1:
            raise BackendError(f"backend.slots is {self.slots!r}; it must be a whole number, at least 1")
        if not isinstance(self.options.get("file"), str | Path):
            raise BackendError("backend.file is missing: replay needs the table of recorded runs")
        self.file = Path(study_dir) / self.options["file"]
        self.table = _read(self.file, self.options)
        self._axes: dict[tuple[str, ...], NDArray[np.float64]] = {}

    # ---- the three verbs ----

    def submit(self, job: Job) -> str:
        """The handle names the row that answers: "RUN_ID row 12", or the nearest one where none does."""
        design = job.design
        matches, nearest = self._find(design)
        if 0 <= design.seed < len(matches):
            return f"{job.run_id} row {matches[design.seed]}"
        if len(matches):
            return f"{job.run_id} seed {design.seed} of {len(matches)} recorded, first in row {matches[0]}"
        return f"{job.run_id} nothing in domain {design.domain!r}, nearest is row {nearest}"

    def poll(self, handles: Sequence[str]) -> list[Report]:
        return [self._report(handle) for handle in handles]

    def cancel(self, handle: str) -> None:
        """Nothing to end: a replayed run is over when it is submitted."""

    # ---- the table ----

    def _find(self, design: Design) -> tuple[NDArray[np.int64], int]:
        """Rows with this design, in the order of the file, and the nearest row of the domain (or of all)."""
        names = tuple(design.axes)
        x = self._matrix(names)
        distances = np.zeros(len(x))
        for column, value in zip(x.T, design.axes.values(), strict=True):
            distances = np.maximum(distances, _log_distance(column, value))
        of_domain = np.ones(len(x), dtype=bool)
        if self.options.get("domain") is not None:
            of_domain = (self.table[self.options["domain"]].astype(str) == design.domain).to_numpy()
        matches = np.flatnonzero(of_domain & (distances <= TOLERANCE))
        near = np.where(of_domain, distances, np.inf) if of_domain.any() else distances
        rows = self.table.index.to_numpy()
        return rows[matches], int(rows[np.argmin(near)])

    def _matrix(self, names: tuple[str, ...]) -> NDArray[np.float64]:
        if names not in self._axes:
            columns = [(self.options.get("columns") or {}).get(name, name) for name in names]
            self._axes[names] = np.stack([_numbers(self.table, column, self.file) for column in columns], axis=1)
        return self._axes[names]

    def _report(self, handle: str) -> Report:
        run_id, _, where = handle.partition(" ")
        try:
            row = int(where.rpartition(" ")[2])
            record = self.table.loc[row]
        except (ValueError, KeyError):
            message = f"handle {handle!r} does not name a row of {self.file.name}"
            return Report(run_id=run_id, handle=handle, state=RunState.LOST, message=message)
        if not where.startswith("row "):
            return Report(
                run_id=run_id, handle=handle, state=RunState.FAILED, cost=0.0, message=self._refusal(where, row)
            )
        state = self._state(record)
        response = self._value(record, "response")
        if state is RunState.COMPLETED and response is None:
            state = RunState.DIVERGED
        measured = state is RunState.COMPLETED
        return Report(
            run_id=run_id,
            handle=handle,
            state=state,
            response=response if measured else None,
            cost=self._value(record, "cost"),
            se=self._value(record, "se") if measured else None,
            successes=self._value(record, "successes") if measured else None,
            trials=self._value(record, "trials") if measured else None,
            message=f"row {row} of {self.file.name}" + ("" if measured else f": {state}"),
        )

    def _value(self, record: Any, option: str) -> float | None:
        column = self.options.get(option, option if option in ("response", "cost") else None)
        value = record[column] if column in self.table.columns else np.nan
        number = float(value)
        return number if np.isfinite(number) else None

    def _state(self, record: Any) -> RunState:
        column = self.options.get("state")
        value = record[column] if column is not None else None
        if not isinstance(value, str) or not value.strip():
            return RunState.COMPLETED
        return RunState(value.strip().lower())

    def _refusal(self, where: str, row: int) -> str:
        if where.startswith("seed "):
            return f"{self.file.name} has too few replicates of this design: {where} (not to be tried again)"
        cells = ", ".join(f"{name}={value}" for name, value in self.table.loc[row].items())
        domains = ""
        if self.options.get("domain") is not None:
            known = sorted({str(name) for name in self.table[self.options["domain"]]})
            domains = f"; recorded domains: {', '.join(known[:20])}"
        return f"no recorded run has this design (not to be tried again): {where} of {self.file.name}, {cells}{domains}"


def _log_distance(column: NDArray[np.float64], value: float) -> NDArray[np.float64]:
    """|log column - log value| where both are positive, else the plain distance, infinite across a sign."""
    if value <= 0:
        return np.where(column <= 0, np.abs(column - value), np.inf)
    return np.abs(
        np.log(np.where(column > 0, column, np.nan)) - np.log(value), where=column > 0, out=np.full(len(column), np.inf)
    )


def _read(file: Path, options: Mapping[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    readers = {".csv": _read_csv, ".parquet": pd.read_parquet, ".jsonl": _read_json_lines, ".ndjson": _read_json_lines}
    if file.suffix.lower() not in readers:
        raise BackendError(f"backend.file is {str(file)!r}; the name must end in {', '.join(readers)}")
    try:
        table = readers[file.suffix.lower()](file)
    except (OSError, ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise BackendError(f"backend.file: cannot read {file}: {error}") from error
    where = options.get("where") or {}
    named = {
        name: options[name] for name in ("cost", "domain", "se", "trials", "successes", "state") if name in options
    }
    named |= {"response": options.get("response", "response")} | {f"where.{name}": name for name in where}
    named |= {f"columns.{axis}": column for axis, column in (options.get("columns") or {}).items()}
    for option, column in named.items():
        if column not in table.columns:
            raise BackendError(
                f"backend.{option} is {column!r}, which is not a column of {file.name}."
                f" Its columns: {', '.join(table.columns)}"
            )
    for name, value in where.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        table = table[table[name].isin(values) | table[name].astype(str).isin([str(each) for each in values])].copy()
    if table.empty:
        raise BackendError(f"{file.name} has no rows" + (f" where {dict(where)}" if where else ""))
    _check(table, options, file)
    return table


def _check(table: "pd.DataFrame", options: Mapping[str, Any], file: Path) -> None:
    """Every value that will ever be reported is a number, or empty, or a state we know; rows count from 0."""
    for option in ("response", "cost", "se", "trials", "successes"):
        column = options.get(option, option if option in ("response", "cost") else None)
        if column in table.columns:
            values = _numbers(table, column, file, allow_empty=True)
            if option != "response" and (values < 0).any():
                place = int(np.argmax(values < 0))
                row = table.index[place]
                raise BackendError(f"{file.name}, row {row}: {column!r} is {values[place]:g}; it must not be negative")
            table[column] = values  # as floats from here on
    final = [state for state, rule in STATE_RULES.items() if rule.final or state is RunState.PREEMPTED]
    for row, value in table[options["state"]].items() if "state" in options else ():
        if isinstance(value, str) and value.strip() and value.strip().lower() not in final:
            raise BackendError(f"{file.name}, row {row}: state {value!r} is unknown; known: {', '.join(final)}")


def _read_csv(file: Path) -> "pd.DataFrame":
    import warnings

    import pandas as pd

    with warnings.catch_warnings():
        # A row longer than the header: pandas would only warn, and drop a number.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(file, index_col=False, encoding="utf-8-sig")


def _read_json_lines(file: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_json(file, lines=True)


def _numbers(table: "pd.DataFrame", column: str, file: Path, *, allow_empty: bool = False) -> NDArray[np.float64]:
    """A column as floats.  Raises `BackendError` naming the first cell that is not a number."""
    import pandas as pd

    if column not in table.columns:
        raise BackendError(f"{file.name} has no column {column!r}. Its columns: {', '.join(table.columns)}")
    cells = table[column]
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    text = cells.astype(str).str.strip().str.lower()
    wrong = np.isnan(values) & ~cells.isna().to_numpy() & ~text.isin(["nan", "", "inf", "-inf"]).to_numpy()
    if not allow_empty:
        wrong |= ~np.isfinite(values)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise BackendError(
            f"{file.name}, row {cells.index[place]}: {column!r} is {cells.iloc[place]!r}; it must be a number"
        )
    return values
