"""Limits of memory, and what people see of the logs."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends import jobfile, jsonfile, open_backend, processes, used
from backends.jobfile import JobFolder, last_lines
from backends.local import Local
from planner import cli
from planner.execution import BackendError
from planner.records import RunState
from tests import test_local
from tests.test_local import is_over, job_of, wait
from tests.worlds import open_toy, write_study

TRAINERS = """
import mmap, os, sys, time
from backends import jobfile

def _fill(megabytes, shared=False):
    memory = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, megabytes << 20, 4096):
        memory[start] = 1
    return memory

def hungry(job):
    # Three processes with a hundred megabytes each: none of them is too large by itself.
    for _ in range(2):
        if not os.fork():
            os.setsid()
            memory = _fill(100)
            time.sleep(60)
            os._exit(0)
    memory = _fill(100)
    print("all is read", flush=True)
    time.sleep(60)

def sharing(job):
    # A data set that three processes read is there once.
    memory = _fill(150, shared=True)
    children = []
    for _ in range(2):
        children.append(os.fork())
        if not children[-1]:
            sum(memory[start] for start in range(0, len(memory), 4096))
            time.sleep(2.5)
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    jobfile.write_result(1.0, 2.0)
"""


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "limit_trainers.py").write_text(TRAINERS)
    yield tmp_path


def _open(study: Path, trainer: str, gigabytes: float) -> Local:
    return Local({"trainer": f"limit_trainers:{trainer}", "slots": 1, "memory_gb": gigabytes}, study)


def test_a_run_that_holds_too_much_is_killed_and_says_how_much(study: Path) -> None:
    backend = _open(study, "hungry", 0.25)
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is RunState.OUT_OF_MEMORY
    held = re.search(r"its processes held (\S+) GB, and memory_gb is 0.25", report.message)
    assert held is not None and 0.25 < float(held[1]) < 0.6
    note = json.loads((study / "s.runs/r1/process.json").read_text())
    assert not processes.family(note["token"], [])


def test_shared_memory_counts_once(study: Path) -> None:
    backend = _open(study, "sharing", 0.3)
    assert wait(backend, backend.submit(job_of(study)), is_over).state is RunState.COMPLETED


@pytest.mark.parametrize("value", [-1, "64G", True])
def test_a_limit_that_is_none_is_refused_before_runs_are_bought(study: Path, value: object) -> None:
    with pytest.raises(BackendError, match="memory_gb"):
        open_backend("local", {"command": ["true"], "memory_gb": value}, study)


def test_out_of_memory_twice_closes_the_region(tmp_path: Path) -> None:
    (tmp_path / "limit_trainers.py").write_text(
        TRAINERS
        + """
def by_size(job):
    if job.axes["N"] > 1:
        hungry(job)
    jobfile.write_result(2.0, job.axes["N"] * job.axes["D"])
"""
    )
    path = write_study(tmp_path)
    backend = 'kind = "local"\nslots = 2\ntrainer = "limit_trainers:by_size"\nmemory_gb = 0.25\n'
    path.write_text(f"{path.read_text()}\n[backend]\n{backend}")
    with open_toy(path) as study:
        ended = study.run(open_backend("local", study.spec.backend.options, tmp_path))
    small = [run for run in ended.state.runs.values() if run.design.axes["N"] == 1]
    large = [run for run in ended.state.runs.values() if run.design.axes["N"] == 2]
    assert len(small) == 4 and {run.state for run in small} == {RunState.COMPLETED}
    assert {run.state for run in large} == {RunState.OUT_OF_MEMORY}
    assert {run.ends["out_of_memory"] for run in large} == {2}
    assert len(large) < 4, "the larger designs are not even tried"


def _folder(path: Path, **files: dict[str, Any]) -> JobFolder:
    for name, content in files.items():
        jsonfile.write_json(path / f"{name}.json", content)
    return JobFolder(path)


def test_an_attempt_without_a_word_is_charged_its_time(tmp_path: Path) -> None:
    job = {"run_id": "r9", "attempt": 0, "max_cost": 1000.0, "axes": {}, "domain": "web", "seed": 0}
    lost = _folder(tmp_path / "r9", job=job, process={"attempt": 0, "started_at": 5000.0})
    for path in (lost.process, lost.job):
        os.utime(path, (5030.0, 5030.0))
    assert used.cost_of_time(lost, job) is None, "nothing has finished yet"
    for name, cost, seconds in (("r1", 50.0, 100.0), ("r2", 10.0, 20.0), ("r3", 900.0, 30.0)):
        ending = {"attempt": 0, "code": 0, "started_at": 1000.0, "ended_at": 1000.0 + seconds}
        _folder(tmp_path / name, exit=ending, result={"response": 1.0, "cost": cost})
    _folder(tmp_path / "r4", exit={"attempt": 0, "code": 1, "started_at": 1.0, "ended_at": 2.0}, result={"cost": 1e9})
    assert used.cost_of_time(lost, job) == pytest.approx(0.5 * 40.0), "30 s, and 10 until the next sign of life"
    assert used.cost_of_time(lost, job | {"max_cost": 7.0}) == 7.0
    assert used.cost_of_time(lost, job | {"attempt": 1}) is None, "that one never began"
    report = Local({"command": ["true"], "slots": 1}, tmp_path).poll(["0:r9"])[0]
    assert report.state is RunState.LOST and report.cost == pytest.approx(20.0)
    lost.metrics.write_text('{"step": 1, "value": 3.0, "cost": 4.5}\n')
    assert Local({"command": ["true"], "slots": 1}, tmp_path).poll(["0:r9"])[0].cost == 4.5, "its own word goes first"


def test_a_failure_is_charged_until_it_failed(tmp_path: Path) -> None:
    good = {"attempt": 0, "code": 0, "started_at": 0.5, "ended_at": 10.5}
    _folder(tmp_path / "r1", exit=good, result={"response": 1.0, "cost": 30.0})
    job = {"run_id": "r2", "attempt": 1}
    process = {"attempt": 1, "started_at": 100.0}
    failed = _folder(tmp_path / "r2", job=job, process=process, exit={"attempt": 1, "code": 1, "ended_at": 104.0})
    assert used.cost_of_time(failed, job) == pytest.approx(12.0)
    jsonfile.write_json(failed.exit, {"attempt": 1, "code": jobfile.BAD_JOB, "ended_at": 104.0})
    assert used.cost_of_time(failed, job) is None


def test_status_shows_the_end_of_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "local_trainers.py").write_text(test_local.TRAINER)
    path = write_study(tmp_path)
    path.write_text(path.read_text() + '\n[backend]\nkind = "local"\nslots = 2\ncommand = ["cat", "no such file"]\n')
    with open_toy(path) as study:
        ended = study.run(open_backend("local", study.spec.backend.options, tmp_path))
        assert ended.stop.reason == "runs_fail"
    cli.app(["status", str(path)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "log of r" in shown and "No such file or directory" in shown
    cli.app(["status", str(path), "--json"], standalone_mode=False)
    logs = json.loads(capsys.readouterr().out)["logs"]
    assert {log["state"] for log in logs} == {"failed"} and all(len(log["lines"]) <= 3 for log in logs)
    assert {log["run_id"] for log in logs} <= set(ended.state.runs)


def test_a_log_that_is_binary_and_endless_is_cut(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert last_lines(tmp_path) == []
    folder.log.write_bytes(b"\xff\xfe" * 10_000 + b"\n\n   \nlast " + b"x" * 1000 + b"\n")
    assert last_lines(tmp_path, 1) == ["last " + "x" * 195]
