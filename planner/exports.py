"""What tables of others hold beside plain numbers: ways of counting, units of cost, and the points of curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import Problem
from planner.tables import Table, show_lines

if TYPE_CHECKING:
    from planner.spec import StudySpec
    from planner.spec.axis import AxisSection

COUNTED = ("parameters", "active_parameters")  # roles of which everybody counts something else
COST_UNIT = "cost_unit"
CONVENTION = "convention"
# Weights & Biases numbers the rows of a history so; `run.history()` gives this many of them, a sample.
STEP = "_step"
SAMPLED_ROWS = 500


def extra_columns(spec: StudySpec) -> list[str]:
    """Text columns that say how another column is counted: `AXIS_convention`, `convention` and `cost_unit`."""
    return [COST_UNIT, CONVENTION, *(f"{axis.name}_{CONVENTION}" for axis in spec.declared_axes)]


def convert(
    spec: StudySpec, table: Table, *, cost: str, name: Callable[[str], str] = str
) -> tuple[Table, list[Problem]]:
    """The table with every value as the study counts it, and cells that it has no conversion for.

    Args:
        cost: the table's column of costs.
        name: the table's name of a column of ours.
    """
    columns = dict(table.columns)
    problems: list[Problem] = []
    counted = [axis for axis in spec.declared_axes if axis.convention is not None or axis.role in COUNTED]
    for axis in spec.declared_axes:
        own = [name(f"{axis.name}_{CONVENTION}"), *([name(CONVENTION)] if counted == [axis] else [])]
        for said in [column for column in own if column in table]:
            if name(axis.name) in table:
                factor, wrong = _factors(table, said, axis.convention, axis.conversions, _axis_hint(axis))
                columns[name(axis.name)] = columns[name(axis.name)] * factor
                problems += wrong
    if name(COST_UNIT) in table and cost in table:
        hint = f'Say in [cost] what one is in {spec.cost.unit}: conversions = {{ "WORD" = NUMBER }}'
        factor, wrong = _factors(table, name(COST_UNIT), spec.cost.unit, spec.cost.conversions, hint)
        columns[cost] = columns[cost] * factor
        problems += wrong
    return replace(table, columns=columns), problems


def _axis_hint(axis: AxisSection) -> str:
    if axis.convention is None:
        return f'Say how the study counts: convention = "WORD" in axis {axis.name}, and conversions for others'
    return (
        f"The study counts {axis.name} as {axis.convention!r}: give what the others are multiplied by,"
        f' conversions = {{ "WORD" = NUMBER }}, or another column with --column {axis.name}=NAME'
    )


def _factors(
    table: Table, column: str, own: str | None, conversions: Mapping[str, float], hint: str
) -> tuple[np.ndarray, list[Problem]]:
    """What each row is multiplied by, (R,), and the first row of every word that has no conversion."""
    words, where = np.unique(table[column], return_inverse=True)
    factors = np.ones(len(words))
    problems = []
    for index, word in enumerate(words.tolist()):
        if word in conversions:
            factors[index] = conversions[word]
        elif word not in ("", own):
            first = int(np.flatnonzero(where == index)[0])
            problems.append(table.problem(first, column, word, "there is no conversion", hint.replace("WORD", word)))
    return factors[where], problems


def ends_of_curves(
    table: Table, runs: Sequence[str], designs: Sequence[str], response: str
) -> tuple[np.ndarray, list[str]]:
    """Which rows are the last of their run in the history of a tracker, (R,) bool, and what to say of the others.

    Runs are told apart by the first of the columns `runs` that names one in every row, else by the columns `designs`.
    A last row without a response is passed over.
    """
    keep = np.ones(len(table), dtype=bool)
    if STEP not in table:
        return keep, []
    group = _groups(table, runs, designs)
    step = np.where(np.isnan(table[STEP]), -np.inf, table[STEP])
    blank = np.isnan(table[response]) & table.blank[response] if response in table else np.zeros(len(table), dtype=bool)
    order = np.lexsort((step, ~blank, group))
    last = np.append(group[order][1:] != group[order][:-1], True)
    keep[:] = False
    keep[order[last]] = True
    warnings = []
    if not keep.all():
        lines = show_lines(table.lines[~keep])
        warnings.append(
            f"W:curve_point {int((~keep).sum())} rows are earlier points ({STEP}) of a run; left out, {lines}"
        )
    num_sampled = int((np.bincount(group) == SAMPLED_ROWS).sum())
    if num_sampled:
        warnings.append(
            f"W:sampled_export {num_sampled} runs have exactly {SAMPLED_ROWS} rows, as run.history() gives: a sample"
            " whose last row need not be the run's. Export all rows, with run.scan_history()"
        )
    return keep, warnings


def _groups(table: Table, runs: Sequence[str], designs: Sequence[str]) -> np.ndarray:
    """A number for each run, (R,)."""
    for key in runs:
        if key in table and (table[key] != "").all():
            return np.unique(table[key], return_inverse=True)[1]
    parts = [np.zeros(len(table), dtype=np.int64)]
    for key in [key for key in designs if key in table]:
        parts.append(
            np.unique(np.nan_to_num(table[key]) if table[key].dtype.kind == "f" else table[key], return_inverse=True)[1]
        )
    return np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].ravel()
