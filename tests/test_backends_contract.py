"""What every backend must do, run over all of them: one job that goes a certain way, on each backend that can do it."""

import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends import KINDS, open_backend
from planner.execution import BackendError, Job, Report
from planner.records import STATE_RULES, CurvePoint, Design, RunState
from tests import ray_head

pytestmark = pytest.mark.usefixtures("fake_slurm")

# One trainer for all scenarios; `case` comes with the options.  Standard library only: a start takes 0.1 s.
TRAINER = """
import os, signal, time
from backends import jobfile

def train(job):
    case = job.options["case"]
    if case == "completed":
        jobfile.append_metric(1, 3.0, 5.0)
        jobfile.write_result(2.5, 10.0, se=0.1)
    elif case == "diverged":
        jobfile.append_metric(1, float("nan"), 4.0)
        return jobfile.Result(response=float("nan"), cost=4.0)
    elif case == "failed":
        raise ValueError("no such corpus")
    elif case == "bad_job":
        raise jobfile.BadJob("depth must divide width")
    elif case == "out_of_memory":
        raise MemoryError("RESOURCE_EXHAUSTED: 80 GiB asked for")
    elif case == "timed_out":
        time.sleep(30)
    elif case == "lost":
        return None
    elif case == "preempted":
        checkpoint = job.checkpoints / "step"
        step = int(checkpoint.read_text()) if checkpoint.exists() else 0
        jobfile.append_metric(step + 1, 3.0, 5.0 * (step + 1))
        if step == 0:
            checkpoint.write_text("1")
            raise jobfile.Requeue("another job needs the machine")
        jobfile.write_result(2.5, 10.0)
    elif case == "endless":
        jobfile.append_metric(1, 3.0, 5.0)
        while not jobfile.should_stop():
            time.sleep(0.02)
        raise jobfile.Requeue("stopped")
"""

LAUNCHER = """
import sys
from pathlib import Path
import contract_trainer
from backends import jobfile, train

try:
    sys.exit(train._finish(contract_trainer.train(jobfile.parse_job(Path(sys.argv[1])))))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(jobfile.exit_code_of(error))
"""

EXPECTED = {
    "completed": RunState.COMPLETED,
    "diverged": RunState.DIVERGED,
    "failed": RunState.FAILED,
    "bad_job": RunState.FAILED,
    "out_of_memory": RunState.OUT_OF_MEMORY,
    "timed_out": RunState.TIMED_OUT,
    "lost": RunState.LOST,
    "preempted": RunState.PREEMPTED,
}
ABLE = {
    "command": tuple(EXPECTED),
    "local": tuple(EXPECTED),
    "ray": tuple(EXPECTED),
    "slurm": tuple(EXPECTED),
    "simulator": ("completed", "diverged", "failed", "out_of_memory", "timed_out", "lost", "preempted"),
    "replay": ("completed", "diverged", "failed", "out_of_memory", "timed_out", "lost"),
}
SLOW = {"ray"}  # a local cluster starts for ten seconds
FOLDERS = ("command", "local", "ray", "slurm")


def pairs(kinds: Iterable[str], *cases: str) -> list[Any]:
    """Parameters of `bench`: every kind with every case, by default all that the kind is able to."""
    return [
        pytest.param((kind, case), id=f"{kind}-{case}", marks=pytest.mark.slow if kind in SLOW else ())
        for kind in kinds
        for case in cases or ABLE[kind]
    ]


def kinds() -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]


class Bench(NamedTuple):
    """One backend on which a job goes the way of a case; `reopen` is what a restarted planner would do."""

    kind: str
    folder: Path
    options: dict[str, Any]
    case: str

    def reopen(self) -> Any:
        return open_backend(self.kind, self.options, self.folder)

    def job(self, attempt: int = 0, run_id: str = "r1") -> Job:
        return Job(
            run_id=run_id,
            design=Design(domain="web", axes={"N": 1e8, "D": 2e9}),
            folder=self.folder / "study.runs" / run_id,
            attempt=attempt,
            deadline_seconds=0.4 if self.case == "timed_out" else None,
            options={"predicted_cost": 10.0},
        )


def _local(folder: Path, case: str) -> dict[str, Any]:
    (folder / "contract_trainer.py").write_text(TRAINER)
    return {"trainer": "contract_trainer:train", "case": case, "slots": 2, "grace_seconds": 5.0}


def _simulator(folder: Path, case: str) -> dict[str, Any]:
    state = EXPECTED.get(case)
    failures = [{"state": str(state), "last_attempt": 0}] if state not in (None, RunState.COMPLETED) else []
    if case == "endless":
        return {"realtime_seconds": 60.0}
    return {"failures": failures}


def _replay(folder: Path, case: str) -> dict[str, Any]:
    state = "" if case in ("completed", "endless") else str(EXPECTED[case])
    response = "" if case == "diverged" else "2.5"
    with open(folder / "runs.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [["group", "N", "D", "loss", "flops", "end"], ["web", "1e8", "2e9", response, 10, state]]
        )
    return {"file": "runs.csv", "domain": "group", "response": "loss", "cost": "flops", "state": "end"}


def _command(folder: Path, case: str) -> dict[str, Any]:
    options = _local(folder, case)
    del options["trainer"]
    # A launcher that waits for its run: here Python on the same trainer.
    (folder / "launch.py").write_text(LAUNCHER)
    return options | {"command": [sys.executable, "launch.py", "{folder}"]}


def _ray(folder: Path, case: str) -> dict[str, Any]:
    return _local(folder, case) | {"latency_seconds": 1.0, "num_cpus": 0.5, "address": ray_head.shared().address}


def _slurm(folder: Path, case: str) -> dict[str, Any]:
    return _local(folder, case) | {"latency_seconds": 0.5, "timeout_seconds": 20}


MAKERS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "command": _command,
    "local": _local,
    "ray": _ray,
    "slurm": _slurm,
    "simulator": _simulator,
    "replay": _replay,
}


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, case = request.param
    yield Bench(kind, tmp_path, MAKERS[kind](tmp_path, case), case)


def wait(backend: Any, handle: str, until: Callable[[Report], bool], seconds: float = 40.0) -> Report:
    """Polls until a report meets `until`."""
    end = time.monotonic() + seconds
    while True:
        report = backend.poll([handle])[0]
        if until(report):
            return report
        assert time.monotonic() < end, f"still {report}"
        time.sleep(0.02)


def is_over(report: Report) -> bool:
    return STATE_RULES[report.state].final or report.state is RunState.PREEMPTED


def test_every_backend_is_tested_here() -> None:
    assert set(MAKERS) == set(KINDS)


@pytest.mark.parametrize("bench", pairs(KINDS), indirect=True)
def test_a_run_ends_in_the_right_state(bench: Bench) -> None:
    backend = bench.reopen()
    assert backend.slots >= 1 and isinstance(backend.simulated, bool)
    handle = backend.submit(bench.job())
    report = wait(backend, handle, is_over)

    assert (report.run_id, report.handle, report.state) == ("r1", handle, EXPECTED[bench.case])
    assert (report.response is not None) == (bench.case == "completed")
    assert report.cost is None or 0 <= report.cost <= 10.0
    assert bench.case == "completed" or report.message
    assert backend.poll([handle]) == [report], "an end does not change"
    backend.cancel(handle)
    assert backend.poll([handle]) == [report], "a finished run is left as it is"


@pytest.mark.parametrize("bench", pairs(KINDS, "completed"), indirect=True)
def test_a_job_submitted_twice_is_one_run(bench: Bench) -> None:
    backend = bench.reopen()
    first, second = backend.submit(bench.job()), backend.submit(bench.job())
    assert first == second
    report = wait(backend, first, is_over)
    assert report.state is RunState.COMPLETED and report.cost == 10.0
    assert backend.submit(bench.job()) == first, "also when it is over"
    assert backend.poll([first]) == [report]


@pytest.mark.parametrize("bench", pairs(KINDS, "completed"), indirect=True)
def test_a_restarted_planner_gets_the_same_answer(bench: Bench) -> None:
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    report = wait(backend, handle, is_over)

    again = bench.reopen()
    told = wait(again, handle, is_over)
    assert (told.state, told.response, told.cost) == (report.state, report.response, report.cost)
    # The intent was written, the handle was not: the job is submitted a second time.
    third = bench.reopen()
    resubmitted = wait(third, third.submit(bench.job()), is_over)
    assert (resubmitted.state, resubmitted.response) == (report.state, report.response)


@pytest.mark.parametrize("bench", pairs([*FOLDERS, "simulator"], "preempted"), indirect=True)
def test_the_second_attempt_of_a_preempted_run_completes(bench: Bench) -> None:
    backend = bench.reopen()
    first = backend.submit(bench.job(attempt=0))
    preempted = wait(backend, first, is_over)
    assert preempted.state is RunState.PREEMPTED and preempted.cost == 5.0
    second = backend.submit(bench.job(attempt=1))
    assert second != first
    report = wait(backend, second, is_over)
    assert report.state is RunState.COMPLETED and report.response is not None
    assert report.cost == 10.0, "the cost of the whole run, not of its last attempt"


@pytest.mark.parametrize("bench", pairs(FOLDERS, "preempted"), indirect=True)
def test_reports_bring_the_curve_of_all_attempts(bench: Bench) -> None:
    backend = bench.reopen()
    first = wait(backend, backend.submit(bench.job(attempt=0)), is_over)
    assert first.points == (CurvePoint(1.0, 3.0, 5.0, True),)
    handle = backend.submit(bench.job(attempt=1))
    both = (CurvePoint(1.0, 3.0, 5.0, True), CurvePoint(2.0, 3.0, 10.0, True))
    assert wait(backend, handle, is_over).points == both
    assert bench.reopen().poll([handle])[0].points == both, "also for another planner"


@pytest.mark.parametrize("bench", pairs([*FOLDERS, "simulator"], "endless"), indirect=True)
def test_a_cancelled_run_stays_cancelled(bench: Bench) -> None:
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    wait(backend, handle, lambda report: report.state is RunState.RUNNING)
    backend.cancel(handle)
    backend.cancel(handle)
    report = wait(backend, handle, is_over)
    assert report.state is RunState.CANCELLED
    assert backend.poll([handle]) == [report]


@pytest.mark.parametrize("bench", pairs(KINDS, "completed"), indirect=True)
def test_reports_come_in_the_order_of_the_handles(bench: Bench) -> None:
    backend = bench.reopen()
    handles = [backend.submit(bench.job(run_id=f"r{index}")) for index in range(5)]
    assert len(set(handles)) == 5
    assert [report.handle for report in backend.poll(handles[::-1])] == handles[::-1]
    for handle in handles:
        wait(backend, handle, is_over)
    assert {report.state for report in backend.poll(handles)} == {RunState.COMPLETED}


@pytest.mark.parametrize("kind", kinds())
def test_a_handle_of_nobody_is_lost_and_never_raises(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, MAKERS[kind](tmp_path, "completed"), tmp_path)
    for handle in ("", "nonsense", "7:gone/r9", "{}"):
        report = backend.poll([handle])[0]
        assert report.state is RunState.LOST and report.message
        backend.cancel(handle)


def test_an_unknown_kind_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"'locale'.*command, local, ray, replay, simulator, slurm"):
        open_backend("locale", {}, tmp_path)


@pytest.mark.parametrize("kind", kinds())
def test_a_wrong_number_of_slots_is_refused(kind: str, tmp_path: Path) -> None:
    options = MAKERS[kind](tmp_path, "completed")
    for slots in (0, -1, 1.5, "two", True):
        with pytest.raises(BackendError, match=r"slots"):
            open_backend(kind, options | {"slots": slots}, tmp_path)
