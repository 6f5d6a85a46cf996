import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from planner import errors
from planner.errors import InputError, PlannerError, Problem, SpecError
from planner.execution import BackendError, Job, Report
from planner.records import (
    STATE_RULES,
    Design,
    DesignTable,
    Proposal,
    RunRecord,
    RunState,
    StudyState,
    run_id_of,
)

DESIGN = Design(domain="web", axes={"N": 1e9, "D": 2e10})


def test_the_order_of_axes_does_not_make_another_design() -> None:
    swapped = Design(domain="web", axes={"D": 2e10, "N": 1e9})
    assert swapped.key() == DESIGN.key()
    assert swapped == DESIGN
    assert len({swapped, DESIGN}) == 1


@pytest.mark.parametrize(
    "other",
    [
        Design(domain="code", axes={"N": 1e9, "D": 2e10}),
        Design(domain="web", axes={"N": 1e9, "D": math.nextafter(2e10, math.inf)}),
        Design(domain="web", axes={"N": 1e9, "D": 2e10}, seed=1),
        Design(domain="web", axes={"N": 2e10, "D": 1e9}),
        Design(domain="web", axes={"N": 1e9}),
    ],
)
def test_any_difference_makes_another_run(other: Design) -> None:
    assert run_id_of("study", other) != run_id_of("study", DESIGN)


def test_run_ids_never_change_between_versions() -> None:
    # Stores refer to runs by these: a change here would buy every run again.
    assert DESIGN.key() == '["web", [["D", "20000000000.0"], ["N", "1000000000.0"]], 0]'
    assert run_id_of("study", DESIGN) == "r901e8069b054"
    assert run_id_of("another", DESIGN) != run_id_of("study", DESIGN)


def test_axes_become_python_floats() -> None:
    axes: dict[str, Any] = {"big": 10**24, "zero": -0.0, "numpy": np.int64(5_000_000_000)}
    seed: Any = np.int64(3)
    design = Design(domain="a", axes=axes, seed=seed)
    assert design.axes == {"big": 1e24, "zero": 0.0, "numpy": 5e9}
    assert [type(value) for value in design.axes.values()] == [float] * 3
    assert math.copysign(1.0, design.axes["zero"]) == 1.0
    assert type(design.seed) is int
    assert design == Design(domain="a", axes={"big": 1e24, "zero": 0, "numpy": 5e9}, seed=3)


@pytest.mark.parametrize("value", [math.nan, math.inf, "many", None, 10**400])
def test_an_axis_value_must_be_a_finite_number(value: object) -> None:
    with pytest.raises(InputError, match="axis 'N' of a design in 'web'"):
        Design(domain="web", axes={"N": value})  # type: ignore[dict-item]


def test_names_with_odd_characters_have_an_id() -> None:
    design = Design(domain="sch\ud800ön\n\0", axes={"β": 1.0})
    assert len(run_id_of("名\udfff", design)) == 13


def test_a_design_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(DESIGN)) == DESIGN


# final, in the likelihood, what is charged, retried by the loop, may be proposed again
RULES = {
    "proposed": (False, False, "reserved", False, False),
    "submitted": (False, False, "reserved", False, False),
    "running": (False, False, "reserved", False, False),
    "completed": (True, True, "actual", False, False),
    "diverged": (True, False, "actual", False, False),
    "failed": (True, False, "actual", True, True),
    "out_of_memory": (True, False, "actual", True, False),
    "timed_out": (True, False, "actual", True, False),
    "preempted": (False, False, "reserved", True, False),
    "cancelled": (True, False, "actual", False, True),
    "lost": (True, False, "actual", True, True),
}


def test_every_state_has_fixed_answers() -> None:
    assert {state.value: dataclasses.astuple(rule) for state, rule in STATE_RULES.items()} == RULES
    assert set(STATE_RULES) == set(RunState)


def _state(*runs: RunRecord, **values: float) -> StudyState:
    known = {"spent": 0.0, "reserved": 0.0, "total": 10.0, **values}
    return StudyState(runs={run.run_id: run for run in runs}, num_events=len(runs), **known)


def test_outcomes_and_pending_split_the_runs() -> None:
    runs = [RunRecord(run_id=state.value, design=DESIGN, state=state, response=2.0, cost=3.0) for state in RunState]
    state = _state(*runs)
    assert [outcome.run_id for outcome in state.outcomes()] == ["completed", "diverged"]
    assert [run.run_id for run in state.pending()] == ["proposed", "submitted", "running", "preempted"]
    assert state.outcomes()[0].cost == 3.0


def test_what_is_left_is_never_negative() -> None:
    assert _state(spent=3.0, reserved=2.0).remaining == 5.0
    assert _state(spent=9.0, reserved=2.0).remaining == 0.0
    assert _state(total=math.inf, spent=9.0).remaining == math.inf


def test_a_run_holds_back_what_it_has_used_when_that_is_more() -> None:
    run = RunRecord(run_id="r", design=DESIGN, predicted_cost=4.0)
    assert run.reserved == 4.0
    assert dataclasses.replace(run, cost_so_far=5.0).reserved == 5.0
    ended = dataclasses.replace(run, state=RunState.FAILED, cost=1.0, charged_before=2.0, cost_so_far=5.0)
    assert (ended.reserved, ended.spent) == (0.0, 3.0)
    assert dataclasses.replace(ended, budgeted=False).spent == 0.0


def test_a_design_table_takes_rows() -> None:
    table = DesignTable(
        domain=np.array([0, 1, 0]),
        x=np.arange(6.0).reshape(3, 2),
        cost=np.array([1.0, 2.0, 3.0]),
        row=np.array([-1, 5, 7]),
    )
    assert len(table) == 3
    taken = table.take(np.array([2, 0]))
    assert taken.x.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert (taken.domain.tolist(), taken.cost.tolist(), taken.row.tolist()) == ([0, 0], [3.0, 1.0], [7, -1])
    assert table.take(table.cost > 1.5).row.tolist() == [5, 7]


def test_records_take_keywords_only() -> None:
    assert Proposal(stop="nothing to buy").designs == ()
    with pytest.raises(TypeError):
        Report("r", "h", RunState.RUNNING)  # type: ignore[call-arg]
    assert Job.__dataclass_params__.frozen  # type: ignore[attr-defined]


EXIT_CODES = {
    "PlannerError": 1,
    "InputError": 2,
    "SpecError": 2,
    "UnknownRun": 2,
    "ConflictingResult": 2,
    "NothingAffordable": 3,
    "BudgetExceeded": 3,
    "UnreliableFit": 4,
    "StoreError": 5,
    "StoreBusy": 5,
    "StoreDamaged": 5,
    "StoreTooNew": 5,
}


def test_every_error_has_its_exit_code() -> None:
    found = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, PlannerError)
    }
    assert found == EXIT_CODES
    assert BackendError.exit_code == 2
    assert all(getattr(errors, name).__doc__ for name in found)


def test_all_problems_of_an_input_are_told_and_kept() -> None:
    error = SpecError(
        [
            Problem(file="a.toml", line=3, key="axes[0].low", message="must be above 0", value="-1", hint="Give 1."),
            Problem(message="no targets"),
        ]
    )
    assert str(error) == "a.toml:3: axes[0].low: must be above 0 (got -1). Give 1.\nno targets"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problems) == (str(error), error.problems)
    assert str(InputError("plain")) == "plain"
    assert InputError("plain").problems == []
    assert str(InputError(Problem(message="one"))) == "one"
