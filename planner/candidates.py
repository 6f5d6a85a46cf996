"""The designs worth considering: rows of the pool or points that fill the box; which can be bought; what to predict."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner import continuing, costs, limits, space_filling
from planner.errors import InputError
from planner.hearing import NOT_AGAIN
from planner.records import STATE_RULES, Design, DesignTable, RunRecord, RunState, StudyState
from planner.spec import Axis, StudySpec
from planner.spec.poolfile import PoolRows, design_keys, read_designs
from planner.spec.sections import Target

MIN_DESIGNS_PER_DOMAIN = 16

# A design that ended badly this often is left alone, whatever its state allows.
MAX_BAD_ENDS = 3

# More of these does not mean a larger run, so "above the pool" leaves them in the middle of their range.
NOT_SCALED_ROLES = frozenset(
    {"learning_rate", "batch_size", "sparsity", "precision", "mixture", "reward_density", "routing_frequency"}
)
EXTRAPOLATION_FACTORS = (1.0, 2.0, 4.0)
MAX_GRID_AXES = 3


def all_designs(spec: StudySpec) -> DesignTable:
    """Every design of the study, bought or not, affordable or not: distinct rows of the pool, or a generated set.

    Raises `InputError` for mistakes in the pool file, or a box without any design of finite positive cost.
    """
    return spec.cached("all_designs", lambda: _pool_designs(spec) if _has_pool(spec) else _generated_designs(spec))


def spread_over_cost(designs: DesignTable, most: int) -> np.ndarray:
    """Indices of at most `most` designs, spread evenly over the ranks of their costs, in order (K,)."""
    order = np.argsort(designs.cost, kind="stable")
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return np.sort(order)


def candidate_designs(spec: StudySpec, state: StudyState) -> DesignTable:
    """The designs that may be bought now: cost within `per_run_max` and what remains, not run before.

    Costs are the declared ones as corrected by what the study's runs came to (`planner.costs`).

    Where the study allows runs to be gone on with, those designs come at the cost of the difference.  Designs that
    failed, diverged or ran out of memory are left out, and with the last those at least as large on every axis in the
    same domain.  May be empty; `explain_empty` says why.
    """
    designs = all_designs(spec)
    longer = continuing.offers(spec, state, designs)
    table = _priced(spec, designs if longer is None else continuing.merged(designs, longer.table), state)
    keep = table.cost <= min(spec.budget.per_run_max or math.inf, state.remaining)
    return table.take(np.flatnonzero(keep & ~_excluded(spec, table, state.runs.values())))


def _priced(spec: StudySpec, table: DesignTable, state: StudyState) -> DesignTable:
    model = costs.learn_costs(spec, state.runs.values())
    if model is None:
        return table
    return dataclasses.replace(table, cost=table.cost * model.factor(table.domain, table.cost))


def design_at(spec: StudySpec, table: DesignTable, index: int, *, seed: int = 0) -> Design:
    """One row of a table as a `Design`."""
    axes = dict(zip(spec.axis_names, table.x[index].tolist(), strict=True))
    return Design(domain=spec.domain_names[int(table.domain[index])], axes=axes, seed=seed)


def cost_range(spec: StudySpec) -> tuple[float, float]:
    """Costs of the cheapest and the dearest design of the study."""
    cost = all_designs(spec).cost
    return float(cost.min()), float(cost.max())


def cheapest_design(spec: StudySpec, state: StudyState | None = None) -> tuple[Design, float] | None:
    """The cheapest design and its cost, whatever the budget; with a state, among those not run yet, None if none."""
    table = all_designs(spec)
    if state is not None:
        table = _priced(spec, table, state)
        table = table.take(np.flatnonzero(~_excluded(spec, table, state.runs.values())))
    if not len(table):
        return None
    index = int(np.argmin(table.cost))
    return design_at(spec, table, index), float(table.cost[index])


def explain_empty(spec: StudySpec, state: StudyState) -> tuple[str, str]:
    """Why `candidate_designs` is empty: a code for the stop reason, and a sentence with the smallest useful budget."""
    unit = spec.cost.unit
    cheapest = cheapest_design(spec, state)
    if cheapest is None:
        return "pool_exhausted", f"every design has been run; {state.remaining:g} {unit} of {state.total:g} is unspent"
    cost = cheapest[1]
    if spec.budget.per_run_max is not None and cost > spec.budget.per_run_max:
        return (
            "per_run_max_too_small",
            f"the cheapest design left costs {cost:g} {unit}, budget.per_run_max is {spec.budget.per_run_max:g};"
            f" raise it to {cost:g}",
        )
    code = "budget_exhausted_for_pool" if state.spent + state.reserved > 0 else "budget_below_cheapest_run"
    return (
        code,
        f"the cheapest design left costs {cost:g} {unit}, and {state.remaining:g} of {state.total:g} remains;"
        f" the smallest budget.total that buys one more run is {state.spent + state.reserved + cost:g}",
    )


def target_points(spec: StudySpec) -> DesignTable:
    """Where the response is to be predicted: points and files of the prediction targets.

    Without a prediction or recipe target: at and above the largest designs of every domain.  Empty for a study that
    only asks for recipes.  `cost` is NaN where nothing prices a point.
    """
    return spec.cached("target_points", lambda: _target_points(spec))


def _has_pool(spec: StudySpec) -> bool:
    return spec.pool is not None and spec.pool.file is not None


def _over_domains(spec: StudySpec, x: np.ndarray, domain: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, ...]:
    """`x`, `domain`, `row` with rows of domain -1, which stand for every domain, written out for each."""
    if not (domain < 0).any():
        return x, domain, row
    count = len(spec.domain_names)
    repeats = np.where(domain < 0, count, 1)
    index = np.repeat(np.arange(len(x)), repeats)
    position = np.arange(len(index)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return x[index], np.where(domain[index] < 0, position, domain[index]), row[index]


def _pool_designs(spec: StudySpec) -> DesignTable:
    rows = spec.pool_rows
    x, domain, index = _over_domains(spec, rows.x, rows.domain, np.arange(len(rows.x)))
    _, first = np.unique(design_keys(domain, x), return_index=True)
    first.sort()
    num_repeated = len(x) - len(first)
    if num_repeated:
        text = (
            f"W:duplicate_row pool: {num_repeated} rows repeat the domain and axis values of another; one design each"
        )
        spec.cached("design_warnings", lambda: (text,))
    first = first[spec.within_limits(x[first])]
    if not len(first):
        raise InputError("limits: no row of the pool keeps to [[limits]]; widen them")
    x, domain, index = x[first], domain[first], index[first]
    cost = rows.cost[index] if rows.cost is not None else spec.costs(domain, x)
    row = rows.row[index]
    bad = np.flatnonzero(~(np.isfinite(cost) & (cost > 0)))
    if len(bad):
        axes = dict(zip(spec.axis_names, x[bad[0]].tolist(), strict=True))
        raise InputError(
            f"pool: row {row[bad[0]] + 1} with {axes} would cost {cost[bad[0]]:g} {spec.cost.unit}, as would"
            f" {len(bad) - 1} other rows; a cost must be finite and greater than 0. Add a constant term to"
            " [cost], or leave the rows out with pool.where"
        )
    return DesignTable(domain=domain, x=x, cost=cost, row=row)


def _generated_designs(spec: StudySpec) -> DesignTable:
    size = spec.pool.size if spec.pool is not None else 3000
    per_domain = max(MIN_DESIGNS_PER_DOMAIN, size // len(spec.domain_names))
    limit = min(spec.budget.total, spec.budget.per_run_max or math.inf)
    parts: dict[bytes, np.ndarray] = {}
    domains, points = [], []
    for index, name in enumerate(spec.domain_names):
        # Domains of equal cost get the same designs, which is what makes them comparable.
        key = spec.posynomial(name)[0].tobytes()
        if key not in parts:

            def cost_of(x: np.ndarray, index: int = index) -> np.ndarray:
                return spec.costs(np.array([index]), x)

            filled = space_filling.fill_box(spec.axes, size=per_domain, seed=spec.seed, cost_of=cost_of, limit=limit)
            parts[key] = limits.designs_within(spec, filled)
        points.append(parts[key])
        domains.append(np.full(len(parts[key]), index, dtype=np.int64))
    x, domain = np.concatenate(points), np.concatenate(domains)
    cost = spec.costs(domain, x)
    if not len(x):
        words = " and ".join(f"limits[{i}] ({each.words()})" for i, each in enumerate(spec.limits))
        raise InputError(
            f"{words}: no design of the box keeps to it on the values that axes may take; widen the limit, list values"
            " that meet it, or leave one of its axes without values, step or integer"
        )
    good = np.flatnonzero(np.isfinite(cost) & (cost > 0))
    if not len(good):
        raise InputError(
            "cost: no design of the box has a finite cost greater than 0; check [cost] terms and powers, and the limits"
        )
    return DesignTable(domain=domain[good], x=x[good], cost=cost[good], row=np.full(len(good), -1, dtype=np.int64))


def _excluded(spec: StudySpec, table: DesignTable, runs: Any) -> np.ndarray:
    """Which designs of the table may not be bought, (C,) bool."""
    names = {name: index for index, name in enumerate(spec.domain_names)}
    known = [run for run in runs if run.design.domain in names and set(spec.axis_names) <= run.design.axes.keys()]
    excluded = np.zeros(len(table), dtype=bool)
    if not known or not len(table):
        return excluded
    domain = np.array([names[run.design.domain] for run in known])
    x = np.array([[run.design.axes[name] for name in spec.axis_names] for run in known])
    closed = np.array([not _may_be_bought_again(run) for run in known])
    keys, order = _sorted_keys(spec, table)
    wanted = design_keys(domain[closed], x[closed])
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    excluded[order[position[keys[position] == wanted]]] = True
    for run, where, point in zip(known, domain, x, strict=True):
        if run.state is RunState.OUT_OF_MEMORY:
            excluded |= (table.domain == where) & (table.x >= point).all(axis=1)
    return excluded


def _sorted_keys(spec: StudySpec, table: DesignTable) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys of the table's designs and the position of each; kept for the table asked about at every turn."""

    def sort() -> tuple[np.ndarray, np.ndarray]:
        return np.unique(design_keys(table.domain, table.x), return_index=True)

    return spec.cached("design_order", sort) if table is all_designs(spec) else sort()


def _may_be_bought_again(run: RunRecord) -> bool:
    """Cancelled and lost runs say nothing of the design; a failed one would fail again as far as we know, and one that
    was stopped early was not worth finishing.
    """
    rule = STATE_RULES[run.state]
    # Where the checkpoint that it was to go on from was gone, nothing was tried.
    is_untried = run.parent is not None and NOT_AGAIN in run.message
    wanted = (run.state is not RunState.FAILED or is_untried) and not run.early_stop
    return rule.may_propose_again and wanted and sum(run.ends.values()) < MAX_BAD_ENDS


def _target_points(spec: StudySpec) -> DesignTable:
    parts = []
    wants_default = True
    for index, target in enumerate(spec.targets):
        if target.kind in ("prediction", "recipe"):
            wants_default = False
        if target.kind == "prediction":
            parts.append(_points_of(spec, target, index))
    if wants_default:
        parts.append(_with_costs(spec, *_above(spec, None)))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return DesignTable(domain=empty, x=np.zeros((0, len(spec.axis_names))), cost=np.zeros(0), row=empty)
    columns: Mapping[str, Sequence[np.ndarray]] = {
        name: [getattr(part, name) for part in parts] for name in ("domain", "x", "cost", "row")
    }
    return DesignTable(**{name: np.concatenate(arrays) for name, arrays in columns.items()})


def _points_of(spec: StudySpec, target: Target, index: int) -> DesignTable:
    """Points of one prediction target; without points and file those above the pool."""
    if target.file is not None:
        return _points_of_file(spec, target, target.file, index)
    if not target.points:
        return _with_costs(spec, *_above(spec, target.domain))
    x = np.array([spec.point({k: v for k, v in point.items() if k != "domain"}) for point in target.points])
    names = [point.get("domain", target.domain) for point in target.points]
    domain = np.array([-1 if name is None else spec.domain_index(name) for name in names], dtype=np.int64)
    return _with_costs(spec, *_over_domains(spec, x, domain, np.full(len(x), -1, dtype=np.int64)))


def _points_of_file(spec: StudySpec, target: Target, file: str, index: int) -> DesignTable:
    optional = [name for name in (spec.cost.column, spec.pool.domain if spec.pool is not None else None) if name]
    rows: PoolRows = read_designs(
        spec,
        file=file,
        where=target.where,
        declared=spec.domain_names,
        cost_column=spec.cost.column,
        section=f"targets[{index}]",
        optional=optional,
    )
    domain, x, row, cost = rows.domain, rows.x, rows.row, rows.cost
    if target.domain is not None:
        keep = np.flatnonzero((domain == spec.domain_index(target.domain)) | (domain < 0))
        domain = np.full(len(keep), spec.domain_index(target.domain), dtype=np.int64)
        x, row, cost = x[keep], row[keep], None if cost is None else cost[keep]
    if cost is not None and not (domain < 0).any():
        return DesignTable(domain=domain, x=x, cost=cost, row=row)
    return _with_costs(spec, *_over_domains(spec, x, domain, row))


def _with_costs(spec: StudySpec, x: np.ndarray, domain: np.ndarray, row: np.ndarray) -> DesignTable:
    try:
        cost = spec.costs(domain, x)
    except InputError:
        # Points off a pool that prices its rows alone: they are predicted, never bought.
        cost = np.full(len(x), np.nan)
    return DesignTable(domain=domain, x=x, cost=cost, row=row)


def _above(spec: StudySpec, domain: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points at and above the largest value of every axis that scales: x, domain, row.

    A grid of 1, 2 and 4 times `high` for up to three such axes; for more, one axis at a time and all together.  Axes
    on a linear scale, shares, and settings such as the learning rate stay in the middle of their range.
    """
    centre = np.array([_middle(spec, index, axis) for index, axis in enumerate(spec.axes)])
    scaled = [index for index, axis in enumerate(spec.axes) if _is_scaled(axis)]
    points = []
    for factors in _factor_sets(len(scaled)):
        point = centre.copy()
        for index, factor in zip(scaled, factors, strict=True):
            high = spec.axes[index].high * factor
            point[index] = round(high) if spec.axes[index].integer else high
        points.append(point)
    x = np.array(points)
    indices = range(len(spec.domain_names)) if domain is None else [spec.domain_index(domain)]
    domains = np.repeat(np.array(list(indices), dtype=np.int64), len(x))
    x = np.tile(x, (len(domains) // len(x), 1))
    return x, domains, np.full(len(x), -1, dtype=np.int64)


def _is_scaled(axis: Axis) -> bool:
    return axis.is_log and axis.simplex is None and axis.source_of is None and axis.role not in NOT_SCALED_ROLES


def _factor_sets(count: int) -> Iterator[tuple[float, ...]]:
    if count <= MAX_GRID_AXES:
        yield from itertools.product(EXTRAPOLATION_FACTORS, repeat=count)
        return
    for factor in EXTRAPOLATION_FACTORS:
        yield (factor,) * count
    for index in range(count):
        for factor in EXTRAPOLATION_FACTORS[1:]:
            yield tuple(factor if position == index else 1.0 for position in range(count))


def _middle(spec: StudySpec, index: int, axis: Axis) -> float:
    """The allowed value nearest the middle of an axis; equal shares within their bounds for a simplex group."""
    for members in spec.simplex_groups.values():
        if index in members:
            low, high = spec.low[list(members)], spec.high[list(members)]
            shares = space_filling.spread_shares(np.ones((1, len(members))), low, high)[0]
            return float(shares[members.index(index)])
    middle = math.sqrt(axis.low * axis.high) if axis.is_log else (axis.low + axis.high) / 2
    return float(space_filling.snap_axis(axis, np.array([middle]))[0])
