"""What may be told to a ledger, and what it makes of it."""

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BudgetExceeded, ConflictingResult, InputError, StoreDamaged, StoreError, UnknownRun
from planner.events import MAX_TEXT, decode_body, encode_body, number_or_none
from planner.ledger import Attachment, Ledger, replay
from planner.records import STATE_RULES, CurvePoint, Design, Event, RunRecord, RunState, StudyState, run_id_of
from tests.postgres import STORES, execute, fresh_database, fresh_store

TOTAL = 10.0


def design(i: int = 0, seed: int = 0) -> Design:
    return Design(domain="web", axes={"N": 1e6 * (i + 1), "D": 2e9}, seed=seed)


def open_memory(total: float = TOTAL, location: str = ":memory:") -> Ledger:
    ticks = itertools.count(1.0)
    return Ledger.open(location, study_name="study", total=total, clock=lambda: next(ticks))


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    on_server = request.param == "postgres"
    place = fresh_database() if on_server else contextlib.nullcontext(":memory:")
    with place as location, open_memory(location=location) as opened:
        yield opened


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | Path]:
    """Where a store may be made; there is none yet."""
    with fresh_store(request.param, tmp_path) as place:
        yield place


def buy(ledger: Ledger, i: int = 0, cost: float = 4.0) -> str:
    return ledger.reserve([(design(i), cost)]).granted[0].run_id


def kinds(ledger: Ledger) -> list[str]:
    return [event.kind for event in ledger.events()]


def money(ledger: Ledger) -> tuple[float, float]:
    state = ledger.state()
    return state.spent, state.reserved


# --- one run from proposal to result


def test_the_life_of_a_run(ledger: Ledger) -> None:
    reservation = ledger.reserve([(design(), 4.0)], [{"gain": 0.3}])
    run = reservation.granted[0]
    assert run.run_id == run_id_of("study", design())
    assert (run.state, run.attempt, run.reason) == (RunState.PROPOSED, 0, {"gain": 0.3})
    assert money(ledger) == (0.0, 4.0)

    assert ledger.submitted(run.run_id, "job-7", backend="local").handle == "job-7"
    assert ledger.running(run.run_id).state is RunState.RUNNING
    assert ledger.progress(run.run_id, value=3.0, step=100, cost=1.5).cost_so_far == 1.5
    assert money(ledger) == (0.0, 4.0)

    done = ledger.complete(run.run_id, 2.31, cost=3.5, se=0.01, curve="c1")
    assert (done.state, done.response, done.cost, done.se, done.curve) == (RunState.COMPLETED, 2.31, 3.5, 0.01, "c1")
    assert money(ledger) == (3.5, 0.0)
    assert kinds(ledger) == ["study_opened", "proposed", "submitted", "running", "progress", "completed"]
    outcome = ledger.state().outcomes()[0]
    assert (outcome.response, outcome.cost, outcome.external) == (2.31, 3.5, False)
    assert ledger.run(run.run_id) == done
    assert done.proposed_at < done.updated_at


def test_every_verb_is_a_no_op_the_second_time(ledger: Ledger) -> None:
    run_id = buy(ledger)
    verbs: Sequence[Callable[[], Any]] = (
        lambda: ledger.reserve([(design(), 4.0)]),
        lambda: ledger.submitted(run_id, "job"),
        lambda: ledger.running(run_id),
        lambda: ledger.progress(run_id, value=math.nan, step=3, cost=0.5),
        lambda: ledger.preempt(run_id, cost=1.0, message="evicted"),
        lambda: ledger.retry(run_id),
        lambda: ledger.submitted(run_id, "job-2"),
        lambda: ledger.complete(run_id, 2.5, cost=4.0, se=0.1, successes=3, trials=4, curve="c"),
        lambda: ledger.amend(run_id, cost=4.5, message="the meter was wrong"),
        lambda: ledger.attach(Attachment(design=design(1), response=2.0, cost=1.0)),
    )
    for i, verb in enumerate(verbs):
        verb()
        before = ledger.state()
        verb()
        assert ledger.state() == before, f"verb {i}"
    # A late or lesser word changes nothing either.
    ledger.running(run_id)
    ledger.progress(run_id, value=1.0, step=4, cost=0.6)
    ledger.cancel(run_id)
    assert ledger.complete(run_id, 2.5).cost == 4.5
    assert ledger.state() == before


@pytest.mark.parametrize("kind", [state for state, rule in STATE_RULES.items() if rule.final or rule.retried])
def test_every_end_is_counted_charged_and_idempotent(ledger: Ledger, kind: RunState) -> None:
    run_id = buy(ledger)
    ledger.submitted(run_id, "job")

    def tell(cost: float | None) -> RunState:
        return _end(ledger, kind, run_id, cost).state

    assert tell(1.5) is kind
    num_events = ledger.state().num_events
    assert tell(1.5) is tell(None) is kind
    assert ledger.state().num_events == num_events
    if STATE_RULES[kind].final:
        assert money(ledger) == (1.5, 0.0)
    else:
        assert money(ledger) == (0.0, 4.0)
    counted = kind not in (RunState.COMPLETED, RunState.DIVERGED, RunState.CANCELLED)
    assert ledger.run(run_id).ends == ({kind.value: 1} if counted else {})


def _end(ledger: Ledger, kind: RunState, run_id: str, cost: float | None) -> Any:
    if kind is RunState.COMPLETED:
        return ledger.complete(run_id, 2.0, cost=cost)
    verb = {
        RunState.DIVERGED: ledger.diverge,
        RunState.FAILED: ledger.fail,
        RunState.OUT_OF_MEMORY: ledger.out_of_memory,
        RunState.TIMED_OUT: ledger.time_out,
        RunState.PREEMPTED: ledger.preempt,
        RunState.CANCELLED: ledger.cancel,
        RunState.LOST: ledger.lose,
    }[kind]
    return verb(run_id, cost=cost)


# what a run that is predicted to cost 4 is charged when nobody tells its cost: never started, started, 1.5 used so far
UNTOLD = {
    RunState.COMPLETED: (4.0, 4.0, 4.0),
    RunState.DIVERGED: (4.0, 4.0, 1.5),
    RunState.FAILED: (4.0, 4.0, 1.5),
    RunState.OUT_OF_MEMORY: (4.0, 4.0, 1.5),
    RunState.TIMED_OUT: (4.0, 4.0, 1.5),
    RunState.LOST: (4.0, 4.0, 1.5),
    RunState.CANCELLED: (0.0, 4.0, 1.5),
}


@pytest.mark.parametrize("kind", UNTOLD)
def test_an_untold_cost_is_charged_as_what_was_used_or_predicted(kind: RunState) -> None:
    charged = []
    for stage in range(3):
        with open_memory() as ledger:
            run_id = buy(ledger)
            if stage > 0:
                ledger.submitted(run_id, "job")
            if stage > 1:
                ledger.progress(run_id, cost=1.5)
            _end(ledger, kind, run_id, None)
            charged.append(ledger.state().spent)
    assert tuple(charged) == UNTOLD[kind]


# --- responses


@pytest.mark.parametrize("response", [math.nan, math.inf, -math.inf, sys.float_info.max, np.float32("nan"), 10**400])
def test_a_response_that_is_not_finite_means_diverged(ledger: Ledger, response: float) -> None:
    run_id = buy(ledger)
    run = ledger.complete(run_id, response, cost=1.0)
    assert (run.state, run.response, run.spent) == (RunState.DIVERGED, None, 1.0)
    assert ledger.complete(run_id, math.nan) == run == ledger.diverge(run_id)
    assert ledger.events()[-1].body["nonfinite"]["response"] in ("nan", "inf", "-inf")
    assert ledger.state().outcomes()[0].response is None
    with pytest.raises(ConflictingResult, match="diverged"):
        ledger.complete(run_id, 2.0)


def test_counts_are_a_response(ledger: Ledger) -> None:
    run = ledger.complete(buy(ledger), None, successes=np.int64(50), trials=200)  # type: ignore[arg-type]
    assert (run.response, run.successes, run.trials) == (0.25, 50.0, 200.0)
    assert ledger.complete(buy(ledger, 1), None, successes=0, trials=200).response == 0.0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"response": None}, "has no response"),
        ({"response": "2.3"}, "response of run .* is '2.3': need a number"),
        ({"response": True}, "need a number"),
        ({"response": [2.0]}, "need a number"),
        ({"response": 2.0, "cost": math.nan}, "cost of run .* is nan"),
        ({"response": 2.0, "cost": -3}, "cost of run .* is -3: need a finite number, zero or more"),
        ({"response": 2.0, "cost": 10**400}, "cost of run .* is inf"),
        ({"response": 2.0, "cost": "cheap"}, "cost of run .* is 'cheap'"),
        ({"response": 2.0, "se": -0.1}, "standard error of run"),
        ({"response": 2.0, "se": math.nan}, "standard error of run"),
        ({"response": None, "successes": 3}, "successes and trials go together"),
        ({"response": None, "successes": 3, "trials": 2}, "need 0 <= successes <= trials, trials > 0"),
        ({"response": None, "successes": 0, "trials": 0}, "trials > 0"),
        ({"response": 0.5, "successes": -1, "trials": 2}, "successes of run .* is -1"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(ledger: Ledger, values: dict[str, Any], text: str) -> None:
    run_id = buy(ledger)
    before = ledger.state()
    with pytest.raises(InputError, match=text):
        ledger.complete(run_id, **values)
    with pytest.raises(InputError, match=text):
        ledger.amend(run_id, **values)
    assert ledger.state() == before


def test_another_result_is_a_conflict_unless_amended(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.complete(run_id, 2.5, cost=3.0)
    others: list[dict[str, Any]] = [{"response": 2.6}, {"response": 2.5, "cost": 3.5}, {"response": 2.5, "se": 0.1}]
    for other in [*others, {"response": math.nan}]:
        with pytest.raises(ConflictingResult, match=r"already completed with response 2\.5 at a cost of 3"):
            ledger.complete(run_id, **other)
    for verb in (ledger.fail, ledger.lose, ledger.preempt, ledger.out_of_memory, ledger.time_out):
        with pytest.raises(ConflictingResult, match=r"--amend"):
            verb(run_id)
    amended = ledger.amend(run_id, 2.6, se=0.1, message="wrong checkpoint")
    assert (amended.response, amended.cost, amended.se, amended.message) == (2.6, 3.0, 0.1, "wrong checkpoint")
    assert money(ledger) == (3.0, 0.0)
    assert ledger.events()[-1].body["old"]["response"] == 2.5
    assert ledger.complete(run_id, 2.6, cost=3.0) == amended


def test_amending_can_make_a_run_diverged_and_back(ledger: Ledger) -> None:
    run_id = buy(ledger)
    assert ledger.amend(run_id, 2.5, cost=3.0).state is RunState.COMPLETED
    assert ledger.amend(run_id, math.nan).state is RunState.DIVERGED
    assert ledger.amend(run_id, cost=2.0).state is RunState.DIVERGED
    assert ledger.amend(run_id, cost=2.0).spent == 2.0
    assert ledger.amend(run_id, 2.4).response == 2.4
    assert kinds(ledger).count("amended") == 3
    assert money(ledger) == (2.0, 0.0)


def test_counts_are_amended_as_counts(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.complete(run_id, None, successes=5, trials=10)
    assert ledger.amend(run_id, successes=6).response == 0.6
    with pytest.raises(InputError, match="amend successes and trials"):
        ledger.amend(run_id, 0.7)
    assert ledger.amend(run_id, cost=1.0).successes == 6.0
    assert ledger.amend(run_id, math.nan).state is RunState.DIVERGED


def test_a_failed_run_can_still_be_amended_to_a_result(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.fail(run_id, cost=1.0)
    assert ledger.amend(run_id, 2.0, cost=3.0).state is RunState.COMPLETED
    assert money(ledger) == (3.0, 0.0)


@pytest.mark.parametrize("end", [RunState.CANCELLED, RunState.LOST, RunState.FAILED, RunState.TIMED_OUT])
def test_a_late_result_is_data_and_charged_once(ledger: Ledger, end: RunState) -> None:
    run_id = buy(ledger)
    ledger.submitted(run_id, "job")
    _end(ledger, end, run_id, 1.0)
    run = ledger.complete(run_id, 2.5, cost=4.5)
    assert (run.state, run.response) == (RunState.COMPLETED, 2.5)
    assert run.message == f"the result came after the run was {end}"
    assert ledger.events()[-1].body["late_after"] == end
    assert money(ledger) == (4.5, 0.0)


def test_how_a_cancelled_run_dies_is_no_contradiction(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.submitted(run_id, "job")
    ledger.cancel(run_id, cost=1.0)
    assert ledger.fail(run_id).state is RunState.CANCELLED
    assert ledger.fail(run_id, cost=1.25, message="SIGTERM").state is RunState.CANCELLED
    assert money(ledger) == (1.25, 0.0)
    assert ledger.submitted(run_id, "late-handle").state is RunState.CANCELLED
    assert ledger.run(run_id).handle == "late-handle"


def test_a_lost_run_that_turns_up_is_no_contradiction(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.lose(run_id, cost=1.0)
    assert ledger.out_of_memory(run_id, cost=2.0).state is RunState.OUT_OF_MEMORY
    assert money(ledger) == (2.0, 0.0)
    with pytest.raises(ConflictingResult, match="already out_of_memory"):
        ledger.fail(run_id)


def test_an_unknown_run_is_named_with_those_like_it(ledger: Ledger) -> None:
    run_id = buy(ledger)
    for name in (run_id[:5], run_id[:-1] + ("0" if run_id[-1] != "0" else "1")):
        with pytest.raises(UnknownRun, match=f"did you mean {run_id}"):
            ledger.complete(name, 2.0)
    with pytest.raises(UnknownRun, match="attached"):
        ledger.run("")
    with pytest.raises(UnknownRun):
        ledger.note("hello", run_id="x")
    assert UnknownRun.exit_code == 2
    assert kinds(ledger) == ["study_opened", "proposed"]


# --- budget


def test_a_reservation_grants_what_fits_and_says_why_not(ledger: Ledger) -> None:
    got = ledger.reserve([(design(0), 4.0), (design(1), 7.0), (design(2), 6.0), (design(3), 0.5)])
    assert [run.predicted_cost for run in got.granted] == [4.0, 6.0]
    assert [refusal.predicted_cost for refusal in got.refused] == [7.0, 0.5]
    text = str(got.refused[0].error)
    assert "needs 7, 6 of 10 is left (0 spent, 4 reserved): wait until running runs end" in text
    assert got.refused[0].error.exit_code == 3
    state = ledger.state()
    assert (state.reserved, state.remaining) == (10.0, 0.0)


def test_all_or_nothing(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match="needs 7"):
        ledger.reserve([(design(0), 4.0), (design(1), 7.0)], allow_partial=False)
    assert ledger.state().runs == {}
    assert kinds(ledger) == ["study_opened"]
    assert len(ledger.reserve([(design(0), 4.0), (design(1), 6.0)], allow_partial=False).granted) == 2


def test_a_design_is_bought_once(ledger: Ledger) -> None:
    first = ledger.reserve([(design(), 4.0), (design(), 4.0)])
    assert (len(first.granted), len(first.existing)) == (1, 0)
    again = ledger.reserve([(design(), 5.0), (design(), 5.0)])
    assert (again.granted, again.refused) == ([], [])
    assert list(again.existing) == list(first.granted)
    assert money(ledger) == (0.0, 4.0)
    assert len(ledger.reserve([(design(seed=1), 4.0)]).granted) == 1


@pytest.mark.parametrize("kind", [state for state, rule in STATE_RULES.items() if rule.final])
def test_an_ended_design_is_bought_again_only_when_its_state_allows(ledger: Ledger, kind: RunState) -> None:
    run_id = buy(ledger)
    ledger.submitted(run_id, "job")
    _end(ledger, kind, run_id, 1.0)
    got = ledger.reserve([(design(), 3.0)])
    if STATE_RULES[kind].may_propose_again:
        run = got.granted[0]
        assert (run.run_id, run.attempt, run.state, run.handle) == (run_id, 1, RunState.PROPOSED, "")
        assert money(ledger) == (1.0, 3.0)
        ledger.complete(run_id, 2.0, cost=2.5)
        assert money(ledger) == (3.5, 0.0)
        assert ledger.state().outcomes()[0].cost == 2.5
    else:
        assert [run.run_id for run in got.existing] == [run_id]
        assert money(ledger) == (1.0, 0.0)


@pytest.mark.parametrize("kind", RunState)
def test_a_run_is_retried_only_when_its_state_allows(ledger: Ledger, kind: RunState) -> None:
    run_id = buy(ledger)
    if kind is not RunState.PROPOSED:
        ledger.submitted(run_id, "job")
    if kind is RunState.RUNNING:
        ledger.running(run_id)
    elif kind not in (RunState.PROPOSED, RunState.SUBMITTED):
        _end(ledger, kind, run_id, 1.0)
    if kind is RunState.PROPOSED:
        assert ledger.retry(run_id).attempt == 0
    elif STATE_RULES[kind].retried:
        run = ledger.retry(run_id)
        assert (run.state, run.attempt, run.ends) == (RunState.PROPOSED, 1, {kind.value: 1})
        assert money(ledger) == ((1.0, 4.0) if STATE_RULES[kind].final else (0.0, 4.0))
    else:
        with pytest.raises(InputError, match=f"is {kind}, which is not retried"):
            ledger.retry(run_id)


def test_a_retry_is_paid_for(ledger: Ledger) -> None:
    run_id = buy(ledger, cost=6.0)
    ledger.fail(run_id, cost=5.0)
    with pytest.raises(BudgetExceeded, match="needs 6, 5 of 10 is left"):
        ledger.retry(run_id)
    assert ledger.retry(run_id, total=11.0).attempt == 1


def test_a_preempted_run_may_be_submitted_at_once(ledger: Ledger) -> None:
    run_id = buy(ledger)
    ledger.submitted(run_id, "job")
    ledger.preempt(run_id, cost=2.0)
    assert [run.run_id for run in ledger.state().pending()] == [run_id]
    run = ledger.submitted(run_id, "job")
    assert (run.state, run.attempt) == (RunState.SUBMITTED, 1)
    assert ledger.submitted(run_id, "job", attempt=5).attempt == 1
    ledger.preempt(run_id)
    assert ledger.submitted(run_id, "job-3", attempt=5).attempt == 5
    assert ledger.run(run_id).ends == {"preempted": 2}
    ledger.complete(run_id, 2.0, cost=5.0)
    assert money(ledger) == (5.0, 0.0)


def test_actual_costs_may_exceed_the_total_but_nothing_more_is_granted(ledger: Ledger) -> None:
    run_id = buy(ledger, cost=9.0)
    ledger.progress(run_id, cost=9.75)
    assert money(ledger) == (0.0, 9.75)
    assert ledger.reserve([(design(1), 0.5)]).granted == []
    ledger.complete(run_id, 2.0, cost=12.0)
    state = ledger.state()
    assert (state.spent, state.remaining) == (12.0, 0.0)
    assert "take cheaper designs" in str(ledger.reserve([(design(1), 1e-6)]).refused[0].error)
    assert len(ledger.reserve([(design(1), 1.0)], total=13.0).granted) == 1
    assert ledger.state(total=14.0).remaining == 1.0


@pytest.mark.parametrize("cost", [-3.0, math.nan, math.inf, "4", None, True])
def test_a_predicted_cost_must_be_a_number_from_zero_up(ledger: Ledger, cost: Any) -> None:
    with pytest.raises(InputError, match="predicted cost of design 1 of domain 'web'"):
        ledger.reserve([(design(0), 1.0), (design(1), cost)])
    assert ledger.state().runs == {}


@pytest.mark.parametrize("total", [0.0, -1.0, math.nan])
def test_a_budget_must_be_above_zero(ledger: Ledger, total: float) -> None:
    with pytest.raises(InputError, match="total in \\[budget\\]"):
        ledger.reserve([(design(), 1.0)], total=total)


def test_costs_of_any_type_and_size_are_floats() -> None:
    with open_memory(total=10**25) as ledger:
        costs: list[Any] = [10**24, np.int64(2**62), Decimal("2.5")]
        granted = ledger.reserve([(design(i), cost) for i, cost in enumerate(costs)]).granted
        assert [run.predicted_cost for run in granted] == [1e24, float(2**62), 2.5]
        assert ledger.complete(granted[0].run_id, 2.0, cost=10**24).cost == 1e24


def test_sums_are_exact_over_many_decades() -> None:
    # Added and subtracted one by one, the small costs would vanish beside the large one.
    with open_memory(total=1e22) as ledger:
        costs = [1e21, *([0.1] * 10)]
        granted = ledger.reserve([(design(i), cost) for i, cost in enumerate(costs)]).granted
        ledger.complete(granted[0].run_id, 2.0, cost=0.0)
        assert ledger.state().reserved == 1.0
        for run in granted[1:]:
            ledger.cancel(run.run_id)
        assert money(ledger) == (0.0, 0.0)


def test_shares_of_the_total_fit_and_nothing_more() -> None:
    total = 0.7
    with open_memory(total) as ledger:
        # In floats, seven times 0.1 is more than 0.7.
        assert math.fsum([0.1] * 7) > total
        assert len(ledger.reserve([(design(i), 0.1) for i in range(7)]).granted) == 7
        assert ledger.reserve([(design(9), 2e-9)]).granted == []
        assert ledger.reserve([(design(9), 0.1)]).granted == []


def test_reasons_belong_to_designs(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="2 designs were given with 1 reasons"):
        ledger.reserve([(design(0), 1.0), (design(1), 1.0)], [{}])


# --- results from elsewhere


def attachment(response: float = 2.0, **values: Any) -> Attachment:
    return Attachment(**{"design": design(), "response": response, "cost": 3.0, **values})


def test_attached_results_are_data_that_others_paid(ledger: Ledger) -> None:
    attached = ledger.attach(attachment(se=0.1, curve="c", source="old.csv:3"))
    assert attached.warning is None
    run = attached.run
    assert (run.state, run.external, run.response, run.cost, run.se, run.curve) == (
        RunState.COMPLETED,
        True,
        2.0,
        3.0,
        0.1,
        "c",
    )
    assert money(ledger) == (0.0, 0.0)
    assert ledger.state().outcomes()[0].external
    assert [run.run_id for run in ledger.reserve([(design(), 4.0)]).existing] == [run.run_id]
    ledger.attach(attachment(design=design(1), budgeted=True))
    assert money(ledger) == (3.0, 0.0)
    ledger.amend(run.run_id, cost=2.0)
    assert money(ledger) == (3.0, 0.0)


def test_the_same_result_of_the_same_design_is_one_observation(ledger: Ledger) -> None:
    rows = [attachment(), attachment(), attachment(2.5), attachment(2.5), attachment(design=design(seed=1))]
    for expected_new in (3, 0):  # the file is imported twice
        before = len(ledger.state().runs)
        attached = ledger.attach_many(rows)
        assert len(ledger.state().runs) - before == expected_new
    assert [given.run.design.seed for given in attached] == [0, 0, 1, 1, 2]
    assert [given.warning is None for given in ledger.attach_many([attachment(design=design(5))])] == [True]
    assert "taken as one observation" in str(attached[0].warning)
    assert ledger.state().spent == 0.0


def test_another_result_of_the_same_design_is_a_replicate(ledger: Ledger) -> None:
    ledger.attach(attachment(design=design(seed=3)))
    other = ledger.attach(attachment(2.1, design=design(seed=3)))
    assert other.run.design.seed == 0
    assert "has the same axes and seed and is completed with response 2 at a cost of 3" in str(other.warning)
    assert ledger.attach(attachment(2.2, design=design(seed=4))).warning is None


def test_a_result_attached_for_a_bought_run(ledger: Ledger) -> None:
    run_id = buy(ledger)
    pending = ledger.attach(attachment())
    assert "is proposed" in str(pending.warning)
    assert pending.run.design.seed == 1
    ledger.complete(run_id, 2.7)
    assert ledger.attach(attachment(2.7)).run.run_id == run_id


def test_attached_rows_are_taken_all_or_none(ledger: Ledger) -> None:
    with pytest.raises(InputError, match=r"cost of attached row 2 \(runs.csv:3\) is -1"):
        ledger.attach_many([attachment(), attachment(cost=-1.0, source="runs.csv:3")])
    with pytest.raises(InputError, match="response of attached row 1 is 'x'"):
        ledger.attach_many([attachment("x")])  # type: ignore[arg-type]
    assert kinds(ledger) == ["study_opened"]


def test_an_attached_divergence_is_data(ledger: Ledger) -> None:
    run = ledger.attach(attachment(math.nan)).run
    assert (run.state, run.response, run.external) == (RunState.DIVERGED, None, True)
    assert "one observation" in str(ledger.attach(attachment(math.inf)).warning)
    assert [outcome.state for outcome in ledger.state().outcomes()] == [RunState.DIVERGED]


# --- bodies


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_bodies_are_strict_json_whatever_they_hold() -> None:
    loop: list[Any] = []
    loop.append(loop)
    body: dict[Any, Any] = {
        "nan": math.nan,
        "deep": {"values": [1.0, -math.inf]},
        "numpy": np.array([[1.5, np.nan]]),
        "scalar": np.float32(0.5),
        "huge": 10**5000,
        "big": 10**30,
        "int": 2**62,
        "path": Path("a"),
        "bad": Unprintable(),
        "loop": loop,
        "text": "\ud800" + "x" * (MAX_TEXT + 10),
        "state": RunState.LOST,
        3: {True, None},
    }
    text = encode_body(body)
    read = json.loads(text, parse_constant=pytest.fail)
    assert read["nonfinite"] == {
        "nan": "nan",
        "deep.values[1]": "-inf",
        "numpy[0][1]": "nan",
        "huge": "inf",
    }
    assert (read["nan"], read["deep"], read["numpy"]) == (None, {"values": [1.0, None]}, [[1.5, None]])
    assert (read["scalar"], read["big"], read["int"], read["path"]) == (0.5, 1e30, 2**62, "a")
    assert read["bad"] == "<Unprintable that cannot be printed>"
    assert read["text"].startswith("\\ud800xx") and read["text"].endswith("[cut: 20016 characters]")
    assert read["state"] == "lost"
    assert read["3"] in ([True, None], [None, True])
    read["text"].encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_what_is_written_is_read_back(body: dict[str, Any]) -> None:
    text = encode_body(body)
    assert encode_body(decode_body(text)).encode() == text.encode()


def test_bare_nan_of_others_is_read_as_nothing() -> None:
    read = decode_body('{"a": NaN, "b": -Infinity, "c": 1e400}')
    assert [number_or_none(read[name]) for name in "abc"] == [None] * 3
    with pytest.raises(ValueError, match="need a JSON object"):
        decode_body("[1]")


@pytest.mark.parametrize(
    "text",
    [
        '{"a":NaN,"b":[1,-Infinity,{"c":Infinity}]}',
        '{"a":1e400,"b":-1e400,"c":1e-400,"d":-0.0,"e":-0,"f":5e-324,"g":1E+5}',
        '{"a":9223372036854775808,"b":-123456789012345678901234567890,"c":1}',
        '{"a":"\\ud800","b":"\\ud83d\\ude42","c":"\\u0000","\\udc00":1}',
        '{"a":1,"a":2,"b":true,"c":null,"d":false,"":{}}',
        '{"a":' + "[" * 300 + "]" * 300 + "}",
    ],
)
def test_the_fast_way_to_read_a_body_reads_what_the_standard_one_does(text: str) -> None:
    expected = json.loads(text, parse_constant=lambda name: None)
    assert repr(decode_body(text)) == repr(expected)  # tells 1 from 1.0 and -0.0 from 0.0


@pytest.mark.parametrize("text", ["", "{", '{"a":1}x', '{"a":01}', "{'a':1}", "[1]", "NaN", "null", '{"a":"\t"}'])
def test_a_body_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON object|Expecting|control character"):
        decode_body(text)


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_back_to_the_last_bit(number: float) -> None:
    assert repr(decode_body(f'{{"a":{number!r}}}')["a"]) == repr(number)


@pytest.mark.parametrize("message", ["\ud800", "x" * 10**6, "\0", "🙂"])
def test_failures_are_recorded_whatever_they_say(ledger: Ledger, message: str) -> None:
    run = ledger.fail(buy(ledger), cost=1.0, message=message)
    assert run.state is RunState.FAILED
    assert len(run.message) <= MAX_TEXT
    ledger.note(message)
    ledger.progress(buy(ledger, 1), value=math.nan, step=math.inf, cost=-math.inf)
    assert replay(ledger.events(), total=TOTAL) == ledger.state()


# --- replay


def event(seq: int, kind: str, run_id: str | None = None, **body: Any) -> Event:
    return Event(seq=seq, at=float(seq), kind=kind, run_id=run_id, body=body)


PROPOSED = {"design": {"domain": "web", "axes": {"N": 1.0}, "seed": 0}, "predicted_cost": 4.0}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([event(2, "note")], "event 1 is missing"),
        ([event(1, "note"), event(3, "note")], "event 2 is missing: event 3 follows event 1"),
        ([event(1, "completed", "r", response=2.0)], r"event 1 \('completed' of run 'r'\) cannot be understood"),
        ([event(1, "danced", "r")], "'danced'"),
        ([event(1, "proposed", "r", predicted_cost=1.0)], "cannot be understood"),
        ([event(1, "proposed", "r", **{**PROPOSED, "predicted_cost": None})], "cannot be understood"),
        ([event(1, "attached", "r", **PROPOSED, cost=1.0)] * 2, "event 2 is missing"),
    ],
)
def test_events_that_cannot_be_are_damage(events: list[Event], text: str) -> None:
    with pytest.raises(StoreDamaged, match=text):
        replay(events)


def test_replay_reads_what_other_writers_leave_out() -> None:
    state = replay([event(1, "proposed", "r", **PROPOSED), event(2, "completed", "r", response=None)], total=TOTAL)
    assert (state.runs["r"].state, state.spent, state.reserved) == (RunState.DIVERGED, 4.0, 0.0)


def _count(events: list[Event]) -> tuple[float, float]:
    """Spent and reserved, counted per run without any of the replay's code."""
    attempts: dict[str, list[float]] = {}
    holds: dict[str, list[float]] = {}
    unpaid = set()
    for each in events:
        run_id, body = each.run_id or "", each.body
        if each.kind == "proposed":
            is_new_attempt = run_id not in holds
            if is_new_attempt:
                attempts.setdefault(run_id, []).append(0.0)
            holds.setdefault(run_id, [0.0, 0.0])[0] = body["predicted_cost"]
        elif each.kind in ("progress", "preempted") and run_id in holds:
            if body["cost"] is not None and body["cost"] >= 0:
                holds[run_id][1] = body["cost"]
        elif each.kind == "attached":
            attempts[run_id] = [body["cost"]]
            if not body["budgeted"]:
                unpaid.add(run_id)
        elif each.kind == "amended":
            attempts[run_id][-1] = body["cost"]
        elif "charged" in body:
            attempts[run_id][-1] = body["charged"]
            holds.pop(run_id, None)
    spent = math.fsum(sum(costs) for run_id, costs in attempts.items() if run_id not in unpaid)
    return spent, math.fsum(max(hold) for hold in holds.values())


# Multiples of 1/8, so that sums are exact in any order.
costs = st.integers(0, 48).map(lambda eighths: eighths / 8)
maybe_costs = st.none() | costs
designs = st.integers(0, 5)
responses = st.sampled_from([2.0, 2.5, math.nan, math.inf])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), designs, costs),
        st.tuples(st.just("retry"), designs),
        st.tuples(st.just("submitted"), designs, st.sampled_from(["a", "b"])),
        st.tuples(st.just("running"), designs),
        st.tuples(st.just("progress"), designs, st.floats() | costs),
        st.tuples(st.just("complete"), designs, responses, maybe_costs),
        st.tuples(st.just("amend"), designs, st.none() | responses, maybe_costs),
        st.tuples(
            st.sampled_from(["fail", "out_of_memory", "time_out", "preempt", "cancel", "lose", "diverge"]),
            designs,
            maybe_costs,
        ),
        st.tuples(st.just("attach"), designs, responses, costs, st.booleans()),
    ),
    max_size=30,
)


def _take(ledger: Ledger, step: tuple[Any, ...]) -> None:
    verb, i, *values = step
    run_id = run_id_of("study", design(i))
    if verb == "reserve":
        ledger.reserve([(design(i), values[0])])
    elif verb == "attach":
        response, cost, budgeted = values
        ledger.attach(Attachment(design=design(i), response=response, cost=cost, budgeted=budgeted))
    elif verb == "progress":
        ledger.progress(run_id, cost=values[0])
    elif verb in ("complete", "amend"):
        getattr(ledger, verb)(run_id, values[0], cost=values[1])
    elif verb in ("retry", "running", "submitted"):
        getattr(ledger, verb)(run_id, *values)
    else:
        getattr(ledger, verb)(run_id, cost=values[0])


def _check_step(ledger: Ledger, step: tuple[Any, ...], before: StudyState) -> StudyState:
    try:
        _take(ledger, step)
    except (InputError, BudgetExceeded):
        assert ledger.state() == before
    state = ledger.state()
    # Whatever was granted had to fit; only costs that were told may take more than the total.
    if step[0] in ("reserve", "retry") and state.num_events > before.num_events:
        assert state.spent + state.reserved <= max(TOTAL, before.spent + before.reserved)
    with contextlib.suppress(InputError, BudgetExceeded):
        _take(ledger, step)
    assert step[0] == "reserve" or ledger.state() == state
    return ledger.state()


@settings(max_examples=50, deadline=None)
@given(steps)
def test_any_sequence_of_verbs_adds_up(sequence: list[tuple[Any, ...]]) -> None:
    with open_memory() as ledger:
        state = ledger.state()
        for step in sequence:
            state = _check_step(ledger, step, state)
        events = ledger.events()
        assert (state.spent, state.reserved) == _count(events)
        assert replay(events, total=TOTAL) == state
        half = len(events) // 2
        assert replay(events[half:], total=TOTAL, start=replay(events[:half], total=TOTAL)) == state
        assert state.num_events == len(events)
        for run in state.runs.values():
            assert (run.response is not None) == (run.state is RunState.COMPLETED)


def test_a_run_that_was_given_out_never_changes() -> None:
    """Runs share what they have in common, so an event that changed it in place would rewrite the past of others."""
    verbs: Sequence[Callable[[str], Any]]
    with open_memory(total=1000.0) as ledger:
        verbs = (
            lambda run_id: ledger.submitted(run_id, "job"),
            lambda run_id: ledger.progress(run_id, value=3.0, step=1, cost=0.5, points=[CurvePoint(1, 3.0, 0.5, True)]),
            lambda run_id: ledger.preempt(run_id, cost=1.0),
            ledger.retry,
            lambda run_id: ledger.fail(run_id, cost=1.0, message="x"),
            lambda run_id: ledger.reserve([(ledger.run(run_id).design, 2.0)], [{"gain": 1.0}]),
            lambda run_id: ledger.complete(run_id, 2.0, cost=1.0, successes=3, trials=4, curve="c"),
            lambda run_id: ledger.amend(run_id, cost=1.5),
        )
        run_ids = [buy(ledger, i) for i in range(3)]
        given_out = []
        for verb, run_id in itertools.product(verbs, run_ids[:2]):
            verb(run_id)
            given_out += [(run, repr(run)) for run in ledger.runs.values()]
        ledger.attach(Attachment(design=design(7), response=2.0, cost=1.0))
        assert all(repr(run) == text for run, text in given_out)
        untouched = ledger.run(run_ids[2])
        assert untouched == RunRecord(
            run_id=run_ids[2],
            design=design(2),
            predicted_cost=4.0,
            proposed_at=untouched.proposed_at,
            updated_at=untouched.proposed_at,
        )
        assert ledger.run(run_ids[0]).ends == {"preempted": 1, "failed": 1}
        state = ledger.state()
        assert replay(ledger.events(), total=1000.0) == state


def test_an_event_read_from_a_store_is_an_event_like_any_other(ledger: Ledger) -> None:
    buy(ledger)
    for read in ledger.events():
        made = Event(seq=read.seq, at=read.at, kind=read.kind, run_id=read.run_id, body=read.body)
        assert (read, repr(read)) == (made, repr(made))
        with pytest.raises(FrozenInstanceError):
            read.seq = 0  # type: ignore[misc]


def test_ten_thousand_events_replay_at_once(benchmark_clock: Callable[[], float]) -> None:
    events = []
    for i in range(2500):
        run_id = f"r{i}"
        body = {"design": {"domain": "web", "axes": {"N": 1.0 + i}, "seed": 0}, "predicted_cost": 1.0}
        events += [
            event(4 * i + 1, "proposed", run_id, **body),
            event(4 * i + 2, "submitted", run_id, handle="h"),
            event(4 * i + 3, "running", run_id),
            event(4 * i + 4, "completed", run_id, response=2.0, cost=1.0, charged=1.0),
        ]
    start = benchmark_clock()
    state = replay(events)
    assert benchmark_clock() - start < 1.0
    assert (state.spent, state.num_events) == (2500.0, 10_000)


@pytest.fixture
def benchmark_clock() -> Callable[[], float]:
    import time

    return time.process_time  # others may be using this machine


# --- opening


def test_a_ledger_goes_on_where_it_was(location: str | Path) -> None:
    is_file = isinstance(location, Path)
    address = f"sqlite:///{location}" if is_file else str(location)
    with Ledger.open(location, study_name="study", total=TOTAL) as first:
        run_id = buy(first)
        state = first.state()
        assert first.path == (location if is_file else None)
        assert first.url == sa.make_url(address).render_as_string(hide_password=True)
        with Ledger.open(address, study_name="study", total=TOTAL) as second:
            assert second.state() == state
            second.complete(run_id, 2.0, cost=4.5)
            assert first.state() == second.state()
            assert first.state().spent == 4.5
            assert first.events(after=2) == second.events()[2:]
            assert first.events(after=99) == []


def test_verbs_together_are_one_step(location: str | Path) -> None:
    with open_memory(location=str(location)) as ledger, open_memory(location=str(location)) as other:
        first, second = buy(ledger, 0), buy(ledger, 1)
        with ledger.together():
            ledger.submitted(first, "job-1")
            ledger.submitted(second, "job-2")
            ledger.complete(first, 2.0)
            with pytest.raises(ConflictingResult):  # caught, it takes nothing with it
                ledger.complete(first, 3.0)
            assert ledger.run(first).state is RunState.COMPLETED, "what was told can be read"
            assert ledger.state().spent == 4.0
            assert other.run(first).state is RunState.PROPOSED, "others see it when it is on the disk"
        assert other.run(first).response == 2.0 and other.run(second).handle == "job-2"
        before = other.state()
        with pytest.raises(RuntimeError, match="out of luck"), ledger.together():
            ledger.running(second)
            raise RuntimeError("out of luck")
        assert ledger.state() == other.state() == before, "all of it or nothing"
        ledger.running(second)
        assert kinds(other)[-4:] == ["submitted", "submitted", "completed", "running"]


def test_a_changed_study_file_is_noted_once(location: str | Path) -> None:
    def reopen(digest: str, *, read_only: bool = False) -> tuple[list[str], list[str]]:
        with Ledger.open(location, study_name="study", spec_digest=digest, read_only=read_only) as ledger:
            return ledger.warnings, kinds(ledger)

    assert reopen("a") == ([], ["study_opened"])
    assert reopen("a") == ([], ["study_opened"])
    warnings, recorded = reopen("b", read_only=True)
    assert (len(warnings), recorded) == (1, ["study_opened"])
    warnings, recorded = reopen("b")
    assert "the study file has changed" in warnings[0]
    assert recorded == ["study_opened", "note"]
    assert reopen("b") == ([], recorded)
    assert reopen("") == ([], recorded)


def test_a_store_belongs_to_one_study(location: str | Path) -> None:
    Ledger.open(location, study_name="mine").close()
    with pytest.raises(InputError, match="belongs to study 'mine', not 'yours'"):
        Ledger.open(location, study_name="yours")


def test_a_reader_neither_makes_nor_changes_a_store(location: str | Path, tmp_path: Path) -> None:
    with Ledger.open(location, study_name="study", total=TOTAL, read_only=True) as reader:
        assert (reader.state().num_events, reader.state().remaining) == (0, TOTAL)
        assert reader.events() == []
        assert list(tmp_path.iterdir()) == []
        assert isinstance(location, Path) or execute(location, "SELECT * FROM pg_tables WHERE tablename = 'meta'") == []
        with pytest.raises(StoreError, match="for reading only"):
            reader.reserve([(design(), 1.0)])
        with Ledger.open(location, study_name="study", total=TOTAL) as writer:
            run_id = buy(writer)
            assert reader.state() == writer.state()
        with pytest.raises(StoreError, match="for reading only"):
            reader.complete(run_id, 2.0)


def test_a_closed_ledger_may_be_used_again(location: str | Path, tmp_path: Path) -> None:
    ledger = Ledger.open(location, study_name="study", total=TOTAL)
    run_id = buy(ledger)
    ledger.close()
    assert [path.name for path in tmp_path.iterdir()] == (["s.sqlite"] if isinstance(location, Path) else [])
    assert ledger.complete(run_id, 2.0).state is RunState.COMPLETED
    ledger.close()


@pytest.mark.parametrize("name", ["with space", "100%25", "q?u#e", "ünï"])
def test_file_names_of_all_kinds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Ledger.open(path, study_name="study", total=TOTAL) as ledger:
        buy(ledger)
    with Ledger.open(str(path), study_name="study", total=TOTAL, read_only=True) as ledger:
        assert ledger.state().reserved == 4.0
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_addresses_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a URL"):
        Ledger.open("://nowhere", study_name="study")
    with pytest.raises(StoreError, match="needs a driver that is not there"):
        Ledger.open("mysql+nothing://x/y", study_name="study")
    with pytest.raises(StoreError, match="does not exist: create it"):
        Ledger.open(tmp_path / "no" / "s.sqlite", study_name="study")
