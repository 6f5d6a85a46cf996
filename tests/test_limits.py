"""Limits of memory, and what people see of the logs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends import open_backend, processes
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
    from backends.jobfile import JobFolder, last_lines

    folder = JobFolder(tmp_path)
    assert last_lines(tmp_path) == []
    folder.log.write_bytes(b"\xff\xfe" * 10_000 + b"\n\n   \nlast " + b"x" * 1000 + b"\n")
    assert last_lines(tmp_path, 1) == ["last " + "x" * 195]
