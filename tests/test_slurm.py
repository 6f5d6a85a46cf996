"""Slurm beyond the contract: a controller that fails or forgets, and, where it is installed, the real one."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends import engines, slurm
from backends.jsonfile import read_json, write_json
from planner.execution import BackendError, Job, Report
from planner.records import RunState
from tests.test_backends_contract import EXPECTED, TRAINER, Bench, is_over, wait

# Goes on until the file "go" is in the study's folder; a step and a checkpoint every 0.1 s.
STEPS = """
import time
from backends import jobfile

def train(job):
    checkpoint = job.checkpoints / "step"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with open(job.folder / "starts", "a") as file:
        file.write(f"{job.attempt} {step}\\n")
    while not (job.working_folder / "go").exists():
        time.sleep(0.1)
        if jobfile.should_stop():
            raise jobfile.Requeue("told to stop")
        step += 1
        checkpoint.write_text(str(step))
        jobfile.append_metric(step, 3.0, float(step))
    return jobfile.Result(response=2.5, cost=float(step))
"""


def make(folder: Path, case: str = "completed", **options: Any) -> Bench:
    (folder / "contract_trainer.py").write_text(TRAINER)
    (folder / "steps_trainer.py").write_text(STEPS)
    trainer = "steps_trainer:train" if case == "steps" else "contract_trainer:train"
    base = {"trainer": trainer, "case": case, "grace_seconds": 5.0, "latency_seconds": 0.5, "timeout_seconds": 20}
    return Bench("slurm", folder, base | options, case)


# ---- a Slurm that fails, played ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_BACKOFF_SECONDS", 0.05)


def jobs(fake: Path) -> list[str]:
    return sorted(path.name for path in fake.glob("job-*"))


def test_a_job_whose_acceptance_was_lost_is_found_by_its_name(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "lost_reply").touch()
    bench = make(tmp_path, "endless")
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    assert jobs(fake_slurm) == ["job-1"]
    assert read_json(bench.job().folder / "engine.json")["id"] == "1"  # type: ignore[index]
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED


def test_a_planner_that_died_before_it_noted_the_job_finds_it(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "endless")
    handle = bench.reopen().submit(bench.job())
    (bench.job().folder / "engine.json").unlink()
    polling = bench.reopen()
    wait(polling, handle, lambda report: report.state is RunState.RUNNING)
    (bench.job().folder / "engine.json").unlink()
    assert bench.reopen().submit(bench.job()) == handle
    assert jobs(fake_slurm) == ["job-1"]
    polling.cancel(handle)
    assert wait(polling, handle, is_over).state is RunState.CANCELLED


def test_a_job_that_waited_unnoted_is_not_started_again(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "hold").touch()
    bench = make(tmp_path)
    handle = bench.reopen().submit(bench.job())
    (bench.job().folder / "engine.json").unlink()
    backend = bench.reopen()
    assert backend.submit(bench.job()) == handle and jobs(fake_slurm) == ["job-1"]
    report = backend.poll([handle])[0]
    assert report.state is RunState.SUBMITTED and report.message == "in the queue: Priority"


def test_a_controller_that_is_down_refuses_jobs_after_some_tries(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "down").touch()
    bench = make(tmp_path, tries=3)
    start = time.monotonic()
    with pytest.raises(BackendError, match=r"Unable to contact slurm controller"):
        bench.reopen().submit(bench.job())
    assert time.monotonic() - start > 0.15, "it was tried again after 0.05 and 0.1 s"
    assert not jobs(fake_slurm)
    (fake_slurm / "down").unlink()
    backend = bench.reopen()
    assert wait(backend, backend.submit(bench.job()), is_over).state is RunState.COMPLETED
    assert jobs(fake_slurm) == ["job-1"]


def test_a_controller_that_comes_back_takes_the_job(
    tmp_path: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_slurm / "down").touch()
    bench = make(tmp_path)
    monkeypatch.setattr(engines.time, "sleep", lambda seconds: (fake_slurm / "down").unlink(missing_ok=True))
    bench.reopen().submit(bench.job())
    assert jobs(fake_slurm) == ["job-1"]


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_controller_that_is_down_loses_no_run(tmp_path: Path, fake_slurm: Path, is_noted: bool) -> None:
    bench = make(tmp_path, "endless", latency_seconds=0.0)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    wait(backend, handle, lambda report: report.state is RunState.RUNNING)
    (fake_slurm / "down").touch()
    if not is_noted:
        (bench.job().folder / "engine.json").unlink()
    for _ in range(3):
        report = backend.poll([handle])[0]
        assert report.state is RunState.RUNNING and "Unable to contact slurm controller" in report.message
    (fake_slurm / "down").unlink()
    assert backend.poll([handle])[0].message == ""
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED


def test_cancelled_jobs_leave_the_queue_in_one_request(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "hold").touch()
    bench = make(tmp_path)
    backend = bench.reopen()
    handles = [backend.submit(bench.job(run_id=f"r{index}")) for index in range(4)]
    assert {report.state for report in backend.poll(handles)} == {RunState.SUBMITTED}
    for handle in handles[:3]:
        backend.cancel(handle)
    backend.poll(handles)
    assert (fake_slurm / "scancels").read_text() == "1 2 3\n"
    for handle in handles[:3]:
        assert wait(backend, handle, is_over).state is RunState.CANCELLED
    assert backend.poll(handles[3:])[0].state is RunState.SUBMITTED
    assert (fake_slurm / "scancels").read_text() == "1 2 3\n"


# ---- many at once ----------------------------------------------------------------------------------------------------


def batch(bench: Bench, num: int = 4) -> list[Job]:
    return [bench.job(run_id=f"r{index}") for index in range(num)]


def sbatches(fake: Path) -> list[str]:
    path = fake / "sbatches"
    return path.read_text().splitlines() if path.exists() else []


def test_runs_bought_together_are_one_array(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path)
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench))
    assert len(sbatches(fake_slurm)) == 1 and "--array=0-3" in sbatches(fake_slurm)[0]
    assert jobs(fake_slurm) == ["job-1_0", "job-1_1", "job-1_2", "job-1_3"]
    for handle in handles:
        report = wait(backend, handle, is_over)
        assert report.state is RunState.COMPLETED and "attempt 0" in report.log_tail
    assert backend.submit_all(batch(bench)) == handles and len(sbatches(fake_slurm)) == 1


def test_an_array_whose_acceptance_was_lost_is_found_by_its_name(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "lost_reply").touch()
    bench = make(tmp_path, "endless")
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench))
    assert len(jobs(fake_slurm)) == 4
    notes = [read_json(job.folder / "engine.json") or {} for job in batch(bench)]
    assert [(note["id"], note["index"]) for note in notes] == [("1", 0), ("1", 1), ("1", 2), ("1", 3)]
    for handle in handles:
        backend.cancel(handle)
    assert {wait(backend, handle, is_over).state for handle in handles} == {RunState.CANCELLED}


def test_a_planner_that_died_before_it_noted_the_array_finds_each_run(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "endless")
    handles = bench.reopen().submit_all(batch(bench))
    for job in batch(bench):
        note = read_json(job.folder / "engine.json") or {}
        write_json(job.folder / "engine.json", note | {"id": ""})  # as it was before the answer
    # Submitted again by another planner, in another order and by two requests; the last is only asked about.
    backend = bench.reopen()
    assert backend.submit_all(batch(bench)[2:0:-1]) == handles[2:0:-1]
    assert backend.submit(batch(bench)[0]) == handles[0]
    for handle in handles:
        wait(backend, handle, lambda report: report.state is RunState.RUNNING)
    assert len(jobs(fake_slurm)) == 4 and len(sbatches(fake_slurm)) == 1
    # One is cancelled, the others go on.
    backend.cancel(handles[1])
    assert wait(backend, handles[1], is_over).state is RunState.CANCELLED
    assert {backend.poll([handle])[0].state for handle in (handles[0], *handles[2:])} == {RunState.RUNNING}
    for handle in handles:
        backend.cancel(handle)
    assert {wait(backend, handle, is_over).state for handle in handles} == {RunState.CANCELLED}


def test_a_planner_that_died_before_sbatch_starts_its_runs(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "down").touch()
    bench = make(tmp_path, tries=1)
    with pytest.raises(BackendError, match="Unable to contact"):
        bench.reopen().submit_all(batch(bench))
    (fake_slurm / "down").unlink()
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench, 3))
    assert jobs(fake_slurm) == ["job-1_0", "job-1_1", "job-1_2"]
    assert {wait(backend, handle, is_over).state for handle in handles} == {RunState.COMPLETED}


def test_runs_that_ask_for_other_limits_are_in_another_array(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "hold").touch()
    bench = make(tmp_path)
    wanted = [
        Job(**vars(job) | {"deadline_seconds": 60.0 * (1 + index // 2)}) for index, job in enumerate(batch(bench))
    ]
    bench.reopen().submit_all(wanted)
    assert jobs(fake_slurm) == ["job-1_0", "job-1_1", "job-3_0", "job-3_1"]
    assert len(sbatches(fake_slurm)) == 2


def test_each_task_of_an_array_ends_and_is_tried_again_by_itself(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "preempted")
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench, 2))
    assert {wait(backend, handle, is_over).state for handle in handles} == {RunState.PREEMPTED}
    again = backend.submit_all([bench.job(run_id="r1", attempt=1)])
    assert wait(backend, again[0], is_over).state is RunState.COMPLETED
    assert wait(backend, handles[0], is_over).state is RunState.PREEMPTED
    assert jobs(fake_slurm) == ["job-1_0", "job-1_1", "job-3"]


def test_a_controller_that_refuses_cancels_is_left_alone_for_a_while(
    tmp_path: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_slurm / "hold").touch()
    (fake_slurm / "busy").touch()
    monkeypatch.setattr(slurm, "_BACKOFF", 0.2)
    bench = make(tmp_path)
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench, 20))
    for handle in handles:
        backend.cancel(handle)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert {report.state for report in backend.poll(handles)} == {RunState.SUBMITTED}, "none is given up"
    refused = (fake_slurm / "scancels").read_text().splitlines()
    assert 1 <= len(refused) <= 3 and all(len(line.split()) == 20 for line in refused), "after 0.4 and 0.8 s"
    (fake_slurm / "busy").unlink()
    until(lambda: {report.state for report in backend.poll(handles)} == {RunState.CANCELLED}, "end")
    assert len((fake_slurm / "scancels").read_text().splitlines()) == len(refused) + 1


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("TIMEOUT", RunState.TIMED_OUT),
        ("OUT_OF_MEMORY", RunState.OUT_OF_MEMORY),
        ("NODE_FAIL", RunState.PREEMPTED),
        ("PREEMPTED", RunState.PREEMPTED),
        ("CANCELLED by 1000", RunState.CANCELLED),
        ("FAILED", RunState.FAILED),
        ("BOOT_FAIL", RunState.LOST),
    ],
)
def test_a_job_that_died_without_a_word_ends_as_slurm_says(
    tmp_path: Path, fake_slurm: Path, word: str, state: RunState
) -> None:
    (fake_slurm / "die").write_text(word)
    bench = make(tmp_path)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    report = backend.poll([handle])[0]
    assert report.state is RunState.SUBMITTED and "waiting for its files" in report.message
    # What was heard once is kept: the accounting may be gone, or forget.
    (fake_slurm / "no_sacct").touch()
    report = wait(backend, handle, is_over)
    assert report.state is state and word.split()[0] in report.message


def test_a_job_that_nobody_knows_of_is_lost_when_its_files_cannot_be_late(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "no_sacct").touch()
    (fake_slurm / "die").write_text("COMPLETED")
    bench = make(tmp_path, latency_seconds=1.0)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    start = time.monotonic()
    assert backend.poll([handle])[0].state is RunState.SUBMITTED
    report = wait(backend, handle, is_over)
    assert report.state is RunState.LOST and "left no record" in report.message
    assert time.monotonic() - start >= 1.0


def test_a_job_that_slurm_forgot_for_a_moment_keeps_its_time_for_late_files(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "hold").touch()
    (fake_slurm / "no_sacct").touch()
    bench = make(tmp_path)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    (fake_slurm / "job-1").rename(fake_slurm / "away")
    assert "waiting for its files" in backend.poll([handle])[0].message
    (fake_slurm / "away").rename(fake_slurm / "job-1")
    time.sleep(0.6)
    assert "in the queue" in backend.poll([handle])[0].message
    (fake_slurm / "job-1" / "state").write_text("COMPLETED")
    assert "waiting for its files" in backend.poll([handle])[0].message
    assert wait(backend, handle, is_over).state is RunState.LOST


def test_a_run_whose_worker_lives_in_another_job_is_not_lost(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "endless", latency_seconds=0.0)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    wait(backend, handle, lambda report: report.state is RunState.RUNNING)
    # A second job for the same attempt ends at once, since the first one's worker has the folder.
    (fake_slurm / "job-1" / "name").write_text("other")
    (bench.job().folder / "engine.json").write_text('{"attempt": 0, "id": "99", "name": "gone"}')
    assert backend.poll([handle])[0].state is RunState.RUNNING
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED


def test_a_new_attempt_takes_the_last_one_from_the_queue(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "preempted")
    backend = bench.reopen()
    assert wait(backend, backend.submit(bench.job()), is_over).state is RunState.PREEMPTED
    (fake_slurm / "job-1" / "state").write_text("PENDING")  # requeued
    handle = backend.submit(bench.job(attempt=1))
    assert (fake_slurm / "scancels").read_text() == "1\n"
    assert wait(backend, handle, is_over).state is RunState.COMPLETED


def test_what_sbatch_is_told(tmp_path: Path, fake_slurm: Path) -> None:
    study = tmp_path / "50%j of all"
    study.mkdir()
    place = {"partition": "short", "account": "lab", "qos": "low"}
    bench = make(study, sbatch=["--gpus=1", "--mem=32G"], notice_seconds=90, env={"A": "a b"}, **place)
    job = bench.job()
    bench.reopen().submit(Job(run_id="r1", design=job.design, folder=job.folder, deadline_seconds=600.0))
    told = (fake_slurm / "job-1" / "arguments").read_text().splitlines()
    assert told[0:2] == ["--parsable", "--requeue"] and told[-1] == str(job.folder / "batch.sh")
    assert {"--partition=short", "--account=lab", "--qos=low", "--gpus=1", "--mem=32G"} < set(told)
    assert "--signal=B:TERM@90" in told and f"--chdir={study}" in told
    assert f"--output={job.folder}/worker.log".replace("%", "%%") in told
    assert "--time=14" in told, "600 s, 5 s of grace and 90 s of notice, and two minutes for Slurm and the start"
    script = (job.folder / "batch.sh").read_text()
    assert "export A='a b'\n" in script and script.splitlines()[-1].startswith("exec ")


def test_a_limit_in_minutes_goes_before_the_deadline(tmp_path: Path, fake_slurm: Path) -> None:
    bench = make(tmp_path, "timed_out", time_minutes=30)
    bench.reopen().submit(bench.job())
    assert "--time=30" in (fake_slurm / "job-1" / "arguments").read_text().splitlines()
    for wrong in ({"time_minutes": 1}, {"time_minutes": "1-00"}, {"sbatch": "--gpus=1"}, {"prologue": [1]}):
        with pytest.raises(BackendError, match=next(iter(wrong))):
            make(tmp_path, **wrong).reopen()


def test_defaults_of_the_user_hide_no_job(tmp_path: Path, fake_slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = fake_slurm / "bin" / "squeue"
    squeue.write_text('#!/bin/sh\n[ -z "$SQUEUE_PARTITION" ] && echo "7|RUNNING|None"\n')
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    assert make(tmp_path).reopen().look(["7"])["7"].state == "working"


# ---- the real one, of one node --------------------------------------------------------------------------------------

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
KillWait=3
JobRequeue=1
ReturnToService=2
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE
"""


class Cluster:
    """The daemons of one node in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool", "munge"):
            (root / name).mkdir(mode=0o700)
        key = root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            second.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in (first, second)]
        text = CONFIGURATION.format(host=host(), root=root, ports=ports)
        (root / "slurm.conf").write_text(text)

    def start(self, name: str) -> None:
        munge = self.root / "munge"
        arguments = {
            "munged": [
                "--foreground",
                "--force",
                f"--socket={self.root}/munge.socket",
                f"--key-file={munge}/key",
                *(f"--{each}-file={munge}/{each}" for each in ("pid", "log", "seed")),
            ],
            "slurmctld": ["-D", "-i"],
            "slurmd": ["-D", "-c"],
        }[name]
        with open(self.root / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen([name, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.running.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait(timeout=20)

    def kill_node(self, worker: int) -> None:
        """The node's daemon, a job's own one and all that it started die at once."""
        job = psutil.Process(worker).parent()
        assert job is not None and job.name() == "slurmstepd"
        self.stop("slurmd", signal.SIGKILL)
        for process in [job, *job.children(recursive=True)]:
            process.kill()

    def close(self) -> None:
        if "slurmctld" in self.running:
            command("scancel", "--me")
            until(lambda: not command("squeue", "--me", "--noheader"), "an empty queue")
        for name in reversed(DAEMONS):
            self.stop(name)


def command(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def host() -> str:
    return socket.gethostname().partition(".")[0]


def is_idle() -> bool:
    return command("sinfo", "--noheader", "--format=%t") == "idle"


def until(is_so: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"no {what} in {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [name for name in (*DAEMONS, "sbatch") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a Slurm of one node needs root and {', '.join(missing or DAEMONS)}")
    with pytest.MonkeyPatch.context() as patch:
        found = Cluster(tmp_path_factory.mktemp("slurm"))
        patch.setenv("SLURM_CONF", str(found.root / "slurm.conf"))
        try:
            found.start("munged")
            until((found.root / "munge.socket").exists, "socket of munged")
            found.start("slurmctld")
            found.start("slurmd")
            until(is_idle, "node that is idle")
            yield found
        finally:
            found.close()


def has_steps(bench: Bench, run_id: str, number: int = 2) -> Callable[[Report], bool]:
    checkpoint = bench.job(run_id=run_id).folder / "checkpoints" / "step"
    return lambda report: checkpoint.exists() and int(checkpoint.read_text() or 0) >= number


def starts(bench: Bench, run_id: str = "r1") -> list[list[int]]:
    """(attempt, step) of each start of a trainer."""
    lines = (bench.job(run_id=run_id).folder / "starts").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


def engine_id(bench: Bench, run_id: str = "r1") -> str:
    return str((read_json(bench.job(run_id=run_id).folder / "engine.json") or {})["id"])


def queue() -> list[str]:
    return command("squeue", "--me", "--noheader", "--array", "--format=%i").split()


@pytest.mark.slow
def test_runs_on_a_real_slurm_end_in_the_right_states(tmp_path: Path, cluster: Cluster) -> None:
    study = tmp_path / "50%j of all"
    study.mkdir()
    bench = make(study, latency_seconds=2.0)
    backend = bench.reopen()

    def job(case: str, attempt: int = 0) -> Job:
        plain = Bench("slurm", study, bench.options, case).job(attempt, case)
        return Job(**vars(plain) | {"options": {"case": case}})

    handles = {case: backend.submit(job(case)) for case in EXPECTED}
    assert len(set(queue())) == len(EXPECTED)
    for case, state in EXPECTED.items():
        report = wait(backend, handles[case], is_over)
        assert report.state is state, report
        assert report.log_tail, "the log is where it was asked for"
    again = backend.submit(job("preempted", 1))
    report = wait(backend, again, is_over)
    assert report.state is RunState.COMPLETED and report.cost == 10.0


@pytest.mark.slow
def test_an_array_on_a_real_slurm(tmp_path: Path, cluster: Cluster) -> None:
    bench = make(tmp_path, "steps", latency_seconds=5.0)
    backend = bench.reopen()
    handles = backend.submit_all(batch(bench, 6))
    assert len({engine_id(bench, f"r{index}") for index in range(6)}) == 1, "one job for all"
    for index, handle in enumerate(handles):
        wait(backend, handle, has_steps(bench, f"r{index}"))

    base = engine_id(bench, "r0")
    command("scontrol", "requeue", f"{base}_1")
    command("scancel", f"{base}_2")
    backend.cancel(handles[3])
    assert wait(backend, handles[1], is_over).state is RunState.PREEMPTED
    report = wait(backend, handles[2], is_over)
    assert report.state is RunState.CANCELLED and "CANCELLED" in report.message
    assert wait(backend, handles[3], is_over).state is RunState.CANCELLED
    again = backend.submit(bench.job(attempt=1, run_id="r1"))
    until(
        lambda: f"{base}_1" not in command("squeue", "--me", "--noheader", "--array", "--format=%i").split(), "old task"
    )

    # Another planner, which never heard of the job id.
    for index in (0, 4, 5):
        folder = bench.job(run_id=f"r{index}").folder
        write_json(folder / "engine.json", (read_json(folder / "engine.json") or {}) | {"id": ""})
    backend = bench.reopen()
    assert backend.submit_all(batch(bench, 6)[4:]) == handles[4:]
    (tmp_path / "go").touch()
    for handle in (handles[0], *handles[4:], again):
        assert wait(backend, handle, is_over).state is RunState.COMPLETED
    for index in (0, 4, 5):
        assert starts(bench, f"r{index}") == [[0, 0]], "nothing was started twice"
    assert [attempt for attempt, _ in starts(bench, "r1")] == [0, 1]


@pytest.mark.slow
def test_a_full_node_and_a_planner_that_forgot(tmp_path: Path, cluster: Cluster) -> None:
    bench = make(tmp_path, "steps", sbatch=["--exclusive"])
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    wait(backend, handle, has_steps(bench, "r1"))
    waiting = [backend.submit(bench.job(run_id=name)) for name in ("r2", "r3")]
    report = wait(backend, waiting[0], lambda report: "Resources" in report.message or "Priority" in report.message)
    assert report.state is RunState.SUBMITTED

    for name in ("r1", "r2"):
        (bench.job(run_id=name).folder / "engine.json").unlink()
    backend = bench.reopen()
    assert backend.submit(bench.job()) == handle and backend.submit(bench.job(run_id="r2")) == waiting[0]
    assert len(queue()) == 3, "both were found by their names"

    for each in waiting:
        backend.cancel(each)
    for each in waiting:
        assert wait(backend, each, is_over).state is RunState.CANCELLED
    assert backend.poll([handle])[0].state is RunState.RUNNING
    assert queue() == [engine_id(bench)]
    backend.cancel(handle)
    assert wait(backend, handle, is_over).state is RunState.CANCELLED
    assert starts(bench) == [[0, 0]] and not (bench.job(run_id="r2").folder / "starts").exists()


@pytest.mark.slow
def test_runs_that_slurm_and_its_users_interrupt(tmp_path: Path, cluster: Cluster) -> None:
    bench = make(tmp_path, "steps", latency_seconds=5.0)
    limited = make(tmp_path, "steps", latency_seconds=5.0, time_minutes=1, notice_seconds=30).reopen()
    in_time = limited.submit(bench.job(run_id="limited"))
    backend = bench.reopen()
    first, second = (backend.submit(bench.job(run_id=name)) for name in ("requeued", "scancelled"))
    for name, handle in (("requeued", first), ("scancelled", second)):
        wait(backend, handle, has_steps(bench, name))

    command("scontrol", "requeue", old := engine_id(bench, "requeued"))
    command("scancel", engine_id(bench, "scancelled"))
    assert wait(backend, first, is_over).state is RunState.PREEMPTED
    report = wait(backend, second, is_over)
    assert report.state is RunState.CANCELLED and "CANCELLED" in report.message
    first = backend.submit(bench.job(attempt=1, run_id="requeued"))
    until(lambda: old not in queue(), "queue without the job that Slurm would start again")
    wait(backend, first, lambda report: report.state is RunState.RUNNING)

    # Slurm signals up to a minute earlier than it was asked to.
    report = wait(limited, in_time, is_over, 60.0)
    assert report.state is RunState.PREEMPTED and "checkpointed" in report.message
    in_time = limited.submit(bench.job(attempt=1, run_id="limited"))
    wait(limited, in_time, lambda report: report.state is RunState.RUNNING)
    (tmp_path / "go").touch()
    for name, handle in (("requeued", first), ("limited", in_time)):
        assert wait(backend, handle, is_over).state is RunState.COMPLETED
        (_, begin), (attempt, step) = starts(bench, name)
        assert begin == 0 and attempt == 1 and step >= 2


@pytest.mark.slow
def test_a_controller_that_stops_and_a_node_that_dies(tmp_path: Path, cluster: Cluster) -> None:
    bench = make(tmp_path, "steps", tries=5)
    backend = bench.reopen()
    handle = backend.submit(bench.job())
    wait(backend, handle, has_steps(bench, "r1"))

    cluster.stop("slurmctld")
    report = backend.poll([handle])[0]
    assert report.state is RunState.RUNNING and "Unable to contact slurm controller" in report.message
    cluster.start("slurmctld")
    wait(backend, handle, lambda report: report.message == "")

    note = read_json(bench.job().folder / "process.json") or {}
    cluster.kill_node(note["pid"])
    assert backend.poll([handle])[0].state is RunState.RUNNING
    # Slurm does all this by itself within minutes.  A node refuses a job that it was told to end, unless it forgot.
    cluster.start("slurmd")
    until(lambda: "slurmd started" in (cluster.root / "slurmd.log").read_text().rpartition("Launching")[2], "slurmd")
    command("scontrol", "update", f"NodeName={host()}", "State=DOWN", "Reason=died")
    report = wait(backend, handle, lambda report: "in the queue" in report.message or is_over(report))
    assert not is_over(report), "Slurm starts the job again"
    until(is_idle, "node that came back")
    cluster.stop("slurmd", signal.SIGKILL)
    cluster.start("slurmd")
    command("scontrol", "update", f"JobId={engine_id(bench)}", "StartTime=now")
    (tmp_path / "go").touch()
    assert wait(backend, handle, is_over, 60.0).state is RunState.COMPLETED
    (_, begin), (attempt, step) = starts(bench)
    assert begin == 0 and attempt == 0 and step >= 2
