"""Planners killed by SIGKILL at random moments: nothing is paid twice, nothing is lost, the budget is kept.

Two planners work on one store, one in the loop and one asking and telling by hand, and are killed in turn.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from planner.errors import NothingAffordable
from planner.execution import Job, Report
from planner.loop import BY_LOOP
from planner.records import CurvePoint, DesignTable, Proposal, RunRecord, RunState, StudyState
from planner.spec import StudySpec
from planner.study import Study
from tests.postgres import STORES, execute, fresh_store
from tests.worlds import STUDY, Cheapest, open_toy

# Children start from a server that has imported everything once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["planner.store", "planner.study", "planner.loop", "tests.test_kills"])
WAIT_SECONDS = 120.0
KILLS = {"sqlite": 40, "postgres": 20}
KILLS_PER_STUDY = 20
MAX_STEPS = 20  # a planner is killed after so many steps at most
NUM_POINTS = 12  # of a run's curve
TOTAL = 400.0  # for about a third of the designs
VERBS = ("reserve", "submitted", "running", "progress", "complete", "fail", "preempt", "retry", "lose")

Raw = tuple[int, str, str | None, Mapping[str, Any]]  # seq, kind, run_id, body


def _chance(*what: object) -> float:
    """Between 0 and 1, always the same for the same question: a planner that was killed gets the same answers."""
    return int(hashlib.sha256(repr(what).encode()).hexdigest()[:8], 16) / 2**32


class Files:
    """A backend that outlives its planners: an attempt is a file, which is made once."""

    slots = 4
    simulated = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looks: Counter[str] = Counter()

    def submit(self, job: Job) -> str:
        (self._folder / f"{job.run_id}.{job.attempt}").touch()
        return f"{job.run_id}.{job.attempt} {job.options['predicted_cost']}"

    def poll(self, handles: Sequence[str]) -> list[Report]:
        return [self._report(handle) for handle in handles]

    def cancel(self, handle: str) -> None:
        raise NotImplementedError

    def _report(self, handle: str) -> Report:
        name, _, predicted = handle.partition(" ")
        assert (self._folder / name).exists()
        self._looks[handle] += 1
        if self._looks[handle] < 2:
            state, share = RunState.RUNNING, 0.25
        else:
            state, share = _end_of(name)
        response = 2.0 + _chance(name) if state is RunState.COMPLETED else None
        cost = share * float(predicted)
        run_id = name.partition(".")[0]
        points = _points_of(run_id, 2 if share == 0.25 else NUM_POINTS)
        return Report(run_id=run_id, handle=handle, state=state, response=response, cost=cost, points=points)


def _points_of(run_id: str, num: int) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(k + 1.0, _chance("point", run_id, k), None, False) for k in range(num))


def _end_of(name: str) -> tuple[RunState, float]:
    """How an attempt ends, and which share of its predicted cost it takes."""
    chance = _chance("end", name)
    if chance < 0.1:
        return RunState.FAILED, 0.5
    if chance < 0.25:
        return RunState.PREEMPTED, 0.5
    return RunState.COMPLETED, 1.0 if chance < 0.6 else 0.75


class Declared(Cheapest):
    """The cheapest first, at the declared costs: no run costs more, and sums are exact in any order."""

    def propose(self, spec: StudySpec, state: StudyState, table: DesignTable, num: int) -> Proposal:
        proposal = super().propose(spec, state, table, num)
        return replace(proposal, costs=[spec.cost_of(design.domain, design.axes) for design in proposal.designs])


# --- what is killed


def _live(path: Path, role: str, steps: Connection | None) -> None:
    """The life of a planner until there is nothing more to do; every step is told before and after it is made."""
    held: list[tuple[str, ...]] | None = None  # in one transaction nothing is acknowledged before its end

    def tell(*step: str) -> None:
        if held is not None and step[0] == "after":
            held.append(step)
        elif steps is not None:
            steps.send(step)

    @contextlib.contextmanager
    def together() -> Iterator[None]:
        nonlocal held
        with whole():
            held = []
            yield
        acknowledged, held = held, None
        for step in acknowledged:
            tell(*step)

    with open_toy(path) as study:
        study.policy = Declared()  # type: ignore[misc]
        backend = Files(path.parent / "jobs")
        for owner, names in ((study.ledger, VERBS), (backend, ("submit", "poll"))):
            for name in names:
                setattr(owner, name, _told(getattr(owner, name), name, tell))
        whole = study.ledger.together
        study.ledger.together = together  # type: ignore[method-assign]
        if role == "loop":
            study.run(backend, sleep=lambda seconds: None)
        else:
            _by_hand(study)
    tell("end", "", "")


def _told(function: Callable[..., Any], name: str, tell: Callable[..., None]) -> Callable[..., Any]:
    def told(*arguments: Any, **options: Any) -> Any:
        tell("before", name, "")
        result = function(*arguments, **options)
        runs = getattr(result, "granted", [result])
        for run in runs if name in VERBS else [None]:
            tell("after", name, run and run.run_id)
        return result

    return told


def _by_hand(study: Study) -> None:
    told = [run for run in _of_hand(study) if run.state is RunState.COMPLETED]
    for run in told[-1:]:  # the life before may not know whether it was heard
        _tell(study, run)
    while True:
        for run in _of_hand(study):
            if run.state is RunState.PROPOSED:
                _tell(study, run)
        try:
            study.ask(2)
        except NothingAffordable:
            return


def _of_hand(study: Study) -> list[RunRecord]:
    return [run for run in study.state.runs.values() if run.reason.get("by") != BY_LOOP["by"]]


def _tell(study: Study, run: RunRecord) -> None:
    chance = _chance("hand", run.run_id, run.attempt)
    if chance < 0.1:
        study.fail(run.run_id, "it broke", cost=0.5 * run.predicted_cost)
    else:
        study.tell(run.run_id, response=2.0 + chance, cost=0.75 * run.predicted_cost)


# --- what is known without the program


def _raw_events(location: str | Path) -> list[Raw]:
    url = f"sqlite:///{location}" if isinstance(location, Path) else location
    rows: Any = execute(url, "SELECT seq, kind, run_id, body FROM events ORDER BY seq")
    return [(seq, kind, run_id, json.loads(body)) for seq, kind, run_id, body in rows]


class Count:
    """Money and attempts, counted from the raw events with none of the replay's code, and checked at every event."""

    def __init__(self, events: Sequence[Raw]) -> None:
        self.spent: dict[str, Fraction] = {}
        self.held: dict[str, Fraction] = {}  # run_id -> what its open attempt holds back
        self.responses: dict[str, float] = {}
        self.attempts: dict[str, int] = {}
        self._news: dict[str, set[str]] = {}  # kinds seen in this attempt
        for i, (seq, kind, run_id, body) in enumerate(events):
            assert seq == i + 1
            if run_id is not None:
                self._take(kind, run_id, body)
            assert self.total() <= Fraction(TOTAL), f"the budget is exceeded at event {seq}"

    def total(self) -> Fraction:
        return sum([*self.spent.values(), *self.held.values()], Fraction())

    def _take(self, kind: str, run_id: str, body: Mapping[str, Any]) -> None:
        news = self._news.setdefault(run_id, set())
        if kind == "proposed":
            # Paid again only after an end without a result, or to go on after an interruption, which costs nothing.
            assert run_id not in self.responses
            assert run_id not in self.held or "preempted" in news
            self.held.setdefault(run_id, Fraction(body["predicted_cost"]))
            self.attempts[run_id] = self.attempts.get(run_id, -1) + 1
            self._news[run_id] = set()
            return
        assert run_id in self.held, f"{kind} of {run_id}, which holds nothing"
        assert kind == "progress" or kind not in news, f"{kind} of {run_id} twice in one attempt"
        news.add(kind)
        if kind == "submitted":
            assert body["attempt"] == self.attempts[run_id]
        elif kind in ("completed", "failed"):
            assert Fraction(body["charged"]) <= self.held.pop(run_id)
            self.spent[run_id] = self.spent.get(run_id, Fraction()) + Fraction(body["charged"])
            if kind == "completed":
                self.responses[run_id] = body["response"]
        else:
            assert kind in ("running", "progress", "preempted"), kind


def _check(path: Path, location: str | Path, acknowledged: set[tuple[str, str]]) -> list[Raw]:
    events = _raw_events(location)
    count = Count(events)
    recorded = {(kind, run_id) for _, kind, run_id, _ in events if run_id is not None}
    assert acknowledged <= recorded
    with Study.open(path, read_only=True) as study:
        state = study.state
    assert state.num_events == len(events)
    # Costs are multiples of 1/8, so that sums are exact in any order.
    assert (Fraction(state.spent), Fraction(state.reserved)) == (sum(count.spent.values()), sum(count.held.values()))
    done = {run.run_id: run.response for run in state.runs.values() if run.state is RunState.COMPLETED}
    assert done == count.responses
    assert {run.run_id: run.attempt for run in state.runs.values()} == count.attempts
    assert {run.run_id for run in state.pending()} == set(count.held)
    # An end is never acknowledged before the whole curve, and no point is told twice.
    for run_id in done:
        run = state.runs[run_id]
        assert run.points() == (list(_points_of(run_id, NUM_POINTS)) if run.reason.get("by") == BY_LOOP["by"] else [])
    told = Counter(
        (run.run_id, began, *point) for run in state.runs.values() for began, some in run.batches for point in some
    )
    assert set(told.values()) <= {1}
    # What was started was paid for before, and what is known to be submitted was started.
    started = _started(path)
    assert all(int(attempt) <= count.attempts[run_id] for run_id, attempt in (name.split(".") for name in started))
    assert _submitted(events) <= started
    return events


def _started(path: Path) -> set[str]:
    return {file.name for file in (path.parent / "jobs").iterdir()}


def _submitted(events: Sequence[Raw]) -> set[str]:
    return {f"{run_id}.{body['attempt']}" for _, kind, run_id, body in events if kind == "submitted"}


# --- killing


def _write(folder: Path, location: str | Path) -> Path:
    (folder / "jobs").mkdir(parents=True)
    text = STUDY.replace("values = [1, 2]", f"values = {list(range(8, 28))}")
    text = text.replace("values = [1, 4]", "values = [1, 2, 4]").replace("total = 100", f"total = {TOTAL}")
    text = text.replace("coefficient = 1,", "coefficient = 0.5,")
    path = folder / "toy.toml"
    path.write_text(f"{text}\n[store]\nurl = {json.dumps(str(location))}\n")
    return path


class Planner:
    """A child at work, and what it has told of it."""

    def __init__(self, path: Path, role: str) -> None:
        self.role, self.is_done = role, False
        self._steps, theirs = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=_live, args=(path, role, theirs))
        self.process.start()
        theirs.close()
        self.told: list[tuple[str, str, str]] = []

    def follow(self, num: int) -> bool:
        """Waits for so many steps; False when it came to its end before."""
        with contextlib.suppress(EOFError):
            for _ in range(num):
                assert self._steps.poll(WAIT_SECONDS)
                self.told.append(self._steps.recv())
                if self.told[-1][0] == "end":
                    self.is_done = True
        return not self.is_done

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> bool:
        """Reads what it still told; true if it was killed before its end."""
        self.process.join(WAIT_SECONDS)
        with contextlib.suppress(EOFError, OSError):
            while self._steps.poll(0):
                self.told.append(self._steps.recv())
        self._steps.close()
        code = self.process.exitcode
        self.process.close()
        assert code in (0, -signal.SIGKILL), f"the planner ended with {code} after {self.told[-3:]}"
        return code != 0

    def acknowledged(self) -> Iterator[tuple[str, str]]:
        kinds = {"reserve": "proposed", "complete": "completed", "fail": "failed", "preempt": "preempted"}
        kinds |= {"submitted": "submitted", "retry": "proposed"}
        for when, verb, run_id in self.told:
            if when == "after" and verb in kinds:
                yield kinds[verb], run_id


def _kill_planners(path: Path, location: str | Path, chance: random.Random, num_kills: int) -> tuple[Counter[str], int]:
    """Kills planners of one study, then lets it come to its end; after what they were killed, and how many events."""
    kills: Counter[str] = Counter()
    acknowledged: set[tuple[str, str]] = set()
    while kills.total() < num_kills:
        planners = [Planner(path, role) for role in ("loop", "hand")]
        for planner in chance.sample(planners, 2):
            num_steps = chance.randrange(MAX_STEPS)
            if planner.follow(num_steps):
                time.sleep(chance.uniform(0.0, 0.004 if num_steps else 0.2))  # the second: while it opens the store
                planner.kill()
        for planner in planners:
            if planner.close():
                kills[" ".join(planner.told[-1][:2]) if planner.told else "opening"] += 1
            acknowledged |= set(planner.acknowledged())
        if _has_study(location):
            _check(path, location, acknowledged)
        if all(planner.is_done for planner in planners):
            break
    for role in ("loop", "hand"):
        _live(path, role, None)
    events = _check(path, location, acknowledged)
    assert not Count(events).held
    assert _submitted(events) == _started(path)
    return kills, len(events)


def _has_study(location: str | Path) -> bool:
    if isinstance(location, Path):
        return location.exists()
    return execute(location, "SELECT * FROM pg_tables WHERE tablename = 'events'") != []


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_killed_at_random_moments_it_pays_once_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    num_kills = int(os.environ.get("PLANNER_TEST_KILLS", KILLS[kind]))
    chance = random.Random(11)
    kills: Counter[str] = Counter()
    num_studies = num_events = 0
    while kills.total() < num_kills:
        folder = tmp_path / str(num_studies)
        with fresh_store(kind, folder) as location:
            left = min(KILLS_PER_STUDY, num_kills - kills.total())
            more, events = _kill_planners(_write(folder, location), location, chance, left)
        kills += more
        num_studies += 1
        num_events += events
    print(f"{kind}: {kills.total()} kills, {num_studies} studies, {num_events} events; killed {dict(kills)}")
