"""Which designs are considered, which may be bought, and where the response is to be predicted."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import candidates, space_filling
from planner.errors import InputError
from planner.records import Design, DesignTable, RunRecord, RunState, StudyState
from planner.spec import Axis, StudySpec, parse_study_spec, parse_study_toml
from planner.spec.templates import TEMPLATE_NAMES, render_template


def spec_of(**sections: Any) -> StudySpec:
    base: dict[str, Any] = {
        "study": {"name": "small"},
        "axes": [{"name": "N", "low": 1e6, "high": 1e9}, {"name": "D", "low": 1e8, "high": 1e11}],
        "cost": {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}}]},
        "budget": {"total": 1e21},
    }
    return parse_study_spec(base | sections)


def pool_of(path: Path, text: str, **sections: Any) -> StudySpec:
    path.write_text(text)
    raw = {"axes": [{"name": "N"}, {"name": "D"}], "pool": {"file": str(path), "domain": "group"}}
    return spec_of(**(raw | {"cost": {"column": "cost"}} | sections))


def state_of(spec: StudySpec, *runs: RunRecord, spent: float = 0.0, reserved: float = 0.0) -> StudyState:
    return StudyState(
        runs={run.run_id: run for run in runs},
        spent=spent,
        reserved=reserved,
        total=spec.budget.total,
        num_events=len(runs),
    )


def run_of(axes: dict[str, float], state: RunState, domain: str = "default", **fields: Any) -> RunRecord:
    design = Design(domain=domain, axes=axes, seed=fields.pop("seed", 0))
    return RunRecord(run_id=f"r{abs(hash(design))}", design=design, state=state, **fields)


def rows(table: DesignTable) -> set[tuple[float, ...]]:
    return {(float(d), *x) for d, x in zip(table.domain, table.x.tolist(), strict=True)}


def log_cube(spec: StudySpec, table: DesignTable) -> np.ndarray:
    """Positions between low (0) and high (1) of every axis on its own scale, (C, A)."""
    columns = []
    for index, axis in enumerate(spec.axes):
        scale = np.log if axis.is_log else np.asarray
        columns.append((scale(table.x[:, index]) - scale(axis.low)) / (scale(axis.high) - scale(axis.low)))
    return np.column_stack(columns)


# ---- generated designs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TEMPLATE_NAMES)
def test_generated_designs_are_allowed_distinct_and_priced(kind: str) -> None:
    spec = parse_study_toml(render_template(kind, "x"))
    table = candidates.all_designs(spec)

    assert 1000 < len(table) <= 3000
    assert len(rows(table)) == len(table)
    # Of a source one may buy nothing.
    is_nothing = (table.x == 0.0) & [axis.source_of is not None for axis in spec.axes]
    assert ((table.x >= spec.low) | is_nothing).all() and (table.x <= spec.high).all()
    assert spec.within_limits(table.x).all()
    assert table.cost == pytest.approx(spec.costs(table.domain, table.x)) and (table.row == -1).all()
    for index, axis in enumerate(spec.axes):
        column = table.x[:, index]
        if axis.values is not None:
            assert set(column) <= set(axis.values)
        if axis.integer:
            assert (column == np.round(column)).all()
    low = [0.0 if axis.source_of is not None else axis.low for axis in spec.axes]
    every = np.array(list(itertools.product(*zip(low, spec.high, strict=True))))
    corners = {tuple(x) for x in every[spec.within_limits(every)].tolist()}
    assert len(corners) > len(spec.axes)
    for domain in range(len(spec.domain_names)):
        assert corners <= {tuple(x) for x in table.x[table.domain == domain].tolist()}


def test_the_ends_of_an_axis_are_exact_however_many_digits_they_have() -> None:
    axes = [{"name": "N", "low": 1234567, "high": 987654321.5}, {"name": "D", "low": 1.23456e8, "high": 9.87654e10}]
    table = candidates.all_designs(spec_of(axes=axes))

    assert {1234567.0, 987654321.5} <= set(table.x[:, 0])
    assert {1.23456e8, 9.87654e10} <= set(table.x[:, 1])


def test_designs_fill_the_box_and_the_edge_of_the_affordable() -> None:
    spec = spec_of(budget={"total": 1e19, "per_run_max": 1e18})
    table = candidates.all_designs(spec)
    affordable = table.take(table.cost <= 1e18)

    assert len(affordable) > 0.8 * len(table)
    assert (affordable.cost > 0.9e18).sum() > 50
    # Every cell of a 6 x 6 grid over the log box, if affordable with some margin, holds a design.
    position = np.floor(log_cube(spec, affordable) * 5.999).astype(int)
    found = {tuple(cell) for cell in position.tolist()}
    for cell in itertools.product(range(6), repeat=2):
        top = spec.low * (spec.high / spec.low) ** ((np.array(cell) + 1) / 6)
        if spec.cost_of("default", dict(zip("ND", top, strict=True))) <= 1e18:
            assert cell in found


def test_a_thin_affordable_corner_is_still_filled() -> None:
    axes = [{"name": name, "low": 1.0, "high": 1e12} for name in "abcd"]
    cost = {"terms": [{"coefficient": 1, "powers": dict.fromkeys("abcd", 1)}]}
    spec = spec_of(axes=axes, cost=cost, budget={"total": 1e3})
    table = candidates.candidate_designs(spec, state_of(spec))

    assert len(table) > 500
    assert math.log10(table.cost.max() / table.cost.min()) > 2.5


def test_costs_over_many_decades_stay_finite() -> None:
    spec = spec_of(axes=[{"name": "N", "low": 1e3, "high": 1e12}, {"name": "D", "low": 1e3, "high": 1e12}])
    low, high = candidates.cost_range(spec)

    assert (low, high) == (6e6, 6e24)
    assert np.isfinite(np.log(candidates.all_designs(spec).cost)).all()


def test_a_discrete_box_is_listed_in_full() -> None:
    axes = [
        {"name": "n", "values": [4, 1, 2]},
        {"name": "m", "low": 2, "high": 11, "integer": True, "scale": "linear"},
        {"name": "k", "low": 0.5, "high": 1.5, "step": 0.25},
        {"name": "one", "low": 7, "high": 7},
    ]
    spec = spec_of(axes=axes, cost={"terms": [{"coefficient": 1, "powers": {"n": 1}}]})
    table = candidates.all_designs(spec)

    steps = (0.5, 0.75, 1.0, 1.25, 1.5)
    assert rows(table) == {(0.0, *x) for x in itertools.product((1.0, 2.0, 4.0), range(2, 12), steps, (7.0,))}


def test_size_bounds_the_number_of_designs() -> None:
    domains = [{"name": f"d{i}"} for i in range(4)]
    table = candidates.all_designs(spec_of(pool={"size": 400}, domains=domains))

    assert len(table) == 400
    assert np.bincount(table.domain).tolist() == [100] * 4
    first = {tuple(x) for x in table.x[table.domain == 0].tolist()}
    assert first == {tuple(x) for x in table.x[table.domain == 3].tolist()}


def test_a_dearer_domain_gets_designs_it_can_afford() -> None:
    cost = {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}, "domains": {"dear": 6e4}}]}
    spec = spec_of(domains=[{"name": "cheap"}, {"name": "dear"}], cost=cost, budget={"total": 1e20})
    table = candidates.candidate_designs(spec, state_of(spec))

    assert np.bincount(table.domain).min() > 1000


def test_designs_depend_on_the_seed_and_nothing_else() -> None:
    first, again = (candidates.all_designs(spec_of()) for _ in range(2))
    other = candidates.all_designs(spec_of(study={"name": "small", "seed": 1}))

    assert np.array_equal(first.x, again.x)
    assert rows(first) != rows(other)


def test_the_table_is_made_once_per_study() -> None:
    spec = spec_of()

    assert candidates.all_designs(spec) is candidates.all_designs(spec)


def test_shares_sum_to_one_and_reach_near_every_vertex() -> None:
    axes: list[dict[str, Any]] = [{"name": f"s{i}", "simplex": "mix", "role": "mixture"} for i in range(4)]
    axes[1] |= {"low": 0.1, "high": 0.5}
    axes.append({"name": "D", "low": 1e8, "high": 1e10})
    spec = spec_of(axes=axes, cost={"terms": [{"coefficient": 1, "powers": {"D": 1}}]})
    table = candidates.all_designs(spec)
    shares = table.x[:, :4]

    assert shares.sum(axis=1) == pytest.approx(np.ones(len(table)), abs=1e-9)
    assert (shares >= spec.low[:4]).all() and (shares <= spec.high[:4]).all()
    assert shares.max(axis=0) == pytest.approx([0.9, 0.5, 0.9, 0.9])
    assert (shares[:, 0] == 0).any()


def test_shares_in_steps() -> None:
    axes = [{"name": f"s{i}", "simplex": "mix", "step": 0.05} for i in range(3)]
    spec = spec_of(axes=axes, cost={"terms": [{"coefficient": 1}]})
    shares = candidates.all_designs(spec).x

    assert shares.sum(axis=1) == pytest.approx(np.ones(len(shares)), abs=1e-9)
    assert shares / 0.05 == pytest.approx(np.round(shares / 0.05), abs=1e-6)
    # All 21 * 22 / 2 mixtures of three shares in steps of 1/20 but a few.
    assert 200 < len(shares) <= 231


@given(
    weights=st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=5),
    low=st.lists(st.floats(0, 0.3), min_size=3, max_size=3),
    room=st.lists(st.floats(0.25, 0.7), min_size=3, max_size=3),
)
@settings(deadline=None, derandomize=True)
def test_spread_shares_keeps_bounds_and_sum(weights: Any, low: Any, room: Any) -> None:
    lows = np.array(low)
    highs = np.maximum(lows, np.minimum(1.0, lows + np.array(room)))
    if highs.sum() < 1:
        return
    shares = space_filling.spread_shares(np.array(weights), lows, highs)

    assert shares.sum(axis=1) == pytest.approx(np.ones(len(weights)), abs=1e-9)
    assert (shares >= lows - 1e-12).all() and (shares <= highs + 1e-12).all()


@given(values=st.lists(st.floats(1, 1000), min_size=1, max_size=8), step=st.sampled_from([0.1, 1.0, 7.0]))
@settings(deadline=None, derandomize=True)
def test_snapping_is_to_the_nearest_allowed_value_and_idempotent(values: list[float], step: float) -> None:
    axis = Axis(name="a", low=2.0, high=2.0 + 100 * step, step=step)
    allowed = axis.low + np.arange(101) * step
    snapped = space_filling.snap_axis(axis, np.array(values))

    nearest = np.abs(np.array(values)[:, None] - allowed).min(axis=1)
    assert np.abs(snapped - np.array(values)) == pytest.approx(nearest, abs=1e-9)
    assert space_filling.snap_axis(axis, snapped).tolist() == snapped.tolist()


def test_a_box_where_every_cost_is_zero_is_refused() -> None:
    axes = [{"name": "N", "low": 0, "high": 0, "scale": "linear"}]
    spec = spec_of(axes=axes, cost={"terms": [{"coefficient": 1, "powers": {"N": 1}}]})

    with pytest.raises(InputError, match="no design of the box has a finite cost greater than 0"):
        candidates.all_designs(spec)


# ---- what may be bought ---------------------------------------------------------------------------------------------


def test_only_what_fits_the_budget_is_a_candidate() -> None:
    spec = spec_of(budget={"total": 1e20, "per_run_max": 1e18})
    everything = candidates.all_designs(spec)

    fresh = candidates.candidate_designs(spec, state_of(spec))
    assert rows(fresh) == rows(everything.take(everything.cost <= 1e18))
    late = candidates.candidate_designs(spec, state_of(spec, spent=0.9e20, reserved=0.0995e20))
    assert rows(late) == rows(everything.take(everything.cost <= state_of(spec, spent=0.9995e20).remaining))
    assert 0 < len(late) < len(fresh)


@pytest.mark.parametrize(
    ("state", "fields", "offered"),
    [
        (RunState.PROPOSED, {}, False),
        (RunState.RUNNING, {}, False),
        (RunState.COMPLETED, {}, False),
        (RunState.COMPLETED, {"seed": 3}, False),
        (RunState.DIVERGED, {}, False),
        (RunState.FAILED, {}, False),
        (RunState.OUT_OF_MEMORY, {}, False),
        (RunState.TIMED_OUT, {}, False),
        (RunState.CANCELLED, {}, True),
        (RunState.LOST, {}, True),
        (RunState.LOST, {"ends": {"lost": 3}}, False),
    ],
)
def test_designs_that_were_run_are_offered_again_only_if_nothing_was_learned(
    state: RunState, fields: dict[str, Any], offered: bool
) -> None:
    spec = spec_of(domains=[{"name": "a"}, {"name": "b"}])
    design = candidates.design_at(spec, candidates.all_designs(spec), 7)
    run = run_of(dict(design.axes), state, domain="a", **fields)
    point = tuple(design.axes.values())

    before = rows(candidates.candidate_designs(spec, state_of(spec)))
    after = rows(candidates.candidate_designs(spec, state_of(spec, run)))

    assert (0.0, *point) in before
    assert ((0.0, *point) in after) == offered
    assert (1.0, *point) in after


def test_larger_designs_than_one_out_of_memory_are_left_out_in_its_domain() -> None:
    spec = spec_of(domains=[{"name": "a"}, {"name": "b"}])
    run = run_of({"N": 1e8, "D": 1e9}, RunState.OUT_OF_MEMORY, domain="b")

    before = candidates.candidate_designs(spec, state_of(spec))
    after = candidates.candidate_designs(spec, state_of(spec, run))

    gone = (before.domain == 1) & (before.x[:, 0] >= 1e8) & (before.x[:, 1] >= 1e9)
    assert gone.sum() > 100
    assert rows(after) == rows(before.take(~gone))


def test_runs_of_other_axes_or_domains_exclude_nothing() -> None:
    spec = spec_of()
    runs = (run_of({"N": 1e8}, RunState.COMPLETED), run_of({"N": 1e6, "D": 1e8}, RunState.COMPLETED, domain="gone"))

    assert len(candidates.candidate_designs(spec, state_of(spec, *runs))) == len(
        candidates.candidate_designs(spec, state_of(spec))
    )


def test_a_budget_below_the_cheapest_run_names_the_smallest_that_buys_one(tmp_path: Path) -> None:
    text = "group,N,D,cost\na,1e7,1e9,1.4\na,2e7,1e9,2\n"
    spec = pool_of(tmp_path / "p.csv", text, budget={"total": 1.0})
    state = state_of(spec)

    assert len(candidates.candidate_designs(spec, state)) == 0
    code, message = candidates.explain_empty(spec, state)
    assert code == "budget_below_cheapest_run"
    assert "costs 1.4" in message and "buys one more run is 1.4" in message
    cheapest = candidates.cheapest_design(spec)
    assert cheapest == (Design(domain="a", axes={"N": 1e7, "D": 1e9}), 1.4)


def test_what_is_left_may_buy_nothing(tmp_path: Path) -> None:
    text = "group,N,D,cost\na,1e7,1e9,1\na,2e7,1e9,1\n"
    spec = pool_of(tmp_path / "p.csv", text, budget={"total": 1.9})
    first = run_of({"N": 1e7, "D": 1e9}, RunState.COMPLETED, domain="a", cost=1.0)
    state = state_of(spec, first, spent=1.0)

    assert len(candidates.candidate_designs(spec, state)) == 0
    code, message = candidates.explain_empty(spec, state)
    assert code == "budget_exhausted_for_pool"
    assert "0.9 of 1.9 remains" in message and "buys one more run is 2" in message


def test_a_pool_may_be_used_up_or_too_dear_for_one_run(tmp_path: Path) -> None:
    spec = pool_of(tmp_path / "p.csv", "group,N,D,cost\na,1e7,1e9,5\n", budget={"total": 100, "per_run_max": 2})

    assert candidates.explain_empty(spec, state_of(spec))[0] == "per_run_max_too_small"
    state = state_of(spec, run_of({"N": 1e7, "D": 1e9}, RunState.COMPLETED, domain="a"), spent=5.0)
    code, message = candidates.explain_empty(spec, state)
    assert code == "pool_exhausted" and "95" in message
    assert candidates.cheapest_design(spec, state) is None


# ---- pools ----------------------------------------------------------------------------------------------------------


def test_pool_rows_become_designs_with_their_row(tmp_path: Path) -> None:
    text = "group,N,D,cost\nb,1e7,1e9,3\na,2e7,1e9,1\nb,1e7,2e9,2\n"
    spec = pool_of(tmp_path / "p.csv", text)
    table = candidates.all_designs(spec)

    assert spec.domain_names == ("b", "a")
    assert table.domain.tolist() == [0, 1, 0] and table.row.tolist() == [0, 1, 2]
    assert table.x.tolist() == [[1e7, 1e9], [2e7, 1e9], [1e7, 2e9]] and table.cost.tolist() == [3.0, 1.0, 2.0]
    assert candidates.cost_range(spec) == (1.0, 3.0)


def test_repeated_pool_rows_are_one_design(tmp_path: Path) -> None:
    text = "group,N,D,cost\na,1e7,1e9,3\na,2e7,1e9,1\na,10000000,1e9,3\nb,1e7,1e9,3\n"
    spec = pool_of(tmp_path / "p.csv", text)

    assert spec.warnings == ()
    assert candidates.all_designs(spec).row.tolist() == [0, 1, 3]
    (warning,) = spec.warnings
    assert warning.startswith("W:duplicate_row") and "1 rows" in warning


def test_a_group_without_rows_is_a_domain_without_candidates(tmp_path: Path) -> None:
    spec = pool_of(tmp_path / "p.csv", "group,N,D,cost\na,1e7,1e9,3\n", domains=[{"name": "a"}, {"name": "new"}])

    assert spec.domain_names == ("a", "new")
    assert candidates.all_designs(spec).domain.tolist() == [0]


def test_a_pool_without_domain_column_serves_every_domain(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("N,D,cost\n1e7,1e9,3\n2e7,1e9,1\n")
    axes = [{"name": "N"}, {"name": "D"}]
    domains = [{"name": "a"}, {"name": "b"}]
    spec = spec_of(axes=axes, domains=domains, pool={"file": str(path)}, cost={"column": "cost"})
    table = candidates.all_designs(spec)

    assert rows(table) == {(d, n, 1e9) for d in (0.0, 1.0) for n in (1e7, 2e7)}
    assert sorted(zip(table.x[:, 0], table.cost, strict=True)) == [(1e7, 3.0)] * 2 + [(2e7, 1.0)] * 2
    assert sorted(table.row) == [0, 0, 1, 1]


def test_equal_costs_are_no_special_case(tmp_path: Path) -> None:
    text = "group,N,D,cost\n" + "".join(f"a,{n}e7,1e9,1\n" for n in range(1, 9))
    spec = pool_of(tmp_path / "p.csv", text, budget={"total": 3})

    assert candidates.cost_range(spec) == (1.0, 1.0)
    assert len(candidates.candidate_designs(spec, state_of(spec))) == 8


def test_a_pool_row_that_costs_nothing_is_refused(tmp_path: Path) -> None:
    axes = [{"name": "N"}, {"name": "D", "scale": "linear"}]
    cost = {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}}]}
    spec = pool_of(tmp_path / "p.csv", "group,N,D\na,1e7,1e9\na,1e7,0\n", axes=axes, cost=cost)

    with pytest.raises(InputError, match=r"row 2 with .*would cost 0 FLOP.*constant term"):
        candidates.all_designs(spec)


def test_an_axis_of_one_value_in_the_pool(tmp_path: Path) -> None:
    spec = pool_of(tmp_path / "p.csv", "group,N,D,cost\na,1e8,1e9,3\na,1e8,2e9,1\n")

    assert spec.axes[0].is_fixed and len(candidates.all_designs(spec)) == 2
    assert np.isfinite(candidates.target_points(spec).x).all()


def test_a_large_pool(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    count = 100_000
    x = np.exp(rng.uniform(10, 20, (count, 2)))
    x[::1000] = x[0]
    names = np.array([f"g{i}" for i in range(5)])[np.arange(count) % 5]
    parquet.write_table(pa.table({"group": names, "N": x[:, 0], "D": x[:, 1], "cost": x[:, 0]}), tmp_path / "p.parquet")
    raw = {"axes": [{"name": "N"}, {"name": "D"}], "cost": {"column": "cost"}, "budget": {"total": 1e12}}
    spec = spec_of(**raw, pool={"file": str(tmp_path / "p.parquet"), "domain": "group"})

    table = candidates.all_designs(spec)
    # Rows 0, 1000, 2000, ... all belong to g0 and hold one design.
    assert len(table) == count - 99
    bought = [table.x[i] for i in range(0, 3000, 3)]
    runs = [
        run_of({"N": n, "D": d}, RunState.COMPLETED, domain=spec.domain_names[table.domain[3 * i]])
        for i, (n, d) in enumerate(bought)
    ]
    assert len(candidates.candidate_designs(spec, state_of(spec, *runs))) == len(table) - 1000


# ---- targets --------------------------------------------------------------------------------------------------------


def test_declared_points(tmp_path: Path) -> None:
    points = [{"N": 1e10, "D": 1e12, "domain": "b"}, {"N": 2e10, "D": 1e12}]
    targets = [{"kind": "prediction", "points": points}, {"kind": "recipe", "budgets": [1e22]}]
    table = candidates.target_points(spec_of(domains=[{"name": "a"}, {"name": "b"}], targets=targets))

    assert rows(table) == {(1.0, 1e10, 1e12), (0.0, 2e10, 1e12), (1.0, 2e10, 1e12)}
    assert table.cost == pytest.approx(6 * table.x[:, 0] * table.x[:, 1]) and (table.row == -1).all()


def test_the_domain_of_a_target_is_that_of_its_points() -> None:
    target = {"kind": "prediction", "domain": "b", "points": [{"N": 1e10, "D": 1e12}]}
    table = candidates.target_points(spec_of(domains=[{"name": "a"}, {"name": "b"}], targets=[target]))

    assert rows(table) == {(1.0, 1e10, 1e12)}


def test_target_files(tmp_path: Path) -> None:
    text = "group,N,D,cost,split\na,1e7,1e9,3,pool\nb,2e7,1e9,1,pool\na,1e9,1e10,50,target\nb,2e9,1e10,60,target\n"
    pool = {"file": str(tmp_path / "p.csv"), "domain": "group", "where": {"split": "pool"}}
    target = {"kind": "prediction", "file": str(tmp_path / "p.csv"), "where": {"split": "target"}}
    spec = pool_of(tmp_path / "p.csv", text, pool=pool, targets=[target])
    table = candidates.target_points(spec)

    assert rows(table) == {(0.0, 1e9, 1e10), (1.0, 2e9, 1e10)}
    assert table.row.tolist() == [2, 3] and table.cost.tolist() == [50.0, 60.0]
    assert len(candidates.all_designs(spec)) == 2

    only = spec_of(**{**spec.model_dump(by_alias=True, exclude_unset=True), "targets": [target | {"domain": "b"}]})
    assert rows(candidates.target_points(only)) == {(1.0, 2e9, 1e10)}


def test_target_files_without_cost_are_predicted_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("group,N,D\na,1e9,1e10\n")
    target = {"kind": "prediction", "file": str(tmp_path / "t.csv")}
    spec = pool_of(tmp_path / "p.csv", "group,N,D,cost\na,1e7,1e9,3\n", targets=[target])

    assert np.isnan(candidates.target_points(spec).cost).all()


def test_mistakes_in_a_target_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("group,N,D\nc,1e9,1e10\na,0,1\n")
    target = {"kind": "prediction", "file": str(tmp_path / "t.csv")}
    spec = pool_of(tmp_path / "p.csv", "group,N,D,cost\na,1e7,1e9,3\n", targets=[target])

    with pytest.raises(InputError) as caught:
        candidates.target_points(spec)
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(2, "group"), (3, "N")]


@pytest.mark.parametrize("targets", [[], [{"kind": "prediction"}], [{"kind": "exponent", "axis": "N"}]])
def test_without_points_the_targets_lie_at_and_above_the_pool(targets: list[dict[str, Any]]) -> None:
    spec = spec_of(domains=[{"name": "a"}, {"name": "b"}], targets=targets)
    table = candidates.target_points(spec)

    grid = itertools.product((0.0, 1.0), (1e9, 2e9, 4e9), (1e11, 2e11, 4e11))
    assert rows(table) == set(grid)


def test_a_study_of_recipes_predicts_no_points() -> None:
    table = candidates.target_points(spec_of(targets=[{"kind": "recipe", "budgets": [1e22]}]))

    assert len(table) == 0 and table.x.shape == (0, 2)


def test_settings_and_shares_are_not_extrapolated() -> None:
    axes = [
        {"name": "N", "low": 1e6, "high": 1e9},
        {"name": "lr", "low": 1e-4, "high": 1e-2, "role": "learning_rate"},
        {"name": "n", "values": [1, 2, 4, 8], "integer": True},
        {"name": "a", "simplex": "mix"},
        {"name": "b", "simplex": "mix", "high": 0.4},
    ]
    table = candidates.target_points(spec_of(axes=axes, cost={"terms": [{"coefficient": 1}]}))

    assert set(table.x[:, 0]) == {1e9, 2e9, 4e9} and set(table.x[:, 2]) == {8.0, 16.0, 32.0}
    assert table.x[:, 1] == pytest.approx(np.full(9, 1e-3))
    assert table.x[:, 3:] == pytest.approx(np.tile([0.6, 0.4], (9, 1)))


def test_many_axes_are_extrapolated_one_at_a_time_and_together() -> None:
    axes = [{"name": name, "low": 1, "high": 10} for name in "abcde"]
    table = candidates.target_points(spec_of(axes=axes, cost={"terms": [{"coefficient": 1}]}))

    assert len(table) == 3 + 2 * 5 == len(rows(table))
    assert table.x.max(axis=0).tolist() == [40.0] * 5
