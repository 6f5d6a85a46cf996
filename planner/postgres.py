"""PostgreSQL as the database of a store: how to get in, who may write, what its errors mean."""

from __future__ import annotations

import contextlib
import os
import re
import socket

import sqlalchemy as sa

from planner.errors import StoreError

DRIVER = "postgresql+psycopg"
DISK_FULL = "53100"
LOCK_TIMEOUT = "55P03"
NOT_OUR_TABLES = ("42P01", "42703")  # a table or a column is not there
# Nobody changes an event, whatever they may do to the table otherwise.
APPEND_ONLY = (
    "CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RAISE EXCEPTION 'append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
    "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION events_append_only()",
)

_LOCK = 0x706C616E  # "plan": serialises writers of one database
# A machine that vanishes inside a transaction must not lock out the others for hours.
_MAX_IDLE_SECONDS = 60
# A dead server is noticed; text is UTF-8 whatever the database holds.  The address may say otherwise.
_OPTIONS = {"client_encoding": "utf8", "connect_timeout": 30, "keepalives_idle": 30}
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


def open_engine(url: sa.URL, name: str) -> sa.Engine:
    """The engine for an address of a server.  Raises `StoreError` without its driver and for other databases."""
    options = {key: value for key, value in _OPTIONS.items() if key not in url.query}
    try:
        # A connection that was lost while nothing was going on is replaced before it is used.
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=options)
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"the store {name} needs a driver that is not there ({error}): for {DRIVER}:// install it with"
            " pip install 'scaling-planner[postgres]', or use a file"
        ) from error
    if url.drivername != DRIVER:
        raise StoreError(f"the store {name} is neither a file nor PostgreSQL: write {DRIVER}://USER@HOST/NAME")
    return engine


def claim(connection: sa.Connection, timeout: float) -> None:
    """Waits until nobody else writes to this database; the right to write ends with the transaction."""
    milliseconds = min(max(1, round(timeout * 1000)), 2**31 - 1)  # 0 would wait for ever
    writer = f"planner process {os.getpid()} ({socket.gethostname()})"
    connection.execute(_CLAIM, {"lock_timeout": str(milliseconds), "writer": writer[:63]})
    # A statement of its own: what is read next is what the last writer committed.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def holders(engine: sa.Engine) -> list[str]:
    """Who may write at the moment, as text for a message; empty where the server does not say."""
    found = []
    with contextlib.suppress(sa.exc.SQLAlchemyError), engine.connect() as connection:
        for row in connection.execute(_HOLDERS, {"lock": _LOCK}):
            found.append(row.application_name or f"server process {row.pid}")
    return found


def advice(message: str) -> str:
    """What to do about an error of the server or of the way there."""
    for pattern, text in _ADVICE.items():
        if re.search(pattern, message):
            return text
    return "check the server"
