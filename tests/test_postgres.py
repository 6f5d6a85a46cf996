"""What can only happen to a store on a server; that it does what a file does is in `test_ledger.py` and its faults."""

import contextlib
import json
import select
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backends import open_backend
from planner import cli, loop
from planner.errors import InputError, StoreBusy, StoreDamaged, StoreError
from planner.ledger import Ledger, replay
from planner.records import Design, Event, RunState
from planner.study import Study
from tests.postgres import execute, fresh_database
from tests.worlds import STUDY, Cheapest, open_toy, write_study

NOWHERE = "postgresql+psycopg://somebody:secret@127.0.0.1:1/study"
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()" + (
    " AND pid <> pg_backend_pid()"
)


def design(i: int) -> Design:
    return Design(domain="web", axes={"N": 1e6 * (i + 1)})


def open_ledger(url: str, **options: Any) -> Ledger:
    return Ledger.open(url, study_name="study", total=10.0, **options)


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as fresh:
        yield fresh


def changed(url: str, **parts: Any) -> str:
    return sa.make_url(url).set(**parts).render_as_string(hide_password=False)


@pytest.fixture
def role(url: str) -> Iterator[str]:
    """The address with another user, whose name is its password too, and who may do nothing yet."""
    name = f"planner_{uuid.uuid4().hex[:12]}"
    revoke = "REVOKE ALL ON SCHEMA public FROM PUBLIC"
    execute(url, revoke, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'", f"GRANT USAGE ON SCHEMA public TO {name}")
    yield changed(url, username=name, password=name)
    execute(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


# --- addresses and rights


def test_a_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=r"Connection refused.*Nothing of this step.*check that the server runs") as e:
        open_ledger(NOWHERE)
    assert "secret" not in str(e.value) and "somebody:***@127.0.0.1:1/study" in str(e.value)
    with pytest.raises(StoreError, match="check that the server runs"):
        open_ledger(NOWHERE, read_only=True)


@pytest.mark.parametrize("address", [NOWHERE, NOWHERE.replace("+psycopg", "")])
def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'scaling-planner\[postgres\]'"):
        open_ledger(address)


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="is not a URL") as caught:
        open_ledger("postgresql://somebody:secret@host:port/study")
    assert "secret" not in str(caught.value)
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match="somebody") as caught:
        open_ledger("postgresql://somebody@127.0.0.1:1/study?password=secret")
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there(url: str) -> None:
    with pytest.raises(StoreError, match=r'database "nobodys" does not exist.*make the database'):
        open_ledger(changed(url, database="nobodys"))


def test_a_wrong_password(role: str) -> None:
    with contextlib.suppress(StoreError):
        open_ledger(changed(role, password="wrong"), read_only=True).close()
        pytest.skip("the server asks for no password")
    with pytest.raises(StoreError, match=r"password authentication failed.*give the right user and password") as caught:
        open_ledger(changed(role, password="wrong"))
    assert "wrong@" not in str(caught.value)


def test_a_user_who_may_only_read_can_read(url: str, role: str) -> None:
    with pytest.raises(StoreError, match=r"permission denied.*for a new store make tables"):
        open_ledger(role)
    with open_ledger(url) as ledger:
        ledger.reserve([(design(0), 4.0)])
        execute(url, f"GRANT SELECT ON events, meta TO {sa.make_url(role).username}")
        with open_ledger(role, read_only=True) as reader:
            assert reader.state() == ledger.state()
        with open_ledger(role) as reader, pytest.raises(StoreError, match="permission denied for table events"):
            reader.reserve([(design(1), 4.0)])
        assert ledger.state().reserved == 4.0


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        (["CREATE TABLE events (id INTEGER)"], "of its tables it only holds events"),
        (["CREATE TABLE meta (id INTEGER)"], "of its tables it only holds meta"),
        (["CREATE TABLE events (id INTEGER)", "CREATE TABLE meta (id INTEGER)"], "column .* does not exist"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_another_program_is_left_alone(url: str, tables: list[str], text: str, read_only: bool) -> None:
    execute(url, *tables)
    with pytest.raises(StoreDamaged, match=f"no store of this program.*{text}.*left as it is"):
        open_ledger(url, read_only=read_only)
    names = execute(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    assert names == [(len(tables),)]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_the_encoding_of_the_database_does_not_matter(encoding: str) -> None:
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(options) as url, Ledger.open(url, study_name="étude") as ledger:
        run = ledger.reserve([(Design(domain="文", axes={"N": 1.0}), 1.0)]).granted[0]
        ledger.fail(run.run_id, message="Überlauf 🙂")
        with Ledger.open(url, study_name="étude") as other:
            assert other.state() == ledger.state()
            assert other.run(run.run_id).message == "Überlauf 🙂"


# --- transactions


def test_defaults_of_the_server_do_not_matter(url: str) -> None:
    name = sa.make_url(url).database
    isolation = "default_transaction_isolation = 'serializable'"
    for setting in (isolation, "synchronous_commit = off", "statement_timeout = '200ms'"):
        execute(url, f"ALTER DATABASE {name} SET {setting}")
    with open_ledger(url) as ledger, open_ledger(url) as other:
        with ledger._store.writing() as writer:
            shown = writer.connection.exec_driver_sql("SHOW synchronous_commit").scalar()
            assert shown == "on"
            # The other waits for its turn and must then see what this one appended.
            waiting = threading.Thread(target=other.reserve, args=([(design(0), 4.0)],))
            waiting.start()
            time.sleep(0.3)
            writer.append(Event(seq=2, at=1.0, kind="note", run_id=None, body={"text": "first"}))
        waiting.join()
        assert [event.kind for event in ledger.events()] == ["study_opened", "note", "proposed"]


def test_a_reader_sees_one_moment(url: str) -> None:
    with open_ledger(url) as ledger, ledger._store.reading() as reader:
        assert len(reader.events()) == 1
        with open_ledger(url) as other:
            other.note("meanwhile")
        assert len(reader.events()) == 1


def test_a_wait_of_no_time_is_not_for_ever(url: str) -> None:
    with open_ledger(url) as ledger, open_ledger(url, busy_timeout=0.0) as other:
        with ledger._store.writing(), pytest.raises(StoreBusy, match="was locked by another writer"):
            other.note("never")
        other.note("now")
        assert [event.body.get("text") for event in ledger.events()[1:]] == ["now"]


def test_a_full_disk_keeps_the_old_state(url: str) -> None:
    with open_ledger(url) as ledger:
        ledger.note("before")
        state = ledger.state()
        execute(
            url,
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$",
            "CREATE TRIGGER fill AFTER INSERT ON events EXECUTE FUNCTION fill()",
        )
        with pytest.raises(StoreError, match=r"no space left .* free some space"):
            ledger.note("lost")
        assert ledger.state() == state
        execute(url, "DROP TRIGGER fill ON events")
        ledger.note("after")
        assert [event.body.get("text") for event in ledger.events()[1:]] == ["before", "after"]


# --- the connection


def test_a_connection_lost_between_verbs_is_replaced(url: str) -> None:
    with open_ledger(url) as ledger:
        for i in range(3):
            ledger.reserve([(design(i), 1.0)])
            execute(url, TERMINATE)
        assert ledger.state().reserved == 3.0


def test_a_connection_lost_inside_a_verb_changes_nothing(url: str) -> None:
    cuts = [False]

    def clock() -> float:  # asked inside the transaction
        if cuts[0]:
            execute(url, TERMINATE)
        return 1.0

    with open_ledger(url, clock=clock) as ledger:
        run_id = ledger.reserve([(design(0), 1.0)]).granted[0].run_id
        state = ledger.state()
        cuts[0] = True
        with pytest.raises(StoreError, match=r"Nothing of this step was recorded: check that the server runs"):
            ledger.complete(run_id, 2.0)
        cuts[0] = False
        assert ledger.state() == state
        assert ledger.complete(run_id, 2.0).state is RunState.COMPLETED


class Wire:
    """A line to the server that is `cut` before or after the next commit has passed; the client is not answered."""

    def __init__(self, url: str) -> None:
        address = sa.make_url(url)
        query = dict(address.query)
        self._host = str(query.pop("host", address.host or "127.0.0.1"))
        self._port = int(str(query.pop("port", address.port or 5432)))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.cut = ""
        port = self._listener.getsockname()[1]
        self.url = changed(url, host="127.0.0.1", port=port, query={**query, "sslmode": "disable"})
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10.0)
        self._listener.close()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._forward, self._listener.accept()[0])

    def _dial(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _forward(self, client: socket.socket) -> None:
        with client, self._dial() as server, contextlib.suppress(OSError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if self.cut and source is client and b"COMMIT\0" in data:
                        if self.cut == "after":
                            server.sendall(data)
                            server.recv(65536)
                        return
                    (server if source is client else client).sendall(data)


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    line = Wire(url)
    yield line
    line.close()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_lost_during_the_commit(wire: Wire, url: str, cut: str) -> None:
    with open_ledger(wire.url) as ledger:
        run_id = ledger.reserve([(design(0), 4.0)]).granted[0].run_id
        wire.cut = cut
        with pytest.raises(StoreError, match=r"was lost while this step was being recorded.*shows in `planner status`"):
            ledger.complete(run_id, 2.0, cost=3.0)
        wire.cut = ""
        is_recorded = cut == "after"
        deadline = time.monotonic() + 10.0  # until the server has noticed
        while (ledger.run(run_id).state is RunState.COMPLETED) != is_recorded:
            assert time.monotonic() < deadline
        # Told again, it is recorded once, and what was acknowledged is there.
        assert ledger.complete(run_id, 2.0, cost=3.0).state is RunState.COMPLETED
        with open_ledger(url, read_only=True) as reader:
            assert [event.kind for event in reader.events()] == ["study_opened", "proposed", "completed"]
            assert replay(reader.events(), total=10.0) == ledger.state()


# --- studies


def _study_on(url: str, folder: Path, name: str = "toy") -> Path:
    folder.mkdir(exist_ok=True)
    path = write_study(folder, STUDY.replace('name = "toy"', f'name = "{name}"'))
    roles = '{ N = "parameters", D = "tokens" }'
    backend = f'[backend]\nkind = "simulator"\nslots = 3\nroles = {roles}'
    path.write_text(f"{path.read_text()}\n[store]\nurl = {json.dumps(url)}\n{backend}\n")
    return path


def test_a_study_on_a_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _study_on(url, tmp_path / "study")
    address = sa.make_url(url).render_as_string(hide_password=True)
    with Study.open(path, read_only=True) as study:  # nothing is there yet, and looking makes nothing
        assert study.status()["store"] == address
        assert execute(url, "SELECT * FROM pg_tables WHERE schemaname = 'public'") == []
        with open_toy(path) as running:
            backend = open_backend("simulator", loop.backend_options(running.spec), running.spec.folder)
            first = running.run(backend, max_runs=3)
            assert (first.stop.reason, first.bought) == ("max_runs", 3)
        with open_toy(path) as running:
            ended = running.run(open_backend("simulator", loop.backend_options(running.spec), tmp_path))
            assert (ended.stop.reason, ended.bought) == ("pool_exhausted", 5)
        assert study.state == ended.state
        assert {run.state for run in study.state.runs.values()} == {RunState.COMPLETED}
    assert [each.name for each in path.parent.iterdir() if each.suffix != ".toml"] == []

    monkeypatch.setattr(Study, "policy", Cheapest())
    monkeypatch.setattr(sys, "argv", ["planner", "status", str(path), "--json"])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    document = json.loads(capsys.readouterr().out)
    assert (exited.value.code or 0, document["store"]) == (0, address)


def test_another_study_in_the_same_database_is_refused(url: str, tmp_path: Path) -> None:
    with open_toy(_study_on(url, tmp_path / "mine")) as study:
        study.ask(1)
        events = study.ledger.events()
        for read_only in (False, True):
            with pytest.raises(InputError, match=r"belongs to study 'toy', not 'other'.*another file or database"):
                Study.open(_study_on(url, tmp_path / "other", "other"), read_only=read_only)
        assert study.ledger.events() == events
