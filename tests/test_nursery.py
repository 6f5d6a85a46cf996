"""Workers and trainers that are forks: like processes of their own, for those who look and for those who kill."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backends import processes
from backends.jobfile import JobFolder
from backends.nursery import Nursery
from planner.records import RunState
from tests import test_local
from tests.test_local import is_gone, is_over, job_of, open_local, wait, wait_for

TRAINERS = """
import os, sys, time
from pathlib import Path
from backends import jobfile

def _daemon(path):
    # The way of daemons: two forks, a session of its own, and nothing left of the environment.
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    path.write_text(str(os.getpid()))
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {})

def daemon(job):
    _daemon(job.folder / "child")
    while not (job.folder / "child").exists():
        time.sleep(0.01)
    jobfile.write_result(1.0, 2.0)

def loader(job):
    # A data loader of `multiprocessing`: a fork that starts no program.
    if not os.fork():
        os.setsid()
        (job.folder / "child").write_text(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    time.sleep(60)

def half_a_line(job):
    sys.stdout.write("half a line")
    os.kill(os.getpid(), 9)

def at_exit(job):
    import atexit, threading
    def last():
        time.sleep(0.1)
        (job.folder / "last").write_text("done")
    threading.Thread(target=lambda: (time.sleep(0.1), atexit.register(last))).start()
    jobfile.write_result(1.0, 2.0, argv=sys.argv, cwd=os.getcwd(), group=os.getpgrp() == os.getpid())
"""


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "local_trainers.py").write_text(test_local.TRAINER + TRAINERS)
    yield tmp_path
    for path in tmp_path.glob("*.runs/*/child"):
        if psutil.pid_exists(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_a_daemon_that_left_everything_behind_is_killed(study: Path) -> None:
    backend = open_local(study, "daemon")
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is RunState.COMPLETED
    folder = JobFolder(study / "s.runs/r1")
    wait_for(folder.exit.exists)
    assert is_gone(int((folder.path / "child").read_text()))


def test_a_loader_is_found_when_worker_and_trainer_were_killed(study: Path) -> None:
    backend = open_local(study, "loader")
    handle = backend.submit(job_of(study))
    child = study / "s.runs/r1/child"
    wait_for(lambda: child.exists() and child.read_text() != "")
    note = json.loads((study / "s.runs/r1/process.json").read_text())
    backend.cancel(handle)
    killed = (note["pid"], note["trainer_pid"])
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(processes.identity(pid) is None for pid in killed))  # a kill takes a moment
    assert [process.pid for process in processes.family(note["token"], [])] == [int(child.read_text())]
    assert wait(backend, handle, is_over).state is RunState.CANCELLED
    assert is_gone(int(child.read_text()))


def test_what_a_trainer_says_is_in_the_log_however_it_dies(study: Path) -> None:
    backend = open_local(study, "half_a_line")
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is RunState.OUT_OF_MEMORY and report.log_tail.endswith("half a line")


def test_a_trainer_ends_like_a_program(study: Path) -> None:
    backend = open_local(study, "at_exit")
    wait(backend, backend.submit(job_of(study)), is_over)
    folder = JobFolder(study / "s.runs/r1")
    wait_for(folder.exit.exists)
    assert json.loads(folder.exit.read_text())["code"] == 0
    assert (folder.path / "last").read_text() == "done", "threads are waited for, and what was registered is called"
    told = json.loads(folder.result.read_text())["extra"]
    assert told == {"argv": ["trainer"], "cwd": str(study), "group": True}


def test_exit_codes_are_told_once_and_outlive_no_nursery(tmp_path: Path) -> None:
    nursery = Nursery(dict(os.environ))
    log = tmp_path / "log"
    first, second = (nursery.start(tmp_path, log, dict(os.environ)) for _ in range(2))
    wait_for(lambda: is_gone(first) and is_gone(second))
    assert nursery.exit_code(second) == nursery.exit_code(first) == 64, "there is no job in that folder"
    assert nursery.exit_code(first) is None and nursery.exit_code(os.getpid()) is None
    assert not psutil.pid_exists(first)
    killed = nursery._pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    third = nursery.start(tmp_path, log, dict(os.environ))
    wait_for(lambda: nursery.exit_code(third) == 64)
    assert nursery._pid not in (None, killed)
    nursery.close()


def test_a_closed_nursery_waits_for_its_workers_and_ends(study: Path) -> None:
    backend = open_local(study, seconds=0.5)
    backend.submit(job_of(study))
    nursery = next(iter(backend._nurseries.values()))
    pid = nursery._pid
    assert pid is not None
    wait_for((study / "s.runs/r1/process.json").exists)
    worker = json.loads((study / "s.runs/r1/process.json").read_text())["pid"]
    backend.close()
    time.sleep(0.1)
    assert not is_gone(pid) and not is_gone(worker)
    wait_for(lambda: not psutil.pid_exists(worker) and is_gone(pid))
    nursery.close()
    assert not psutil.pid_exists(pid)
