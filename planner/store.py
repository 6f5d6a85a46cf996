"""The append-only table of events in one transactional database.

An SQLite file by default, PostgreSQL by URL.  Knows transactions and faults; what events mean is for `events.py`.
What was acknowledged is on disk: a write returns after its transaction was synced and, on SQLite, copied from the
write-ahead log into the file, so that losing the log later loses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
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
_APPEND_ONLY = "CREATE TRIGGER events_no_{verb} BEFORE {verb} ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END"
_POSTGRES_LOCK = 0x706C616E  # "plan": serialises writers of one database


class Store:
    """Where the events are.  `path` is None for a server or memory.

    A store opened `read_only` never waits for a writer, never writes, and is empty while there is no file.
    """

    def __init__(self, location: str | Path, *, busy_timeout: float = 30.0, read_only: bool = False) -> None:
        self.url, self.path = _locate(location)
        self.read_only = read_only
        self._busy_timeout = busy_timeout
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        self._pid = os.getpid()
        self._engine: sa.Engine | None = None
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

        Raises `StoreBusy` after the timeout, `StoreError` for anything else that prevents it.
        """
        if self.read_only:
            raise StoreError(f"{self.name} was opened for reading only")
        with self._faults(), self._connect(writes=True) as connection, connection.begin():
            self._lock_server(connection)
            yield Writer(connection, self)

    @property
    def name(self) -> str:
        """What to call the store in a message: the file, or the address without its password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)

    def _is_missing(self) -> bool:
        return self.path is not None and not self.path.exists()

    def _open(self) -> None:
        with self._faults():
            if self.path is not None:
                if not self.path.exists():
                    self._create_file(self.path)
                filecheck.check(self.path)
            self._engine = self._make_engine(self.url)
        try:
            self._prepare()
        except BaseException:
            self.close()
            self._engine = None
            raise

    def _prepare(self) -> None:
        with self._faults():
            if self.path is None and (self._is_sqlite or not self.read_only):
                with self._connect(writes=True) as connection, connection.begin():
                    self._lock_server(connection)
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

    def _lock_server(self, connection: sa.Connection) -> None:
        if self.url.get_backend_name() == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(self._busy_timeout * 1000)}")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK})")

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
        if url.get_backend_name() != "sqlite":
            try:
                return sa.create_engine(url)
            except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
                raise StoreError(
                    f"the store {self.name} needs a driver that is not there ({error}):"
                    " install it (for postgresql+psycopg: pip install 'psycopg[binary]'), or use a file"
                ) from error
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
        return self._engine.connect().execution_options(planner_writes=writes)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Turns what the database says into what the user can act on."""
        try:
            yield
        except (sa.exc.DBAPIError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            raise self._explain(cause or error) from error

    def _explain(self, cause: BaseException) -> StoreError:
        code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or getattr(cause, "sqlstate", None) == "55P03":
            holders = filecheck.lock_holders(self.path) if self.path else []
            held = f", held by {' and '.join(holders)}" if holders else ""
            return StoreBusy(
                f"{self.name} was locked by another writer for more than {self._busy_timeout:g} s{held}."
                " Nothing was changed; try again when it has ended."
            )
        is_garbled = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "Could not decode" in str(cause)
        if is_garbled and self.path:
            return filecheck.damaged(self.path, clean_text(cause)[:200])
        if code == sqlite3.SQLITE_FULL or getattr(cause, "errno", None) == errno.ENOSPC:
            return StoreError(
                f"there is no space left to write {self.name}. Nothing of this step was recorded and all that was"
                " recorded before is intact: free some space and run the same command again."
            )
        return StoreError(
            f"{self.name} cannot be used: {clean_text(cause)[:200]}. Nothing of this step was recorded: check"
            f" {'the folder, its permissions and the disk' if self.path else 'the server'}, then run it again."
        )


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
        return [self._read(row) for row in rows]

    def _read(self, row: Any) -> Event:
        try:
            body = decode_body(row.body)
            return Event(seq=int(row.seq), at=float(row.at), kind=str(row.kind), run_id=row.run_id, body=body)
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreDamaged(
                f"{self._store.name}: event {row.seq} is not readable ({error})."
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
        except sa.exc.ArgumentError as error:
            raise StoreError(
                f"store address {text!r} is not a URL: write sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"
            ) from error
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return url, None
    path = Path(str(url.database)).absolute()
    return url.set(database=str(path)), path


def _create_tables(connection: sa.Connection) -> None:
    existing = sa.inspect(connection).get_table_names()
    if _events.name in existing:
        return
    _schema.create_all(connection)
    if connection.dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            connection.exec_driver_sql(_APPEND_ONLY.format(verb=verb))
    connection.execute(sa.insert(_meta).values(key="schema_version", value=str(SCHEMA_VERSION)))
    connection.execute(sa.insert(_meta).values(key="created_at", value=str(time.time())))


def _read_version(meta: dict[str, str], name: str) -> int:
    try:
        return int(meta["schema_version"])
    except (KeyError, ValueError) as error:
        raise StoreDamaged(
            f"{name} does not say which schema version it has: it is damaged or no store of this program."
            " It was left as it is; give another file in [store] url."
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
