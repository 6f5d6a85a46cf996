"""Trackers are told what the ledger holds, once; whatever they do, the study does not notice."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backends import open_backend
from planner import loop
from planner.errors import InputError, SpecError
from planner.ledger import Ledger
from planner.records import CurvePoint, Design, Event, RunState
from planner.study import Study
from planner.trackers import RunUpdate, Tracker, open_tracker
from planner.trackers.feed import Feed
from planner.trackers.follow import Cursor, _tell, follow
from tests.postgres import fresh_database
from tests.worlds import STUDY, open_toy, write_study

WAIT_SECONDS = 60.0
FACTORS = {"web": {"model": "dense"}}

# A tracker of the user's own: one JSON line per write, and whatever else the settings ask for.
OWN = """
import json, os, time

class Lines:
    def __init__(self, path, settings):
        self.path, self.settings, self.writes = path, settings, 0

    def write(self, update):
        self.writes += 1
        print("a tracker that prints", flush=True)
        if self.settings.get("raises"):
            raise ConnectionError("the network is gone")
        if self.settings.get("hangs"):
            time.sleep(1e6)
        if self.settings.get("dies") == self.writes:
            os._exit(9)
        with self.path.open("a") as file:
            file.write(json.dumps([update.run_id, update.state, [row.number for row in update.rows]]) + "\\n")

    def close(self):
        pass

def open_lines(*, study, folder, **settings):
    if settings.get("missing"):
        import a_module_that_is_not_there
    return Lines(folder / "lines.txt", settings)
"""


def study_with(folder: Path, settings: str, wait: float = 20.0, trackers: str = "") -> Path:
    (folder / "own_tracker.py").write_text(OWN)
    section = f'[[trackers]]\nkind = "own_tracker:open_lines"\nwait_seconds = {wait}\nsettings = {{ {settings} }}\n'
    path = write_study(folder, STUDY)
    path.write_text(
        f'{path.read_text()}\n[backend]\nkind = "simulator"\nroles = {{ N = "parameters", D = "tokens" }}\n'
    )
    path.write_text(f"{path.read_text()}\n{trackers or section}")
    return path


def run(path: Path, max_runs: int = 4) -> Study:
    with open_toy(path) as study:
        backend = open_backend("simulator", loop.backend_options(study.spec), study.spec.folder)
        ended = study.run(backend, max_runs=max_runs)
        assert ended.bought == max_runs
        return study


def lines(path: Path) -> list[list[Any]]:
    file = path.parent / "lines.txt"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ---- what a tracker is told


def _story(ledger: Ledger) -> str:
    """A run that is interrupted, goes on, ends and is corrected."""
    run_id = ledger.reserve([(Design(domain="web", axes={"N": 1e9, "D": 2e10}, seed=3), 4.0)]).granted[0].run_id
    ledger.submitted(run_id, "h")
    ledger.running(run_id)
    ledger.progress(run_id, value=3.0, step=10, cost=1.0)
    ledger.preempt(run_id, cost=1.5)
    ledger.retry(run_id)
    ledger.submitted(run_id, "h2")
    ledger.progress(run_id, value=2.5, step=20, cost=2.0)
    ledger.complete(run_id, 2.0, cost=3.5, se=0.1)
    ledger.amend(run_id, 2.25)
    return run_id


def test_a_tracker_is_told_axes_tags_rows_and_the_end() -> None:
    with Ledger.open(":memory:", study_name="study", total=10.0) as ledger:
        run_id = _story(ledger)
        (update,) = Feed("study", FACTORS).take(ledger.events())
    assert update.params == {"N": 1e9, "D": 2e10}
    assert update.tags == {
        "study": "study",
        "run_id": run_id,
        "domain": "web",
        "factor.model": "dense",
        "seed": "3",
        "attempt": "1",
        "state": "completed",
    }
    assert update.state is RunState.COMPLETED and update.ended_at is not None
    assert [(row.number, dict(row.metrics)) for row in update.rows] == [
        (0, {"step": 10, "value": 3.0, "cost_so_far": 1.0}),
        (1, {"cost": 1.5}),
        (2, {"step": 20, "value": 2.5, "cost_so_far": 2.0}),
        (3, {"response": 2.0, "cost": 3.5, "se": 0.1}),
        (4, {"response": 2.25, "cost": 3.5, "se": 0.1}),
    ]


def test_rows_have_the_same_numbers_however_events_are_cut_and_nothing_is_told_again() -> None:
    with Ledger.open(":memory:", study_name="study", total=10.0) as ledger:
        _story(ledger)
        events = ledger.events()
    whole = Feed("study", FACTORS).take(events)[0].rows
    for told in range(len(events) + 1):
        feed = Feed("study", FACTORS)
        first = [row for update in feed.take(events[:told]) for row in update.rows]
        then = [row for update in feed.take(events[told:]) for row in update.rows]
        assert [*first, *then] == [*whole]
        again = [row for update in Feed("study", FACTORS).take(events, told=told) for row in update.rows]
        assert again == then


def test_points_of_a_curve_are_rows() -> None:
    with Ledger.open(":memory:", study_name="study", total=10.0) as ledger:
        run_id = ledger.reserve([(Design(domain="web", axes={"N": 1e9}), 4.0)]).granted[0].run_id
        ledger.submitted(run_id, "h")
        points = [CurvePoint(1.0, 3.0, 0.5, False), CurvePoint(2.0, None, 1.0, False), CurvePoint(4.0, 2.0, 2.0, True)]
        ledger.progress(run_id, value=2.0, step=4.0, cost=2.0, points=points)
        events = ledger.events()
    (update,) = Feed("study", {}).take(events)
    assert [dict(row.metrics) for row in update.rows] == [
        {"step": 1.0, "value": 3.0, "cost_so_far": 0.5, "schedule_complete": 0.0},
        {"step": 2.0, "cost_so_far": 1.0, "schedule_complete": 0.0},
        {"step": 4.0, "value": 2.0, "cost_so_far": 2.0, "schedule_complete": 1.0},
    ]
    odd = Event(seq=len(events) + 1, at=9.0, kind="progress", run_id=run_id, body={"points": ["x", [], 1, None]})
    assert Feed("study", {}).take([*events, odd])[0].rows == update.rows


def test_a_diverged_run_has_a_cost_and_no_response() -> None:
    with Ledger.open(":memory:", study_name="study", total=10.0) as ledger:
        run_id = ledger.reserve([(Design(domain="code", axes={"N": 1e9}), 4.0)]).granted[0].run_id
        ledger.diverge(run_id)
        (update,) = Feed("study", FACTORS).take(ledger.events())
    assert [dict(row.metrics) for row in update.rows] == [{"cost": 4.0}]
    assert update.state is RunState.DIVERGED and "factor.model" not in update.tags


# ---- faults of a tracker


class Moody:
    """A tracker that fails for some runs, or for a while."""

    def __init__(self, bad: tuple[str, ...] = (), down: int = 0) -> None:
        self.bad, self.down = bad, down
        self.taken: list[str] = []

    def write(self, update: RunUpdate) -> None:
        self.down -= 1
        if self.down >= 0:
            raise ConnectionError("down")
        if update.run_id in self.bad:
            raise ValueError("not this one")
        self.taken.append(update.run_id)

    def close(self) -> None:
        pass


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "s.sqlite", study_name="study", total=100.0) as ledger:
        ledger.reserve([(Design(domain="web", axes={"N": float(i + 1)}), 1.0) for i in range(5)])
        yield ledger


def test_what_fails_is_told_again_while_the_tracker_is_down(ledger: Ledger, tmp_path: Path) -> None:
    tracker, cursor, pauses = Moody(down=23), Cursor(tmp_path / "c.json"), []  # type: ignore[var-annotated]
    follow(ledger, Feed("study", {}), cursor, tracker, is_last=lambda: True, sleep=pauses.append)
    assert sorted(tracker.taken) == sorted(ledger.state().runs)
    assert (cursor.seq, cursor.values["error"], cursor.values["left_out"]) == (6, "", [])
    assert pauses[:3] == [0.5, 1.0, 2.0]


def test_one_run_that_a_tracker_refuses_does_not_hold_up_the_others(ledger: Ledger, tmp_path: Path) -> None:
    bad = list(ledger.state().runs)[1]
    tracker, cursor = Moody(bad=(bad,)), Cursor(tmp_path / "c.json")
    for _ in range(2):  # the second time there is nothing to tell
        follow(ledger, Feed("study", {}), cursor, tracker, is_last=lambda: True, sleep=lambda seconds: None)
    assert sorted(tracker.taken) == sorted(set(ledger.state().runs) - {bad})
    assert cursor.seq == 6 and cursor.values["left_out"] == [bad]
    assert "not this one" in Cursor(tmp_path / "c.json").values["error"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seq": -1}', '{"seq": "x"}', "\0\0"])
def test_a_damaged_note_of_how_far_it_is_means_telling_all_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    assert Cursor(tmp_path / "c.json").seq == 0


# ---- the process of a tracker beside a study


def test_a_study_tells_its_trackers_while_it_runs(tmp_path: Path) -> None:
    path = study_with(tmp_path, "", wait=WAIT_SECONDS)
    study = run(path)
    told = {run_id: state for run_id, state, _ in lines(path)}
    assert told == {run.run_id: "completed" for run in study.state.runs.values()}
    assert study.warnings == []
    (standing,) = study.status()["trackers"]
    assert standing["behind"] == 0 and standing["num_events"] == study.state.num_events


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("raises = true", "ConnectionError: the network is gone"),
        ("hangs = true", "lacks the last"),
        ("dies = 2", "lacks the last"),
        ("missing = true", "a_module_that_is_not_there"),
    ],
)
def test_a_tracker_that_fails_changes_nothing_and_is_said(tmp_path: Path, settings: str, words: str) -> None:
    path = study_with(tmp_path, settings, wait=3.0)
    study = run(path)
    (tmp_path / "quiet").mkdir()
    quiet = write_study(tmp_path / "quiet")
    quiet.write_text(path.read_text().partition("[[trackers]]")[0])
    alone = run(quiet)
    assert {each.run_id: each.response for each in study.state.runs.values()} == {
        each.run_id: each.response for each in alone.state.runs.values()
    }
    assert len(study.warnings) == 1 and words in study.warnings[0]
    assert "planner track" in study.warnings[0] and "not affected" in study.warnings[0]
    (standing,) = study.status()["trackers"]
    assert standing["behind"] > 0


def test_after_a_death_in_the_middle_the_rest_is_told(tmp_path: Path) -> None:
    path = study_with(tmp_path, "dies = 3", wait=WAIT_SECONDS)
    study = run(path)
    assert len(lines(path)) == 2  # taken, and not noted: they are told again
    path.write_text(path.read_text().replace("dies = 3", ""))
    with Study.open(path, read_only=True) as reopened:
        (standing,) = reopened.track(patience=WAIT_SECONDS)
        assert standing["behind"] == 0 and reopened.warnings == []
        before = lines(path)
        reopened.track(patience=WAIT_SECONDS)
    assert lines(path) == before  # nothing new, nothing told
    rows = {run_id: numbers for run_id, _, numbers in before}
    assert set(rows) == set(study.state.runs) and set(map(tuple, rows.values())) == {(0,)}


def test_a_killed_planner_leaves_no_tracker_behind(tmp_path: Path) -> None:
    path = study_with(tmp_path, "hangs = true", wait=1.0)
    code = (
        "import os, sys, time; from pathlib import Path; from planner.trackers.watch import following\n"
        "from planner.study import Study\n"
        "study = Study.open(Path(sys.argv[1])); study.attach({'N': 1, 'D': 1}, 2.0, domain='web')\n"
        "with following(study.spec, study.ledger, print):\n"
        "    print('started', flush=True); time.sleep(600)"
    )
    planner = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert planner.stdout is not None and planner.stdout.readline() == "started\n"
    _until(lambda: "prints" in (tmp_path / "toy.trackers" / "own_tracker.log").read_text())
    cursor = Cursor(tmp_path / "toy.trackers" / "own_tracker.json")
    with cursor.hold() as is_mine:
        assert not is_mine
    planner.send_signal(signal.SIGKILL)
    planner.wait()
    planner.stdout.close()

    def is_free() -> bool:
        with cursor.hold() as is_mine:
            return is_mine

    _until(is_free)


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_trackers_do_not_share_the_output_of_the_program(tmp_path: Path) -> None:
    path = study_with(tmp_path, "", wait=WAIT_SECONDS)
    with open_toy(path) as study:
        study.ask(2)
    command = [sys.executable, "-m", "planner.cli", "track", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    document = json.loads(done.stdout)
    assert document["trackers"][0]["behind"] == 0
    assert "a tracker that prints" in (tmp_path / "toy.trackers" / "own_tracker.log").read_text()


def test_a_study_on_a_server_is_told_from_there(tmp_path: Path) -> None:
    with fresh_database() as url:
        path = study_with(tmp_path, "")
        path.write_text(f"{path.read_text()}\n[store]\nurl = {json.dumps(url)}\n")
        with open_toy(path) as study:
            runs = study.ask(2)
            assert study.track(patience=WAIT_SECONDS)[0]["behind"] == 0, study.warnings
    assert sorted(run_id for run_id, _, _ in lines(path)) == sorted(run.run_id for run in runs)


def test_a_folder_that_cannot_be_written_stops_no_study(tmp_path: Path) -> None:
    path = study_with(tmp_path, "")
    (tmp_path / "toy.trackers").write_text("a file is in the way")
    study = run(path)
    assert any("cannot be started" in warning for warning in study.warnings)


def test_a_study_in_memory_has_nothing_to_tell_from(tmp_path: Path) -> None:
    path = study_with(tmp_path, "")
    with Study.from_spec(Study.open(path, read_only=True).spec, store=":memory:") as study:
        study.track()
        assert "in memory" in study.warnings[-1]


# ---- the study file


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('kind = "tensorboard"', "is no kind of tracker"),
        ('kind = "mlflow"\nentity = "me"', "does not belong to a tracker of kind 'mlflow'"),
        ('kind = "wandb"\nmode = "none"', "mode"),
        ('kind = "mlflow"\nname = "../x"', "is a file name too"),
        ('kind = "mlflow"\n[[trackers]]\nkind = "mlflow"', "already the name of trackers"),
        ('kind = "mlflow"\nwait_seconds = -1', "greater than 0"),
    ],
)
def test_mistakes_in_the_section_are_named(tmp_path: Path, section: str, words: str) -> None:
    path = study_with(tmp_path, "", trackers=f"[[trackers]]\n{section}\n")
    with pytest.raises(SpecError, match=words):
        Study.open(path, read_only=True)


def test_trackers_do_not_change_what_a_study_is(tmp_path: Path) -> None:
    path = study_with(tmp_path, "")
    digest = Study.open(path, read_only=True).spec.digest
    path.write_text(path.read_text().partition("[[trackers]]")[0])
    assert Study.open(path, read_only=True).spec.digest == digest
    with pytest.raises(InputError, match="has no trackers"):
        Study.open(path, read_only=True).track()


# ---- each kind against a stand-in of its library, which fails when it is called otherwise than the library allows


class FakeMlflow:
    """The part of MLflow's client that is used, with its rules: params never change, steps are whole."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.experiments: dict[str, str] = {}

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def search_runs(self, experiments: list[str], wanted: str, max_results: int) -> list[Any]:
        key, _, value = wanted.partition(" = ")
        name = key.removeprefix("tags.`").removesuffix("`")
        return [run for run in self.runs.values() if run.data.tags.get(name) == value.strip("'")][:max_results]

    def create_run(self, experiment: str, start_time: int, tags: dict[str, str], run_name: str) -> Any:
        info = types.SimpleNamespace(run_id=f"m{len(self.runs)}", status="RUNNING", end_time=None)
        data = types.SimpleNamespace(params={}, tags=dict(tags), metrics=[])
        return self.runs.setdefault(info.run_id, types.SimpleNamespace(info=info, data=data))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        data = self.runs[run_id].data
        for name, value, timestamp, step in metrics:
            assert isinstance(step, int) and isinstance(timestamp, int)
            data.metrics.append((name, value, step))
        for name, value in params:
            assert data.params.setdefault(name, value) == value
        data.tags |= dict(tags)

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].info.status = status

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.runs[run_id].info.status, self.runs[run_id].info.end_time = status, end_time


class FakeWandb:
    """`wandb.init` with its rules: a resumed run goes on after its last step, and earlier steps are dropped."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.num_open = 0

    def init(self, *, id: str, name: str, resume: str, reinit: str, tags: list[str], **options: Any) -> Any:
        assert (resume, reinit) == ("allow", "create_new") and all(len(tag) <= 64 for tag in tags)
        known = self.runs.setdefault(id, types.SimpleNamespace(rows={}, config={}, summary={}, exits=[]))
        self.num_open += 1

        def log(metrics: dict[str, float], step: int) -> None:
            assert step not in known.rows
            known.rows[step] = metrics

        def finish(exit_code: int) -> None:
            self.num_open -= 1
            known.exits.append(exit_code)

        config = types.SimpleNamespace(update=lambda new, allow_val_change: known.config.update(new))
        step = max(known.rows, default=-1) + 1
        return types.SimpleNamespace(
            step=step, config=config, summary=known.summary, log=log, finish=finish, define_metric=lambda *a, **k: None
        )


class FakeTrackio:
    """`trackio.init`, whose run knows its next step."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, Any]]]] = {}

    def init(self, *, project: str, name: str, config: dict[str, Any], resume: str, **options: Any) -> Any:
        assert resume == "allow" and project.isascii() and "/" not in project
        rows = self.runs.setdefault(name, [])
        step = max((number for number, _ in rows), default=-1) + 1
        return types.SimpleNamespace(_next_step=step, log=lambda metrics, step: rows.append((step, metrics)))

    def finish(self) -> None:
        pass


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for the libraries, under their names."""
    fakes: dict[str, Any] = {"mlflow": FakeMlflow(), "wandb": FakeWandb(), "trackio": FakeTrackio()}
    mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    mlflow.MlflowClient = lambda tracking_uri: fakes["mlflow"]  # type: ignore[attr-defined]
    for name in ("Metric", "Param", "RunTag"):
        setattr(entities, name, lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in ("wandb", "trackio"):
        module = types.ModuleType(name)
        module.init = fakes[name].init  # type: ignore[attr-defined]
        module.finish = getattr(fakes[name], "finish", None)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("WANDB_SILENT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    return fakes


def _told_twice(make: Callable[[], Tracker]) -> str:
    """Tells a whole story in parts, each part twice, by trackers that forget everything in between."""
    with Ledger.open(":memory:", study_name="a study", total=10.0) as ledger:
        run_id = _story(ledger)
        events = ledger.events()
    feed = Feed("a study", FACTORS)
    for start in range(0, len(events), 3):
        updates = feed.take(events[start : start + 3])
        for _ in range(2):
            tracker = make()
            _tell(tracker, list(updates), _NoCursor(), lambda seconds: None)  # type: ignore[arg-type]
            tracker.close()
    return run_id


class _NoCursor:
    values: dict[str, Any] = {"left_out": []}  # noqa: RUF012

    def save(self, **values: Any) -> None:
        assert not values.get("error") and not values.get("left_out"), values


def test_mlflow_gets_every_row_once(libraries: dict[str, Any], tmp_path: Path) -> None:
    run_id = _told_twice(lambda: open_tracker("mlflow", {"uri": "sqlite:///m.db"}, "a study", tmp_path))
    (run,) = libraries["mlflow"].runs.values()
    assert run.data.params == {"N": "1000000000.0", "D": "20000000000.0"}
    assert run.data.tags["planner.run_id"] == run_id and run.data.tags["planner.factor.model"] == "dense"
    assert run.data.tags["planner.state"] == "completed" and run.info.status == "FINISHED"
    assert [(name, value, step) for name, value, step in run.data.metrics if name in ("value", "response")] == [
        ("value", 3.0, 10),
        ("value", 2.5, 20),
        ("response", 2.0, 3),
        ("response", 2.25, 4),
    ]


def test_wandb_gets_every_row_once(libraries: dict[str, Any], tmp_path: Path) -> None:
    run_id = _told_twice(lambda: open_tracker("wandb", {"mode": "offline"}, "a study", tmp_path))
    run = libraries["wandb"].runs[run_id]
    assert sorted(run.rows) == [0, 1, 2, 3, 4] and run.rows[4]["response"] == 2.25
    assert run.config["N"] == 1e9 and run.config["domain"] == "web" and run.summary["state"] == "completed"
    assert libraries["wandb"].num_open == 0 and run.exits[-1] == 0


def test_trackio_gets_every_row_once(libraries: dict[str, Any], tmp_path: Path) -> None:
    run_id = _told_twice(lambda: open_tracker("trackio", {}, "a/study é", tmp_path))
    rows = libraries["trackio"].runs[run_id]
    assert [number for number, _ in rows] == [0, 1, 2, 3, 4] and rows[4][1]["response"] == 2.25


def test_a_library_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for kind in ("mlflow", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, kind, None)
        with pytest.raises(InputError, match=rf"pip install 'scaling-planner\[{kind}\]'"):
            open_tracker(kind, {}, "study", tmp_path)
    with pytest.raises(InputError, match="or module:function"):
        open_tracker("other", {}, "study", tmp_path)


# ---- the libraries themselves, where they are installed, without any network

REAL = """
import json, os, sys, warnings
from pathlib import Path
from planner.ledger import Ledger
from planner.trackers import open_tracker
from planner.trackers.feed import Feed
from tests.test_trackers import FACTORS, _story

def tell(kind, options):
    folder = Path(sys.argv[1])
    with Ledger.open(":memory:", study_name="it's a study", total=10.0) as ledger:
        run_id = _story(ledger)
        events = ledger.events()
    feed = Feed("it's a study", FACTORS)
    for start in range(0, len(events), 3):
        updates = feed.take(events[start : start + 3])
        for _ in range(1 + (kind != "wandb")):
            tracker = open_tracker(kind, options, "it's a study", folder)
            for update in updates:
                tracker.write(update)
            tracker.close()
    return run_id
"""


def _real(kind: str, folder: Path, code: str) -> Any:
    pytest.importorskip(kind)
    environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", REAL + code, str(folder)], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_mlflow(tmp_path: Path) -> None:
    code = """
run_id = tell("mlflow", {"uri": "sqlite:///m.db"})
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/m.db")
(run,) = client.search_runs([client.get_experiment_by_name("it's a study").experiment_id])
history = {name: [(m.value, m.step) for m in client.get_metric_history(run.info.run_id, name)]
           for name in ("value", "response")}
print(json.dumps([run_id, run.info.status, run.data.params, run.data.tags, history]))
"""
    run_id, status, params, tags, history = _real("mlflow", tmp_path, code)
    assert status == "FINISHED" and params == {"N": "1000000000.0", "D": "20000000000.0"}
    assert tags["planner.run_id"] == run_id and tags["planner.domain"] == "web"
    assert history == {"value": [[3.0, 10], [2.5, 20]], "response": [[2.0, 3], [2.25, 4]]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_wandb(tmp_path: Path) -> None:
    code = """
run_id = tell("wandb", {"mode": "offline"})
from wandb.proto import wandb_internal_pb2
def records(data):
    # Blocks of 32 KiB; a chunk has a checksum (4 bytes), its length (2) and whether it is whole, first, middle or last.
    place, parts = 7, b""
    while place + 7 <= len(data):
        if place % 32768 > 32768 - 7:
            place += 32768 - place % 32768
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""
rows = {}
for file in Path(sys.argv[1], "wandb").glob("offline-run-*/*.wandb"):
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            assert step not in rows
            rows[step] = [values.get("value"), values.get("response")]
print(json.dumps([run_id, rows]))
"""
    _run_id, rows = _real("wandb", tmp_path, code)
    assert rows == {"0": [3.0, None], "1": [None, None], "2": [2.5, None], "3": [None, 2.0], "4": [None, 2.25]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_trackio(tmp_path: Path) -> None:
    code = """
run_id = tell("trackio", {"directory": "t"})
from trackio import SQLiteStorage
print(json.dumps([run_id, SQLiteStorage.get_logs("it-s-a-study", run_id)]))
"""
    _run_id, rows = _real("trackio", tmp_path, code)
    assert [(row["step"], row.get("value"), row.get("response")) for row in rows] == [
        (0, 3.0, None),
        (1, None, None),
        (2, 2.5, None),
        (3, None, 2.0),
        (4, None, 2.25),
    ]
