"""Curves of runs: from a trainer's metrics to the ledger, bounded, told once, and never taken for a result."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends import metrics, open_backend
from planner import events, loop
from planner.events import replay
from planner.records import MAX_POINTS, CurvePoint, RunState, thin_curve
from planner.study import Study
from tests.postgres import STORES, fresh_store
from tests.worlds import Cluster, FakeBackend, open_toy, write_study


def line(step: float, value: float, **more: Any) -> str:
    return json.dumps({"step": step, "value": value, "cost": step / 10, "schedule_complete": False} | more) + "\n"


def point(step: float, value: float | None = 1.0, cost: float | None = None) -> CurvePoint:
    return CurvePoint(float(step), value, cost, False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_toy(write_study(tmp_path)) as study:
        yield study


# ---- thinning


@pytest.mark.parametrize("steps", [range(1_000_000), range(0, 10**12, 10**7), [2.0**k for k in range(-500, 500)]])
def test_a_long_curve_is_a_bounded_number_of_points(steps: Any) -> None:
    thinned = thin_curve(point(step) for step in steps)
    assert 20 <= len(thinned) <= MAX_POINTS
    assert thinned[0].step == steps[0] and thinned[-1].step == steps[-1]
    assert thinned == sorted(thinned)


def test_a_short_curve_is_kept_whole() -> None:
    points = [point(100 * k, 1.0 / k) for k in range(1, 12)]
    assert thin_curve(points) == points


@pytest.mark.parametrize("cut", [1, 17, 400, 999])
def test_thinning_bit_by_bit_is_thinning_at_once(cut: int) -> None:
    points = [point(7 * k + k % 3, 1.0 / (k + 1)) for k in range(1000)]
    assert thin_curve([*thin_curve(points[:cut]), *points[cut:]]) == thin_curve(points)


def test_steps_out_of_order_are_sorted_and_a_repeated_step_counts_as_told_last() -> None:
    points = [point(1, 4.0), point(3, 3.0), point(2, 3.5), point(3, 2.9), point(4, 2.5)]
    assert [(p.step, p.value) for p in thin_curve(points)] == [(1, 4.0), (2, 3.5), (3, 2.9), (4, 2.5)]


# ---- reading


def test_a_file_is_read_as_it_grows_and_reads_the_same_at_once(path: Path) -> None:
    for step in range(200):
        with path.open("a") as file:
            file.write(line(step, 5.0 / (step + 1)))
        metrics.curve(path, whole=False)
    grown = metrics.curve(path)
    metrics._known.clear()
    assert metrics.curve(path) == grown == tuple(thin_curve(point(k, 5.0 / (k + 1), k / 10) for k in range(200)))


def test_a_torn_line_is_read_when_it_is_whole_and_never_hides_the_next(path: Path) -> None:
    path.write_text(line(1, 3.0) + line(2, 2.5)[:20])
    assert [p.step for p in metrics.curve(path)] == [1]
    with path.open("a") as file:
        file.write(line(2, 2.5)[20:].rstrip("\n"))  # whole, but its end is missing
    assert [p.step for p in metrics.curve(path)] == [1, 2]
    with path.open("a") as file:
        file.write("\n" + line(3, 2.0)[:9] + "\n" + line(4, 1.5))  # torn for ever: closed by the next attempt
    assert [p.step for p in metrics.curve(path)] == [1, 2, 4]


def test_what_is_not_finite_is_a_point_without_a_value_and_a_sign_of_life_is_none(path: Path) -> None:
    path.write_text(
        line(1, 3.0)
        + '{"step": 2, "value": null, "cost": 1}\n'  # nothing was measured
        + '{"step": 3, "value": NaN}\n'
        + '{"step": 4, "value": "Infinity"}\n'
        + '{"step": 5, "value": null, "not_finite": true}\n'
        + '{"value": 2.0}\n{"step": -1, "value": 2.0}\n{"step": "six", "value": 1.0}\n{"step": NaN, "value": 1}\n'
        + '[1, 2]\nnoise\n\n{"step": true, "value": 1.0}\n'
        + line(6, True)
        + line(7, 2.0, cost=-3.0)
    )
    assert [(p.step, p.value, p.cost) for p in metrics.curve(path)] == [
        (1, 3.0, 0.1),
        (3, None, None),
        (4, None, None),
        (5, None, None),
        (7, 2.0, None),
    ]


def test_only_what_is_said_to_be_complete_is(path: Path) -> None:
    path.write_text(line(1, 3.0, schedule_complete=True) + line(2, 3.0) + '{"step": 3, "value": 1.0}\n')
    assert [p.schedule_complete for p in metrics.curve(path)] == [True, False, False]


def test_another_file_under_the_same_name_is_another_curve(path: Path) -> None:
    path.write_text(line(1, 3.0) + line(2, 2.0))
    assert len(metrics.curve(path)) == 2
    path.rename(path.with_name("metrics-0.jsonl"))
    assert metrics.curve(path) == ()
    path.write_text(line(5, 1.0) * 3)
    assert [p.step for p in metrics.curve(path)] == [5]
    path.write_text("")  # shorter than what was read
    assert metrics.curve(path) == ()


def test_a_million_lines_are_read_bit_by_bit_while_the_run_goes_on(path: Path) -> None:
    text = "".join(line(step, 2.0) for step in range(20_000))
    path.write_text(text)
    assert len(text) < metrics.MAX_BYTES
    with path.open("a") as file:
        for _ in range(4):
            file.write(text)
        file.write(line(50_000, 1.0))
    first = metrics.curve(path, whole=False)
    assert first[-1].step < 50_000
    for _ in range(3):
        metrics.curve(path, whole=False)
    assert metrics.curve(path, whole=False)[-1].step == 50_000 == metrics.curve(path)[-1].step


# ---- the ledger


def test_points_are_told_once_and_survive_a_replay(study: Study) -> None:
    run_id = study.ask(1)[0].run_id
    study.ledger.submitted(run_id, "h")
    points = [point(k, 3.0 / k, k / 100) for k in range(1, 500)]
    study.ledger.progress(run_id, step=3, value=1.0, cost=0.03, points=thin_curve(points[:100]))
    study.ledger.progress(run_id, step=499, value=0.1, cost=0.4, points=thin_curve(points))
    before = study.state.num_events
    for some in (points, points[50:200], thin_curve(points), []):
        study.ledger.progress(run_id, step=499, value=0.1, cost=0.4, points=some)
    assert study.state.num_events == before
    assert study.ledger.run(run_id).points() == thin_curve(points)
    assert replay(study.ledger.events()).runs[run_id].points() == thin_curve(points)
    assert study.ledger.run(run_id).progress == {"value": 0.1, "step": 499.0, "cost": 0.4}


def test_a_run_of_a_million_lines_costs_few_events_and_bytes(study: Study) -> None:
    cluster = Cluster()
    run_id = loop.buy(study.spec, study.ledger, study.policy, 1, tag=loop.BY_LOOP).granted[0].run_id
    backend = Reporting(cluster)
    for share in range(1, 201):
        backend.points = tuple(point(k, 3.0 / (k + 1), k / 1e6) for k in range(0, 5000 * share, 100))
        backend.is_over = share == 200
        loop.advance(_place(study, backend), limit=0)
    of_run = [event for event in study.ledger.events() if event.run_id == run_id]
    assert study.ledger.run(run_id).state is RunState.COMPLETED
    assert len(of_run) <= 60
    assert sum(len(events.encode_body(event.body)) for event in of_run) < 30_000
    assert study.ledger.run(run_id).points() == thin_curve(backend.points)


def test_an_attempt_that_begins_anew_begins_a_curve_and_one_that_goes_on_does_not(study: Study) -> None:
    ledger, run_id = study.ledger, study.ask(1)[0].run_id
    ledger.submitted(run_id, "h0")
    ledger.progress(run_id, points=[point(1, 4.0), point(2, 3.0)])
    ledger.preempt(run_id, cost=0.2)
    ledger.retry(run_id)
    ledger.progress(run_id, points=[point(2, 3.1), point(3, 2.0)])  # from the checkpoint: step 2 again
    assert [(p.step, p.value) for p in ledger.run(run_id).points()] == [(1, 4.0), (2, 3.1), (3, 2.0)]
    ledger.fail(run_id, cost=0.3)
    ledger.retry(run_id)
    assert ledger.run(run_id).points() == []
    ledger.progress(run_id, points=[point(1, 5.0)])
    assert {attempt: len(points) for attempt, points in ledger.run(run_id).curves().items()} == {0: 3, 2: 1}
    table = study.curves()
    assert table[["attempt", "step", "value"]].values.tolist() == [[0, 1, 4.0], [0, 2, 3.1], [0, 3, 2.0], [2, 1, 5.0]]
    assert list(study.curves(run_id)["axis_N"]) == [1.0] * 4


@pytest.mark.parametrize("store", STORES)
def test_points_are_kept_on_every_store(store: str, tmp_path: Path) -> None:
    with fresh_store(store, tmp_path) as location:
        path = write_study(tmp_path)
        path.write_text(f"{path.read_text()}\n[store]\nurl = {json.dumps(str(location))}\n")
        points = [point(1, 4.0, 0.5), point(2, None, 0.7), point(3.5, -1e-300, None)]
        with open_toy(path) as study:
            run_id = study.ask(1)[0].run_id
            study.ledger.progress(run_id, points=points)
        with Study.open(path, read_only=True) as study:
            assert study.ledger.run(run_id).points() == points


def test_an_old_ledger_without_points_still_opens(study: Study) -> None:
    ledger, run_id = study.ledger, study.ask(1)[0].run_id
    ledger.progress(run_id, step=1, value=2.0, cost=0.1)
    assert "points" not in ledger.events()[-1].body
    assert replay(ledger.events()).runs[run_id].points() == []


# ---- never an end value


@pytest.mark.parametrize(
    "end", [RunState.TIMED_OUT, RunState.PREEMPTED, RunState.CANCELLED, RunState.LOST, RunState.FAILED, None]
)
def test_points_of_a_run_without_a_result_are_no_observation(study: Study, end: RunState | None) -> None:
    ledger, run_id = study.ledger, study.ask(1)[0].run_id
    ledger.submitted(run_id, "h")
    ledger.progress(run_id, step=9, value=0.01, cost=0.5, points=[point(9, 0.01, 0.5)])
    verbs = {
        RunState.TIMED_OUT: ledger.time_out,
        RunState.PREEMPTED: ledger.preempt,
        RunState.CANCELLED: ledger.cancel,
        RunState.LOST: ledger.lose,
        RunState.FAILED: ledger.fail,
    }
    if end is not None:
        verbs[end](run_id, cost=0.5)
    assert study.state.outcomes() == []
    assert study.status()["best"] is None
    assert ledger.run(run_id).response is None and ledger.run(run_id).points()
    study.ledger.retry(run_id) if end in (RunState.PREEMPTED, RunState.LOST) else None
    assert study.state.outcomes() == []


def test_status_shows_how_far_a_run_is_and_does_not_call_it_best(study: Study) -> None:
    ledger, (first, second) = study.ledger, study.ask(2)
    ledger.submitted(first.run_id, "h")
    ledger.running(first.run_id)
    ledger.progress(first.run_id, step=30, value=0.125, cost=0.5 * first.predicted_cost)
    study.tell(second.run_id, response=2.0)
    document = study.status()
    assert document["best"]["run_id"] == second.run_id
    told = document["pending"][0]["progress"]
    assert told == {"step": 30.0, "value": 0.125, "cost": 0.5 * first.predicted_cost, "share": 0.5}
    from planner.report import text

    shown = next(row for row in text.status(document) if first.run_id in row)
    assert "50 %" in shown and "0.125" in shown


# ---- from a trainer to the ledger


class Reporting(FakeBackend):
    """One run with a curve."""

    points: tuple[CurvePoint, ...] = ()
    is_over = False

    def _report(self, handle: str) -> Any:
        report = super()._report(handle)
        last = self.points[-1]
        told: dict[str, Any] = {"points": self.points, "cost": last.cost, "progress": last._asdict()}
        if not self.is_over:
            told |= {"state": RunState.RUNNING, "response": None}
        return type(report)(**(vars(report) | told))


def _place(study: Study, backend: Any) -> loop.Workplace:
    return loop.Workplace(
        spec=study.spec, ledger=study.ledger, backend=backend, policy=study.policy, folder=study.spec.folder / "runs"
    )


TRAINER = """
from backends import jobfile

def train(job):
    for step in range(1, 3001):
        if step % 100 == 0:
            jobfile.append_metric(step, 4.0 / step, job.axes["N"] * step / 3000, step == 3000)
    jobfile.append_metric(3001, float("nan"), job.axes["N"], True)
    return jobfile.Result(response=1.5, cost=job.axes["N"])
"""


def test_the_curve_of_a_real_run_reaches_the_ledger_whole(tmp_path: Path) -> None:
    (tmp_path / "curve_trainer.py").write_text(TRAINER)
    path = write_study(tmp_path)
    path.write_text(f'{path.read_text()}\n[backend]\nkind = "local"\ntrainer = "curve_trainer:train"\nslots = 1\n')
    with open_toy(path) as study:
        backend = open_backend("local", loop.backend_options(study.spec), tmp_path)
        ended = study.run(backend, max_runs=1, sleep=lambda seconds: time.sleep(0.02))
        (run,) = ended.state.runs.values()
        assert run.state is RunState.COMPLETED and run.response == 1.5
        wanted = [CurvePoint(s, 4.0 / s, s / 3000, s == 3000) for s in map(float, range(100, 3001, 100))]
        assert run.points() == thin_curve([*wanted, CurvePoint(3001.0, None, 1.0, True)])
        values = study.curves()
        assert math.isnan(values["value"].iloc[-1]) and values["response"].tolist() == [1.5] * len(values)
        assert study.state.outcomes()[0].response == 1.5
