"""Strict reader of CSV, Parquet and JSON-lines tables: every oddity is an error with its line or a coded warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import cells, rawtables
from planner.errors import InputError, Problem
from planner.spec.checks import near

if TYPE_CHECKING:
    from planner.importing import ImportedRows
    from planner.spec import StudySpec


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of equal length R.  Numbers are float64 with NaN where missing, text is "" where missing."""

    path: Path
    header: tuple[str, ...]  # every column of the file, also those not read
    columns: Mapping[str, np.ndarray]  # (R,) float64 or text
    lines: np.ndarray  # (R,) int64: line of the file, or row from 1 in a Parquet file
    blank: Mapping[str, np.ndarray]  # of every number column: empty, NA or null, as against a written NaN; (R,) bool
    warnings: tuple[str, ...] = ()  # each begins with a code such as W:thousands_separator

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def problem(
        self, index: int | np.integer[Any], column: str, value: object, message: str, hint: str = ""
    ) -> Problem:
        """A problem with one cell, for the reader's own checks; `index` counts rows of this table from 0."""
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        # `Problem` shows a value only where the message does not already hold it, and "0" is in "must exceed 0".
        message = f"{message} (got {shown})" if shown and shown in message else message
        line = int(self.lines[index])
        return Problem(message=message, file=str(self.path), line=line, key=column, value=shown, hint=hint)

    def take(self, index: np.ndarray) -> Table:
        """The rows at `index`: integers or booleans (R,)."""
        columns = {name: column[index] for name, column in self.columns.items()}
        blank = {name: column[index] for name, column in self.blank.items()}
        return replace(self, columns=columns, lines=self.lines[index], blank=blank)


def read_table(
    path: str | Path, *, numeric: Sequence[str], text: Sequence[str] = (), optional: Sequence[str] = ()
) -> Table:
    """Reads the named columns of a CSV, TSV, JSON-lines or Parquet file; the content tells which it is.

    Args:
        path: the file; gzip is unpacked.
        numeric: columns read as numbers, NaN where a cell is empty, NaN, NA or null.
        text: columns read as text.
        optional: names among `numeric` and `text` that the file may lack.

    Raises:
        InputError: unreadable or empty file, rows of another width than the header, missing columns, cells that are
            no numbers; its problems name line, column, value, rule and hint.
    """
    path = Path(path)
    names = list(dict.fromkeys([*numeric, *text]))
    raw = rawtables.read_raw(path, names)
    missing = [name for name in names if name not in raw.columns and name not in optional]
    if missing:
        raise InputError([_missing_column(path, name, raw.header) for name in missing])
    columns: dict[str, np.ndarray] = {}
    blank: dict[str, np.ndarray] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    for name in names:
        if name not in raw.columns:
            continue
        if name not in numeric:
            columns[name] = _text_column(raw.columns[name])
            continue
        column = _number_column(raw.columns[name])
        columns[name] = column.values
        blank[name] = np.zeros(len(raw.lines), dtype=bool)
        blank[name][column.blank] = True
        for index, value, rule, hint in column.refused:
            line = int(raw.lines[index])
            problems.append(Problem(message=rule, file=str(path), line=line, key=name, value=value, hint=hint))
        for code, rows, what in (
            ("W:thousands_separator", column.thousands, "thousands separators were read as such"),
            ("W:infinite", column.infinite, "holds infinite numbers"),
        ):
            if rows:
                warnings.append(f"{code} {path.name}: column {name!r}: {what}, {show_lines(raw.lines[rows])}")
    rawtables.raise_problems(problems)
    return Table(path=path, header=raw.header, columns=columns, lines=raw.lines, blank=blank, warnings=tuple(warnings))


def import_rows(
    spec: StudySpec,
    path: str | Path,
    *,
    domain: str | None = None,
    where: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> ImportedRows:
    """Finished runs of a file, ready to attach; see `planner.importing.import_rows`."""
    from planner import importing

    return importing.import_rows(spec, path, domain=domain, where=where, columns=columns)


def matches(table: Table, where: Mapping[str, Any]) -> np.ndarray:
    """Which rows have the values that `where` asks for, (R,) bool; a list means any of its values."""
    keep = np.ones(len(table), dtype=bool)
    for name, wanted in where.items():
        column = table[name]
        found = np.zeros(len(table), dtype=bool)
        for option in wanted if isinstance(wanted, list | tuple) else [wanted]:
            if column.dtype.kind == "f":
                found |= column == float(option)
            elif isinstance(option, bool):
                found |= np.char.lower(column) == _as_text(option)
            else:
                found |= column == _as_text(option)
        keep &= found
    return keep


def filter_columns(where: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Columns that `where` compares as numbers, and those that it compares as text."""
    numeric = []
    for name, wanted in where.items():
        options = wanted if isinstance(wanted, list | tuple) else [wanted]
        if options and all(isinstance(option, int | float) and not isinstance(option, bool) for option in options):
            numeric.append(name)
    return numeric, [name for name in where if name not in numeric]


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _missing_column(path: Path, name: str, header: Sequence[str]) -> Problem:
    hint = near(name, header)
    return Problem(message=f"has no column {name!r}", file=str(path), hint=hint[:1].upper() + hint[1:])


def show_lines(lines: np.ndarray) -> str:
    """Line numbers for a message, such as: lines 3, 5 and 17 more."""
    shown = ", ".join(str(int(line)) for line in lines[:5])
    rest = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{rest}"


def _text_column(column: Any) -> np.ndarray:
    values = column.to_pylist() if hasattr(column, "to_pylist") else column
    texts = [value.strip() if isinstance(value, str) else "" if value is None else _as_text(value) for value in values]
    return np.array(texts, dtype=np.str_)


def _number_column(column: Any) -> cells.NumberColumn:
    if not hasattr(column, "to_pylist"):
        return cells.read_numbers(column)
    import pyarrow as pa

    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
        values, infinite = cells.flag_infinite(values)
        return cells.NumberColumn(values, [], [], infinite, np.flatnonzero(column.is_null().to_numpy()).tolist())
    if pa.types.is_decimal(column.type):
        return cells.read_numbers([None if value is None else float(value) for value in column.to_pylist()])
    return cells.read_numbers(column.to_pylist())
