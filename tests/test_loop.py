"""The loop buys, retries and resumes; killed anywhere, it pays nothing twice and loses nothing."""

import math
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import open_backend
from planner import loop
from planner.errors import BudgetExceeded, InputError
from planner.records import STATE_RULES, Proposal, RunState
from planner.study import Study
from tests.worlds import Cheapest, Cluster, FakeBackend, open_toy, write_study

NUM_DESIGNS, COST_OF_ALL = 8, 2.0 * (1 + 2 + 4 + 8)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_toy(write_study(tmp_path)) as study:
        yield study


def _run(study: Study, backend: Any, **limits: Any) -> loop.Ended:
    return study.run(backend, sleep=lambda seconds: None, **limits)


def test_it_runs_every_design_once_and_says_that_none_is_left(study: Study) -> None:
    cluster = Cluster()
    ended = _run(study, FakeBackend(cluster))
    assert ended.stop.reason == "pool_exhausted" and ended.bought == NUM_DESIGNS
    assert len(cluster.started) == len(set(cluster.started)) == NUM_DESIGNS
    assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}
    assert ended.state.spent == COST_OF_ALL and ended.state.reserved == 0.0


def test_it_fills_slots_and_no_more(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=3)
    place = loop.Workplace(
        spec=study.spec, ledger=study.ledger, backend=backend, policy=study.policy, folder=study.spec.folder
    )
    assert len(loop.advance(place).state.pending()) == 3
    assert len(loop.advance(place).state.pending()) == 3


@pytest.mark.parametrize(
    ("total", "reason", "bought", "left"),
    [("0.5", "budget_below_cheapest_run", 0, 0.5), ("4.5", "budget_exhausted_for_pool", 3, 0.5)],
)
def test_leftover_budget_ends_the_loop(tmp_path: Path, total: str, reason: str, bought: int, left: float) -> None:
    with open_toy(write_study(tmp_path, total=total)) as study:
        ended = _run(study, FakeBackend(Cluster(), slots=8))
        assert (ended.stop.reason, ended.bought) == (reason, bought)
        assert ended.state.remaining == left and f"{left:g}" in ended.stop.message


def test_max_runs_counts_this_call_only(study: Study) -> None:
    cluster = Cluster()
    for _ in range(2):
        ended = _run(study, FakeBackend(cluster), max_runs=3)
        assert (ended.stop.reason, ended.bought) == ("max_runs", 3)
    assert len(ended.state.runs) == 6 and not ended.state.pending()


def test_max_seconds_leaves_runs_to_the_next_call(study: Study) -> None:
    cluster = Cluster()
    ticks = iter(range(100))
    ended = _run(study, FakeBackend(cluster), max_seconds=1.5, clock=lambda: next(ticks))
    assert ended.stop.reason == "max_seconds" and len(ended.state.pending()) == 2
    ended = _run(study, FakeBackend(cluster), max_runs=1)
    assert len(cluster.started) == 3 and not ended.state.pending()


def test_runs_asked_by_hand_are_left_to_the_hand(study: Study) -> None:
    asked = study.ask(1)[0]
    cluster = Cluster()
    ended = _run(study, FakeBackend(cluster))
    assert asked.run_id not in {run_id for run_id, _ in cluster.started}
    assert ended.state.runs[asked.run_id].state is RunState.PROPOSED
    assert ended.bought == NUM_DESIGNS - 1


@pytest.mark.parametrize(
    ("end", "attempts", "final"),
    [
        (RunState.PREEMPTED, 4, RunState.FAILED),
        (RunState.LOST, 4, RunState.LOST),
        (RunState.OUT_OF_MEMORY, 2, RunState.OUT_OF_MEMORY),
        (RunState.FAILED, 2, RunState.FAILED),
        (RunState.TIMED_OUT, 1, RunState.TIMED_OUT),
        (RunState.DIVERGED, 1, RunState.DIVERGED),
    ],
)
def test_each_end_has_its_own_number_of_attempts(study: Study, end: RunState, attempts: int, final: RunState) -> None:
    # The first and cheapest run always ends like this, the others go well.
    first = next(iter(Cheapest().propose(study.spec, study.state, _table(study), 1).designs))
    run_id = loop.buy(study.spec, study.ledger, study.policy, 1, tag=loop.BY_LOOP).granted[0].run_id
    cluster = Cluster(ends={run_id: [end]})
    ended = _run(study, FakeBackend(cluster, slots=1))
    run = ended.state.runs[run_id]
    assert run.design == first
    assert [attempt for started, attempt in cluster.started if started == run_id] == list(range(attempts))
    assert run.state is final and STATE_RULES[run.state].final
    others = [other for other in ended.state.runs.values() if other.run_id != run_id]
    assert {other.state for other in others} == {RunState.COMPLETED}
    # Everything at least as large in the domain of a run that ran out of memory is left alone: here all of it.
    assert len(others) == (NUM_DESIGNS / 2 if end is RunState.OUT_OF_MEMORY else NUM_DESIGNS - 1)
    assert ended.state.spent == math.fsum(each.spent for each in ended.state.runs.values())


def _table(study: Study) -> Any:
    from planner import candidates

    return candidates.candidate_designs(study.spec, study.state)


def test_preempted_runs_go_on_to_their_end(study: Study) -> None:
    cluster = Cluster(ends={"*": [RunState.PREEMPTED, RunState.PREEMPTED, RunState.COMPLETED]})
    ended = _run(study, FakeBackend(cluster))
    assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}
    assert {run.ends["preempted"] for run in ended.state.runs.values()} == {2}
    assert ended.state.spent == COST_OF_ALL


@pytest.mark.parametrize("fault", ["budget", "run"])
def test_another_planner_may_take_the_money_or_the_run_of_a_retry(
    study: Study, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Both happen between the look at the run and its retry."""
    retry, taken = study.ledger.retry, []

    def too_late(run_id: str) -> Any:
        if not taken:
            taken.append(run_id)
            if fault == "budget":
                raise BudgetExceeded("another planner was faster")
            retry(run_id)
        return retry(run_id)

    monkeypatch.setattr(study.ledger, "retry", too_late)
    ended = _run(study, FakeBackend(Cluster(ends={"*": [RunState.LOST, RunState.COMPLETED]})))
    assert taken and ended.stop.reason == "pool_exhausted"
    assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}


def test_a_trainer_that_always_fails_does_not_eat_the_budget(study: Study) -> None:
    ended = _run(study, FakeBackend(Cluster(ends={"*": [RunState.FAILED]}), slots=1))
    assert ended.stop.reason == "runs_fail" and "oh" in ended.stop.message
    assert 2 <= len(ended.state.runs) <= 3  # two attempts each


def test_a_bad_job_is_not_tried_again_and_costs_nothing(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)
    run_id = loop.buy(study.spec, study.ledger, study.policy, 1, tag=loop.BY_LOOP).granted[0].run_id
    backend.reports[run_id] = {
        "state": RunState.FAILED,
        "response": None,
        "cost": None,
        "message": f"bad job (exit code 64, {loop.NOT_AGAIN})",
    }
    ended = _run(study, backend)
    assert backend.cluster.started.count((run_id, 0)) == 1 and (run_id, 1) not in backend.cluster.started
    assert ended.state.runs[run_id].spent == 0.0 and len(ended.state.runs) == NUM_DESIGNS


def test_a_response_that_cannot_be_is_a_failure_with_a_reason(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)
    run_id = loop.buy(study.spec, study.ledger, study.policy, 1, tag=loop.BY_LOOP).granted[0].run_id
    backend.reports[run_id] = {"response": -1.0, "cost": 0.25}
    run = _run(study, backend).state.runs[run_id]
    assert run.state is RunState.FAILED and run.cost == 0.25 and "below lower" in run.message


def test_a_result_told_by_hand_meanwhile_stays(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)
    poll = backend.poll

    def poll_late(handles: Any) -> Any:
        for run in study.state.pending():
            study.tell(run.run_id, response=3.0)
        return [replace(report, state=RunState.COMPLETED, response=2.5) for report in poll(handles)]

    backend.poll = poll_late  # type: ignore[method-assign]
    news: list[loop.News] = []
    ended = _run(study, backend, max_runs=1, watch=news.append)
    assert [run.response for run in ended.state.runs.values()] == [3.0]
    assert [each.kind for each in news].count("warning") == 1


def test_a_policy_that_raises_loses_nothing(study: Study) -> None:
    class Faulty(Cheapest):
        def propose(self, *arguments: Any) -> Proposal:
            if len(study.state.runs) >= 4:
                raise RuntimeError("the fit went wrong")
            return super().propose(*arguments)

    study.policy = Faulty()  # type: ignore[misc]
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="the fit went wrong"):
        _run(study, FakeBackend(cluster))
    study.policy = Cheapest()  # type: ignore[misc]
    ended = _run(study, FakeBackend(cluster))
    assert len(cluster.started) == len(ended.state.runs) == NUM_DESIGNS and ended.state.spent == COST_OF_ALL


def test_a_policy_that_proposes_nonsense_is_refused(study: Study) -> None:
    class Nonsense(Cheapest):
        def propose(self, *arguments: Any) -> Proposal:
            return replace(super().propose(*arguments), costs=[math.nan, 1.0])

    study.policy = Nonsense()  # type: ignore[misc]
    with pytest.raises(InputError, match="predicts cost nan"):
        _run(study, FakeBackend(Cluster()))
    assert not study.state.runs


def test_it_backs_off_while_nothing_happens(study: Study) -> None:
    pauses: list[float] = []
    backend = FakeBackend(Cluster(), slots=1, simulated=False)
    poll = backend.poll
    backend.poll = lambda handles: poll(handles) if len(pauses) > 20 else []  # type: ignore[method-assign]
    with pytest.raises(ValueError):  # a backend that forgets reports breaks its contract, and is noticed
        study.run(backend, sleep=pauses.append, max_runs=1)
    quiet = FakeBackend(Cluster(looks={}), slots=1, simulated=False)
    quiet._report = lambda handle: _still_running(quiet, handle, pauses)  # type: ignore[method-assign]
    study.run(quiet, sleep=pauses.append, max_runs=1)
    assert pauses == sorted(pauses) and pauses[0] == loop.MIN_PAUSE and pauses[-1] == loop.MAX_PAUSE


def _still_running(backend: FakeBackend, handle: str, pauses: list[float]) -> Any:
    from planner.execution import Report

    state = RunState.RUNNING if len(pauses) < 20 else RunState.DIVERGED
    return Report(run_id=handle.partition("/")[0], handle=handle, state=state)


# ---- killed anywhere ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Tripwire:
    """Kills at the `at`-th step; steps are the moments before and after everything that leaves a trace."""

    def __init__(self, at: int) -> None:
        self.at, self.steps = at, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            self._step()
            result = function(*arguments, **options)
            self._step()
            return result

        return stepped

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise Killed


def _run_until_killed(path: Path, cluster: Cluster, at: int) -> tuple[bool, int]:
    """One life of a planner; whether it came to its end, and how many steps it took."""
    wire = Tripwire(at)
    with open_toy(path) as study:
        backend = FakeBackend(cluster)
        for name in ("submit", "poll"):
            setattr(backend, name, wire.around(getattr(backend, name)))
        for name in ("reserve", "submitted", "running", "complete", "retry", "preempt"):
            setattr(study.ledger, name, wire.around(getattr(study.ledger, name)))
        try:
            _run(study, backend)
        except Killed:
            return False, wire.steps
    return True, wire.steps


@pytest.mark.parametrize("stride", [23, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_step_it_pays_once_and_loses_nothing(tmp_path: Path, stride: int) -> None:
    ends = [RunState.PREEMPTED, RunState.COMPLETED]
    (tmp_path / "whole").mkdir()
    whole, num_steps = _run_until_killed(write_study(tmp_path / "whole"), Cluster(ends={"*": ends}), at=0)
    assert whole and num_steps > 50
    for at in range(1, num_steps + 1, stride):
        folder = tmp_path / str(at)
        folder.mkdir()
        path, cluster = write_study(folder), Cluster(ends={"*": ends})
        assert not _run_until_killed(path, cluster, at)[0]
        assert _run_until_killed(path, cluster, at=0)[0]
        with open_toy(path) as study:
            state = study.state
        assert len(cluster.started) == len(set(cluster.started)) == 2 * NUM_DESIGNS
        assert len(state.runs) == NUM_DESIGNS and state.spent == COST_OF_ALL and state.reserved == 0.0


KILLED_PLANNER = """
import sys
from backends import open_backend
from tests.worlds import open_toy
with open_toy(sys.argv[1]) as study:
    spec = study.spec
    print(study.run(open_backend("local", spec.backend.options, spec.folder)).stop.reason, flush=True)
"""
TRAINER = """
import json, os, sys, time
job = json.load(open(os.environ["PLANNER_JOB"]))
with open(sys.argv[1], "a") as starts:
    starts.write(job["run_id"] + "\\n")
time.sleep(0.1)
path = os.environ["PLANNER_RESULT"]
with open(path + ".part", "w") as file:
    json.dump({"response": 1.0 + 1.0 / job["axes"]["N"], "cost": job["axes"]["N"] * job["axes"]["D"] * 0.75}, file)
os.replace(path + ".part", path)
"""


@pytest.mark.slow
def test_sigkill_at_random_moments_with_real_workers(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    starts = tmp_path / "starts"
    command = [sys.executable, str(tmp_path / "trainer.py"), str(starts)]
    path = write_study(tmp_path)
    path.write_text(path.read_text() + f'\n[backend]\nkind = "local"\nslots = 2\ncommand = {command!r}\n')
    root = Path(__file__).resolve().parents[1]
    rng = random.Random(7)
    for _ in range(8):
        arguments = [sys.executable, "-c", textwrap.dedent(KILLED_PLANNER), str(path)]
        with subprocess.Popen(arguments, cwd=root, stdout=subprocess.DEVNULL) as process:
            time.sleep(rng.uniform(0.4, 1.5))
            process.send_signal(signal.SIGKILL)
    with open_toy(path) as study:
        ended = study.run(open_backend("local", study.spec.backend.options, tmp_path))
    assert ended.stop.reason == "pool_exhausted"
    begun = starts.read_text().split()
    assert sorted(begun) == sorted(ended.state.runs) and len(begun) == NUM_DESIGNS
    assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}
    assert ended.state.spent == 0.75 * COST_OF_ALL and ended.state.reserved == 0.0
