"""SQLite as the database of a store: every commit is on the disk, and in the file itself, before it is acknowledged."""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from planner import filecheck

# Nobody changes an event, whatever they may do to the table otherwise.
APPEND_ONLY = tuple(
    f"CREATE TRIGGER events_no_{verb} BEFORE {verb} ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END"
    for verb in ("UPDATE", "DELETE")
)


def open_engine(url: sa.URL, *, busy_timeout: float, frozen: Path | None) -> sa.Engine:
    """The engine for a file or memory; `frozen` is a file that can only be read and has no log beside it."""
    options: dict[str, Any] = {"connect_args": {"timeout": busy_timeout, "check_same_thread": False}}
    if url.database in (None, "", ":memory:"):
        options["poolclass"] = sa.StaticPool
    elif frozen is not None:
        options = {"creator": functools.partial(sqlite3.connect, filecheck.address(frozen), uri=True)}
        options["poolclass"] = sa.NullPool  # somebody else may write in between
    engine = sa.create_engine(url, **options)
    sa.event.listen(engine, "connect", _prepare)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin`, not guessed by the driver
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    # Copy every commit into the file at once: a log that is cut, or left behind when the file is copied, loses nothing.
    connection.execute("PRAGMA wal_autocheckpoint=1")


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("planner_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
