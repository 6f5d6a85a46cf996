"""Runs stopped before their end: only on request, for a reason that is recorded, charged what they used."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from backends import open_backend
from planner import candidates, early, inference, loop
from planner.design import finishing
from planner.design.extrapolation import Curve, predict_end
from planner.design.targets import target_points
from planner.errors import InputError
from planner.events import replay
from planner.execution import Report
from planner.records import CurvePoint, Design, RunRecord, RunState, StudyState
from planner.study import Study
from tests.worlds import Cheapest, open_toy, write_study

# ---- where a curve ends


def _curve(share: Sequence[float], *, floor: float = 2.0, exponent: float = 0.4, fall: float = 0.0) -> Curve:
    """A power law, with a fall over the last fifth as at the end of a schedule."""
    share = np.asarray(share)
    eta = floor + 0.5 * (share**-exponent - 1.0) - fall * np.clip((share - 0.8) / 0.2, 0.0, 1.0)
    return Curve(share, eta, floor - fall)


def test_a_clean_power_is_extrapolated_within_its_interval_and_gets_surer() -> None:
    share = np.geomspace(0.01, 1.0, 40)
    ends = [predict_end(_curve(share[share <= until])._replace(final=None)) for until in (0.2, 0.5, 0.9)]
    assert all(end is not None and abs(end.mean - 2.0) < end.sd for end in ends)
    assert ends[0].sd > 1.5 * ends[1].sd > 3.0 * ends[2].sd  # type: ignore[union-attr]


def test_a_fall_at_the_end_that_no_curve_shows_is_learned_from_finished_runs() -> None:
    share = np.geomspace(0.01, 1.0, 40)
    half = _curve(share[share <= 0.5], fall=0.3)
    alone = predict_end(half)
    finished = [_curve(share, floor=2.0 + 0.1 * k, exponent=0.3 + 0.02 * k, fall=0.3) for k in range(6)]
    taught = predict_end(half, finished)
    assert alone is not None and taught is not None and taught.num_known == 6
    assert abs(taught.mean - 1.7) < 0.5 * abs(alone.mean - 1.7)
    assert abs(alone.mean - 1.7) < 3.0 * alone.sd, "and without them the interval says that it may come"
    assert abs(taught.mean - 1.7) < 2.0 * taught.sd


def test_intervals_hold_over_noisy_curves() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(200):
        share = np.sort(rng.uniform(0.01, 1.0, 60))
        whole = _curve(share, floor=rng.uniform(1, 3), exponent=rng.uniform(0.1, 1.0), fall=rng.uniform(0, 0.1))
        noisy = whole._replace(eta=whole.eta + 0.01 * rng.standard_normal(60))
        cut = share <= rng.uniform(0.3, 0.9)
        end = predict_end(Curve(noisy.share[cut], noisy.eta[cut]))
        held.append(end is None or abs(end.mean - (whole.final or 0.0)) < 1.645 * end.sd)
    assert np.mean(held) >= 0.85


@pytest.mark.parametrize("share", [[0.1, 0.2, 0.3], np.geomspace(0.001, 0.1, 30), [0.5, 0.52, 0.54, 0.56, 0.58]])
def test_too_little_of_a_curve_says_nothing(share: Any) -> None:
    assert predict_end(_curve(share)) is None


# ---- what finishing is worth


class Trained(NamedTuple):
    study: Study
    state: StudyState
    posterior: Any


def _points(final: float, *, cost: float, until: float = 1.0) -> list[CurvePoint]:
    shares = [share for share in np.geomspace(0.02, 1.0, 30) if share <= until]
    return [CurvePoint(1000 * s, final + 0.3 * (s**-0.5 - 1.0), cost * s, s == 1.0) for s in map(float, shares)]


WIDE = {"N": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], "D": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]}


def _truth(axes: Any) -> float:
    return 1.0 + float(axes["N"]) ** -0.5 + float(axes["D"]) ** -0.4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A study with twelve finished runs that were predicted well, and one under way at a design between them."""
    folder = tmp_path_factory.mktemp("trained")
    path = write_study(folder)
    text = (
        path.read_text().replace("values = [1, 2]", f"values = {WIDE['N']}").replace('[[domains]]\nname = "code"', "")
    )
    path.write_text(text.replace("values = [1, 4]", f"values = {WIDE['D']}").replace("total = 100", "total = 3000"))
    rng = np.random.default_rng(1)
    with open_toy(path) as study:
        done = [(1, 1), (1, 8), (2, 2), (4, 1), (8, 2), (2, 16), (8, 8), (16, 4), (4, 16), (16, 16), (32, 8), (8, 32)]
        for n, d in done:
            _finish(study, {"N": float(n), "D": float(d)}, rng)
        run = _buy(study, {"N": 8.0, "D": 16.0})
        study.ledger.submitted(run.run_id, "h")
        study.ledger.progress(run.run_id, cost=64.0)
        state = study.state
        posterior = inference.fit_study(
            study.spec,
            state.outcomes(),
            candidates.all_designs(study.spec),
            candidates.target_points(study.spec),
            num_draws=0,
        )
        yield Trained(study, state, posterior)


def _buy(study: Study, axes: dict[str, float]) -> RunRecord:
    mean = _truth(axes)
    reason = {"kind": "plan", "predicted": {"q05": mean - 0.1, "median": mean, "q95": mean + 0.1}}
    cost = axes["N"] * axes["D"]
    return study.ledger.reserve([(Design(domain="web", axes=axes), cost)], [reason]).granted[0]


def _finish(study: Study, axes: dict[str, float], rng: np.random.Generator) -> None:
    run = _buy(study, axes)
    response = _truth(axes) + 0.01 * rng.standard_normal()
    study.ledger.progress(run.run_id, points=_points(response, cost=run.predicted_cost))
    study.tell(run.run_id, response=response, cost=run.predicted_cost)


def _worth(trained: Trained, final: float, until: float) -> finishing.Worth:
    (run,) = trained.state.pending()
    targets = target_points(trained.study.spec, trained.posterior, candidates.target_points(trained.study.spec))
    points = _points(final, cost=run.predicted_cost, until=until)
    told = finishing.worth_of_finishing(
        trained.study.spec, trained.state, trained.posterior, targets, {run.run_id: points}
    )
    return told[run.run_id]


def test_a_run_that_will_end_as_expected_is_worth_less_than_one_that_will_surprise(trained: Trained) -> None:
    expected = _truth({"N": 8.0, "D": 16.0})
    usual, surprise = _worth(trained, expected, 0.7), _worth(trained, expected + 0.5, 0.7)
    assert usual.predicted[0] < expected < usual.predicted[1]
    assert surprise.finishing > 20.0 * usual.finishing
    assert usual.elsewhere == surprise.elsewhere >= 0.0
    assert surprise.is_worth


def test_the_longer_the_curve_the_less_is_left_to_learn(trained: Trained) -> None:
    expected = _truth({"N": 8.0, "D": 16.0})
    early_on, late = _worth(trained, expected, 0.2), _worth(trained, expected, 0.9)
    assert late.finishing < early_on.finishing and late.cost_left < early_on.cost_left


def test_a_run_is_finished_when_its_cost_would_buy_nothing_else(trained: Trained) -> None:
    (run,) = trained.state.pending()
    spec = trained.study.spec
    targets = target_points(spec, trained.posterior, candidates.target_points(spec))
    broke = replace(trained.state, total=trained.state.spent + trained.state.reserved)
    points = _points(_truth(run.design.axes), cost=run.predicted_cost, until=0.85)
    cheap = spec.model_copy(update={"budget": spec.budget.model_copy(update={"per_run_max": 1e-9})})
    assert finishing.worth_of_finishing(cheap, broke, trained.posterior, targets, {run.run_id: points}) == {}


def test_nothing_is_judged_while_predictions_do_not_hold(trained: Trained) -> None:
    runs = dict(trained.state.runs)
    for run_id, run in runs.items():
        wrong = {"kind": "plan", "predicted": {"q05": 9.0, "q95": 9.1}}
        runs[run_id] = RunRecord(**(vars(run) | {"reason": wrong}))
    state = StudyState(**(vars(trained.state) | {"runs": runs}))
    (run,) = state.pending()
    curves = {run.run_id: _points(1.5, cost=128.0, until=0.7)}
    spec = trained.study.spec
    targets = target_points(spec, trained.posterior, candidates.target_points(spec))
    assert finishing.worth_of_finishing(spec, state, trained.posterior, targets, curves) == {}


# ---- what is done about it


class Verdict(NamedTuple):
    is_worth: bool
    finishing: float = 1e-6
    elsewhere: float = 0.3
    before: float = 1.0
    predicted: tuple[float, float] = (2.0, 2.1)
    expected: float = 2.05
    cost_left: float = 1.0


class Judge(Cheapest):
    """Finishes runs of even size in N only."""

    asked = 0

    def worth_of_finishing(self, spec: Any, state: StudyState, curves: Any) -> dict[str, Verdict]:
        self.asked += 1
        assert all(state.runs[run_id].state is RunState.RUNNING and points for run_id, points in curves.items())
        return {run_id: Verdict(state.runs[run_id].design.axes["N"] % 2 == 0) for run_id in curves}


class Stoppable:
    """A backend in memory: runs go on, a quarter of their cost at each look, until they are done or told to stop."""

    slots = 2
    simulated = True

    def __init__(self) -> None:
        self.jobs: dict[str, loop.Job] = {}
        self.looks: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.values: list[float | None] = [3.0, 2.5, 2.2]
        self.end = RunState.CANCELLED

    def submit(self, job: loop.Job) -> str:
        self.jobs[f"{job.run_id}/{job.attempt}"] = job
        return f"{job.run_id}/{job.attempt}"

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)

    def poll(self, handles: Sequence[str]) -> list[Report]:
        return [self._report(handle) for handle in handles]

    def _report(self, handle: str) -> Report:
        job = self.jobs[handle]
        looks = self.looks[handle] = self.looks.get(handle, 0) + 1
        whole = float(job.options["predicted_cost"])
        points = tuple(CurvePoint(k + 1.0, v, whole * (k + 1) / 4, False) for k, v in enumerate(self.values[:looks]))
        state, response = RunState.RUNNING, None
        # Death takes a look more than the wish.
        if handle in self.cancelled and self.looks.setdefault("late " + handle, 0) >= 1:
            state = self.end
        elif looks > len(self.values):
            state, response = RunState.COMPLETED, 2.0
        self.looks["late " + handle] = self.looks.get("late " + handle, 0) + (handle in self.cancelled)
        cost = whole if state is RunState.COMPLETED else points[-1].cost
        return Report(
            run_id=job.run_id, handle=handle, state=state, response=response, cost=cost, points=points, message="bye"
        )


def _study(tmp_path: Path, option: str, policy: Any) -> Study:
    path = write_study(tmp_path)
    path.write_text(f'{path.read_text()}\n[backend]\nkind = "local"\n{option}\n')
    study = open_toy(path)
    study.policy = policy  # type: ignore[misc]
    return study


def test_a_run_that_is_not_worth_its_rest_is_stopped_charged_and_not_chosen_again(tmp_path: Path) -> None:
    with _study(tmp_path, "early_stop = true", Judge()) as study:
        backend = Stoppable()
        ended = study.run(backend, sleep=lambda seconds: None)
        odd = [run for run in ended.state.runs.values() if run.design.axes["N"] == 1]
        even = [run for run in ended.state.runs.values() if run.design.axes["N"] == 2]
        assert ended.stop.reason == "pool_exhausted" and len(odd) == len(even) == 4
        assert {run.state for run in even} == {RunState.COMPLETED} and not any(run.early_stop for run in even)
        assert {run.state for run in odd} == {RunState.CANCELLED}
        for run in odd:
            assert run.message.startswith("early_stop: finishing it") and run.early_stop in run.message
            assert run.cost is not None and 0 < run.cost < run.predicted_cost and run.attempt == 0
        assert len(backend.cancelled) == len(set(backend.cancelled)) == 4
        assert ended.state.spent == sum(run.cost or 0.0 for run in ended.state.runs.values())
        assert {outcome.run_id for outcome in ended.state.outcomes()} == {run.run_id for run in even}
        # The reason stands in an event before the end, and in the status.
        kinds = [(e.kind, "early_stop" in e.body) for e in study.ledger.events() if e.run_id == odd[0].run_id]
        assert kinds.index(("progress", True)) < kinds.index(("cancelled", False))
        document = study.status()
        assert {run["run_id"] for run in document["stopped_early"]} == {run.run_id for run in odd}
        assert all(run["saved"] > 0 and "elsewhere" in run["why"] for run in document["stopped_early"])
        assert replay(study.ledger.events(), total=100.0).runs == ended.state.runs


def test_by_default_nothing_is_stopped_and_nobody_is_asked(tmp_path: Path) -> None:
    with _study(tmp_path, "", judge := Judge()) as study:
        backend = Stoppable()
        backend.values = [None, None, None]
        ended = study.run(backend, sleep=lambda seconds: None)
        assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}
        assert judge.asked == 0 and not backend.cancelled


@pytest.mark.parametrize("values", [[3.0, None, None], [3.0, -1.0, -2.0]])
def test_a_run_that_will_have_no_response_is_stopped_by_any_policy(tmp_path: Path, values: list[float | None]) -> None:
    with _study(tmp_path, "early_stop = true", Cheapest()) as study:
        backend = Stoppable()
        backend.values = [*values, 2.0, 2.0]
        ended = study.run(backend, max_runs=2, sleep=lambda seconds: None)
        assert {run.state for run in ended.state.runs.values()} == {RunState.CANCELLED}
        assert all(run.early_stop.startswith("it has diverged") for run in ended.state.runs.values())


@pytest.mark.parametrize("end", [RunState.PREEMPTED, RunState.FAILED, RunState.LOST, RunState.TIMED_OUT])
def test_however_a_stopped_run_dies_it_is_not_tried_again(tmp_path: Path, end: RunState) -> None:
    with _study(tmp_path, "early_stop = true", Judge()) as study:
        backend = Stoppable()
        backend.end = end
        ended = study.run(backend, max_runs=2, sleep=lambda seconds: None)
        odd = [run for run in ended.state.runs.values() if run.design.axes["N"] == 1]
        assert odd and all(run.state is RunState.CANCELLED and run.attempt == 0 for run in odd)


def test_budget_is_held_until_the_death_is_confirmed_and_a_planner_that_died_asks_again(tmp_path: Path) -> None:
    with _study(tmp_path, "early_stop = true", Judge()) as study:
        backend = Stoppable()
        backend.slots = 1

        def place() -> loop.Workplace:
            return study._workplace(backend, study.policy)

        first = place()
        loop.advance(first, limit=1)
        loop.advance(first, limit=0)
        (run,) = study.state.runs.values()
        assert run.early_stop and run.state is RunState.RUNNING and backend.cancelled == [run.handle]
        assert study.state.reserved == run.predicted_cost
        backend.cancelled.clear()  # as if the planner had died in between
        second = place()
        loop.advance(second, limit=0)
        assert backend.cancelled == [run.handle]
        for _ in range(3):
            loop.advance(second, limit=0)
        assert study.ledger.run(run.run_id).state is RunState.CANCELLED and study.state.reserved == 0.0
        assert backend.cancelled == [run.handle]


def test_a_result_that_comes_first_is_data(tmp_path: Path) -> None:
    with _study(tmp_path, "early_stop = true", Judge()) as study:
        backend = Stoppable()
        backend.values = [3.0]
        ended = study.run(backend, max_runs=1, sleep=lambda seconds: None)
        (run,) = ended.state.runs.values()
        assert run.state is RunState.COMPLETED and run.response == 2.0 and run.early_stop


def test_the_option_is_true_or_false(tmp_path: Path) -> None:
    with (
        _study(tmp_path, 'early_stop = "yes"', Judge()) as study,
        pytest.raises(InputError, match=r"early_stop is 'yes': write true or false"),
    ):
        study.run(Stoppable(), sleep=lambda seconds: None)
    assert "early_stop" in loop.OWN_OPTIONS and early.OPTION == "early_stop"


TRAINER = """
import time
from backends import jobfile

def train(job):
    for step in range(1, 5):
        jobfile.append_metric(step, 4.0 / step, job.axes["N"] * job.axes["D"] * step / 8, False)
    end = time.monotonic() + (30.0 if job.axes["N"] == 1 else 0.6)
    while time.monotonic() < end:
        if jobfile.should_stop():
            raise jobfile.Requeue("a checkpoint is written")
        time.sleep(0.02)
    return jobfile.Result(response=1.5, cost=job.axes["N"] * job.axes["D"])
"""


def test_real_runs_one_is_stopped_and_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "early_trainer.py").write_text(TRAINER)
    option = 'trainer = "early_trainer:train"\nslots = 3\nearly_stop = true'
    with _study(tmp_path, option, Judge()) as study:
        backend: Any = open_backend("local", loop.backend_options(study.spec), tmp_path)
        study.run(backend, max_runs=3, max_seconds=25.0, sleep=lambda seconds: time.sleep(0.02))
        ends = {run.design.axes["N"]: run for run in study.state.runs.values()}
        assert ends[1].state is RunState.CANCELLED and ends[2].state is RunState.COMPLETED
        assert ends[1].cost == 0.5 * ends[1].predicted_cost and ends[2].response == 1.5
        assert study.state.reserved == 0.0 and "early_stop" not in (tmp_path / "toy.runs").name
        for run in study.state.runs.values():
            assert len(run.points()) == 4
        jobs = list((tmp_path / "toy.runs").glob("*/job.json"))
        assert len(jobs) == 3 and not any("early_stop" in job.read_text() for job in jobs)
