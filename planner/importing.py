"""Runs made elsewhere: rows of a results table -> attachments of a study, each oddity an error or a coded warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner import cells, exports, rawtables, tables
from planner.errors import InputError, Problem
from planner.records import Design, RunState
from planner.spec import StudySpec, check_response
from planner.spec.checks import near

STATE_WORDS: Mapping[str, RunState] = {
    **{state.value: state for state in RunState},
    "complete": RunState.COMPLETED,
    "finished": RunState.COMPLETED,
    "done": RunState.COMPLETED,
    "success": RunState.COMPLETED,
    "succeeded": RunState.COMPLETED,
    "crashed": RunState.FAILED,
    "killed": RunState.FAILED,
    "oom": RunState.OUT_OF_MEMORY,
    "timeout": RunState.TIMED_OUT,
    "pending": RunState.SUBMITTED,
}


@dataclass(frozen=True, kw_only=True)
class ImportedRows:
    """Rows to attach, each a dictionary of the fields of an attachment: design, response, cost, se, successes,
    trials, curve, source.  A response of NaN stands for a diverged run.  Iterates over `rows`.
    """

    rows: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    skipped: Mapping[str, int]  # warning code -> number of rows left out

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def import_rows(
    spec: StudySpec,
    path: str | Path,
    *,
    domain: str | None = None,
    where: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> ImportedRows:
    """Reads finished runs from a CSV, Parquet or JSON-lines file.

    Columns are found by name: the axes, the response, and if present domain (or the domains' factors), cost, cost_unit,
    se, trials, successes, seed, run or curve, schedule_complete, state, and how an axis is counted (convention).

    Args:
        spec: the study they are for.
        path: the file.
        domain: domain of every row, instead of a column.
        where: values that a row must have to be taken, by column.
        columns: the file's name for one of ours, such as {"N": "n_params"}.

    Raises:
        InputError: what makes the file unreadable, missing columns, or values that cannot be meant, with their lines.
    """
    return _Importer(spec, Path(path), domain, dict(where or {}), dict(columns or {})).read()


class _Importer:
    """One import: the table, the names of its columns, and the problems and skipped rows met so far."""

    def __init__(
        self, spec: StudySpec, path: Path, domain: str | None, where: Mapping[str, Any], columns: Mapping[str, str]
    ) -> None:
        self.spec = spec
        self.columns = columns
        self.problems: list[Problem] = []
        self.skipped: dict[str, list[int]] = {}
        self.unpriced: list[int] = []
        self.domain = domain
        if domain is not None:
            spec.domain_index(domain)
        response = spec.response
        self.se = self._name(response.se or "se")
        self.trials = self._name(response.trials if isinstance(response.trials, str) else "trials")
        self.response = self._name(response.name)
        self.pool_domain = spec.pool.domain if spec.pool is not None else None
        filter_numbers, filter_texts = tables.filter_columns(where)
        axes = [self._name(name) for name in spec.axis_names]
        fixed = [self._name(axis.name) for axis in spec.declared_axes if axis.low is not None and axis.low == axis.high]
        extras = [self.se, self.trials, *(self._name(name) for name in ("cost", "successes", "seed"))]
        texts = [self._name(name) for name in ("domain", "run", "curve", "run_id", "schedule_complete", "state")]
        factors = list(dict.fromkeys(key for d in spec.declared_domains for key in d.factors))
        texts += [name for name in (self.pool_domain, *factors) if name is not None]
        extras += [exports.STEP]
        texts += [self._name(name) for name in exports.extra_columns(spec)]
        table = tables.read_table(
            path,
            numeric=[*axes, self.response, *extras, *filter_numbers],
            text=[*texts, *filter_texts],
            optional=[*fixed, *extras, *texts, self.response],
        )
        table, unknown = exports.convert(spec, table, cost=self._name("cost"), name=self._name)
        self.problems += unknown
        self.factors = [name for name in factors if name in table]
        if self.response not in table and not (self._name("successes") in table and self.trials in table):
            hint = near(self.response, table.header)
            raise InputError(Problem(message=f"has no column {self.response!r}", file=str(path), hint=hint))
        keep = tables.matches(table, where)
        if not keep.any():
            raise InputError(f"{path}: no row has {dict(where)}")
        table = table.take(np.flatnonzero(keep))
        runs = [self._name(name) for name in ("run", "curve", "run_id")]
        designs = [self._name("domain"), self._name("seed"), *self.factors, *axes]
        keep, self.warnings = exports.ends_of_curves(table, runs, designs, self.response)
        self.table = table.take(np.flatnonzero(keep))

    def _name(self, ours: str) -> str:
        return self.columns.get(ours, ours)

    def read(self) -> ImportedRows:
        rows: list[dict[str, Any]] = []
        seen: dict[str, list[dict[str, Any]]] = {}
        replicates: list[int] = []
        for index in range(len(self.table)):
            row = self._row(index)
            if row is None:
                continue
            design: Design = row["design"]
            earlier = seen.setdefault(design.key(), [])
            if any(_same_result(row, other) for other in earlier):
                self._skip("W:duplicate_row", index)
                continue
            earlier.append(row)
            if len(earlier) > 1:
                replicates.append(index)
                row = {**row, "design": _next_seed(design, seen)}
                seen[row["design"].key()] = [row]
            rows.append(row)
        rawtables.raise_problems(self.problems)
        warnings = [*self.table.warnings, *self.warnings, *self._skip_warnings()]
        if replicates:
            lines = tables.show_lines(self.table.lines[replicates])
            warnings.append(f"W:replicate_row same design, other result: kept under the next free seed, {lines}")
        if self.unpriced:
            lines = tables.show_lines(self.table.lines[self.unpriced])
            warnings.append(f"W:no_cost no cost given, and the study cannot price these runs: taken as 0, {lines}")
        warnings += self._outside_warnings()
        if not rows:
            reasons = "; ".join(f"{len(lines)} rows {SKIP_REASONS[code]}" for code, lines in self.skipped.items())
            raise InputError(f"{self.table.path}: no row can be imported: {reasons}")
        return ImportedRows(
            rows=tuple(rows),
            warnings=tuple(warnings),
            skipped={code: len(lines) for code, lines in self.skipped.items()},
        )

    def _row(self, index: int) -> dict[str, Any] | None:
        """One attachment; None when the row is skipped or has a problem, which is then on record."""
        num_problems = len(self.problems)
        state = self._state(index)
        if not self._is_complete(index):
            self._skip("W:schedule_incomplete", index)
            return None
        if state not in (None, RunState.COMPLETED, RunState.DIVERGED):
            self._skip("W:not_finished", index)
            return None
        successes, trials = self._count("successes", index), self._count(self.trials, index)
        response = self._response(index, state, successes, trials)
        if response is None:
            self._skip("W:missing_response", index)
            return None
        axes = self._axes(index)
        domain = self._domain(index)
        se = self._number(self.se, index)
        if se is not None and not (np.isfinite(se) and se > 0):
            self._refuse(index, self.se, se, "a standard error must be finite and greater than 0", "Leave it empty")
        seed = self._number(self._name("seed"), index) or 0.0
        if not (np.isfinite(seed) and seed == np.floor(seed) and seed >= 0):
            self._refuse(index, self._name("seed"), seed, "a seed must be a whole number, 0 or more", "Correct it")
        if len(self.problems) > num_problems:
            return None
        design = Design(domain=domain, axes=axes, seed=int(seed))
        cost = self._cost(index, design)
        if len(self.problems) > num_problems:
            return None
        return {
            "design": design,
            "response": response,
            "cost": cost,
            "se": se,
            "successes": successes,
            "trials": trials,
            "curve": self._text("curve", index) or self._text("run", index) or None,
            "source": f"{self.table.path.name}:{int(self.table.lines[index])}",
        }

    def _response(
        self, index: int, state: RunState | None, successes: float | None, trials: float | None
    ) -> float | None:
        """The response in raw units, NaN for a diverged run, None where the file says nothing."""
        if state is RunState.DIVERGED:
            return float("nan")
        if self.response in self.table and not self.table.blank[self.response][index]:
            value = float(self.table[self.response][index])
        elif successes is not None and trials:
            value = successes / trials
        else:
            return None
        complaint = check_response(self.spec, value)
        if complaint is not None:
            self._refuse(index, self.response, value, complaint.removeprefix(f"{self.spec.response.name}: "))
        if successes is not None and trials is not None and successes > trials:
            hint = f"There are {trials:g} trials"
            self._refuse(index, self._name("successes"), successes, "more successes than trials", hint)
        return value

    def _axes(self, index: int) -> dict[str, float]:
        axes = {}
        for axis in self.spec.declared_axes:
            name = self._name(axis.name)
            if name not in self.table:
                axes[axis.name] = float(axis.low or 0.0)  # an axis of one value
                continue
            value = float(self.table[name][index])
            axes[axis.name] = value
            if np.isnan(value):
                self._refuse(index, name, "", "the axis value is missing", "Fill it in")
            elif np.isinf(value):
                self._refuse(index, name, value, "the axis value is infinite", "Correct it")
            elif not axis.has_room_for(value):
                hint = 'Correct it, or write scale = "linear" for this axis'
                self._refuse(index, name, value, "an axis on a log scale must exceed 0", hint)
            elif axis.integer and value != np.floor(value):
                self._refuse(index, name, value, "the axis is integer", "Correct it, or remove integer = true")
        return axes

    def _domain(self, index: int) -> str:
        names = self.spec.domain_names
        if self.domain is not None:
            return self.domain
        for column in (self._name("domain"), self.pool_domain):
            if column is not None and column in self.table:
                text = str(self.table[column][index])
                if text not in names:
                    hint = near(text, names)
                    self._refuse(index, column, text, "is not a domain of the study", hint[:1].upper() + hint[1:])
                return text
        if len(names) == 1:
            return names[0]
        return self._domain_of_factors(index)

    def _domain_of_factors(self, index: int) -> str:
        given = {name: str(self.table[name][index]) for name in self.factors}
        found = [d.name for d in self.spec.domains if all(d.factors.get(key) == value for key, value in given.items())]
        if len(found) == 1:
            return found[0]
        known = ", ".join(self.spec.domain_names[:10])
        if not given:
            rule, hint = "the study has several domains and the file names none", f"Add a column domain: {known}"
        elif found:
            rule, hint = f"factors {given} fit several domains", f"Add a column domain with one of {', '.join(found)}"
        else:
            rule, hint = f"no domain has factors {given}", f"Known domains: {known}"
        self._refuse(index, "domain", "", rule, hint)
        return ""

    def _cost(self, index: int, design: Design) -> float:
        column = self._name("cost")
        cost = self._number(column, index)
        if cost is not None:
            if not (np.isfinite(cost) and cost >= 0):
                self._refuse(
                    index, column, cost, "a cost must be finite and not negative", "Correct it, or leave it empty"
                )
            return cost
        try:
            return self.spec.cost_of(design.domain, design.axes)
        except InputError:
            self.unpriced.append(index)
            return 0.0

    def _state(self, index: int) -> RunState | None:
        word = self._text("state", index).casefold().replace(" ", "_").replace("-", "_")
        if not word or word in cells.MISSING_WORDS:
            return None
        if word not in STATE_WORDS:
            hint = near(word, list(STATE_WORDS))
            self._refuse(index, self._name("state"), word, "is not a run state", hint[:1].upper() + hint[1:])
            return None
        return STATE_WORDS[word]

    def _is_complete(self, index: int) -> bool:
        text = self._text("schedule_complete", index)
        try:
            return cells.read_flag(text) is not False
        except ValueError:
            column = self._name("schedule_complete")
            self._refuse(index, column, text, "must be true or false", "Write true or false")
            return True

    def _count(self, column: str, index: int) -> float | None:
        count = self._number(self._name(column), index)
        if count is not None and not (np.isfinite(count) and count >= 0 and count == np.floor(count)):
            self._refuse(index, column, count, "must be a whole number, 0 or more", "Correct it")
            return None
        default = self.spec.response.trials
        return float(default) if count is None and column == self.trials and isinstance(default, int) else count

    def _number(self, column: str, index: int) -> float | None:
        if column not in self.table or np.isnan(self.table[column][index]):
            return None
        return float(self.table[column][index])

    def _text(self, ours: str, index: int) -> str:
        name = self._name(ours)
        return str(self.table[name][index]) if name in self.table else ""

    def _refuse(self, index: int, column: str, value: object, rule: str, hint: str = "") -> None:
        self.problems.append(self.table.problem(index, column, value, rule, hint))

    def _skip(self, code: str, index: int) -> None:
        self.skipped.setdefault(code, []).append(index)

    def _skip_warnings(self) -> Iterator[str]:
        for code, rows in self.skipped.items():
            lines = tables.show_lines(self.table.lines[rows])
            yield f"{code} {len(rows)} rows {SKIP_REASONS[code]}, {lines}"

    def _outside_warnings(self) -> Iterator[str]:
        for axis in self.spec.declared_axes:
            name = self._name(axis.name)
            if name in self.table and axis.low is not None and axis.high is not None:
                count = int(((self.table[name] < axis.low) | (self.table[name] > axis.high)).sum())
                if count:
                    yield f"W:outside_bounds {count} rows have {axis.name} outside [{axis.low:g}, {axis.high:g}]; kept"


SKIP_REASONS = {
    "W:duplicate_row": "repeat an earlier row with its result and seed; counted once",
    "W:schedule_incomplete": "stopped before the end of their schedule (schedule_complete is false); left out",
    "W:not_finished": "have a state other than completed or diverged; left out",
    "W:missing_response": "have no response; left out (write NaN or state = diverged for a diverged run)",
}


def _same_result(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows of one design and seed report the same observation; two divergences do."""
    keys = ("response", "se", "successes", "trials")
    return all(row[key] == other[key] or (row[key] != row[key] and other[key] != other[key]) for key in keys)


def _next_seed(design: Design, taken: Mapping[str, object]) -> Design:
    seed = design.seed
    while (replica := Design(domain=design.domain, axes=design.axes, seed=seed)).key() in taken:
        seed += 1
    return replica


__all__ = ["ImportedRows", "import_rows"]
