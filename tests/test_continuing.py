"""Going on with finished runs: offered at the cost of the difference, bought once, started from the checkpoint."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import open_backend
from planner import candidates, continuing, costs, inference, loop
from planner.errors import InputError
from planner.events import replay
from planner.records import Design, RunRecord, RunState
from planner.study import Study
from tests.worlds import Cluster, FakeBackend, open_toy, write_study

RESUME = 'resume = "D"'


def _open(folder: Path, option: str = RESUME, *, kind: str = "simulator", **changes: str) -> Study:
    path = write_study(folder)
    text = f'{path.read_text()}\n[backend]\nkind = "{kind}"\n{option}\n'
    for old, new in changes.items():
        text = text.replace({"lengths": "values = [1, 4]", "domains": '[[domains]]\nname = "code"'}[old], new)
    path.write_text(text)
    return open_toy(path)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with _open(tmp_path) as study:
        yield study


def _finish(study: Study, n: float, d: float, **design: Any) -> RunRecord:
    chosen = Design(domain="web", axes={"N": n, "D": d}, **design)
    run = study.ledger.reserve([(chosen, n * d)]).granted[0]
    return study.tell(run.run_id, response=3.0, cost=n * d)


def _price(study: Study, n: float, d: float) -> list[float]:
    table = candidates.candidate_designs(study.spec, study.state)
    return table.cost[(table.domain == 0) & (table.x == [n, d]).all(axis=1)].tolist()


# ---- what is offered


def test_a_longer_run_costs_the_difference_once_its_beginning_is_done(study: Study) -> None:
    assert _price(study, 2, 4) == [8.0]
    _finish(study, 2, 1)
    assert _price(study, 2, 4) == [6.0] and _price(study, 1, 4) == [4.0] and _price(study, 2, 1) == []


def test_it_begins_at_the_share_where_the_checkpoint_is(tmp_path: Path) -> None:
    with _open(tmp_path, 'resume = { axis = "D", from = 0.75 }') as study:
        _finish(study, 2, 1)
        assert _price(study, 2, 4) == [8.0 - 1.5]


def test_without_the_option_every_run_begins_anew(tmp_path: Path) -> None:
    with _open(tmp_path, "") as study:
        _finish(study, 2, 1)
        assert _price(study, 2, 4) == [8.0]


def test_a_free_axis_offers_lengths_that_the_set_does_not_hold(tmp_path: Path) -> None:
    with _open(tmp_path, lengths="low = 1\nhigh = 100") as study:
        _finish(study, 2, 10)
        table = candidates.candidate_designs(study.spec, study.state)
        offers = continuing.offers(study.spec, study.state, candidates.all_designs(study.spec))
        assert offers is not None and {parent.design.axes["D"] for parent in offers.parents} == {10.0}
        assert offers.table.x[:, 1].tolist() == [15, 20, 30, 40, 60, 80]
        assert np.allclose(offers.table.cost, 2 * (offers.table.x[:, 1] - 10))
        affordable = offers.table.x[offers.table.cost <= study.state.remaining]
        assert len(affordable) == 4 and set(map(tuple, affordable)) <= set(map(tuple, table.x))


def test_the_longest_parent_is_gone_on_with(tmp_path: Path) -> None:
    with _open(tmp_path, lengths="values = [1, 2, 4]") as study:
        short, long = _finish(study, 2, 1), _finish(study, 2, 2)
        assert _price(study, 2, 4) == [4.0]
        (child,) = (run for run in study.ask(20) if run.design.axes == {"N": 2.0, "D": 4.0} and run.parent)
        assert child.parent == long.run_id != short.run_id


@pytest.mark.parametrize("end", ["diverged", "failed", "pending", "elsewhere"])
def test_only_runs_that_completed_here_are_gone_on_with(study: Study, end: str) -> None:
    if end == "elsewhere":
        study.attach({"N": 2, "D": 1}, 3.0, domain="web")
    else:
        run = study.ledger.reserve([(Design(domain="web", axes={"N": 2.0, "D": 1.0}), 2.0)]).granted[0]
        if end != "pending":
            study.ledger.diverge(run.run_id) if end == "diverged" else study.ledger.fail(run.run_id)
    assert _price(study, 2, 4) == [8.0]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ('resume = "M"', r"'M' is no axis of a length; axes: N, D"),
        ("resume = true", r"resume is True: write"),
        ('resume = { axis = "D", from = 1.5 }', r"from is 1.5; it must be a share"),
        ('resume = { axis = "D", to = 1 }', r"write \"D\""),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_do(tmp_path: Path, option: str, told: str) -> None:
    with _open(tmp_path, option) as study, pytest.raises(InputError, match=told):
        candidates.candidate_designs(study.spec, study.state)


def test_recorded_runs_cannot_be_gone_on_with(tmp_path: Path) -> None:
    with _open(tmp_path, kind="replay") as study, pytest.raises(InputError, match="recorded runs"):
        study.ask(1)


# ---- what is bought


def test_ask_says_what_to_go_on_with_and_the_ledger_keeps_it(study: Study) -> None:
    parent = _finish(study, 2, 1, seed=3)
    asked = {(run.design.axes["N"], run.design.axes["D"]): run for run in study.ask(20) if run.design.domain == "web"}
    child = asked[2, 4]
    assert child.parent == parent.run_id and child.design.seed == 3 and child.predicted_cost == 6.0
    assert child.reason["continues"] == {"run_id": parent.run_id, "axis": "D", "from": 1.0}
    assert f"goes on with run {parent.run_id} from D=1" in child.reason["why"]
    assert asked[1, 1].parent is None
    assert study.state.reserved == sum(run.predicted_cost for run in study.state.pending())
    study.tell(child.run_id, response=2.5, cost=6.5)
    assert replay(study.ledger.events(), total=100.0).runs[child.run_id].parent == parent.run_id
    assert study.state.spent == 2.0 + 6.5
    from planner import summary

    assert summary.run_values(study.ledger.run(child.run_id))["continues"]["run_id"] == parent.run_id


def test_the_run_is_the_same_as_from_scratch_and_is_bought_once(study: Study) -> None:
    _finish(study, 2, 1)
    child = next(run for run in study.ask(20) if run.parent)
    scratch = study.ledger.reserve([(child.design, 8.0)])
    assert [run.run_id for run in scratch.existing] == [child.run_id] and not scratch.granted


def test_one_training_run_has_one_effect_and_costs_what_it_took_from_the_start(tmp_path: Path) -> None:
    with _open(tmp_path, lengths="values = [1, 2, 4, 8]") as study:
        first, other = _finish(study, 2, 1), _finish(study, 1, 1)
        for d, cost in ((2.0, 2.0), (4.0, 4.0)):
            parent = next(run for run in study.state.runs.values() if run.design.axes == {"N": 2.0, "D": d / 2})
            reason = {"continues": {"run_id": parent.run_id, "axis": "D", "from": d / 2}}
            design = Design(domain="web", axes={"N": 2.0, "D": d})
            run = study.ledger.reserve([(design, cost)], [reason]).granted[0]
            study.tell(run.run_id, response=2.0, cost=cost)
        outcomes = {outcome.run_id: outcome for outcome in study.state.outcomes()}
        assert outcomes[other.run_id].curve is None and outcomes[other.run_id].cost == 1.0
        chain = [outcome for run_id, outcome in outcomes.items() if run_id != other.run_id]
        assert {outcome.curve for outcome in chain} == {first.run_id}
        assert [outcome.cost for outcome in chain] == [2.0, 4.0, 8.0]
        designs, aims = candidates.all_designs(study.spec), candidates.target_points(study.spec)
        data = inference.prepare(study.spec, study.state.outcomes(), designs, aims).data
        members = data.curve[0][data.is_real[0]].sum(axis=0)
        assert sorted(members[members > 0].tolist()) == [1, 3]


def test_what_going_on_costs_does_not_teach_what_runs_cost(study: Study) -> None:
    parent = _finish(study, 2, 1)
    reason = {"continues": {"run_id": parent.run_id, "axis": "D", "from": 1.0}}
    run = study.ledger.reserve([(Design(domain="web", axes={"N": 2.0, "D": 4.0}), 6.0)], [reason]).granted[0]
    study.tell(run.run_id, response=2.0, cost=6.0)  # of 8 from scratch
    model = costs.learn_costs(study.spec, study.state.runs.values())
    assert model is not None and model.num_runs == 1
    assert math.isclose(model.factor(np.array([0]), np.array([8.0]))[0], 1.0, rel_tol=1e-9)


# ---- in the loop


def test_the_loop_tells_the_backend_and_reserves_the_difference(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)
    ended = study.run(backend, sleep=lambda seconds: None)
    jobs = {job.run_id: job for job in backend.jobs.values()}
    children = [run for run in ended.state.runs.values() if run.parent]
    assert len(children) == 4 and len(ended.state.runs) == 8
    for run in children:
        told = jobs[run.run_id].continues
        assert told is not None and told.run_id == run.parent and (told.axis, told.begins) == ("D", 1.0)
        assert told.folder == jobs[run.run_id].folder.parent / str(run.parent)
        assert jobs[run.run_id].max_cost == 2.0 * run.predicted_cost == 2.0 * 3.0 * run.design.axes["N"]
    assert ended.state.spent == 2 * (1 + 2) + 2 * (3 + 6)
    assert all("resume" not in job.options for job in jobs.values())


def test_a_retry_goes_on_with_the_same_parent(study: Study) -> None:
    parent = _finish(study, 2, 1)
    child = next(run for run in study.ask(20) if run.parent)
    study.ledger.submitted(child.run_id, "h")
    study.ledger.preempt(child.run_id)
    assert study.ledger.retry(child.run_id).parent == parent.run_id
    study.ledger.fail(child.run_id)
    assert study.ledger.retry(child.run_id).parent == parent.run_id


TRAINER = """
from backends import jobfile

def train(job):
    done = 0.0
    if job.continues is not None:
        text = (job.continues.checkpoints / "tokens").read_text()
        assert job.continues.begins == float(text) == job.continues.axes["D"]
        done = float(text)
    n, d = job.axes["N"], job.axes["D"]
    jobfile.append_metric(d, 1.0 / d, n * (d - done), True)
    (job.checkpoints / "tokens").write_text(str(d))
    return jobfile.Result(response=1.0 + 1.0 / d, cost=n * (d - done), extra={"began": done})
"""


def _real(folder: Path) -> tuple[Study, Any]:
    (folder / "long_trainer.py").write_text(TRAINER)
    option = f'trainer = "long_trainer:train"\nslots = 1\n{RESUME}'
    study = _open(folder, option, kind="local", domains="")
    return study, open_backend("local", loop.backend_options(study.spec), folder)


def _run(study: Study, backend: Any, **limits: Any) -> loop.Ended:
    return study.run(backend, sleep=lambda seconds: time.sleep(0.02), **limits)


def test_real_runs_go_on_from_their_parents_checkpoint(tmp_path: Path) -> None:
    study, backend = _real(tmp_path)
    with study:
        ended = _run(study, backend)
        assert {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}
        children = [run for run in ended.state.runs.values() if run.parent]
        assert len(children) == 2 and ended.state.spent == 1 + 2 + 3 + 6
        for run in children:
            result = json.loads((tmp_path / "toy.runs" / run.run_id / "result.json").read_text())
            assert result["extra"]["began"] == 1.0 and run.cost == run.predicted_cost


def test_a_checkpoint_that_is_gone_fails_clearly_and_costs_nothing(tmp_path: Path) -> None:
    study, backend = _real(tmp_path)
    with study:
        _run(study, backend, max_runs=1)
        (parent,) = study.state.runs.values()
        (tmp_path / "toy.runs" / parent.run_id / "checkpoints" / "tokens").unlink()
        ended = _run(study, backend, max_runs=2)
        (failed,) = (run for run in ended.state.runs.values() if run.parent == parent.run_id)
        assert failed.state is RunState.FAILED and failed.attempt == 0 and failed.spent == 0.0
        assert f"cannot go on with run {parent.run_id}: no checkpoint in" in failed.message
        # The parent is not tried again; from scratch, at its full price, the design still may be.
        assert _price(study, *failed.design.axes.values()) == [4.0]
        ended = _run(study, backend)
        again = ended.state.runs[failed.run_id]
        assert again.state is RunState.COMPLETED and again.parent is None and again.cost == 4.0
