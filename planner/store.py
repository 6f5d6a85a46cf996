"""The append-only table of events in one transactional database.

An SQLite file by default, PostgreSQL by URL.  Knows transactions and faults; what events mean is for `events.py`.
What was acknowledged is on disk: a write returns after its transaction was synced and, on SQLite, copied from the
write-ahead log into the file, so that losing the log later loses nothing.  A database holds one study.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from planner import filecheck, postgres, sqlite, storetables
from planner.errors import StoreBusy, StoreDamaged, StoreError, StoreTooNew
from planner.events import clean_text, decode_body, encode_body
from planner.records import Event

SCHEMA_VERSION = 1
# From version n to n + 1, inside one transaction and after a backup of the file.
MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}


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
                return not storetables.are_there(connection, self.name)
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
                    is_new = not storetables.are_there(connection, self.name)
                if is_new:
                    with self._connect(writes=True) as connection, connection.begin():
                        self._claim(connection)
                        if not storetables.are_there(connection, self.name):
                            storetables.create(connection, SCHEMA_VERSION)
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
                    storetables.create(connection, SCHEMA_VERSION)
            finally:
                engine.dispose()
            filecheck.publish(Path(name), path)
        finally:
            for leftover in (name, name + "-wal", name + "-shm"):
                Path(leftover).unlink(missing_ok=True)

    def _claim(self, connection: sa.Connection) -> None:
        if not self._is_sqlite:  # there, beginning is claiming
            postgres.claim(connection, self._busy_timeout)

    def _check_version(self) -> None:
        with self.reading() as reader:
            version = storetables.version_of(reader.meta(), self.name)
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
            for step in range(storetables.version_of(writer.meta(), self.name), SCHEMA_VERSION):
                MIGRATIONS[step](writer.connection)
                writer.set_meta("schema_version", str(step + 1))

    def _make_engine(self, url: sa.URL) -> sa.Engine:
        if not self._is_sqlite:
            return postgres.open_engine(url, self.name)
        is_frozen = self.read_only and self.path is not None and filecheck.is_frozen(self.path)
        return sqlite.open_engine(url, busy_timeout=self._busy_timeout, frozen=self.path if is_frozen else None)

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
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == postgres.LOCK_TIMEOUT:
            holders = self._lock_holders()
            held = f", held by {' and '.join(holders)}" if holders else ""
            return StoreBusy(
                f"{self.name} was locked by another writer for more than {self._busy_timeout:g} s{held}."
                " Nothing was changed; try again when it has ended."
            )
        is_garbled = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "Could not decode" in str(cause)
        if is_garbled and self.path:
            return filecheck.damaged(self.path, clean_text(cause)[:200])
        if state in postgres.NOT_OUR_TABLES:
            return StoreDamaged(
                f"{self.name} is damaged or no store of this program: {_line(cause)}. It was left as it is;"
                " give another database in [store] url."
            )
        if code == sqlite3.SQLITE_FULL or getattr(cause, "errno", None) == errno.ENOSPC or state == postgres.DISK_FULL:
            return StoreError(
                f"there is no space left to write {self.name}. Nothing of this step was recorded and all that was"
                " recorded before is intact: free some space and run the same command again."
            )
        return StoreError(
            f"{self.name} cannot be used: {_line(cause)}. Nothing of this step was recorded:"
            f" {'check the folder, its permissions and the disk' if self._is_sqlite else postgres.advice(str(cause))},"
            " then run it again."
        )

    def _lock_holders(self) -> list[str]:
        if self.path is not None:
            return filecheck.lock_holders(self.path)
        return [] if self._is_sqlite or self._engine is None else postgres.holders(self._engine)


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
        return {row.key: row.value for row in self._connection.execute(sa.select(storetables.META))}

    def events(self, after: int = 0) -> list[Event]:
        """Events with `seq` above `after`, in order.  Raises `StoreDamaged` for unreadable ones."""
        return list(self.each_event(after))

    def each_event(self, after: int = 0) -> Iterator[Event]:
        """The same one by one: of a long ledger, none is kept that has been dealt with."""
        if self._connection is None:
            return
        rows = self._connection.execute(
            sa.select(storetables.EVENTS).where(storetables.EVENTS.c.seq > after).order_by(storetables.EVENTS.c.seq)
        )
        for row in rows.all():
            yield self._read(*row)

    def _read(self, seq: Any, at: Any, kind: Any, run_id: Any, body: Any) -> Event:
        try:
            event = object.__new__(Event)  # its __init__ would take three times as long, for every event there is
            event.__dict__.update(seq=int(seq), at=float(at), kind=str(kind), run_id=run_id, body=decode_body(body))
            return event
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
            sa.insert(storetables.EVENTS).values(
                seq=event.seq, at=event.at, kind=event.kind, run_id=event.run_id, body=encode_body(event.body)
            )
        )

    def set_meta(self, key: str, value: str) -> None:
        """Sets one thing the store says of itself."""
        self.connection.execute(sa.delete(storetables.META).where(storetables.META.c.key == key))
        self.connection.execute(sa.insert(storetables.META).values(key=key, value=value))


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
                f"store address {shown!r} is not a URL: write sqlite:///FILE or {postgres.DRIVER}://USER@HOST/NAME"
            ) from None
    if url.drivername == "postgresql":
        url = url.set(drivername=postgres.DRIVER)
    if "password" in url.query:  # where it would be shown
        url = url.set(password=str(url.query["password"])).difference_update_query(["password"])
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return url, None
    path = Path(str(url.database)).absolute()
    return url.set(database=str(path)), path


def _line(cause: object) -> str:
    return " ".join(clean_text(cause).split())[:200].rstrip(".")
