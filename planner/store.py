"""The append-only table of events in one transactional database.

An SQLite file by default, PostgreSQL by URL.  Knows transactions and faults; what events mean is for `events.py`.
What was acknowledged is on disk: a write returns after its transaction was synced and, on SQLite, copied from the
write-ahead log into the file, so that losing the log later loses nothing.  A database holds one study.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from planner import filecheck
from planner.errors import StoreBusy, StoreDamaged, StoreError, StoreTooNew
from planner.events import clean_text, decode_body, encode_body
from planner.records import Event

SCHEMA_VERSION = 1
# From version n to n + 1, inside one transaction and after a backup of the file.
MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}

_schema = sa.MetaData()
_events = sa.Table(
    "events",
    _schema,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("body", sa.Text, nullable=False),
)
_meta = sa.Table("meta", _schema, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))
_APPEND_ONLY_SQLITE = (
    "CREATE TRIGGER events_no_{verb} BEFORE {verb} ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END"
)

_POSTGRES = "postgresql+psycopg"
_DISK_FULL = "53100"
_LOCK_TIMEOUT = "55P03"
_NOT_OUR_TABLES = ("42P01", "42703")  # a table or a column is not there
# Nobody changes an event, whatever they may do to the table otherwise.
_APPEND_ONLY_POSTGRES = (
    "CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RAISE EXCEPTION 'append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
    "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION events_append_only()",
)

_POSTGRES_LOCK = 0x706C616E  # "plan": serialises writers of one database
# A machine that vanishes inside a transaction must not lock out the others for hours.
_MAX_IDLE_SECONDS = 60
# A dead server is noticed; text is UTF-8 whatever the database holds.  The address may say otherwise.
_POSTGRES_OPTIONS = {"client_encoding": "utf8", "connect_timeout": 30, "keepalives_idle": 30}
_CLAIM = sa.text(
    "SELECT set_config('lock_timeout', :lock_timeout, true), set_config('statement_timeout', '0', true),"
    f" set_config('idle_in_transaction_session_timeout', '{_MAX_IDLE_SECONDS}s', true),"
    " set_config('application_name', :writer, true),"
    # A commit that is acknowledged is on the disk, also where the server's default is to answer before.
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true)"
)
_HOLDERS = sa.text(
    "SELECT pid, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND classid = 0 AND objid = :lock AND objsubid = 1 AND granted"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_ADVICE = {
    r"password": "give the right user and password in [store] url, PGPASSWORD or .pgpass",
    r'role ".*" does not exist': "give the right user in [store] url",
    r'database ".*" does not exist': "make the database (createdb), or correct its name in [store] url",
    r"permission denied|read-only transaction": (
        "use a user who may read and append here, and for a new store make tables"
    ),
    r"invalid connection option": "correct what follows the question mark in [store] url",
    r"too many (clients|connections)|remaining connection slots": "wait for others to end, or let the server take more",
    r"Connection refused|Is the server running|resolve host|timeout expired|timed out|unreachable|closed the connection"
    r"|terminating connection|starting up|shutting down": (
        "check that the server runs and that host and port in [store] url are right"
    ),
}


class Store:
    """Where the events are.  `path` is None for a server or memory.

    A store opened `read_only` never waits for a writer, never writes, and is empty while there is no file or, on a
    server, no table.
    """

    def __init__(self, location: str | Path, *, busy_timeout: float = 30.0, read_only: bool = False) -> None:
        self.url, self.path = _locate(location)
        self.read_only = read_only
        self._busy_timeout = busy_timeout
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        self._pid = os.getpid()
        self._engine: sa.Engine | None = None
        self._file: tuple[int, int] | None = None  # device and inode that the connections are to
        if not (read_only and self._is_missing()):
            self._open()

    def close(self) -> None:
        """Ends all connections; the store may be used again, which opens new ones."""
        if self._engine is not None:
            # Connections inherited through a fork belong to the parent: closing them here would drop its locks.
            self._engine.dispose(close=self._pid == os.getpid())

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """One consistent view of the store.  Raises `StoreError`."""
        if self._engine is None and self._is_missing():
            yield Reader(None, self)
            return
        with self._faults(), self._connect() as connection, connection.begin():
            yield Reader(connection, self)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """The only writer, until the block ends and is committed; an exception leaves nothing behind.

        Raises `StoreBusy` after the timeout, `StoreError` for anything else that prevents it; when a server is lost
        during the commit, that error says that the outcome is not known.
        """
        if self.read_only:
            raise StoreError(f"{self.name} was opened for reading only")
        with self._faults(), self._connect(writes=True) as connection, connection.begin() as transaction:
            self._claim(connection)
            yield Writer(connection, self)
            with self._faults(commits=True):
                transaction.commit()
            if self.path is not None and filecheck.inode(self.path) != self._file:
                raise filecheck.removed(self.path)  # what was just written is in a file that has no name any more

    @property
    def name(self) -> str:
        """What to call the store in a message: the file, or the address without its password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)

    @property
    def location(self) -> str:
        """What to open the same store by, with its password; ":memory:" where no other process can."""
        if self._is_sqlite:
            return ":memory:" if self.path is None else f"sqlite:///{self.path}"
        return self.url.render_as_string(hide_password=False)

    def _is_missing(self) -> bool:
        """True when somebody has yet to make the store."""
        if self._is_sqlite:
            return self.path is not None and not self.path.exists()
        engine = self._make_engine(self.url)
        try:
            with self._faults(), engine.connect() as connection:
                return not _has_tables(connection, self.name)
        finally:
            engine.dispose()

    def _open(self) -> None:
        with self._faults():
            if self.path is not None:
                if not self.path.exists():
                    self._create_file(self.path)
                filecheck.check(self.path)
            self._engine = self._make_engine(self.url)
            self._file = None if self.path is None else filecheck.inode(self.path)
        try:
            self._prepare()
        except BaseException:
            self.close()
            self._engine = None
            raise

    def _prepare(self) -> None:
        with self._faults():
            if self.path is None and (self._is_sqlite or not self.read_only):
                with self._connect() as connection, connection.begin():
                    is_new = not _has_tables(connection, self.name)
                if is_new:
                    with self._connect(writes=True) as connection, connection.begin():
                        self._claim(connection)
                        if not _has_tables(connection, self.name):
                            _create_tables(connection)
            self._check_version()

    def _create_file(self, path: Path) -> None:
        """A complete empty store appears under `path` at once, so that two creators cannot meet half of it."""
        filecheck.check_creatable(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
        os.close(handle)
        try:
            with contextlib.closing(sqlite3.connect(name)) as plain:
                plain.execute("PRAGMA journal_mode=WAL")  # kept in the file; refused by some network file systems
            engine = self._make_engine(sa.URL.create("sqlite", database=name))
            try:
                with engine.begin() as connection:
                    _create_tables(connection)
            finally:
                engine.dispose()
            filecheck.publish(Path(name), path)
        finally:
            for leftover in (name, name + "-wal", name + "-shm"):
                Path(leftover).unlink(missing_ok=True)

    def _claim(self, connection: sa.Connection) -> None:
        if not self._is_sqlite:  # there, beginning is claiming
            _claim_postgres(connection, self._busy_timeout)

    def _check_version(self) -> None:
        with self.reading() as reader:
            version = _read_version(reader.meta(), self.name)
        if version > SCHEMA_VERSION:
            raise StoreTooNew(
                f"{self.name} has schema version {version}, this program knows {SCHEMA_VERSION}."
                " Use the version of scaling-planner that wrote it, or a newer one."
            )
        if version < SCHEMA_VERSION:
            self._migrate(version)

    def _migrate(self, version: int) -> None:
        missing = [step for step in range(version, SCHEMA_VERSION) if step not in MIGRATIONS]
        if missing:
            raise StoreError(f"{self.name} has schema version {version}, which this program cannot bring up to date.")
        if self.read_only:
            raise StoreError(
                f"{self.name} has schema version {version}: open it once for writing to bring it up to date."
            )
        if self.path is not None:
            filecheck.back_up(self.path, self.path.with_name(f"{self.path.name}.version-{version}.backup"))
        with self.writing() as writer:
            # Somebody else may have migrated while we waited for the lock.
            for step in range(_read_version(writer.meta(), self.name), SCHEMA_VERSION):
                MIGRATIONS[step](writer.connection)
                writer.set_meta("schema_version", str(step + 1))

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        if not self._is_sqlite:
            return _open_postgres(url, self.name)
        options: dict[str, Any] = {"connect_args": {"timeout": self._busy_timeout, "check_same_thread": False}}
        if url.database in (None, "", ":memory:"):
            options["poolclass"] = sa.StaticPool
        elif self.read_only and self.path and filecheck.is_frozen(self.path):
            options = {"creator": functools.partial(sqlite3.connect, filecheck.address(self.path), uri=True)}
            options["poolclass"] = sa.NullPool  # somebody else may write in between
        engine = sa.create_engine(url, **options)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _connect(self, *, writes: bool = False) -> sa.Connection:
        if self._engine is None:
            self._open()
        assert self._engine is not None
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        if self.path is not None and (found := filecheck.inode(self.path)) != self._file:
            if found is None:
                raise filecheck.removed(self.path)
            # Another file has its name now: whether that holds all that was read before is seen from its events.
            self._engine.dispose()
            filecheck.check(self.path)
            self._file = found
        options: dict[str, Any] = {"planner_writes": writes}
        if not self._is_sqlite:
            # A reader sees one moment, a writer all that was committed before its turn, whatever the server's default.
            options["isolation_level"] = "READ COMMITTED" if writes else "REPEATABLE READ"
            options["postgresql_readonly"] = not writes
        return self._engine.connect().execution_options(**options)

    @contextlib.contextmanager
    def _faults(self, *, commits: bool = False) -> Iterator[None]:
        """Turns what the database says into what the user can act on."""
        try:
            yield
        except (sa.exc.DBAPIError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            if commits and isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
                raise StoreError(
                    f"the connection to {self.name} was lost while this step was being recorded: {_line(cause)}."
                    " Whether it was recorded shows in `planner status`; what was recorded before is intact."
                    " Check the server, then run it again: what is told twice is recorded once."
                ) from error
            raise self._explain(cause or error) from error

    def _explain(self, cause: BaseException) -> StoreError:
        code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
        state = getattr(cause, "sqlstate", None)  # the server's code
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == _LOCK_TIMEOUT:
            holders = self._lock_holders()
            held = f", held by {' and '.join(holders)}" if holders else ""
            return StoreBusy(
                f"{self.name} was locked by another writer for more than {self._busy_timeout:g} s{held}."
                " Nothing was changed; try again when it has ended."
            )
        is_garbled = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "Could not decode" in str(cause)
        if is_garbled and self.path:
            return filecheck.damaged(self.path, clean_text(cause)[:200])
        if state in _NOT_OUR_TABLES:
            return StoreDamaged(
                f"{self.name} is damaged or no store of this program: {_line(cause)}. It was left as it is;"
                " give another database in [store] url."
            )
        if code == sqlite3.SQLITE_FULL or getattr(cause, "errno", None) == errno.ENOSPC or state == _DISK_FULL:
            return StoreError(
                f"there is no space left to write {self.name}. Nothing of this step was recorded and all that was"
                " recorded before is intact: free some space and run the same command again."
            )
        return StoreError(
            f"{self.name} cannot be used: {_line(cause)}. Nothing of this step was recorded:"
            f" {'check the folder, its permissions and the disk' if self._is_sqlite else _advice(str(cause))},"
            " then run it again."
        )

    def _lock_holders(self) -> list[str]:
        if self.path is not None:
            return filecheck.lock_holders(self.path)
        return [] if self._is_sqlite or self._engine is None else _postgres_holders(self._engine)


class Reader:
    """Reads the store inside one transaction."""

    def __init__(self, connection: sa.Connection | None, store: Store) -> None:
        self._connection = connection
        self._store = store

    @property
    def connection(self) -> sa.Connection:
        """The open connection."""
        assert self._connection is not None
        return self._connection

    def meta(self) -> dict[str, str]:
        """What the store says of itself."""
        if self._connection is None:
            return {}
        return {row.key: row.value for row in self._connection.execute(sa.select(_meta))}

    def events(self, after: int = 0) -> list[Event]:
        """Events with `seq` above `after`, in order.  Raises `StoreDamaged` for unreadable ones."""
        if self._connection is None:
            return []
        rows = self._connection.execute(sa.select(_events).where(_events.c.seq > after).order_by(_events.c.seq))
        return [self._read(*row) for row in rows]

    def _read(self, seq: Any, at: Any, kind: Any, run_id: Any, body: Any) -> Event:
        try:
            return Event(seq=int(seq), at=float(at), kind=str(kind), run_id=run_id, body=decode_body(body))
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreDamaged(
                f"{self._store.name}: event {seq} is not readable ({error})."
                " It was left as it is; put a backup of the store back."
            ) from error


class Writer(Reader):
    """Reads and appends, alone, inside one transaction."""

    def append(self, event: Event) -> None:
        """Adds one event; its `seq` must be the next one."""
        self.connection.execute(
            sa.insert(_events).values(
                seq=event.seq, at=event.at, kind=event.kind, run_id=event.run_id, body=encode_body(event.body)
            )
        )

    def set_meta(self, key: str, value: str) -> None:
        """Sets one thing the store says of itself."""
        self.connection.execute(sa.delete(_meta).where(_meta.c.key == key))
        self.connection.execute(sa.insert(_meta).values(key=key, value=value))


def _locate(location: str | Path) -> tuple[sa.URL, Path | None]:
    """The address, and the file if it is one.  Raises `StoreError` for an address of no known kind."""
    text = str(location)
    if isinstance(location, Path) or "://" not in text:
        url = sa.URL.create("sqlite", database=text)
    else:
        try:
            url = sa.make_url(text)
        except (sa.exc.ArgumentError, ValueError):  # the second for a port that is no number
            shown = re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", text)
            raise StoreError(
                f"store address {shown!r} is not a URL: write sqlite:///FILE or {_POSTGRES}://USER@HOST/NAME"
            ) from None
    if url.drivername == "postgresql":
        url = url.set(drivername=_POSTGRES)
    if "password" in url.query:  # where it would be shown
        url = url.set(password=str(url.query["password"])).difference_update_query(["password"])
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return url, None
    path = Path(str(url.database)).absolute()
    return url.set(database=str(path)), path


def _open_postgres(url: sa.URL, name: str) -> sa.Engine:
    """The engine for an address of a server.  Raises `StoreError` without its driver and for other databases."""
    options = {key: value for key, value in _POSTGRES_OPTIONS.items() if key not in url.query}
    try:
        # A connection that was lost while nothing was going on is replaced before it is used.
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=options)
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"the store {name} needs a driver that is not there ({error}): for {_POSTGRES}:// install it with"
            " pip install 'scaling-planner[postgres]', or use a file"
        ) from error
    if url.drivername != _POSTGRES:
        raise StoreError(f"the store {name} is neither a file nor PostgreSQL: write {_POSTGRES}://USER@HOST/NAME")
    return engine


def _claim_postgres(connection: sa.Connection, timeout: float) -> None:
    """Waits until nobody else writes to this database; the right to write ends with the transaction."""
    milliseconds = min(max(1, round(timeout * 1000)), 2**31 - 1)  # 0 would wait for ever
    writer = f"planner process {os.getpid()} ({socket.gethostname()})"
    connection.execute(_CLAIM, {"lock_timeout": str(milliseconds), "writer": writer[:63]})
    # A statement of its own: what is read next is what the last writer committed.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))


def _postgres_holders(engine: sa.Engine) -> list[str]:
    """Who may write at the moment, as text for a message; empty where the server does not say."""
    holders = []
    with contextlib.suppress(sa.exc.SQLAlchemyError), engine.connect() as connection:
        for row in connection.execute(_HOLDERS, {"lock": _POSTGRES_LOCK}):
            holders.append(row.application_name or f"server process {row.pid}")
    return holders


def _advice(message: str) -> str:
    """What to do about an error of the server or of the way there."""
    for pattern, text in _ADVICE.items():
        if re.search(pattern, message):
            return text
    return "check the server"


def _line(cause: object) -> str:
    return " ".join(clean_text(cause).split())[:200].rstrip(".")


def _has_tables(connection: sa.Connection, name: str) -> bool:
    """Whether the store was made.  Raises `StoreDamaged` when a table of another program is in its place."""
    existing = set(_schema.tables) & set(sa.inspect(connection).get_table_names())
    if existing and existing != set(_schema.tables):
        raise StoreDamaged(
            f"{name} is damaged or no store of this program: of its tables it only holds {', '.join(existing)}."
            " It was left as it is; give another database in [store] url."
        )
    return bool(existing)


def _create_tables(connection: sa.Connection) -> None:
    _schema.create_all(connection)
    on_sqlite = [_APPEND_ONLY_SQLITE.format(verb=verb) for verb in ("UPDATE", "DELETE")]
    for statement in on_sqlite if connection.dialect.name == "sqlite" else _APPEND_ONLY_POSTGRES:
        connection.exec_driver_sql(statement)
    connection.execute(sa.insert(_meta).values(key="schema_version", value=str(SCHEMA_VERSION)))
    connection.execute(sa.insert(_meta).values(key="created_at", value=str(time.time())))


def _read_version(meta: dict[str, str], name: str) -> int:
    try:
        return int(meta["schema_version"])
    except (KeyError, ValueError) as error:
        raise StoreDamaged(
            f"{name} does not say which schema version it has: it is damaged or no store of this program."
            " It was left as it is; give another file or database in [store] url."
        ) from error


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin_sqlite`, not guessed by the driver
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    # Copy every commit into the file at once: a log that is cut, or left behind when the file is copied, loses nothing.
    connection.execute("PRAGMA wal_autocheckpoint=1")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("planner_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
