"""What nobody should do and somebody does: each is refused in words, or done, and never stops the study after it."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner import demo, telling
from planner.errors import InputError, SpecError, StoreDamaged, StoreError
from planner.execution import Report
from planner.ledger import Ledger
from planner.records import Design, RunState, StudyState
from planner.report import live, text
from planner.spec import load_study_spec
from planner.study import Study
from tests.worlds import STUDY, Cluster, FakeBackend, open_toy, write_study


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_toy(write_study(tmp_path)) as study:
        yield study


def design(i: int) -> Design:
    return Design(domain="web", axes={"N": float(i + 1)})


# ---- numbers that are numbers and cannot be meant


def test_costs_that_cannot_be_added_up_are_refused(study: Study) -> None:
    (run,) = study.ask(1)
    with pytest.raises(InputError, match=r"above 1e\+300 cannot be added up"):
        study.tell(run.run_id, response=2.0, cost=1e308)
    assert study.tell(run.run_id, response=2.0, cost=1e300).cost == 1e300
    assert study.state.remaining == 0.0


def test_a_store_that_holds_such_costs_can_be_read_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(":memory:", study_name="s", total=10.0) as ledger:
        runs = ledger.reserve([(design(i), 1.0) for i in range(3)]).granted
        monkeypatch.setattr(telling, "MAX_COST", float("inf"))
        for run in runs[:2]:
            ledger.complete(run.run_id, 2.0, cost=1e308)
        monkeypatch.undo()
        assert ledger.state().remaining == 0.0 and ledger.state().spent == float("inf")
        assert len(ledger.reserve([(design(9), 1.0)]).refused) == 1
        for run in runs[:2]:
            ledger.amend(run.run_id, cost=1.0)
        assert (ledger.state().spent, ledger.state().remaining) == (2.0, 7.0)


@pytest.mark.parametrize(("spent", "left"), [(0.0, 1e308), (1e308, 0.0), (float("inf"), 0.0)])
def test_what_is_left_is_a_number(spent: float, left: float) -> None:
    state = StudyState(runs={}, spent=spent, reserved=0.0, total=1e308, num_events=0)
    assert state.remaining == left


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"response": 1e51}, "no measurement is above"),
        ({"response": -1e300}, "no measurement is above"),
        ({"response": 1.0, "se": 1e51}, "nothing above"),
        ({"successes": 1e16, "trials": 1e17}, "nothing above"),
    ],
)
def test_results_that_nothing_can_be_reckoned_with_are_refused(
    study: Study, tmp_path: Path, values: dict[str, float], words: str
) -> None:
    (run,) = study.ask(1)
    with pytest.raises(InputError, match=words):
        study.tell(run.run_id, **values)
    (tmp_path / "rows.csv").write_text(f"domain,N,D,loss,{','.join(values)}\n".replace("loss,response", "loss"))
    with (tmp_path / "rows.csv").open("a") as file:
        file.write(f"web,2,4,{'2,' if 'response' not in values else ''}{','.join(map(repr, values.values()))}\n")
    with pytest.raises(InputError, match=words):
        study.attach_file(tmp_path / "rows.csv")
    assert study.tell(run.run_id, response=1.0).state is RunState.COMPLETED


@pytest.mark.parametrize(
    "told",
    [
        {"response": 1e60},
        {"response": 1.0, "se": 1e60},
        {"successes": 5.0, "trials": 3.0},
        {"successes": 5.0},
        {"response": 1.0, "cost": 1e305},
    ],
)
def test_a_trainer_that_tells_nonsense_fails_its_run_and_not_the_study(study: Study, told: dict[str, Any]) -> None:
    class Liar(FakeBackend):
        def _report(self, handle: str) -> Report:
            report = super()._report(handle)
            is_first = handle.startswith(self.cluster.started[0][0])
            if report.state is not RunState.COMPLETED or not is_first:
                return report
            return Report(run_id=report.run_id, handle=handle, state=report.state, **told)

    backend = Liar(Cluster(), slots=1)
    ended = study.run(backend, max_runs=3)
    states = [run.state for run in ended.state.runs.values()]
    assert states == [RunState.FAILED, RunState.COMPLETED, RunState.COMPLETED] and ended.stop.reason == "max_runs"
    assert len(backend.cluster.started) == 3  # it is not tried again
    first = next(iter(ended.state.runs.values()))
    assert "not to be tried again" in first.message and ended.state.spent < 100.0


# ---- files that are none


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom"])
def test_a_device_without_end_is_no_study_and_no_table(study: Study, name: str) -> None:
    if not Path(name).exists():
        pytest.skip(f"there is no {name}")
    with pytest.raises(SpecError, match="is a device"):
        load_study_spec(name)
    with pytest.raises(InputError, match="is a device"):
        study.attach_file(name)


def test_a_pipe_is_a_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, STUDY.encode())
    os.close(writing)
    try:
        assert load_study_spec(f"/dev/fd/{reading}").name == "toy"
    finally:
        os.close(reading)


@pytest.mark.parametrize("place", ["a file/demo", "a file"])
def test_a_demonstration_that_cannot_be_written_says_so(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(InputError, match="choose another --dir"):
        demo.run(tmp_path / place, seed=0)


@pytest.mark.parametrize("name", ["ünï 文 🙂", "a'b\"c; DROP TABLE events; --", "%s%n{}", "..."])
def test_names_of_all_kinds(tmp_path: Path, name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    text_ = STUDY.replace('name = "toy"', f'name = "{quoted}"').replace('name = "web"', f'name = "{quoted}"')
    path = tmp_path / f"{name} x.toml"
    path.write_text(text_)
    with open_toy(path) as study:
        run = study.ask(1, request=name)[0]
        assert study.ask(1, request=name) == [run]
        study.fail(run.run_id, name)
    with Study.open(path, read_only=True) as again:
        assert again.state.runs[run.run_id].message == name and name in again.spec.domain_names
        assert "\n".join(text.status(again.status()))


@pytest.mark.parametrize("request_name", ["", "a" * 1001])
def test_a_request_that_could_not_be_found_again_is_refused(study: Study, request_name: str) -> None:
    with pytest.raises(InputError, match="name of a request"):
        study.ask(1, request=request_name)
    assert not study.state.runs


def test_a_log_that_cannot_be_written_does_not_end_a_study(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error on a full disk, or a pipe whose reader has left."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        try:
            with live.watching(study.spec, study.state) as watch:
                ended = study.run(FakeBackend(Cluster()), watch=watch, max_runs=2)
        finally:
            monkeypatch.undo()
            with contextlib.suppress(OSError):
                full.close()
    assert ended.bought == 2 and {run.state for run in ended.state.runs.values()} == {RunState.COMPLETED}


# ---- a store that somebody takes away while it is used


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s.sqlite"
    with Ledger.open(path, study_name="s", total=10.0) as ledger:
        ledger.reserve([(design(0), 1.0)])
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path, kept, ignore=lambda folder, names: ["kept"])
        for file in [each for each in tmp_path.iterdir() if each.is_file()]:
            if how == "removed":
                file.unlink()
            else:
                file.rename(file.with_name(file.name + ".old"))
        for act in (lambda: ledger.reserve([(design(1), 1.0)]), ledger.state):
            with pytest.raises(StoreDamaged, match="was removed or exchanged while it was in use"):
                act()
        for file in kept.iterdir():
            shutil.copy(file, tmp_path / file.name)
        assert ledger.reserve([(design(1), 1.0)]).granted  # it was put back
        assert len(ledger.state().runs) == 2


def test_a_file_that_is_taken_away_during_a_step_is_noticed_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    def clock() -> float:  # asked inside the transaction
        if taken:
            path.unlink(missing_ok=True)
        return 1.0

    taken: list[bool] = []
    with Ledger.open(path, study_name="s", total=10.0, clock=clock) as ledger:
        ledger.reserve([(design(0), 1.0)])
        taken.append(True)
        with pytest.raises(StoreError):
            ledger.reserve([(design(1), 1.0)])


def test_an_equal_copy_under_the_same_name_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Ledger.open(path, study_name="s", total=10.0) as ledger:
        ledger.reserve([(design(0), 1.0)])
        shutil.copy(path, tmp_path / "copy")
        os.replace(tmp_path / "copy", path)
        assert ledger.reserve([(design(1), 1.0)]).granted
    with Ledger.open(path, study_name="s", total=10.0) as ledger:
        assert len(ledger.state().runs) == 2


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path) -> None:
    times = iter([1e9, 2e9, 5.0, -3.0, 1e9, 0.0, 1e9, 1e9])
    with Ledger.open(tmp_path / "s.sqlite", study_name="s", total=10.0, clock=lambda: next(times)) as ledger:
        run_id = ledger.reserve([(design(0), 1.0)]).granted[0].run_id
        ledger.submitted(run_id, "h")
        ledger.running(run_id)
        assert ledger.complete(run_id, 2.0).state is RunState.COMPLETED
        state = ledger.state()
    with Ledger.open(tmp_path / "s.sqlite", study_name="s", total=10.0) as ledger:
        assert ledger.state() == state


# ---- giving up


def test_what_cancel_leaves_alone_is_named() -> None:
    budget = {"unit": "h", "total": 9.0, "spent": 1.0, "reserved": 2.0, "remaining": 6.0}
    lines = text.cancelled({"runs": [], "others": ["r1", "r2", "r3", "r4"], "budget": budget})
    assert lines[0] == "nothing to cancel" and "4 others are under way" in lines[1] and "r1, r2, r3, ..." in lines[1]


@pytest.mark.slow
def test_results_at_the_limit_do_not_stop_the_planning(tmp_path: Path) -> None:
    with Study.open(write_study(tmp_path)) as study:
        runs = study.ask(5)
        for run, response in zip(runs, [2.0, 1e50, 1e-300, 1e-50], strict=False):
            study.tell(run.run_id, response=response, se=1e50 if response == 2.0 else None)
        assert study.ask(1)
