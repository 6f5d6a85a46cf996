"""Choosing beside the loop: runs are looked after meanwhile, and what is held ready follows from measured times."""

import threading
from pathlib import Path
from typing import Any

import pytest

from planner.ahead import Buyer, Pace
from planner.buying import Purchase
from planner.execution import Report
from planner.loop import News
from planner.records import Proposal, RunState
from tests.worlds import Cheapest, Cluster, FakeBackend, open_toy, write_study

WAIT_SECONDS = 20.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _pace(*, run_seconds: float, choice_seconds: float, num: int = 8) -> Pace:
    clock = Clock()
    pace = Pace(clock)

    def choose(wanted: int) -> Purchase:
        clock.now += choice_seconds
        return Purchase()

    for index in range(num):
        pace.start(f"r{index}")
        clock.now += run_seconds
        pace.end(f"r{index}")
        pace.timed(choose)(1)
    return pace


def test_runs_are_held_ready_where_choosing_takes_as_long_as_a_run() -> None:
    assert _pace(run_seconds=1.0, choice_seconds=1.0).ahead(8, 1000) == 24
    assert _pace(run_seconds=1.0, choice_seconds=0.1).ahead(8, 1000) == 3
    assert _pace(run_seconds=3600.0, choice_seconds=5.0).ahead(8, 1000) == 0, "nothing is bought too early"


def test_few_runs_are_held_ready_while_little_is_known() -> None:
    pace = _pace(run_seconds=1.0, choice_seconds=1.0)
    assert [pace.ahead(8, known) for known in (0, 1, 8, 20)] == [0, 0, 4, 10]
    assert Pace().ahead(8, 1000) == 0, "no time was measured"


def test_one_slow_choice_does_not_count() -> None:
    pace = _pace(run_seconds=1.0, choice_seconds=0.5)
    pace.timed(lambda num: Purchase())(1)
    clock = Clock()
    pace._clock = clock

    def compile_first(num: int) -> Purchase:
        clock.now += 60.0
        return Purchase()

    pace.timed(compile_first)(1)
    assert pace.ahead(8, 1000) == 12


@pytest.mark.parametrize("aside", [False, True])
def test_a_purchase_is_taken_once_and_its_error_is_raised(aside: bool) -> None:
    bought = Purchase(plan=[{"cost": 1.0}])
    with Buyer(lambda num: bought, aside=aside) as buyer:
        assert not buyer.is_busy and buyer.take() is None
        buyer.begin(1, 0)
        assert buyer.is_busy
        buyer.wait()
        assert buyer.take() is bought and buyer.take() is None and not buyer.is_busy

    def broken(num: int) -> Purchase:
        raise RuntimeError("the fit went wrong")

    with Buyer(broken, aside=aside) as buyer, pytest.raises(RuntimeError, match="the fit went wrong"):
        buyer.begin(1, 0)
        buyer.wait()
        buyer.take()


class Thinker(Cheapest):
    """Comes to its second choice only after another run was seen to end."""

    def __init__(self) -> None:
        self.num = 0
        self.has_ended = threading.Event()

    def propose(self, *arguments: Any) -> Proposal:
        self.num += 1
        if self.num == 2:
            assert self.has_ended.wait(WAIT_SECONDS), "nobody looks after the runs meanwhile"
            return Proposal(stop="so much is under way that nothing more is worth it")
        return super().propose(*arguments)


def test_runs_are_looked_after_while_the_next_are_chosen(tmp_path: Path) -> None:
    thinker = Thinker()

    class Backend(FakeBackend):
        def _report(self, handle: str) -> Report:
            first = next(iter(self.jobs))
            if handle == first or thinker.num > 1:  # the others end while it thinks
                return super()._report(handle)
            return Report(run_id=handle.partition("/")[0], handle=handle, state=RunState.RUNNING)

    def watch(news: News) -> None:
        if news.kind == "ended" and thinker.num == 2:
            thinker.has_ended.set()

    with open_toy(write_study(tmp_path)) as study:
        study.policy = thinker  # type: ignore[misc]
        done = study.run(Backend(Cluster(), slots=3, simulated=False), watch=watch, sleep=lambda seconds: None)
    assert done.stop.reason == "pool_exhausted", "a reason to stop is void once more is known"
    assert {run.state for run in done.state.runs.values()} == {RunState.COMPLETED}
