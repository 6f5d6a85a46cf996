"""Processes that ask at once, die, fill the disk or damage the file; on a server, what of it can happen there."""

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from planner import filecheck, store, storetables
from planner.errors import StoreBusy, StoreDamaged, StoreError, StoreTooNew
from planner.ledger import Ledger, replay
from planner.records import Design, Event, RunState
from tests.postgres import STORES, execute, fresh_store

# Children start from a server that has imported the ledger once, without a fork of this process and its threads.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["planner.store", "planner.ledger", "pytest"])
WAIT_SECONDS = 60.0


def design(i: int) -> Design:
    return Design(domain="web", axes={"N": 1e6 * (i + 1)})


def open_ledger(location: str | Path, total: float = 1e6, **options: Any) -> Ledger:
    return Ledger.open(location, study_name="study", total=total, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | Path]:
    """Where a store may be made: a file name, or the URL of an empty database."""
    with fresh_store(request.param, tmp_path) as place:
        yield place


def fill(ledger: Ledger, num_runs: int = 12) -> list[Event]:
    for i in range(num_runs):
        run = ledger.reserve([(design(i), 1.0)], [{"why": "x" * 200}]).granted[0]
        ledger.submitted(run.run_id, f"job-{i}")
        ledger.complete(run.run_id, 2.0 + i, cost=0.75)
    return ledger.events()


@pytest.fixture
def children() -> Iterator[Callable[..., Any]]:
    started = []

    def start(target: Callable[..., None], *args: Any) -> Any:
        child = PROCESSES.Process(target=target, args=args)
        child.start()
        started.append(child)
        return child

    yield start
    for child in started:
        child.join(WAIT_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
        child.close()


# --- many planners at once


def _ask(location: str | Path, barrier: Any, first: int, num_designs: int, cost: float, answers: Connection) -> None:
    with Ledger.open(location, study_name="study", total=10.0) as ledger:
        barrier.wait(WAIT_SECONDS)
        granted = 0
        for i in range(first, first + num_designs):
            granted += len(ledger.reserve([(design(i), cost)]).granted)
    answers.send(granted)
    answers.close()


def _ask_at_once(location: str | Path, children: Callable[..., Any], num_planners: int, cost: float) -> list[int]:
    """How many each planner was granted; they open the store together, and it does not exist yet."""
    barrier = PROCESSES.Barrier(num_planners)
    answers = []
    for i in range(num_planners):
        mine, theirs = PROCESSES.Pipe(duplex=False)
        children(_ask, location, barrier, i, 1, cost, theirs)
        theirs.close()
        answers.append(mine)
    granted = []
    for mine in answers:
        assert mine.poll(WAIT_SECONDS)
        granted.append(mine.recv())
        mine.close()
    return granted


def test_four_planners_of_four_share_a_budget_of_ten(location: str | Path, children: Callable[..., Any]) -> None:
    granted = _ask_at_once(location, children, num_planners=4, cost=4.0)
    assert sorted(granted) == [0, 0, 1, 1]
    with open_ledger(location, total=10.0) as ledger:
        state = ledger.state()
        assert (state.reserved, state.remaining, len(state.runs)) == (8.0, 2.0, 2)


@pytest.mark.slow
def test_thirty_two_planners_share_a_budget_for_ten(location: str | Path, children: Callable[..., Any]) -> None:
    granted = _ask_at_once(location, children, num_planners=32, cost=1.0)
    assert sorted(granted) == [0] * 22 + [1] * 10
    with open_ledger(location, total=10.0) as ledger:
        assert ledger.state().remaining == 0.0
        assert [event.kind for event in ledger.events()] == ["study_opened"] + ["proposed"] * 10


def test_threads_share_a_ledger(location: str | Path) -> None:
    _share_among_threads(location)


def test_threads_share_a_ledger_in_memory() -> None:
    _share_among_threads(":memory:")


def _share_among_threads(location: str | Path) -> None:
    with Ledger.open(location, study_name="study", total=10.0) as ledger:
        granted = []
        barrier = threading.Barrier(8)

        def ask(first: int) -> None:
            barrier.wait()
            for i in range(first, first + 4):
                granted.append(len(ledger.reserve([(design(i), 1.0)]).granted))
                ledger.state()
                ledger.events()

        threads = [threading.Thread(target=ask, args=(4 * i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(granted), sum(granted)) == (32, 10)
        assert replay(ledger.events(), total=10.0) == ledger.state()


def _fork_and_tell(location: str | Path, answers: Connection) -> None:
    with Ledger.open(location, study_name="study", total=10.0) as ledger:
        run_id = ledger.reserve([(design(0), 1.0)]).granted[0].run_id
        pid = os.fork()
        if pid == 0:
            ledger.complete(run_id, 2.0)
            ledger.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        ledger.reserve([(design(1), 1.0)])
        answers.send((status, [run.state for run in ledger.state().runs.values()]))


def test_a_ledger_survives_a_fork(location: str | Path, children: Callable[..., Any]) -> None:
    mine, theirs = PROCESSES.Pipe(duplex=False)
    children(_fork_and_tell, location, theirs)
    assert mine.poll(WAIT_SECONDS)
    assert mine.recv() == (0, [RunState.COMPLETED, RunState.PROPOSED])
    mine.close()
    theirs.close()


# --- locks


def _hold_lock(location: str | Path, answers: Connection) -> None:
    with open_ledger(location) as ledger, ledger._store.writing():
        answers.send("locked")
        time.sleep(WAIT_SECONDS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names the holder through /proc")
def test_a_second_writer_is_told_who_holds_the_store(location: str | Path, children: Callable[..., Any]) -> None:
    with open_ledger(location) as ledger:
        run_id = ledger.reserve([(design(0), 1.0)]).granted[0].run_id
    mine, theirs = PROCESSES.Pipe(duplex=False)
    holder = children(_hold_lock, location, theirs)
    theirs.close()
    assert mine.poll(WAIT_SECONDS)
    with open_ledger(location, busy_timeout=0.2) as ledger:
        start = time.monotonic()
        with pytest.raises(StoreBusy) as caught:
            ledger.complete(run_id, 2.0)
        assert 0.2 <= time.monotonic() - start < 10.0
        assert ledger._store.name in str(caught.value)
        assert re.search(rf"held by (planner )?process {holder.pid} \(", str(caught.value))
        # Readers neither wait nor see what is not committed.
        start = time.monotonic()
        assert ledger.state().runs[run_id].state is RunState.PROPOSED
        with open_ledger(location, read_only=True, busy_timeout=10.0) as reader:
            assert reader.state().reserved == 1.0
        assert time.monotonic() - start < 5.0
        # A lock dies with its process.
        holder.kill()
        holder.join()
        assert ledger.complete(run_id, 2.0).state is RunState.COMPLETED
    mine.close()


# --- killed between or within verbs


def _work_until_killed(location: str | Path, first: int, acknowledge: Connection) -> None:
    with open_ledger(location) as ledger:
        for i in range(first, first + 10_000):
            run = ledger.reserve([(design(i), 1.0)], [{"why": "x" * 200}]).granted[0]
            acknowledge.send(("proposed", run.run_id))
            ledger.submitted(run.run_id, f"job-{i}")
            acknowledge.send(("submitted", run.run_id))
            ledger.complete(run.run_id, 2.0, cost=0.75)
            acknowledge.send(("completed", run.run_id))


def _received(connection: Connection) -> list[tuple[str, str]]:
    received = []
    try:
        while connection.poll(0):
            received.append(connection.recv())
    except EOFError:
        pass
    return received


def test_what_was_acknowledged_survives_a_kill(location: str | Path, children: Callable[..., Any]) -> None:
    chance = random.Random(1)
    acknowledged: list[tuple[str, str]] = []
    for life in range(6):
        mine, theirs = PROCESSES.Pipe(duplex=False)
        child = children(_work_until_killed, location, 10_000 * life, theirs)
        theirs.close()
        assert mine.poll(WAIT_SECONDS)
        time.sleep(chance.uniform(0.0, 0.08))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        acknowledged += _received(mine)
        mine.close()
        kept = _copies_with_cut_log(location, chance) if isinstance(location, Path) else []
        with open_ledger(location) as ledger:
            state, events = ledger.state(), ledger.events()
        recorded = [(event.kind, event.run_id) for event in events if event.run_id]
        assert set(acknowledged) <= set(recorded)
        # At most one verb of every life was committed without being acknowledged.
        assert len(recorded) - len(acknowledged) <= life + 1
        assert state == replay(events, total=1e6)
        num_done = sum(kind == "completed" for kind, _ in recorded)
        num_open = sum(kind == "proposed" for kind, _ in recorded) - num_done
        assert (state.spent, state.reserved) == (0.75 * num_done, 1.0 * num_open)
        for copy in kept:
            with open_ledger(copy) as ledger:
                assert set(acknowledged) <= {(event.kind, event.run_id) for event in ledger.events()}


def _copies_with_cut_log(path: Path, chance: random.Random) -> list[Path]:
    """The store as it was left, its log cut at some places and absent."""
    log = Path(f"{path}-wal")
    size = log.stat().st_size
    copies = []
    for i, cut in enumerate([0, 31, 32, size // 2, size - 1, *(chance.randrange(size) for _ in range(3))]):
        copy = path.parent / f"copy-{i}.sqlite"
        shutil.copy(path, copy)
        Path(f"{copy}-wal").write_bytes(log.read_bytes()[:cut])
        Path(f"{copy}-shm").unlink(missing_ok=True)
        copies.append(copy)
    return copies


# --- damaged files


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is writing, so a short file need not be looked at twice."""
    monkeypatch.setattr(filecheck, "_GROWTH_SECONDS", 0.0)


def _refused_or_whole(path: Path, expected: list[Event]) -> bool:
    """True if the store was refused, untouched; otherwise all events must be there."""
    files = [each for each in (path, Path(f"{path}-wal")) if each.exists()]
    before = [each.read_bytes() for each in files]
    try:
        with open_ledger(path) as ledger:
            assert ledger.events() == expected
            ledger.state()
            return False
    except StoreDamaged as error:
        assert error.exit_code == 5
        assert str(path) in str(error)
        assert [each.read_bytes() for each in files] == before
        return True


@pytest.mark.usefixtures("hasty")
def test_a_cut_file_is_refused(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        events = fill(ledger)
    whole = path.read_bytes()
    assert len(whole) >= 5 * 4096
    cut = tmp_path / "cut.sqlite"
    sizes = [*range(0, len(whole), 1024), 1, 15, 16, 17, 99, 100, 101, 4095, len(whole) - 4096, len(whole) - 1]
    for size in sizes:
        cut.write_bytes(whole[:size])
        assert _refused_or_whole(cut, events), f"cut at {size} of {len(whole)}"
        cut.unlink()
        for suffix in ("-wal", "-shm"):
            Path(f"{cut}{suffix}").unlink(missing_ok=True)


@pytest.mark.usefixtures("hasty")
def test_a_file_or_log_cut_in_use_is_refused_or_whole(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        events = fill(ledger)
        whole, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    assert len(log) > 4096
    cuts = [(whole[:size], log) for size in range(0, len(whole), 2048)]
    cuts += [(whole, log[:size]) for size in [*range(0, len(log), 512), 1, 31, 33, len(log) - 1]]
    refused = []
    for i, (file, rest) in enumerate(cuts):
        cut = tmp_path / f"cut-{i}.sqlite"
        cut.write_bytes(file)
        Path(f"{cut}-wal").write_bytes(rest)
        if _refused_or_whole(cut, events):
            refused.append(i)
    # Every commit is copied into the file at once, so a cut log costs nothing.
    assert refused and all(len(cuts[i][0]) < len(whole) for i in refused)


@pytest.mark.usefixtures("hasty")
def test_garbage_inside_the_file_is_never_taken_for_events(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        events = fill(ledger)
    whole = path.read_bytes()
    chance = random.Random(2)
    num_refused = 0
    for i in range(40):
        start = chance.randrange(len(whole) - 64)
        bad = tmp_path / f"bad-{i}.sqlite"
        bad.write_bytes(whole[:start] + chance.randbytes(64) + whole[start + 64 :])
        num_refused += _refused_or_whole(bad, events)
    assert num_refused > 10


NOT_STORES = {
    "text": b"[study]\nname = 'web'\n" * 100,
    "short": b"x",
    "zeros": bytes(8192),
    "header only": b"SQLite format 3\0",
}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("content", NOT_STORES.values(), ids=NOT_STORES.keys())
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_store_is_left_alone(path: Path, content: bytes, read_only: bool) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"damaged or not a store.*It was left as it is.*\.recover"):
        open_ledger(path, read_only=read_only)
    assert path.read_bytes() == content


def test_an_empty_file_is_not_taken_for_a_new_store(path: Path) -> None:
    path.touch()
    Path(f"{path}-wal").write_bytes(b"x" * 100)
    with pytest.raises(StoreDamaged, match="empty"):
        open_ledger(path)
    assert (path.stat().st_size, Path(f"{path}-wal").stat().st_size) == (0, 100)


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE trials (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="it holds tables trials, not events and meta"):
        open_ledger(path)
    assert path.read_bytes() == before


def test_a_log_without_its_file_is_not_thrown_away(path: Path) -> None:
    with open_ledger(path) as ledger:
        fill(ledger, 1)
        log = Path(f"{path}-wal").read_bytes()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    with pytest.raises(StoreDamaged, match="is gone but its log"):
        open_ledger(path)
    assert not path.exists()
    assert Path(f"{path}-wal").read_bytes() == log


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        open_ledger(tmp_path)


def _edit(location: str | Path, *statements: str) -> None:
    """Somebody else's hand: the statements, without the program."""
    if not isinstance(location, Path):
        execute(location, *statements)
        return
    connection = sqlite3.connect(location)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


@pytest.mark.parametrize("statement", ["UPDATE events SET at = 0", "DELETE FROM events WHERE seq = 1"])
def test_events_cannot_be_changed(location: str | Path, statement: str) -> None:
    with open_ledger(location) as ledger:
        events = fill(ledger, 1)
        with pytest.raises((sqlite3.IntegrityError, sa.exc.IntegrityError), match="append-only"):
            _edit(location, statement)
        assert ledger.events() == events


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("DELETE FROM events WHERE seq = 3", "event 3 is missing"),
        ("UPDATE events SET body = '{\"predicted' WHERE seq = 2", "event 2 is not readable"),
        ("UPDATE events SET body = '[1]' WHERE seq = 2", "need a JSON object"),
        ("UPDATE events SET kind = 'danced' WHERE seq = 2", "cannot be understood"),
        ("UPDATE events SET run_id = NULL WHERE seq = 2", "cannot be understood"),
        ("DELETE FROM meta", "does not say which schema version"),
        ("UPDATE meta SET value = 'two' WHERE key = 'schema_version'", "does not say which schema version"),
    ],
)
def test_a_changed_history_is_noticed(location: str | Path, statement: str, text: str) -> None:
    with open_ledger(location) as ledger:
        fill(ledger, 2)
    _unprotect(location)
    _edit(location, statement)
    with pytest.raises(StoreDamaged, match=text):
        open_ledger(location)


def _unprotect(location: str | Path) -> None:
    if isinstance(location, Path):
        _edit(location, "DROP TRIGGER events_no_UPDATE", "DROP TRIGGER events_no_DELETE")
    else:
        _edit(location, "DROP TRIGGER events_append_only ON events")


def test_text_that_is_none_is_noticed(path: Path) -> None:
    with open_ledger(path) as ledger:
        fill(ledger, 2)
    _unprotect(path)
    _edit(path, "UPDATE events SET body = CAST(X'80ff' AS TEXT) WHERE seq = 2")
    with pytest.raises(StoreDamaged, match="damaged"):
        open_ledger(path)


def test_a_file_exchanged_for_an_older_one_is_noticed(path: Path, tmp_path: Path) -> None:
    with open_ledger(path) as ledger:
        fill(ledger, 2)
        ledger.close()
        shutil.copy(path, tmp_path / "older")
        ledger.note("one more")
        ledger.close()
        os.replace(tmp_path / "older", path)
        with pytest.raises(StoreDamaged, match="no longer holds event 8"):
            ledger.state()
        with pytest.raises(StoreDamaged, match="no longer holds event 8"):
            ledger.reserve([(design(9), 1.0)])


def test_a_store_that_went_back_is_noticed(location: str | Path) -> None:
    with open_ledger(location) as ledger:
        fill(ledger, 2)
        _unprotect(location)
        _edit(location, "DELETE FROM events WHERE seq = 7")
        with pytest.raises(StoreDamaged, match="no longer holds event 7"):
            ledger.state()
        with pytest.raises(StoreDamaged, match="no longer holds event 7"):
            ledger.reserve([(design(9), 1.0)])


def test_a_store_in_a_folder_of_others_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(path) as ledger:
        events = fill(ledger, 1)
    # Permissions do not stop the administrator, so only the question is faked.
    monkeypatch.setattr(filecheck, "is_frozen", lambda path: True)
    with open_ledger(path, read_only=True) as ledger:
        assert ledger.events() == events
        assert ledger.state().spent == 0.75
        assert [each.name for each in path.parent.iterdir()] == [path.name]


# --- no space


def test_a_full_disk_keeps_the_old_state(path: Path) -> None:
    with open_ledger(path) as ledger:
        events = fill(ledger, 2)
        state = ledger.state()
        with ledger._store.reading() as reader:
            reader.connection.exec_driver_sql("PRAGMA max_page_count=1")  # no page more than there are
        with pytest.raises(StoreError, match=r"no space left .* free some space") as caught:
            for i in range(100):
                ledger.reserve([(design(100 + i), 1.0)], [{"why": "x" * 2000}])
                events, state = ledger.events(), ledger.state()
        assert caught.value.exit_code == 5
        assert ledger.events() == events
        assert ledger.state() == state
        with ledger._store.reading() as reader:
            reader.connection.exec_driver_sql("PRAGMA max_page_count=100000")
        ledger.reserve([(design(500), 1.0)], [{"why": "x" * 2000}])
        assert ledger.state().num_events == state.num_events + 1
    with open_ledger(path) as ledger:
        assert ledger.events()[:-1] == events


def _write_against_a_limit(path: Path, answers: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_ledger(path) as ledger:
        state = ledger.state()
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
        try:
            for _ in range(100):
                ledger.note("x" * 2000)
                state = ledger.state()
        except StoreError as error:
            answers.send(str(error))
        answers.send(ledger.state() == state)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ledger.note("there is space again")
        answers.send(ledger.state().num_events - state.num_events)


def test_writes_that_fail_half_way_keep_the_old_state(path: Path, children: Callable[..., Any]) -> None:
    with open_ledger(path) as ledger:
        fill(ledger, 2)
    mine, theirs = PROCESSES.Pipe(duplex=False)
    children(_write_against_a_limit, path, theirs)
    theirs.close()
    answers: list[Any] = []
    while len(answers) < 3 and mine.poll(WAIT_SECONDS):
        answers.append(mine.recv())
    mine.close()
    assert str(path) in answers[0] and "Nothing of this step was recorded" in answers[0]
    assert answers[1:] == [True, 1]
    with open_ledger(path) as ledger:
        assert ledger.events()[-1].body["text"] == "there is space again"


def test_a_store_that_cannot_be_made_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection, version: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storetables, "create", fail)
    with pytest.raises(StoreError, match="no space left"):
        open_ledger(path)
    assert list(path.parent.iterdir()) == []


def test_a_store_is_made_where_there_are_no_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with open_ledger(path) as ledger:
        fill(ledger, 1)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


# --- versions


def _add_index(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE INDEX events_run_id ON events (run_id)")


def _fail_half_way(connection: sa.Connection) -> None:
    _add_index(connection)
    raise StoreError("the migration failed")


def _indices(location: str | Path) -> list[str]:
    engine = sa.create_engine(f"sqlite:///{location}" if isinstance(location, Path) else location)
    try:
        return [str(index["name"]) for index in sa.inspect(engine).get_indexes("events")]
    finally:
        engine.dispose()


def test_an_older_store_is_backed_up_and_migrated(location: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(location) as ledger:
        events = fill(ledger)
    monkeypatch.setattr(store, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(store, "MIGRATIONS", {1: _fail_half_way, 2: lambda connection: None})

    with pytest.raises(StoreError, match="the migration failed"):
        open_ledger(location)
    assert "events_run_id" not in _indices(location)
    with pytest.raises(StoreError, match="open it once for writing"):
        open_ledger(location, read_only=True)

    monkeypatch.setattr(store, "MIGRATIONS", {1: _add_index, 2: lambda connection: None})
    for _ in range(2):
        with open_ledger(location) as ledger:
            assert ledger.events() == events
            with ledger._store.reading() as reader:
                assert reader.meta()["schema_version"] == "3"
    assert "events_run_id" in _indices(location)

    monkeypatch.undo()
    if isinstance(location, Path):  # a server has backups of its own
        backup = location.with_name("s.sqlite.version-1.backup")
        assert "events_run_id" not in _indices(backup)
        with open_ledger(backup) as ledger:
            assert ledger.events() == events
    before = _content(location)
    with pytest.raises(StoreTooNew, match="has schema version 3, this program knows 1"):
        open_ledger(location)
    assert _content(location) == before


def _content(location: str | Path) -> Any:
    if isinstance(location, Path):
        return location.read_bytes()
    return [execute(location, f"SELECT * FROM {table} ORDER BY 1") for table in ("events", "meta")]


def test_a_store_older_than_any_known_is_refused(location: str | Path, tmp_path: Path) -> None:
    open_ledger(location).close()
    _edit(location, "UPDATE meta SET value = '0' WHERE key = 'schema_version'")
    with pytest.raises(StoreError, match="schema version 0, which this program cannot bring up to date"):
        open_ledger(location)
    assert [each.name for each in tmp_path.iterdir()] == (["s.sqlite"] if isinstance(location, Path) else [])
