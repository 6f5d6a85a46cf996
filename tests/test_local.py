"""The local backend and its worker: processes that die, hang, hide and survive their planner."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from backends import jobfile, jsonfile, local, processes
from backends.jobfile import JobFolder
from backends.local import Local
from backends.slots import slots_from
from planner.execution import BackendError, Job, Report
from planner.records import STATE_RULES, Design, RunState

ROOT = Path(__file__).resolve().parents[1]

# Every start leaves a line in "starts": that is how a second start would be seen.
TRAINER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from backends import jobfile

def _start(job):
    with open(job.working_folder / "starts", "a") as file:
        file.write(f"{job.run_id} {job.attempt}\\n")

def short(job):
    _start(job)
    time.sleep(job.options.get("seconds", 0.0))
    jobfile.write_result(1.0, 2.0)

def environment(job):
    names = job.options["names"]
    jobfile.write_result(1.0, 2.0, names={name: os.environ.get(name) for name in names})

def endless(job):
    _start(job)
    while not jobfile.should_stop():
        time.sleep(0.02)
    raise jobfile.Requeue(jobfile.should_stop())

def deaf(job):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(60)"],
                     start_new_session=True)
    _start(job)
    time.sleep(60)

def late(job):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _start(job)
    while not Path(os.environ["PLANNER_CANCEL"]).exists():
        time.sleep(0.01)
    time.sleep(0.3)
    jobfile.write_result(1.0, 2.0)

def leaves_a_child(job):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    jobfile.write_result(1.0, 2.0, child=child.pid)
    os._exit(0)

def hangs_after_result(job):
    jobfile.write_result(1.0, 2.0)
    time.sleep(60)

def costly(job):
    for step in range(2000):
        jobfile.append_metric(step, 3.0, float(step))
        time.sleep(0.01)

def writes(job):
    Path(os.environ["PLANNER_RESULT"]).write_text(job.options["text"])

def dies(job):
    jobfile.append_metric(1, 3.0, 1.5)
    os.kill(os.getpid(), job.options["signal"])
    time.sleep(60)
"""


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Path]:
    """The folder of a study; whatever a test has left running there is killed."""
    (tmp_path / "local_trainers.py").write_text(TRAINER)
    yield tmp_path
    for path in tmp_path.glob("*.runs/*/process.json"):
        note = jsonfile.read_json(path) or {}
        assert processes.kill_family(note.get("token"), [(note.get("pid"), note.get("identity"))], timeout=5.0)


def open_local(study: Path, trainer: str = "short", **options: Any) -> Local:
    return Local({"trainer": f"local_trainers:{trainer}", "slots": 2, "grace_seconds": 0.3} | options, study)


def job_of(study: Path, run_id: str = "r1", attempt: int = 0, **changes: Any) -> Job:
    design = Design(domain="web", axes={"N": 1e9, "lr": 3.5e-4}, seed=1)
    return Job(run_id=run_id, design=design, folder=study / "s.runs" / run_id, attempt=attempt, **changes)


def wait(backend: Local, handle: str, until: Callable[[Report], bool], seconds: float = 20.0) -> Report:
    end = time.monotonic() + seconds
    while not until(report := backend.poll([handle])[0]):
        assert time.monotonic() < end, f"still {report}"
        time.sleep(0.02)
    return report


def is_over(report: Report) -> bool:
    return STATE_RULES[report.state].final or report.state is RunState.PREEMPTED


def is_running(report: Report) -> bool:
    return report.state is RunState.RUNNING


def starts(study: Path) -> list[str]:
    path = study / "starts"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    return processes.identity(pid) is None


def zombies(study: Path) -> list[int]:
    """Workers of this study that nobody waited for."""
    pids = [json.loads(path.read_text())["pid"] for path in study.glob("s.runs/*/process.json")]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE]


# ---- a planner that dies --------------------------------------------------------------------------------------------

PLANNER = """
import sys, time
from pathlib import Path
from backends.local import Local
from backends.slots import slots_from
from planner.execution import Job
from planner.records import Design

study = Path(sys.argv[1])
backend = Local({"trainer": "local_trainers:short", "seconds": 1.0, "slots": 1, "grace_seconds": 0.3}, study)
for run_id in sys.argv[2:]:
    design = Design(domain="web", axes={"N": 1e9, "lr": 3.5e-4}, seed=1)
    print(backend.submit(Job(run_id=run_id, design=design, folder=study / "s.runs" / run_id)), flush=True)
time.sleep(60)
"""


def kill_a_planner(study: Path, run_ids: list[str], *, started: bool) -> list[str]:
    """Lets another process submit jobs and kills it with SIGKILL; returns the handles it was given."""
    command = [sys.executable, "-c", PLANNER, str(study), *run_ids]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as planner:
        assert planner.stdout is not None
        handles = [planner.stdout.readline().strip() for _ in run_ids]
        if started:
            wait_for(lambda: len(starts(study)) == 1)
        planner.kill()
    return handles


@pytest.mark.parametrize("started", [True, False], ids=["trainer-runs", "worker-starts"])
def test_an_orphan_is_found_again_and_not_started_twice(study: Path, started: bool) -> None:
    handle = kill_a_planner(study, ["r1"], started=started)[0]
    backend = open_local(study, seconds=1.0)
    assert backend.submit(job_of(study)) == handle
    report = wait(backend, handle, is_over)
    assert report.state is RunState.COMPLETED and report.response == 1.0
    assert starts(study) == ["r1 0"]


def test_an_orphan_that_ended_meanwhile_is_picked_up(study: Path) -> None:
    handle = kill_a_planner(study, ["r1"], started=True)[0]
    wait_for((study / "s.runs/r1/exit.json").exists)
    backend = open_local(study, seconds=1.0)
    assert backend.poll([handle])[0].state is RunState.COMPLETED
    assert backend.submit(job_of(study)) == handle
    assert starts(study) == ["r1 0"]


def test_a_queue_survives_its_planner_and_orphans_keep_their_slots(study: Path) -> None:
    handles = kill_a_planner(study, ["r1", "r2", "r3"], started=True)
    backend = open_local(study, seconds=0.1, slots=1)
    reports = backend.poll(handles)
    assert [report.state for report in reports] == [RunState.RUNNING, RunState.SUBMITTED, RunState.SUBMITTED]
    assert all("waiting for a free slot" in report.message for report in reports[1:])
    for handle in handles:
        assert wait(backend, handle, is_over).state is RunState.COMPLETED
    assert starts(study) == ["r1 0", "r2 0", "r3 0"]


def test_two_workers_on_one_folder_start_one_trainer(study: Path) -> None:
    backend = open_local(study, seconds=0.3)
    handle = backend.submit(job_of(study))
    folder = JobFolder(study / "s.runs/r1")
    command = [sys.executable, "-m", "backends.worker", str(folder.path)]
    with open(folder.log, "ab") as log:
        others = [subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) for _ in range(2)]
        assert wait(backend, handle, is_over).state is RunState.COMPLETED
        assert [other.wait(timeout=20) for other in others] == [0, 0]
    wait_for(folder.exit.exists)
    assert subprocess.run(command, cwd=ROOT, timeout=20, check=False).returncode == 0, "a worker that comes too late"
    assert starts(study) == ["r1 0"]


def test_a_recycled_pid_is_not_taken_for_the_worker(study: Path) -> None:
    backend = open_local(study, "endless")
    handle = backend.submit(job_of(study))
    wait(backend, handle, is_running)
    folder = JobFolder(study / "s.runs/r1")
    note = json.loads(folder.process.read_text())
    assert processes.kill_family(note["token"], [(note["pid"], note["identity"])], timeout=5.0)
    # Somebody else has the pids now: this process, with its own start time.
    jsonfile.write_json(folder.process, note | {"pid": os.getpid(), "trainer_pid": os.getpid()})
    report = open_local(study).poll([handle])[0]
    assert report.state is RunState.LOST and "left no record" in report.message


def test_a_worker_on_another_machine_is_believed_until_it_is_silent(study: Path) -> None:
    backend = open_local(study)
    handle = backend.submit(job_of(study))
    wait(backend, handle, is_over)
    folder = JobFolder(study / "s.runs/r1")
    wait_for(folder.exit.exists)
    for path in (folder.exit, folder.result):
        path.unlink()
    note = json.loads(folder.process.read_text())
    jsonfile.write_json(folder.process, note | {"host": "elsewhere"})
    assert open_local(study).poll([handle])[0].state is RunState.RUNNING
    os.utime(folder.process, (time.time() - 1000, time.time() - 1000))
    assert open_local(study).poll([handle])[0].state is RunState.LOST


# ---- slots ----------------------------------------------------------------------------------------------------------


def test_no_more_runs_at_once_than_slots(study: Path) -> None:
    backend = open_local(study, "endless", slots=2)
    handles = [backend.submit(job_of(study, f"r{index}")) for index in range(3)]
    wait_for(lambda: len(starts(study)) == 2)
    for _ in range(5):
        reports = backend.poll(handles)
        assert reports[2].state is RunState.SUBMITTED and "free slot" in reports[2].message
    backend.cancel(handles[0])
    wait_for(lambda: bool(backend.poll(handles)) and len(starts(study)) == 3)
    for handle in handles[1:]:
        backend.cancel(handle)
    assert {wait(backend, handle, is_over).state for handle in handles} == {RunState.CANCELLED}


def test_no_zombies_are_left(study: Path) -> None:
    backend = open_local(study, slots=2)
    handles = [backend.submit(job_of(study, f"r{index}")) for index in range(3)]
    for handle in handles:
        assert wait(backend, handle, is_over).state is RunState.COMPLETED
    pids = [json.loads(path.read_text())["pid"] for path in study.glob("s.runs/*/process.json")]
    wait_for(lambda: bool(backend.poll(handles)) and not any(map(psutil.pid_exists, pids)))
    assert not zombies(study)


def test_a_closed_backend_leaves_its_runs_alone(study: Path) -> None:
    backend = open_local(study, seconds=0.5)
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    backend.close()
    again = open_local(study, seconds=0.5)
    assert wait(again, handle, is_over).state is RunState.COMPLETED
    assert starts(study) == ["r1 0"]
    pid = json.loads((study / "s.runs/r1/process.json").read_text())["pid"]
    wait_for(lambda: processes.identity(pid) is None)
    wait(again, again.submit(job_of(study, "r2")), is_over)
    assert not psutil.pid_exists(pid), "the next start waits for what the closed one left"


def test_slots_set_the_environment_of_their_runs(study: Path) -> None:
    names = ["CUDA_VISIBLE_DEVICES", "PLANNER_SLOT", "OMP_NUM_THREADS", "NPROC", "EXTRA"]
    backend = open_local(study, "environment", slots=None, gpus=[1, "MIG-7"], names=names, env={"EXTRA": 5})
    assert backend.slots == 2
    folders = [JobFolder(study / "s.runs" / run_id) for run_id in ("r1", "r2")]
    for handle in [backend.submit(job_of(study, run_id)) for run_id in ("r1", "r2")]:
        wait(backend, handle, is_over)
    seen = [json.loads(folder.result.read_text())["extra"]["names"] for folder in folders]
    assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in seen) == ["1", "MIG-7"]
    assert sorted(each["PLANNER_SLOT"] for each in seen) == ["gpu1", "gpuMIG-7"]
    assert [each["EXTRA"] for each in seen] == ["5", "5"]
    assert seen[0]["OMP_NUM_THREADS"] == seen[0]["NPROC"]


def test_threads_are_shared_out_among_slots(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.slots._num_cores", lambda: 8)
    monkeypatch.setattr("backends.slots._visible_gpus", list)
    assert len(slots_from({})) == 8
    assert [env["OMP_NUM_THREADS"] for env in slots_from({"slots": 3}).values()] == ["2", "2", "2"]
    assert "multi_thread_eigen=false" in slots_from({"slots": 8})["cpu0"]["XLA_FLAGS"]
    assert slots_from({"slots": 1}) == {"cpu0": {}}, "one run may have the whole machine"
    assert list(slots_from({"gpus": [0, 0]})) == ["gpu0", "gpu0.2"]
    for wrong in ({"slots": 1, "gpus": [0]}, {"gpus": []}, {"gpus": "0"}, {"threads_per_slot": -1}):
        with pytest.raises(BackendError, match="backend"):
            slots_from(wrong)


# ---- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "state", "words"),
    [
        (signal.SIGKILL, RunState.OUT_OF_MEMORY, "killed"),
        (signal.SIGTERM, RunState.PREEMPTED, "terminated from outside"),
        (signal.SIGSEGV, RunState.FAILED, "exit code 139"),
    ],
)
def test_a_trainer_killed_by_a_signal(study: Path, number: int, state: RunState, words: str) -> None:
    backend = open_local(study, "dies", signal=int(number))
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is state and words in report.message
    assert report.cost == 1.5, "what was spent until then"
    assert report.progress is not None and report.progress["step"] == 1


def test_what_a_failed_attempt_cost_is_not_told_again(study: Path) -> None:
    backend = open_local(study, "dies", signal=int(signal.SIGKILL))
    assert wait(backend, backend.submit(job_of(study)), is_over).cost == 1.5
    broken = Local({"command": ["no-such-program-here"], "slots": 1}, study)
    report = wait(broken, broken.submit(job_of(study, attempt=1)), is_over)
    assert report.state is RunState.FAILED and report.cost is None
    assert wait(broken, "0:s.runs/r1", is_over).state is RunState.OUT_OF_MEMORY, "the record of the first attempt stays"


def test_a_worker_told_to_end_passes_it_on(study: Path) -> None:
    backend = open_local(study, "endless")
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    os.kill(json.loads((study / "s.runs/r1/process.json").read_text())["pid"], signal.SIGTERM)
    report = wait(backend, handle, is_over)
    assert report.state is RunState.PREEMPTED and "75" in report.message


def test_a_worker_killed_with_its_trainer_counts_as_killed(study: Path) -> None:
    backend = open_local(study, "endless")
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    note = json.loads((study / "s.runs/r1/process.json").read_text())
    for pid in (note["pid"], note["trainer_pid"]):
        os.kill(pid, signal.SIGKILL)
    assert wait(backend, handle, is_over).state is RunState.OUT_OF_MEMORY
    assert not zombies(study)


def test_a_deadline_is_kept_also_by_a_trainer_that_does_not_listen(study: Path) -> None:
    backend = open_local(study, "deaf")
    handle = backend.submit(job_of(study, deadline_seconds=0.8))
    report = wait(backend, handle, is_over)
    assert report.state is RunState.TIMED_OUT and "deadline" in report.message
    assert is_gone(json.loads((study / "s.runs/r1/process.json").read_text())["trainer_pid"])


def test_a_run_is_stopped_at_its_cost_limit(study: Path) -> None:
    backend = open_local(study, "costly")
    report = wait(backend, backend.submit(job_of(study, max_cost=5.0)), is_over)
    assert report.state is RunState.TIMED_OUT and "cost limit" in report.message
    assert report.cost is not None and 5.0 < report.cost < 500.0


def test_cancelled_is_said_only_when_the_whole_tree_is_dead(study: Path) -> None:
    backend = open_local(study, "deaf")
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    note = json.loads((study / "s.runs/r1/process.json").read_text())
    family = processes.family(note["token"], [])
    assert len(family) == 2, "the trainer, and a child in a session of its own"
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED
    assert [is_gone(process.pid) for process in family] == [True, True]


def test_a_hung_worker_is_killed_by_the_backend(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MARGIN_SECONDS", 0.2)
    backend = open_local(study, "endless")
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    note = json.loads((study / "s.runs/r1/process.json").read_text())
    os.kill(note["pid"], signal.SIGSTOP)
    os.kill(note["trainer_pid"], signal.SIGSTOP)
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED
    assert is_gone(note["trainer_pid"])


def test_a_result_that_comes_during_the_grace_is_kept(study: Path) -> None:
    backend = open_local(study, "late", grace_seconds=10.0)
    handle = backend.submit(job_of(study))
    wait_for(lambda: bool(starts(study)))
    backend.cancel(handle)
    report = wait(backend, handle, is_over)
    assert (report.state, report.response) == (RunState.COMPLETED, 1.0), "it is paid for"


def test_a_queued_run_is_cancelled_without_a_start(study: Path) -> None:
    backend = open_local(study, "endless", slots=1)
    running, queued = (backend.submit(job_of(study, run_id)) for run_id in ("r1", "r2"))
    backend.cancel(queued)
    assert backend.poll([queued])[0].state is RunState.CANCELLED
    assert open_local(study, "endless").poll([queued])[0].state is RunState.CANCELLED
    backend.cancel(running)
    assert wait(backend, running, is_over).state is RunState.CANCELLED
    assert starts(study) in ([], ["r1 0"])
    # A later attempt is not stopped by the old cancel file.
    again = open_local(study)
    assert wait(again, again.submit(job_of(study, "r2", attempt=1)), is_over).state is RunState.COMPLETED


def test_what_a_trainer_leaves_behind_is_killed(study: Path) -> None:
    backend = open_local(study, "leaves_a_child")
    handle = backend.submit(job_of(study))
    assert wait(backend, handle, is_over).state is RunState.COMPLETED
    folder = JobFolder(study / "s.runs/r1")
    wait_for(folder.exit.exists)
    assert is_gone(json.loads(folder.result.read_text())["extra"]["child"])


def test_a_trainer_that_hangs_after_its_result_frees_its_slot(study: Path) -> None:
    backend = open_local(study, "hangs_after_result", slots=1)
    first, second = (backend.submit(job_of(study, run_id)) for run_id in ("r1", "r2"))
    assert wait(backend, first, is_over).state is RunState.COMPLETED
    assert wait(backend, second, is_over).state is RunState.COMPLETED


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"response": NaN, "cost": 1}', "diverged"),
        ('{"response": null}', "diverged"),
        ('{"response": 1e400}', "diverged"),
        ('{"response": 1.7976931348623157e308}', "diverged"),
        ('{"response": "Infinity"}', "diverged"),
        ('{"response": 2.5, "state": "diverged"}', "diverged"),
        ('{"response": 2.5, "cost": NaN}', "completed"),
        ('{"response": 2, "cost": -1, "extra": 7}', "completed"),
    ],
)
def test_results_of_trainers_in_other_languages(tmp_path: Path, text: str, state: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    result = jobfile.read_result(path)
    assert result is not None and result.state == state
    assert (result.response is None) == (state == "diverged")
    assert result.cost is None or result.cost >= 0
    for cut in range(len(text)):
        path.write_text(text[:cut])
        assert jobfile.read_result(path) is None, "half written is not there yet"


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ('{"response": NaN}', RunState.DIVERGED, "finite"),
        ('{"respon', RunState.LOST, "no result.json"),
        ('{"loss": 2.5}', RunState.FAILED, "no 'response'"),
    ],
)
def test_results_that_are_none(study: Path, text: str, state: RunState, words: str) -> None:
    backend = open_local(study, "writes", text=text)
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is state and words in report.message and report.response is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"loss": 2.5}', "no 'response'"),
        ('{"response": "2.5"}', "write it as a number"),
        ('{"response": true}', "number or null"),
        ('{"response": [2.5]}', "number or null"),
        ('{"response": 2.5, "state": "done"}', "'done'"),
    ],
)
def test_a_result_that_is_no_result_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        jobfile.read_result(tmp_path / "result.json")


# ---- what is run ----------------------------------------------------------------------------------------------------


def test_a_command_gets_its_arguments_without_a_shell(study: Path) -> None:
    (study / "print_arguments.py").write_text(
        "import json, pathlib, sys\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps({'response': 1, 'extra': {'argv': sys.argv[2:]}}))\n"
    )
    arguments = [
        "print_arguments.py",
        "{result}",
        "--n={N}",
        "{lr:.1e}",
        "{domain}-{seed}-{attempt}",
        "$(touch hacked); {{}}",
    ]
    backend = Local({"command": [sys.executable, *arguments], "slots": 1}, study)
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is RunState.COMPLETED
    result = json.loads((study / "s.runs/r1/result.json").read_text())
    assert result["extra"]["argv"] == ["--n=1000000000", "3.5e-04", "web-1-0", "$(touch hacked); {}"]
    assert not (study / "hacked").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["true", "{depth}"]}, "Known names: N, attempt"),
        ({"command": ["no-such-program-here"]}, "no-such-program-here"),
        ({"command": "true"}, "list of arguments"),
        ({"trainer": "no_such_module_here:train"}, "cannot import"),
        ({"trainer": "local_trainers:nothing"}, "has no function 'nothing'"),
        ({"trainer": "local_trainers"}, "module:function"),
    ],
)
def test_a_job_that_cannot_be_run_says_why(study: Path, options: dict[str, Any], words: str) -> None:
    backend = Local(options | {"slots": 1}, study)
    report = wait(backend, backend.submit(job_of(study)), is_over)
    assert report.state is RunState.FAILED and report.message.startswith("bad job (exit code 64")
    assert words in report.log_tail


def test_a_study_that_says_nothing_to_run_is_refused_at_once(study: Path) -> None:
    for options in ({}, {"trainer": "a:b", "command": ["true"]}):
        with pytest.raises(BackendError, match="trainer = "):
            Local(options, study).submit(job_of(study))


def test_changed_trainer_options_do_not_return_an_old_result(study: Path) -> None:
    backend = open_local(study, "writes", text='{"response": 1}')
    assert wait(backend, backend.submit(job_of(study)), is_over).response == 1.0
    wait_for((study / "s.runs/r1/exit.json").exists)
    same = open_local(study, "writes", text='{"response": 1}', slots=1, grace_seconds=1.0)
    assert wait(same, same.submit(job_of(study)), is_over).response == 1.0
    changed = open_local(study, "writes", text='{"response": 2}')
    assert wait(changed, changed.submit(job_of(study)), is_over).response == 2.0
    assert json.loads((study / "s.runs/r1.old-1/result.json").read_text())["response"] == 1


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_metrics_line_costs_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    jsonfile.append_line(path, {"step": 1, "cost": 1.0})
    jsonfile.append_line(path, {"step": 2, "cost": math.nan, "value": np.float32(0.5)})
    whole = path.read_bytes()
    last = len(whole) - len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: max(last, len(whole) - cut)])
    metric = jobfile.last_metric(path)
    assert metric is not None and metric["step"] == (2 if cut == 1 else 1)
    jsonfile.append_line(path, {"step": 3})
    assert jobfile.last_metric(path) == {"step": 3}


def test_json_is_strict_and_never_fails_on_a_value(tmp_path: Path) -> None:
    values = {"a": math.nan, "b": [math.inf, np.int64(3), np.array([1.0, math.nan])], "c": object(), 4: {"d": 1e400}}
    jsonfile.write_json(tmp_path / "x.json", values)
    text = (tmp_path / "x.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    read = jsonfile.read_json(tmp_path / "x.json")
    assert read is not None and read["b"] == [None, 3, [1.0, None]] and read["4"] == {"d": None}


def test_a_failed_write_keeps_the_old_text_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    jsonfile.write_json(path, {"response": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        jsonfile.write_json(path, {"response": 2})
    assert json.loads(path.read_text()) == {"response": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_one_run_has_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_RESULT", str(tmp_path / "result.json"))
    jobfile.write_result(2.5, 1.0, note="first")
    jobfile.write_result(2.5, 1.0, note="first")
    with pytest.raises(ValueError, match="another result"):
        jobfile.write_result(2.6, 1.0)
    result = jobfile.read_result(tmp_path / "result.json")
    assert result is not None and (result.response, result.extra) == (2.5, {"note": "first"})


def test_trainer_functions_outside_a_worker_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_JOB", raising=False)
    with pytest.raises(jobfile.BadJob, match="PLANNER_JOB is not set"):
        jobfile.read_job()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (jobfile.BadJob(), 64),
        (jobfile.Requeue(), 75),
        (jobfile.Diverged(), 76),
        (FloatingPointError("invalid value encountered in mul"), 76),
        (MemoryError(), 137),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), 137),
        (SystemExit(75), 75),
        (SystemExit(None), 0),
        (SystemExit("no"), 1),
        (ValueError("x"), 1),
    ],
)
def test_exceptions_become_exit_codes(error: BaseException, code: int) -> None:
    assert jobfile.exit_code_of(error) == code
