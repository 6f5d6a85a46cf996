"""Cells of a table: each is shown and appended to a CSV file as it ends, and not run again when it is found there."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.active import Desk, buy_until_done, open_desk
from benchmarks.policies import POLICIES
from benchmarks.problems import Problem
from planner.errors import InputError

Row = dict[str, Any]


class Table:
    """The finished cells of one benchmark, on disk if `path` is given.

    Raises `InputError` for a file with other columns.
    """

    def __init__(self, path: Path | None, *, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path, self.columns, self.key = path, columns, key
        self.rows: list[Row] = [] if path is None else _read(path, columns)

    def missing(self, cells: Iterable[Row]) -> list[Row]:
        """Those of `cells` that are not finished."""
        known = {self._key_of(row) for row in self.rows}
        return [cell for cell in cells if self._key_of(cell) not in known]

    def add(self, row: Row, *, line: Callable[[Row], str] | None) -> None:
        """Keeps a finished cell and prints it: `line` of it, or without one a JSON object."""
        self.rows.append(row)
        if self.path is not None:
            _append(self.path, row, self.columns)
        print(json.dumps(_strict(row)) if line is None else line(row), flush=True)

    def _key_of(self, row: Row) -> tuple[str, ...]:
        return tuple(str(_text(row[name])) for name in self.key)


def choose(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named scenarios, all if no name is given.  Raises `InputError` for an unknown one."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"unknown scenario {', '.join(unknown)}; known: {', '.join(known)}")
    return list(names or known)


def spend(problem: Problem, cell: Mapping[str, Any]) -> tuple[Desk, Row]:
    """Lets the cell's policy spend its budget: the desk in the end, and what is to be told of the buying.

    `cell` has policy, budget, scope, rule and seed; the policy "passive" gets the whole pool.
    """
    desk = open_desk(problem, fraction=cell["budget"], scope=cell["scope"], rule=cell["rule"], seed=cell["seed"])
    total = float(desk.purses.sum())
    if cell["policy"] == "passive":
        desk.buy(range(len(problem.pool)))
    else:
        buy_until_done(desk, POLICIES[cell["policy"]])
    later = desk.seconds[1:] or desk.seconds
    return desk, {
        "num_runs": len(desk.bought),
        "spend": desk.spent / total if total > 0 else float("nan"),
        "steps": desk.steps,
        "seconds_per_step": float(np.median(later)) if later else 0.0,
        "seconds_first": desk.seconds[0] if desk.seconds else 0.0,
    }


def _read(path: Path, columns: Sequence[str]) -> list[Row]:
    if not path.exists():
        return []
    text = path.read_bytes()
    if not text.endswith(b"\n"):
        # What was being written when the process ended: the next row must not be glued to it.
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is not None and list(reader.fieldnames) != list(columns):
            raise InputError(f"{path} has other columns than this table: name another file with --output")
        return [{key: _number(value) for key, value in row.items()} for row in reader]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _append(path: Path, row: Row, columns: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        writer.writerow({key: _text(value) for key, value in row.items()})
        file.flush()
        os.fsync(file.fileno())


def _text(value: Any) -> Any:
    """A value as it is written, so that a cell is known again: a budget of 1.0 is read back as 1."""
    return f"{value:.6g}" if isinstance(value, float) else value


def _strict(row: Row) -> Row:
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
