"""Inputs and faults that others met in public, one section each, with where they were met.

Where a whole file of tests is about such a case, `ELSEWHERE` names those tests.
"""

import ast
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.local import Local
from planner import loop
from planner.design.plan import plan_budget
from planner.design.surrogate import Surrogate
from planner.errors import InputError, SpecError
from planner.execution import Job, Report
from planner.importing import import_rows
from planner.ledger import Ledger
from planner.records import STATE_RULES, Design, RunState
from planner.spec import parse_study_toml
from planner.study import Study
from tests.worlds import STUDY, Cluster, FakeBackend, open_toy, write_study

TESTS = Path(__file__).parent
N = 'name = "N"\nvalues = [1, 2]'

ELSEWHERE = {
    "the planner is killed between submitting and saving: https://github.com/nextflow-io/nextflow/issues/970": (
        "test_kills.py::test_killed_at_random_moments_it_pays_once_and_loses_nothing",
        "test_loop.py::test_killed_at_any_step_it_pays_once_and_loses_nothing",
        "test_local.py::test_an_orphan_is_found_again_and_not_started_twice",
    ),
    "jobs are orphaned at the exit: https://github.com/NVIDIA/JAX-Toolbox/issues/415": (
        "test_ending.py::test_interrupted_at_a_terminal_it_asks_once",
        "test_cli.py::test_interrupted_it_says_how_to_go_on_and_goes_on",
    ),
    "the disk is full: https://github.com/ray-project/ray/issues/24918": (
        "test_ledger_faults.py::test_a_full_disk_keeps_the_old_state",
        "test_ledger_faults.py::test_writes_that_fail_half_way_keep_the_old_state",
        "test_ledger_faults.py::test_a_store_that_cannot_be_made_leaves_nothing",
        "test_disk_and_server.py::test_a_file_on_a_full_disk",
        "test_disk_and_server.py::test_the_command_line_on_a_full_disk_says_so_and_goes_on_later",
        "test_disk_and_server.py::test_a_server_whose_own_log_cannot_be_written",
    ),
    "two planners on one study: https://github.com/optuna/optuna/issues/820": (
        "test_ledger_faults.py::test_four_planners_of_four_share_a_budget_of_ten",
        "test_ledger_faults.py::test_a_second_writer_is_told_who_holds_the_store",
        "test_postgres.py::test_a_reader_sees_one_moment",
    ),
    "the reply to a submission is lost, the job runs: https://github.com/nextflow-io/nextflow/issues/970": (
        "test_slurm.py::test_a_job_whose_acceptance_was_lost_is_found_by_its_name",
    ),
    "the result file is late on shared storage: https://github.com/snakemake/snakemake/issues/775": (
        "test_slurm.py::test_a_job_that_nobody_knows_of_is_lost_when_its_files_cannot_be_late",
        "test_slurm.py::test_a_job_that_slurm_forgot_for_a_moment_keeps_its_time_for_late_files",
    ),
    "the device is held after the run: https://github.com/ray-project/ray/issues/31451": (
        "test_local.py::test_what_a_trainer_leaves_behind_is_killed",
        "test_local.py::test_cancelled_is_said_only_when_the_whole_tree_is_dead",
        "test_local.py::test_a_trainer_that_hangs_after_its_result_frees_its_slot",
    ),
    "many cancels upset a controller: https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/209": (
        "test_slurm.py::test_cancelled_jobs_leave_the_queue_in_one_request",
        "test_slurm.py::test_a_controller_that_refuses_cancels_is_left_alone_for_a_while",
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_the_tests_of_a_case_are_there(case: str) -> None:
    for name in ELSEWHERE[case]:
        file, _, test = name.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == test]
        assert found, f"{name} is gone"
        assert any(isinstance(each, ast.Assert | ast.With) for each in ast.walk(found[0])), f"{name} asserts nothing"


# ---- negative and missing costs, gains below zero: https://github.com/pytorch/botorch/pull/2297


def _spec(**replaced: str) -> Any:
    """The small study with parts of its text replaced, each written "old=>new"."""
    text = STUDY
    for old, _, new in (value.partition("=>") for value in replaced.values()):
        assert old in text
        text = text.replace(old, new)
    return parse_study_toml(text)


def write(folder: Path, text: str, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_negative_or_missing_cost_is_refused_by_row(tmp_path: Path) -> None:
    rows = write(tmp_path, "domain,N,D,loss,cost\nweb,1,1,3,1\nweb,1,4,3,-3\nweb,2,1,3,\nweb,2,4,3,inf\n")
    with pytest.raises(InputError) as caught:
        import_rows(_spec(), rows)
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(3, "cost"), (5, "cost")]
    pool = write(tmp_path, "domain,N,D,price\nweb,1,1,1\nweb,2,1,-3\ncode,2,1,nan\n", "pool.csv")
    priced = STUDY.replace("terms = [{ coefficient = 1, powers = { N = 1, D = 1 } }]", 'column = "price"')
    spec = parse_study_toml(f'{priced}\n[pool]\nfile = "{pool.name}"\ndomain = "domain"\n', path=tmp_path / "s.toml")
    with pytest.raises(InputError) as caught:
        _ = spec.pool_rows
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(3, "price"), (4, "price")]
    with Ledger.open(":memory:", study_name="s") as ledger, pytest.raises(InputError, match="zero or more"):
        ledger.reserve([(Design(domain="web", axes={"N": 1.0}), -3.0)])


def test_runs_that_tell_nothing_have_no_negative_worth_and_the_dearest_does_not_win() -> None:
    """Rounding makes an expected gain of zero negative, and divided by its cost the dearest the best."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        shared = rng.normal(size=(6, 3)) * 1e-9
        shared[0] = rng.normal(size=3)
        num = np.zeros(6, dtype=int)
        points = Surrogate(num, shared, np.zeros((6, 1)), np.zeros(6), np.full(6, 1e-3), np.zeros(6))
        target = Surrogate(num[:2], rng.normal(size=(2, 3)), np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros(2))
        cost = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 100.0])
        plan = plan_budget([points], [target], cost, budget=100.0)
        assert (plan.first_gains >= 0.0).all() and (plan.gains >= 0.0).all()
        assert plan.picks[0] == 0 and 5 not in plan.picks


# ---- billions in one set and plain numbers in others


@pytest.mark.parametrize("unit", ["", "parameters"])
@pytest.mark.parametrize("role", ["parameters", "active_parameters"])
def test_a_few_parameters_are_doubted(unit: str, role: str) -> None:
    axis = f'name = "N"\nrole = "{role}"\nunit = "{unit}"\nlow = 1.86\nhigh = 12.2'
    assert any("W:small_parameters" in each and "12.2" in each for each in _spec(axis=f"{N}=>{axis}").warnings)
    for other in (axis.replace(f'unit = "{unit}"', 'unit = "billions"'), axis.replace("12.2", "1e9")):
        assert not any("W:small_parameters" in each for each in _spec(axis=f"{N}=>{other}").warnings)


def test_a_few_parameters_are_doubted_where_the_pool_gives_the_bounds(tmp_path: Path) -> None:
    write(tmp_path, "N,D,domain\n1.86,1,web\n12.2,4,code\n", "pool.csv")
    text = STUDY.replace(N, 'name = "N"\nrole = "parameters"') + '\n[pool]\nfile = "pool.csv"\ndomain = "domain"\n'
    spec = parse_study_toml(text, path=tmp_path / "s.toml")
    assert spec.axes[0].high == 12.2 and any("W:small_parameters" in each for each in spec.warnings)


# ---- parameters counted in two ways: https://github.com/plantcad/plantcad/pull/38, huggingface/trl/pull/6709

COUNTED = N + '\nrole = "parameters"\nconvention = "non-embedding"'


def test_two_ways_of_counting_are_refused_unless_one_is_converted(tmp_path: Path) -> None:
    rows = write(tmp_path, "domain,N,D,loss,convention\nweb,1,1,3,non-embedding\nweb,4,4,2,tied\nweb,2,1,3,\n")
    with pytest.raises(InputError, match=r"no conversion.*tied") as caught:
        import_rows(_spec(axis=f"{N}=>{COUNTED}"), rows)
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (3, "convention") and "conversions" in problem.hint
    converted = _spec(axis=f"{N}=>{COUNTED}\nconversions = {{ tied = 0.5 }}")
    assert [row["design"].axes["N"] for row in import_rows(converted, rows)] == [1.0, 2.0, 2.0]


def test_one_way_of_counting_must_be_that_of_the_study(tmp_path: Path) -> None:
    rows = write(tmp_path, "domain,N,D,loss,N_convention\nweb,1,1,3,tied\nweb,2,1,3,tied\n")
    with pytest.raises(InputError, match='convention = "tied" in axis N'):
        import_rows(_spec(), rows)
    with pytest.raises(SpecError, match="conversions need one to convert to"):
        _spec(axis=f"{N}=>{N}\nconversions = {{ tied = 0.5 }}")


def test_the_pool_is_counted_as_the_study_counts(tmp_path: Path) -> None:
    write(tmp_path, "N,D,domain,convention\n1,1,web,\n4,4,code,tied\n", "pool.csv")
    text = STUDY.replace(N, COUNTED.replace("values = [1, 2]", "") + "\nconversions = { tied = 0.5 }")
    text += '\n[pool]\nfile = "pool.csv"\ndomain = "domain"\n'
    assert parse_study_toml(text, path=tmp_path / "s.toml").pool_rows.x[:, 0].tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match="no conversion"):
        _ = parse_study_toml(text.replace("tied = ", "other = "), path=tmp_path / "s.toml").pool_rows


# ---- money, time and operations in one study


def test_a_study_has_one_unit_of_cost_and_conversions_are_declared_once(tmp_path: Path) -> None:
    dollars = 'unit = "hour"=>unit = "hour"\nconversions = { USD = 0.5, day = 24 }'
    rows = write(
        tmp_path, "domain,N,D,loss,cost,cost_unit\nweb,1,1,3,2,hour\nweb,1,4,3,4,USD\nweb,2,1,3,1,day\nweb,2,4,3,5,\n"
    )
    assert [row["cost"] for row in import_rows(_spec(cost=dollars), rows)] == [2.0, 2.0, 24.0, 5.0]
    with pytest.raises(InputError, match="conversions") as caught:
        import_rows(_spec(), rows)
    assert [(problem.line, problem.value) for problem in caught.value.problems] == [(3, "USD"), (4, "day")]


def test_what_a_run_cost_may_be_told_in_a_unit_that_is_declared(tmp_path: Path) -> None:
    text = STUDY.replace('unit = "hour"', 'unit = "hour"\nconversions = { USD = 0.5 }')
    with open_toy(write_study(tmp_path, text)) as study:
        told, failed, other = study.ask(3)
        assert study.tell(told.run_id, response=2.0, cost=3.0, cost_unit="USD").cost == 1.5
        assert study.fail(failed.run_id, cost=3.0, cost_unit="hour").cost == 3.0
        with pytest.raises(InputError, match=r"no conversion from 'FLOP'.*conversions"):
            study.tell(other.run_id, response=2.0, cost=3.0, cost_unit="FLOP")
        with pytest.raises(InputError, match="without a cost"):
            study.tell(other.run_id, response=2.0, cost_unit="USD")
        assert study.state.spent == 4.5


# ---- an export of a tracker is a sample, and infinity a large number:
# https://github.com/wandb/wandb/issues/1783, https://github.com/mlflow/mlflow/pull/22827


@pytest.mark.parametrize("limit", ["1.7976931348623157e308", "-1.7976931348623157e+308", "1.797e308"])
def test_a_response_at_the_limit_of_numbers_is_a_diverged_run(tmp_path: Path, limit: str) -> None:
    path = write_study(tmp_path)
    rows = [
        write(tmp_path, f"domain,N,D,loss\nweb,1,1,{limit}\nweb,2,1,3\n"),
        write(tmp_path, f'{{"domain": "code", "N": 1, "D": 1, "loss": {limit}}}\n', "runs.jsonl"),
    ]
    with Study.open(path) as study:
        for file in rows:
            assert any("W:infinite" in warning for warning in study.attach_file(file).warnings)
        states = [run.state for run in study.state.runs.values()]
    assert states == [RunState.DIVERGED, RunState.COMPLETED, RunState.DIVERGED]


@pytest.mark.parametrize("key", ["N", "cost", "se"])
def test_other_values_at_the_limit_of_numbers_are_refused(tmp_path: Path, key: str) -> None:
    values = {"domain": "web", "N": "1", "D": "1", "loss": "3", "cost": "1", "se": "0.1", key: "1.7976931348623157e308"}
    file = write(tmp_path, f"{','.join(values)}\n{','.join(values.values())}\n")
    with pytest.raises(InputError) as caught:
        import_rows(_spec(), file)
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(2, key)]


def _history(num: int, run: str, n: int, *, last: str = "2.0") -> list[str]:
    losses = [f"{9 - 6 * i / num}" for i in range(num - 1)] + [last]
    return [f"{run},web,{n},1,{loss},{10 * i}" for i, loss in enumerate(losses)]


def test_points_of_a_history_are_no_replicates_and_a_sample_is_said(tmp_path: Path) -> None:
    lines = [*_history(500, "a", 1), *_history(7, "b", 2, last=""), "c,code,1,1,2.5,0"]
    file = write(tmp_path, "\n".join(["run,domain,N,D,loss,_step", *lines]) + "\n")
    rows = import_rows(_spec(), file)
    assert [(row["curve"], row["response"]) for row in rows] == [("a", 2.0), ("b", 9 - 6 * 5 / 7), ("c", 2.5)]
    (sampled,) = [warning for warning in rows.warnings if "W:sampled_export" in warning]
    assert "1 runs have exactly 500 rows" in sampled and "scan_history()" in sampled
    assert any("W:curve_point 505 rows" in warning for warning in rows.warnings)


def test_a_history_in_which_runs_have_no_name_is_told_apart_by_its_designs(tmp_path: Path) -> None:
    lines = [line.partition(",")[2] for line in [*_history(9, "a", 1), *_history(9, "b", 2)]]
    rows = import_rows(_spec(), write(tmp_path, "\n".join(["domain,N,D,loss,_step", *lines]) + "\n"))
    assert [(row["design"].axes["N"], row["response"]) for row in rows] == [(1.0, 2.0), (2.0, 2.0)]
    assert not any("W:sampled_export" in warning for warning in rows.warnings)


# ---- a job dies half-way: https://github.com/optuna/optuna/issues/485, https://github.com/automl/neps/issues/30


@dataclass
class Moody(FakeBackend):
    """A backend whose runs end as `end` says; what they had cost is told while they run."""

    end: Callable[[Job], RunState] = lambda job: RunState.LOST
    cost_so_far: float = 0.5

    def _report(self, handle: str) -> Report:
        report = super()._report(handle)
        state = self.end(self.jobs[handle])
        if report.state is RunState.RUNNING:
            return Report(run_id=report.run_id, handle=handle, state=report.state, cost=self.cost_so_far, progress={})
        if state is RunState.COMPLETED:
            return report
        return Report(run_id=report.run_id, handle=handle, state=state, message="gone")


def test_a_lost_run_is_tried_again_by_the_rule_and_charged_for_what_it_used(tmp_path: Path) -> None:
    backend = Moody(Cluster(), slots=1)
    with open_toy(write_study(tmp_path)) as study:
        study.run(backend, max_runs=1)
        (run,) = study.state.runs.values()
        attempts = 1 + loop.MAX_RETRIES[RunState.LOST]
        assert (run.state, len(backend.cluster.started)) == (RunState.LOST, attempts)
        assert study.state.reserved == 0.0
        assert study.state.spent == pytest.approx(0.5 * attempts)


def test_a_run_that_its_backend_does_not_miss_is_not_lost(tmp_path: Path) -> None:
    backend = Moody(Cluster(), slots=1, end=lambda job: RunState.COMPLETED)
    quiet = Report(run_id="", handle="", state=RunState.SUBMITTED, message="the controller does not answer")
    backend.poll = lambda handles: [quiet for _ in handles]  # type: ignore[method-assign]
    with open_toy(write_study(tmp_path)) as study:
        study.run(backend, max_runs=1, max_seconds=30.0, clock=iter(range(1000)).__next__, sleep=lambda seconds: None)
        (run,) = study.state.runs.values()
        assert run.state is RunState.SUBMITTED and study.state.reserved == run.predicted_cost


# ---- exit code 0 without a result, and a kill at the time limit that reads as success:
# https://github.com/QMCPACK/qmcpack/issues/6009, https://github.com/facebookresearch/hydra/issues/1928

QUIET_TRAINER = """
import os, signal, sys, time

def nothing(job):
    os._exit(0)

def polite(job):
    signal.signal(signal.SIGTERM, lambda *a: os._exit(0))
    time.sleep(60)

def half(job):
    open(os.environ["PLANNER_RESULT"], "w").write('{"response": 2.')
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("trainer", "deadline", "state"),
    [("nothing", None, RunState.LOST), ("polite", 0.6, RunState.TIMED_OUT), ("half", None, RunState.LOST)],
)
def test_only_a_valid_result_is_success(tmp_path: Path, trainer: str, deadline: float | None, state: RunState) -> None:
    (tmp_path / "quiet_trainer.py").write_text(QUIET_TRAINER)
    backend = Local({"trainer": f"quiet_trainer:{trainer}", "slots": 1, "grace_seconds": 0.5}, tmp_path)
    design = Design(domain="web", axes={"N": 1.0})
    job = Job(run_id="r1", design=design, folder=tmp_path / "s.runs" / "r1", deadline_seconds=deadline)
    handle, report = backend.submit(job), None
    for _ in range(2000):
        (report,) = backend.poll([handle])
        if STATE_RULES[report.state].final:
            break
        threading.Event().wait(0.02)
    assert report is not None and (report.state, report.response) == (state, None)


# ---- out of memory, always: https://github.com/ray-project/ray/pull/28714


def test_where_memory_never_suffices_nothing_is_asked_any_more(tmp_path: Path) -> None:
    def end(job: Job) -> RunState:
        is_large = job.design.domain == "web" and job.design.axes["N"] >= 2
        return RunState.OUT_OF_MEMORY if is_large else RunState.COMPLETED

    backend = Moody(Cluster(), slots=1, end=end)
    with open_toy(write_study(tmp_path)) as study:
        ended = study.run(backend)
        large = [run for run in study.state.runs.values() if run.design.domain == "web" and run.design.axes["N"] >= 2]
        tried = [attempt for attempt in backend.cluster.started if attempt[0] in {run.run_id for run in large}]
        # Of the two designs with too many parameters the smaller was tried, and once more; the larger never was.
        assert [(run.state, run.design.axes["D"]) for run in large] == [(RunState.OUT_OF_MEMORY, 1.0)]
        assert len(tried) == 2 == 1 + loop.MAX_RETRIES[RunState.OUT_OF_MEMORY]
        assert large[0].response is None and large[0].run_id not in {each.run_id for each in study.state.outcomes()}, (
            "no observation of the response"
        )
        assert ended.state.reserved == 0.0
        assert sum(run.state is RunState.COMPLETED for run in study.state.runs.values()) == 6


# ---- a reader while another writes: https://github.com/optuna/optuna-dashboard/issues/545


def test_readers_never_wait_for_a_writer(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with open_toy(path) as study:
        study.ask(1)
        with study.ledger._store.writing() as writer:
            with Study.open(path, read_only=True) as reader:
                before = json.dumps(reader.status())
            assert '"proposed": 1' in before
            writer.set_meta("note", "still writing")
        assert math.isfinite(study.state.remaining)
