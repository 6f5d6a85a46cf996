"""Rows of the pool file (and of files of prediction targets) as arrays; read only when something needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import exports, rawtables, tables
from planner.errors import InputError, Problem
from planner.spec.checks import near

if TYPE_CHECKING:
    from planner.spec.models import StudySpec


@dataclass(frozen=True, kw_only=True)
class PoolRows:
    """Rows that `where` selects.  R rows, A axes in the order of the study."""

    domain_names: tuple[str, ...]  # what `domain` counts
    domain: np.ndarray  # (R,) int64
    x: np.ndarray  # (R, A) float64, raw units
    cost: np.ndarray | None  # (R,) float64 > 0, when the study takes its price from a column
    row: np.ndarray  # (R,) int64, row of the file from 0, header not counted
    warnings: tuple[str, ...]

    def prices(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The column's price of designs (C,) and (C, A); NaN where a design is not a row of the pool."""
        assert self.cost is not None
        if (self.domain < 0).all():
            domain = np.full(len(x), -1)  # every row stands for every domain
        keys, order = np.unique(design_keys(self.domain, self.x), return_index=True)
        wanted = design_keys(domain, x)
        position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[position] == wanted, self.cost[order[position]], np.nan)


def design_keys(domain: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One sortable, comparable item per design, (C,): equal exactly where domain and all axis values are."""
    # Adding 0.0 turns -0.0 into 0.0, whose bytes differ.
    packed = np.column_stack([np.asarray(domain, dtype=np.float64), np.asarray(x, dtype=np.float64)]) + 0.0
    packed = np.ascontiguousarray(packed)
    return packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).ravel()


def read_pool(spec: StudySpec) -> PoolRows:
    """The study's pool.  Raises `InputError` for a study without pool file, or with mistakes in it."""
    pool = spec.pool
    if pool is None or pool.file is None:
        raise InputError("pool: this study has no pool file; add [pool] with file, or give low and high for every axis")
    declared = [domain.name for domain in spec.declared_domains]
    rows = read_designs(
        spec, file=pool.file, where=pool.where, declared=declared, cost_column=spec.cost.column, section="pool"
    )
    return rows if spec.cost.column is not None else replace(rows, cost=None)


def read_designs(
    spec: StudySpec,
    *,
    file: str,
    where: Mapping[str, Any],
    declared: Sequence[str],
    cost_column: str | None,
    section: str,
    optional: Sequence[str] = (),
) -> PoolRows:
    """Designs of a table: those of `where`, inside the declared bounds when they are the pool.

    Without declared domains the names come from the domain column, in order of appearance; a table without that
    column stands for the only domain, and row `domain` is -1 where several are declared.

    Raises:
        InputError: missing columns, cells that are no numbers, missing or infinite axis values, zero or less on a log
            axis, costs that are not positive, undeclared domains, no rows left; each by line.
    """
    column = spec.pool.domain if spec.pool is not None else None
    filter_numbers, filter_texts = tables.filter_columns(where)
    numeric = [*spec.axis_names, *([cost_column] if cost_column is not None else []), *filter_numbers]
    extra = exports.extra_columns(spec)
    text = [*([column] if column is not None else []), *filter_texts, *extra]
    table = tables.read_table(spec.resolve(file), numeric=numeric, text=text, optional=[*optional, *extra])
    table, unknown = exports.convert(spec, table, cost=cost_column or "")
    keep = tables.matches(table, where)
    if not keep.any():
        raise InputError(_nothing_selected(table, where, f"{section}.where"))
    warnings = list(table.warnings)
    if section == "pool":
        inside = _inside_bounds(spec, table)
        outside = int((keep & ~inside).sum())
        if outside:
            warnings.append(f"W:outside_bounds {file}: {outside} rows lie outside the axes' low and high; left out")
        keep &= inside
        if not keep.any():
            raise InputError(f"pool: no row of {file} lies within the axes' low and high; widen them")
    row = np.flatnonzero(keep)
    table = table.take(row)
    x = np.column_stack([table[name] for name in spec.axis_names])
    problems = [*unknown, *_axis_problems(spec, table, x)]
    cost = None
    if cost_column is not None and cost_column in table:
        cost = table[cost_column]
        problems += _cost_problems(table, cost_column, cost)
    names, domain, domain_problems = _domains(table, column if column in table else None, declared)
    rawtables.raise_problems(sorted(problems + domain_problems, key=lambda problem: problem.line or 0))
    return PoolRows(domain_names=names, domain=domain, x=x, cost=cost, row=row, warnings=tuple(warnings))


def _inside_bounds(spec: StudySpec, table: tables.Table) -> np.ndarray:
    """Rows within the declared bounds; a missing value counts as inside, so that it is reported."""
    inside = np.ones(len(table), dtype=bool)
    for axis in spec.declared_axes:
        values = table[axis.name]
        if axis.low is not None:
            inside &= ~(values < axis.low) | ((values == 0) & (axis.source_of is not None))
        if axis.high is not None:
            inside &= ~(values > axis.high)
    return inside


def _axis_problems(spec: StudySpec, table: tables.Table, x: np.ndarray) -> list[Problem]:
    problems = []
    for index, axis in enumerate(spec.declared_axes):
        values = x[:, index]
        for row in np.flatnonzero(~np.isfinite(values))[: rawtables.MAX_PROBLEMS + 1]:
            what = "is missing" if np.isnan(values[row]) else "is infinite"
            problems.append(table.problem(row, axis.name, "", f"the axis value {what}", "Fill it in, or select rows"))
        if axis.scale == "log":
            low = values <= 0 if axis.source_of is None else values < 0
            for row in np.flatnonzero(low)[: rawtables.MAX_PROBLEMS + 1]:
                hint = 'Write scale = "linear" for this axis, or low above 0 to leave such rows out'
                problems.append(
                    table.problem(row, axis.name, f"{values[row]:g}", "an axis on a log scale must exceed 0", hint)
                )
        if axis.integer:
            for row in np.flatnonzero(np.isfinite(values) & (values != np.floor(values)))[: rawtables.MAX_PROBLEMS + 1]:
                problems.append(
                    table.problem(row, axis.name, f"{values[row]:g}", "the axis is integer", "Remove integer = true")
                )
    return problems


def _cost_problems(table: tables.Table, column: str, cost: np.ndarray) -> list[Problem]:
    bad = np.flatnonzero(~(np.isfinite(cost) & (cost > 0)))
    return [
        table.problem(row, column, f"{cost[row]:g}", "a cost must be finite and greater than 0", "Correct it")
        for row in bad[: rawtables.MAX_PROBLEMS + 1]
    ]


def _domains(
    table: tables.Table, column: str | None, declared: Sequence[str]
) -> tuple[tuple[str, ...], np.ndarray, list[Problem]]:
    """Domain names, the index of each row, and rows whose domain is missing or not declared."""
    if column is None:
        names = tuple(declared) or ("default",)
        return names, np.full(len(table), -1 if len(names) > 1 else 0, dtype=np.int64), []
    texts = table[column].tolist()
    names = tuple(declared) or tuple(name for name in dict.fromkeys(texts) if name)
    index = {name: i for i, name in enumerate(names)}
    domain = np.fromiter((index.get(text, -1) for text in texts), dtype=np.int64, count=len(texts))
    problems = []
    seen: set[str] = set()
    for row in np.flatnonzero(domain < 0):
        if texts[row] in seen:
            continue
        seen.add(texts[row])
        rule = "is not a declared domain" if texts[row] else "the domain is missing"
        hint = near(texts[row], names)
        problems.append(table.problem(row, column, texts[row], rule, hint[:1].upper() + hint[1:]))
    return names, domain, problems


def _nothing_selected(table: tables.Table, where: Mapping[str, Any], key: str) -> Problem:
    held = {}
    for name in where:
        values = list(dict.fromkeys(table[name].tolist()))
        held[name] = ", ".join(repr(value) for value in values[:8]) + (", ..." if len(values) > 8 else "")
    hint = "; ".join(f"column {name!r} holds {values}" for name, values in held.items())
    return Problem(message="selects no row", file=str(table.path), key=key, value=str(dict(where)), hint=hint)
