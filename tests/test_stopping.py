"""Stopping before the budget is used: on the user's terms only, and only while predictions hold."""

import math

import numpy as np
import pytest

from planner.design.plan import Plan
from planner.design.policies import open_policy
from planner.design.stopping import StopRule, are_calibrated
from planner.errors import InputError
from planner.records import Design, RunRecord, RunState, StudyState


def _state(responses, *, kind="plan"):
    """Ever dearer runs that were each predicted to give 1 within 0.1, and gave `responses`."""
    predicted = {"q05": 0.9, "median": 1.0, "q95": 1.1}
    runs = {
        f"r{i}": RunRecord(
            run_id=f"r{i}",
            design=Design(domain="default", axes={"x": 2.0**i}),
            state=RunState.COMPLETED,
            response=response,
            cost=2.0**i,
            reason={"kind": kind, "predicted": predicted},
        )
        for i, response in enumerate(responses)
    }
    return StudyState(runs=runs, spent=0.0, reserved=0.0, total=1e3, num_events=len(runs))


def _plan(now, then):
    return Plan(
        picks=np.array([0]),
        gains=np.array([1.0]),
        first_gains=np.array([1.0]),
        variance_before=now**2,
        variance_after=then**2,
        rule=0.0,
        target_var=np.full(3, now**2),
        target_var_after=np.full(3, then**2),
    )


HONEST = _state([1.0] * 8)


def test_without_terms_the_budget_is_there_to_be_used():
    assert StopRule().why_stop(HONEST, _plan(1e-9, 1e-9), cost=1e9) is None


def test_a_plan_worth_less_than_it_costs_is_not_bought():
    rule = StopRule(worth=100.0)
    assert rule.why_stop(HONEST, _plan(0.5, 0.3), cost=19.0) is None
    reason = rule.why_stop(HONEST, _plan(0.5, 0.3), cost=21.0)
    assert reason is not None and "0.5" in reason and "0.3" in reason and "worth 20" in reason
    # Twice the unit: twice the worth.
    assert rule.why_stop(HONEST, _plan(0.5, 0.3), cost=21.0, unit=np.full(3, 2.0)) is None


def test_targets_known_well_enough_end_the_study():
    rule = StopRule(target_sd=0.1)
    assert rule.why_stop(HONEST, _plan(0.11, 0.01), cost=1.0) is None
    assert "target_sd = 0.1" in str(rule.why_stop(HONEST, _plan(0.09, 0.01), cost=1.0))


@pytest.mark.parametrize(
    ("state", "calibrated"),
    [
        (HONEST, True),
        (_state([1.0] * 4), False),  # the first has none before it: three predictions are too few
        (_state([1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]), False),
        (_state([1.0, 2.0, 2.0, 2.0] + [1.0] * 8), True),  # mistakes of long ago
        (_state([1.0] * 8, kind="seed"), False),
    ],
)
def test_only_predictions_of_dearer_runs_that_held_allow_a_stop(state, calibrated):
    assert are_calibrated(state) is calibrated
    assert (StopRule(target_sd=1.0).why_stop(state, _plan(0.5, 0.1), cost=1.0) is not None) is calibrated


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "much", [1.0]])
@pytest.mark.parametrize("term", ["worth", "target_sd"])
def test_senseless_terms_are_named_at_once(term, value):
    with pytest.raises(InputError, match=rf"\[policy\] {term}"):
        open_policy("planner", **{term: value})
