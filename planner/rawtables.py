"""Files of rows before their cells are read: CSV, TSV, JSON lines, Parquet; strict about width, header and encoding."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner import cells
from planner.errors import InputError, Problem

MAX_PROBLEMS = 20


@dataclass(frozen=True)
class RawTable:
    """A file before its cells are read: one sequence of cells per column, and the line of each row."""

    header: tuple[str, ...]
    columns: Mapping[str, Any]
    lines: np.ndarray


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raises `InputError` with the first twenty problems and the number of the others; returns when there is none."""
    if not problems:
        return
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(Problem(message=f"and {len(problems) - MAX_PROBLEMS} more problems", file=problems[0].file))
    raise InputError(shown)


def read_whole(path: Path) -> bytes:
    """All of a file.  Raises `OSError`, also for a device: it may have no end."""
    if path.is_char_device() and path.resolve() != Path(os.devnull):
        raise OSError(errno.ENOTSUP, "is a device, not a file")
    return path.read_bytes()


def read_raw(path: Path, names: Iterable[str]) -> RawTable:
    try:
        content = read_whole(path)
    except FileNotFoundError:
        raise InputError(Problem(message="there is no such file", file=str(path))) from None
    except OSError as error:
        raise InputError(Problem(message=f"cannot be read: {error.strerror or error}", file=str(path))) from None
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise InputError(Problem(message=f"is damaged gzip data: {error}", file=str(path))) from None
    if content[:4] == b"PAR1":
        return _read_parquet(path, content, names)
    if content[:2] == b"PK":
        raise InputError(
            Problem(
                message="is a spreadsheet or archive", file=str(path), hint="Save the sheet as CSV and name that file"
            )
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            Problem(message="is not UTF-8 text", file=str(path), line=line, hint="Save the file as UTF-8")
        ) from None
    if not text.strip():
        raise InputError(Problem(message="the file is empty", file=str(path), hint="It needs a header and rows"))
    if text.lstrip()[0] == "[":
        raise InputError(
            Problem(message="is a JSON list", file=str(path), hint="Write one object per line (JSON lines)")
        )
    if text.lstrip()[0] == "{":
        return _read_json_lines(path, text)
    return _read_csv(path, text, names)


def _read_csv(path: Path, text: str, names: Iterable[str]) -> RawTable:
    first = text.lstrip().partition("\n")[0]
    delimiter = "\t" if "\t" in first and "," not in first else ","
    if delimiter == "," and ";" in first and "," not in first:
        raise InputError(
            Problem(message="columns are separated by ';'", file=str(path), line=1, hint="Save the file with commas")
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(
            Problem(message=f"is not valid CSV: {error}", file=str(path), line=reader.line_num, hint="Check the quotes")
        ) from None
    header = tuple(name.strip() for name in rows[0])
    _check_header(path, header, lines[0])
    del rows[0]
    numbers = np.array(lines[1:], dtype=np.int64)
    width = len(header)
    raise_problems(
        [_width_problem(path, line, row, width) for line, row in zip(lines[1:], rows, strict=True) if len(row) != width]
    )
    if not rows:
        raise InputError(Problem(message="has a header but no rows", file=str(path), hint="Add at least one row"))
    places = {name: header.index(name) for name in names if name in header}
    columns = {name: [row[place] for row in rows] for name, place in places.items()}
    return RawTable(header, columns, numbers)


def _check_header(path: Path, header: Sequence[str], line: int) -> None:
    problems = []
    for position, name in enumerate(header):
        where = f"column {position + 1} of the header"
        if not name:
            hint = "Remove the trailing comma" if position == len(header) - 1 else "Name every column"
            problems.append(Problem(message=f"{where} has no name", file=str(path), line=line, hint=hint))
        elif name in header[:position]:
            problems.append(
                Problem(
                    message=f"{where} repeats the name {name!r}", file=str(path), line=line, hint="Rename one of them"
                )
            )
    if all(cells.is_number(name) for name in header):
        problems = [
            Problem(message="the first line holds numbers", file=str(path), line=line, hint="Add a header line")
        ]
    raise_problems(problems)


def _width_problem(path: Path, line: int, row: Sequence[str], width: int) -> Problem:
    if len(row) == width + 1 and not row[-1].strip():
        hint = "Remove the trailing comma"
    elif len(row) > width:
        hint = "Put text and numbers that hold commas in quotes"
    else:
        hint = "Write an empty cell for a missing value"
    return Problem(
        message=f"has {len(row)} cells, the header has {width}",
        file=str(path),
        line=line,
        value=",".join(row)[:60],
        hint=hint,
    )


class _DuplicateKey(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return table


def _read_json_lines(path: Path, text: str) -> RawTable:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    problems: list[Problem] = []
    # Bare NaN and Infinity are not JSON, but every Python writer emits them for a diverged run.
    decoder = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_int=_parse_int)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line.strip())
        except _DuplicateKey as error:
            problems.append(
                Problem(
                    message=f"has the key {str(error)!r} twice", file=str(path), line=number, hint="Keep one of them"
                )
            )
        except (ValueError, RecursionError) as error:
            problems.append(
                Problem(
                    message=f"is not a JSON object: {error}", file=str(path), line=number, hint="One object per line"
                )
            )
        else:
            if isinstance(row, dict):
                rows.append(row)
                lines.append(number)
            else:
                problems.append(
                    Problem(message="is not a JSON object", file=str(path), line=number, hint="One object per line")
                )
    raise_problems(problems)
    header = tuple(dict.fromkeys(key for row in rows for key in row))
    columns = {name: [row.get(name) for row in rows] for name in header}
    return RawTable(header, columns, np.array(lines, dtype=np.int64))


def _parse_int(digits: str) -> int | float:
    # Python refuses to parse integers of more than 4300 digits; as doubles they are infinite anyway.
    return int(digits) if len(digits) < 400 else math.copysign(math.inf, -1 if digits[0] == "-" else 1)


def _read_parquet(path: Path, content: bytes, names: Iterable[str]) -> RawTable:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        header = tuple(file.schema_arrow.names)
        table = file.read(columns=[name for name in names if name in header])
    except (pa.ArrowException, OSError) as error:
        raise InputError(Problem(message=f"is not a readable Parquet file: {error}", file=str(path))) from None
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise InputError(
            Problem(message=f"has the column {repeated[0]!r} twice", file=str(path), hint="Rename one of them")
        )
    if table.num_rows == 0 and file.metadata.num_rows == 0:
        raise InputError(Problem(message="has columns but no rows", file=str(path), hint="Add at least one row"))
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        columns[name] = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return RawTable(header, columns, np.arange(1, file.metadata.num_rows + 1))
