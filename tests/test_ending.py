"""Runs are given up by a word: ended where they are, and their budget is free when they are dead."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends import open_backend
from planner import loop
from planner.errors import InputError, UnknownRun
from planner.execution import Report
from planner.records import RunState
from planner.study import Study
from tests.worlds import STUDY, Cluster, FakeBackend, open_toy, write_study

ROOT = Path(__file__).resolve().parents[1]
WAIT_SECONDS = 90.0


class Mortal(FakeBackend):
    """A backend whose runs go on until they are cancelled, and die at the `dies`-th look after that (0: never)."""

    dies = 1

    def _report(self, handle: str) -> Report:
        run_id = handle.partition("/")[0]
        looks = self.cancelled.count(handle) and self.cluster.looks.get(handle, 0) + 1
        self.cluster.looks[handle] = looks
        state = RunState.CANCELLED if self.dies and looks >= self.dies else RunState.RUNNING
        return Report(run_id=run_id, handle=handle, state=state, cost=0.25 if state is RunState.CANCELLED else None)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_toy(write_study(tmp_path)) as study:
        yield study


def started(study: Study, backend: FakeBackend) -> list[str]:
    study.run(backend, max_seconds=1.5, clock=iter(range(99)).__next__)
    return [run.run_id for run in study.state.pending()]


def test_all_runs_of_the_loop_end_and_free_their_budget(study: Study) -> None:
    backend = Mortal(Cluster(), slots=3)
    runs = started(study, backend)
    by_hand = study.ask(1)[0]
    assert len(runs) == 3 and study.state.reserved > by_hand.predicted_cost
    ended = study.cancel_runs(backend)
    assert sorted(run.run_id for run in ended) == sorted(runs)
    assert {run.state for run in ended} == {RunState.CANCELLED} and study.state.spent == 0.75
    assert study.state.reserved == by_hand.predicted_cost  # nobody but its owner knows whether it runs
    assert study.cancel_runs(backend) == []
    assert [run.state for run in study.cancel_runs(backend, [by_hand.run_id])] == [RunState.CANCELLED]
    assert study.state.reserved == 0.0


def test_only_the_named_runs_end(study: Study) -> None:
    backend = Mortal(Cluster(), slots=3)
    runs = started(study, backend)
    study.cancel_runs(backend, [runs[1]])
    assert [run.run_id for run in study.state.pending()] == [runs[0], runs[2]]
    with pytest.raises(UnknownRun):
        study.cancel_runs(backend, ["nobody"])


def test_a_run_that_does_not_die_keeps_its_budget(study: Study) -> None:
    backend = Mortal(Cluster(), slots=1)
    backend.dies = 0
    (run_id,) = started(study, backend)
    (run,) = study.cancel_runs(backend, patience=0.3)
    assert run.state is RunState.RUNNING and run.run_id == run_id
    assert study.state.reserved == run.predicted_cost
    backend.dies = 1  # later it is found dead
    assert study.cancel_runs(backend)[0].state is RunState.CANCELLED
    assert study.state.reserved == 0.0


def test_an_intent_that_may_have_been_submitted_is_ended_where_it_may_run(study: Study) -> None:
    """The planner died between the submission and its record: the run may be at work under nobody's eyes."""
    backend = Mortal(Cluster(), slots=1, simulated=False)
    from planner.buying import buy

    (run,) = buy(study.spec, study.ledger, study.policy, 1, tag=loop.BY_LOOP).granted
    assert run.handle == ""
    (ended,) = study.cancel_runs(backend)
    assert ended.state is RunState.CANCELLED and backend.cancelled == [f"{run.run_id}/0"]
    assert backend.cluster.started == [(run.run_id, 0)]


def test_a_result_that_comes_first_stays(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)  # which does not listen: its runs complete
    (run_id,) = started(study, backend)
    (run,) = study.cancel_runs(backend)
    assert (run.run_id, run.state) == (run_id, RunState.COMPLETED)
    assert study.state.spent == run.cost


# ---- with real processes


def sleeper(folder: Path) -> Path:
    """A study on this machine whose runs sleep."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    backend = f'[backend]\nkind = "local"\nslots = 2\ngrace_seconds = 1\ncommand = {json.dumps(command)}\n'
    return write_study(folder, f"{STUDY}\n{backend}")


def planner(*arguments: object, folder: Path, **options: Any) -> "subprocess.Popen[str]":
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "planner.cli", *map(str, arguments)]
    return subprocess.Popen(line, cwd=folder, env=environment, text=True, **options)


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def sleepers(folder: Path) -> list[int]:
    """The trainers of the study in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "time.sleep(600)" in " ".join(process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                if str(folder) in process.environ().get("PLANNER_JOB", ""):
                    found.append(process.pid)
    return found


def _start_two(path: Path) -> None:
    with open_toy(path) as study:
        backend = open_backend("local", loop.backend_options(study.spec), path.parent)
        study.run(backend, max_runs=2, max_seconds=0.5)
    until(lambda: len(sleepers(path.parent)) == 2)


def test_cancel_by_the_command_line_kills_and_says_so(tmp_path: Path) -> None:
    path = sleeper(tmp_path)
    _start_two(path)
    process = planner("cancel", path, "--all", "--json", folder=tmp_path, stdout=subprocess.PIPE)
    document = json.loads(process.communicate(timeout=WAIT_SECONDS)[0])
    assert process.returncode == 0
    assert [run["state"] for run in document["runs"]] == ["cancelled", "cancelled"]
    assert document["budget"]["reserved"] == 0.0 and sleepers(tmp_path) == []


@pytest.mark.parametrize("arguments", [(), ("r123", "--all")])
def test_cancel_wants_names_or_all(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    from planner.ending import require_ids

    with pytest.raises(InputError, match="--all"):
        require_ids([each for each in arguments if each != "--all"], "--all" in arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [("c\n", 0), ("\n", 2), ("\x03", 2)])
def test_interrupted_at_a_terminal_it_asks_once(tmp_path: Path, answer: str, left: int) -> None:
    """Detach or cancel; detaching is the default: https://github.com/NVIDIA/JAX-Toolbox/issues/415"""
    path = sleeper(tmp_path)
    master, slave = pty.openpty()
    process = planner("run", path, "--max-runs", 2, folder=tmp_path, stdin=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""

    def see() -> bytes:
        nonlocal shown
        os.set_blocking(master, False)
        with contextlib.suppress(OSError):
            shown += os.read(master, 65536)
        return shown

    try:
        until(lambda: see() and len(sleepers(tmp_path)) == 2)
        process.send_signal(2)
        until(lambda: b"[d]etach" in see())
        if answer == "\x03":
            process.send_signal(2)
        else:
            os.write(master, answer.encode())
        until(lambda: (see(), process.poll())[1] is not None)
        see()
        assert process.returncode == 130 and shown.count(b"[d]etach") == 1
        assert f"planner run {path}".encode() in shown.replace(b"\r\n", b"")
        assert len(sleepers(tmp_path)) == left
        assert (f"planner cancel {path} --all".encode() in shown.replace(b"\r\n", b"")) == (left > 0)
    finally:
        os.close(master)
        with open_toy(path) as study:
            study.cancel_runs(open_backend("local", loop.backend_options(study.spec), tmp_path))
    assert sleepers(tmp_path) == []
