"""A study on a Ray cluster that loses a node, with a planner that is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends import open_backend
from planner.execution import BackendError
from planner.records import RunState
from tests.ray_head import RayHead
from tests.worlds import open_toy, write_study

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
NUM_JOBS = int(os.environ.get("PLANNER_TEST_RAY_JOBS", "12"))
PLANNER = """
import sys
from pathlib import Path
from backends import open_backend
from tests.ray_head import RayHead
from tests.worlds import open_toy
with open_toy(sys.argv[1]) as study:
    spec = study.spec
    stop = study.run(open_backend("ray", spec.backend.options, spec.folder)).stop
    Path(sys.argv[1]).with_suffix(".stop").write_text(stop.reason)
"""
# Two steps with a checkpoint between them; stops when asked, so that a lost node costs one step at most.
TRAINER = """
import os, time
from pathlib import Path
from backends import jobfile

def train(job):
    with open(job.folder / "starts", "a") as file:
        file.write(f"{job.attempt}\\n")
    price = job.axes["N"] * job.axes["D"]
    checkpoint = job.checkpoints / "step"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while step < 4:
        time.sleep(0.25)
        if jobfile.should_stop():
            (job.folder / f"requeued-{job.attempt}").touch()
            raise jobfile.Requeue("told to stop")
        step += 1
        checkpoint.write_text(str(step))
        jobfile.append_metric(step, 2.0, price * step / 4)
        (job.folder / f"used-{job.attempt}").write_text(str(price * step / 4))
    return jobfile.Result(response=1.0 + 1.0 / price, cost=price)
"""


@pytest.fixture
def cluster() -> Iterator[RayHead]:
    """A cluster for one test."""
    ray = pytest.importorskip("ray")
    ray.shutdown()
    found = RayHead()
    yield found
    ray.shutdown()
    found.close()


def _study(folder: Path, address: str) -> Path:
    (folder / "ray_trainer.py").write_text(TRAINER)
    path = write_study(folder, total="1e9")
    values = ", ".join(str(i + 1) for i in range(-(-NUM_JOBS // 4)))
    text = path.read_text().replace("values = [1, 2]", f"values = [{values}]")
    path.write_text(
        f'{text}\n[backend]\nkind = "ray"\naddress = "{address}"\nnum_cpus = 1\nslots = 4\nlatency_seconds = 5\n'
        'grace_seconds = 5\ntrainer = "ray_trainer:train"\n'
    )
    return path


@pytest.mark.slow
def test_a_lost_node_and_killed_planners_lose_no_run(tmp_path: Path, cluster: RayHead) -> None:
    cluster.tell("add")
    path = _study(tmp_path, cluster.address)
    rng = random.Random(3)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", PLANNER, str(path)], cwd=ROOT)

    def wait_for(ended: int) -> None:
        end = time.monotonic() + 120 + 5 * NUM_JOBS
        while time.monotonic() < end:
            with open_toy(path) as study:
                if sum(run.state is RunState.COMPLETED for run in study.state.runs.values()) >= ended:
                    return
            time.sleep(0.5)
        raise AssertionError(f"fewer than {ended} runs ended in time")

    for share in (0.2, 0.6):
        with start() as planner:
            wait_for(int(share * NUM_JOBS))
            if share == 0.6:
                cluster.tell("remove")
                time.sleep(1.0)
            time.sleep(rng.uniform(0.0, 1.0))
            planner.send_signal(signal.SIGKILL)
    with start() as planner:
        assert planner.wait(timeout=120 + 10 * NUM_JOBS) == 0
    # Ray writes on standard output too, in the middle of a line: the answer is in a file.
    assert path.with_suffix(".stop").read_text() == "pool_exhausted"

    with open_toy(path) as study:
        state = study.state
    assert Counter(run.state for run in state.runs.values()) == {RunState.COMPLETED: len(state.runs)}
    assert len(state.runs) >= NUM_JOBS and state.reserved == 0.0
    prices = {run.run_id: run.design.axes["N"] * run.design.axes["D"] for run in state.runs.values()}
    assert {run_id: run.cost for run_id, run in state.runs.items()} == prices, "of the run, not of its last attempt"
    low = high = sum(prices.values())
    for run_id, price in prices.items():
        folder = tmp_path / "toy.runs" / run_id
        begun = (folder / "starts").read_text().split()
        assert len(begun) == len(set(begun)), f"an attempt of {run_id} was started twice: {begun}"
        # What was begun and neither finished nor stopped in good time was lost, and is paid beside the rest.
        for attempt in begun[:-1]:
            if not (folder / f"requeued-{attempt}").exists():
                told = folder / f"used-{attempt}"
                low += float(told.read_text()) if told.exists() else 0.0
                high += min(price, float(told.read_text()) + price / 4) if told.exists() else price
    assert low - 1e-9 <= state.spent <= high + 1e-9, "counted from what the trainers wrote down themselves"


@pytest.mark.slow
def test_what_the_cluster_cannot_hold_is_refused(tmp_path: Path, cluster: RayHead) -> None:
    options = {"address": cluster.address, "command": ["true"]}
    with pytest.raises(BackendError, match=r"one run needs .*'GPU': 4.0.* the whole Ray cluster has"):
        open_backend("ray", options | {"num_gpus": 4}, tmp_path)
    with pytest.raises(BackendError, match="bundles"):
        open_backend("ray", options | {"bundles": [{"CPU": "two"}]}, tmp_path)
    with pytest.raises(BackendError, match="no resource at all"):
        open_backend("ray", options | {"num_cpus": 0}, tmp_path)


@pytest.mark.slow
def test_a_run_may_span_bundles(tmp_path: Path, cluster: RayHead) -> None:
    from tests.test_backends_contract import Bench, is_over, wait

    options = {
        "address": cluster.address,
        "bundles": [{"CPU": 1}, {"CPU": 1}],
        "latency_seconds": 1.0,
        "command": [
            "sh",
            "-c",
            'echo "{{\\"response\\": 2.0, \\"cost\\": 1.0}}" > {result}; echo $PLANNER_PLACEMENT_GROUP',
        ],
    }
    bench = Bench("ray", tmp_path, options, "completed")
    backend = bench.reopen()
    assert backend.slots == 1
    handle = backend.submit(bench.job())
    report = wait(backend, handle, is_over)
    assert report.state is RunState.COMPLETED and "planner-r1" in report.log_tail
    from ray.util import placement_group_table

    end = time.monotonic() + 20
    while time.monotonic() < end:
        states = {group["state"] for group in placement_group_table().values()}
        if states <= {"REMOVED"}:
            break
        time.sleep(0.2)
    assert states <= {"REMOVED"}, states


def test_ray_that_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "backends.ray_cluster", raising=False)
    with pytest.raises(BackendError, match=r"scaling-planner\[ray\]"):
        open_backend("ray", {"command": ["true"]}, tmp_path)
